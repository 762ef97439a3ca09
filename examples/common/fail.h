/* How a trainer gives up: one sentence for people on stderr and for the launcher in the error record, then exit 1. */
#ifndef EXAMPLES_COMMON_FAIL_H
#define EXAMPLES_COMMON_FAIL_H

#include <stddef.h>

_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Fails with muster_detail() if `status`, the result of a muster call that tried to `what`, is not MUSTER_OK. */
void check(int status, const char *what);

/* Zeroed memory for `count` elements, aligned for vectors (64 bytes); fails when there is none. free() frees it. */
void *allocate(size_t count, size_t element_bytes);

#endif
