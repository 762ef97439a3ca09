/* The thread, who waits for it, and its end: see peer_copies.h. peer_copy.c is what it does. */
#include <inttypes.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/system/thread.h"
#include "train/peers/peer_copies_impl.h"

enum { NICENESS = 19 };

/* ---- the thread ---- */

static void conclude(struct peer_copies *copies, int code) {
    if (code != MUSTER_OK && muster_group_rank(copies->options.group) == 0) {
        log_warning("step %" PRId64 " has not been copied to peer hosts: %s: %s", copies->step, muster_strerror(code),
                    muster_detail());
    }
    (void)pthread_mutex_lock(&copies->lock);
    copies->numbers.completed += code == MUSTER_OK;
    copies->numbers.failed += code != MUSTER_OK;
    if (code == MUSTER_OK) {
        copies->numbers.step = copies->step;
        copies->numbers.completed_ns = clock_monotonic_ns();
    }
    copies->is_running = copies->is_reading = false;
    (void)pthread_cond_broadcast(&copies->changed);
    (void)pthread_mutex_unlock(&copies->lock);
}

static bool await_request(struct peer_copies *copies) {
    (void)pthread_mutex_lock(&copies->lock);
    while (!copies->is_running && !copies->is_ending) {
        (void)pthread_cond_wait(&copies->changed, &copies->lock);
    }
    bool is_asked = copies->is_running;
    (void)pthread_mutex_unlock(&copies->lock);
    return is_asked;
}

static void *serve(void *argument) {
    struct peer_copies *copies = argument;
    (void)setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICENESS);
    while (await_request(copies)) {
        conclude(copies, copies->copy(copies));
    }
    return NULL;
}

int peer_thread_start(struct peer_copies *copies) {
    int error_number = thread_start(&copies->thread, NULL, serve, copies);
    copies->has_thread = error_number == 0;
    return copies->has_thread ? MUSTER_OK : status_fail_errno(error_number, "start a thread for copies on peer hosts");
}

static void end_thread(struct peer_copies *copies) {
    if (copies->has_thread) {
        (void)pthread_mutex_lock(&copies->lock);
        copies->is_ending = true;
        (void)pthread_cond_broadcast(&copies->changed);
        (void)pthread_mutex_unlock(&copies->lock);
        (void)pthread_join(copies->thread, NULL);
        copies->has_thread = false;
    }
}

size_t peer_copies_bytes(const struct peer_copies *copies) {
    return copies->region.segment.bytes;
}

void peer_copies_close(struct peer_copies *copies, bool aborts) {
    if (!copies) {
        return;
    }
    if (aborts && copies->group && muster_group_status(copies->group) == MUSTER_OK) {
        muster_group_abort(copies->group, "the training has failed");
    }
    end_thread(copies);
    muster_group_free(copies->group);
    state_region_free(&copies->region);
    (void)pthread_cond_destroy(&copies->changed);
    (void)pthread_mutex_destroy(&copies->lock);
    free(copies->offers);
    free(copies->bytes);
    free(copies->part_of);
    free(copies->sends);
    free(copies->receives);
    free(copies);
}

/* ---- requests ---- */

void peer_thread_has_read(struct peer_copies *copies) {
    (void)pthread_mutex_lock(&copies->lock);
    copies->is_reading = false;
    (void)pthread_cond_broadcast(&copies->changed);
    (void)pthread_mutex_unlock(&copies->lock);
}

bool peer_thread_is_busy(struct peer_copies *copies) {
    (void)pthread_mutex_lock(&copies->lock);
    bool is = copies->is_running || copies->numbers.failed > 0; /* then the threads' group has failed */
    (void)pthread_mutex_unlock(&copies->lock);
    return is;
}

void peer_thread_hand_over(struct peer_copies *copies, int64_t step) {
    (void)pthread_mutex_lock(&copies->lock);
    copies->step = step;
    copies->is_running = copies->is_reading = true;
    copies->numbers.started++;
    (void)pthread_cond_broadcast(&copies->changed);
    (void)pthread_mutex_unlock(&copies->lock);
}

void peer_thread_skip(struct peer_copies *copies) {
    (void)pthread_mutex_lock(&copies->lock);
    copies->numbers.skipped++;
    (void)pthread_mutex_unlock(&copies->lock);
}

void peer_copies_await_read(struct peer_copies *copies) {
    (void)pthread_mutex_lock(&copies->lock);
    while (copies->is_reading) {
        (void)pthread_cond_wait(&copies->changed, &copies->lock);
    }
    (void)pthread_mutex_unlock(&copies->lock);
}

void peer_copies_await(struct peer_copies *copies) {
    (void)pthread_mutex_lock(&copies->lock);
    while (copies->is_running) {
        (void)pthread_cond_wait(&copies->changed, &copies->lock);
    }
    (void)pthread_mutex_unlock(&copies->lock);
}

void peer_copies_numbers(struct peer_copies *copies, struct peer_numbers *out) {
    (void)pthread_mutex_lock(&copies->lock);
    *out = copies->numbers;
    (void)pthread_mutex_unlock(&copies->lock);
}
