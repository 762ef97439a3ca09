/* Several endpoints: a world is told when all of it know of it, and what was proposed elsewhere before counts until it
 * is known to have failed. On a virtual clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "rendezvous/coordinator/coordinator_peers_test_support.h"

/* Node i was in round 1, of `size`, which the node of rank 0 has served, and which is dead. */
static struct peer *come_from(struct peers *f, size_t i, uint32_t size) {
    struct peer *peer = &f->list[i];
    peer->round = peer->node.known_round = 1;
    peer->node.last_world_size = size;
    peer->node.last_group_rank = (uint32_t)i;
    peer->node.last_host_rank = 0;
    peer->node.fate = COORDINATOR_DEAD;
    return peer;
}

/* And has heard of a world of place 2 that was to follow it. */
static struct coordinator_past *hear_of(struct peer *peer, uint32_t size, uint32_t rank, uint32_t base_count) {
    struct coordinator_past *past = &peer->node.pasts[peer->node.past_count++];
    *past = (struct coordinator_past){.round = 3,
                                      .size = size,
                                      .group_rank = rank,
                                      .host_rank = COORDINATOR_NO_RANK,
                                      .base_round = 1,
                                      .base_count = base_count};
    return past;
}

static void hear_world(struct peers *f, size_t first, size_t end, uint64_t round) {
    for (size_t i = first; i < end; i++) {
        peers_hear_world(f, i, round, (uint32_t)(i - first), (uint32_t)(end - first));
    }
    peers_hear_nothing(f);
}

/* All silences that anybody can be owed. */
static void wait_long(struct peers *f) {
    peers_pass_ms(f, 4 * (PEERS_SILENCE_MS + PEERS_STOP_MS) + PEERS_LAST_CALL_MS);
}

static void world_is_told_when_all_accept(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, 3, 0);
    f->list[1].is_mute = true;
    peers_join_many(f, 3);
    peers_pass_ms(f, PEERS_SILENCE_MS - 1);
    peers_hear_nothing(f);
    assert_int_equal(f->list[1].proposal.world.round, 1);
    assert_int_equal(f->list[1].proposal.world.size, 3);
    assert_int_equal(f->list[1].proposal.world.group_rank, 1);
    peers_accept(f, 1);
    hear_world(f, 0, 3, 1);
}

/* Who has accepted it in time may have gone meanwhile, and nobody has looked: this process stood still. */
static void proposal_of_long_ago_is_made_anew(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, 3, 0);
    f->list[1].is_mute = true;
    peers_join_many(f, 3);
    f->now_ms += PEERS_SILENCE_MS;
    peers_accept(f, 1);
    peers_hear_nothing(f);
    assert_int_equal(f->list[1].proposal.world.round, 4);
    peers_accept(f, 1);
    hear_world(f, 0, 3, 4);
}

static void who_is_lost_before_it_accepts_is_left_out(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 1, 3, 0);
    f->list[2].is_mute = true;
    peers_join_many(f, 3);
    peers_lose(f, 2);
    coordinator_note_others(f->coordinator, true, f->now_ms);
    wait_long(f);
    hear_world(f, 0, 2, 4); /* the next number of this place */
}

static void answer_to_an_older_proposal_counts_for_nothing(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, 4, 0);
    peers_join_many(f, 3);
    f->list[0].is_mute = true;
    peers_join(f, 3);
    assert_int_equal(f->list[0].proposal.world.round, 1);
    f->list[0].is_asked = false; /* it is not heard in time */
    peers_lose(f, 3);
    f->list[3].node.identity[0] = 9;
    peers_join(f, 3);
    assert_int_equal(f->list[0].proposal.world.round, 4);
    coordinator_accepted(f->coordinator, f->list[0].member, 1, f->now_ms);
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(f->list[i].heard_count, 0);
    }
    peers_accept(f, 0);
    hear_world(f, 0, 4, 4);
}

