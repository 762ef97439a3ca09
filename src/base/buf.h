/* A growable byte buffer that is born with its maximum.
 *
 * Bytes are appended at the end and consumed at the front; consumed space is reused before the
 * allocation grows, and an emptied buffer that had grown large gives its memory back. */
#ifndef BASE_BUF_H
#define BASE_BUF_H

#include <stddef.h>
#include <stdint.h>

struct buf {
    uint8_t *data; /* owned; NULL while capacity is 0 */
    size_t start;  /* first byte not yet consumed */
    size_t len;    /* bytes held, from start */
    size_t capacity;
    size_t max; /* len never exceeds this */
};

/* Embedded object: no allocation until the first byte arrives. */
void buf_init(struct buf *b, size_t max);
void buf_done(struct buf *b);

/* Appends `n` bytes (copied). MUSTER_ELIMIT when `max` would be exceeded, MUSTER_ENOMEM; on failure the
 * buffer is unchanged. */
int buf_append(struct buf *b, const void *bytes, size_t n);
int buf_printf(struct buf *b, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Makes room for `n` more bytes and returns where to write them (NULL with a detail on failure); follow
 * with buf_commit(b, written). The pointer dies with the next call on `b`. */
uint8_t *buf_reserve(struct buf *b, size_t n);
void buf_commit(struct buf *b, size_t n);

/* Drops `n` (<= len) bytes from the front. */
void buf_consume(struct buf *b, size_t n);
void buf_clear(struct buf *b);

static inline uint8_t *buf_bytes(const struct buf *b) {
    return b->data ? b->data + b->start : b->data;
}

#endif
