/* Several endpoints: who may form which world after a coordinator's death or silence, on a virtual clock. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "rendezvous/coordinator/coordinator_peers_test_support.h"

/* Node i, of a world of `size` that the node of rank 0 has served, comes from there. */
static void come_from(struct peers *f, size_t i, uint64_t round, uint32_t size, enum coordinator_fate fate) {
    struct peer *peer = &f->list[i];
    peer->round = peer->node.known_round = round;
    peer->node.last_world_size = size;
    peer->node.last_group_rank = (uint32_t)i;
    peer->node.last_host_rank = 0;
    peer->node.fate = fate;
    peers_join(f, i);
}

static void hear_world(struct peers *f, size_t first, size_t end, uint64_t round) {
    for (size_t i = first; i < end; i++) {
        peers_hear_world(f, i, round, (uint32_t)(i - first), (uint32_t)(end - first));
    }
    peers_hear_nothing(f);
}

static void survivors_of_a_dead_host_meet_at_once(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, 4, 1);
    come_from(f, 1, 4, 4, COORDINATOR_DEAD);
    come_from(f, 2, 4, 4, COORDINATOR_DEAD);
    peers_hear_nothing(f);
    come_from(f, 3, 4, 4, COORDINATOR_DEAD);
    hear_world(f, 1, 4, 5); /* the next number that is the second place's of three */
}

static void missing_survivors_get_time_to_stop(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, 4, 1);
    come_from(f, 1, 4, 4, COORDINATOR_DEAD);
    come_from(f, 2, 4, 4, COORDINATOR_DEAD);
    assert_int_equal(coordinator_wake_ms(f->coordinator), f->now_ms + PEERS_SILENCE_MS + PEERS_STOP_MS);
    peers_pass_ms(f, PEERS_SILENCE_MS + PEERS_STOP_MS - 1);
    peers_hear_nothing(f);
    peers_pass_ms(f, 1);
    hear_world(f, 1, 3, 5);
}

static void survivors_of_a_silent_host_wait_for_it_to_stop(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, 3, 1);
    come_from(f, 1, 1, 3, COORDINATOR_SILENT);
    come_from(f, 2, 1, 3, COORDINATOR_SILENT);
    peers_pass_ms(f, PEERS_SILENCE_MS + PEERS_STOP_MS - 1);
    peers_hear_nothing(f);
    peers_pass_ms(f, 1);
    hear_world(f, 1, 3, 2);
}

static void host_that_turns_out_dead_is_not_waited_for(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, 3, 1);
    come_from(f, 1, 1, 3, COORDINATOR_SILENT);
    come_from(f, 2, 1, 3, COORDINATOR_SILENT);
    peers_hear_nothing(f);
    come_from(f, 1, 1, 3, COORDINATOR_DEAD);
    hear_world(f, 1, 3, 2);
}

static void silent_host_and_silent_others_take_two_silences(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, 5, 1);
    for (size_t i = 1; i < 4; i++) {
        come_from(f, i, 1, 5, COORDINATOR_SILENT);
    }
    peers_pass_ms(f, 2 * PEERS_SILENCE_MS + PEERS_STOP_MS - 1);
    peers_hear_nothing(f);
    peers_pass_ms(f, 1);
    hear_world(f, 1, 4, 2);
}

static void minority_waits_until_others_come(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 1, 5, 2);
    come_from(f, 3, 1, 5, COORDINATOR_SILENT);
    come_from(f, 4, 1, 5, COORDINATOR_SILENT);
    peers_pass_ms(f, 10 * PEERS_SILENCE_MS);
    peers_hear_nothing(f);
    assert_int_equal(coordinator_wake_ms(f->coordinator), INT64_MAX); /* and does not look again and again */
    come_from(f, 2, 1, 5, COORDINATOR_SILENT);
    peers_pass_ms(f, 2 * PEERS_SILENCE_MS + PEERS_STOP_MS - 1);
    peers_hear_nothing(f);
    peers_pass_ms(f, 1);
    hear_world(f, 2, 5, 3);
}

static void half_with_the_lowest_rank_goes_on(void **state) {
    struct peers *f = *state;
    for (uint32_t first = 0; first <= 2; first += 2) {
        peers_begin_place(f, 1, 4, 2);
        come_from(f, first, 1, 4, COORDINATOR_SILENT);
        come_from(f, first + 1, 1, 4, COORDINATOR_SILENT);
        peers_pass_ms(f, 3 * PEERS_SILENCE_MS);
        if (first == 0) {
            hear_world(f, 0, 2, 3);
        } else {
            peers_hear_nothing(f);
        }
    }
}