/* Three of five, but one of them may be counted in a world of five others. */
static void majority_of_what_was_proposed_is_needed_too(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, 8, 1);
    hear_of(come_from(f, 2, 5), 5, 1, 3);
    come_from(f, 3, 5);
    come_from(f, 4, 5);
    for (size_t i = 2; i < 5; i++) {
        peers_join(f, i);
    }
    wait_long(f);
    peers_hear_nothing(f);
    for (size_t i = 5; i < 7; i++) { /* newcomers who were to be in it */
        hear_of(&f->list[i], 5, (uint32_t)i - 3, 3);
        peers_join(f, i);
    }
    peers_pass_ms(f, 2 * PEERS_SILENCE_MS + PEERS_STOP_MS - 1);
    peers_hear_nothing(f);
    peers_pass_ms(f, 1);
    hear_world(f, 2, 7, 5);
}

/* Three of five, and two of them should have heard of it if it had been told. */
static void what_cannot_have_been_told_counts_for_nothing(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, 8, 1);
    hear_of(come_from(f, 2, 5), 6, 1, 4);
    come_from(f, 3, 5);
    peers_join(f, 2);
    peers_join(f, 3);
    wait_long(f);
    peers_hear_nothing(f);
    come_from(f, 4, 5);
    peers_join(f, 4);
    wait_long(f);
    hear_world(f, 2, 5, 5);
}

/* Node i was in round 1, and has heard of a round 3 of five that was to follow it. */
static struct peer *come_to_five(struct peers *f, size_t i, uint32_t rank) {
    struct peer *peer = come_from(f, i, 5);
    hear_of(peer, 5, rank, 4);
    return peer;
}

/* Of round 3 it was known that it had been proposed when a round 4, of nodes 1 to 3, was: which may have been told to
 * all but node 3, though it names round 1 as the first of those that it follows, and round 3 was told. */
static void what_follows_one_that_was_told_may_have_been_too(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, 8, 1);
    hear_of(come_to_five(f, 3, 2), 3, 2, 3)->round = 4;
    peers_join(f, 3);
    come_to_five(f, 4, 3);
    peers_join(f, 4);
    struct peer *told = &f->list[5];
    told->round = told->node.known_round = 3;
    told->node.last_world_size = 5;
    told->node.last_group_rank = 4;
    told->node.last_host_rank = COORDINATOR_NO_RANK;
    peers_join(f, 5);
    wait_long(f);
    peers_hear_nothing(f);
    for (size_t i = 1; i < 3; i++) { /* they have not: it had no majority of round 3 then */
        come_to_five(f, i, (uint32_t)i - 1);
        peers_join(f, i);
    }
    hear_world(f, 1, 6, 5);
}

/* Node 3 has heard of a round 7 that was proposed without a word of round 3, which was told. */
static void what_does_not_follow_one_that_was_told_counts_for_nothing(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, 8, 1);
    hear_of(come_from(f, 3, 5), 3, 0, 3)->round = 7;
    peers_join(f, 3);
    for (size_t i = 4; i < 6; i++) {
        struct peer *told = &f->list[i];
        told->round = told->node.known_round = 3;
        told->node.last_world_size = 2;
        told->node.last_group_rank = (uint32_t)i - 4;
        told->node.last_host_rank = COORDINATOR_NO_RANK;
        peers_join(f, i);
    }
    wait_long(f);
    hear_world(f, 3, 6, 8);
}

static void one_who_knows_that_it_was_told_decides(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 1, 8, 1);
    for (size_t i = 3; i < 5; i++) { /* two of five, who have accepted a world of three */
        hear_of(come_from(f, i, 5), 3, (uint32_t)i - 3, 2);
        peers_join(f, i);
    }
    wait_long(f);
    peers_hear_nothing(f);
    struct peer *peer = &f->list[5];
    peer->round = 3;
    peer->node.last_world_size = 3;
    peer->node.last_group_rank = 2;
    peer->node.last_host_rank = COORDINATOR_NO_RANK;
    peers_join(f, 5);
    hear_world(f, 3, 6, 5);
}

