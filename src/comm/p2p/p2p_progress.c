/* Who waits brings everything forward: one round over what may move, and waiting (looking, yielding, sleeping) until
 * what is waited for has come; see p2p.h. How a waiter looks and sleeps is in bell.c; the monitor's part, for callers
 * who sleep, in p2p_attend.c. */
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/p2p/p2p_impl.h"

enum {
    ALL_EVERY = 32, /* looks after which sockets are looked at of which nothing is expected */
    EVENTS_MAX = 64,
    SLEEP_MS_MAX = 3600 * 1000,
    SOCKET_LOOK = 16 /* looks at memory that take as long as one at a socket */
};

/* ---- moving ---- */

bool p2p_flush_blocked(struct p2p *p2p) {
    struct p2p_stream *stream = p2p->blocked;
    bool moved = false;
    p2p->blocked = NULL;
    while (stream) {
        struct p2p_stream *next = stream->next_blocked;
        stream->is_blocked = false;
        if (stream->io) {
            moved = stream_flush(p2p, stream) || moved;
        }
        stream = next;
    }
    return moved;
}

static bool read_link(struct p2p *p2p, struct p2p_link *link) {
    bool moved = false;
    for (uint8_t i = 0; i < link->stream_count; i++) {
        if (link->streams[i] && link->streams[i]->io->fd >= 0) {
            moved = stream_read(p2p, link->streams[i]) || moved;
        }
    }
    return moved;
}

/* Of many sockets, those that have something. */
static bool read_ready(struct p2p *p2p) {
    struct epoll_event events[EVENTS_MAX];
    int count = epoll_wait(p2p->data_epoll, events, EVENTS_MAX, 0);
    bool moved = false;
    for (int i = 0; i < count; i++) {
        struct p2p_stream *stream = events[i].data.ptr;
        if (stream && stream->io) { /* NULL: the bell; closed streams are kept until the lock is released */
            moved = stream_read(p2p, stream) || moved;
        }
    }
    return moved;
}

static bool read_sockets(struct p2p *p2p) {
    bool all = p2p->any.first || p2p->active_count > P2P_DIRECT_LINKS || ++p2p->looks % ALL_EVERY == 0;
    if (all) {
        return read_ready(p2p);
    }
    bool moved = false;
    struct p2p_link *next;
    for (struct p2p_link *link = p2p->active; link; link = next) {
        next = link->next_active;
        moved = read_link(p2p, link) || moved;
    }
    return moved;
}

bool p2p_move(struct p2p *p2p) {
    p2p->is_reading = false; /* rings_progress() finds out */
    bool moved = p2p->blocked && p2p_flush_blocked(p2p);
    if (p2p->rings) {
        moved = rings_progress(p2p) || moved;
    }
    if (p2p->open_count > 0) {
        moved = read_sockets(p2p) || moved;
    }
    if (p2p->owes_credit && !moved) {
        moved = credit_tell_owed(p2p);
    }
    if (p2p->blocked) {
        moved = p2p_flush_blocked(p2p) || moved;
    }
    p2p->leaves_more = moved && p2p_has_more(p2p);
    return moved;
}

bool p2p_progress(struct p2p *p2p) {
    if (atomic_load_explicit(&p2p->visitors, memory_order_relaxed) > 0) {
        return false; /* the monitor waits for the lock */
    }
    p2p_lock(p2p);
    bool moved = p2p_move(p2p);
    p2p_unlock(p2p);
    return moved;
}

/* Somebody of this process sleeps, or is about to: the bell says so. The last look before a sleep gives way to nobody:
 * what a neighbour wrote while nobody slept rang no bell. */
static bool look_before_sleep(struct p2p *p2p) {
    p2p_lock(p2p);
    attend_arm(p2p);
    p2p->looks = ALL_EVERY - 1; /* also at sockets of which nothing is expected: else they would wake it again */
    bool moved = p2p_move(p2p);
    p2p_unlock(p2p);
    return moved;
}

static bool has_sleepers(const struct p2p *p2p) {
    return atomic_load_explicit(&p2p->config.bell->sleepers, memory_order_relaxed) != 0;
}

bool p2p_idle(struct p2p *p2p) {
    return has_sleepers(p2p) ? look_before_sleep(p2p) : p2p_progress(p2p);
}

/* ---- waiting ---- */

struct wait {
    struct p2p *p2p;
    struct comm_waiter *outer, inner;
    bool (*ready)(void *argument);
    void *argument;
};

