/* 64-bit checksums of files: XXH3 (docs/adr/0007-snapshot-checksums.md). Pure.
 *
 * They find damage, not malice: whoever can write the file can write its checksum. */
#ifndef TRAIN_CHECKSUM_H
#define TRAIN_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

/* A checksum in the making; embedded, nothing to free. */
struct checksum {
    _Alignas(64) unsigned char state[576];
};

void checksum_init(struct checksum *checksum);
void checksum_add(struct checksum *checksum, const void *bytes, size_t count);
uint64_t checksum_value(const struct checksum *checksum);

/* The checksum of `count` bytes at once. */
uint64_t checksum_of(const void *bytes, size_t count);

#endif
