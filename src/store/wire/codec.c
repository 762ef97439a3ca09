/* TCPStore encoding and decoding; see codec.h. All integers on the wire are little-endian. */
#include "store/wire/codec.h"

#include <assert.h>
#include <endian.h>
#include <string.h>

#include "base/status.h"

static const char *const request_layouts[256] = {
#define REQUEST_LAYOUT(name, code, request, reply) [code] = (request),
    CODEC_COMMAND_TABLE(REQUEST_LAYOUT)
#undef REQUEST_LAYOUT
};

static const char *const reply_layouts[256] = {
#define REPLY_LAYOUT(name, code, request, reply) [code] = (reply),
    CODEC_COMMAND_TABLE(REPLY_LAYOUT)
#undef REPLY_LAYOUT
};

const char *codec_command_name(unsigned command) {
    switch (command) {
#define NAME_CASE(name, code, request, reply)                                                                          \
    case code:                                                                                                         \
        return #name;
        CODEC_COMMAND_TABLE(NAME_CASE)
#undef NAME_CASE
    default:
        return "?";
    }
}

static uint64_t load_u64(const uint8_t *p) {
    uint64_t raw;
    memcpy(&raw, p, sizeof raw);
    return le64toh(raw);
}

static uint32_t load_u32(const uint8_t *p) {
    uint32_t raw;
    memcpy(&raw, p, sizeof raw);
    return le32toh(raw);
}

void codec_scan_request(struct codec_scan *scan) {
    *scan = (struct codec_scan){.need = 1};
}

void codec_scan_reply(struct codec_scan *scan, enum codec_command command, size_t value_count) {
    assert(reply_layouts[command] && value_count <= CODEC_KEYS_MAX);
    *scan = (struct codec_scan){.layout = reply_layouts[command]};
    if (scan->layout[0] == 'B') {
        scan->items_left = (uint32_t)value_count;
        scan->in_list = true;
    }
}

/* Walks `size` bytes if they are there. */
static enum codec_result walk(struct codec_scan *scan, size_t len, size_t size) {
    assert(size <= CODEC_MESSAGE_BYTES_MAX);
    if (size > CODEC_MESSAGE_BYTES_MAX - scan->at) {
        (void)status_fail(MUSTER_ELIMIT, "message over %zu bytes", CODEC_MESSAGE_BYTES_MAX);
        return CODEC_MALFORMED;
    }
    scan->need = scan->at + size;
    if (len < scan->need) {
        return CODEC_MORE;
    }
    scan->at = scan->need;
    return CODEC_COMPLETE;
}

/* Of a field in a reply: servers other than ours have no limit of their own. */
#define REPLY_BYTES_MAX (CODEC_MESSAGE_BYTES_MAX - 8)

/* One length-prefixed field of at most `max` (<= REPLY_BYTES_MAX) bytes. */
static enum codec_result walk_bytes(struct codec_scan *scan, const uint8_t *bytes, size_t len, size_t max) {
    if (len - scan->at < 8) {
        return walk(scan, len, 8);
    }
    uint64_t size = load_u64(bytes + scan->at);
    if (size > max) {
        (void)status_fail(MUSTER_ELIMIT, "field of %llu bytes, the limit is %zu", (unsigned long long)size, max);
        return CODEC_MALFORMED;
    }
    return walk(scan, len, (size_t)size + 8);
}

static enum codec_result walk_magic(struct codec_scan *scan, const uint8_t *bytes, size_t len) {
    static const uint8_t magic[4] = {CODEC_MAGIC & 0xff, (CODEC_MAGIC >> 8) & 0xff, (CODEC_MAGIC >> 16) & 0xff,
                                     CODEC_MAGIC >> 24};
    size_t have = len - scan->at < sizeof magic ? len - scan->at : sizeof magic;
    if (memcmp(bytes + scan->at, magic, have) != 0) { /* as far as it has come: a stranger is recognised early */
        (void)status_fail(MUSTER_EPROTOCOL, "wrong magic number");
        return CODEC_MALFORMED;
    }
    return walk(scan, len, sizeof magic);
}

