/* Muster's operations in MPI's words; see mpi_call.h.
 *
 * In place: Muster's buffers lie where MPI's would, too, except in reduce_scatter, whose result MPI wants at the
 * beginning. That one goes through a buffer of its own. So does what rank 0 does not receive in an exscan. */
#include "comm/mpi/mpi_call.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/mpi/mpi_operations.h"
#include "comm/reduce/reduce.h"

/* What every call of MPI below is given. */
struct terms {
    const struct mpi *mpi;
    const struct mpi_calls *calls;
    mpi_handle comm, type, operation;
    const void *send;
    void *receive;
    int64_t count;
    int root;
    bool is_root, is_too_long;
    mpi_handle *request;
};

/* ---- what can be cut: element by element ---- */

static bool can_be_cut(enum comm_operation operation) {
    return operation == COMM_ALL_REDUCE || operation == COMM_REDUCE || operation == COMM_BROADCAST ||
           comm_is_prefix(operation);
}

static size_t piece_of(const struct mpi_call_place *place, const struct mpi_call *call) {
    size_t left = call->call->count - call->done;
    return can_be_cut(call->call->operation) && left > place->piece_max ? place->piece_max : left;
}

static const void *at(const void *buffer, size_t bytes) {
    return buffer ? (const char *)buffer + bytes : NULL;
}

static struct terms terms_of(const struct mpi_call_place *place, struct mpi_call *call) {
    const struct comm_call *c = call->call;
    size_t offset = call->done * c->type_bytes;
    struct terms terms = {.mpi = place->mpi,
                          .calls = place->mpi->calls,
                          .comm = place->comm,
                          .type = mpi_type_of(place->mpi, c->type),
                          .send = at(c->send, offset),
                          .receive = (void *)(uintptr_t)at(c->receive, offset),
                          .count = (int64_t)call->piece,
                          .root = (int)c->root,
                          .is_root = c->root == place->rank,
                          .request = &call->request};
    if (comm_has_reduction(c->operation)) {
        const struct mpi_operation operation = mpi_operation_of(place->mpi, c->type, c->reduction);
        terms.operation = operation.handle;
        terms.is_too_long = operation.is_ours && call->piece > INT_MAX; /* MPI tells ours the length in an int */
    }
    return terms;
}

/* ---- equal counts ---- */

static int start_all_reduce(const struct terms *t) {
    const void *send = t->send == t->receive ? t->mpi->in_place : t->send;
    return t->calls->iallreduce(t->mpi, send, t->receive, t->count, t->type, t->operation, t->comm, t->request);
}

static int start_reduce(const struct terms *t) {
    const void *send = t->is_root && t->send == t->receive ? t->mpi->in_place : t->send;
    return t->calls->ireduce(t->mpi, send, t->receive, t->count, t->type, t->operation, t->root, t->comm, t->request);
}

static int start_broadcast(const struct terms *t) {
    return t->calls->ibcast(t->mpi, t->receive, t->count, t->type, t->root, t->comm, t->request);
}

static int start_scan(const struct terms *t) {
    const void *send = t->send == t->receive ? t->mpi->in_place : t->send;
    return t->calls->iscan(t->mpi, send, t->receive, t->count, t->type, t->operation, t->comm, t->request);
}

/* What MPI is to write in place of the receive buffer. */
static int make_scratch(struct mpi_call *call, struct terms *t, size_t bytes) {
    call->scratch = call->scratch ? call->scratch : malloc(bytes + 1);
    t->receive = call->scratch;
    return call->scratch ? 0 : status_fail(MUSTER_ENOMEM, "no memory for %zu bytes beside those of a call", bytes);
}

/* Rank 0 receives nothing, and may have no buffer, which MPI wants to see all the same. */
static int start_exscan(const struct mpi_call_place *place, struct mpi_call *call, struct terms *t, int *out_code) {
    const void *send = t->send == t->receive ? t->mpi->in_place : t->send;
    if (place->rank == 0) {
        send = t->send;
        *out_code = make_scratch(call, t, (size_t)t->count * call->call->type_bytes);
    }
    return *out_code
               ? 0
               : t->calls->iexscan(t->mpi, send, t->receive, t->count, t->type, t->operation, t->comm, t->request);
}

/* Is `block`, this rank's, the one of its rank among `blocks`? */
static bool is_own_block(const struct mpi_call_place *place, const struct comm_call *call, const void *block,
                         const void *blocks) {
    const size_t *counts = comm_call_counts(call);
    size_t before = counts ? comm_counts_sum(counts, place->rank) : place->rank * call->count;
    return block == at(blocks, before * call->type_bytes);
}

