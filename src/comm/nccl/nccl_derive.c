/* Communicators from others, by ncclCommSplit() and ncclCommShrink(), which need not find out again how the ranks can
 * reach each other. See engine_nccl_impl.h.
 *
 * NCCL makes them in a thread of its own. Meanwhile the one they come from is in progress, and *made stays NULL. Where
 * that fails, the error stays in the one they come from for good, and the other ranks wait for ever. So all ranks go in
 * step: after each look they tell each other whether they have the new communicator, wait for it, or have failed. After
 * a failure, of which so all know in the same turn, they abort the old one, which also sets free those that wait. */
#include <assert.h>
#include <stdlib.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/nccl/engine_nccl_impl.h"

enum {
    PAUSE_MIN_US = 50,
    PAUSE_MAX_US = 5000,
    RANK_BITS = 16, /* of a number of a turn, below the rank's state */
    RANK_MASK = (1 << RANK_BITS) - 1
};

/* The greatest of all ranks counts. */
enum rank_state { HAS_IT, WAITS, HAS_FAILED };

struct derivation {
    const struct nccl_engine *n;     /* whose library, device, rank and name */
    struct ncclComm **from;          /* in progress until it is made; NULL where it was before */
    struct ncclComm **made;          /* NCCL's thread stores it: not on a stack, which may be gone then */
    const struct nccl_engine *owner; /* of the new one; NULL: this rank gets none */
    const char *what;
    char trouble[MUSTER_DETAIL_MAX]; /* what this rank has failed with; "" */
};

/* ---- one rank ---- */

static int check_made(const struct derivation *d) {
    const struct nccl_library *nccl = d->n->nccl;
    int count = 0, rank = 0;
    if (!d->owner) {
        return 0;
    }
    if (!*d->made || nccl->comm_count(*d->made, &count) != NCCL_OK || nccl->comm_rank(*d->made, &rank) != NCCL_OK ||
        (uint32_t)count != d->owner->size || (uint32_t)rank != d->owner->rank) {
        return status_fail(MUSTER_ESYSTEM, "%s: NCCL made rank %d of %d, not rank %u of %u", d->what, rank, count,
                           d->owner->rank, d->owner->size);
    }
    return 0;
}

/* 0: it is made. ENGINE_UNDER_WAY. */
static int look(const struct derivation *d) {
    const struct nccl_library *nccl = d->n->nccl;
    struct ncclComm *asked = *d->from;
    unsigned state = NCCL_OK, result = nccl->comm_async_error(asked, &state);
    if (result == NCCL_OK && state == NCCL_OK && d->made && *d->made) {
        asked = *d->made;
        result = nccl->comm_async_error(asked, &state);
    }
    if (result != NCCL_OK || (state != NCCL_OK && state != NCCL_IN_PROGRESS)) {
        return nccl_fail(nccl, result ? result : state, asked, d->what);
    }
    return state == NCCL_IN_PROGRESS ? ENGINE_UNDER_WAY : check_made(d);
}

static int look_until(const struct derivation *d, int64_t deadline_ns) {
    int code = look(d);
    return code == ENGINE_UNDER_WAY && clock_monotonic_ns() >= deadline_ns
               ? status_fail(MUSTER_ETIMEOUT, "%s: it was not done in time (NCCL_DEBUG=INFO says how far NCCL came)",
                             d->what)
               : code;
}

/* ---- all ranks ---- */

static int32_t state_of(int code) {
    return code == ENGINE_UNDER_WAY ? WAITS : code < 0 ? HAS_FAILED : HAS_IT;
}

/* Until all have it, or one has failed. code: of the call that began it. *out_failed: the rank, or -1. An error: they
 * could not tell each other. */
