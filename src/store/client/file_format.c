/* FileStore records; see file_format.h. */
#include "store/client/file_format.h"

#include <endian.h>
#include <string.h>

#include "base/status.h"

/* "-/" may stand in front of a key of full length. */
#define RAW_KEY_BYTES_MAX (CODEC_KEY_BYTES_MAX + 2)

/* One length-prefixed field at *at. 0: not all there yet. */
static int take_field(const uint8_t *bytes, size_t len, size_t *at, size_t max, struct kv_slice *out, bool *complete) {
    uint32_t raw;
    *complete = false;
    if (len - *at < sizeof raw) {
        return 0;
    }
    memcpy(&raw, bytes + *at, sizeof raw);
    size_t size = le32toh(raw);
    if (size > max) {
        return status_fail(MUSTER_ECORRUPT, "a field of %zu bytes, the limit is %zu: this is no FileStore file", size,
                           max);
    }
    if (len - *at - sizeof raw < size) {
        return 0;
    }
    *out = kv_slice_of(bytes + *at + sizeof raw, size);
    *at += sizeof raw + size;
    *complete = true;
    return 0;
}

static int apply_one(struct kv_table *table, struct kv_slice key, struct kv_slice value) {
    struct kv_change change;
    size_t prefix_len = strlen(FILE_FORMAT_DELETE_PREFIX);
    int code = 0;
    if (key.len >= prefix_len && memcmp(key.data, FILE_FORMAT_DELETE_PREFIX, prefix_len) == 0) {
        (void)kv_table_delete(table, kv_slice_of(key.data + prefix_len, key.len - prefix_len), &change);
    } else {
        code = kv_table_set(table, key, value, &change);
    }
    kv_table_sweep(table);
    return code;
}

int file_format_apply(const uint8_t *bytes, size_t len, struct kv_table *table, size_t *out_used) {
    size_t at = 0;
    *out_used = 0;
    for (;;) {
        struct kv_slice key, value;
        bool complete = false;
        int code = take_field(bytes, len, &at, RAW_KEY_BYTES_MAX, &key, &complete);
        if (code == 0 && complete) {
            code = take_field(bytes, len, &at, CODEC_VALUE_BYTES_MAX, &value, &complete);
        }
        if (code || !complete) {
            return code;
        }
        code = apply_one(table, key, value);
        if (code) {
            return code;
        }
        *out_used = at;
    }
}

static int put_u32(struct buf *out, size_t value) {
    uint32_t raw = htole32((uint32_t)value);
    return buf_append(out, &raw, sizeof raw);
}

int file_format_put(struct buf *out, const char *prefix, const char *key, struct kv_slice value) {
    size_t prefix_len = strlen(prefix), key_len = strlen(key);
    if (prefix_len + key_len > RAW_KEY_BYTES_MAX || value.len > CODEC_VALUE_BYTES_MAX) {
        return status_fail(MUSTER_ELIMIT, "key of %zu or value of %zu bytes is over the limit of %zu or %zu",
                           prefix_len + key_len, value.len, CODEC_KEY_BYTES_MAX, CODEC_VALUE_BYTES_MAX);
    }
    int code = put_u32(out, prefix_len + key_len);
    code = code ? code : buf_append(out, prefix, prefix_len);
    code = code ? code : buf_append(out, key, key_len);
    code = code ? code : put_u32(out, value.len);
    return code ? code : buf_append(out, value.data, value.len);
}