static int start_all_gather(const struct terms *t, bool in_place) {
    return t->calls->iallgather(t->mpi, in_place ? t->mpi->in_place : t->send, t->receive, t->count, t->type, t->comm,
                                t->request);
}

static int start_gather(const struct terms *t, bool in_place) {
    return t->calls->igather(t->mpi, t->is_root && in_place ? t->mpi->in_place : t->send, t->receive, t->count, t->type,
                             t->root, t->comm, t->request);
}

static int start_scatter(const struct terms *t, bool in_place) {
    return t->calls->iscatter(t->mpi, t->send, t->is_root && in_place ? t->mpi->in_place : t->receive, t->count,
                              t->type, t->root, t->comm, t->request);
}

static int start_all_to_all(const struct terms *t) {
    const void *send = t->send == t->receive ? t->mpi->in_place : t->send;
    return t->calls->ialltoall(t->mpi, send, t->receive, t->count, t->type, t->comm, t->request);
}

/* Own elements of a reduce_scatter. */
static size_t own_count(const struct mpi_call_place *place, const struct comm_call *call) {
    return call->receive_counts ? call->receive_counts[place->rank] : call->count;
}

/* A result within what is sent goes through a buffer, even one without elements: MPI looks where it is. */
static int prepare_reduce_scatter(const struct mpi_call_place *place, struct mpi_call *call, struct terms *t,
                                  size_t send_count) {
    const struct comm_call *c = call->call;
    size_t bytes = own_count(place, c) * c->type_bytes;
    const char *send = c->send, *receive = c->receive;
    bool is_within = receive == send || (receive >= send && receive < send + send_count * c->type_bytes);
    return is_within ? make_scratch(call, t, bytes) : 0;
}

static int start_reduce_scatter(const struct mpi_call_place *place, struct mpi_call *call, struct terms *t,
                                int *out_code) {
    *out_code = prepare_reduce_scatter(place, call, t, call->call->count * place->size);
    return *out_code ? 0
                     : t->calls->ireduce_scatter_block(t->mpi, t->send, t->receive, t->count, t->type, t->operation,
                                                       t->comm, t->request);
}

/* ---- counts per rank ---- */

static int start_all_gather_v(const struct mpi_call_place *place, const struct mpi_call *call, const struct terms *t) {
    bool in_place = is_own_block(place, call->call, t->send, t->receive);
    return t->calls->iallgatherv(t->mpi, in_place ? t->mpi->in_place : t->send,
                                 (int64_t)call->call->receive_counts[place->rank], t->receive, &call->receive_blocks,
                                 t->type, t->comm, t->request);
}

static int start_gather_v(const struct mpi_call_place *place, const struct mpi_call *call, const struct terms *t) {
    bool in_place = t->is_root && is_own_block(place, call->call, t->send, t->receive);
    return t->calls->igatherv(t->mpi, in_place ? t->mpi->in_place : t->send,
                              (int64_t)call->call->receive_counts[place->rank], t->receive, &call->receive_blocks,
                              t->type, t->root, t->comm, t->request);
}

static int start_scatter_v(const struct mpi_call_place *place, const struct mpi_call *call, const struct terms *t) {
    bool in_place = t->is_root && is_own_block(place, call->call, t->receive, t->send);
    return t->calls->iscatterv(t->mpi, t->send, &call->send_blocks, in_place ? t->mpi->in_place : t->receive,
                               (int64_t)call->call->send_counts[place->rank], t->type, t->root, t->comm, t->request);
}

static int start_all_to_all_v(const struct mpi_call *call, const struct terms *t) {
    return t->calls->ialltoallv(t->mpi, t->send, &call->send_blocks, t->receive, &call->receive_blocks, t->type,
                                t->comm, t->request);
}

static int start_reduce_scatter_v(const struct mpi_call_place *place, struct mpi_call *call, struct terms *t,
                                  int *out_code) {
    *out_code = prepare_reduce_scatter(place, call, t, comm_counts_sum(call->call->receive_counts, place->size));
    return *out_code ? 0
                     : t->calls->ireduce_scatter(t->mpi, t->send, t->receive, &call->receive_blocks, t->type,
                                                 t->operation, t->comm, t->request);
}

static int make_blocks(const struct mpi_call_place *place, struct mpi_call *call) {
    const struct comm_call *c = call->call;
    int code = c->send_counts ? mpi_blocks_make(&call->send_blocks, c->send_counts, NULL, place->size) : 0;
    return code || !c->receive_counts ? code
                                      : mpi_blocks_make(&call->receive_blocks, c->receive_counts, NULL, place->size);
}

