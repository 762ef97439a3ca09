/* Recording the detail of a failure (the reading side is public: muster/status.h).
 *
 * The function that first recognises an error calls status_fail(); callers that can add who or what
 * call status_prefix() and pass the code up; the program prints the result once. */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

#include <muster/failure.h>
#include <muster/status.h>

/* Stores the formatted detail for this thread and returns `code`, so that one can write
 * `return status_fail(MUSTER_EINVAL, "...")`. Does not touch errno. `code` must be negative. */
int status_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Like status_fail(MUSTER_ESYSTEM, ...) with ": <strerror(error_number)>" appended. */
int status_fail_errno(int error_number, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* MUSTER_EINVAL: "`call`: `what` is NULL". For the arguments of public calls. */
int status_fail_null(const char *call, const char *what);

/* Puts "<formatted>: " before the current detail and returns `code` unchanged. */
int status_prefix(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

#ifdef __clang_analyzer__
/* The analyser sees one file at a time: tell it what the calls return, or it believes that a failure may be 0. */
#define status_fail(code, ...) ((void)(status_fail)((code), __VA_ARGS__), (code))
#define status_fail_errno(...) ((void)(status_fail_errno)(__VA_ARGS__), MUSTER_ESYSTEM)
#define status_fail_null(...) ((void)(status_fail_null)(__VA_ARGS__), MUSTER_EINVAL)
#define status_prefix(code, ...) ((void)(status_prefix)((code), __VA_ARGS__), (code))
#endif

/* The record (muster/failure.h) of the failure that this thread has just put down, copied; a new failure begins without
 * one. Without a cause it has that failure's code. */
void status_note(const struct muster_failure *failure);
/* An empty one. */
struct muster_failure status_no_failure(void);
/* This thread's, as muster_last_failure() gives it: for whoever keeps sentences. */
struct muster_failure status_failure(void);
/* A failure that was kept: code, sentence and record become this thread's again. Returns `code`. */
int status_restore(int code, const char *sentence, const struct muster_failure *failure);
/* All that this thread knows of its last failure, kept while something else may fail: a question that a program asks in
 * the sentence about a failure, or cleaning up after one. status_put_back() makes it what it was. */
struct status_kept {
    int code;
    bool has_record;
    struct muster_failure record; /* if has_record */
    char detail[MUSTER_DETAIL_MAX];
};
void status_keep(struct status_kept *out);
void status_put_back(const struct status_kept *kept);
/* Adds a rank, higher than those before, to the missing ones. */
void status_add_missing(struct muster_failure *failure, uint32_t rank);

/* Empties the detail (used by tests and before a call whose failure is tolerated). */
void status_clear(void);

#endif
