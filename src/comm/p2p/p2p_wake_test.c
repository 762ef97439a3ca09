/* What only a thread that sleeps could move: none is left asleep with it. Whoever goes to sleep looks before, even if
 * the monitor wants the lock; who posts something, or opens a link, and does not wait, wakes one that does; and of two
 * sleepers neither takes the other's bell. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/p2p/p2p_impl.h"
#include "comm/p2p/p2p_test_support.h"

enum { MARK_READY, MARK_SENT, MARK_DONE };
#define LONG_BYTES ((size_t)9 << 20) /* several rounds of reading */

static const struct job_options neighbours = {.ranks_per_host = 2, .may_read_peers = true};
static const struct job_options hosts = {.stream_count = 1};

/* A thread of its own that sleeps at once, until told. */
struct sleeper {
    struct job_rank *rank;
    struct comm_waiter waiter;
    pthread_t thread;
    _Atomic bool is_told;
};

static bool is_told(void *argument) {
    return atomic_load_explicit(&((struct sleeper *)argument)->is_told, memory_order_acquire);
}

static void *sleep_until_told(void *argument) {
    struct sleeper *sleeper = argument;
    job_check(p2p_wait_until(sleeper->rank->p2p, &sleeper->waiter, is_told, sleeper, job_deadline()) == 0);
    return NULL;
}

static struct comm_bell *bell_of(const struct job_rank *rank) {
    return rank->waiter.bell;
}

static void await_sleepers(const struct job_rank *rank, uint32_t count) {
    int64_t until_ns = job_deadline();
    while (atomic_load(&bell_of(rank)->sleepers) != count) {
        job_check(clock_monotonic_ns() < until_ns);
        (void)sched_yield();
    }
}

static void begin_to_sleep(struct sleeper *sleeper, struct job_rank *rank) {
    sleeper->rank = rank;
    sleeper->waiter.bell = bell_of(rank);
    atomic_store(&sleeper->is_told, false);
    job_check(pthread_create(&sleeper->thread, NULL, sleep_until_told, sleeper) == 0);
}

static void end_sleep(struct sleeper *sleeper) {
    atomic_store_explicit(&sleeper->is_told, true, memory_order_release);
    comm_bell_ring(sleeper->waiter.bell);
    job_check(pthread_join(sleeper->thread, NULL) == 0);
}

static void await_done(const struct p2p_request *request) {
    int64_t until_ns = job_deadline();
    while (!atomic_load_explicit(&request->done, memory_order_acquire)) {
        job_check(clock_monotonic_ns() < until_ns);
        (void)sched_yield();
    }
}

/* ---- the last look ---- */

/* The monitor wants the lock all the time, and the message came when nobody slept. */
static int look_in_spite_of_a_visitor(struct job_rank *rank, void *argument) {
    (void)argument;
    uint8_t byte = 1;
    if (rank->rank == 0) {
        job_await(rank->job, MARK_READY, 1);
        job_check(job_send(rank, job_envelope(1, 1), &byte, 1) == 0);
        job_mark(rank->job, MARK_SENT);
        return 0;
    }
    struct p2p_request request, *all = &request;
    struct comm_waiter at_once = {.bell = bell_of(rank)};
    job_post_receive(rank, &request, job_envelope(0, 1), &byte, 1);
    (void)atomic_fetch_add(&rank->p2p->visitors, 1);
    job_mark(rank->job, MARK_READY);
    job_await(rank->job, MARK_SENT, 1);
    job_check(p2p_wait(rank->p2p, &at_once, &all, 1, job_deadline()) == 0);
    (void)atomic_fetch_sub(&rank->p2p->visitors, 1);
    return 0;
}

static void who_goes_to_sleep_looks_before(void **state) {
    (void)state;
    job_run(2, look_in_spite_of_a_visitor, NULL, &neighbours);
}

/* ---- posted, and not waited for ---- */

static bool has_arrival(struct job_rank *rank) {
    p2p_lock(rank->p2p);
    const struct p2p_link *link = rank->p2p->links[1 - rank->rank];
    bool has = link && link->arrivals && link->arrivals->have == link->arrivals->frame.payload;
    p2p_unlock(rank->p2p);
    return has;
}

/* An offer is there, and everybody sleeps, when its receive is posted: it takes several rounds to be read. */
static int post_and_go_on(struct job_rank *rank, void *argument) {
    (void)argument;
    struct sleeper sleeper = {.rank = rank};
    struct p2p_request request;
    uint8_t *bytes = calloc(1, LONG_BYTES);
    job_check(bytes != NULL);
    if (rank->rank == 0) {
        job_fill(bytes, LONG_BYTES, 3);
        job_check(job_send(rank, job_envelope(1, 1), bytes, LONG_BYTES) == 0);
    } else {
        begin_to_sleep(&sleeper, rank);
        while (!has_arrival(rank)) {
            (void)sched_yield();
        }
        await_sleepers(rank, 1);
        for (int i = 0; i < 1000; i++) { /* it has looked for the last time, most likely */
            (void)sched_yield();
        }
        job_post_receive(rank, &request, job_envelope(0, 1), bytes, LONG_BYTES);
        await_done(&request);
        job_check(job_is_filled(bytes, LONG_BYTES, 3));
        end_sleep(&sleeper);
    }
    free(bytes);
    return 0;
}

