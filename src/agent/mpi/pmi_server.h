/* The server's side of PMI-1, the text protocol by which the programs of MPICH's family learn their rank and meet.
 *
 * Pure: bytes of a worker go in, answers and calls of `host` come out. A worker is not trusted: its lines, keys and
 * values have limits, and what it puts is charged to a budget. All nodes have one space of keys: what the workers of
 * this node have put since the last barrier (`fresh`) is for the caller to exchange with the other nodes, at the next
 * barrier. docs/formats/mpi.md has the commands. */
#ifndef AGENT_PMI_SERVER_H
#define AGENT_PMI_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/mpi/mpi_stages.h"
#include "base/buf.h"

/* Limits: bytes of a name of the space, of a key, of a value (MPICH asks for these three), of a line; and what all
 * workers of a node together may have put, with a little for each. */
#define PMI_SERVER_SPACE_MAX 256
#define PMI_SERVER_KEY_MAX 64
#define PMI_SERVER_VALUE_MAX 1024
#define PMI_SERVER_LINE_MAX 4096
#define PMI_SERVER_BYTES_MAX ((size_t)256 << 20)
#define PMI_SERVER_FRESH_MAX ((size_t)7 << 20) /* of one node, between two barriers: a value of the store takes it */

/* None of them may call back. */
struct pmi_server_host {
    void *ctx;
    /* All workers of this node wait in a barrier: exchange pmi_server_fresh(), then call pmi_server_barrier_done(). */
    void (*on_barrier)(void *ctx);
    /* A worker begins, in MPI_Init(), or ends, in MPI_Finalize(); it has no answer yet. */
    void (*on_stage)(void *ctx, uint32_t local_rank, enum mpi_stage stage);
    /* Its connection has ended between the two, or others wait in a barrier for one whose connection has ended. May
     * come more than once. */
    void (*on_left)(void *ctx, uint32_t local_rank);
    /* A worker has called MPI_Abort(); nothing more is heard of it, and it waits for being ended. `text` is the
     * worker's, valid during the call. */
    void (*on_abort)(void *ctx, uint32_t local_rank, int exit_code, const char *text);
    /* A worker does not speak the protocol, and is not heard any more. `why`: a sentence, valid during the call. */
    void (*on_broken)(void *ctx, uint32_t local_rank, const char *why);
};

struct pmi_server_options {
    const char *space;   /* name of the space of keys, shorter than the limit; copied */
    const char *mapping; /* PMI_process_mapping; copied */
    uint32_t local_count;
    uint32_t world_size;
    uint64_t seed[2]; /* of the table of keys: not for workers to know */
};

struct pmi_server;

/* `host` is copied. MUSTER_ENOMEM. */
int pmi_server_create(const struct pmi_server_options *options, const struct pmi_server_host *host,
                      struct pmi_server **out);
void pmi_server_free(struct pmi_server *s); /* NULL is fine */

/* How many bytes of that worker are taken now; 0 while it waits in a barrier and has sent more. */
size_t pmi_server_room(const struct pmi_server *s, uint32_t local_rank);

/* What a worker has sent; at most so many bytes. */
void pmi_server_heard(struct pmi_server *s, uint32_t local_rank, const void *bytes, size_t count);

/* The worker's end of its connection is closed: nothing more comes from it. */
void pmi_server_ended(struct pmi_server *s, uint32_t local_rank);

/* What it is to be sent: the caller consumes. */
struct buf *pmi_server_output(struct pmi_server *s, uint32_t local_rank);

/* No more than what it has been sent: the connection may be closed. */
bool pmi_server_is_closed(const struct pmi_server *s, uint32_t local_rank);

/* What workers of this node have put since the last call of this kind; valid until the next call on `s`. */
struct buf *pmi_server_fresh(struct pmi_server *s);

/* What another node's workers have put: its fresh bytes, as the store gives them. MUSTER_EPROTOCOL, MUSTER_ENOMEM,
 * MUSTER_ELIMIT. */
int pmi_server_merge(struct pmi_server *s, const void *bytes, size_t count);

/* All nodes have come to the barrier, and all that they have put has been merged. May call `host`. */
void pmi_server_barrier_done(struct pmi_server *s);

#endif
