/* Base64; see base64.h. */
#include "base/base64.h"

#include <stdbool.h>

#include "base/status.h"

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

int base64_encode(const uint8_t *bytes, size_t len, struct buf *out) {
    size_t text_len = (len + 2) / 3 * 4;
    if (text_len == 0) {
        return MUSTER_OK;
    }
    uint8_t *text = buf_reserve(out, text_len);
    if (!text) {
        return text_len > out->max - out->len ? MUSTER_ELIMIT : MUSTER_ENOMEM;
    }
    for (size_t i = 0; i < len; i += 3) {
        size_t left = len - i;
        uint32_t three = (uint32_t)bytes[i] << 16;
        three |= left > 1 ? (uint32_t)bytes[i + 1] << 8 : 0;
        three |= left > 2 ? (uint32_t)bytes[i + 2] : 0;
        *text++ = (uint8_t)alphabet[three >> 18];
        *text++ = (uint8_t)alphabet[three >> 12 & 63];
        *text++ = left > 1 ? (uint8_t)alphabet[three >> 6 & 63] : '=';
        *text++ = left > 2 ? (uint8_t)alphabet[three & 63] : '=';
    }
    buf_commit(out, text_len);
    return MUSTER_OK;
}

/* 0..63, or -1 outside the alphabet. */
static int sextet(uint8_t c) {
    if (c >= 'A' && c <= 'Z') {
        return c - 'A';
    }
    if (c >= 'a' && c <= 'z') {
        return c - 'a' + 26;
    }
    if (c >= '0' && c <= '9') {
        return c - '0' + 52;
    }
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

int base64_decode(const uint8_t *text, size_t len, struct buf *out) {
    size_t room = len / 4 * 3 + 3;
    uint8_t *bytes = buf_reserve(out, room);
    if (!bytes) {
        return room > out->max - out->len ? MUSTER_ELIMIT : MUSTER_ENOMEM;
    }
    size_t count = 0;
    uint32_t bits = 0;
    unsigned have = 0; /* sextets of the current group of four */
    unsigned pads = 0;
    for (size_t i = 0; i < len; i++) {
        if (text[i] == '=') {
            if (have >= 2 && have + ++pads >= 4) {
                have = 0;
                break;
            }
            continue;
        }
        int value = sextet(text[i]);
        if (value < 0) {
            continue;
        }
        pads = 0;
        bits = bits << 6 | (uint32_t)value;
        have = (have + 1) % 4;
        if (have != 1) {
            bytes[count++] = (uint8_t)(bits >> (have == 2 ? 4 : have == 3 ? 2 : 0));
        }
    }
    if (have != 0) {
        return status_fail(MUSTER_ECORRUPT, "base64 text ends in the middle of a group");
    }
    buf_commit(out, count);
    return MUSTER_OK;
}
