/* How long a silent host is waited for; see hold.h. */
#include "base/hold.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/str.h"

bool hold_parse(const char *text, int64_t *out_ms) {
    double seconds = 0;
    if (!str_parse_double(text, &seconds) || !(seconds >= 0.001 && seconds <= (double)HOLD_MAX_MS / 1000)) {
        return false;
    }
    *out_ms = (int64_t)(seconds * 1000 + 0.5);
    return true;
}

int64_t hold_from_env_ms(void) {
    const char *text = getenv("MUSTER_HOLD_TIMEOUT");
    int64_t hold_ms = HOLD_DEFAULT_MS;
    if (text && *text && !hold_parse(text, &hold_ms)) {
        log_warning("MUSTER_HOLD_TIMEOUT=%.40s is passed over: it must be a number of seconds above 0; it is %d", text,
                    (int)(HOLD_DEFAULT_MS / 1000));
    }
    return hold_ms;
}
