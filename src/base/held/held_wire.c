/* See held_wire.h. */
#include "base/held/held_wire.h"

#include <assert.h>
#include <string.h>

#include "base/bytes.h"

enum { MAGIC_BYTES = 8 };

bool held_name_is_valid(const char *name) {
    size_t length = strnlen(name, HELD_NAME_BYTES);
    return length > 0 && length < HELD_NAME_BYTES;
}

static void put_head(struct bytes_writer *w, uint64_t what) {
    bytes_put(w, HELD_MAGIC, MAGIC_BYTES);
    bytes_put_number(w, HELD_VERSION, 4);
    bytes_put_number(w, what, 4);
}

static bool get_head(struct bytes_reader *r, uint32_t *out) {
    const uint8_t *magic = bytes_get(r, MAGIC_BYTES);
    bool is_ours = magic && memcmp(magic, HELD_MAGIC, MAGIC_BYTES) == 0 && bytes_get_number(r, 4) == HELD_VERSION;
    *out = (uint32_t)bytes_get_number(r, 4);
    return is_ours;
}

void held_request_encode(const struct held_request *request, uint8_t out[HELD_REQUEST_BYTES]) {
    struct bytes_writer w = {.data = out, .size = HELD_REQUEST_BYTES};
    assert(held_name_is_valid(request->name));
    memset(out, 0, HELD_REQUEST_BYTES);
    put_head(&w, (uint64_t)request->kind);
    bytes_put(&w, request->name, strlen(request->name));
    assert(!w.overrun);
}

/* One way to write a name: zeros behind it. */
static bool is_padded(const uint8_t *name) {
    size_t length = strnlen((const char *)name, HELD_NAME_BYTES);
    for (size_t i = length; i < HELD_NAME_BYTES; i++) {
        if (name[i] != 0) {
            return false;
        }
    }
    return length > 0 && length < HELD_NAME_BYTES;
}

bool held_request_decode(const uint8_t *data, size_t len, struct held_request *out) {
    struct bytes_reader r = {.data = data, .size = len};
    uint32_t kind;
    if (len != HELD_REQUEST_BYTES || !get_head(&r, &kind) || kind < HELD_PUT || kind > HELD_DROP) {
        return false;
    }
    const uint8_t *name = bytes_get(&r, HELD_NAME_BYTES);
    if (!is_padded(name)) {
        return false;
    }
    out->kind = (enum held_kind)kind;
    memcpy(out->name, name, HELD_NAME_BYTES);
    return true;
}

void held_answer_encode(enum held_verdict verdict, uint8_t out[HELD_ANSWER_BYTES]) {
    struct bytes_writer w = {.data = out, .size = HELD_ANSWER_BYTES};
    put_head(&w, (uint64_t)verdict);
    assert(!w.overrun && w.used == HELD_ANSWER_BYTES);
}

bool held_answer_decode(const uint8_t *data, size_t len, enum held_verdict *out) {
    struct bytes_reader r = {.data = data, .size = len};
    uint32_t verdict;
    if (len != HELD_ANSWER_BYTES || !get_head(&r, &verdict) || verdict > HELD_NOT_A_REQUEST) {
        return false;
    }
    *out = (enum held_verdict)verdict;
    return true;
}
