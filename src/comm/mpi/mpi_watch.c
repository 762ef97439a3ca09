/* See mpi_watch.h. */
#include "comm/mpi/mpi_watch.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/str.h"
#include "base/system/thread.h"

enum {
    STUCK_S = 10, /* no call of MPI that only looks takes as long */
    STUCK_S_MAX = 1000000,
    LOOK_MS = 100,
    LOOKS_PER_SECOND = 1000 / LOOK_MS
};

/* Each way in adds one, each way out takes it back and adds one to the upper half: the lower half is the number of
 * threads in MPI, and no two moments with a passage between them look alike. */
static _Atomic uint64_t passages;
static const uint64_t way_in = 1, way_out = (UINT64_C(1) << 32) - 1;

static struct {
    _Atomic bool has_begun;
    uint32_t looks; /* so many without a change: a thread is stuck */
    char death[256];
} watch;

static void pass(uint64_t way, bool is_alone) {
    if (is_alone) {
        uint64_t before = atomic_load_explicit(&passages, memory_order_relaxed);
        atomic_store_explicit(&passages, before + way, memory_order_relaxed);
    } else {
        atomic_fetch_add_explicit(&passages, way, memory_order_relaxed);
    }
}

void mpi_watch_enter(bool is_alone) {
    pass(way_in, is_alone);
}

void mpi_watch_leave(bool is_alone) {
    pass(way_out, is_alone);
}

/* Looks are counted, not seconds: while the process is stopped, none are made. */
static void *look_on(void *argument) {
    uint64_t before = 0;
    (void)argument;
    for (uint32_t unchanged = 0; unchanged < watch.looks;) {
        (void)poll(NULL, 0, LOOK_MS);
        uint64_t now = atomic_load_explicit(&passages, memory_order_relaxed);
        bool is_inside = (uint32_t)now > 0;
        unchanged = is_inside && now == before ? unchanged + 1 : 0;
        before = now;
    }
    log_error("MPI does not come back: a call of it has lasted for %u s, and %s. It cannot be ended, so this process "
              "aborts; MUSTER_MPI_STUCK_S=0 would let it wait",
              watch.looks / LOOKS_PER_SECOND, watch.death);
    abort();
}

static uint32_t stuck_s(void) {
    const char *text = getenv("MUSTER_MPI_STUCK_S");
    int64_t value = 0;
    if (!text || !*text) {
        return STUCK_S;
    }
    if (!str_parse_i64(text, &value) || value < 0 || value > STUCK_S_MAX) {
        log_warning("MUSTER_MPI_STUCK_S=%s is passed over: it must be a number of seconds, or 0", text);
        return STUCK_S;
    }
    return (uint32_t)value;
}

void mpi_watch_begin(const char *death) {
    pthread_t thread;
    if (atomic_exchange_explicit(&watch.has_begun, true, memory_order_relaxed)) {
        return;
    }
    watch.looks = stuck_s() * LOOKS_PER_SECOND;
    (void)str_copy(watch.death, sizeof watch.death, death);
    if (watch.looks > 0 && thread_start(&thread, NULL, look_on, NULL) == 0) {
        (void)pthread_detach(thread);
    }
}
