/* Level check and formatting; the sink does the output. See log.h. */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

static log_sink *current_sink;
static enum log_level current_level = LOG_LEVEL_WARNING;
static log_divert_fn *current_divert;
static void *divert_ctx;

void log_set_sink(log_sink *sink) {
    current_sink = sink;
}

bool log_has_sink(void) {
    return current_sink != NULL;
}

void log_set_level(enum log_level level) {
    current_level = level;
}

void log_write(enum log_level level, const char *file, int line, const char *format, ...) {
    if (level < current_level || current_sink == NULL) {
        return;
    }
    int saved = errno;
    char text[LOG_TEXT_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    current_sink(level, file, line, text);
    errno = saved;
}

void log_set_divert(log_divert_fn *divert, void *ctx) {
    current_divert = divert;
    divert_ctx = ctx;
}

bool log_divert(const char *text, size_t bytes) {
    return current_divert != NULL && current_divert(divert_ctx, text, bytes);
}
