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

/* No callback comes after it; what was under way is not heard of. NULL is fine. */
void mpi_exchange_close(struct mpi_exchange *x);

/* status 0: `values`, one for each node that was asked for, in that order, borrowed during the call. Otherwise
 * muster_detail() says why not. */
typedef void mpi_exchange_cb(void *ctx, int status, const struct kv_slice *values, size_t count);

/* Sets this node's value and waits for those of `nodes` (NULL: all, `count` of them); copies. Once for each name, which
 * begins with no '/'. MUSTER_ENOMEM, MUSTER_ELIMIT, MUSTER_ECLOSED; then there is no callback. */
int mpi_exchange_start(struct mpi_exchange *x, const char *name, const uint32_t *nodes, size_t count,
                       struct kv_slice value, mpi_exchange_cb *done, void *ctx);

/* A question to the server of another node (of this one, too), and its answer, for which `done` is called as above,
 * with one value. Copies. Errors as those of mpi_exchange_start(). */
int mpi_exchange_ask(struct mpi_exchange *x, uint32_t node, struct kv_slice text, mpi_exchange_cb *done, void *ctx);

/* A question that another node has asked; it is to be answered once. */
struct mpi_question;
typedef void mpi_exchange_asked_cb(void *ctx, struct mpi_question *question, struct kv_slice text);

/* Hears questions from now on. One listener. Errors as above. */
int mpi_exchange_serve(struct mpi_exchange *x, mpi_exchange_asked_cb *asked, void *ctx);
void *mpi_question_owner(const struct mpi_question *question); /* `ctx`, from any thread */
void mpi_question_answer(struct mpi_question *question, struct kv_slice value);

/* Nobody asks any more for what this node has set under that name. */
void mpi_exchange_forget(struct mpi_exchange *x, const char *name);

#endif
