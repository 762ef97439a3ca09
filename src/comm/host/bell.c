/* Waiting and waking; the protocol stands in bell.h. */
#include "comm/host/bell.h"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <linux/membarrier.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <muster/status.h>

#include "base/clock.h"

/* Looks with a core of one's own, about 20 us: longer than a neighbour needs to notice and answer. */
enum { SPIN_COUNT = 2000, YIELD_COUNT = 100 };
/* Looks when ranks outnumber the cores: whoever is awaited probably needs this one. A yield costs less than half a
 * microsecond when nobody wants the core, and waking from sleep 17: so yield for about 100 us. */
enum { CROWDED_SPIN_COUNT = 1, CROWDED_YIELD_COUNT = 300 };
/* Of a wait that may last as long as data travels between hosts: each yield looks at sockets, too, and takes the core
 * from those who copy and reduce. */
enum { CROWDED_FAR_YIELD_COUNT = 20 };
enum { LOOKS_PER_IDLE = 64, MOVES_PER_CLOCK = 64 };

_Atomic int comm_bell_barriers_reach;
bool comm_cores_are_shared;

bool comm_bell_settle_barriers(void) {
    bool reach = syscall(SYS_membarrier, MEMBARRIER_CMD_REGISTER_GLOBAL_EXPEDITED, 0, 0) == 0;
    atomic_store_explicit(&comm_bell_barriers_reach, reach ? 2 : 1, memory_order_relaxed);
    return reach;
}

static long futex(_Atomic uint32_t *word, int operation, uint32_t value, const struct timespec *until) {
    return syscall(SYS_futex, word, operation, value, until, NULL, FUTEX_BITSET_MATCH_ANY);
}

void comm_bell_wake(struct comm_bell *bell) {
    atomic_fetch_add_explicit(&bell->rings, 1, memory_order_release);
    (void)futex(&bell->rings, FUTEX_WAKE, INT_MAX, NULL);
    int event = (int)atomic_load_explicit(&bell->event, memory_order_acquire) - 1;
    if (event >= 0) {
        const uint64_t one = 1;
        (void)!write(event, &one, sizeof one);
    }
}

static int ask_stopped(struct comm_waiter *waiter) {
    if (waiter->stopped && atomic_load_explicit(&waiter->alarm, memory_order_acquire)) {
        return waiter->stopped(waiter->context);
    }
    return 0;
}

static bool do_idle(struct comm_waiter *waiter) {
    return waiter->idle && waiter->idle(waiter->context);
}

static void sleep_until(struct comm_waiter *waiter, uint32_t seen, int64_t deadline_ns) {
    int64_t until_ns = deadline_ns;
    if (waiter->woken) {
        int64_t soon_ns = clock_monotonic_ns() + BELL_SLEEP_MAX_MS * CLOCK_NS_PER_MS;
        until_ns = soon_ns < until_ns ? soon_ns : until_ns;
    }
    if (waiter->sleep_on) {
        waiter->sleep_on(waiter->context, seen, until_ns);
        return;
    }
    const struct timespec until = {.tv_sec = (time_t)(until_ns / CLOCK_NS_PER_S),
                                   .tv_nsec = (long)(until_ns % CLOCK_NS_PER_S)};
    (void)futex(&waiter->bell->rings, FUTEX_WAIT_BITSET, seen, &until); /* absolute; early returns are harmless */
}

/* Sleeps once, unless there is a reason not to. Returns what stopped() says. */
static int sleep_once(struct comm_waiter *waiter, bool (*ready)(void *argument), void *argument, int64_t deadline_ns) {
    struct comm_bell *bell = waiter->bell;
    atomic_fetch_add_explicit(&bell->sleepers, 1, memory_order_seq_cst);
    if (atomic_load_explicit(&bell->sleepers_use_barriers, memory_order_relaxed)) {
        (void)syscall(SYS_membarrier, MEMBARRIER_CMD_GLOBAL_EXPEDITED, 0, 0);
    }
    uint32_t seen = atomic_load_explicit(&bell->rings, memory_order_acquire);
    int status = 0;
    bool sleeps = !ready(argument) && (status = ask_stopped(waiter)) == 0 && !do_idle(waiter);
    if (sleeps) {
        sleep_until(waiter, seen, deadline_ns);
    }
    atomic_fetch_sub_explicit(&bell->sleepers, 1, memory_order_relaxed);
    if (sleeps && waiter->woken && !ready(argument)) {
        waiter->woken(waiter->context);
    }
    return status;
}

