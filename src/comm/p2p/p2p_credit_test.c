/* What a receiver keeps of one sender that it has not asked for: a sender that has sent so much is held back, in one
 * lane alone, until it hears that there is room; see p2p_flow.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "comm/p2p/p2p_impl.h"
#include "comm/p2p/p2p_test_support.h"

static const struct job_options ways[] = {{.ranks_per_host = 0},
                                          {.stream_count = 4},
                                          {.ranks_per_host = JOB_RANKS_MAX},
                                          {.ranks_per_host = JOB_RANKS_MAX, .may_read_peers = true},
                                          {.as_threads = true},
                                          {.as_threads = true, .ranks_per_host = JOB_RANKS_MAX}};
enum { WAY_COUNT = sizeof ways / sizeof *ways };

static void run_all_ways(job_body *body) {
    for (size_t i = 0; i < WAY_COUNT; i++) {
        job_run(2, body, NULL, &ways[i]);
    }
}

enum { FLOOD = 60, FLOOD_BYTES = 60000 };

/* Rank 0 sends more than rank 1 keeps: it is held back, but the other lane is not. */
static int flood(struct job_rank *rank, void *argument) {
    (void)argument;
    static struct p2p_request static_requests[2][FLOOD]; /* per rank: threads share the process */
    struct p2p_request *requests = static_requests[rank->rank], *all[FLOOD];
    struct p2p_envelope side = job_envelope(1 - rank->rank, P2P_TAG(9, 9));
    side.lane = P2P_COLLECTIVES;
    uint8_t *buffers = malloc((size_t)FLOOD * FLOOD_BYTES), word[8] = "side";
    for (uint32_t i = 0; i < FLOOD; i++) {
        all[i] = &requests[i];
        if (rank->rank == 0) {
            job_fill(buffers + i * FLOOD_BYTES, FLOOD_BYTES, i);
            job_post_send(rank, &requests[i], job_envelope(1, 1), buffers + i * FLOOD_BYTES, FLOOD_BYTES);
        }
    }
    if (rank->rank == 0) {
        job_check(job_send(rank, side, word, sizeof word) == 0);
        job_await(rank->job, 0, 1); /* rank 1 has the side message, and none of the others */
        uint32_t done = 0;
        for (uint32_t i = 0; i < FLOOD; i++) {
            done += atomic_load(&requests[i].done);
        }
        job_check(done <= P2P_UNEXPECTED_BYTES_MAX / FLOOD_BYTES);
        job_mark(rank->job, 1);
        job_check(p2p_wait(rank->p2p, &rank->waiter, all, FLOOD, job_deadline()) == 0);
    } else {
        uint8_t got[8] = "";
        job_check(job_receive(rank, side, got, sizeof got) == 0 && memcmp(got, word, sizeof got) == 0);
        job_mark(rank->job, 0);
        job_await(rank->job, 1, 1);
        for (uint32_t i = 0; i < FLOOD; i++) {
            job_check(job_receive(rank, job_envelope(0, 1), buffers, FLOOD_BYTES) == 0 &&
                      job_is_filled(buffers, FLOOD_BYTES, i));
        }
    }
    free(buffers);
    return 0;
}

static void a_sender_is_held_back(void **state) {
    (void)state;
    run_all_ways(flood);
}

/* Messages that are short enough not to be read out of memory. Those that are asked for come before and after one that
 * fills the room that nobody has asked for, but for less than the next one needs. */
enum { UNASKED = 27, UNASKED_BYTES = 31000, BEFORE = 21, ASKED = 2 * BEFORE, ASKED_BYTES = 10000, SPARE_BYTES = 100 };
enum { SIDE_TAG = 1, MAIN_TAG = 2 };

static size_t last_unasked_bytes(void) {
    size_t used = (UNASKED - 1) * (UNASKED_BYTES + P2P_HEADER_COST) + BEFORE * (ASKED_BYTES + P2P_HEADER_COST);
    job_check(used + P2P_HEADER_COST + SPARE_BYTES + UNASKED_BYTES > P2P_UNEXPECTED_BYTES_MAX);
    return P2P_UNEXPECTED_BYTES_MAX - used - P2P_HEADER_COST - SPARE_BYTES;
}

/* Most of what rank 1 keeps is filled with what it does not ask for until the end. The messages that it takes
 * meanwhile are too few for word of them to be sent in any case; more of them follow. */
