/* `muster doctor` on several nodes at once: they meet at a store, tell each other what they are like, and measure each
 * other in the rounds of a tournament. */
#ifndef DOCTOR_MEET_H
#define DOCTOR_MEET_H

#include <muster/status.h>

#include "doctor/gather.h"
#include "doctor/nodes.h"

#define MEET_JOIN_MS_DEFAULT INT64_C(60000) /* until all nodes are there */
#define MEET_STEP_MS INT64_C(30000)         /* until all have done the same step */
#define MEET_NAMES_MAX 64u                  /* of the others that are looked up, of each node */

struct meeting {
    struct doctor_node *nodes; /* owned, sorted */
    uint32_t node_count, rank; /* this node is nodes[rank] */
    struct doctor_pair *pairs; /* owned; of all, once everything has been measured */
    size_t pair_count;
    char trouble[MUSTER_DETAIL_MAX]; /* why it ended early; "" */
};

struct meet_options {
    const char *host; /* numeric: of the store */
    uint16_t port;
    bool may_host; /* the address is this machine's */
    uint32_t node_count;
    int64_t join_ms;
};

/* Meets, measures, and fills `out`. On failure: MUSTER_ETIMEOUT (nodes are missing), MUSTER_ECONNECT and what the store
 * says; nothing is filled then. What goes wrong after all have met is in out->trouble. Blocks, for a bounded time;
 * starts threads (the store's, and of the resolver): start no child process afterwards. */
int meet(const struct meet_options *options, const struct doctor_facts *facts, struct meeting *out);
void meeting_done(struct meeting *meeting);

#endif
