/* The ends of links, in every order in which their news may come: who left is not taken for dead, who died is, and what
 * either had sent before counts. Over TCP; the order is forced by who looks at the links when. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/p2p/p2p_impl.h"
#include "comm/p2p/p2p_test_support.h"

enum { READY, SENT, GONE, TOLD, DONE };
enum { NOT_TOLD = 2 };                /* what a rank ends with */
#define LONG_BYTES ((size_t)64 << 20) /* several times what the kernel takes in for one connection */

static struct p2p_envelope envelope(uint32_t peer, uint64_t tag) {
    struct p2p_envelope envelope = job_envelope(peer, tag);
    envelope.lane = P2P_COLLECTIVES; /* always in frames of a link */
    return envelope;
}

static bool is_watching_it(struct p2p *p2p, uint32_t peer) {
    p2p_lock(p2p);
    bool is = p2p->links[peer] && p2p->links[peer]->is_watching;
    p2p_unlock(p2p);
    return is;
}

static void tell_of_death(struct job_rank *rank, uint32_t peer, const char *sentence) {
    struct p2p_notice notice = {
        .kind = P2P_NOTICE_PEER_DEAD, .subject = peer, .origin = rank->rank, .code = MUSTER_EPEER};
    (void)str_format(notice.sentence, sizeof notice.sentence, "%s", sentence);
    p2p_spread(rank->p2p, &notice);
}

/* ---- the last bytes ---- */

/* Rank 1 sends, and is killed; rank 0 is told of its death before it has looked at the connection. */
static int last_words(struct job_rank *rank, void *argument) {
    (void)argument;
    char word[] = "last word";
    if (rank->rank == 1) {
        job_check(job_send(rank, envelope(0, 1), word, sizeof word) == 0);
        job_await(rank->job, READY, 1);
        job_check(job_send(rank, envelope(0, 2), word, sizeof word) == 0);
        job_check(job_send(rank, envelope(0, 3), word, sizeof word) == 0);
        job_mark(rank->job, SENT);
        job_await(rank->job, DONE, 9); /* killed here */
    }
    char got[sizeof word] = "";
    struct p2p_request early, *list = &early;
    const struct p2p_envelope from = envelope(1, 2);
    job_check(job_receive(rank, envelope(1, 1), got, sizeof got) == 0);
    job_check(p2p_receive(rank->p2p, &early, &from, got, sizeof got, job_deadline()) == 0);
    job_mark(rank->job, READY);
    job_await(rank->job, SENT, 1);
    memset(got, 0, sizeof got);
    tell_of_death(rank, 1, "rank 1 was killed, says somebody");
    job_check(p2p_wait(rank->p2p, &rank->waiter, &list, 1, job_deadline()) == 0 && strcmp(got, word) == 0);
    memset(got, 0, sizeof got);
    job_check(job_receive(rank, envelope(1, 3), got, sizeof got) == 0 && strcmp(got, word) == 0);
    job_mark(rank->job, GONE);
    job_check(job_receive(rank, envelope(1, 4), got, sizeof got) == MUSTER_EPEER);
    job_check(strstr(muster_detail(), "rank 1 was killed, says somebody"));
    return 0;
}

static void what_a_killed_rank_has_sent_arrives(void **state) {
    (void)state;
    const struct job_options options[] = {{.ranks_per_host = 0}, {.ranks_per_host = 2}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        struct job *job = job_start(2, last_words, NULL, &options[i]);
        job_await(job_shared(job), GONE, 1);
        job_kill(job, 1);
        assert_int_equal(job_wait(job, 0), 0);
        job_free(job);
    }
}

/* ---- leaving ---- */

/* Rank 1 leaves while rank 0, which has not looked since, has bytes for it under way that are never read: rank 0 learns
 * by a write that fails, and only then reads the goodbye. */
