/* Bounded growable buffer; see buf.h. */
#include "base/buf.h"

#include <assert.h>
#include <stdarg.h>
#include <stdbool.h>
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

/* Room for `n` more bytes whatever the maximum is; NULL with a detail when memory has run out. */
static uint8_t *make_room(struct buf *b, size_t n) {
    if (b->capacity - b->start - b->len >= n && b->data) {
        return b->data + b->start + b->len;
    }
    if (b->data && b->start > 0) {
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

static bool is_over_max(const struct buf *b, size_t n) {
    return n > b->max || b->len > b->max - n;
}

static int fail_over_max(const struct buf *b, size_t n) {
    return status_fail(MUSTER_ELIMIT, "buffer of at most %zu bytes cannot take %zu more", b->max, n);
}

uint8_t *buf_reserve(struct buf *b, size_t n) {
    if (is_over_max(b, n)) {
        (void)fail_over_max(b, n);
        return NULL;
    }
    return make_room(b, n);
}

void buf_commit(struct buf *b, size_t n) {
    assert(b->start + b->len + n <= b->capacity);
    b->len += n;
}

int buf_append(struct buf *b, const void *bytes, size_t n) {
    if (n == 0) {
        return MUSTER_OK;
    }
    if (is_over_max(b, n)) {
        return fail_over_max(b, n);
    }
    uint8_t *at = make_room(b, n);
    if (!at) {
        return MUSTER_ENOMEM;
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
    if (is_over_max(b, (size_t)n)) {
        return fail_over_max(b, (size_t)n);
    }
    size_t need = (size_t)n + 1; /* vsnprintf writes a terminator, which is neither kept nor counted */
    uint8_t *at = make_room(b, need);
    if (!at) {
        return MUSTER_ENOMEM;
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