static void last_of_two_goes_on_when_the_other_is_dead(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 1, 2, 1);
    come_from(f, 1, 1, 2, COORDINATOR_SILENT);
    peers_pass_ms(f, 10 * PEERS_SILENCE_MS);
    peers_hear_nothing(f);
    come_from(f, 1, 1, 2, COORDINATOR_DEAD);
    hear_world(f, 1, 2, 2);
}

/* One of three and a newcomer, of a job that takes two to three: nobody elsewhere can be a world. */
static void minimum_that_excludes_others_needs_no_majority(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, 3, 1);
    come_from(f, 2, 1, 3, COORDINATOR_SILENT);
    peers_join(f, 1);
    peers_hear(f, 1, COORDINATOR_SPARE); /* for now: members of the last world have places kept for them */
    peers_hear_nothing(f);
    peers_pass_ms(f, 2 * PEERS_SILENCE_MS + PEERS_STOP_MS);
    peers_hear(f, 1, COORDINATOR_LET_IN);
    hear_world(f, 1, 3, 2);
}

/* Two of five and newcomers: whoever is elsewhere can know that others have died, and go on, however few. */
static void few_elsewhere_may_be_a_majority(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 1, 5, 1);
    come_from(f, 2, 1, 5, COORDINATOR_SILENT);
    come_from(f, 4, 1, 5, COORDINATOR_SILENT);
    peers_join(f, 5);
    peers_join(f, 6);
    peers_pass_ms(f, 10 * PEERS_SILENCE_MS);
    for (size_t i = 5; i < 7; i++) {
        f->list[i].looked_at = f->list[i].heard_count; /* SPARE, LET_IN */
    }
    peers_hear_nothing(f);
    peers_join(f, 7); /* all that there can be */
    f->list[7].looked_at = f->list[7].heard_count - 1;
    peers_hear_world(f, 7, 2, 4, 5);
}

/* A node that was cut off alone, and was done: the others may have to fail over to here later. */
static void done_node_alone_does_not_end_the_job(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 1, 3, 1);
    f->list[1].node.is_done = true;
    come_from(f, 1, 1, 3, COORDINATOR_SILENT);
    peers_pass_ms(f, 10 * PEERS_SILENCE_MS);
    peers_hear(f, 1, COORDINATOR_ALL_DONE);
    assert_int_equal(peers_look(f).phase, COORDINATOR_FORMING);
    peers_leave(f, 1, "");
    come_from(f, 0, 4, 2, COORDINATOR_DEAD);
    come_from(f, 2, 4, 2, COORDINATOR_DEAD);
    assert_non_null(f->list[2].member);
}

static void newcomers_make_room_for_members(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, 2, 1);
    f->list[4].node.known_round = 1; /* spares of the coordinator that has died */
    f->list[5].node.known_round = 1;
    peers_join(f, 4);
    come_from(f, 1, 1, 3, COORDINATOR_DEAD);
    peers_hear(f, 4, COORDINATOR_SPARE);
    peers_join(f, 5);
    peers_hear(f, 5, COORDINATOR_SPARE);
    come_from(f, 2, 1, 3, COORDINATOR_DEAD);
    hear_world(f, 1, 3, 2);
}

static void first_world_needs_to_know_the_other_endpoints(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 1, 4, 1);
    peers_join(f, 0);
    peers_join(f, 1);
    peers_pass_ms(f, PEERS_LAST_CALL_MS + 2 * PEERS_SILENCE_MS + PEERS_STOP_MS);
    peers_hear_nothing(f);
    coordinator_note_others(f->coordinator, true, f->now_ms);
    peers_pass_ms(f, 2 * PEERS_SILENCE_MS + PEERS_STOP_MS - 1);
    peers_hear_nothing(f); /* one may have served until now */
    peers_pass_ms(f, 1);
    hear_world(f, 0, 2, 2);
}

/* Two of four might have been a world before, of which one dies, and comes back as somebody new. */
static void first_world_of_some_gives_others_time_to_stop(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 1, 4, 1);
    peers_join(f, 0);
    peers_join(f, 1);
    coordinator_note_others(f->coordinator, true, f->now_ms);
    peers_pass_ms(f, PEERS_SILENCE_MS);
    peers_join(f, 2); /* the process before it may have been one of them */
    peers_pass_ms(f, 2 * PEERS_SILENCE_MS + PEERS_STOP_MS - 1);
    peers_hear_nothing(f);
    peers_pass_ms(f, 1);
    hear_world(f, 0, 3, 2);
}

/* The process of node i ends, */
static void end(struct peers *f, size_t i) {
    coordinator_never_returns(f->list[i].member);
    peers_lose(f, i);
}

