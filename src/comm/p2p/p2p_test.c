/* Messages between ranks: order, anybody, both directions at once, withdrawal, mismatches, ends in good and bad
 * order, strangers; over TCP, over several connections, over rings, and out of each other's memory. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "comm/p2p/p2p_test_support.h"
#include "comm/p2p/wire.h"

#define LARGE_BYTES ((size_t)5 << 20)

static const struct job_options ways[] = {{.ranks_per_host = 0},
                                          {.stream_count = 4},
                                          {.ranks_per_host = JOB_RANKS_MAX},
                                          {.ranks_per_host = JOB_RANKS_MAX, .may_read_peers = true},
                                          {.as_threads = true},
                                          {.as_threads = true, .ranks_per_host = JOB_RANKS_MAX}};
enum { WAY_COUNT = sizeof ways / sizeof *ways };

static void run_all_ways(uint32_t size, job_body *body) {
    for (size_t i = 0; i < WAY_COUNT; i++) {
        job_run(size, body, NULL, &ways[i]);
    }
}

/* ---- order ---- */

enum { STREAK = 400 };

/* Short and long ones under one tag come in the order of sending, whether somebody waits for them or not. */
static int in_order(struct job_rank *rank, void *argument) {
    (void)argument;
    static const size_t sizes[] = {0, 1, 8, 100, 4096, 20000, 65536, 70000, 300000};
    enum { SIZES = sizeof sizes / sizeof *sizes };
    uint32_t other = 1 - rank->rank;
    uint8_t *out = malloc(300000), *in = malloc(300000);
    for (uint32_t i = 0; i < STREAK; i++) {
        struct p2p_request request;
        size_t bytes = sizes[(i * 5) % SIZES];
        if (rank->rank == 0) {
            job_fill(out, bytes, i);
            job_check(job_send(rank, job_envelope(other, 3), out, bytes) == 0);
        } else {
            memset(in, 0, 300000);
            job_post_receive(rank, &request, job_envelope(other, 3), in, 300000);
            job_check(job_wait_for(rank, &request) == 0);
            job_check(request.bytes == bytes && request.envelope.peer == 0 && job_is_filled(in, bytes, i));
        }
    }
    free(out);
    free(in);
    return 0;
}

static void messages_of_a_tag_come_in_order(void **state) {
    (void)state;
    run_all_ways(2, in_order);
}

/* Tags are taken in another order than they were sent in, long ones too. */
static int tags_apart(struct job_rank *rank, void *argument) {
    (void)argument;
    enum { TAGS = 6 };
    uint8_t *buffers = malloc(TAGS * LARGE_BYTES);
    struct p2p_request requests[TAGS], *all[TAGS];
    for (uint32_t tag = 0; tag < TAGS; tag++) {
        all[tag] = &requests[tag];
        size_t bytes = tag % 2 ? LARGE_BYTES - tag * 7 : 1000 + tag;
        if (rank->rank == 0) {
            job_fill(buffers + tag * LARGE_BYTES, bytes, tag);
            job_post_send(rank, &requests[tag], job_envelope(1, tag), buffers + tag * LARGE_BYTES, bytes);
        }
    }
    if (rank->rank == 0) {
        job_check(p2p_wait(rank->p2p, &rank->waiter, all, TAGS, job_deadline()) == 0);
    }
    for (uint32_t i = TAGS; rank->rank == 1 && i > 0; i--) {
        uint32_t tag = i - 1;
        size_t bytes = tag % 2 ? LARGE_BYTES - tag * 7 : 1000 + tag;
        job_post_receive(rank, &requests[tag], job_envelope(0, tag), buffers, LARGE_BYTES);
        job_check(job_wait_for(rank, &requests[tag]) == 0);
        job_check(requests[tag].bytes == bytes && job_is_filled(buffers, bytes, tag));
    }
    free(buffers);
    return 0;
}

static void tags_are_taken_in_any_order(void **state) {
    (void)state;
    run_all_ways(2, tags_apart);
}

/* ---- anybody ---- */

