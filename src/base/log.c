/* Level check and formatting; the sink does the output. See log.h. */
#include "base/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>

static log_sink *_Atomic current_sink;
static _Atomic enum log_level current_level = LOG_LEVEL_WARNING;
static log_divert_fn *current_divert;
static void *divert_ctx;

void log_set_sink(log_sink *sink) {
    atomic_store_explicit(&current_sink, sink, memory_order_relaxed);
}

bool log_has_sink(void) {
    return atomic_load_explicit(&current_sink, memory_order_relaxed) != NULL;
}

void log_set_level(enum log_level level) {
    atomic_store_explicit(&current_level, level, memory_order_relaxed);
}

void log_write(enum log_level level, const char *file, int line, const char *format, ...) {
    log_sink *sink = atomic_load_explicit(&current_sink, memory_order_relaxed);
    if (level < atomic_load_explicit(&current_level, memory_order_relaxed) || sink == NULL) {
        return;
    }
    int saved = errno;
    char text[LOG_TEXT_MAX];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    sink(level, file, line, text);
    errno = saved;
}

void log_set_divert(log_divert_fn *divert, void *ctx) {
    current_divert = divert;
    divert_ctx = ctx;
}

bool log_divert(const char *text, size_t bytes) {
    return current_divert != NULL && current_divert(divert_ctx, text, bytes);
}