/* Of what this coordinator has proposed itself it knows what became of it. */
static void own_proposal_in_vain_counts_for_nothing(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, 3, 2);
    for (size_t i = 0; i < 3; i++) {
        come_from(f, i, 3);
        f->list[i].is_mute = i == 2;
        peers_join(f, i);
    }
    assert_int_equal(f->list[1].proposal.world.round, 3);
    peers_lose(f, 2);
    peers_lose(f, 1);
    f->list[1].node.pasts[0] = f->list[1].proposal.world;
    f->list[1].node.past_count = 1;
    peers_join(f, 1);
    wait_long(f);
    hear_world(f, 0, 2, 6); /* two of the three of round 1; of the proposal, too, but nobody asks */
}

/* Place 2 was served by two processes, one after the other, and both have proposed a round 3: the first one reached
 * node 4 alone; the second one has told its own, to nodes 1 to 3, of which 2 and 3 go on there. */
static void round_of_a_process_before_is_another_world(void **state) {
    struct peers *f = *state;
    for (int is_told_first = 0; is_told_first < 2; is_told_first++) {
        peers_begin_place(f, 1, 8, 1);
        hear_of(come_from(f, 4, 5), 4, 3, 4)->author = 6;
        struct peer *told = &f->list[1];
        told->round = told->node.known_round = 3;
        told->author = 7;
        told->node.last_world_size = 3;
        told->node.last_host_rank = COORDINATOR_NO_RANK;
        peers_join(f, is_told_first ? 1 : 4);
        peers_join(f, is_told_first ? 4 : 1);
        wait_long(f);
        peers_hear_nothing(f);
    }
}

/* This coordinator has proposed a round 3 in vain, and the process before it had told one, whose members come now. */
static void world_of_a_process_before_is_not_taken_for_its_own(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, 3, 2);
    f->list[5].is_mute = true;
    peers_join(f, 4);
    peers_join(f, 5);
    wait_long(f);
    assert_int_equal(f->list[5].proposal.world.round, 3);
    assert_true(f->list[5].proposal.world.author == PEERS_AUTHOR);
    peers_lose(f, 5);
    for (size_t i = 1; i < 4; i++) {
        struct peer *peer = &f->list[i];
        peer->round = peer->node.known_round = 3;
        peer->author = PEERS_AUTHOR + 1;
        peer->node.last_world_size = 3;
        peer->node.last_group_rank = (uint32_t)i - 1;
        peer->node.last_host_rank = COORDINATOR_NO_RANK;
        peers_join(f, i);
    }
    peers_hear(f, 4, COORDINATOR_SPARE); /* their places are theirs */
    hear_world(f, 1, 4, 6);
}

static void worlds_that_do_not_fit_stop_the_job_in_words(void **state) {
    struct peers *f = *state;
    char text[COORDINATOR_TEXT_BYTES_MAX];
    peers_begin_place(f, 1, 3, 1);
    struct peer *peer = come_from(f, 0, 3);
    for (uint64_t i = 0; i + 1 < COORDINATOR_PASTS_MAX; i++) {
        hear_of(peer, 3, 0, 3)->round += 2 * i;
    }
    come_from(f, 1, 3);
    peers_join(f, 0);
    peers_join(f, 1);
    wait_long(f);
    peers_hear_nothing(f);
    assert_non_null(strstr((const char *)coordinator_waits_for(f->coordinator, f->now_ms, text).data,
                           "more than 5 worlds before may have been told"));
}

