/* The thread, and who waits for it: see background.h. */
#include <inttypes.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "base/system/thread.h"
#include "train/background/background_impl.h"

/* The least of the processor's time where training wants all of it. While the optimizer waits it leaves a processor to
 * the thread. */
enum { NICENESS = 19 };

/* ---- the thread ---- */

void background_has_read(void *context) {
    struct background *b = context;
    (void)pthread_mutex_lock(&b->lock);
    b->is_reading = false;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->lock);
}

static void tell(const struct background *b, int code) {
    if (code != MUSTER_OK && muster_group_rank(b->group) == 0) {
        log_warning("the checkpoint of step %" PRId64 " has not been saved, and training goes on: %s: %s", b->save.step,
                    muster_strerror(code), muster_detail());
    }
}

static void conclude(struct background *b, int code) {
    tell(b, code);
    (void)pthread_mutex_lock(&b->lock);
    struct muster_background_statistics *n = &b->numbers;
    n->completed += code == MUSTER_OK;
    n->given_up += code == MUSTER_ECANCELED;
    n->failed += code != MUSTER_OK && code != MUSTER_ECANCELED;
    n->last_status = code;
    n->last_failure[0] = '\0';
    if (code == MUSTER_OK) {
        n->last_step = b->save.step;
    } else {
        (void)str_copy(n->last_failure, sizeof n->last_failure, muster_detail());
    }
    b->is_running = b->is_reading = false;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->lock);
}

static bool await_save(struct background *b) {
    (void)pthread_mutex_lock(&b->lock);
    while (!b->is_running && !b->is_ending) {
        (void)pthread_cond_wait(&b->changed, &b->lock);
    }
    bool is_ending = !b->is_running;
    (void)pthread_mutex_unlock(&b->lock);
    return !is_ending;
}

static void *serve(void *argument) {
    struct background *b = argument;
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICENESS); /* of this thread, and of those it starts */
    while (await_save(b)) {
        conclude(b, b->write(b));
    }
    return NULL;
}

/* ---- its life ---- */

struct background *background_allocate(void) {
    struct background *b = calloc(1, sizeof *b);
    if (!b) {
        (void)status_fail(MUSTER_ENOMEM, "no memory for checkpoints in the background");
        return NULL;
    }
    (void)pthread_mutex_init(&b->lock, NULL);
    (void)pthread_cond_init(&b->changed, NULL);
    b->numbers.last_step = -1;
    return b;
}

int background_start_thread(struct background *b) {
    int error_number = thread_start(&b->thread, NULL, serve, b);
    b->has_thread = error_number == 0;
    return b->has_thread ? MUSTER_OK : status_fail_errno(error_number, "start a thread for checkpoints");
}

void background_end(struct background *b, bool has_failed) {
    if (!b) {
        return;
    }
    if (has_failed && b->group && muster_group_status(b->group) == MUSTER_OK) {
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
    background_forget(&b->save);
    (void)pthread_cond_destroy(&b->changed);
    (void)pthread_mutex_destroy(&b->lock);
    free(b->room);
    free(b);
}

/* ---- a save ---- */

bool background_is_running(struct background *b) {
    (void)pthread_mutex_lock(&b->lock);
    bool is = b->is_running;
    (void)pthread_mutex_unlock(&b->lock);
    return is;
}

void background_count_skipped(struct background *b) {
    (void)pthread_mutex_lock(&b->lock);
    b->numbers.skipped++;
    (void)pthread_mutex_unlock(&b->lock);
}

void background_hand_over(struct background *b) {
    atomic_store_explicit(&b->gives_up, false, memory_order_relaxed);
    atomic_store_explicit(&b->is_awaited, false, memory_order_relaxed);
    (void)pthread_mutex_lock(&b->lock);
    b->is_running = true;
    b->is_reading = frozen_state_committed_bytes(&b->save.frozen) > 0;
    b->numbers.started++;
    (void)pthread_cond_broadcast(&b->changed);
    (void)pthread_mutex_unlock(&b->lock);
}

/* ---- others ---- */

void background_before_write(struct background *b, const void *committed) {
    if (!b || b->save.copy == committed) {
        return; /* the other copy is written */
    }
    int64_t begin_ns = clock_monotonic_ns();
    (void)pthread_mutex_lock(&b->lock);
    bool waits = b->is_reading;
    b->numbers.waited_count += waits;
    if (waits && b->overlap != MUSTER_BACKGROUND_OVERLAP_COPY) { /* it waits for what is written, not for a copy */
        atomic_store_explicit(&b->is_awaited, true, memory_order_relaxed);
    }
    if (waits && b->overlap == MUSTER_BACKGROUND_OVERLAP_GIVE_UP) {
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

int background_wait(struct background *b) {
    if (!b) {
        return MUSTER_OK;
    }
    (void)pthread_mutex_lock(&b->lock);
    atomic_store_explicit(&b->is_awaited, true, memory_order_relaxed);
    while (b->is_running) {
        (void)pthread_cond_wait(&b->changed, &b->lock);
    }
    int status = b->numbers.last_status;
    status = status ? status_fail(status, "%s", b->numbers.last_failure) : MUSTER_OK;
    (void)pthread_mutex_unlock(&b->lock);
    return status;
}

void background_numbers(struct background *b, struct muster_background_statistics *out) {
    *out = (struct muster_background_statistics){.last_step = -1};
    if (b) {
        (void)pthread_mutex_lock(&b->lock);
        *out = b->numbers;
        out->is_running = b->is_running;
        (void)pthread_mutex_unlock(&b->lock);
    }
}

size_t background_bytes(const struct background *b) {
    return b ? b->room_bytes : 0;
}
