/* Recording the detail of a failure (the reading side is public: muster/status.h).
 *
 * The function that first recognises an error calls status_fail(); callers that can add who or what
 * call status_prefix() and pass the code up; the program prints the result once. */
#ifndef BASE_STATUS_H
#define BASE_STATUS_H

#include <muster/status.h>

/* Stores the formatted detail for this thread and returns `code`, so that one can write
 * `return status_fail(MUSTER_EINVAL, "...")`. Does not touch errno. `code` must be negative. */
int status_fail(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Like status_fail(MUSTER_ESYSTEM, ...) with ": <strerror(error_number)>" appended. */
int status_fail_errno(int error_number, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Puts "<formatted>: " before the current detail and returns `code` unchanged. */
int status_prefix(int code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Empties the detail (used by tests and before a call whose failure is tolerated). */
void status_clear(void);

#endif
