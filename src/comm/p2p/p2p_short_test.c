/* Short messages between neighbours: one order with long ones, whichever way either side takes; a box that is full; a
 * sender that has left; what does not fit; several receivers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/p2p/p2p_test_support.h"

static const struct job_options ways[] = {{.ranks_per_host = JOB_RANKS_MAX},
                                          {.ranks_per_host = JOB_RANKS_MAX, .may_read_peers = true},
                                          {.as_threads = true, .ranks_per_host = JOB_RANKS_MAX}};
enum { WAY_COUNT = sizeof ways / sizeof *ways };

static void run_all_ways(uint32_t size, job_body *body) {
    for (size_t i = 0; i < WAY_COUNT; i++) {
        job_run(size, body, NULL, &ways[i]);
    }
}

/* As muster_send() does it; true: by the short way. */
static bool send_blocking(struct job_rank *rank, const struct p2p_envelope *to, const void *buffer, size_t bytes) {
    int64_t now_ns = 0;
    if (p2p_send_short(rank->p2p, to, buffer, bytes, &now_ns)) {
        job_check(now_ns > 0);
        return true;
    }
    job_check(job_send(rank, *to, buffer, bytes) == 0);
    return false;
}

/* As muster_receive() does it; the bytes that came. */
static size_t receive_by(struct job_rank *rank, struct comm_waiter *waiter, const struct p2p_envelope *from,
                         void *buffer, size_t bytes) {
    int64_t begin_ns;
    struct p2p_short came = {.bytes = 0};
    struct p2p_link *link = p2p_expect_short(rank->p2p, from->peer, bytes, &begin_ns);
    if (link && p2p_receive_short(rank->p2p, waiter, link, from, buffer, bytes, &came)) {
        job_check(came.end_ns >= begin_ns);
        return came.bytes;
    }
    struct p2p_request request, *requests[] = {&request};
    job_post_receive(rank, &request, *from, buffer, bytes);
    job_check(p2p_wait(rank->p2p, waiter, requests, 1, job_deadline()) == 0);
    return request.bytes;
}

static size_t receive_blocking(struct job_rank *rank, const struct p2p_envelope *from, void *buffer, size_t bytes) {
    return receive_by(rank, &rank->waiter, from, buffer, bytes);
}

/* ---- order ---- */

enum { STREAK = 3000, LONG_BYTES = 100000, LEFT_ALONE = 64 };

static size_t bytes_at(uint32_t place) {
    static const size_t sizes[] = {4, 40, 4, 41, 2000, 4, 0, 2088, 2089, 5000, 4, 4, LONG_BYTES, 64, 33000, 4};
    return sizes[(place * 7 + place / 16) % (sizeof sizes / sizeof *sizes)];
}

/* Rank 0 sends; every now and then it does not wait for several, so that shorts follow longs that are under way. */
static void send_row(struct job_rank *rank, uint8_t *buffers[4]) {
    struct p2p_envelope to = job_envelope(1, 5);
    struct p2p_request requests[4], *open[4];
    for (uint32_t i = 0; i < STREAK;) {
        size_t count = i % 3 == 0 && i + 4 <= STREAK ? 4 : 1;
        for (size_t k = 0; k < count; k++, i++) {
            job_fill(buffers[k], bytes_at(i), i);
            if (count == 1) {
                (void)send_blocking(rank, &to, buffers[k], bytes_at(i));
            } else {
                open[k] = &requests[k];
                job_post_send(rank, open[k], to, buffers[k], bytes_at(i));
            }
        }
        if (count > 1) {
            job_check(p2p_wait(rank->p2p, &rank->waiter, open, count, job_deadline()) == 0);
        }
    }
}

static void receive_row(struct job_rank *rank, uint8_t *in) {
    struct p2p_envelope from = job_envelope(0, 5);
    for (uint32_t i = 0; i < STREAK; i++) {
        if (i % LEFT_ALONE == 0) {
            (void)p2p_progress(rank->p2p); /* some come before anybody asks for them */
        }
        bool is_exact = i % 5 != 0 && bytes_at(i) > 0; /* else with room for any */
        size_t bytes = receive_blocking(rank, &from, in, is_exact ? bytes_at(i) : LONG_BYTES);
        job_check(bytes == bytes_at(i) && job_is_filled(in, bytes, i));
    }
}