static void send_through(struct job_rank *rank, const uint8_t *bytes) {
    struct p2p_request requests[UNASKED + ASKED], *all[UNASKED + ASKED];
    uint32_t count = 0;
    for (; count < UNASKED + ASKED; count++) {
        bool is_last = count == UNASKED - 1 + BEFORE;
        bool is_asked = count >= UNASKED - 1 && !is_last;
        size_t length = is_asked ? ASKED_BYTES : is_last ? last_unasked_bytes() : UNASKED_BYTES;
        all[count] = &requests[count];
        job_post_send(rank, all[count], job_envelope(1, is_asked ? MAIN_TAG : SIDE_TAG), bytes, length);
    }
    job_check(p2p_wait(rank->p2p, &rank->waiter, all, count, job_deadline()) == 0);
}

static void take_through(struct job_rank *rank, uint8_t *bytes) {
    struct p2p_request requests[ASKED], *all[ASKED];
    for (uint32_t i = 0; i < ASKED; i++) {
        all[i] = &requests[i];
        job_post_receive(rank, all[i], job_envelope(0, MAIN_TAG), bytes, ASKED_BYTES);
    }
    job_check(p2p_wait(rank->p2p, &rank->waiter, all, ASKED, job_deadline()) == 0);
    for (uint32_t i = 0; i < UNASKED; i++) {
        job_check(job_receive(rank, job_envelope(0, SIDE_TAG), bytes, UNASKED_BYTES) == 0);
    }
}

static int fill_up(struct job_rank *rank, void *argument) {
    (void)argument;
    uint8_t *bytes = calloc(1, UNASKED_BYTES);
    job_check(bytes != NULL);
    if (rank->rank == 0) {
        send_through(rank, bytes);
    } else {
        take_through(rank, bytes);
    }
    free(bytes);
    return 0;
}

static void what_is_asked_for_passes_what_is_not(void **state) {
    (void)state;
    run_all_ways(fill_up);
}

/* ---- two ways to tell it ---- */

enum { FILLERS = 35, FILLER_BYTES = 30000, SHORTS = 8 };
enum { MARK_SHORTS_SENT, MARK_TAKING, MARK_ALL_TAKEN };
enum { TAG_OPEN, TAG_FILLER, TAG_SHORT, TAG_LAST_SHORT, TAG_AT_LAST };

static struct p2p_envelope beside(uint32_t peer) {
    struct p2p_envelope envelope = job_envelope(peer, P2P_TAG(9, 9));
    envelope.lane = P2P_COLLECTIVES;
    return envelope;
}

/* All that rank 1 keeps but for less than one message. */
static void fill_room(struct job_rank *rank, const uint8_t *bytes) {
    struct p2p_request requests[FILLERS], *all[FILLERS];
    size_t left = P2P_UNEXPECTED_BYTES_MAX - (FILLERS - 1) * (FILLER_BYTES + P2P_HEADER_COST);
    for (uint32_t i = 0; i < FILLERS; i++) {
        all[i] = &requests[i];
        job_post_send(rank, all[i], job_envelope(1, TAG_FILLER), bytes,
                      i < FILLERS - 1 ? FILLER_BYTES : left - P2P_HEADER_COST - SPARE_BYTES);
    }
    job_check(p2p_wait(rank->p2p, &rank->waiter, all, FILLERS, job_deadline()) == 0);
}

/* Rank 0 is just taking short messages: the last ones that it takes before it looks into the ring. */
static void hold_up(void *argument, size_t offset, const void *data, size_t bytes) {
    struct job_rank *rank = argument;
    (void)offset, (void)data, (void)bytes;
    job_mark(rank->job, MARK_TAKING);
    job_await(rank->job, MARK_ALL_TAKEN, 1);
}

static void hear_news_before_older(struct job_rank *rank, uint8_t *bytes) {
    const struct p2p_envelope last = job_envelope(1, TAG_LAST_SHORT);
    struct p2p_request request;
    fill_room(rank, bytes);
    job_check(p2p_receive_consume(rank->p2p, &request, &last, hold_up, rank, sizeof(uint32_t), job_deadline()) == 0);
    job_check(job_send(rank, beside(1), bytes, 1) == 0);
    job_await(rank->job, MARK_SHORTS_SENT, 1);
    job_check(job_wait_for(rank, &request) == 0);
    job_check(job_receive(rank, job_envelope(1, TAG_SHORT), bytes, sizeof(uint32_t)) == 0);
    (void)p2p_progress(rank->p2p); /* takes also the one that was sent meanwhile */
    job_check(job_send(rank, job_envelope(1, TAG_AT_LAST), bytes, 1) == 0);
}