static int leaves_unread(struct job_rank *rank, void *argument) {
    (void)argument;
    uint8_t *bytes = calloc(1, LONG_BYTES);
    struct p2p_request request;
    job_check(bytes != NULL);
    if (rank->rank == 1) {
        job_check(job_receive(rank, envelope(0, 1), bytes, 8) == 0);
        const struct p2p_envelope from = envelope(0, 2);
        job_check(p2p_receive(rank->p2p, &request, &from, bytes, LONG_BYTES, job_deadline()) == 0);
        while (job_moved(rank, &request) == 0) {
            (void)p2p_progress(rank->p2p);
        }
        struct p2p_request *list = &request;
        p2p_withdraw(rank->p2p, &list, 1);
        tell_of_death(rank, 2, "rank 2 was killed");
        free(bytes);
        return 0;
    }
    if (rank->rank == 0) {
        job_check(job_send(rank, envelope(1, 1), bytes, 8) == 0);
        job_check(job_send(rank, envelope(1, 2), bytes, LONG_BYTES) == MUSTER_EPEER);
        job_check(strstr(muster_detail(), "rank 1 has left"));
        for (uint32_t i = 0; i < atomic_load(&rank->notice_count); i++) {
            job_check(rank->notices[i].subject != 1);
        }
    }
    free(bytes);
    return 0;
}

static void who_left_is_not_taken_for_dead(void **state) {
    (void)state;
    for (uint32_t streams = 1; streams <= 4; streams += 3) {
        for (int i = 0; i < 5; i++) {
            job_run(3, leaves_unread, NULL, &(struct job_options){.stream_count = streams});
        }
    }
}

/* Does a frame that has begun still take its bytes from there? */
static bool is_written_from(struct p2p *p2p, uint32_t peer, const uint8_t *bytes, size_t count) {
    bool is = false;
    p2p_lock(p2p);
    const struct p2p_link *link = p2p->links[peer];
    for (size_t i = 0; i < P2P_STREAMS_MAX; i++) {
        const struct p2p_stream *stream = link->streams[i];
        is = is || (stream && stream->payload_left > 0 && stream->payload >= bytes && stream->payload < bytes + count);
    }
    p2p_unlock(p2p);
    return is;
}

/* Rank 1 says goodbye in the middle of a frame, which it never reads: then rank 0 has its memory back. */
static int leaves_within_a_frame(struct job_rank *rank, void *argument) {
    (void)argument;
    uint8_t *bytes = calloc(1, LONG_BYTES);
    struct p2p_request request, *list = &request;
    job_check(bytes != NULL);
    if (rank->rank == 0) {
        job_post_send(rank, &request, envelope(1, 1), bytes, LONG_BYTES);
        while (job_moved(rank, &request) <= P2P_EAGER_FAR_BYTES) {
            (void)p2p_progress(rank->p2p);
        }
        job_await(rank->job, READY, 1);
        while (!is_written_from(rank->p2p, 1, bytes, LONG_BYTES)) { /* until no more of it is taken in */
            (void)p2p_progress(rank->p2p);
        }
        job_mark(rank->job, SENT);
        job_check(job_wait_for(rank, &request) == MUSTER_EPEER);
        job_check(strstr(muster_detail(), "rank 1 has left"));
        job_check(!is_written_from(rank->p2p, 1, bytes, LONG_BYTES));
        job_mark(rank->job, DONE);
    } else {
        job_post_receive(rank, &request, envelope(0, 1), bytes, LONG_BYTES);
        while (job_moved(rank, &request) <= P2P_EAGER_FAR_BYTES) {
            (void)p2p_progress(rank->p2p);
        }
        job_mark(rank->job, READY);
        job_await(rank->job, SENT, 1);
        p2p_withdraw(rank->p2p, &list, 1);
        p2p_lock(rank->p2p);
        for (size_t i = 0; i < P2P_STREAMS_MAX; i++) {
            if (rank->p2p->links[0]->streams[i]) {
                stream_say_goodbye(rank->p2p, rank->p2p->links[0]->streams[i]);
            }
        }
        p2p_unlock(rank->p2p);
        job_await(rank->job, DONE, 1);
    }
    free(bytes);
    return 0;
}

