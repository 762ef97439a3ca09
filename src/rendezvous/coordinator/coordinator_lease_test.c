/* A coordinator that is found by a lease: it tells no world before it leads, nor before that world's record stands; and
 * what it makes of the world of the leader before. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "rendezvous/coordinator/coordinator_peers_test_support.h"

enum { OTHER = 77 }; /* the author of the world before */

/* Leads after round 5 of another one, which had `size` nodes, the leader's of rank `host_rank`. */
static void lead_after(struct peers *f, uint32_t size, uint32_t host_rank) {
    const struct coordinator_record record = {
        .round = 5, .author = OTHER, .size = size, .host_rank = host_rank, .charges = {.failures = 2}};
    coordinator_lead(f->coordinator, &record, f->now_ms);
}

/* Node i was in that world. */
static void was_in_it(struct peers *f, size_t i, uint32_t size, uint32_t host_rank, enum coordinator_fate fate) {
    struct coordinator_node *node = &f->list[i].node;
    f->list[i].round = 5;
    f->list[i].author = OTHER;
    node->last_world_size = size;
    node->last_group_rank = (uint32_t)i;
    node->last_host_rank = host_rank;
    node->fate = fate;
}

static void stands(struct peers *f) {
    coordinator_fenced(f->coordinator, f->record.round, f->now_ms);
}

static void world_is_told_when_its_record_stands(void **state) {
    struct peers *f = *state;
    peers_begin_leased(f, 2, 2);
    peers_join_many(f, 2);
    peers_pass_ms(f, PEERS_LAST_CALL_MS);
    assert_int_equal(f->record_count, 0); /* it does not lead */
    coordinator_lead(f->coordinator, NULL, f->now_ms);
    assert_int_equal(f->record_count, 1);
    assert_int_equal(f->record.round, 1);
    assert_int_equal(f->record.size, 2);
    assert_int_equal(f->record.author, PEERS_AUTHOR);
    assert_true(coordinator_awaits_fence(f->coordinator));
    peers_pass_ms(f, 10 * PEERS_SILENCE_MS); /* etcd is slow */
    peers_hear_nothing(f);
    assert_int_equal(f->record_count, 1);
    stands(f);
    peers_hear_world(f, 0, 1, 0, 2);
    peers_hear_world(f, 1, 1, 1, 2);
    peers_hear_nothing(f);
    assert_false(coordinator_awaits_fence(f->coordinator));
}

static void record_of_other_members_is_not_told(void **state) {
    struct peers *f = *state;
    peers_begin_leased(f, 2, 2);
    coordinator_lead(f->coordinator, NULL, f->now_ms);
    peers_join_many(f, 2);
    assert_int_equal(f->record.round, 1);
    peers_lose(f, 1);
    stands(f); /* too late */
    peers_hear_nothing(f);
    peers_join(f, 2);
    assert_int_equal(f->record.round, 2);
    stands(f);
    peers_hear_world(f, 0, 2, 0, 2);
    peers_hear_world(f, 2, 2, 1, 2);
    peers_hear_nothing(f);
}

static void whole_world_goes_on_at_once(void **state) {
    struct peers *f = *state;
    peers_begin_leased(f, 1, 2);
    lead_after(f, 2, COORDINATOR_NO_RANK);
    for (size_t i = 0; i < 2; i++) {
        was_in_it(f, i, 2, COORDINATOR_NO_RANK, COORDINATOR_SILENT);
        peers_join(f, i);
    }
    assert_int_equal(f->record.round, 6);
    assert_int_equal(f->record.charges.failures, 2);
    stands(f);
    peers_hear_world(f, 0, 6, 0, 2);
    peers_hear_world(f, 1, 6, 1, 2);
}

static void dead_leader_is_not_waited_for(void **state) {
    struct peers *f = *state;
    peers_begin_leased(f, 1, 2);
    lead_after(f, 2, 0);
    was_in_it(f, 1, 2, 0, COORDINATOR_DEAD);
    peers_join(f, 1);
    assert_int_equal(f->record.round, 6);
}

/* Half of a world goes on: the other half cannot, since it cannot write a round. */
static void silent_leader_gets_time_to_stop(void **state) {
    struct peers *f = *state;
    peers_begin_leased(f, 1, 2);
    lead_after(f, 2, 0);
    was_in_it(f, 1, 2, 0, COORDINATOR_SILENT);
    peers_join(f, 1);
    peers_pass_ms(f, PEERS_SILENCE_MS + PEERS_STOP_MS - 1);
    assert_int_equal(f->record_count, 0);
    assert_int_equal(coordinator_wake_ms(f->coordinator), f->now_ms + 1);
    peers_pass_ms(f, 1);
    assert_int_equal(f->record.round, 6);
    assert_int_equal(f->record.size, 1);
}

static void newcomers_give_an_unknown_world_time(void **state) {
    struct peers *f = *state;
    peers_begin_leased(f, 2, 2);
    lead_after(f, 2, 0);
    peers_pass_ms(f, PEERS_SILENCE_MS);
    peers_join_many(f, 2);
    peers_hear_nothing(f); /* nobody is refused, or a spare, for a world of which nobody comes */
    peers_pass_ms(f, PEERS_SILENCE_MS + PEERS_STOP_MS - 1);
    assert_int_equal(f->record_count, 0);
    peers_pass_ms(f, 1);
    assert_int_equal(f->record.round, 6);
    stands(f);
    peers_hear_world(f, 0, 6, 0, 2);
}

static void members_come_before_newcomers(void **state) {
    struct peers *f = *state;
    peers_begin_leased(f, 2, 2);
    lead_after(f, 2, COORDINATOR_NO_RANK);
    peers_join(f, 4);
    peers_join(f, 5);
    for (size_t i = 0; i < 2; i++) {
        was_in_it(f, i, 2, COORDINATOR_NO_RANK, COORDINATOR_SILENT);
        peers_join(f, i);
    }
    stands(f);
    peers_hear_world(f, 0, 6, 0, 2);
    peers_hear_world(f, 1, 6, 1, 2);
    assert_int_equal(peers_look(f).spare_count, 2);
}

static void own_world_waits_for_nobody_lost(void **state) {
    struct peers *f = *state;
    peers_begin_leased(f, 1, 2);
    coordinator_lead(f->coordinator, NULL, f->now_ms);
    peers_join_many(f, 2);
    stands(f);
    peers_hear_world(f, 0, 1, 0, 2);
    peers_lose(f, 1);
    (void)peers_hear(f, 0, COORDINATOR_CHANGE);
    peers_join(f, 0);
    assert_int_equal(f->record.round, 2);
    stands(f);
    peers_hear_world(f, 0, 2, 0, 1);
}

#define LEASE_TEST(name) cmocka_unit_test_setup_teardown(name, peers_setup, peers_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        LEASE_TEST(world_is_told_when_its_record_stands), LEASE_TEST(record_of_other_members_is_not_told),
        LEASE_TEST(whole_world_goes_on_at_once),          LEASE_TEST(dead_leader_is_not_waited_for),
        LEASE_TEST(silent_leader_gets_time_to_stop),      LEASE_TEST(newcomers_give_an_unknown_world_time),
        LEASE_TEST(members_come_before_newcomers),        LEASE_TEST(own_world_waits_for_nobody_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
