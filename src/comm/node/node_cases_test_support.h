/* For node_test.c: calls drawn at random, what each member has to send in them, and what it should get, computed
 * serially. All members draw the same calls from the same seed. */
#ifndef COMM_NODE_CASES_TEST_SUPPORT_H
#define COMM_NODE_CASES_TEST_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/engine/call.h"

enum { CASE_MEMBERS_MAX = 17 };

/* The same on all members but for the last three, of which each has its own. */
struct node_case {
    struct comm_call call;
    size_t counts[CASE_MEMBERS_MAX];                  /* of the blocks; of all_to_all: */
    size_t pairs[CASE_MEMBERS_MAX][CASE_MEMBERS_MAX]; /* from, to */
    bool has_counts;
    uint64_t input_seed;
    bool in_place, send_shared, receive_shared;
};

/* The next case of the sequence `random`, with buffers of at most bytes_max, for member `index` of `size`. shares: some
 * buffers are to be shared. */
void node_case_draw(struct node_case *out, uint64_t *random, size_t bytes_max, bool shares, uint32_t size,
                    uint32_t index);

/* Elements that a member has to send, and that it gets. */
size_t node_case_sends(const struct node_case *c, uint32_t member, uint32_t size);
size_t node_case_receives(const struct node_case *c, uint32_t member, uint32_t size);

/* Where the member's block begins among those that lie one after the other. */
size_t node_case_begin(const struct node_case *c, uint32_t member);

/* What a member has. */
void node_case_input(const struct node_case *c, uint32_t member, unsigned char *out, size_t count);

/* What member `index` should get, from everybody's inputs. */
void node_case_reference(const struct node_case *c, unsigned char *const *inputs, uint32_t index, uint32_t size,
                         unsigned char *out);

#endif