static int start_counted(const struct mpi_call_place *place, struct mpi_call *call, struct terms *t, int *out_code) {
    *out_code = make_blocks(place, call);
    if (*out_code) {
        return 0;
    }
    switch (call->call->operation) {
    case COMM_ALL_GATHER:
        return start_all_gather_v(place, call, t);
    case COMM_GATHER:
        return start_gather_v(place, call, t);
    case COMM_SCATTER:
        return start_scatter_v(place, call, t);
    case COMM_REDUCE_SCATTER:
        return start_reduce_scatter_v(place, call, t, out_code);
    default:
        return start_all_to_all_v(call, t);
    }
}

/* ---- any ---- */

int mpi_call_start(const struct mpi_call_place *place, struct mpi_call *call, int *out_code) {
    const struct comm_call *c = call->call;
    call->piece = piece_of(place, call);
    struct terms terms = terms_of(place, call);
    *out_code = 0;
    if (terms.is_too_long) {
        return MPI_TOO_LONG;
    }
    if (c->send_counts || c->receive_counts) {
        return start_counted(place, call, &terms, out_code);
    }
    switch (c->operation) {
    case COMM_ALL_REDUCE:
        return start_all_reduce(&terms);
    case COMM_REDUCE:
        return start_reduce(&terms);
    case COMM_BROADCAST:
        return start_broadcast(&terms);
    case COMM_ALL_GATHER:
        return start_all_gather(&terms, is_own_block(place, c, c->send, c->receive));
    case COMM_GATHER:
        return start_gather(&terms, is_own_block(place, c, c->send, c->receive));
    case COMM_SCATTER:
        return start_scatter(&terms, is_own_block(place, c, c->receive, c->send));
    case COMM_REDUCE_SCATTER:
        return start_reduce_scatter(place, call, &terms, out_code);
    case COMM_ALL_TO_ALL:
        return start_all_to_all(&terms);
    case COMM_SCAN:
        return start_scan(&terms);
    case COMM_EXSCAN:
        return start_exscan(place, call, &terms, out_code);
    default:
        return terms.calls->ibarrier(terms.mpi, terms.comm, terms.request);
    }
}

/* Does this rank get a result that is to be divided, or brought to its place? */
static size_t result_count(const struct mpi_call_place *place, const struct comm_call *call) {
    switch (call->operation) {
    case COMM_ALL_REDUCE:
        return call->count;
    case COMM_REDUCE:
        return call->root == place->rank ? call->count : 0;
    case COMM_REDUCE_SCATTER:
        return own_count(place, call);
    default:
        return 0;
    }
}

bool mpi_call_advance(const struct mpi_call_place *place, struct mpi_call *call) {
    const struct comm_call *c = call->call;
    call->done += call->piece;
    if (can_be_cut(c->operation) && call->done < c->count) {
        return false;
    }
    size_t count = result_count(place, c);
    if (call->scratch && count > 0) {
        memcpy(c->receive, call->scratch, count * c->type_bytes);
    }
    if (count > 0) {
        reduce_finish(c->type, c->reduction, c->receive, count, place->size);
    }
    return true;
}

void mpi_call_done(struct mpi_call *call) {
    mpi_blocks_done(&call->send_blocks);
    mpi_blocks_done(&call->receive_blocks);
    free(call->scratch);
    *call = (struct mpi_call){0};
}

const char *mpi_call_name(const struct comm_call *call) {
    bool is_counted = call->send_counts || call->receive_counts;
    switch (call->operation) {
    case COMM_ALL_REDUCE:
        return "MPI_Iallreduce";
    case COMM_REDUCE:
        return "MPI_Ireduce";
    case COMM_BROADCAST:
        return "MPI_Ibcast";
    case COMM_ALL_GATHER:
        return is_counted ? "MPI_Iallgatherv" : "MPI_Iallgather";
    case COMM_GATHER:
        return is_counted ? "MPI_Igatherv" : "MPI_Igather";
    case COMM_SCATTER:
        return is_counted ? "MPI_Iscatterv" : "MPI_Iscatter";
    case COMM_REDUCE_SCATTER:
        return is_counted ? "MPI_Ireduce_scatter" : "MPI_Ireduce_scatter_block";
    case COMM_ALL_TO_ALL:
        return is_counted ? "MPI_Ialltoallv" : "MPI_Ialltoall";
    case COMM_SCAN:
        return "MPI_Iscan";
    case COMM_EXSCAN:
        return "MPI_Iexscan";
    default:
        return "MPI_Ibarrier";
    }
}
