/* Several nodes beside each other: what each tells of itself, who measures whom when, what was measured, and what to
 * make of it. Pure. */
#ifndef DOCTOR_NODES_H
#define DOCTOR_NODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "doctor/facts.h"
#include "doctor/finding.h"

#define DOCTOR_NODES_MAX 1024u
#define DOCTOR_ROUNDS_MAX 64u /* of the tournament: with more nodes than that, each meets as many others */
#define DOCTOR_RECORD_BYTES_MAX ((size_t)4096) /* of a node or a pair, as it is told */

/* What a node tells the others. */
struct doctor_node {
    char host[NET_HOST_MAX];
    char addr[NET_ADDRESS_TEXT_MAX]; /* numeric: where the others measure it */
    uint16_t port;
    uint64_t nonce;  /* random: by which it knows that it is meant */
    bool is_serving; /* the store */
    char version[32], kernel[64], gpu_driver[32];
    int64_t pid;
    int64_t processor_count, gpu_count, memory_mib, shm_mib, file_limit, mtu;
    int64_t unresolved_count;           /* of the others' names; told in the end */
    char unresolved[DOCTOR_REASON_MAX]; /* the first of them */
};

struct doctor_pair {
    uint32_t from, to; /* ranks; `from` has connected */
    bool is_measured;
    char reason[DOCTOR_REASON_MAX];     /* why not */
    double latency_us;                  /* of a round trip of a byte: the median */
    double forward_mbps, backward_mbps; /* million bytes a second, one way at a time: from -> to, to -> from */
    double both_mbps;                   /* both ways at once, of both together */
    double ahead_us;                    /* by how much the clock of `to` is ahead of that of `from` */
};

/* The node as its facts have it; addr, port, nonce and is_serving are the caller's. */
void doctor_node_describe(const struct doctor_facts *facts, struct doctor_node *out);

/* JSON, as it lies in the store. MUSTER_ELIMIT, MUSTER_ENOMEM; reading: MUSTER_EPROTOCOL. */
int doctor_node_write(const struct doctor_node *node, struct buf *out);
int doctor_node_read(const void *bytes, size_t len, struct doctor_node *out);
int doctor_pair_write(const struct doctor_pair *pair, struct buf *out);
int doctor_pair_read(const void *bytes, size_t len, struct doctor_pair *out);

/* By name and address as people sort them: node2 before node10. */
int doctor_node_compare(const struct doctor_node *a, const struct doctor_node *b);

/* ---- the tournament: each node is in one pair at a time ---- */

/* Rounds until everybody has met everybody, at most DOCTOR_ROUNDS_MAX. */
uint32_t doctor_round_count(uint32_t node_count);
/* Whom `rank` meets in this round; false: nobody. */
bool doctor_opponent(uint32_t node_count, uint32_t round, uint32_t rank, uint32_t *out);

/* ---- findings ---- */

/* What differs, and names that are not known. */
void doctor_judge_nodes(const struct doctor_node *nodes, uint32_t node_count, struct doctor_findings *out);
/* Pairs that could not be measured, slow ones, slow nodes, clocks. `scratch`: room for pair_count numbers. */
void doctor_judge_pairs(const struct doctor_node *nodes, uint32_t node_count, const struct doctor_pair *pairs,
                        size_t pair_count, double *scratch, struct doctor_findings *out);

#endif