static int from_anybody(struct job_rank *rank, void *argument) {
    (void)argument;
    enum { EACH = 50 };
    uint32_t number[2];
    struct p2p_request request;
    if (rank->rank > 0) {
        for (uint32_t i = 0; i < EACH; i++) {
            number[0] = rank->rank;
            number[1] = i;
            job_check(job_send(rank, job_envelope(0, 5), number, sizeof number) == 0);
        }
        return 0;
    }
    uint32_t next[JOB_RANKS_MAX] = {0};
    for (uint32_t i = 0; i < EACH * (rank->size - 1); i++) {
        job_post_receive(rank, &request, job_envelope(P2P_ANY_PEER, 5), number, sizeof number);
        job_check(job_wait_for(rank, &request) == 0);
        job_check(request.envelope.peer == number[0] && number[1] == next[number[0]]++);
    }
    return 0;
}

static void anybody_may_be_received_from(void **state) {
    (void)state;
    run_all_ways(4, from_anybody);
}

/* ---- both directions, both lanes, everybody ---- */

static int exchange(struct job_rank *rank, void *argument) {
    (void)argument;
    enum { REQUESTS = 2 * 2 * JOB_RANKS_MAX };
    struct p2p_request requests[REQUESTS], *all[REQUESTS];
    uint8_t *out = malloc(LARGE_BYTES), *in = malloc(2 * rank->size * LARGE_BYTES);
    size_t count = 0;
    job_fill(out, LARGE_BYTES, rank->rank);
    for (uint32_t lane = 0; lane < P2P_LANE_COUNT; lane++) {
        for (uint32_t peer = 0; peer < rank->size; peer++) {
            if (peer != rank->rank) {
                struct p2p_envelope here = job_envelope(peer, P2P_TAG(1, lane));
                here.lane = (uint8_t)lane;
                all[count] = &requests[count];
                job_post_send(rank, &requests[count++], here, out, LARGE_BYTES);
                all[count] = &requests[count];
                job_post_receive(rank, &requests[count++], here, in + (lane * rank->size + peer) * LARGE_BYTES,
                                 LARGE_BYTES);
            }
        }
    }
    job_check(p2p_wait(rank->p2p, &rank->waiter, all, count, job_deadline()) == 0);
    for (uint32_t i = 0; i < 2 * rank->size; i++) {
        uint32_t peer = i % rank->size;
        job_check(peer == rank->rank || job_is_filled(in + i * LARGE_BYTES, LARGE_BYTES, peer));
    }
    free(out);
    free(in);
    return 0;
}

static void long_messages_cross_without_deadlock(void **state) {
    (void)state;
    run_all_ways(3, exchange);
}

/* ---- giving up ---- */

/* A receive that timed out leaves no trace: the next one gets the message. */
static int late_message(struct job_rank *rank, void *argument) {
    (void)argument;
    uint8_t first[4] = "", second[4] = "", word[4] = "abc";
    struct p2p_request request, *list = &request;
    if (rank->rank == 1) {
        job_post_receive(rank, &request, job_envelope(0, 1), first, sizeof first);
        job_check(p2p_wait(rank->p2p, &rank->waiter, &list, 1, clock_monotonic_ns() + 1000000) == MUSTER_ETIMEOUT);
        job_mark(rank->job, 0);
        job_check(job_receive(rank, job_envelope(0, 1), second, sizeof second) == 0 && second[0] == 'a' &&
                  first[0] == 0);
    } else {
        job_await(rank->job, 0, 1);
        job_check(job_send(rank, job_envelope(1, 1), word, sizeof word) == 0);
    }
    return 0;
}

static void a_receive_may_be_withdrawn(void **state) {
    (void)state;
    run_all_ways(2, late_message);
}

