/* What the files hierarchy*.c share. Their words: a *member* is a rank of this host,
 * in the node's numbering; *packed* is the order host by host, and by rank within a host, in which the blocks of one
 * host lie together. Where ranks are numbered host by host, packed order is rank order and nothing is moved. */
#ifndef COMM_HIERARCHY_IMPL_H
#define COMM_HIERARCHY_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/hierarchy/hierarchy.h"
#include "comm/schedule/choice.h"

struct executor;

/* Ranks in packed order, and where each host's begin. */
struct layout {
    uint32_t *ranks; /* by packed place */
    uint32_t *begin; /* by host, host_count + 1 of them */
    bool is_identity;
};

struct hierarchy {
    struct hierarchy_config config; /* its arrays are our own */
    uint32_t host_count, host, member, member_count;
    struct layout layout;
    bool is_uniform;          /* as many ranks on each host */
    struct executor *leaders; /* numbered by host */
    struct executor *all;     /* numbered by rank; made when first needed */
    uint32_t *leader_peers;   /* by host: root rank of its leader */
    struct choice_table leader_table, all_table;
    uint32_t rail_count;         /* hierarchy_rails.c */
    bool has_rule_of_all_reduce; /* a table of the user's between hosts, which is obeyed */
    size_t *counts;              /* size + host_count of them, for the parts of calls */
    uint8_t *scratch[2];         /* kept */
    size_t scratch_room[2];
    uint32_t algorithm;
    const struct executor *last; /* which ran last; NULL: none */

    /* of the call that runs */
    const struct comm_call *call;
    uint64_t number;
    int64_t deadline_ns;
    uint32_t lead; /* member that leads this host */
};

/* Of `size` ranks, whose root ranks `peers` are borrowed; this one is `rank`. */
int hierarchy_make_executor(const struct hierarchy *hierarchy, uint32_t rank, uint32_t size, const uint32_t *peers,
                            struct executor **out);
/* Runs hierarchy->call. */
int hierarchy_operate(struct hierarchy *hierarchy);

/* ---- hierarchy_parts.c ---- */

/* A call of the same kind as hierarchy->call. Averages are sums until the end. */
struct comm_call hierarchy_part(const struct hierarchy *hierarchy, enum comm_operation operation, uint32_t root,
                                const void *send, void *receive, size_t count);
/* Runs a part within the host; nothing to do for a rank that is alone there. */
int hierarchy_node_part(struct hierarchy *hierarchy, const struct comm_call *part);

/* ---- hierarchy_rails.c ---- */

/* Once the layout is known. */
void hierarchy_prepare_rails(struct hierarchy *hierarchy);
/* Is hierarchy->call, an all_reduce, to be carried out so? The same on all ranks. */
bool hierarchy_uses_rails(const struct hierarchy *hierarchy);
int hierarchy_rail_all_reduce(struct hierarchy *hierarchy);

#endif