/* Six worlds, of which the last did not fit; then it turns out that the second one was told. */
static void world_that_did_not_fit_is_not_forgotten(void **state) {
    struct peers *f = *state;
    char text[COORDINATOR_TEXT_BYTES_MAX];
    peers_begin_place(f, 1, 4, 1);
    for (uint64_t round = 1; round <= 11; round += 2) {
        struct coordinator_past *past = hear_of(&f->list[0], 2, 0, 2);
        past->round = round;
        past->base_round = round > 1;
        past->is_confirmed = round == 1;
    }
    f->list[0].node.pasts[5].size = 5;
    peers_join(f, 0);
    struct peer *peer = come_from(f, 1, 2);
    peer->round = 3;
    peer->node.last_host_rank = COORDINATOR_NO_RANK;
    for (size_t i = 0; i < 3; i++) { /* it has heard of the others between, and has a part in them */
        peer->node.pasts[i] = f->list[0].node.pasts[i + 2];
        peer->node.pasts[i].group_rank = 1;
    }
    peer->node.past_count = 3;
    peers_join(f, 1);
    wait_long(f);
    peers_hear_nothing(f);
    assert_non_null(strstr((const char *)coordinator_waits_for(f->coordinator, f->now_ms, text).data,
                           "more than 5 worlds before may have been told"));
}

/* Those that do not fit are over when one that was told later becomes known. */
static void later_world_makes_room(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 1, 3, 1);
    struct peer *peer = come_from(f, 0, 3);
    for (uint64_t i = 0; i + 1 < COORDINATOR_PASTS_MAX; i++) {
        hear_of(peer, 3, 0, 3)->round += 2 * i;
    }
    peers_join(f, 0);
    for (size_t i = 1; i < 3; i++) {
        peer = come_from(f, i, 2);
        peer->round = 12;
        peer->node.last_group_rank = (uint32_t)i - 1;
        peer->node.last_host_rank = COORDINATOR_NO_RANK;
        peers_join(f, i);
    }
    wait_long(f);
    hear_world(f, 0, 3, 14);
}

/* Its process has ended by now; when, and what it has told before, nobody knows. */
static void host_that_has_gone_later_is_no_vote_less(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 1, 3, 1);
    come_from(f, 1, 2)->node.fate = COORDINATOR_GONE;
    peers_join(f, 1);
    wait_long(f);
    peers_hear_nothing(f);
    peers_join(f, 2);
    peers_join(f, 3); /* all nodes that there can be */
    hear_world(f, 1, 4, 2);
}

static void done_node_counts_until_it_has_gone(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 1, 4, 0);
    peers_join_many(f, 4);
    hear_world(f, 0, 4, 1);
    peers_done(f, 0);
    peers_lose(f, 3);
    for (size_t i = 0; i < 3; i++) {
        peers_hear(f, i, COORDINATOR_CHANGE);
    }
    peers_lose(f, 2);
    peers_join(f, 1);
    wait_long(f);
    peers_hear_nothing(f); /* one of four; two may be elsewhere, and so may be the one that was done */
    peers_leave(f, 0, "it was done");
    peers_hear_nothing(f);
    f->list[2].round = 1;
    f->list[2].node.last_world_size = 4;
    f->list[2].node.last_group_rank = 2;
    f->list[2].node.last_host_rank = COORDINATOR_NO_RANK;
    peers_join(f, 2);
    hear_world(f, 1, 3, 4);
}

/* Done nodes take no part, but have to know before those who do are at work. */
static void witness_has_to_accept(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 1, 3, 1);
    come_from(f, 1, 3)->node.is_done = true;
    come_from(f, 2, 3)->node.fate = COORDINATOR_SILENT;
    f->list[1].node.fate = COORDINATOR_SILENT;
    f->list[1].is_mute = true;
    peers_join(f, 1);
    peers_join(f, 2);
    wait_long(f);
    peers_hear_nothing(f);
    assert_true(f->list[1].proposal.world.group_rank == COORDINATOR_NO_RANK);
    peers_accept(f, 1);
    peers_hear(f, 1, COORDINATOR_CHANGE);
    peers_hear_world(f, 2, 2, 0, 1);
}

/* What was proposed as the first world may not have been the only one. */
static void first_world_is_not_made_of_one_that_was_proposed(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 1, 5, 1);
    for (size_t i = 0; i < 3; i++) {
        struct coordinator_past *past = hear_of(&f->list[i], 5, (uint32_t)i, 0);
        past->base_round = 0;
        peers_join(f, i);
    }
    wait_long(f);
    peers_hear_nothing(f);
    coordinator_note_others(f->coordinator, true, f->now_ms);
    wait_long(f);
    hear_world(f, 0, 3, 5);
}

