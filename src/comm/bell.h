/* How a rank waits: it looks again and again for a short while, gives its core to others for a while, then sleeps in
 * the kernel until its bell is rung.
 *
 * Each process has one bell a context. It lies in the memory that it shares with its neighbours on the host (or
 * in its own, if it has none), and everybody who does something that the process may be waiting for rings it:
 * neighbours after publishing, the monitor thread when a peer has died or a socket is ready, another thread that
 * aborts. So there is one thing to sleep on, whatever is awaited, and no wake-up is lost:
 *
 *     sleeper                                   ringer
 *     sleepers += 1          (seq_cst)          publish                 (release, or plain + fence)
 *     seen = rings           (acquire)          fence                   (seq_cst)
 *     is it ready? then stop                    sleepers != 0 ?         (relaxed)
 *     futex_wait(rings, seen)                      rings += 1, futex_wake(rings, all)
 *
 * Either the ringer sees the sleeper, or the sleeper sees what was published. */
#ifndef COMM_BELL_H
#define COMM_BELL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* In shared memory. On a cache line of its own: it is read by all neighbours and seldom written. */
struct comm_bell {
    _Alignas(64) _Atomic uint32_t rings;
    _Atomic uint32_t sleepers;
};

/* Wakes whoever sleeps on the bell (nothing happens, cheaply, when nobody does). Any thread of any process that maps
 * it. Contains the fence of the protocol above. */
void comm_bell_ring(struct comm_bell *bell);

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
    void *context;
};

/* Returns 0 as soon as ready(argument) says so, a negative code from stopped(), or MUSTER_ETIMEOUT (without a detail:
 * the caller knows what it waited for) when the monotonic clock passes deadline_ns. A condition that holds is always
 * preferred to an error. `ready` is called often, by this thread, and must load with acquire order. */
int comm_wait(struct comm_waiter *waiter, bool (*ready)(void *argument), void *argument, int64_t deadline_ns);

/* How often to look, from the number of ranks that share this process's cores (its affinity mask is asked once). */
void comm_waiter_tune(struct comm_waiter *waiter, uint32_t neighbours_count);

#endif
