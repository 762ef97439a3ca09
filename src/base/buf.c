/* Bounded growable buffer; see buf.h. */
#include "base/buf.h"

#include <assert.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

enum { FIRST_CAPACITY = 256, KEEP_CAPACITY = 64 * 1024 };

void buf_init(struct buf *b, size_t max) {
    *b = (struct buf){.max = max};
}

void buf_done(struct buf *b) {
    free(b->data);
    *b = (struct buf){.max = b->max};
}

uint8_t *buf_reserve(struct buf *b, size_t n) {
    if (n > b->max || b->len > b->max - n) {
        (void)status_fail(MUSTER_ELIMIT, "buffer of at most %zu bytes cannot take %zu more", b->max, n);
        return NULL;
    }
    if (b->capacity - b->start - b->len >= n && b->data) {
        return b->data + b->start + b->len;
    }
    if (b->start > 0) {
        memmove(b->data, b->data + b->start, b->len);
        b->start = 0;
    }
    if (b->capacity - b->len < n || !b->data) {
        size_t wanted = b->capacity ? b->capacity : FIRST_CAPACITY;
        while (wanted - b->len < n) {
            wanted = wanted > b->max / 2 ? b->len + n : wanted * 2;
        }
        uint8_t *grown = realloc(b->data, wanted);
        if (!grown) {
            (void)status_fail(MUSTER_ENOMEM, "no memory for a buffer of %zu bytes", wanted);
            return NULL;
        }
        b->data = grown;
        b->capacity = wanted;
    }
    return b->data + b->len;
}

void buf_commit(struct buf *b, size_t n) {
    assert(b->start + b->len + n <= b->capacity);
    b->len += n;
}

static int reserve_code(const struct buf *b, size_t n) {
    return n > b->max || b->len > b->max - n ? MUSTER_ELIMIT : MUSTER_ENOMEM;
}

int buf_append(struct buf *b, const void *bytes, size_t n) {
    if (n == 0) {
        return MUSTER_OK;
    }
    uint8_t *at = buf_reserve(b, n);
    if (!at) {
        return reserve_code(b, n);
    }
    memcpy(at, bytes, n);
    b->len += n;
    return MUSTER_OK;
}

int buf_printf(struct buf *b, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    if (n < 0) {
        return status_fail(MUSTER_EINVAL, "text cannot be formatted");
    }
    size_t need = (size_t)n + 1; /* vsnprintf writes a terminator, which is not kept */
    uint8_t *at = buf_reserve(b, need);
    if (!at) {
        return reserve_code(b, need);
    }
    va_start(args, format);
    (void)vsnprintf((char *)at, need, format, args);
    va_end(args);
    b->len += (size_t)n;
    return MUSTER_OK;
}

void buf_consume(struct buf *b, size_t n) {
    assert(n <= b->len);
    b->start += n;
    b->len -= n;
    if (b->len == 0) {
        buf_clear(b);
    }
}

void buf_clear(struct buf *b) {
    b->start = 0;
    b->len = 0;
    if (b->capacity > KEEP_CAPACITY) {
        free(b->data);
        b->data = NULL;
        b->capacity = 0;
    }
}