/* A long send that is given up in the middle: the receiver does not take it for a whole one, the link goes on. */
static int broken_off(struct job_rank *rank, void *argument) {
    (void)argument;
    const size_t bytes = (size_t)64 << 20, next = P2P_EAGER_FAR_BYTES + 1; /* whose sender waits for rank 1 */
    uint8_t *buffer = calloc(1, bytes);
    struct p2p_request request, *list = &request;
    if (rank->rank == 0) {
        memset(buffer, 7, bytes);
        job_post_send(rank, &request, job_envelope(1, 1), buffer, bytes);
        (void)p2p_progress(rank->p2p);
        job_await(rank->job, 0, 1);
        int code = p2p_wait(rank->p2p, &rank->waiter, &list, 1, clock_monotonic_ns() + 20000000);
        job_check(code == MUSTER_ETIMEOUT);
        memset(buffer, 9, bytes);
        job_mark(rank->job, 1);
        job_check(job_send(rank, job_envelope(1, 2), buffer, next) == 0);
    } else {
        job_post_receive(rank, &request, job_envelope(0, 1), buffer, bytes);
        /* Says that it is ready, if it has heard of it. */
        for (int i = 0; i < 20 && job_moved(rank, &request) == 0; i++) {
            (void)p2p_progress(rank->p2p);
            (void)poll(NULL, 0, 1);
        }
        job_mark(rank->job, 0);
        job_await(rank->job, 1, 1);
        int code = p2p_wait(rank->p2p, &rank->waiter, &list, 1, clock_monotonic_ns() + 50000000);
        job_check(code == MUSTER_ETIMEOUT);
        job_check(job_receive(rank, job_envelope(0, 2), buffer, next) == 0 && buffer[0] == 9 && buffer[next - 1] == 9);
    }
    free(buffer);
    return 0;
}

static void a_send_may_be_withdrawn(void **state) {
    (void)state;
    job_run(2, broken_off, NULL, &ways[0]);
    job_run(2, broken_off, NULL, &ways[1]);
    job_run(2, broken_off, NULL, &ways[2]);
}

/* ---- mismatches ---- */

static int mismatches(struct job_rank *rank, void *argument) {
    (void)argument;
    uint8_t bytes[100] = {0};
    struct p2p_request request;
    struct p2p_envelope typed = job_envelope(1 - rank->rank, 2);
    if (rank->rank == 0) {
        job_check(job_send(rank, job_envelope(1, 1), bytes, 100) == 0);
        typed.fingerprint = MUSTER_FLOAT32;
        job_check(job_send(rank, typed, bytes, 8) == 0);
    } else {
        job_post_receive(rank, &request, job_envelope(0, 1), bytes, 99);
        job_check(job_wait_for(rank, &request) == MUSTER_EMISMATCH && strstr(muster_detail(), "100 bytes"));
        job_post_receive(rank, &request, typed, bytes, 8);
        job_check(job_wait_for(rank, &request) == MUSTER_EMISMATCH && strstr(muster_detail(), "float32"));
    }
    return 0;
}

static void what_does_not_fit_is_a_mismatch(void **state) {
    (void)state;
    run_all_ways(2, mismatches);
}

/* ---- ends ---- */

/* What was sent before a rank left arrives; what comes no more is an error; nobody is called dead. */
static int leaves(struct job_rank *rank, void *argument) {
    (void)argument;
    uint8_t bytes[10] = "last word";
    struct p2p_request request;
    if (rank->rank == 0) {
        return job_send(rank, job_envelope(1, 1), bytes, sizeof bytes);
    }
    uint8_t got[10] = "";
    /* It may have left before the first receive is posted, and has before the second. */
    for (int i = 0; i < 2; i++) {
        job_check(job_receive(rank, job_envelope(0, 2), got, sizeof got) == MUSTER_EPEER);
        job_check(strstr(muster_detail(), "rank 0 has left"));
    }
    job_check(job_receive(rank, job_envelope(0, 1), got, sizeof got) == 0 && strcmp((char *)got, "last word") == 0);
    const struct p2p_envelope to = job_envelope(0, 1);
    job_check(p2p_send(rank->p2p, &request, &to, got, 1, job_deadline()) == MUSTER_EPEER);
    job_check(atomic_load(&rank->notice_count) == 0);
    return 0;
}

