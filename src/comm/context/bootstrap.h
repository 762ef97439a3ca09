/* How the ranks of a job find each other: over a key-value store, in a constant number of operations a rank.
 *
 *     rank 0     puts its record where it makes it the owner of a generation (generation.h), GETs all records of it at
 *                once, groups them by host, SETs the verdict
 *     rank r     waits for rank 0's record, puts its own beside it, and GETs the verdict (here all wait for each other)
 *     all        the first rank of each host GETs the records of the host's ranks, the others that of the first; what
 *                they need of each other stands in the memory that they share (context.h)
 *
 * If rank 0 finds that it cannot go on (ranks that do not come), it puts that sentence in the place of the topology, so
 * that all others fail with it at once. If it dies before, who sees its process, or its beacon, does that (leader.h).
 * What the store holds of earlier attempts does no harm, whatever it is: see generation.h.
 */
#ifndef COMM_BOOTSTRAP_H
#define COMM_BOOTSTRAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/context/kv.h"
#include "comm/host/identity.h"
#include "comm/host/topology.h"

/* A rank of this host. Of a host of a thousand ranks each of them keeps all of these. */
struct bootstrap_local {
    uint32_t rank, token;
    int32_t pid; /* 0: not known yet; see bootstrap_fetch_locals() */
    uint64_t start_time;
};

struct bootstrap {
    struct topology topology;
    struct bootstrap_local *locals; /* those of this rank's host, rising; itself among them */
    uint32_t local_count, local;    /* how many, and which is this one */
    uint32_t generation;
    uint32_t token; /* rank 0's: keys below "generation-token/" belong to these processes alone */
};

/* What ranks must agree about, or tell each other, before they can work together. */
struct bootstrap_terms {
    uint64_t choice_hash; /* of this process's table of algorithms */
    uint8_t engine_wish;  /* enum engine_kind: which engine it asks for */
    uint8_t engine_facts; /* what it knows for the choice; the topology has what all know */
};

/* Blocks until all are there. deadline_ns: monotonic. Errors: MUSTER_EINVAL (different tables or wishes),
 * MUSTER_ETIMEOUT (the sentence names ranks that did not come), MUSTER_EPEER (a rank died meanwhile), MUSTER_EPROTOCOL,
 * MUSTER_ENOMEM, those of the store. */
int bootstrap_run(const struct comm_kv *kv, uint32_t rank, uint32_t size, const struct bootstrap_terms *terms,
                  int64_t deadline_ns, struct bootstrap *out);
/* Of locals, bootstrap_run() gives the processes of this rank and of the host's first one alone. The first one gets all
 * of them here, in one operation, and passes them on. MUSTER_EPEER: a rank has ended meanwhile, and another process has
 * come in its place; MUSTER_ENOMEM, MUSTER_EPROTOCOL, those of the store. */
int bootstrap_fetch_locals(const struct comm_kv *kv, int64_t deadline_ns, struct bootstrap *bootstrap);
void bootstrap_done(struct bootstrap *bootstrap);

/* "0, 3-5, 9 and 12 more": the ranks for which `has(context, rank)`, for messages. Pure. Returns `out`. */
char *bootstrap_list_ranks(uint32_t size, bool (*has)(const void *context, uint32_t rank), const void *context,
                           char *out, size_t max);

/* The failure that this thread has just put down is that rank's, and if it is a time-out, it is the one that is
 * missing. identity: NULL, if it never came. Returns `code`. */
int bootstrap_blame(uint32_t rank, const struct identity *identity, int code);

#endif