static bool is_ready(void *argument) {
    struct wait *wait = argument;
    if (atomic_load_explicit(&wait->outer->alarm, memory_order_relaxed)) {
        atomic_store_explicit(&wait->inner.alarm, 1, memory_order_relaxed);
    }
    /* Asked also when nothing moved here: another thread may have moved it. */
    if (p2p_progress(wait->p2p)) {
        wait->inner.has_moved = true;
    }
    return wait->ready(wait->argument);
}

static int has_stopped(void *argument) {
    struct wait *wait = argument;
    return wait->outer->stopped ? wait->outer->stopped(wait->outer->context) : 0;
}

static void was_woken(void *argument) {
    struct wait *wait = argument;
    wait->outer->woken(wait->outer->context);
}

/* Sleeps on the sockets themselves: where no neighbour rings the bell, nobody else need be woken to wake this thread.
 * The bell's own descriptor is among them. It stays readable until the last sleeper has seen it. */
static void sleep_on_sockets(void *argument, uint32_t seen, int64_t deadline_ns) {
    struct p2p *p2p = ((struct wait *)argument)->p2p;
    struct comm_bell *bell = p2p->config.bell;
    int64_t left_ms = (deadline_ns - clock_monotonic_ns()) / CLOCK_NS_PER_MS + 1;
    struct epoll_event event;
    if (atomic_load_explicit(&bell->rings, memory_order_acquire) != seen || left_ms <= 0) {
        return;
    }
    (void)epoll_wait(p2p->data_epoll, &event, 1, left_ms < SLEEP_MS_MAX ? (int)left_ms : SLEEP_MS_MAX);
    uint64_t rings;
    if (atomic_load_explicit(&bell->sleepers, memory_order_seq_cst) == 1) {
        (void)!read(p2p->bell_event, &rings, sizeof rings);
        if (atomic_load_explicit(&bell->sleepers, memory_order_seq_cst) != 1) {
            rings = 1; /* perhaps it was for one that has come meanwhile */
            (void)!write(p2p->bell_event, &rings, sizeof rings);
        }
    }
    p2p_lock(p2p);
    p2p->looks = ALL_EVERY - 1; /* whoever has news is looked at next, even if nothing is expected of it */
    p2p_unlock(p2p);
}

/* Before sleeping. What the outer waiter looks at, such as a neighbour's failure, may have happened when nobody slept
 * yet whom a bell could wake. */
static bool is_idle(void *argument) {
    struct wait *wait = argument;
    if (!has_sleepers(wait->p2p)) {
        return false; /* is_ready() has looked */
    }
    bool moved = look_before_sleep(wait->p2p);
    return (wait->outer->idle && wait->outer->idle(wait->outer->context)) || moved;
}

int p2p_wait_until(struct p2p *p2p, struct comm_waiter *waiter, bool (*ready)(void *argument), void *argument,
                   int64_t deadline_ns) {
    struct wait wait = {.p2p = p2p, .outer = waiter, .ready = ready, .argument = argument};
    if (ready(argument)) {
        return 0;
    }
    wait.inner.bell = waiter->bell;
    wait.inner.spin_count =
        p2p->bell_event < 0 ? waiter->spin_count : (waiter->spin_count + SOCKET_LOOK - 1) / SOCKET_LOOK;
    wait.inner.yield_count = waiter->yield_count;
    wait.inner.stopped = has_stopped;
    wait.inner.idle = is_idle;
    wait.inner.sleep_on = p2p->bell_event >= 0 ? sleep_on_sockets : NULL;
    wait.inner.woken = waiter->woken ? was_woken : NULL;
    wait.inner.context = &wait;
    return comm_wait(&wait.inner, is_ready, &wait, deadline_ns);
}

struct wait_all {
    struct p2p_request *const *requests;
    size_t request_count, first_open;
};

/* All done, or one that failed: then there is no use in waiting for the others. */
static bool are_done(void *argument) {
    struct wait_all *all = argument;
    for (; all->first_open < all->request_count; all->first_open++) {
        struct p2p_request *request = all->requests[all->first_open];
        if (!atomic_load_explicit(&request->done, memory_order_acquire)) {
            return false;
        }
        if (request->status != 0) {
            return true;
        }
    }
    return true;
}

int p2p_wait(struct p2p *p2p, struct comm_waiter *waiter, struct p2p_request *const *requests, size_t request_count,
             int64_t deadline_ns) {
    struct wait_all all = {.requests = requests, .request_count = request_count};
    int code = p2p_wait_until(p2p, waiter, are_done, &all, deadline_ns);
    if (code == 0 && all.first_open == request_count) {
        return 0;
    }
    p2p_withdraw(p2p, requests, request_count);
    return p2p_collect(requests, request_count, code);
}