static void who_wrote_to_a_leaver_has_the_memory_back(void **state) {
    (void)state;
    const struct job_options options[] = {{.stream_count = 1}, {.stream_count = 4}, {.ranks_per_host = 2}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        job_run(2, leaves_within_a_frame, NULL, &options[i]);
    }
}

/* Everybody watches the next, and leaves at once. */
static int leaves_while_connecting(struct job_rank *rank, void *argument) {
    uint32_t first = *(const uint32_t *)argument, next = (rank->rank + 1) % rank->size;
    uint32_t before = (rank->rank + rank->size - 1) % rank->size;
    job_check(p2p_watch(rank->p2p, next, job_deadline()) == 0);
    job_check(p2p_await_watches(rank->p2p, &rank->waiter, next, before, job_deadline()) == 0);
    if (rank->rank != first) {
        char byte = 0;
        struct p2p_request request;
        const struct p2p_envelope to = envelope(first, 1);
        if (rank->rank == next) { /* begins to connect, and leaves without waiting for that */
            int code = p2p_send(rank->p2p, &request, &to, &byte, 1, job_deadline());
            struct p2p_request *list = &request;
            if (code == 0) {
                p2p_withdraw(rank->p2p, &list, 1);
            }
        }
        job_mark(rank->job, READY);
        job_await(rank->job, READY, rank->size - 1);
    }
    for (uint32_t i = 0; i < atomic_load(&rank->notice_count); i++) {
        (void)fprintf(stderr, "rank %u was told: %s\n", rank->rank, rank->notices[i].sentence);
    }
    return (int)atomic_load(&rank->notice_count);
}

static void leaving_at_once_is_no_death(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 20; i++) {
        uint32_t first = i % 4;
        job_run(4, leaves_while_connecting, &first, NULL);
    }
}

static void begin_to_connect(struct job_rank *rank, uint32_t peer) {
    char byte = 0;
    struct p2p_request request, *list = &request;
    const struct p2p_envelope to = envelope(peer, 1);
    job_check(p2p_send(rank->p2p, &request, &to, &byte, 1, job_deadline()) == 0);
    p2p_withdraw(rank->p2p, &list, 1);
}

/* Rank 1 is not expected to send anything: it has left, and nobody is told of a death. */
static int needs_rank_1(struct job_rank *rank) {
    char byte = 0;
    job_check(job_receive(rank, envelope(1, 1), &byte, 1) == MUSTER_EPEER);
    job_check(strstr(muster_detail(), "rank 1 has left"));
    return (int)atomic_load(&rank->notice_count);
}

/* Rank 1 begins to connect to rank 0, which is stopped and cannot answer, and leaves. */
static int leaves_unanswered(struct job_rank *rank, void *argument) {
    (void)argument;
    if (rank->rank == 0) {
        job_mark(rank->job, READY);
        job_await(rank->job, DONE, 1); /* rank 1 has gone */
        return needs_rank_1(rank);
    }
    job_await(rank->job, SENT, 1); /* rank 0 is stopped */
    begin_to_connect(rank, 0);
    return 0;
}

static void who_leaves_unanswered_has_left(void **state) {
    (void)state;
    int status;
    for (int i = 0; i < 5; i++) {
        struct job *job = job_start(2, leaves_unanswered, NULL, NULL);
        job_await(job_shared(job), READY, 1);
        assert_int_equal(kill(job_pid(job, 0), SIGSTOP), 0);
        assert_int_equal(waitpid(job_pid(job, 0), &status, WUNTRACED), job_pid(job, 0));
        job_mark(job_shared(job), SENT);
        assert_int_equal(job_wait(job, 1), 0);
        assert_int_equal(kill(job_pid(job, 0), SIGCONT), 0);
        job_mark(job_shared(job), DONE);
        assert_int_equal(job_wait(job, 0), 0);
        job_free(job);
    }
}

