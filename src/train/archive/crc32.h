/* The checksum of zip archives (CRC-32 with the polynomial 0xEDB88320), eight bytes at a time. Pure. */
#ifndef TRAIN_CRC32_H
#define TRAIN_CRC32_H

#include <stddef.h>
#include <stdint.h>

enum { CRC32_SLICES = 8 };

/* slice[k][b]: what byte b does to a checksum when k bytes more follow it. */
struct crc32 {
    uint32_t slice[CRC32_SLICES][256];
};

void crc32_init(struct crc32 *tables);

/* The checksum of bytes whose checksum is `crc`, and of `count` more behind them. Begin with 0. */
uint32_t crc32_add(const struct crc32 *tables, uint32_t crc, const void *bytes, size_t count);

#endif