static void leaving_in_good_order_is_no_death(void **state) {
    (void)state;
    job_run(2, leaves, NULL, &ways[0]);
    job_run(2, leaves, NULL, &ways[1]);
    job_run(2, leaves, NULL, &ways[2]);
}

static int watchers(struct job_rank *rank, void *argument) {
    (void)argument;
    job_check(p2p_watch(rank->p2p, (rank->rank + 1) % rank->size, job_deadline()) == 0);
    job_mark(rank->job, 0);
    if (rank->rank == 2) {
        job_await(rank->job, 9, 1); /* killed here */
    }
    int64_t deadline = job_deadline();
    while (atomic_load(&rank->notice_count) == 0) { /* nobody is in a call: the attendant hears of it */
        job_check(clock_monotonic_ns() < deadline);
        (void)poll(NULL, 0, 1);
    }
    job_check(rank->notices[0].kind == P2P_NOTICE_PEER_DEAD && rank->notices[0].subject == 2);
    /* It "has died", or, if that came before the watch was made, the one before it "cannot connect to rank 2". */
    job_check(strstr(rank->notices[0].sentence, "rank 2"));
    job_mark(rank->job, 1);
    job_await(rank->job, 1, rank->size - 1);
    return 0;
}

/* A ring of watches is enough for everybody to hear of a death, though nobody talks. */
static void watches_spread_a_death(void **state) {
    (void)state;
    struct job *job = job_start(6, watchers, NULL, NULL);
    job_await(job_shared(job), 0, 6);
    job_kill(job, 2);
    for (uint32_t rank = 0; rank < 6; rank++) {
        assert_int_equal(job_wait(job, rank), rank == 2 ? -1009 : 0);
    }
    job_free(job);
}

static int aborts(struct job_rank *rank, void *argument) {
    (void)argument;
    uint8_t bytes[8];
    struct p2p_request request;
    if (rank->rank == 0) { /* a link to everybody */
        for (uint32_t peer = 1; peer < rank->size; peer++) {
            job_check(job_send(rank, job_envelope(peer, 1), bytes, 8) == 0);
        }
        job_await(rank->job, 0, rank->size - 1);
        struct p2p_notice notice = {
            .kind = P2P_NOTICE_GROUP_FAILED, .subject = 7, .origin = 0, .code = MUSTER_EABORTED, .sentence = "enough"};
        p2p_spread(rank->p2p, &notice);
        p2p_spread(rank->p2p, &notice);
        const struct p2p_envelope to = job_envelope(1, 1);
        job_check(p2p_send(rank->p2p, &request, &to, bytes, 1, job_deadline()) == MUSTER_EABORTED);
    } else {
        job_check(job_receive(rank, job_envelope(0, 1), bytes, 8) == 0);
        job_mark(rank->job, 0);
        job_post_receive(rank, &request, job_envelope(0, 1), bytes, 8);
        job_check(job_wait_for(rank, &request) == MUSTER_EABORTED && strcmp(muster_detail(), "enough") == 0);
        job_check(atomic_load(&rank->notice_count) <= 1);
    }
    job_mark(rank->job, 1);
    job_await(rank->job, 1, rank->size);
    return 0;
}

static void a_failed_group_fails_everywhere(void **state) {
    (void)state;
    run_all_ways(4, aborts);
}

/* Rank 1 connects when the group has failed already, and hears of it though nobody sends it anything else. */
static int comes_late(struct job_rank *rank, void *argument) {
    (void)argument;
    enum { GROUP = 70001 };
    uint8_t bytes[8] = "";
    struct p2p_request request;
    if (rank->rank == 0) {
        struct p2p_notice notice = {.kind = P2P_NOTICE_GROUP_FAILED,
                                    .subject = GROUP,
                                    .origin = 0,
                                    .code = MUSTER_EABORTED,
                                    .sentence = "long ago"};
        p2p_spread(rank->p2p, &notice);
        job_mark(rank->job, 0);
    } else {
        job_await(rank->job, 0, 1);
        struct p2p_envelope from = job_envelope(0, 1);
        from.group = GROUP;
        job_post_send(rank, &request, from, bytes, sizeof bytes);
        (void)job_wait_for(rank, &request); /* it may be gone before the news comes */
        int code = p2p_receive(rank->p2p, &request, &from, bytes, sizeof bytes, job_deadline());
        code = code == 0 ? job_wait_for(rank, &request) : code;
        job_check(code == MUSTER_EABORTED && strcmp(muster_detail(), "long ago") == 0);
        job_check(rank->notices[0].subject == GROUP);
    }
    job_mark(rank->job, 1);
    job_await(rank->job, 1, rank->size);
    return 0;
}