/* The same while rank 0, too, begins to connect to rank 1, and gets no further, as if it were stopped: nobody else may
 * take its lock. By the rule its connection is the one that stays. */
static int leaves_while_called(struct job_rank *rank, void *argument) {
    (void)argument;
    if (rank->rank == 1) {
        job_await(rank->job, READY, 1);
        begin_to_connect(rank, 0);
        return 0;
    }
    struct p2p_link *link;
    p2p_lock(rank->p2p);
    job_check(link_open(rank->p2p, 1, job_deadline(), &link) == 0 && link->state == LINK_DIALLING);
    job_mark(rank->job, READY);
    job_await(rank->job, DONE, 1);
    p2p_unlock(rank->p2p);
    return needs_rank_1(rank);
}

static void who_leaves_while_it_is_called_has_left(void **state) {
    (void)state;
    for (int i = 0; i < 5; i++) {
        struct job *job = job_start(2, leaves_while_called, NULL, NULL);
        assert_int_equal(job_wait(job, 1), 0);
        job_mark(job_shared(job), DONE);
        assert_int_equal(job_wait(job, 0), 0);
        job_free(job);
    }
}

/* Rank 2 leaves because rank 1 has died; rank 0, which never had a connection to rank 2, needs it and cannot connect.
 * Rank 3 tells the reason a little later. */
static int needs_who_has_left(struct job_rank *rank, void *argument) {
    (void)argument;
    char byte = 0;
    if (rank->rank == 2) {
        job_await(rank->job, READY, 2); /* after which nobody listens at its address */
        return 0;
    }
    if (rank->rank == 3) {
        job_check(job_send(rank, envelope(0, 1), &byte, 1) == 0);
        job_mark(rank->job, READY);
        job_await(rank->job, GONE, 1);
        struct p2p_notice notice = {.kind = P2P_NOTICE_GROUP_FAILED,
                                    .subject = 7,
                                    .origin = 3,
                                    .code = MUSTER_EPEER,
                                    .sentence = "rank 1 was killed by signal 9"};
        p2p_spread(rank->p2p, &notice);
        job_await(rank->job, DONE, 1);
        return 0;
    }
    if (rank->rank == 0) {
        job_check(job_receive(rank, envelope(3, 1), &byte, 1) == 0);
        job_mark(rank->job, READY);
        job_await(rank->job, TOLD, 1); /* rank 2 has gone */
        struct p2p_request request, *list = &request;
        const struct p2p_envelope from = envelope(2, 1);
        int64_t begun_ns = clock_monotonic_ns();
        job_check(p2p_receive(rank->p2p, &request, &from, &byte, 1, job_deadline()) == 0);
        job_mark(rank->job, GONE);
        job_check(p2p_wait(rank->p2p, &rank->waiter, &list, 1, job_deadline()) == MUSTER_EPEER);
        bool is_told = strcmp(muster_detail(), "rank 1 was killed by signal 9") == 0;
        job_check(is_told || clock_monotonic_ns() - begun_ns >= P2P_EXPLAIN_MS * CLOCK_NS_PER_MS);
        job_mark(rank->job, DONE);
        return is_told ? 0 : NOT_TOLD;
    }
    return 0;
}

/* A machine so busy that rank 3 does not get to speak in time proves nothing: then once more. */
static void others_may_tell_why_nobody_answers(void **state) {
    (void)state;
    int told = NOT_TOLD;
    for (int attempt = 0; attempt < 20 && told == NOT_TOLD; attempt++) {
        struct job *job = job_start(4, needs_who_has_left, NULL, NULL);
        assert_int_equal(job_wait(job, 2), 0);
        job_mark(job_shared(job), TOLD);
        told = job_wait(job, 0);
        assert_int_equal(job_wait(job, 1), 0);
        assert_int_equal(job_wait(job, 3), 0);
        job_free(job);
    }
    if (told == NOT_TOLD) {
        skip(); /* rank 0 has waited as long as it should each time, and rank 3 never had the processor */
    }
    assert_int_equal(told, 0);
}