/* and another one comes from the same machine. */
static void begin_anew(struct peers *f, size_t i) {
    f->list[i].node.identity[0] += PEERS;
    peers_join(f, i);
}

/* Nobody of it is left who could be in another world. */
static void world_whose_nodes_have_all_ended_is_followed(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 1, 4, 0);
    peers_join(f, 0);
    peers_join(f, 1);
    coordinator_note_others(f->coordinator, true, f->now_ms);
    peers_pass_ms(f, 2 * PEERS_SILENCE_MS + PEERS_STOP_MS);
    hear_world(f, 0, 2, 1);
    peers_join(f, 2);
    for (size_t i = 0; i < 2; i++) {
        peers_hear(f, i, COORDINATOR_CHANGE);
        end(f, i);
    }
    peers_hear_nothing(f);
    peers_pass_ms(f, PEERS_LAST_CALL_MS);
    peers_hear_world(f, 2, 4, 0, 1);
}

/* Its host is dead, and the others have come and ended. */
static void world_whose_host_is_dead_and_the_others_have_ended_is_followed(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 3, 8, 2);
    peers_join(f, 3);
    for (size_t i = 1; i < 3; i++) {
        come_from(f, i, 1, 3, COORDINATOR_DEAD);
        end(f, i);
    }
    peers_join(f, 4);
    peers_join(f, 5);
    coordinator_note_others(f->coordinator, true, f->now_ms);
    peers_pass_ms(f, 2 * PEERS_SILENCE_MS + PEERS_STOP_MS);
    peers_pass_ms(f, PEERS_LAST_CALL_MS);
    hear_world(f, 3, 6, 3);
}

/* Nobody has told what a dead host that was alone knew, and newcomers may be at several places. */
static void world_of_a_dead_host_alone_is_not_followed_by_others(void **state) {
    struct peers *f = *state;
    const struct coordinator_past alone = {.round = 1,
                                           .size = 1,
                                           .group_rank = COORDINATOR_NO_RANK,
                                           .host_rank = 0,
                                           .fate = COORDINATOR_DEAD,
                                           .is_confirmed = true};
    peers_begin_place(f, 1, 8, 2);
    f->list[3].node.pasts[0] = alone;
    f->list[3].node.past_count = 1;
    peers_join(f, 3);
    peers_join(f, 4);
    coordinator_note_others(f->coordinator, true, f->now_ms);
    peers_pass_ms(f, 10 * PEERS_SILENCE_MS);
    peers_hear_nothing(f);
}

/* It has been here since its first process came. */
static void node_that_comes_again_and_again_delays_nobody(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 1, 4, 1);
    peers_join(f, 0);
    peers_join(f, 1);
    coordinator_note_others(f->coordinator, true, f->now_ms);
    for (size_t i = 0; i < 6; i++) {
        end(f, 1);
        peers_pass_ms(f, 1000);
        begin_anew(f, 1);
        peers_pass_ms(f, 4000);
    }
    peers_pass_ms(f, 2 * PEERS_SILENCE_MS + PEERS_STOP_MS - 6 * 5000 - 1);
    peers_hear_nothing(f);
    peers_pass_ms(f, 1);
    hear_world(f, 0, 2, 2);
}

/* It may have been somewhere else meanwhile, or there are two on that machine. */
static void node_that_was_not_here_just_now_delays_all(void **state) {
    struct peers *f = *state;
    enum { IS_ANOTHER, IS_LATE, WAS_UNKNOWN, IS_UNKNOWN, CASES };
    for (int what = 0; what < CASES; what++) { /* where two cannot be a world elsewhere, it needs not be known */
        peers_begin_place(f, what == IS_UNKNOWN ? 2 : 1, what == IS_UNKNOWN ? 3 : 4, 1);
        peers_join(f, 0);
        peers_join(f, 1);
        coordinator_note_others(f->coordinator, what != IS_UNKNOWN, f->now_ms);
        peers_pass_ms(f, PEERS_STOP_MS);
        end(f, 1);
        peers_pass_ms(f, what == IS_LATE ? PEERS_SILENCE_MS + 1 : 1000);
        if (what == WAS_UNKNOWN) { /* whether somebody serves elsewhere */
            coordinator_note_others(f->coordinator, false, f->now_ms);
            coordinator_note_others(f->coordinator, true, f->now_ms);
            peers_pass_ms(f, 1000);
        }
        begin_anew(f, 1);
        if (what == IS_ANOTHER) {
            peers_pass_ms(f, 1000);
            f->list[2].node.addr = f->list[1].node.addr;
            f->list[2].node.pid = 8;
            peers_join(f, 2);
        }
        peers_pass_ms(f, 2 * PEERS_SILENCE_MS + PEERS_STOP_MS - 1);
        peers_hear_nothing(f);
        peers_pass_ms(f, 1);
        hear_world(f, 0, what == IS_ANOTHER ? 3 : 2, 2);
    }
}

