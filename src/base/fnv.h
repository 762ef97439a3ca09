/* FNV-1a with 64 bits: against mistakes, not against malice. What is hashed in several parts is the same as in one.
 * Pure.
 *
 * Source: Fowler, Noll, Vo, Eastlake, "The FNV Non-Cryptographic Hash Algorithm". */
#ifndef BASE_FNV_H
#define BASE_FNV_H

#include <stddef.h>
#include <stdint.h>

#define FNV_BEGIN UINT64_C(0xcbf29ce484222325)

/* One step, which takes a byte. A whole number in place of it mixes less well, and costs an eighth. */
static inline uint64_t fnv_step(uint64_t hash, uint64_t value) {
    return (hash ^ value) * UINT64_C(0x100000001b3);
}

static inline uint64_t fnv_bytes(uint64_t hash, const void *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) {
        hash = fnv_step(hash, ((const uint8_t *)bytes)[i]);
    }
    return hash;
}

#endif