/* Rank 3 has no connection to anybody; rank 2, the first of its host, watches rank 0, which is killed. */
static int hears_from_neighbour(struct job_rank *rank, void *argument) {
    (void)argument;
    if (rank->rank == 2) {
        job_check(p2p_watch(rank->p2p, 0, job_deadline()) == 0);
        while (!is_watching_it(rank->p2p, 0)) {
            (void)p2p_progress(rank->p2p);
        }
    }
    job_mark(rank->job, READY);
    if (rank->rank < 2) {
        job_await(rank->job, DONE, 2); /* rank 0 is killed here */
        return 0;
    }
    int64_t deadline = job_deadline();
    while (atomic_load(&rank->notice_count) == 0) {
        (void)p2p_progress(rank->p2p);
        job_check(clock_monotonic_ns() < deadline);
    }
    job_check(rank->notices[0].subject == 0 && rank->notices[0].origin == 2);
    job_mark(rank->job, DONE);
    job_await(rank->job, DONE, 2);
    return 0;
}

static void neighbours_tell_each_other(void **state) {
    static const uint32_t pairs[] = {0, 0, 1, 1};
    (void)state;
    struct job *job =
        job_start(4, hears_from_neighbour, NULL, &(struct job_options){.ranks_per_host = 2, .host_of = pairs});
    job_await(job_shared(job), READY, 4);
    job_kill(job, 0);
    for (uint32_t rank = 1; rank < 4; rank++) {
        assert_int_equal(job_wait(job, rank), 0);
    }
    job_free(job);
}

/* With nobody to explain it, it is what it looks like. */
static int needs_who_has_gone(struct job_rank *rank, void *argument) {
    (void)argument;
    char byte;
    if (rank->rank == 0) {
        job_await(rank->job, TOLD, 1);
        job_check(job_receive(rank, envelope(1, 1), &byte, 1) == MUSTER_EPEER);
        job_check(strstr(muster_detail(), "rank 0 cannot connect to rank 1"));
        for (int64_t deadline_ns = job_deadline(); atomic_load(&rank->notice_count) == 0;) {
            job_check(clock_monotonic_ns() < deadline_ns); /* the attendant may be about to say it */
            (void)sched_yield();
        }
        job_check(atomic_load(&rank->notice_count) == 1 && rank->notices[0].subject == 1);
    }
    return 0;
}

static void who_cannot_be_reached_counts_as_dead_in_the_end(void **state) {
    (void)state;
    struct job *job = job_start(2, needs_who_has_gone, NULL, NULL);
    (void)job_port(job_shared(job), 1);
    assert_int_equal(job_wait(job, 1), 0);
    job_mark(job_shared(job), TOLD);
    assert_int_equal(job_wait(job, 0), 0);
    job_free(job);
}

/* ---- failing ---- */

/* More than may wait for a peer: the link fails, but not under the hands of who has more to say. */
static int says_too_much(struct job_rank *rank, void *argument) {
    (void)argument;
    char byte = 0;
    if (rank->rank == 0) {
        job_check(job_send(rank, envelope(1, 1), &byte, 1) == 0);
        p2p_lock(rank->p2p);
        struct p2p_stream *stream = rank->p2p->links[1]->streams[0];
        const struct wire_frame frame = {.kind = WIRE_CREDIT};
        for (size_t bytes = 0; bytes <= P2P_CONTROL_BYTES_MAX; bytes += WIRE_HEADER_BYTES) {
            stream_control(rank->p2p, stream, &frame, NULL);
        }
        job_check(stream->io && rank->p2p->links[1]->state == LINK_OPEN);
        p2p_unlock(rank->p2p);
        job_check(job_receive(rank, envelope(1, 2), &byte, 1) == MUSTER_ELIMIT);
        job_check(strstr(muster_detail(), "rank 1 takes nothing in"));
    } else {
        job_check(job_receive(rank, envelope(0, 1), &byte, 1) == 0);
        job_check(job_receive(rank, envelope(0, 2), &byte, 1) == MUSTER_EPEER);
    }
    return 0;
}

