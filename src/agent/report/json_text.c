/* JSON as text; see json_text.h. */
#include "agent/report/json_text.h"

#include <stdint.h>
#include <string.h>

#include "base/status.h"
#include "base/utf8.h"

static int append_code_point(struct buf *out, uint32_t value) {
    static const char escapes[] = "\b\f\n\r\t\"\\", letters[] = "bfnrt\"\\";
    const char *known = value != 0 && value < 0x80 ? strchr(escapes, (int)value) : NULL;
    if (known) {
        return buf_printf(out, "\\%c", letters[known - escapes]);
    }
    if (value >= 0x20 && value < 0x7F) {
        char plain = (char)value;
        return buf_append(out, &plain, 1);
    }
    if (value >= 0x10000) {
        return buf_printf(out, "\\u%04x\\u%04x", 0xD800 + ((value - 0x10000) >> 10),
                          0xDC00 + ((value - 0x10000) & 0x3FF));
    }
    return buf_printf(out, value == 0x7F ? "\x7F" : "\\u%04x", value);
}

int json_text_string(struct buf *out, const char *text) {
    if (!text) {
        return buf_append(out, "null", 4);
    }
    int code = buf_append(out, "\"", 1);
    size_t left = strlen(text);
    const uint8_t *at = (const uint8_t *)text;
    while (code == 0 && left > 0) {
        size_t length = utf8_length(at, left);
        code = append_code_point(out, length > 0 ? utf8_decode(at, length) : 0xFFFD);
        length = length > 0 ? length : 1;
        at += length;
        left -= length;
    }
    return code == 0 ? buf_append(out, "\"", 1) : code;
}

int json_text_number(struct buf *out, bool given, long long value) {
    return given ? buf_printf(out, "%lld", value) : buf_append(out, "null", 4);
}
