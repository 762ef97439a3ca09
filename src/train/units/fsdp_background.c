/* The thread, and who waits for it: see fsdp_background.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/sized.h"
#include "base/status.h"
#include "base/str.h"
#include "base/thread.h"
#include "train/units/fsdp_background_impl.h"

/* The least of the processor's time where training wants all of it. While the optimizer waits it leaves a processor to
 * the thread. */
enum { NICENESS = 19 };

/* ---- the thread ---- */

void fsdp_background_has_read(void *context) {
    struct fsdp_background *b = context;
    (void)pthread_mutex_lock(&b->lock);
    b->is_reading = false;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->lock);
}

static void tell(const struct fsdp_background *b, int code) {
    if (code != MUSTER_OK && muster_group_rank(b->group) == 0) {
        log_warning("the checkpoint of step %" PRId64 " has not been saved, and training goes on: %s: %s",
                    b->request.step, muster_strerror(code), muster_detail());
    }
}

static void conclude(struct fsdp_background *b, int code) {
    tell(b, code);
    (void)pthread_mutex_lock(&b->lock);
    struct muster_fsdp_background_statistics *n = &b->numbers;
    n->completed += code == MUSTER_OK;
    n->given_up += code == MUSTER_ECANCELED;
    n->failed += code != MUSTER_OK && code != MUSTER_ECANCELED;
    n->last_status = code;
    n->last_failure[0] = '\0';
    if (code == MUSTER_OK) {
        n->last_step = b->request.step;
    } else {
        (void)str_copy(n->last_failure, sizeof n->last_failure, muster_detail());
    }
    b->is_running = b->is_reading = false;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->lock);
}

static bool await_request(struct fsdp_background *b) {
    (void)pthread_mutex_lock(&b->lock);
    while (!b->is_running && !b->is_ending) {
        (void)pthread_cond_wait(&b->changed, &b->lock);
    }
    bool is_ending = !b->is_running;
    (void)pthread_mutex_unlock(&b->lock);
    return !is_ending;
}

static void *serve(void *argument) {
    struct fsdp_background *b = argument;
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICENESS); /* of this thread, and of those it starts */
    while (await_request(b)) {
        conclude(b, b->save(b));
    }
    return NULL;
}

/* ---- its life ---- */

struct fsdp_background *fsdp_background_allocate(void) {
    struct fsdp_background *b = calloc(1, sizeof *b);
    if (!b) {
        (void)status_fail(MUSTER_ENOMEM, "no memory for checkpoints in the background");
        return NULL;
    }
    (void)pthread_mutex_init(&b->lock, NULL);
    (void)pthread_cond_init(&b->changed, NULL);
    b->numbers.last_step = -1;
    return b;
}

int fsdp_background_start_thread(struct fsdp_background *b) {
    int error_number = thread_start(&b->thread, NULL, serve, b);
    b->has_thread = error_number == 0;
    return b->has_thread ? MUSTER_OK : status_fail_errno(error_number, "start a thread for checkpoints");
}

/* A training that has failed waits for nobody. */
void fsdp_background_end(struct muster_fsdp *fsdp) {
    struct fsdp_background *b = fsdp->background;
    if (!b) {
        return;
    }
    if (step_failure_status(&fsdp->failure) != MUSTER_OK && b->group && muster_group_status(b->group) == MUSTER_OK) {
        muster_group_abort(b->group, "the training has failed");
    }
    atomic_store_explicit(&b->is_awaited, true, memory_order_relaxed);
    if (b->has_thread) {
        (void)pthread_mutex_lock(&b->lock);
        b->is_ending = true;
        (void)pthread_cond_broadcast(&b->changed);
        (void)pthread_mutex_unlock(&b->lock);
        (void)pthread_join(b->thread, NULL);
    }
    muster_group_free(b->group);
    fsdp_background_forget(&b->request);
    (void)pthread_cond_destroy(&b->changed);
    (void)pthread_mutex_destroy(&b->lock);
    free(b->room);
    free(b);
    fsdp->background = NULL;
}

/* ---- a request ---- */

bool fsdp_background_is_running(struct fsdp_background *b) {
    (void)pthread_mutex_lock(&b->lock);
    bool is = b->is_running;
    (void)pthread_mutex_unlock(&b->lock);
    return is;
}

void fsdp_background_hand_over(struct fsdp_background *b) {
    atomic_store_explicit(&b->gives_up, false, memory_order_relaxed);
    atomic_store_explicit(&b->is_awaited, false, memory_order_relaxed);
    (void)pthread_mutex_lock(&b->lock);
    b->is_running = true;
    b->is_reading = b->request.parts.parts.state.chunk_count > 0;
    b->numbers.started++;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->lock);
}

/* ---- others ---- */

void fsdp_background_before_write(struct muster_fsdp *fsdp) {
    struct fsdp_background *b = fsdp->background;
    if (!b || b->request.copy == copies_current(fsdp->kept->copies)) {
        return; /* the other copy is written */
    }
    int64_t begin_ns = clock_monotonic_ns();
    (void)pthread_mutex_lock(&b->lock);
    bool waits = b->is_reading;
    b->numbers.waited_count += waits;
    if (waits && b->overlap != MUSTER_FSDP_OVERLAP_COPY) { /* it waits for what is written, not for a copy in memory */
        atomic_store_explicit(&b->is_awaited, true, memory_order_relaxed);
    }
    if (waits && b->overlap == MUSTER_FSDP_OVERLAP_GIVE_UP) {
        atomic_store_explicit(&b->gives_up, true, memory_order_relaxed);
    }
    while (b->is_reading) {
        (void)pthread_cond_wait(&b->changed, &b->lock);
    }
    if (waits) {
        b->numbers.waited_ns += clock_monotonic_ns() - begin_ns;
    }
    (void)pthread_mutex_unlock(&b->lock);
}

int fsdp_background_wait(struct fsdp_background *b) {
    (void)pthread_mutex_lock(&b->lock);
    atomic_store_explicit(&b->is_awaited, true, memory_order_relaxed);
    while (b->is_running) {
        (void)pthread_cond_wait(&b->changed, &b->lock);
    }
    int status = b->numbers.last_status;
    status = status ? status_fail(status, "muster_fsdp_wait_checkpoint: %s", b->numbers.last_failure) : MUSTER_OK;
    (void)pthread_mutex_unlock(&b->lock);
    return status;
}

int muster_fsdp_wait_checkpoint(struct muster_fsdp *fsdp) {
    if (!fsdp) {
        return status_fail_null("muster_fsdp_wait_checkpoint", "fsdp");
    }
    return fsdp->background ? fsdp_background_wait(fsdp->background) : MUSTER_OK;
}

int muster_fsdp_background_statistics_sized(const struct muster_fsdp *fsdp,
                                            struct muster_fsdp_background_statistics *out, size_t out_bytes) {
    struct muster_fsdp_background_statistics now = {.last_step = -1};
    if (!fsdp || !out) {
        return status_fail_null("muster_fsdp_background_statistics", fsdp ? "out" : "fsdp");
    }
    struct fsdp_background *b = fsdp->background;
    if (b) {
        (void)pthread_mutex_lock(&b->lock);
        now = b->numbers;
        now.is_running = b->is_running;
        (void)pthread_mutex_unlock(&b->lock);
    }
    sized_write(out, out_bytes, &now, sizeof now);
    return MUSTER_OK;
}

size_t fsdp_background_bytes(const struct muster_fsdp *fsdp) {
    return fsdp->background ? fsdp->background->room_bytes : 0;
}
