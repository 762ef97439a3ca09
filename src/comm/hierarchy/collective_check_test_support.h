/* For tests: random collective calls with inputs whose results are exact, what they must give, and the comparison.
 *
 * All ranks draw the same calls from the same seed. The call itself is made by a function of the test, by way of an
 * executor or a hierarchy. */
#ifndef COMM_COLLECTIVE_CHECK_TEST_SUPPORT_H
#define COMM_COLLECTIVE_CHECK_TEST_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/engine/call.h"

enum { CHECK_RANKS_MAX = 32 };

struct check_case {
    struct comm_call call; /* without buffers */
    bool in_place, has_counts;
    uint64_t seed;
    size_t counts[CHECK_RANKS_MAX]; /* per rank, of the form with counts */
};

/* Of a state that is not 0, which it advances. */
uint64_t check_random(uint64_t *random);
/* The larger buffer of a call has about bytes_max bytes at most. */
void check_draw(uint64_t *random, uint32_t size, size_t bytes_max, struct check_case *out);

/* Makes the call by run(), with buffers of rank `rank`, and compares. run() gives a status. Returns 0, that status, or
 * 1 for a wrong result, which is described on stderr. */
int check_run(const struct check_case *check, uint32_t rank, uint32_t size,
              int (*run)(void *context, const struct comm_call *call), void *context);

#endif
