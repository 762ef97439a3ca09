/* Text of unknown origin made printable; see report_text.h. */
#include "agent/report/report_text.h"

#include <string.h>

#include "base/printable.h"
#include "base/status.h"
#include "base/utf8.h"

size_t report_text_width(const char *text, size_t count) {
    size_t width = 0;
    for (size_t i = 0; i < count; i++) {
        width += ((uint8_t)text[i] & 0xC0) != 0x80;
    }
    return width;
}

/* Length of the escape sequence at `text` (which begins with ESC). */
static size_t escape_length(const char *text, size_t count) {
    if (count < 2) {
        return count;
    }
    if (text[1] == ']') { /* operating system command: to BEL or ESC \ */
        for (size_t i = 2; i < count; i++) {
            if (text[i] == '\a') {
                return i + 1;
            }
            if (text[i] == '\x1b') {
                return i + 1 < count ? i + 2 : count;
            }
        }
        return count;
    }
    if (text[1] != '[') {
        return 2;
    }
    size_t i = 2;
    while (i < count && (text[i] < '@' || text[i] > '~')) {
        i++;
    }
    return i < count ? i + 1 : count;
}

static int append_character(struct buf *out, const char *at, size_t count, size_t *used) {
    static const char replacement[] = "\xEF\xBF\xBD";
    uint8_t byte = (uint8_t)*at;
    *used = 1;
    if (byte == '\x1b') {
        *used = escape_length(at, count);
        return MUSTER_OK;
    }
    size_t length = utf8_length((const uint8_t *)at, count);
    if (length == 0) {
        return buf_append(out, replacement, sizeof replacement - 1);
    }
    *used = length;
    bool is_dropped = printable_is_control(utf8_decode((const uint8_t *)at, length)) && byte != '\t';
    return is_dropped ? MUSTER_OK : buf_append(out, at, length);
}

int report_text_clean(struct buf *out, const char *line, size_t count, size_t max) {
    while (count > 0 && line[count - 1] == '\r') {
        count--;
    }
    const char *overwritten = count > 0 ? memrchr(line, '\r', count) : NULL;
    size_t at = overwritten ? (size_t)(overwritten - line) + 1 : 0;
    size_t before = out->len;
    while (at < count) {
        if (out->len - before >= max) {
            return buf_append(out, " ...", 4);
        }
        size_t used;
        int code = append_character(out, line + at, count - at, &used);
        if (code != 0) {
            return code;
        }
        at += used;
    }
    return MUSTER_OK;
}