static void send_short(struct job_rank *rank, const struct p2p_envelope *to) {
    uint32_t value = 0;
    int64_t now_ns;
    job_check(p2p_send_short(rank->p2p, to, &value, sizeof value, &now_ns));
}

/* One more goes short, which says that nothing has been taken. Then all is taken, and the ring says so. */
static void tell_two_ways(struct job_rank *rank, uint8_t *bytes) {
    const struct p2p_envelope early = job_envelope(0, TAG_SHORT), last = job_envelope(0, TAG_LAST_SHORT);
    job_check(job_receive(rank, beside(0), bytes, 1) == 0);
    for (uint32_t i = 1; i <= SHORTS; i++) {
        send_short(rank, i < SHORTS ? &early : &last);
    }
    job_mark(rank->job, MARK_SHORTS_SENT);
    job_await(rank->job, MARK_TAKING, 1);
    send_short(rank, &early);
    for (uint32_t i = 0; i < FILLERS; i++) {
        job_check(job_receive(rank, job_envelope(0, TAG_FILLER), bytes, FILLER_BYTES) == 0);
    }
    job_mark(rank->job, MARK_ALL_TAKEN);
    job_check(job_receive(rank, job_envelope(0, TAG_AT_LAST), bytes, 1) == 0);
}

static int credit_in_two_ways(struct job_rank *rank, void *argument) {
    (void)argument;
    struct p2p_envelope other = job_envelope(1 - rank->rank, TAG_OPEN);
    uint32_t value = 0;
    uint8_t *bytes = calloc(1, FILLER_BYTES);
    job_check(bytes != NULL);
    if (rank->rank == 0) {
        job_check(job_receive(rank, other, &value, sizeof value) == 0);
        hear_news_before_older(rank, bytes);
    } else {
        job_check(job_send(rank, other, &value, sizeof value) == 0);
        tell_two_ways(rank, bytes);
    }
    free(bytes);
    return 0;
}

static void older_credit_takes_nothing_back(void **state) {
    (void)state;
    for (size_t i = 0; i < WAY_COUNT; i++) {
        if (ways[i].ranks_per_host > 0) {
            job_run(2, credit_in_two_ways, NULL, &ways[i]);
        }
    }
}

/* What goes to another host at once: a message of up to that length is sent without waiting for its receiver, and no
 * longer one. */
static int goes_at_once(struct job_rank *rank, void *argument) {
    (void)argument;
    size_t longest = P2P_EAGER_FAR_BYTES;
    uint8_t *bytes = malloc(longest + 1);
    struct p2p_request request;
    job_check(bytes != NULL);
    if (rank->rank == 0) {
        job_fill(bytes, longest, 1);
        job_check(job_send(rank, job_envelope(1, 1), bytes, longest) == 0); /* rank 1 receives it later */
        job_fill(bytes, longest + 1, 2);
        job_post_send(rank, &request, job_envelope(1, 1), bytes, longest + 1);
        while (job_moved(rank, &request) < longest) {
            (void)p2p_progress(rank->p2p);
        }
        job_check(!atomic_load(&request.done));
        job_mark(rank->job, 0);
        job_check(job_wait_for(rank, &request) == 0);
    } else {
        job_await(rank->job, 0, 1);
        job_check(job_receive(rank, job_envelope(0, 1), bytes, longest) == 0 && job_is_filled(bytes, longest, 1));
        job_check(job_receive(rank, job_envelope(0, 1), bytes, longest + 1) == 0 &&
                  job_is_filled(bytes, longest + 1, 2));
    }
    free(bytes);
    return 0;
}

static void a_quarter_of_a_mebibyte_waits_for_nobody(void **state) {
    (void)state;
    static const struct job_options far[] = {{.ranks_per_host = 0}, {.stream_count = 4}, {.as_threads = true}};
    for (size_t i = 0; i < sizeof far / sizeof *far; i++) {
        job_run(2, goes_at_once, NULL, &far[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_quarter_of_a_mebibyte_waits_for_nobody),
        cmocka_unit_test(a_sender_is_held_back),
        cmocka_unit_test(what_is_asked_for_passes_what_is_not),
        cmocka_unit_test(older_credit_takes_nothing_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
