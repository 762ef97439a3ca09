/* Little-endian numbers in byte strings, for formats on the wire and on disk: a writer that never leaves its room, and
 * a reader that never leaves what it was given. Pure. */
#ifndef BASE_BYTES_H
#define BASE_BYTES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* `overrun` is set once something did not fit, or was not there; from then on nothing is written, and zeros are read.
 */
struct bytes_writer {
    uint8_t *data;
    size_t size, used;
    bool overrun;
};
struct bytes_reader {
    const uint8_t *data;
    size_t size, used;
    bool overrun;
};

static inline void bytes_put(struct bytes_writer *w, const void *from, size_t n) {
    if (w->overrun || n > w->size - w->used) {
        w->overrun = true;
        return;
    }
    if (n > 0) {
        memcpy(w->data + w->used, from, n);
    }
    w->used += n;
}

/* The low `n` (<= 8) bytes of `value`. */
static inline void bytes_put_number(struct bytes_writer *w, uint64_t value, size_t n) {
    uint8_t bytes[8];
    for (size_t i = 0; i < n; i++) {
        bytes[i] = (uint8_t)(value >> 8 * i);
    }
    bytes_put(w, bytes, n);
}

/* Seven bits a byte, lowest first, the top bit set on all but the last. */
static inline void bytes_put_varint(struct bytes_writer *w, uint64_t value) {
    while (value >= 0x80) {
        bytes_put_number(w, value | 0x80, 1);
        value >>= 7;
    }
    bytes_put_number(w, value, 1);
}

/* The next `n` bytes, borrowed from the input; NULL after an overrun. */
static inline const uint8_t *bytes_get(struct bytes_reader *r, size_t n) {
    if (r->overrun || n > r->size - r->used) {
        r->overrun = true;
        return NULL;
    }
    r->used += n;
    return r->data + (r->used - n);
}

static inline uint64_t bytes_get_number(struct bytes_reader *r, size_t n) {
    const uint8_t *bytes = bytes_get(r, n);
    uint64_t value = 0;
    for (size_t i = 0; bytes && i < n; i++) {
        value |= (uint64_t)bytes[i] << 8 * i;
    }
    return value;
}

static inline uint64_t bytes_get_varint(struct bytes_reader *r) {
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 63; shift += 7) {
        uint64_t byte = bytes_get_number(r, 1);
        value |= (byte & 0x7F) << shift;
        if (byte < 0x80) {
            return r->overrun ? 0 : value;
        }
    }
    r->overrun = true;
    return 0;
}

#endif
