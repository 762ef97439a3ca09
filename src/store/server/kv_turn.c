/* What a turn of the engine may take, and what it may say; see kv_engine_impl.h. */
#include <stdarg.h>
#include <stdio.h>

#include "base/log.h"
#include "store/server/kv_engine_impl.h"

enum { WARNINGS_MAX = 20, WARNING_BYTES = MUSTER_DETAIL_MAX + 128 };

bool kv_engine_slice_is_over(const struct kv_engine *engine) {
    return clock_monotonic_ns() >= engine->slice_ends_ns;
}

void kv_engine_warn(struct kv_engine *engine, const char *format, ...) {
    char text[WARNING_BYTES];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (engine->warnings_logged < WARNINGS_MAX) {
        engine->warnings_logged++;
        log_warning("store: %s%s", text,
                    engine->warnings_logged == WARNINGS_MAX ? " (further ones are not reported)" : "");
    } else {
        log_debug("store: %s", text);
    }
}