static void who_posts_wakes_a_sleeper(void **state) {
    (void)state;
    job_run(2, post_and_go_on, NULL, &neighbours);
}

/* ---- a link that opens ---- */

enum { OFFERS = 40, OFFER_BYTES = 100000, LAST_TAG = OFFERS };

struct offers {
    struct job_rank *rank;
    struct p2p_request requests[OFFERS + 1];
};

static void *wait_for_offers(void *argument) {
    struct offers *offers = argument;
    struct job_rank *rank = offers->rank;
    struct comm_waiter at_once = {.bell = bell_of(rank)};
    struct p2p_request *all[OFFERS + 1];
    for (uint32_t i = 0; i <= OFFERS; i++) {
        all[i] = &offers->requests[i];
    }
    job_check(p2p_wait(rank->p2p, &at_once, all, OFFERS + 1, job_deadline()) == 0);
    return NULL;
}

/* All is posted before there is a connection, and who waits for it sleeps when it is made: more than is written at
 * once. */
static void send_before_the_link(struct job_rank *rank, const uint8_t *bytes) {
    static struct offers offers;
    pthread_t thread;
    offers.rank = rank;
    job_await(rank->job, MARK_READY, 1);
    for (uint32_t i = 0; i <= OFFERS; i++) {
        job_post_send(rank, &offers.requests[i], job_envelope(1, i), bytes, i < OFFERS ? OFFER_BYTES : 1);
    }
    job_check(pthread_create(&thread, NULL, wait_for_offers, &offers) == 0);
    await_sleepers(rank, 1);
    job_mark(rank->job, MARK_SENT);
    job_check(pthread_join(thread, NULL) == 0);
}

/* Lets nobody connect until then, and first asks for the last one: answers nothing before that has come. */
static int link_late(struct job_rank *rank, void *argument) {
    (void)argument;
    uint8_t *bytes = calloc(1, OFFER_BYTES);
    job_check(bytes != NULL);
    if (rank->rank == 0) {
        send_before_the_link(rank, bytes);
    } else {
        p2p_lock(rank->p2p);
        job_mark(rank->job, MARK_READY);
        job_await(rank->job, MARK_SENT, 1);
        p2p_unlock(rank->p2p);
        job_check(job_receive(rank, job_envelope(0, LAST_TAG), bytes, 1) == 0);
        for (uint32_t i = 0; i < OFFERS; i++) {
            job_check(job_receive(rank, job_envelope(0, i), bytes, OFFER_BYTES) == 0);
        }
    }
    free(bytes);
    return 0;
}

static void a_link_that_opens_wakes_a_sleeper(void **state) {
    (void)state;
    job_run(2, link_late, NULL, &hosts);
}

/* ---- two sleepers on sockets ---- */

static struct sleeper *_Atomic late_sleeper;
static _Atomic int watched_event = -1;
static _Atomic bool is_at_the_door, is_taken;

ssize_t __real_read(int fd, void *buffer, size_t bytes);
ssize_t __wrap_read(int fd, void *buffer, size_t bytes);
int __real_epoll_wait(int fd, struct epoll_event *events, int max, int timeout);
int __wrap_epoll_wait(int fd, struct epoll_event *events, int max, int timeout);

/* One that is awake is about to take the bell's event, since nobody else sleeps. Now somebody goes to sleep, and is
 * rung for. */
ssize_t __wrap_read(int fd, void *buffer, size_t bytes) {
    struct sleeper *late = fd == watched_event ? late_sleeper : NULL;
    if (!late) {
        return __real_read(fd, buffer, bytes);
    }
    late_sleeper = NULL;
    begin_to_sleep(late, late->rank);
    while (!atomic_load(&is_at_the_door)) {
        (void)sched_yield();
    }
    atomic_store_explicit(&late->is_told, true, memory_order_release);
    comm_bell_ring(bell_of(late->rank));
    ssize_t n = __real_read(fd, buffer, bytes);
    atomic_store(&is_taken, true);
    return n;
}

/* It has compared the rings, and is not asleep yet. */
int __wrap_epoll_wait(int fd, struct epoll_event *events, int max, int timeout) {
    bool is_late = watched_event >= 0 && timeout > 0 && !late_sleeper && !atomic_exchange(&is_at_the_door, true);
    while (is_late && !atomic_load(&is_taken)) {
        (void)sched_yield();
    }
    return __real_epoll_wait(fd, events, max, timeout);
}

static int sleep_one_after_the_other(struct job_rank *rank, void *argument) {
    (void)argument;
    struct sleeper first = {.rank = rank}, late = {.rank = rank};
    if (rank->rank == 1) {
        return 0;
    }
    watched_event = rank->p2p->bell_event;
    late_sleeper = &late;
    begin_to_sleep(&first, rank);
    await_sleepers(rank, 1);
    comm_bell_ring(bell_of(rank));
    while (!atomic_load(&is_taken)) {
        (void)sched_yield();
    }
    job_check(pthread_join(late.thread, NULL) == 0);
    end_sleep(&first);
    return 0;
}

static void no_sleeper_takes_the_others_bell(void **state) {
    (void)state;
    job_run(2, sleep_one_after_the_other, NULL, &hosts);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_goes_to_sleep_looks_before),
        cmocka_unit_test(who_posts_wakes_a_sleeper),
        cmocka_unit_test(a_link_that_opens_wakes_a_sleeper),
        cmocka_unit_test(no_sleeper_takes_the_others_bell),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
