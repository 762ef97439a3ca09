/* A coordinator that takes over from another one and knows who lives: no round before all of them have spoken. */
#include "rendezvous/coordinator.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "rendezvous/coordinator_peers_test_support.h"

/* A coordinator that follows another one, whose round 3 the first `veterans` nodes were in. */
static void take_over(struct peers *f, uint32_t max_nodes, size_t veterans, size_t expected) {
    peers_begin(f, 1, max_nodes, false);
    for (size_t i = 0; i < veterans; i++) {
        f->list[i].round = 3;
        f->list[i].node.last_world_size = (uint32_t)veterans;
    }
    coordinator_expect(f->coordinator, expected, f->now_ms);
}

static void expect(struct peers *f, size_t count) {
    coordinator_expect(f->coordinator, count, f->now_ms);
}

static void round_closes_when_all_have_come(void **state) {
    struct peers *f = *state;
    take_over(f, 4, 2, 2);
    peers_join(f, 0);
    expect(f, 1);
    peers_pass_ms(f, 2 * PEERS_LAST_CALL_MS);
    peers_hear_nothing(f);
    peers_join(f, 1);
    expect(f, 0); /* without a last call, although there is room for two more */
    peers_hear_world(f, 0, 4, 0, 2);
    peers_hear_world(f, 1, 4, 1, 2);
    peers_hear_nothing(f);
}

static void who_is_gone_is_waited_for_no_longer(void **state) {
    struct peers *f = *state;
    take_over(f, 3, 3, 3);
    peers_join(f, 2);
    expect(f, 2);
    expect(f, 1);
    peers_hear_nothing(f);
    expect(f, 0);
    peers_hear_world(f, 2, 4, 0, 1);
}

static void lone_veteran_needs_no_last_call(void **state) {
    struct peers *f = *state;
    take_over(f, 3, 1, 0);
    peers_join(f, 0);
    peers_hear_world(f, 0, 4, 0, 1);
}

static void newcomers_leave_the_places_to_veterans(void **state) {
    struct peers *f = *state;
    take_over(f, 2, 2, 2);
    peers_join(f, 5);
    peers_join(f, 0);
    expect(f, 1);
    peers_join(f, 1);
    peers_hear_nothing(f);
    expect(f, 0);
    peers_hear_world(f, 0, 4, 0, 2);
    peers_hear_world(f, 1, 4, 1, 2);
    (void)peers_hear(f, 5, COORDINATOR_SPARE);
    peers_hear_nothing(f);
}

static void newcomers_get_the_places_that_are_left(void **state) {
    struct peers *f = *state;
    take_over(f, 2, 2, 2);
    peers_join(f, 5);
    peers_join(f, 0);
    expect(f, 1);
    expect(f, 0);
    peers_hear_world(f, 0, 4, 0, 2);
    peers_hear_world(f, 5, 4, 1, 2);
    peers_hear_nothing(f);
}

static void nodes_without_a_world_have_their_last_call(void **state) {
    struct peers *f = *state;
    take_over(f, 3, 0, 2);
    peers_join(f, 0);
    expect(f, 1);
    peers_join(f, 1);
    expect(f, 0);
    peers_hear_nothing(f);
    peers_pass_ms(f, PEERS_LAST_CALL_MS);
    peers_hear_world(f, 0, 1, 0, 2);
    peers_hear_world(f, 1, 1, 1, 2);
}

static void who_comes_to_a_running_world_does_not_stand_by(void **state) {
    struct peers *f = *state;
    take_over(f, 3, 1, 0);
    peers_join(f, 0);
    peers_hear_world(f, 0, 4, 0, 1);
    expect(f, 1); /* one that the leader before has not given up, and this one had not seen */
    peers_join(f, 5);
    peers_hear_change(f, 0, COORDINATOR_NODE_ARRIVED, "node host5 (pid 7) has come");
    peers_join(f, 0);
    peers_hear_nothing(f);
    expect(f, 0);
    peers_hear_world(f, 0, 5, 0, 2);
    peers_hear_world(f, 5, 5, 1, 2);
}

int main(void) {
#define CASE(f) cmocka_unit_test_setup_teardown(f, peers_setup, peers_teardown)
    const struct CMUnitTest tests[] = {
        CASE(round_closes_when_all_have_come),
        CASE(who_is_gone_is_waited_for_no_longer),
        CASE(lone_veteran_needs_no_last_call),
        CASE(newcomers_leave_the_places_to_veterans),
        CASE(newcomers_get_the_places_that_are_left),
        CASE(nodes_without_a_world_have_their_last_call),
        CASE(who_comes_to_a_running_world_does_not_stand_by),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
