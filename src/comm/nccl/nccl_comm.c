/* The making and the end of a communicator; see engine_nccl_impl.h.
 *
 * ncclCommFinalize() waits until no rank needs anything of this one any more, and ncclCommAbort() until the GPU has
 * given up what it was at: both may take for ever where a rank or the GPU hangs. So a thread of their own calls them,
 * which the caller leaves behind when its patience is over. */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "base/system/thread.h"
#include "comm/nccl/engine_nccl_impl.h"

enum {
    PAUSE_MIN_US = 50,
    PAUSE_MAX_US = 2000,
    GOODBYE_MS = 5000, /* for the other ranks to free the group, too; or for calls to stop */
    ABORT_MS = 10000,
    SENTENCE_BYTES = 512
};

static void pause_us(unsigned us) {
    const struct timespec pause = {.tv_nsec = (long)us * 1000};
    (void)nanosleep(&pause, NULL);
}

/* ---- making ---- */

int nccl_ask_waiter(const struct nccl_engine *n) {
    struct comm_waiter *waiter = n->waiter;
    bool is_alarmed = waiter && atomic_load_explicit(&waiter->alarm, memory_order_acquire) != 0;
    return is_alarmed && waiter->stopped ? waiter->stopped(waiter->context) : 0;
}

static int await_made(struct nccl_engine *n, int64_t deadline_ns) {
    unsigned state = NCCL_IN_PROGRESS;
    for (unsigned us = PAUSE_MIN_US; state == NCCL_IN_PROGRESS; us = us < PAUSE_MAX_US ? 2 * us : us) {
        unsigned result = n->nccl->comm_async_error(n->comm, &state);
        if (result != NCCL_OK) {
            return nccl_fail(n->nccl, result, n->comm, "make a communicator");
        }
        int code = state == NCCL_IN_PROGRESS ? nccl_ask_waiter(n) : 0;
        if (code) {
            return code;
        }
        if (state == NCCL_IN_PROGRESS && clock_monotonic_ns() >= deadline_ns) {
            return status_fail(MUSTER_ETIMEOUT,
                               "the ranks of group '%s' did not connect their GPUs in time (NCCL_DEBUG="
                               "INFO says how far NCCL came)",
                               n->name);
        }
        if (state == NCCL_IN_PROGRESS) {
            pause_us(us);
        }
    }
    return state == NCCL_OK ? 0 : nccl_fail(n->nccl, state, n->comm, "make a communicator");
}

/* ---- ids ---- */

/* What rank 0 tells: the id, or why there is none. */
struct invitation {
    int32_t code;
    struct nccl_id id;
    char sentence[SENTENCE_BYTES];
};

static void invite(const struct nccl_engine *n, struct invitation *out) {
    unsigned result = n->nccl->get_id(&out->id);
    out->code = result == NCCL_OK ? 0 : nccl_fail(n->nccl, result, NULL, "make an id");
    if (out->code) {
        (void)str_format(out->sentence, sizeof out->sentence, "%s", muster_detail());
    }
}

int nccl_share_id(struct nccl_engine *n, const struct engine_talk *talk, struct nccl_id *out) {
    struct invitation invitation = {0};
    if (n->rank == 0) {
        invite(n, &invitation);
    }
    int code = talk->tell(talk->context, &invitation, sizeof invitation);
    if (code == 0 && invitation.code) {
        invitation.sentence[sizeof invitation.sentence - 1] = '\0';
        code = status_fail(invitation.code, "%s%s", n->rank == 0 ? "" : "rank 0: ", invitation.sentence);
    }
    *out = invitation.id;
    return code;
}

/* ---- by an id ---- */

int nccl_comm_begin(struct nccl_engine *n, const struct nccl_id *id) {
    struct nccl_config config = NCCL_CONFIG_INIT;
    config.blocking = 0;
    unsigned result = n->nccl->comm_init_config(&n->comm, (int)n->size, *id, (int)n->rank, &config);
    if (result != NCCL_OK && result != NCCL_IN_PROGRESS) {
        n->comm = NULL;
        return nccl_fail(n->nccl, result, NULL, "make a communicator");
    }
    return 0;
}

int nccl_comm_make(struct nccl_engine *n, const struct nccl_id *id, int64_t deadline_ns) {
    int code = nccl_comm_begin(n, id);
    if (code) {
        return code;
    }
    code = await_made(n, deadline_ns);
    if (code) {
        (void)nccl_comm_end(n, &n->comm, NCCL_END_AT_ONCE);
    }
    return code;
}

/* ---- the end ---- */