static void who_takes_nothing_in_is_given_up(void **state) {
    (void)state;
    job_run(2, says_too_much, NULL, NULL);
}

static ssize_t write_nothing(struct link *link, const struct iovec *parts, int part_count) {
    (void)link;
    (void)parts;
    (void)part_count;
    errno = EPROTO;
    return LINK_BROKEN;
}

/* Rank 0 begins another call than rank 1. It cannot be told so, since the ring is damaged, and what rank 1 has told of
 * other groups is read at that moment: more than the table of groups had room for. */
static int hears_of_groups_at_the_end(struct job_rank *rank, void *argument) {
    (void)argument;
    static struct link_kind broken;
    enum { CALL = 5, GROUPS = 40 };
    char byte = 0;
    struct p2p_envelope to = envelope(0, P2P_TAG(CALL, 0));
    if (rank->rank == 1) {
        job_check(job_send(rank, to, &byte, 1) == 0);
        job_await(rank->job, READY, 1);
        for (uint32_t i = 0; i < GROUPS; i++) {
            const struct p2p_notice notice = {.kind = P2P_NOTICE_GROUP_FAILED,
                                              .subject = to.group + 1 + i,
                                              .origin = 1,
                                              .code = MUSTER_EABORTED,
                                              .sentence = "aborted"};
            p2p_spread(rank->p2p, &notice);
        }
        job_mark(rank->job, SENT);
        job_await(rank->job, DONE, 1);
        return 0;
    }
    for (bool has_come = false; !has_come;) {
        (void)p2p_progress(rank->p2p);
        p2p_lock(rank->p2p);
        has_come = rank->p2p->links[1] && rank->p2p->links[1]->arrivals;
        p2p_unlock(rank->p2p);
    }
    job_mark(rank->job, READY);
    job_await(rank->job, SENT, 1);
    p2p_lock(rank->p2p);
    struct link *io = rank->p2p->links[1]->streams[0]->io;
    broken = *io->kind;
    broken.write = write_nothing;
    io->kind = &broken;
    p2p_unlock(rank->p2p);
    const struct p2p_group_info info = {.id = to.group, .name = "test"};
    job_check(p2p_begin_call(rank->p2p, &info, CALL, to.fingerprint + 1) == MUSTER_EMISMATCH);
    job_check(rank->p2p->links[1]->state == LINK_FAILED);
    job_mark(rank->job, DONE);
    return 0;
}

static void a_broken_ring_may_bring_news_of_groups(void **state) {
    (void)state;
    const struct job_options neighbours = {.ranks_per_host = 2};
    job_run(2, hears_of_groups_at_the_end, NULL, &neighbours);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_killed_rank_has_sent_arrives),
        cmocka_unit_test(who_left_is_not_taken_for_dead),
        cmocka_unit_test(who_wrote_to_a_leaver_has_the_memory_back),
        cmocka_unit_test(leaving_at_once_is_no_death),
        cmocka_unit_test(who_leaves_unanswered_has_left),
        cmocka_unit_test(who_leaves_while_it_is_called_has_left),
        cmocka_unit_test(others_may_tell_why_nobody_answers),
        cmocka_unit_test(neighbours_tell_each_other),
        cmocka_unit_test(who_cannot_be_reached_counts_as_dead_in_the_end),
        cmocka_unit_test(who_takes_nothing_in_is_given_up),
        cmocka_unit_test(a_broken_ring_may_bring_news_of_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