static void answer_from_before_a_loss_is_too_old(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 1, 5, 1);
    peers_join_many(f, 2);
    coordinator_note_others(f->coordinator, true, f->now_ms);
    peers_lose(f, 1); /* to another endpoint, perhaps */
    assert_int_equal(peers_look(f).lost_count, 1);
    wait_long(f);
    peers_hear_nothing(f);
    coordinator_note_others(f->coordinator, true, f->now_ms);
    wait_long(f);
    hear_world(f, 0, 1, 2);
}

static void lost_node_may_work_for_a_while(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, 3, 0);
    peers_join_many(f, 3);
    hear_world(f, 0, 3, 1);
    coordinator_works_until(f->list[2].member, f->now_ms + 700);
    peers_lose(f, 2);
    peers_hear(f, 0, COORDINATOR_CHANGE);
    peers_hear(f, 1, COORDINATOR_CHANGE);
    peers_join_many(f, 2);
    assert_int_equal(coordinator_wake_ms(f->coordinator), f->now_ms + 700);
    peers_pass_ms(f, 699);
    peers_hear_nothing(f);
    peers_pass_ms(f, 1);
    hear_world(f, 0, 2, 4);
}

/* Agents count on it when the coordinator dies: its node has not gone to another one then. */
static void host_is_here_or_has_ended(void **state) {
    struct peers *f = *state;
    for (int ends = 0; ends < 2; ends++) {
        peers_begin_place(f, 2, 3, 0);
        f->list[1].node.is_host = true;
        assert_false(coordinator_has_host(f->coordinator));
        peers_join_many(f, 3);
        assert_true(coordinator_has_host(f->coordinator));
        if (ends) {
            coordinator_never_returns(f->list[1].member);
        }
        peers_lose(f, 1);
        assert_int_equal(coordinator_has_host(f->coordinator), ends);
    }
}

#define PROPOSAL_TEST(name) cmocka_unit_test_setup_teardown(name, peers_setup, peers_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        PROPOSAL_TEST(world_is_told_when_all_accept),
        PROPOSAL_TEST(proposal_of_long_ago_is_made_anew),
        PROPOSAL_TEST(who_is_lost_before_it_accepts_is_left_out),
        PROPOSAL_TEST(answer_to_an_older_proposal_counts_for_nothing),
        PROPOSAL_TEST(majority_of_what_was_proposed_is_needed_too),
        PROPOSAL_TEST(what_cannot_have_been_told_counts_for_nothing),
        PROPOSAL_TEST(what_follows_one_that_was_told_may_have_been_too),
        PROPOSAL_TEST(what_does_not_follow_one_that_was_told_counts_for_nothing),
        PROPOSAL_TEST(one_who_knows_that_it_was_told_decides),
        PROPOSAL_TEST(own_proposal_in_vain_counts_for_nothing),
        PROPOSAL_TEST(round_of_a_process_before_is_another_world),
        PROPOSAL_TEST(world_of_a_process_before_is_not_taken_for_its_own),
        PROPOSAL_TEST(worlds_that_do_not_fit_stop_the_job_in_words),
        PROPOSAL_TEST(world_that_did_not_fit_is_not_forgotten),
        PROPOSAL_TEST(later_world_makes_room),
        PROPOSAL_TEST(host_that_has_gone_later_is_no_vote_less),
        PROPOSAL_TEST(done_node_counts_until_it_has_gone),
        PROPOSAL_TEST(witness_has_to_accept),
        PROPOSAL_TEST(first_world_is_not_made_of_one_that_was_proposed),
        PROPOSAL_TEST(answer_from_before_a_loss_is_too_old),
        PROPOSAL_TEST(lost_node_may_work_for_a_while),
        PROPOSAL_TEST(host_is_here_or_has_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