/* Owned by both threads; the last one frees it. */
struct ending {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    const struct nccl_library *nccl;
    struct device device;
    struct ncclComm *comm;
    enum nccl_end end;
    bool is_done, is_abandoned; /* by the thread that ends it; by its caller */
    bool is_spent;              /* it stays */
    _Atomic bool is_late;       /* no more good order */
};

static void ending_free(struct ending *ending) {
    (void)pthread_mutex_destroy(&ending->mutex);
    (void)pthread_cond_destroy(&ending->changed);
    free(ending);
}

/* Waits for what was begun with `state`. */
static bool await_state(struct ending *ending, unsigned state) {
    for (unsigned us = PAUSE_MIN_US; state == NCCL_IN_PROGRESS; us = us < PAUSE_MAX_US ? 2 * us : us) {
        if (atomic_load(&ending->is_late)) {
            return false;
        }
        pause_us(us);
        if (ending->nccl->comm_async_error(ending->comm, &state) != NCCL_OK) {
            return false;
        }
    }
    return state == NCCL_OK;
}

/* As wished. false: it must end at once. In good order: until nobody needs anything of this rank. */
static bool run_down(struct ending *ending, bool *out_is_spent) {
    const struct nccl_library *nccl = ending->nccl;
    switch (ending->end) {
    case NCCL_END_IN_ORDER:
        return await_state(ending, nccl->comm_finalize(ending->comm)) && nccl->comm_destroy(ending->comm) == NCCL_OK;
    case NCCL_END_CALLS:
        *out_is_spent = nccl->comm_revoke && await_state(ending, nccl->comm_revoke(ending->comm, 0)); /* no flags */
        return *out_is_spent;
    default:
        return false;
    }
}

static void *end_run(void *argument) {
    struct ending *ending = argument;
    struct CUctx_st *previous = NULL;
    (void)device_enter(&ending->device, &previous); /* of this thread's own end: nothing to go back to */
    bool is_spent = false, is_over = run_down(ending, &is_spent);
    if (!is_over) {
        (void)ending->nccl->comm_abort(ending->comm);
    }
    pthread_mutex_lock(&ending->mutex);
    ending->is_done = true;
    ending->is_spent = is_spent;
    bool is_mine = ending->is_abandoned;
    pthread_cond_broadcast(&ending->changed);
    pthread_mutex_unlock(&ending->mutex);
    if (is_mine) {
        ending_free(ending);
    }
    return NULL;
}

/* With the mutex held. */
static void await_end(struct ending *ending, int64_t ms) {
    int64_t until_ns = clock_monotonic_ns() + ms * CLOCK_NS_PER_MS;
    const struct timespec until = {.tv_sec = until_ns / CLOCK_NS_PER_S, .tv_nsec = until_ns % CLOCK_NS_PER_S};
    int status = 0;
    while (!ending->is_done && status == 0) {
        status = pthread_cond_timedwait(&ending->changed, &ending->mutex, &until);
    }
}

static struct ending *ending_new(const struct nccl_engine *n, struct ncclComm *comm, enum nccl_end end) {
    struct ending *ending = calloc(1, sizeof *ending);
    pthread_condattr_t monotonic;
    if (ending) {
        (void)pthread_mutex_init(&ending->mutex, NULL);
        (void)pthread_condattr_init(&monotonic);
        (void)pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
        (void)pthread_cond_init(&ending->changed, &monotonic);
        (void)pthread_condattr_destroy(&monotonic);
        ending->nccl = n->nccl;
        ending->device = n->device;
        ending->comm = comm;
        ending->end = end;
    }
    return ending;
}

bool nccl_comm_end(const struct nccl_engine *n, struct ncclComm **comm, enum nccl_end end) {
    pthread_t thread;
    struct ending *ending = *comm ? ending_new(n, *comm, end) : NULL;
    bool was_there = *comm != NULL;
    *comm = NULL;
    if (!ending) {
        return !was_there; /* without memory it stays, as without a thread */
    }
    if (thread_start(&thread, NULL, end_run, ending) != 0) {
        ending_free(ending);
        return false;
    }
    (void)pthread_detach(thread);
    pthread_mutex_lock(&ending->mutex);
    if (end != NCCL_END_AT_ONCE) {
        await_end(ending, GOODBYE_MS);
        atomic_store(&ending->is_late, true);
    }
    await_end(ending, ABORT_MS);
    bool is_done = ending->is_done;
    ending->is_abandoned = !is_done;
    pthread_mutex_unlock(&ending->mutex);
    if (is_done) {
        *comm = ending->is_spent ? ending->comm : NULL;
        ending_free(ending);
    } else {
        log_warning("group '%s': NCCL does not give up its communicator; what it uses of the GPU stays in use",
                    n->name);
    }
    return is_done;
}