static int in_one_order(struct job_rank *rank, void *argument) {
    (void)argument;
    uint8_t *buffers[4];
    for (size_t k = 0; k < 4; k++) {
        buffers[k] = malloc(LONG_BYTES);
        job_check(buffers[k]);
    }
    if (rank->rank == 0) {
        send_row(rank, buffers);
    } else {
        receive_row(rank, buffers[0]);
    }
    for (size_t k = 0; k < 4; k++) {
        free(buffers[k]);
    }
    return 0;
}

static void short_and_long_ones_keep_one_order(void **state) {
    (void)state;
    run_all_ways(2, in_one_order);
}

/* Requests and answers, long enough that the link has opened: then it is the short way that is taken. */
static int by_the_short_way(struct job_rank *rank, void *argument) {
    (void)argument;
    struct p2p_envelope other = job_envelope(1 - rank->rank, 9);
    uint32_t shorts = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        uint32_t value = 2 * i + rank->rank, got = 0;
        if (rank->rank == 0) {
            shorts += send_blocking(rank, &other, &value, sizeof value);
        }
        job_check(receive_blocking(rank, &other, &got, sizeof got) == sizeof got);
        job_check(got == 2 * i + 1 - rank->rank);
        if (rank->rank == 1) {
            shorts += send_blocking(rank, &other, &value, sizeof value);
        }
    }
    job_check(shorts >= 998); /* all but the one that opened the link, and one behind that */
    return 0;
}

static void answers_take_the_short_way(void **state) {
    (void)state;
    run_all_ways(2, by_the_short_way);
}

/* ---- bounds ---- */

/* Nobody takes anything out: the box is full after a few, and the others wait their turn elsewhere. */
static int into_a_full_box(struct job_rank *rank, void *argument) {
    (void)argument;
    enum { COUNT = 100, MARK_OPEN = 0, MARK_SENT = 1 };
    struct p2p_envelope other = job_envelope(1 - rank->rank, 1);
    uint32_t value = 0, shorts = 0;
    if (rank->rank == 0) {
        (void)send_blocking(rank, &other, &value, sizeof value);
        job_await(rank->job, MARK_OPEN, 1);
        for (value = 1; value <= COUNT; value++) {
            shorts += send_blocking(rank, &other, &value, sizeof value);
        }
        job_check(shorts > 0 && shorts < COUNT);
        job_mark(rank->job, MARK_SENT);
    } else {
        for (uint32_t i = 0; i <= COUNT; i++) {
            job_check(receive_blocking(rank, &other, &value, sizeof value) == sizeof value && value == i);
            if (i == 0) {
                job_mark(rank->job, MARK_OPEN);
                job_await(rank->job, MARK_SENT, 1);
            }
        }
    }
    return 0;
}

static void a_full_box_holds_nobody_up(void **state) {
    (void)state;
    run_all_ways(2, into_a_full_box);
}

/* A message of another type or that is too long stays for the receive that says so; one of another tag stays. */
static int not_for_this_receive(struct job_rank *rank, void *argument) {
    (void)argument;
    struct p2p_envelope one = job_envelope(1 - rank->rank, 1), two = job_envelope(1 - rank->rank, 2);
    uint32_t values[4] = {11, 12, 13, 14};
    if (rank->rank == 0) {
        (void)send_blocking(rank, &one, &values[0], sizeof *values);
        (void)send_blocking(rank, &two, &values[1], sizeof *values);
        (void)send_blocking(rank, &one, values, sizeof values);
        return 0;
    }
    uint32_t got = 0;
    job_check(receive_blocking(rank, &two, &got, sizeof got) == sizeof got && got == 12);
    job_check(receive_blocking(rank, &one, &got, sizeof got) == sizeof got && got == 11);
    int64_t begin_ns;
    struct p2p_short came;
    struct p2p_link *link = p2p_expect_short(rank->p2p, 0, sizeof got, &begin_ns);
    job_check(!link || !p2p_receive_short(rank->p2p, &rank->waiter, link, &one, &got, sizeof got, &came));
    struct p2p_request request;
    job_post_receive(rank, &request, one, &got, sizeof got);
    job_check(job_wait_for(rank, &request) == MUSTER_EMISMATCH);
    return 0;
}

static void what_is_for_others_stays(void **state) {
    (void)state;
    run_all_ways(2, not_for_this_receive);
}

