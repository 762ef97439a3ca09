/* Collectives of a group whose ranks live on several hosts: the part within each host through shared memory
 * (comm/node/node.h), the part between the hosts by one leader each (comm/hierarchy/executor.h).
 *
 * The leader of a host is the rank of it that comes first, but on the root's host it is the root. Hosts are numbered in
 * the order of their first ranks. Ranks of one host need not be neighbours in the group's numbering, nor hosts equally
 * full: what goes between hosts is packed host by host, and put into the order of ranks on arrival.
 *
 * A long all_reduce goes in parts, of which several are under way, over as many members of a host as pays
 * (hierarchy_rails.c).
 *
 * all_to_all goes from rank to rank (flat) over p2p, neighbours included: no rank needs room for its whole host. So do
 * scan and exscan, whose order is that of ranks, wherever they are. */
#ifndef COMM_HIERARCHY_H
#define COMM_HIERARCHY_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/engine/call.h"
#include "comm/host/bell.h"
#include "comm/node/node.h"
#include "comm/p2p/p2p.h"

struct hierarchy;
struct choice;

struct hierarchy_config {
    struct p2p *p2p;            /* borrowed */
    struct comm_waiter *waiter; /* borrowed */
    struct node *node;          /* borrowed; the members of this host in the order of their ranks; NULL: alone on it, or
                                 * no shared memory (then every rank counts as a host of its own) */
    const struct choice *choice; /* borrowed; NULL: the built-in table */
    uint32_t group;              /* id */
    const char *name;            /* of the group, for sentences; borrowed */
    uint32_t rank, size;         /* in the group */
    const uint32_t *peers;       /* root rank of each rank; copied */
    const uint32_t *hosts;       /* index of each rank's host, numbered from 0 in the order of first ranks; copied */
    bool is_crowded;             /* for the choice: some host has more ranks than cores. The same on all ranks */
};

int hierarchy_create(const struct hierarchy_config *config, struct hierarchy **out);
void hierarchy_free(struct hierarchy *hierarchy);

/* One prepared call of the group, roots and counts by group rank, `number` as in executor_run(). Errors as node_run()
 * and executor_run(). After an error it can only be asked and freed. */
int hierarchy_run(struct hierarchy *hierarchy, const struct comm_call *call, uint64_t number, int64_t deadline_ns);

/* For the sentence after a time-out: did this process still wait for a message from `rank` (of its leader, if that is
 * another)? Ranks of the own host are the node's to tell. */
bool hierarchy_awaits(const struct hierarchy *hierarchy, uint32_t rank);

/* How this rank carried out the last call between hosts, for traces and logs: an enum schedule_algorithm;
 * CHOICE_NO_ALGORITHM if it sent and received nothing there. */
uint32_t hierarchy_algorithm(const struct hierarchy *hierarchy);
/* When the first message of the last call had come from another host; 0: none, or this process is not traced. */
int64_t hierarchy_arrived_ns(const struct hierarchy *hierarchy);

#endif