/* The count in front of a list; `per_item` fields each. */
static enum codec_result walk_count(struct codec_scan *scan, const uint8_t *bytes, size_t len, size_t max,
                                    uint32_t per_item) {
    enum codec_result result = walk(scan, len, 8);
    if (result != CODEC_COMPLETE) {
        return result;
    }
    uint64_t count = load_u64(bytes + scan->at - 8);
    if (count > max) {
        (void)status_fail(MUSTER_ELIMIT, "list of %llu items, the limit is %zu", (unsigned long long)count, max);
        return CODEC_MALFORMED;
    }
    scan->items_left = (uint32_t)count * per_item;
    scan->in_list = true;
    return CODEC_COMPLETE;
}

static enum codec_result walk_list(struct codec_scan *scan, const uint8_t *bytes, size_t len, char kind) {
    while (scan->items_left > 0) {
        bool is_key = kind == 'K' || (kind == 'P' && scan->items_left % 2 == 0);
        size_t max = is_key ? CODEC_KEY_BYTES_MAX : kind == 'P' ? CODEC_VALUE_BYTES_MAX : REPLY_BYTES_MAX;
        enum codec_result result = walk_bytes(scan, bytes, len, max);
        if (result != CODEC_COMPLETE) {
            return result;
        }
        scan->items_left--;
    }
    scan->in_list = false;
    return CODEC_COMPLETE;
}

static enum codec_result walk_counted(struct codec_scan *scan, const uint8_t *bytes, size_t len, char kind) {
    if (!scan->in_list) {
        size_t max = kind == 'L' ? CODEC_LIST_KEYS_MAX : CODEC_KEYS_MAX;
        enum codec_result result = walk_count(scan, bytes, len, max, kind == 'P' ? 2 : 1);
        if (result != CODEC_COMPLETE) {
            return result;
        }
    }
    return walk_list(scan, bytes, len, kind);
}

/* QUEUE_POP's reply: a length, and an item only when it is positive. */
static enum codec_result walk_popped(struct codec_scan *scan, const uint8_t *bytes, size_t len) {
    if (!scan->in_list) {
        enum codec_result result = walk(scan, len, 8);
        if (result != CODEC_COMPLETE) {
            return result;
        }
        scan->items_left = (int64_t)load_u64(bytes + scan->at - 8) > 0;
        scan->in_list = true;
    }
    return walk_list(scan, bytes, len, 'b');
}

static enum codec_result walk_field(struct codec_scan *scan, const uint8_t *bytes, size_t len) {
    switch (*scan->layout) {
    case '1':
        return walk(scan, len, 1);
    case '4':
        return walk(scan, len, 4);
    case '8':
    case 't':
        return walk(scan, len, 8);
    case 'm':
        return walk_magic(scan, bytes, len);
    case 'k':
        return walk_bytes(scan, bytes, len, CODEC_KEY_BYTES_MAX);
    case 'v':
        return walk_bytes(scan, bytes, len, CODEC_VALUE_BYTES_MAX);
    case 'b':
        return walk_bytes(scan, bytes, len, REPLY_BYTES_MAX);
    case 'q':
        return walk_popped(scan, bytes, len);
    case 'B':
        return walk_list(scan, bytes, len, 'B');
    default:
        return walk_counted(scan, bytes, len, *scan->layout);
    }
}

enum codec_result codec_scan_step(struct codec_scan *scan, const uint8_t *bytes, size_t len) {
    if (!scan->layout) {
        if (len == 0) {
            return CODEC_MORE;
        }
        scan->layout = request_layouts[bytes[0]];
        if (!scan->layout) {
            (void)status_fail(MUSTER_EPROTOCOL, "unknown command 0x%02x", bytes[0]);
            return CODEC_MALFORMED;
        }
        scan->at = 1;
    }
    for (; *scan->layout != '\0'; scan->layout++) {
        enum codec_result result = walk_field(scan, bytes, len);
        if (result != CODEC_COMPLETE) {
            return result;
        }
    }
    return CODEC_COMPLETE;
}

static struct kv_slice take_bytes(const uint8_t **at) {
    struct kv_slice slice = {.data = *at + 8, .len = (size_t)load_u64(*at)};
    *at += 8 + slice.len;
    return slice;
}

bool codec_list_next(struct codec_list *list, struct kv_slice *out) {
    if (list->item_count == 0) {
        return false;
    }
    list->item_count--;
    *out = take_bytes(&list->at);
    assert(list->at <= list->end);
    return true;
}