/* Nobody of that world has come, but somebody has heard of it. */
static void first_world_of_all_waits_if_there_was_one(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 3, 3, 1);
    f->list[1].node.known_round = 4;
    peers_join_many(f, 3);
    peers_pass_ms(f, 2 * PEERS_SILENCE_MS + PEERS_STOP_MS - 1);
    peers_hear_nothing(f);
    peers_pass_ms(f, 1);
    hear_world(f, 0, 3, 5);
}

/* The last who came may have been counted elsewhere until then; so may those with whom it was. */
static void each_survivor_gives_others_time_anew(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 2, 4, 1);
    come_from(f, 1, 1, 4, COORDINATOR_SILENT);
    peers_pass_ms(f, 2 * PEERS_SILENCE_MS + PEERS_STOP_MS);
    come_from(f, 2, 1, 4, COORDINATOR_SILENT);
    come_from(f, 3, 1, 4, COORDINATOR_SILENT);
    peers_pass_ms(f, PEERS_SILENCE_MS + PEERS_STOP_MS - 1);
    peers_hear_nothing(f);
    peers_pass_ms(f, 1);
    hear_world(f, 1, 4, 2);
}

static void first_world_of_all_needs_nobody(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 4, 4, 0);
    peers_join_many(f, 4);
    hear_world(f, 0, 4, 1);
}

static void done_nodes_hear_how_it_ends(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 1, 3, 1);
    f->list[1].node.is_done = true;
    come_from(f, 1, 1, 3, COORDINATOR_DEAD);
    peers_hear_nothing(f); /* rank 2 may be at work still */
    f->list[2].node.is_done = true;
    come_from(f, 2, 1, 3, COORDINATOR_DEAD);
    peers_hear(f, 1, COORDINATOR_ALL_DONE);
    peers_hear(f, 2, COORDINATOR_ALL_DONE);
    assert_int_equal(peers_look(f).phase, COORDINATOR_OVER);
}

static void done_nodes_go_when_the_others_go_on(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 1, 3, 1);
    f->list[1].node.is_done = true;
    come_from(f, 1, 1, 3, COORDINATOR_DEAD);
    come_from(f, 2, 1, 3, COORDINATOR_DEAD);
    peers_hear(f, 1, COORDINATOR_CHANGE);
    peers_hear_world(f, 2, 2, 0, 1);
    peers_hear_nothing(f);
}

/* Three of four can still form a round; one of them may have died with the host. */
static void done_node_that_comes_again_counts_once(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 3, 4, 1);
    come_from(f, 2, 1, 4, COORDINATOR_DEAD);
    f->list[1].node.is_done = true;
    come_from(f, 1, 1, 4, COORDINATOR_DEAD);
    peers_lose(f, 1); /* a reset */
    come_from(f, 1, 1, 4, COORDINATOR_DEAD);
    peers_hear_nothing(f);
    assert_int_equal(peers_look(f).phase, COORDINATOR_FORMING);
    f->list[3].node.is_done = true; /* then two are left */
    come_from(f, 3, 1, 4, COORDINATOR_DEAD);
    const char *why = peers_hear(f, 2, COORDINATOR_CLOSED)->text;
    assert_ptr_equal(strstr(strstr(why, "host1") + 1, "host1"), NULL);
}

/* ---- the coordinator that has told the world itself ---- */

static void form_here(struct peers *f, uint32_t min_nodes, uint32_t count) {
    peers_begin_place(f, min_nodes, count, 0);
    peers_join_many(f, count);
    hear_world(f, 0, count, 1);
}

static void lose(struct peers *f, size_t i, bool for_good) {
    if (for_good) {
        coordinator_never_returns(f->list[i].member);
    }
    peers_lose(f, i);
}

static void own_minority_stops(void **state) {
    struct peers *f = *state;
    for (int for_good = 0; for_good < 2; for_good++) {
        form_here(f, 1, 5);
        for (size_t i = 2; i < 5; i++) {
            lose(f, i, for_good);
            f->list[i].looked_at = f->list[i].heard_count;
        }
        for (size_t i = 0; i < 5; i++) {
            f->list[i].looked_at = f->list[i].heard_count; /* CHANGE, for those who were left */
        }
        peers_join(f, 0);
        peers_join(f, 1);
        if (for_good) { /* nobody who could meet elsewhere */
            hear_world(f, 0, 2, 4);
        } else {
            peers_pass_ms(f, 10 * PEERS_SILENCE_MS);
            peers_hear_nothing(f);
        }
    }
}

