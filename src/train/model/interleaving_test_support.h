/* For tests: every order in which recorded ranks (fsdp_record_test_support.h) can go on, and what comes of it in the
 * memory that they share. States are visited breadth first, each once, so the first fault has a shortest trace.
 *
 * What is judged:
 *   - whoever reads a unit finds every part whole, and as the optimizer's steps before this step left it;
 *   - nobody writes what another rank of the host is reading;
 *   - a slot has every byte of the unit before it is read, and a gather lands nowhere but where it was meant to;
 *   - all ranks come to their end, and make the same calls.
 *
 * How memory moves: a rank sends its part in a gather at any time between its call and its return. Bytes of others
 * land at any time after its call and after they were sent, and the room for them holds anything from the call on. */
#ifndef TRAIN_INTERLEAVING_TEST_SUPPORT_H
#define TRAIN_INTERLEAVING_TEST_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "train/model/fsdp_record_test_support.h"

enum { INTERLEAVING_RANKS_MAX = 4 };

struct interleaving {
    size_t state_count;
    const char *fault; /* NULL: none */
    size_t length;     /* of its trace, in moves */
};

/* ranks: in the order of rows, `count` of them. prints_trace: of a fault, to stdout, how it comes about. */
struct interleaving interleave(const struct record *ranks, uint32_t count, bool prints_trace);

#endif
