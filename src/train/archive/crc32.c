/* See crc32.h. (Slicing by eight: Kounavis and Berry 2005.) */
#include "train/archive/crc32.h"

#include <string.h>

#define POLYNOMIAL 0xEDB88320u

void crc32_init(struct crc32 *tables) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++) {
            crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
        }
        tables->slice[0][byte] = crc;
    }
    for (int k = 1; k < CRC32_SLICES; k++) {
        for (int byte = 0; byte < 256; byte++) {
            uint32_t before = tables->slice[k - 1][byte];
            tables->slice[k][byte] = before >> 8 ^ tables->slice[0][before & 255];
        }
    }
}

uint32_t crc32_add(const struct crc32 *tables, uint32_t crc, const void *bytes, size_t count) {
    const uint8_t *at = bytes;
    crc = ~crc;
    for (; count >= CRC32_SLICES; count -= CRC32_SLICES, at += CRC32_SLICES) {
        uint64_t word;
        memcpy(&word, at, sizeof word); /* little-endian, as all of train/state is */
        word ^= crc;
        crc = 0;
        for (int k = 0; k < CRC32_SLICES; k++) {
            crc ^= tables->slice[CRC32_SLICES - 1 - k][word >> 8 * k & 255];
        }
    }
    for (; count > 0; count--, at++) {
        crc = crc >> 8 ^ tables->slice[0][(crc ^ *at) & 255];
    }
    return ~crc;
}
