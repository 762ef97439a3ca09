/* What an agent keeps of worlds that were proposed and told, and of the coordinators that it has lost. */
#include "rendezvous/member/membership.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

enum { PLACES = 3, AUTHOR = 50 }; /* of round 1 */

static const struct rdzv_options options = {.run_id = "job", .min_nodes = 1, .max_nodes = 4, .local_world_size = 2};

static struct coordinator_node say(const struct membership *m) {
    static const uint64_t identity[2] = {1, 2};
    return membership_introduce(m, &options, "10.0.0.1", identity, 29500);
}

/* A member of round 1 (of place 0), rank 1 of 3. */
static struct membership member(void) {
    return (struct membership){
        .last_round = 1,
        .last_author = AUTHOR,
        .heard_author = AUTHOR,
        .last_world_size = 3,
        .last_group_rank = 1,
        .past_count = 1,
        .pasts = {
            {.past = {
                 .round = 1, .author = AUTHOR, .size = 3, .group_rank = 1, .host_rank = 0, .is_confirmed = true}}}};
}

/* Round `round` is to follow `base`. */
static struct coordinator_proposal propose(uint64_t round, uint64_t base) {
    return (struct coordinator_proposal){
        .world = {.round = round, .size = 2, .group_rank = 0, .host_rank = 1, .base_round = base, .base_count = 2},
        .past_count = 1,
        .pasts = {{.round = base,
                   .author = AUTHOR,
                   .size = 3,
                   .group_rank = COORDINATOR_NO_RANK,
                   .host_rank = 0,
                   .fate = COORDINATOR_SILENT,
                   .is_confirmed = true}}};
}

static void proposal_is_told_beside_the_last_world(void **state) {
    struct membership m = member();
    (void)state;
    const struct coordinator_proposal next = propose(5, 1);
    membership_propose(&m, &next);
    struct coordinator_node node = say(&m);
    assert_int_equal(node.last_round, 1);
    assert_int_equal(node.fate, COORDINATOR_SILENT); /* which others have found */
    assert_int_equal(node.past_count, 1);
    assert_int_equal(node.pasts[0].round, 5);
    assert_int_equal(node.pasts[0].group_rank, 0);
    assert_false(node.pasts[0].is_confirmed);
}

/* The coordinator knows best what it was that it has not told. */
static void another_proposal_takes_the_place_of_the_first(void **state) {
    struct membership m = member();
    (void)state;
    const struct coordinator_proposal first = propose(5, 1), second = propose(8, 1);
    membership_propose(&m, &first);
    membership_propose(&m, &second);
    struct coordinator_node node = say(&m);
    assert_int_equal(node.past_count, 1);
    assert_int_equal(node.pasts[0].round, 8);
}

/* Who served there before had numbered one of its own likewise, and had died: what is known of that is not known of
 * this. */
static void round_of_another_author_is_another_world(void **state) {
    struct membership m = member();
    (void)state;
    struct coordinator_proposal first = propose(5, 1), next = propose(8, 1);
    first.world.author = 60;
    membership_propose(&m, &first);
    next.past_count = 2;
    next.pasts[1] = first.world;
    next.pasts[1].author = 61;
    next.pasts[1].group_rank = COORDINATOR_NO_RANK;
    membership_propose(&m, &next);
    struct coordinator_node node = say(&m);
    assert_int_equal(node.past_count, 2);
    assert_int_equal(node.pasts[0].author, 61);
    assert_int_equal(node.pasts[0].group_rank, COORDINATOR_NO_RANK);
}

static void newcomer_learns_what_its_world_was_to_follow(void **state) {
    struct membership m = {.last_round = 0};
    (void)state;
    const struct coordinator_proposal next = propose(5, 1);
    membership_propose(&m, &next);
    struct coordinator_node node = say(&m);
    assert_int_equal(node.last_round, 0);
    assert_int_equal(node.past_count, 2);
    assert_int_equal(node.pasts[0].round, 1);
    assert_int_equal(node.pasts[0].group_rank, COORDINATOR_NO_RANK);
    assert_true(node.pasts[0].is_confirmed);
    assert_int_equal(node.pasts[1].round, 5);
}