static void who_connects_later_is_told(void **state) {
    (void)state;
    job_run(2, comes_late, NULL, &ways[0]);
    job_run(2, comes_late, NULL, &ways[1]);
}

/* ---- strangers ---- */

static int ring_of_words(struct job_rank *rank, void *argument) {
    (void)argument;
    job_await(rank->job, 5, 1); /* the strangers are there */
    uint8_t out[1000], in[1000];
    job_fill(out, sizeof out, rank->rank);
    struct p2p_request requests[2], *all[2] = {&requests[0], &requests[1]};
    uint32_t next = (rank->rank + 1) % rank->size, before = (rank->rank + rank->size - 1) % rank->size;
    job_post_send(rank, &requests[0], job_envelope(next, 1), out, sizeof out);
    job_post_receive(rank, &requests[1], job_envelope(before, 1), in, sizeof in);
    job_check(p2p_wait(rank->p2p, &rank->waiter, all, 2, job_deadline()) == 0);
    job_check(job_is_filled(in, sizeof in, before));
    job_mark(rank->job, 6);
    job_await(rank->job, 7, 1);
    return 0;
}

static int connect_to(uint16_t port) {
    struct sockaddr_in address = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    job_check(fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0);
    return fd;
}

static void expect_closed(int fd) {
    char byte;
    struct pollfd end = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&end, 1, JOB_DEADLINE_MS), 1);
    assert_true(read(fd, &byte, 1) <= 0);
    (void)close(fd);
}

static void strangers_do_no_harm(void **state) {
    (void)state;
    enum { SILENT = 100 };
    int silent[SILENT];
    struct job *job = job_start(3, ring_of_words, NULL, NULL);
    uint16_t port = job_port(job_shared(job), 1);
    for (int i = 0; i < SILENT; i++) {
        silent[i] = connect_to(port); /* says nothing */
    }
    expect_closed(silent[0]); /* more than there are places: the oldest goes */
    int garbage = connect_to(port), half = connect_to(port), liar = connect_to(port);
    uint8_t noise[5000];
    job_fill(noise, sizeof noise, 99);
    job_check(write(garbage, noise, sizeof noise) > 0);
    job_check(write(half, "MUSTERh", 7) == 7);
    struct wire_hello hello = {.from = 0, .to = 1, .stream_count = 1}; /* right in all but the secret */
    uint8_t bytes[WIRE_HELLO_BYTES];
    wire_hello_encode(&hello, bytes);
    job_check(write(liar, bytes, sizeof bytes) == (ssize_t)sizeof bytes);
    expect_closed(garbage);
    expect_closed(liar);
    job_mark(job_shared(job), 5);
    job_await(job_shared(job), 6, 3);
    job_mark(job_shared(job), 7);
    for (uint32_t rank = 0; rank < 3; rank++) {
        assert_int_equal(job_wait(job, rank), 0);
    }
    (void)close(half);
    for (int i = 1; i < SILENT; i++) {
        (void)close(silent[i]);
    }
    job_free(job);
}

/* ---- threads of one rank ---- */

struct second {
    struct job_rank *rank;
    struct comm_waiter waiter;
};

static void talk(struct job_rank *rank, struct comm_waiter *waiter, uint32_t group) {
    uint8_t out[3000], in[3000];
    for (uint32_t i = 0; i < 200; i++) {
        struct p2p_request requests[2], *all[2] = {&requests[0], &requests[1]};
        struct p2p_envelope there = job_envelope(1 - rank->rank, i);
        there.group = group;
        job_fill(out, sizeof out, group + i);
        job_post_receive(rank, &requests[0], there, in, sizeof in);
        job_post_send(rank, &requests[1], there, out, sizeof out);
        job_check(p2p_wait(rank->p2p, waiter, all, 2, job_deadline()) == 0);
        job_check(job_is_filled(in, sizeof in, group + i));
    }
}

