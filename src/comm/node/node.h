/* Collectives among the processes of one host, through shared memory.
 *
 * A node knows members, numbered 0 ... size-1 in the order of their group ranks; its calls are those of
 * comm/engine/call.h with roots in that numbering. It runs in the calling thread, allocates and locks nothing, and
 * makes no system call while the others keep up; when they do not, it waits as comm/host/bell.h says. Calls are
 * numbered and booked (engine/call_line.h) by whoever runs them; several runs may be parts of one call.
 *
 * Failure leaves nothing locked: there are no locks, only counters that each member alone writes. */
#ifndef COMM_NODE_H
#define COMM_NODE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/engine/call.h"
#include "comm/engine/call_line.h"
#include "comm/host/bell.h"
#include "comm/host/memory.h"

#define NODE_SIZE_MAX 1024u /* members on one host */

struct node;
struct choice; /* which algorithm for which size: comm/schedule/choice.h */

struct node_member {
    uint32_t local; /* its number on the host in the context: for memory_view() */
    int32_t pid;
    struct comm_bell *bell;
    const struct call_line *line; /* where it is in the calls */
};

struct node_config {
    void *segment; /* node_segment_bytes(size) of zeroed memory, shared by the members, 64-byte aligned; borrowed */
    uint32_t size;
    uint32_t index;                    /* this process */
    const struct node_member *members; /* copied */
    struct comm_waiter *waiter;        /* borrowed */
    struct memory *memory;             /* borrowed; NULL: no buffer is shared */
    const struct choice *choice;       /* borrowed; NULL: the built-in table */
    bool may_read_peers; /* cross-memory attach is allowed by the user; whether by the kernel is found out here */
};

size_t node_segment_bytes(uint32_t size);
int node_create(const struct node_config *config, struct node **out);
void node_free(struct node *node);

/* Runs call `number`, which has been prepared and is booked in the member's line, to its end. Errors: MUSTER_EMISMATCH
 * with both calls in the detail (by member number: the caller knows ranks and prefixes), MUSTER_ETIMEOUT, what the
 * waiter's stopped() gave, MUSTER_ESYSTEM. After an error the node can only be asked and freed. */
int node_run(struct node *node, const struct comm_call *call, uint64_t number, int64_t deadline_ns);

/* How the last call was carried out: an enum choice_node_algorithm, or CHOICE_NO_ALGORITHM before the first. */
uint32_t node_algorithm(const struct node *node);

/* How many steps of its calls the member has taken, counted alike by all: who has taken fewest may be who the others
 * wait for. Looks at all of its lines: for sentences after a failure. */
uint64_t node_steps(const struct node *node, uint32_t member);
#endif
