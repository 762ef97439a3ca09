/* Status codes, their texts and the per-thread detail. No I/O and no allocation: it must work when
 * memory has run out. */
#include "base/status.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#undef status_fail /* macros for the analyser; see status.h */
#undef status_fail_errno
#undef status_fail_null
#undef status_prefix

static _Thread_local char detail[MUSTER_DETAIL_MAX];
static _Thread_local int last_code;
static _Thread_local bool has_record;
static _Thread_local struct muster_failure record; /* if has_record */

/* A failure with no more than this about it. */
static void begin(int code) {
    last_code = code;
    has_record = false;
}

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
    begin(0);
}

int status_fail(int code, const char *format, ...) {
    int saved = errno;
    va_list args;
    va_start(args, format);
    (void)vsnprintf(detail, sizeof detail, format, args);
    va_end(args);
    begin(code);
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
    begin(MUSTER_ESYSTEM);
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

/* ---- records ---- */

struct muster_failure status_no_failure(void) {
    return (struct muster_failure){.rank = MUSTER_NO_RANK, .root_rank = MUSTER_NO_RANK};
}

void status_note(const struct muster_failure *failure) {
    record = *failure;
    has_record = true;
}

struct muster_failure status_failure(void) {
    struct muster_failure failure = has_record ? record : status_no_failure();
    failure.cause = has_record && record.cause ? record.cause : last_code;
    return failure;
}

int status_restore(int code, const char *sentence, const struct muster_failure *failure) {
    (void)status_fail(code, "%s", sentence);
    status_note(failure);
    return code;
}

void status_keep(struct status_kept *out) {
    out->code = last_code;
    out->has_record = has_record;
    if (has_record) {
        out->record = record;
    }
    memcpy(out->detail, detail, strlen(detail) + 1);
}

void status_put_back(const struct status_kept *kept) {
    begin(kept->code);
    if (kept->has_record) {
        status_note(&kept->record);
    }
    memcpy(detail, kept->detail, strlen(kept->detail) + 1);
}

void status_add_missing(struct muster_failure *failure, uint32_t rank) {
    struct muster_rank_run *last = failure->run_count > 0 ? &failure->missing[failure->run_count - 1] : NULL;
    bool is_whole = last && failure->run_count == MUSTER_FAILURE_RUNS_MAX && last->first + last->count != rank;
    failure->missing_count++;
    if (last && last->first + last->count == rank) {
        last->count++;
    } else if (!is_whole) {
        failure->missing[failure->run_count++] = (struct muster_rank_run){rank, 1};
    }
}
