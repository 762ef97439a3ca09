/* How a rank waits: it looks again and again for a short while, gives its core to others for a while, then sleeps in
 * the kernel until its bell is rung.
 *
 * Each process has one bell a context. It lies in the memory that the process shares with its neighbours on the host,
 * or in its own if it has none. Whoever does something that the process may wait for rings the bell: neighbours after
 * publishing, the monitor thread when a peer has died or a socket is ready, another thread that aborts. So a process
 * sleeps on one thing, whatever it waits for, and no wake-up is lost. (A bell that no other process rings may also have
 * a descriptor, for sleepers who wait for sockets as well.)
 *
 *     sleeper                                   ringer
 *     sleepers += 1                             publish (a store with release order)
 *     barrier on every processor                sleepers != 0 ?
 *     seen = rings           (acquire)              rings += 1, futex_wake(rings, all)
 *     is it ready? then stop
 *     futex_wait(rings, seen)
 *
 * Either the ringer sees the sleeper, or the sleeper sees what was published. The ringer's store and load would need a
 * full barrier between them, which costs a ringer more than the rest of a small collective. Sleepers have time: with
 * membarrier(2) the sleeper executes the ringer's barrier. If the kernel has no membarrier, the ringer reads `sleepers`
 * by an atomic addition of 0; the order of all changes of that one variable has the same effect. A process without
 * neighbours does so too, since a membarrier would interrupt the other cores, where its peers are at work. */
#ifndef COMM_BELL_H
#define COMM_BELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* In shared memory; zeroed memory is a bell. On a cache line of its own: it is read by all neighbours and seldom
 * written. */
struct comm_bell {
    _Alignas(64) _Atomic uint32_t rings;
    _Atomic uint32_t sleepers;
    _Atomic uint32_t sleepers_use_barriers; /* set by comm_waiter_tune(): ringers may do without */
    /* Of a bell that this process alone rings: 1 + an eventfd that is written, too, for those who sleep on descriptors
     * (comm_waiter.sleep_on); 0: none. */
    _Atomic uint32_t event;
};

/* Whether barriers of other processes reach this one: 0 not asked yet, 1 no, 2 yes. A property of the process; until it
 * is settled, its rings are the slower ones. */
extern _Atomic int comm_bell_barriers_reach;

/* Registers this process for them, and says whether they reach it. comm_waiter_tune() does so where it must. The first
 * time takes the kernel some microseconds in a process with one thread, and more than 10 ms in one with several: so a
 * group is made with this before its first thread. May be called again. */
bool comm_bell_settle_barriers(void);

void comm_bell_wake(struct comm_bell *bell);

/* Wakes whoever sleeps on the bell (nothing happens, cheaply, when nobody does). Any thread of any process that maps
 * it. */
static inline void comm_bell_ring(struct comm_bell *bell) {
    uint32_t sleepers;
    if (atomic_load_explicit(&comm_bell_barriers_reach, memory_order_relaxed) == 2 &&
        atomic_load_explicit(&bell->sleepers_use_barriers, memory_order_relaxed)) {
        atomic_signal_fence(memory_order_seq_cst); /* the compiler must not swap them either */
        sleepers = atomic_load_explicit(&bell->sleepers, memory_order_relaxed);
    } else {
        sleepers = atomic_fetch_add_explicit(&bell->sleepers, 0, memory_order_seq_cst);
    }
    if (__builtin_expect(sleepers != 0, 0)) {
        comm_bell_wake(bell);
    }
}

/* A waiter with woken() sleeps no longer than that at a time. */
enum { BELL_SLEEP_MAX_MS = 250 };

/* The way a thread of this process waits on a group. Embedded in the group; all threads of the process may share it. */
struct comm_waiter {
    struct comm_bell *bell; /* this process's */
    uint32_t spin_count;    /* looks before giving the core away: few when ranks outnumber the cores */
    uint32_t yield_count;   /* looks with sched_yield() between, before sleeping */
    _Atomic uint32_t alarm; /* != 0: something is wrong somewhere, ask stopped() */
    /* 0: go on waiting. Negative, with a detail: give up. Asked before each sleep while `alarm` is set, and when it
     * ends. */
    int (*stopped)(void *context);
    /* Called before each sleep, and now and then while looking: brings other things forward (messages). May be NULL.
     * Returns true if it did something, so that looking goes on. */
    bool (*idle)(void *context);
    /* Sleeps in the futex's place, until the bell has rung more than `seen` times, or for any other reason. NULL: the
     * futex. */
    void (*sleep_on)(void *context, uint32_t seen, int64_t deadline_ns);
    /* Called after each sleep, which then lasts BELL_SLEEP_MAX_MS at most: for what a signal may have brought. NULL:
     * nothing is to be asked, and sleeps last until there is news. */
    void (*woken)(void *context);
    void *context;
    /* Set by ready() when something has come forward, though not what is awaited: more will follow soon, so looking
     * begins anew. Only in a waiter of one thread. */
    bool has_moved;
};

/* Returns 0 as soon as ready(argument) says so, a negative code from stopped(), or MUSTER_ETIMEOUT (without a detail:
 * the caller knows what it waited for) when the monotonic clock passes deadline_ns. A condition that holds is always
 * preferred to an error. `ready` is called often, by this thread, and must load with acquire order. */
int comm_wait(struct comm_waiter *waiter, bool (*ready)(void *argument), void *argument, int64_t deadline_ns);

/* The same without looking first. */
int comm_wait_asleep(struct comm_waiter *waiter, bool (*ready)(void *argument), void *argument, int64_t deadline_ns);

/* Sets how often to look, from the processes (`pids`, this one among them) that wait for each other on this host and
 * the cores that they may use: those whose cores overlap with ours compete with us. Prepares waiter->bell, which must
 * be set. Call before others may ring it. */
void comm_waiter_tune(struct comm_waiter *waiter, const int32_t *pids, uint32_t pid_count);

/* For tests whose hosts are one machine: a process that is alone on its host does not have the cores for itself. */
extern bool comm_cores_are_shared;

/* Do more processes than there are cores compete for those that this one may use, among `pids` (this one among them)?
 */
bool comm_is_crowded(const int32_t *pids, uint32_t pid_count);

/* Looks as seldom as where ranks outnumber the cores, whatever comm_waiter_tune() found: others on this machine, whom
 * it was not told of, compete too. */
void comm_waiter_crowd(struct comm_waiter *waiter);
/* The same, but sleeps sooner: whoever is awaited may itself wait for other hosts. */
void comm_waiter_crowd_far(struct comm_waiter *waiter);

/* Asks for a cache line that is to be written in a moment, while there is other work: otherwise the write waits until
 * those who read the line last have given it up, and the next locked instruction waits for the write. */
static inline void comm_write_soon(const void *line) {
#if defined(__x86_64__) || defined(__i386__)
    __asm__ volatile("prefetchw (%0)" : : "r"(line)); /* the built-in asks for reading, unless told of the processor */
#else
    __builtin_prefetch(line, 1);
#endif
}

/* One look's pause: leaves the core's resources to its other thread. */
static inline void comm_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb");
#endif
}

#endif
