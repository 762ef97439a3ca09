/* What tests compare with is computed element by element, in memory that no other thread knows: the thread sanitizer,
 * which would make that ten times as long, watches the copy into and out of a rank's buffers alone. */
#ifndef MUSTER_COMM_UNWATCHED_TEST_SUPPORT_H
#define MUSTER_COMM_UNWATCHED_TEST_SUPPORT_H

#include <stddef.h>
#include <stdint.h>

#define UNWATCHED __attribute__((no_sanitize("thread")))

enum { UNWATCHED_CHUNK = 512 }; /* elements of at most 8 bytes that are computed at a time */

/* Element i, of `width` bytes: 1, 2, 4 or 8. */
UNWATCHED static inline void unwatched_put(void *elements, size_t i, size_t width, uint64_t bits) {
    switch (width) {
    case 1:
        ((uint8_t *)elements)[i] = (uint8_t)bits;
        break;
    case 2:
        ((uint16_t *)elements)[i] = (uint16_t)bits;
        break;
    case 4:
        ((uint32_t *)elements)[i] = (uint32_t)bits;
        break;
    default:
        ((uint64_t *)elements)[i] = bits;
    }
}

UNWATCHED static inline uint64_t unwatched_get(const void *elements, size_t i, size_t width) {
    switch (width) {
    case 1:
        return ((const uint8_t *)elements)[i];
    case 2:
        return ((const uint16_t *)elements)[i];
    case 4:
        return ((const uint32_t *)elements)[i];
    default:
        return ((const uint64_t *)elements)[i];
    }
}

/* How many elements the chunk that begins at `at` has. */
static inline size_t unwatched_chunk(size_t at, size_t count) {
    return count - at < UNWATCHED_CHUNK ? count - at : UNWATCHED_CHUNK;
}

#endif