static void lost_member_that_comes_back_counts(void **state) {
    struct peers *f = *state;
    form_here(f, 1, 3);
    lose(f, 0, false);
    peers_hear(f, 1, COORDINATOR_CHANGE);
    peers_hear(f, 2, COORDINATOR_CHANGE);
    lose(f, 1, false);
    peers_join(f, 2);
    peers_hear_nothing(f);
    come_from(f, 1, 1, 3, COORDINATOR_UNKNOWN);
    hear_world(f, 1, 3, 4);
}

static void empty_coordinator_remembers_that_it_has_served(void **state) {
    struct peers *f = *state;
    struct coordinator_service service;
    form_here(f, 1, 2);
    coordinator_describe(f->coordinator, &service);
    assert_true(service.is_serving && service.is_running);
    assert_int_equal(service.round, 1);
    assert_int_equal(service.member_count, 2);
    lose(f, 0, false);
    peers_hear(f, 1, COORDINATOR_CHANGE);
    lose(f, 1, false);
    coordinator_describe(f->coordinator, &service);
    assert_true(service.is_serving && !service.is_running); /* another process here would not say so */
    assert_int_equal(service.round, 1);
    assert_int_equal(service.member_count, 0);
}

/* Whoever waits here is not to go away, and nobody else's place is better. */
static void living_coordinator_is_the_place_for_the_next_world(void **state) {
    struct peers *f = *state;
    struct coordinator_service service;
    form_here(f, 1, 3);
    lose(f, 0, false);
    coordinator_describe(f->coordinator, &service);
    assert_true(service.is_running); /* two of three are here */
    lose(f, 1, false);
    coordinator_describe(f->coordinator, &service);
    assert_true(service.is_serving && !service.is_running);
}

static void another_list_of_endpoints_is_refused(void **state) {
    struct peers *f = *state;
    peers_begin_place(f, 1, 2, 0);
    f->list[0].node.endpoints = 78;
    peers_join(f, 0);
    peers_hear_refusal(f, 0, MUSTER_EINVAL, "the same list of endpoints");
}

#define QUORUM_TEST(name) cmocka_unit_test_setup_teardown(name, peers_setup, peers_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        QUORUM_TEST(survivors_of_a_dead_host_meet_at_once),
        QUORUM_TEST(missing_survivors_get_time_to_stop),
        QUORUM_TEST(survivors_of_a_silent_host_wait_for_it_to_stop),
        QUORUM_TEST(host_that_turns_out_dead_is_not_waited_for),
        QUORUM_TEST(silent_host_and_silent_others_take_two_silences),
        QUORUM_TEST(minority_waits_until_others_come),
        QUORUM_TEST(half_with_the_lowest_rank_goes_on),
        QUORUM_TEST(last_of_two_goes_on_when_the_other_is_dead),
        QUORUM_TEST(minimum_that_excludes_others_needs_no_majority),
        QUORUM_TEST(few_elsewhere_may_be_a_majority),
        QUORUM_TEST(done_node_alone_does_not_end_the_job),
        QUORUM_TEST(newcomers_make_room_for_members),
        QUORUM_TEST(first_world_needs_to_know_the_other_endpoints),
        QUORUM_TEST(first_world_of_some_gives_others_time_to_stop),
        QUORUM_TEST(world_whose_nodes_have_all_ended_is_followed),
        QUORUM_TEST(world_whose_host_is_dead_and_the_others_have_ended_is_followed),
        QUORUM_TEST(world_of_a_dead_host_alone_is_not_followed_by_others),
        QUORUM_TEST(node_that_comes_again_and_again_delays_nobody),
        QUORUM_TEST(node_that_was_not_here_just_now_delays_all),
        QUORUM_TEST(first_world_of_all_waits_if_there_was_one),
        QUORUM_TEST(each_survivor_gives_others_time_anew),
        QUORUM_TEST(living_coordinator_is_the_place_for_the_next_world),
        QUORUM_TEST(first_world_of_all_needs_nobody),
        QUORUM_TEST(done_nodes_hear_how_it_ends),
        QUORUM_TEST(done_nodes_go_when_the_others_go_on),
        QUORUM_TEST(done_node_that_comes_again_counts_once),
        QUORUM_TEST(own_minority_stops),
        QUORUM_TEST(lost_member_that_comes_back_counts),
        QUORUM_TEST(empty_coordinator_remembers_that_it_has_served),
        QUORUM_TEST(another_list_of_endpoints_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
