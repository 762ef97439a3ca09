/* What all checks need: notes of calls, ends, waiting, guarded memory; see mpi_check.h. */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "mpi_check.h"

enum { CALLS = sizeof(struct mpi_calls) / sizeof(void (*)(void)), WAIT_SECONDS = 60, GUARD_BYTES = 64, GUARD = 0xa5 };

static bool noted[CALLS];

void check_note(size_t offset) {
    noted[offset / sizeof(void (*)(void))] = true;
}

void check_all_noted(void) {
    for (int i = 0; i < CALLS; i++) {
        if (!noted[i]) {
            printf("failed: call %d of struct mpi_calls has not been checked\n", i);
            exit(1);
        }
    }
}

void check_that(const struct check *check, bool holds, const char *format, ...) {
    va_list arguments;
    if (holds) {
        return;
    }
    printf("failed: rank %d: ", check->rank);
    va_start(arguments, format);
    vprintf(format, arguments);
    va_end(arguments);
    printf("\n");
    fflush(stdout);
    _Exit(1);
}

void check_works(const struct check *check, int error, const char *what) {
    if (error != 0) {
        mpi_fail(check->mpi, error, what);
        check_that(check, false, "%s", muster_detail());
    }
}

/* Tests until it is done or has failed. */
static int wait_for(const struct check *check, mpi_handle *request, const char *what, struct mpi_status *status) {
    int64_t end_ns = clock_monotonic_ns() + WAIT_SECONDS * CLOCK_NS_PER_S;
    bool is_done = false;
    int error = 0;
    while (error == 0 && !is_done) {
        error = CALL(test, request, &is_done, status);
        check_that(check, clock_monotonic_ns() < end_ns, "%s: not done after %d s", what, WAIT_SECONDS);
        sched_yield();
    }
    return error;
}

void check_wait(const struct check *check, mpi_handle *request, const char *what, struct mpi_status *status) {
    check_works(check, wait_for(check, request, what, status), what);
    check_that(check, *request == check->mpi->request_null, "%s: the request is %#zx, not null", what,
               (size_t)*request);
}

int check_wait_failure(const struct check *check, mpi_handle *request, const char *what) {
    int error = wait_for(check, request, what, NULL);
    check_that(check, error != 0, "%s: did not fail", what);
    return error;
}

/* Bytes in front, the memory, the guard. */
void *check_allocate(const struct check *check, size_t bytes) {
    char *block = malloc(GUARD_BYTES + bytes + GUARD_BYTES);
    if (!block) {
        check_that(check, false, "no memory");
        abort();
    }
    memset(block, GUARD, GUARD_BYTES + bytes + GUARD_BYTES);
    memcpy(block, &bytes, sizeof bytes);
    return block + GUARD_BYTES;
}

void check_free(const struct check *check, void *memory, const char *what) {
    char *block = (char *)memory - GUARD_BYTES;
    size_t bytes = 0;
    memcpy(&bytes, block, sizeof bytes);
    for (size_t i = 0; i < GUARD_BYTES; i++) {
        check_that(check, (unsigned char)block[GUARD_BYTES + bytes + i] == GUARD, "%s: wrote behind its buffer", what);
    }
    free(block);
}