static int await_all(struct derivation *d, int code, const struct engine_talk *talk, int64_t deadline_ns,
                     int32_t *out_failed) {
    int32_t greatest = 0;
    for (unsigned us = PAUSE_MIN_US;; us = us < PAUSE_MAX_US ? 2 * us : us) {
        const struct timespec pause = {.tv_nsec = (long)us * 1000};
        code = code == ENGINE_UNDER_WAY ? look_until(d, deadline_ns) : code;
        if (code < 0 && d->trouble[0] == '\0') {
            (void)str_copy(d->trouble, sizeof d->trouble, muster_detail());
        }
        int told = talk->greatest(talk->context, state_of(code) << RANK_BITS | (int32_t)d->n->rank, &greatest);
        if (told) {
            return told;
        }
        if (greatest >> RANK_BITS != WAITS) {
            break;
        }
        (void)nanosleep(&pause, NULL);
    }
    *out_failed = greatest >> RANK_BITS == HAS_FAILED ? greatest & RANK_MASK : -1;
    return 0;
}

/* Ends what has failed: first the old one, since NCCL's thread may still be making the new one of it. false: something
 * of it does not end. */
static bool abandon(const struct derivation *d) {
    bool is_over = nccl_comm_end(d->n, d->from, NCCL_END_AT_ONCE);
    if (is_over && d->made) { /* else NCCL may still store it */
        is_over = nccl_comm_end(d->n, d->made, NCCL_END_AT_ONCE);
        free((void *)d->made);
    }
    return is_over;
}

static int begin(const struct derivation *d, unsigned result) {
    return result == NCCL_OK || result == NCCL_IN_PROGRESS ? ENGINE_UNDER_WAY
                                                           : nccl_fail(d->n->nccl, result, *d->from, d->what);
}

/* What came of it: *out_comm, or NULL where all have to connect anew. */
static int finish(struct derivation *d, int code, const struct engine_talk *talk, int64_t deadline_ns,
                  struct ncclComm **out_comm, bool *out_is_stuck) {
    char detail[MUSTER_DETAIL_MAX];
    int32_t failed = -1;
    code = await_all(d, code, talk, deadline_ns, &failed);
    if (code == 0 && failed < 0) {
        assert(d->made); /* or this rank would have failed */
        *out_comm = *d->made;
        free((void *)d->made);
        return 0;
    }
    const struct muster_failure record = status_failure();
    (void)str_copy(detail, sizeof detail, muster_detail());
    *out_is_stuck = !abandon(d) || *out_is_stuck;
    if (code == 0 && d->trouble[0] != '\0') {
        log_warning("group '%s': %s; all its ranks connect anew", d->n->name, d->trouble);
    }
    return code ? status_restore(code, detail, &record) : 0;
}

/* ---- of a group that works ---- */

/* The group's own again: the old one has ended. */
static int connect_anew(struct nccl_engine *n, const struct engine_talk *talk, int64_t timeout_ns) {
    struct derivation d = {.n = n, .from = &n->comm, .what = "make a communicator"};
    struct nccl_id id;
    int32_t failed = -1;
    int code = nccl_share_id(n, talk, &id);
    if (code) {
        return code; /* the same on all ranks */
    }
    code = nccl_comm_begin(n, &id);
    code = await_all(&d, code ? code : ENGINE_UNDER_WAY, talk, clock_monotonic_ns() + timeout_ns, &failed);
    if (code == 0 && failed >= 0) {
        code = status_fail(MUSTER_ESYSTEM, "rank %d could not connect its GPU again, after a split that failed%s%s",
                           (int)failed, d.trouble[0] ? ": " : "", d.trouble);
    }
    if (code == 0) {
        nccl_memory_enroll_all(n);
    }
    return code;
}

static int split(struct nccl_engine *n, struct nccl_engine *child, uint32_t family, uint32_t place,
                 const struct engine_talk *talk, int64_t timeout_ns) {
    struct ncclComm *unused = NULL;
    struct derivation d = {
        .n = n, .from = &n->comm, .made = calloc(1, sizeof *d.made), .owner = child, .what = "split a communicator"};
    int code = d.made ? 0 : status_fail(MUSTER_ENOMEM, "no memory for a communicator");
    if (code == 0) {
        code = begin(&d, n->nccl->comm_split(n->comm, child ? (int)family : NCCL_NO_COLOR, (int)place, d.made, NULL));
    }
    return finish(&d, code, talk, clock_monotonic_ns() + timeout_ns, child ? &child->comm : &unused, &n->is_stuck);
}