static void *talk_too(void *argument) {
    struct second *second = argument;
    talk(second->rank, &second->waiter, 2);
    return NULL;
}

static int two_threads(struct job_rank *rank, void *argument) {
    (void)argument;
    struct second second = {.rank = rank};
    second.waiter.bell = rank->waiter.bell;
    second.waiter.spin_count = 1; /* it sleeps soon, and the other wakes it */
    second.waiter.yield_count = 1;
    pthread_t thread;
    job_check(pthread_create(&thread, NULL, talk_too, &second) == 0);
    talk(rank, &rank->waiter, 1);
    job_check(pthread_join(thread, NULL) == 0);
    return 0;
}

static void threads_of_a_rank_share_the_links(void **state) {
    (void)state;
    run_all_ways(2, two_threads);
}

/* ---- a peer that is late: it is waited for, and gets all, also from a rank that has left ---- */

enum { LATE_MESSAGES = 9, LOST_AFTER_MS = 2000, LATE_MS = 2 * LOST_AFTER_MS, POSTED = 0 };
#define LATE_BYTES ((size_t)100000) /* more than a socket takes that nobody reads, and all within the credit */

static int come_late(struct job_rank *rank, void *argument) {
    (void)argument;
    struct p2p_request requests[LATE_MESSAGES];
    uint8_t *bytes = malloc(LATE_MESSAGES * LATE_BYTES);
    for (uint32_t i = 0; i < LATE_MESSAGES && rank->rank == 0; i++) {
        job_fill(bytes + i * LATE_BYTES, LATE_BYTES, i);
        job_post_send(rank, &requests[i], job_envelope(1, 1), bytes + i * LATE_BYTES, LATE_BYTES);
    }
    job_mark(rank->job, POSTED);
    job_await(rank->job, POSTED, 2);
    if (rank->rank == 1) {
        (void)poll(NULL, 0, LATE_MS); /* it computes, and reads nothing */
    }
    for (uint32_t i = 0; i < LATE_MESSAGES; i++) {
        if (rank->rank == 1) {
            job_post_receive(rank, &requests[i], job_envelope(0, 1), bytes, LATE_BYTES);
        }
        job_check(job_wait_for(rank, &requests[i]) == 0);
        job_check(rank->rank == 0 || job_is_filled(bytes, LATE_BYTES, i));
    }
    free(bytes);
    return 0;
}

static void a_peer_that_reads_nothing_is_alive(void **state) {
    (void)state;
    const struct job_options late_ways[] = {{.lost_after_ms = LOST_AFTER_MS},
                                            {.lost_after_ms = LOST_AFTER_MS, .stream_count = 4}};
    for (size_t i = 0; i < sizeof late_ways / sizeof *late_ways; i++) {
        job_run(2, come_late, NULL, &late_ways[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(messages_of_a_tag_come_in_order),
        cmocka_unit_test(tags_are_taken_in_any_order),
        cmocka_unit_test(anybody_may_be_received_from),
        cmocka_unit_test(long_messages_cross_without_deadlock),
        cmocka_unit_test(a_receive_may_be_withdrawn),
        cmocka_unit_test(a_send_may_be_withdrawn),
        cmocka_unit_test(what_does_not_fit_is_a_mismatch),
        cmocka_unit_test(leaving_in_good_order_is_no_death),
        cmocka_unit_test(watches_spread_a_death),
        cmocka_unit_test(a_failed_group_fails_everywhere),
        cmocka_unit_test(who_connects_later_is_told),
        cmocka_unit_test(strangers_do_no_harm),
        cmocka_unit_test(threads_of_a_rank_share_the_links),
        cmocka_unit_test(a_peer_that_reads_nothing_is_alive),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
