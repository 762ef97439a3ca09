/* Composing an event; see trace_line.h. */
#include "comm/observe/trace_line.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/utf8.h"

void trace_line_put(struct trace_line *line, const char *format, ...) {
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line->bytes + line->length, sizeof line->bytes - line->length, format, args);
    va_end(args);
    line->length += n > 0 ? (size_t)n : 0;
    line->length = line->length < sizeof line->bytes ? line->length : sizeof line->bytes - 1;
}

static const char *escape(const char *text, char out[TRACE_TEXT_BYTES_MAX]) {
    size_t count = strnlen(text, MUSTER_TRACE_NAME_MAX - 1), used = 0;
    for (size_t at = 0; at < count;) {
        size_t length = utf8_length((const uint8_t *)text + at, count - at);
        if (length <= 1 && ((unsigned char)text[at] < 0x20 || (unsigned char)text[at] > 0x7e)) {
            out[used++] = '?';
            at++;
            continue;
        }
        if (text[at] == '"' || text[at] == '\\') {
            out[used++] = '\\';
        }
        memcpy(out + used, text + at, length);
        used += length;
        at += length;
    }
    out[used] = '\0';
    return out;
}

void trace_line_text(struct trace_line *line, const char *key, const char *text) {
    char escaped[TRACE_TEXT_BYTES_MAX];
    trace_line_put(line, ",\"%s\":\"%s\"", key, escape(text, escaped));
}

void trace_line_time(struct trace_line *line, const char *key, int64_t ns) {
    ns = ns > 0 ? ns : 0;
    trace_line_put(line, ",\"%s\":%" PRId64 ".%03d", key, ns / 1000, (int)(ns % 1000));
}

void trace_line_begin(struct trace_line *line, const char *name, char phase, int64_t process, int64_t thread) {
    line->length = 0;
    trace_line_put(line, "{\"ph\":\"%c\",\"pid\":%" PRId64 ",\"tid\":%" PRId64, phase, process, thread);
    if (phase != 'E') { /* which ends the innermost mark, whatever its name */
        trace_line_text(line, "name", name);
    }
}

void trace_line_name(struct trace_line *line, const char *what, int64_t process, int64_t thread, const char *name) {
    char escaped[TRACE_TEXT_BYTES_MAX];
    trace_line_begin(line, what, 'M', process, thread);
    trace_line_put(line, ",\"args\":{\"name\":\"%s\"}", escape(name, escaped));
}

void trace_line_end(struct trace_line *line) {
    trace_line_put(line, "},\n");
}
