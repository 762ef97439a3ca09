/* A borrowed run of bytes: keys and values are binary, so there is no terminator to look for. */
#ifndef STORE_SLICE_H
#define STORE_SLICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

struct kv_slice {
    const uint8_t *data; /* borrowed; may be NULL when len is 0 */
    size_t len;
};

static inline struct kv_slice kv_slice_of(const void *data, size_t len) {
    return (struct kv_slice){.data = data, .len = len};
}

static inline struct kv_slice kv_slice_text(const char *text) {
    return kv_slice_of(text, strlen(text));
}

static inline bool kv_slice_equal(struct kv_slice a, struct kv_slice b) {
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

#endif