static void host_that_dies_in_office_is_dead(void **state) {
    struct membership m = member();
    (void)state;
    membership_lose(&m, 0, PLACES, 4, 1000);
    assert_int_equal(say(&m).fate, COORDINATOR_SILENT);
    assert_false(membership_declare_dead(&m, 0, PLACES, 4, 999)); /* was asked before the loss */
    assert_false(membership_declare_dead(&m, 1, PLACES, 5, 999)); /* another place */
    assert_true(membership_declare_dead(&m, 0, PLACES, 5, 999));
    assert_int_equal(say(&m).fate, COORDINATOR_DEAD);
    assert_false(membership_declare_dead(&m, 0, PLACES, 6, 5000)); /* is known */
    assert_int_equal(say(&m).fate, COORDINATOR_DEAD);
}

static void host_that_is_found_dead_too_late_is_gone(void **state) {
    struct membership m = member();
    (void)state;
    membership_lose(&m, 0, PLACES, 4, 1000);
    assert_true(membership_declare_dead(&m, 0, PLACES, 5, 1000));
    assert_int_equal(say(&m).fate, COORDINATOR_GONE);
}

/* Each world's own coordinator, also where the same node has been with another one since. */
static void fates_are_kept_apart(void **state) {
    struct membership m = member();
    (void)state;
    membership_lose(&m, 0, PLACES, 1, 1000);
    const struct coordinator_proposal next = propose(5, 1); /* of place 1 */
    membership_propose(&m, &next);
    membership_lose(&m, 0, PLACES, 2, 9000); /* a connection to another process there: the first loss counts */
    membership_lose(&m, 1, PLACES, 2, 9000);
    assert_true(membership_declare_dead(&m, 1, PLACES, 3, 2000));
    assert_true(membership_declare_dead(&m, 0, PLACES, 3, 2000));
    struct coordinator_node node = say(&m);
    assert_int_equal(node.fate, COORDINATOR_GONE);
    assert_int_equal(node.pasts[0].fate, COORDINATOR_DEAD);
}

/* A node that came to the second process that served at a place knows nothing of the end of the first. */
static void fate_of_another_process_at_the_place_is_unknown(void **state) {
    struct membership m = {.past_count = 0};
    struct coordinator_proposal next = propose(4, 1); /* of place 0, like round 1 */
    (void)state;
    next.world.author = AUTHOR + 1;
    membership_propose(&m, &next);
    membership_lose(&m, 0, PLACES, 7, 1000);
    assert_true(membership_declare_dead(&m, 0, PLACES, 8, 900));
    struct coordinator_node node = say(&m);
    assert_int_equal(node.past_count, 2);
    assert_int_equal(node.pasts[0].author, AUTHOR);
    assert_int_equal(node.pasts[0].fate, COORDINATOR_SILENT); /* as it was told */
    assert_int_equal(node.pasts[1].fate, COORDINATOR_DEAD);
}

/* What answers at a name says nothing of who served where that led before, and all of who serves there since. */
static void host_that_a_name_has_left_is_not_found_dead(void **state) {
    struct membership m = member();
    (void)state;
    membership_lose(&m, 0, PLACES, 4, 1000);
    membership_move(&m, 0, PLACES);
    assert_false(membership_declare_dead(&m, 0, PLACES, 5, 999));
    assert_int_equal(say(&m).fate, COORDINATOR_SILENT);
    struct coordinator_proposal next = propose(4, 1);
    next.world.author = AUTHOR + 1;
    membership_propose(&m, &next);
    membership_lose(&m, 0, PLACES, 5, 5000);
    assert_true(membership_declare_dead(&m, 0, PLACES, 6, 999));
    struct coordinator_node node = say(&m);
    assert_int_equal(node.fate, COORDINATOR_SILENT);
    assert_int_equal(node.pasts[0].fate, COORDINATOR_DEAD);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(proposal_is_told_beside_the_last_world),
        cmocka_unit_test(another_proposal_takes_the_place_of_the_first),
        cmocka_unit_test(round_of_another_author_is_another_world),
        cmocka_unit_test(newcomer_learns_what_its_world_was_to_follow),
        cmocka_unit_test(host_that_dies_in_office_is_dead),
        cmocka_unit_test(host_that_is_found_dead_too_late_is_gone),
        cmocka_unit_test(fates_are_kept_apart),
        cmocka_unit_test(fate_of_another_process_at_the_place_is_unknown),
        cmocka_unit_test(host_that_a_name_has_left_is_not_found_dead),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