/* The phases before sleeping. true: ready. */
static bool look_around(struct comm_waiter *waiter, bool (*ready)(void *argument), void *argument,
                        int64_t deadline_ns) {
    for (uint32_t look = 0, moves = 0; look < waiter->spin_count + waiter->yield_count; look++) {
        if (ready(argument)) {
            return true;
        }
        bool is_spinning = look < waiter->spin_count;
        bool is_idle = !is_spinning || look % LOOKS_PER_IDLE == LOOKS_PER_IDLE - 1;
        bool has_moved = (is_idle && do_idle(waiter)) || waiter->has_moved;
        if ((is_idle || has_moved) && atomic_load_explicit(&waiter->alarm, memory_order_relaxed)) {
            return false;
        }
        if (has_moved) { /* but moving alone must not last for ever */
            waiter->has_moved = false;
            look = 0;
            if (++moves % MOVES_PER_CLOCK == 0 && clock_monotonic_ns() >= deadline_ns) {
                return false;
            }
        }
        if (is_spinning) {
            comm_pause();
        } else {
            (void)sched_yield();
        }
    }
    return false;
}

int comm_wait(struct comm_waiter *waiter, bool (*ready)(void *argument), void *argument, int64_t deadline_ns) {
    return look_around(waiter, ready, argument, deadline_ns) ? 0
                                                             : comm_wait_asleep(waiter, ready, argument, deadline_ns);
}

int comm_wait_asleep(struct comm_waiter *waiter, bool (*ready)(void *argument), void *argument, int64_t deadline_ns) {
    for (;;) {
        int status = sleep_once(waiter, ready, argument, deadline_ns);
        if (ready(argument)) {
            return 0;
        }
        if (status == 0 && waiter->has_moved && look_around(waiter, ready, argument, deadline_ns)) {
            return 0;
        }
        if (status == 0 && clock_monotonic_ns() >= deadline_ns) {
            status = waiter->stopped ? waiter->stopped(waiter->context) : 0;
            status = ready(argument) ? 0 : status != 0 ? status : MUSTER_ETIMEOUT;
            return status;
        }
        if (status != 0) {
            return status;
        }
    }
}

/* ---- how often to look ---- */

/* More processes than cores, among those whose cores overlap with this process's? A process that cannot be asked is
 * taken to be like this one. */
bool comm_is_crowded(const int32_t *pids, uint32_t pid_count) {
    cpu_set_t own, all;
    if (sched_getaffinity(0, sizeof own, &own) != 0) {
        return true; /* over CPU_SETSIZE processors: waiting gently is right everywhere, if not fastest */
    }
    all = own;
    uint32_t sharing = 0;
    long cores = sysconf(_SC_NPROCESSORS_CONF); /* of which more than all need not be asked for */
    for (uint32_t i = 0; i < pid_count && (cores <= 0 || sharing <= (unsigned long)cores); i++) {
        cpu_set_t theirs, common;
        if (pids[i] == getpid() || sched_getaffinity(pids[i], sizeof theirs, &theirs) != 0) {
            theirs = own;
        }
        CPU_AND(&common, &own, &theirs);
        if (CPU_COUNT(&common) > 0) {
            CPU_OR(&all, &all, &theirs);
            sharing++;
        }
    }
    return sharing > (uint32_t)CPU_COUNT(&all);
}

void comm_waiter_crowd(struct comm_waiter *waiter) {
    waiter->spin_count = CROWDED_SPIN_COUNT;
    waiter->yield_count = CROWDED_YIELD_COUNT;
}

void comm_waiter_crowd_far(struct comm_waiter *waiter) {
    comm_waiter_crowd(waiter);
    waiter->yield_count = CROWDED_FAR_YIELD_COUNT;
}

void comm_waiter_tune(struct comm_waiter *waiter, const int32_t *pids, uint32_t pid_count) {
    waiter->spin_count = SPIN_COUNT;
    waiter->yield_count = YIELD_COUNT;
    if (comm_is_crowded(pids, pid_count) || (comm_cores_are_shared && pid_count < 2)) {
        comm_waiter_crowd(waiter);
    }
    if (pid_count > 1 && comm_bell_settle_barriers()) {
        atomic_store_explicit(&waiter->bell->sleepers_use_barriers, 1, memory_order_release);
    }
}