static int64_t take_i64(const uint8_t **at) {
    int64_t value = (int64_t)load_u64(*at);
    *at += 8;
    return value;
}

void codec_request_decode(const uint8_t *bytes, size_t len, struct codec_request *out) {
    const uint8_t *at = bytes + 1, *end = bytes + len;
    *out = (struct codec_request){.command = bytes[0]};
    unsigned values = 0;
    for (const char *layout = request_layouts[bytes[0]]; *layout != '\0'; layout++) {
        switch (*layout) {
        case '4':
        case 'm':
            out->number = load_u32(at);
            at += 4;
            break;
        case '8':
            out->number = take_i64(&at);
            break;
        case 't':
            out->turn = take_i64(&at);
            break;
        case 'k':
            out->key = take_bytes(&at);
            break;
        case 'v':
            *(values++ == 0 ? &out->value : &out->desired) = take_bytes(&at);
            break;
        default: { /* K, P */
            size_t count = (size_t)take_i64(&at);
            out->list = (struct codec_list){.at = at, .end = end, .item_count = *layout == 'P' ? 2 * count : count};
            at = end;
        }
        }
    }
    assert(at == end);
}

void codec_reply_decode(enum codec_command command, const uint8_t *bytes, size_t len, struct codec_reply *out) {
    const uint8_t *at = bytes, *end = bytes + len;
    *out = (struct codec_reply){.list = {.end = end}};
    switch (reply_layouts[command][0]) {
    case '1':
        out->number = *at;
        break;
    case '4':
        out->number = load_u32(at);
        break;
    case '8':
        out->number = take_i64(&at);
        break;
    case 'b':
        out->list.item_count = 1;
        break;
    case 'q':
        out->number = take_i64(&at);
        out->list.item_count = out->number > 0;
        break;
    case 'L':
        out->number = take_i64(&at);
        out->list.item_count = (size_t)out->number;
        break;
    case 'B': /* the reply does not carry its count */
        for (const uint8_t *p = at; p < end; out->list.item_count++) {
            (void)take_bytes(&p);
        }
        break;
    default:
        break;
    }
    out->list.at = at;
}

int codec_put_u8(struct buf *out, uint8_t value) {
    return buf_append(out, &value, 1);
}

int codec_put_u32(struct buf *out, uint32_t value) {
    uint32_t raw = htole32(value);
    return buf_append(out, &raw, sizeof raw);
}

int codec_put_i64(struct buf *out, int64_t value) {
    uint64_t raw = htole64((uint64_t)value);
    return buf_append(out, &raw, sizeof raw);
}

int codec_put_bytes(struct buf *out, struct kv_slice bytes) {
    int code = codec_put_i64(out, (int64_t)bytes.len);
    return code ? code : buf_append(out, bytes.data, bytes.len);
}

int codec_put_key(struct buf *out, const char *prefix, struct kv_slice key) {
    size_t prefix_len = strlen(prefix);
    if (key.len > CODEC_KEY_BYTES_MAX - prefix_len) {
        return status_fail(MUSTER_ELIMIT, "key of %zu bytes, the limit is %zu", key.len,
                           CODEC_KEY_BYTES_MAX - prefix_len);
    }
    int code = codec_put_i64(out, (int64_t)(prefix_len + key.len));
    code = code ? code : buf_append(out, prefix, prefix_len);
    return code ? code : buf_append(out, key.data, key.len);
}

int codec_put_keys(struct buf *out, const char *prefix, const char *const *keys, size_t key_count) {
    if (key_count > CODEC_KEYS_MAX) {
        return status_fail(MUSTER_ELIMIT, "%zu keys, the limit is %zu", key_count, CODEC_KEYS_MAX);
    }
    int code = codec_put_i64(out, (int64_t)key_count);
    for (size_t i = 0; i < key_count && code == 0; i++) {
        code = codec_put_key(out, prefix, kv_slice_text(keys[i]));
    }
    return code;
}

int codec_put_value(struct buf *out, struct kv_slice value) {
    if (value.len > CODEC_VALUE_BYTES_MAX) {
        return status_fail(MUSTER_ELIMIT, "value of %zu bytes, the limit is %zu", value.len, CODEC_VALUE_BYTES_MAX);
    }
    return codec_put_bytes(out, value);
}