/* Memory is neither enrolled nor taken back meanwhile; talk needs none of it. */
static int derive(struct nccl_engine *n, struct nccl_engine *child, uint32_t family, uint32_t place,
                  const struct engine_talk *talk, int64_t timeout_ns) {
    pthread_mutex_lock(&n->mutex);
    int code = n->comm ? split(n, child, family, place, talk, timeout_ns)
                       : status_fail(MUSTER_EABORTED, "its communicator was aborted");
    if (code == 0 && !n->comm) { /* it would cost that each time */
        n->splits = false;
        code = connect_anew(n, talk, timeout_ns);
    }
    pthread_mutex_unlock(&n->mutex);
    return code;
}

int nccl_derive(struct engine *engine, struct engine *child, uint32_t family, uint32_t place,
                const struct engine_talk *talk, int64_t timeout_ns) {
    struct nccl_engine *n = nccl_of(engine), *new = child ? nccl_of(child) : NULL;
    struct CUctx_st *previous = NULL;
    int code = n->splits ? device_enter(&n->device, &previous) : 0;
    if (code == 0 && n->splits) {
        code = derive(n, new, family, place, talk, timeout_ns);
        device_leave(&n->device, previous);
    }
    if (new) {
        new->splits = n->splits;
    }
    return code;
}

/* ---- of a group that has failed ---- */

bool nccl_spend(struct nccl_engine *n) {
    unsigned state = NCCL_OK;
    bool is_over = true;
    if (!n->comm || !n->nccl->comm_shrink) {
        return nccl_comm_end(n, &n->comm, NCCL_END_AT_ONCE);
    }
    bool runs = n->phase == NCCL_ISSUING || n->device.cuda->stream_query(n->stream) == CUDA_NOT_READY;
    bool is_well = n->nccl->comm_async_error(n->comm, &state) == NCCL_OK && state == NCCL_OK;
    if (runs || !is_well) {
        is_over = nccl_comm_end(n, &n->comm, NCCL_END_CALLS);
    }
    n->spent = n->comm;
    n->comm = NULL;
    return is_over;
}

/* With the mutex held. NCCL shrinks none that is to lose nobody, or that is not well; and it waits in this thread for
 * what the communicator still does. */
static bool may_shrink(struct nccl_engine *old, uint32_t left_out_count) {
    unsigned state = NCCL_OK;
    if (!old->spent && !old->is_busy) { /* none of its calls can begin any more */
        old->spent = old->comm;
        old->comm = NULL;
    }
    return !old->is_busy && !old->is_stuck && old->spent && old->nccl->comm_shrink && left_out_count > 0 &&
           old->device.cuda->stream_query(old->stream) == CUDA_OK &&
           old->nccl->comm_async_error(old->spent, &state) == NCCL_OK && state == NCCL_OK;
}

static int shrink(struct nccl_engine *n, struct nccl_engine *old, const struct engine_talk *talk, int64_t deadline_ns) {
    struct derivation d = {
        .n = n, .from = &old->spent, .made = calloc(1, sizeof *d.made), .owner = n, .what = "shrink a communicator"};
    bool may = d.made && may_shrink(old, n->left_out_count);
    int32_t cannot = 0;
    int code = talk->greatest(talk->context, may ? 0 : 1, &cannot);
    if (code || cannot) {
        free((void *)d.made);
        return code;
    }
    code = begin(
        &d, n->nccl->comm_shrink(old->spent, n->left_out, (int)n->left_out_count, d.made, NULL, NCCL_SHRINK_ABORTING));
    return finish(&d, code, talk, deadline_ns, &n->comm, &old->is_stuck);
}

int nccl_shrink(struct nccl_engine *n, const struct engine_talk *talk, int64_t deadline_ns) {
    struct nccl_engine *old = n->failed;
    n->failed = NULL;
    pthread_mutex_lock(&old->mutex);
    int code = shrink(n, old, talk, deadline_ns);
    pthread_mutex_unlock(&old->mutex);
    return code;
}