/* What was sent before the goodbye is there after it. */
static int before_the_goodbye(struct job_rank *rank, void *argument) {
    (void)argument;
    enum { MARK_OPEN = 0 };
    struct p2p_envelope other = job_envelope(1 - rank->rank, 1);
    uint32_t value = 0;
    if (rank->rank == 0) {
        (void)send_blocking(rank, &other, &value, sizeof value);
        job_await(rank->job, MARK_OPEN, 1);
        value = 1;
        job_check(send_blocking(rank, &other, &value, sizeof value));
        return 0; /* and leaves */
    }
    job_check(receive_blocking(rank, &other, &value, sizeof value) == sizeof value);
    job_mark(rank->job, MARK_OPEN);
    struct p2p_envelope none = job_envelope(0, 2);
    struct p2p_request request;
    job_post_receive(rank, &request, none, &value, sizeof value);
    job_check(job_wait_for(rank, &request) == MUSTER_EPEER); /* it has left */
    job_check(receive_blocking(rank, &other, &value, sizeof value) == sizeof value && value == 1);
    return 0;
}

static void leaving_loses_nothing(void **state) {
    (void)state;
    run_all_ways(2, before_the_goodbye);
}

/* ---- several receivers ---- */

enum { THREADS = 3, EACH = 400 };

struct receiver {
    struct job_rank *rank;
    struct comm_waiter waiter;
    uint32_t tag;
};

static void *receive_own(void *argument) {
    struct receiver *receiver = argument;
    struct p2p_envelope from = job_envelope(0, receiver->tag);
    for (uint32_t i = 0; i < EACH; i++) {
        uint32_t got = 0;
        job_check(receive_by(receiver->rank, &receiver->waiter, &from, &got, sizeof got) == sizeof got && got == i);
    }
    return NULL;
}

static int with_threads(struct job_rank *rank, void *argument) {
    (void)argument;
    if (rank->rank == 0) {
        for (uint32_t i = 0; i < EACH * THREADS; i++) {
            struct p2p_envelope to = job_envelope(1, i % THREADS);
            uint32_t value = i / THREADS;
            (void)send_blocking(rank, &to, &value, sizeof value);
        }
        return 0;
    }
    struct receiver receivers[THREADS];
    pthread_t threads[THREADS];
    for (uint32_t i = 0; i < THREADS; i++) {
        receivers[i] = (struct receiver){.rank = rank, .tag = i};
        receivers[i].waiter.bell = rank->waiter.bell;
        receivers[i].waiter.yield_count = 1;
        receivers[i].waiter.spin_count = i == 0 ? 1 : 200; /* one that soon sleeps */
        job_check(pthread_create(&threads[i], NULL, receive_own, &receivers[i]) == 0);
    }
    for (uint32_t i = 0; i < THREADS; i++) {
        job_check(pthread_join(threads[i], NULL) == 0);
    }
    return 0;
}

static void receivers_leave_each_other_their_own(void **state) {
    (void)state;
    run_all_ways(2, with_threads);
}

/* From anybody: whoever's message it is. */
static int from_anybody(struct job_rank *rank, void *argument) {
    (void)argument;
    enum { COUNT = 300 };
    uint32_t next[3] = {0};
    if (rank->rank > 0) {
        struct p2p_envelope to = job_envelope(0, 4);
        for (uint32_t i = 0; i < COUNT; i++) {
            (void)send_blocking(rank, &to, &i, sizeof i);
        }
        return 0;
    }
    for (uint32_t i = 0; i < 2 * COUNT; i++) {
        uint32_t got = 0;
        struct p2p_envelope from = job_envelope(P2P_ANY_PEER, 4);
        struct p2p_request request;
        job_post_receive(rank, &request, from, &got, sizeof got);
        job_check(job_wait_for(rank, &request) == 0);
        job_check(request.envelope.peer < 3 && got == next[request.envelope.peer]++);
    }
    return 0;
}

static void anybody_sends_short_ones(void **state) {
    (void)state;
    run_all_ways(3, from_anybody);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(short_and_long_ones_keep_one_order),
        cmocka_unit_test(answers_take_the_short_way),
        cmocka_unit_test(a_full_box_holds_nobody_up),
        cmocka_unit_test(what_is_for_others_stays),
        cmocka_unit_test(leaving_loses_nothing),
        cmocka_unit_test(receivers_leave_each_other_their_own),
        cmocka_unit_test(anybody_sends_short_ones),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
