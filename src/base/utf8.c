/* Recognising and decoding UTF-8; see utf8.h. */
#include "base/utf8.h"

#include <string.h>

size_t utf8_length(const uint8_t *bytes, size_t count) {
    uint8_t lead = bytes[0];
    if (lead < 0x80) {
        return 1;
    }
    size_t length = lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
    if (length == 0 || length > count) {
        return 0;
    }
    for (size_t i = 1; i < length; i++) {
        if ((bytes[i] & 0xC0) != 0x80) {
            return 0;
        }
    }
    bool overlong = (lead == 0xE0 && bytes[1] < 0xA0) || (lead == 0xF0 && bytes[1] < 0x90);
    bool surrogate = lead == 0xED && bytes[1] >= 0xA0;
    bool beyond = lead == 0xF4 && bytes[1] >= 0x90;
    return overlong || surrogate || beyond ? 0 : length;
}

bool utf8_is_valid(const char *text) {
    size_t left = strlen(text), length = 1;
    for (; left > 0 && length > 0; text += length, left -= length) {
        length = utf8_length((const uint8_t *)text, left);
    }
    return left == 0;
}

uint32_t utf8_decode(const uint8_t *bytes, size_t length) {
    uint32_t value = length == 1 ? bytes[0] : bytes[0] & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++) {
        value = value << 6 | (bytes[i] & 0x3Fu);
    }
    return value;
}
