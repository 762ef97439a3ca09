/* What the MPI servers of a world's nodes tell each other, through the workers' store: under a name that all of them
 * know, each sets one value, and gets those of all. That costs a node a constant number of operations of the store,
 * however many ranks and keys there are. docs/formats/mpi.md has the keys.
 *
 * One thread, that of the loop. Callbacks come from the loop, never from inside the calls. */
#ifndef AGENT_MPI_EXCHANGE_H
#define AGENT_MPI_EXCHANGE_H

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "store/wire/slice.h"

#define MPI_EXCHANGE_NAME_MAX 128

struct mpi_exchange;

struct mpi_exchange_options {
    const char *master_addr; /* a name is looked up, which blocks; borrowed during the call */
    uint16_t master_port;
    uint64_t round;
    uint32_t node, node_count; /* of this world */
};

/* MUSTER_ERESOLVE, MUSTER_ENOMEM, MUSTER_ESYSTEM. */
int mpi_exchange_create(uv_loop_t *loop, const struct mpi_exchange_options *options, struct mpi_exchange **out);

/* status 0: `values`, one for each node that was asked for, in that order, borrowed during the call. Otherwise
 * muster_detail() says why not. */
typedef void mpi_exchange_cb(void *ctx, int status, const struct kv_slice *values, size_t count);

/* Sets this node's value and waits for those of `nodes` (NULL: all, `count` of them); copies. Once for each name, which
 * begins with no '/'. MUSTER_ENOMEM, MUSTER_ELIMIT, MUSTER_ECLOSED; then there is no callback. */
int mpi_exchange_start(struct mpi_exchange *x, const char *name, const uint32_t *nodes, size_t count,
                       struct kv_slice value, mpi_exchange_cb *done, void *ctx);

/* Nobody asks any more for what this node has set under that name. */
void mpi_exchange_forget(struct mpi_exchange *x, const char *name);

#endif
