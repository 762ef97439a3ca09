/* Messages that are read out of a neighbour's memory while the neighbour takes messages back: the one that was taken
 * back ends with the reason, and no other comes to harm. And offers of such messages that come in two parts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "comm/p2p/p2p_impl.h"
#include "comm/p2p/p2p_test_support.h"

enum { OFFERED, READ, TAKEN_BACK, SEEN, GROUP = 7, OTHER_GROUP };

#define BYTES ((size_t)9 << 20) /* several rounds of reading */

static const struct job_options neighbours = {.ranks_per_host = 2, .may_read_peers = true};

static struct p2p_envelope in_group(uint32_t group, uint32_t peer) {
    struct p2p_envelope envelope = job_envelope(peer, 1);
    envelope.group = group;
    return envelope;
}

static void copy_out(void *context, size_t offset, const void *data, size_t bytes) {
    memcpy((uint8_t *)context + offset, data, bytes);
}

static void fail_group(struct job_rank *rank, uint32_t group, const char *sentence) {
    struct p2p_notice notice = {
        .kind = P2P_NOTICE_GROUP_FAILED, .subject = group, .origin = rank->rank, .code = MUSTER_EPEER};
    (void)str_format(notice.sentence, sizeof notice.sentence, "%s", sentence);
    p2p_spread(rank->p2p, &notice);
}

/* Moves what can be moved until the receive is done, waits for bytes out of the ring, or has read some of the
 * neighbour's memory. */
static void move_until(struct job_rank *rank, const struct p2p_request *request, bool reading_will_do) {
    for (bool is_there = false; !is_there;) {
        (void)p2p_progress(rank->p2p);
        p2p_lock(rank->p2p);
        is_there = request->state == REQUEST_FILLING || request->state == REQUEST_DONE ||
                   (reading_will_do && request->moved > 0);
        p2p_unlock(rank->p2p);
    }
}

/* Offers a message in each of two groups, and takes back that of the first. */
static void offer_two(struct job_rank *rank) {
    uint8_t *first = calloc(1, BYTES), *second = calloc(1, BYTES);
    struct p2p_request requests[2], *taken_back = &requests[0];
    job_check(first && second);
    job_fill(second, BYTES, 2);
    job_post_send(rank, &requests[0], in_group(GROUP, 1), first, BYTES);
    job_post_send(rank, &requests[1], in_group(OTHER_GROUP, 1), second, BYTES);
    job_mark(rank->job, OFFERED);
    job_await(rank->job, READ, 1);
    p2p_withdraw(rank->p2p, &taken_back, 1);
    memset(first, 0xff, BYTES);
    job_mark(rank->job, TAKEN_BACK);
    job_check(job_wait_for(rank, &requests[1]) == 0);
    job_await(rank->job, SEEN, 1);
    fail_group(rank, GROUP, "rank 2 was killed");
    free(first);
    free(second);
}

/* Has begun to read the other message when the first one is taken back. */
static int takes_back(struct job_rank *rank, void *argument) {
    bool consumes = *(const bool *)argument;
    if (rank->rank == 0) {
        offer_two(rank);
        return 0;
    }
    uint8_t *first = calloc(1, BYTES), *second = calloc(1, BYTES);
    struct p2p_request requests[2];
    const struct p2p_envelope from = in_group(OTHER_GROUP, 0);
    job_check(first && second);
    job_await(rank->job, OFFERED, 1);
    job_check((consumes ? p2p_receive_consume(rank->p2p, &requests[1], &from, copy_out, second, BYTES, job_deadline())
                        : p2p_receive(rank->p2p, &requests[1], &from, second, BYTES, job_deadline())) == 0);
    move_until(rank, &requests[1], true);
    job_mark(rank->job, READ);
    job_await(rank->job, TAKEN_BACK, 1);
    job_check(job_wait_for(rank, &requests[1]) == 0);
    job_check(job_is_filled(second, BYTES, 2));
    job_post_receive(rank, &requests[0], in_group(GROUP, 0), first, BYTES);
    move_until(rank, &requests[0], false);
    job_mark(rank->job, SEEN);
    job_check(job_wait_for(rank, &requests[0]) == MUSTER_EPEER);
    job_check(strcmp(muster_detail(), "rank 2 was killed") == 0);
    free(first);
    free(second);
    return 0;
}

static void what_was_taken_back_ends_with_the_reason(void **state) {
    (void)state;
    for (int consumes = 0; consumes < 2; consumes++) {
        bool argument = consumes;
        job_run(2, takes_back, &argument, &neighbours);
    }
}

