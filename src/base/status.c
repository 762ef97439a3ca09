/* Status codes, their texts and the per-thread detail. No I/O and no allocation: it must work when
 * memory has run out. */
#include "base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#undef status_fail /* macros for the analyser; see status.h */
#undef status_fail_errno
#undef status_fail_null
#undef status_prefix

static _Thread_local char detail[MUSTER_DETAIL_MAX];

const char *muster_strerror(int code) {
    switch (code) {
#define STATUS_CASE(name, value, text)                                                                                 \
    case name:                                                                                                         \
        return text;
        MUSTER_STATUS_TABLE(STATUS_CASE)
#undef STATUS_CASE
    default:
        return "unknown status";
    }
}

const char *muster_detail(void) {
    return detail;
}

int muster_fail(int code, const char *sentence) {
    return status_fail(code, "%s", sentence ? sentence : "");
}

void status_clear(void) {
    detail[0] = '\0';
}

int status_fail(int code, const char *format, ...) {
    int saved = errno;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    errno = saved;
    return code;
}

int status_fail_null(const char *call, const char *what) {
    return status_fail(MUSTER_EINVAL, "%s: %s is NULL", call, what);
}

int status_fail_errno(int error_number, const char *format, ...) {
    int saved = errno;
    va_list args;
    va_start(args, format);
    int used = vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    if (used >= 0 && (size_t)used < sizeof detail) {
        (void)snprintf(detail + used, sizeof detail - (size_t)used, ": %s", strerror(error_number));
    }
    errno = saved;
    return MUSTER_ESYSTEM;
}

int status_prefix(int code, const char *format, ...) {
    int saved = errno;
    char joined[MUSTER_DETAIL_MAX];
    va_list args;
    va_start(args, format);
    int used = vsnprintf(joined, sizeof joined, format, args);
    va_end(args);
    if (used >= 0 && (size_t)used < sizeof joined) {
        (void)snprintf(joined + used, sizeof joined - (size_t)used, ": %s", detail);
    }
    memcpy(detail, joined, sizeof detail);
    errno = saved;
    return code;
}