/* The offer is there, but was taken back by a rank that has left since. */
static int takes_back_and_leaves(struct job_rank *rank, void *argument) {
    (void)argument;
    uint8_t *bytes = calloc(1, BYTES);
    struct p2p_request request, *list = &request;
    job_check(bytes != NULL);
    if (rank->rank == 0) {
        job_post_send(rank, &request, in_group(GROUP, 1), bytes, BYTES);
        p2p_withdraw(rank->p2p, &list, 1);
    } else {
        for (bool has_left = false; !has_left;) {
            (void)p2p_progress(rank->p2p);
            p2p_lock(rank->p2p);
            has_left = rank->p2p->links[0] && rank->p2p->links[0]->state == LINK_LEFT;
            p2p_unlock(rank->p2p);
        }
        job_check(job_receive(rank, in_group(GROUP, 0), bytes, BYTES) == MUSTER_EPEER);
        job_check(strstr(muster_detail(), "rank 0 has left"));
    }
    free(bytes);
    return 0;
}

static void who_took_back_and_left_is_not_waited_for(void **state) {
    (void)state;
    job_run(2, takes_back_and_leaves, NULL, &neighbours);
}

/* ---- offers in two parts ---- */

/* More offers than the ring takes, behind a message of such a length that one is cut behind its header. */
enum { OFFER_BYTES = P2P_READ_MEMORY_BYTES, OFFERS = 1000, ODD_BYTES = 4096 + 24, ODD_TAG = OFFERS };

static struct p2p_stream *ring_to(struct job_rank *rank) {
    return rank->p2p->links[1 - rank->rank]->streams[0];
}

static struct p2p_request *cut_offer(struct job_rank *rank) {
    p2p_lock(rank->p2p);
    const struct p2p_stream *stream = ring_to(rank);
    struct p2p_request *request = stream->header_at > 0 ? stream->out_request : NULL;
    job_check(!request || (stream->header_at >= WIRE_HEADER_BYTES && stream->header_at < stream->header_bytes));
    p2p_unlock(rank->p2p);
    return request;
}

static void offer_many(struct job_rank *rank) {
    static struct p2p_request odd, requests[OFFERS];
    struct p2p_request *all[OFFERS], *cut;
    uint8_t *bytes = calloc(1, OFFER_BYTES);
    job_check(bytes != NULL);
    job_fill(bytes, OFFER_BYTES, 3);
    job_post_send(rank, &odd, job_envelope(1, ODD_TAG), bytes, ODD_BYTES);
    for (uint32_t i = 0; i < OFFERS; i++) {
        all[i] = &requests[i];
        job_post_send(rank, &requests[i], job_envelope(1, i), bytes, OFFER_BYTES);
    }
    while (!(cut = cut_offer(rank))) {
        (void)p2p_progress(rank->p2p);
    }
    job_mark(rank->job, OFFERED);
    job_await(rank->job, SEEN, 1);
    job_check(job_wait_for(rank, cut) == 0);
    p2p_withdraw(rank->p2p, all, OFFERS);
    free(bytes);
}

/* Posts the receive of a message whose offer has not come as a whole. */
static int posts_within_an_offer(struct job_rank *rank, void *argument) {
    (void)argument;
    if (rank->rank == 0) {
        offer_many(rank);
        return 0;
    }
    uint8_t *bytes = calloc(1, OFFER_BYTES);
    struct p2p_request request;
    uint64_t tag = ODD_TAG;
    job_check(bytes != NULL);
    job_await(rank->job, OFFERED, 1);
    while (tag == ODD_TAG) {
        (void)p2p_progress(rank->p2p);
        p2p_lock(rank->p2p);
        tag = ring_to(rank)->in_left > 0 && ring_to(rank)->in_arrival ? ring_to(rank)->in.tag : ODD_TAG;
        p2p_unlock(rank->p2p);
    }
    job_post_receive(rank, &request, job_envelope(0, tag), bytes, OFFER_BYTES);
    job_mark(rank->job, SEEN);
    job_check(job_wait_for(rank, &request) == 0);
    job_check(job_is_filled(bytes, OFFER_BYTES, 3));
    free(bytes);
    return 0;
}

static void half_an_offer_is_waited_for(void **state) {
    (void)state;
    job_run(2, posts_within_an_offer, NULL, &neighbours);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_taken_back_ends_with_the_reason),
        cmocka_unit_test(who_took_back_and_left_is_not_waited_for),
        cmocka_unit_test(half_an_offer_is_waited_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
