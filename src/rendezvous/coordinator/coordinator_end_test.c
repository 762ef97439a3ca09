/* How a job ends for its coordinator: which failure counts, who hears of it, and rounds that would need who is done. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "rendezvous/coordinator/coordinator_peers_test_support.h"
#include "rendezvous/round/cause.h"

static void lose_worker(struct peers *f, size_t i, const char *cause, bool is_final) {
    const struct coordinator_failure failure = {
        .why = kv_slice_text("a worker"), .cause = kv_slice_text(cause), .is_final = is_final};
    coordinator_failed(f->coordinator, f->list[i].member, &failure, f->now_ms);
}

static void allow_failures(struct peers *f, uint32_t count) {
    f->limits.is_limited[COORDINATOR_CHARGE_FAILURE] = true;
    f->limits.allowed[COORDINATOR_CHARGE_FAILURE] = count;
}

static void hear_closed(struct peers *f, size_t i, const char *cause, const char *words) {
    const struct heard *heard = peers_hear(f, i, COORDINATOR_CLOSED);
    assert_true(heard->has_failed);
    assert_string_equal(heard->cause, cause);
    assert_non_null(strstr(heard->text, words));
}

/* The last words come when all have been told; nobody hears of the one that failed later. */
static void all_hear_of_the_first_failure_and_its_last_words(void **state) {
    struct peers *f = *state;
    allow_failures(f, 0);
    peers_form(f, 2, 2, 2);
    peers_join(f, 2);
    peers_hear(f, 2, COORDINATOR_SPARE);
    lose_worker(f, 0, "the first", false);
    lose_worker(f, 1, "a victim", false);
    for (size_t i = 0; i < 3; i++) {
        hear_closed(f, i, "the first", "its budget is spent");
    }
    lose_worker(f, 1, "a victim, and its words", false);
    peers_hear_nothing(f);
    lose_worker(f, 0, "the first, and its words", false);
    for (size_t i = 0; i < 3; i++) {
        hear_closed(f, i, "the first, and its words", "its budget is spent");
    }
    peers_hear_nothing(f);
    assert_int_equal(peers_look(f).charges.failures, 1);
}

/* ---- the one that died first ---- */

static void lose_older(struct peers *f, size_t i, const char *cause, int64_t age_ms) {
    const struct coordinator_failure failure = {.why = kv_slice_text("a worker"),
                                                .cause = kv_slice_text(cause),
                                                .is_final = true,
                                                .has_age = true,
                                                .age_ms = age_ms};
    coordinator_failed(f->coordinator, f->list[i].member, &failure, f->now_ms);
}

/* No worker of its own has failed. */
static void answer(struct peers *f, size_t i) {
    const struct coordinator_failure nothing = {.is_final = false};
    coordinator_failed(f->coordinator, f->list[i].member, &nothing, f->now_ms);
}

static void all_hear_closed(struct peers *f, size_t count, const char *cause) {
    for (size_t i = 0; i < count; i++) {
        hear_closed(f, i, cause, "has failed for good");
    }
    peers_hear_nothing(f);
}

static void form_and_fail(struct peers *f, uint32_t count, int64_t age_ms) {
    peers_form(f, count, count, count);
    lose_older(f, 0, "a victim", age_ms);
    for (size_t i = 1; i < count; i++) {
        peers_hear_change(f, i, COORDINATOR_NODE_FAILED, "node host0 (pid 7) failed: a worker");
    }
    all_hear_closed(f, count, "a victim");
}

/* The victims' node has told its failure first, and is done with it; the others have not answered yet. */
static void older_death_takes_the_place_of_its_victims(void **state) {
    struct peers *f = *state;
    form_and_fail(f, 3, 1);
    lose_older(f, 0, "a victim, and its words", 1);
    f->now_ms += 5;
    lose_older(f, 1, "the first", 16);
    peers_hear_nothing(f);
    answer(f, 2);
    all_hear_closed(f, 3, "the first");
    f->now_ms += 50;
    lose_older(f, 0, "a victim, and its words", 56);
    peers_hear_nothing(f);
    lose_older(f, 1, "the first, and its words", 66);
    all_hear_closed(f, 3, "the first, and its words");
}

/* Younger, as old within a turn of a loop, or of an agent that tells no age. */
static void first_one_heard_counts_unless_another_is_older(void **state) {
    struct peers *f = *state;
    for (int64_t age_ms = 2; age_ms <= 14; age_ms += 6) {
        form_and_fail(f, 2, 10);
        lose_older(f, 1, "another one", age_ms);
        lose_older(f, 0, "a victim, and its words", 10);
        all_hear_closed(f, 2, "a victim, and its words");
    }
    form_and_fail(f, 2, 10);
    lose_worker(f, 1, "another one", true);
    lose_older(f, 0, "a victim, and its words", 10);
    all_hear_closed(f, 2, "a victim, and its words");
}

/* Two records of one death came while the coordinator had no turn, the first one long before. */
static void later_record_tells_how_late_the_first_one_was(void **state) {
    struct peers *f = *state;
    form_and_fail(f, 2, 65);
    lose_older(f, 0, "the first, and its words", 169);
    lose_older(f, 1, "a victim", 139);
    for (size_t i = 0; i < 2; i++) {
        hear_closed(f, i, "the first, and its words", "has failed for good");
    }
    peers_hear_nothing(f);
}

/* A machine with far more processes than processors let an agent wait for 130 ms and more. */
static void a_slow_node_is_heard(void **state) {
    struct peers *f = *state;
    form_and_fail(f, 2, 1);
    lose_older(f, 0, "a victim, and its words", 1);
    peers_pass_ms(f, 250);
    peers_hear_nothing(f);
    lose_older(f, 1, "the first, and its words", 270);
    for (size_t i = 0; i < 2; i++) {
        hear_closed(f, i, "the first, and its words", "has failed for good");
    }
    peers_hear_nothing(f);
}

/* One does not answer, one has gone. */
static void answers_are_awaited_for_a_moment(void **state) {
    struct peers *f = *state;
    form_and_fail(f, 3, 1);
    lose_older(f, 0, "a victim, and its words", 1);
    peers_lose(f, 2);
    peers_pass_ms(f, RDZV_OTHERS_MS - 1);
    peers_hear_nothing(f);
    assert_int_equal(coordinator_wake_ms(f->coordinator), f->now_ms + 1);
    peers_pass_ms(f, 1);
    all_hear_closed(f, 2, "a victim, and its words");
    assert_int_equal(coordinator_wake_ms(f->coordinator), INT64_MAX);
    lose_older(f, 1, "the first, too late", RDZV_OTHERS_MS + 20); /* it has been reported */
    peers_hear_nothing(f);
    form_and_fail(f, 3, 1);
    answer(f, 1);
    lose_older(f, 0, "a victim, and its words", 1);
    peers_hear_nothing(f);
    peers_lose(f, 2);
    for (size_t i = 0; i < 2; i++) {
        hear_closed(f, i, "a victim, and its words", "has failed for good");
    }
}

static void final_failure_ends_a_job_with_restarts_left(void **state) {
    struct peers *f = *state;
    peers_form(f, 2, 2, 2);
    lose_worker(f, 0, "no such program", true);
    peers_hear_change(f, 1, COORDINATOR_NODE_FAILED, "node host0 (pid 7) failed: a worker");
    for (size_t i = 0; i < 2; i++) {
        hear_closed(f, i, "no such program", "node host0 (pid 7) has failed for good: a worker");
    }
    peers_hear_nothing(f);
}

/* Of the world before nothing is told any more. */
static void failure_counts_in_its_world(void **state) {
    struct peers *f = *state;
    allow_failures(f, 1);
    peers_form(f, 2, 2, 2);
    lose_worker(f, 0, "one", false);
    lose_worker(f, 0, "one, and its words", false);
    peers_hear_change(f, 1, COORDINATOR_NODE_FAILED, "node host0 (pid 7) failed: a worker");
    peers_hear_nothing(f);
    peers_join_many(f, 2);
    for (uint32_t i = 0; i < 2; i++) {
        peers_hear_world(f, i, 2, i, 2);
    }
    lose_worker(f, 1, "two", false);
    for (size_t i = 0; i < 2; i++) {
        hear_closed(f, i, "two", "its budget is spent");
    }
}

static void round_without_the_done_fails_at_once(void **state) {
    struct peers *f = *state;
    peers_form(f, 3, 3, 3);
    peers_done(f, 1);
    lose_worker(f, 0, "oh", false);
    peers_hear_change(f, 2, COORDINATOR_NODE_FAILED, "node host0 (pid 7) failed: a worker");
    peers_hear_change(f, 1, COORDINATOR_NODE_FAILED, "node host0 (pid 7) failed: a worker");
    hear_closed(f, 0, "oh", "node host1 (pid 7) has succeeded, and 2 of the 3 nodes that it needs are left");
    hear_closed(f, 2, "oh", "no further round can be formed");
    peers_hear_nothing(f);
    assert_int_equal(peers_look(f).phase, COORDINATOR_OVER);
}

/* One that is done while the round is open already. */
static void round_that_loses_one_to_success_fails(void **state) {
    struct peers *f = *state;
    peers_form(f, 2, 2, 2);
    lose_worker(f, 0, "oh", false);
    peers_hear_change(f, 1, COORDINATOR_NODE_FAILED, "node host0 (pid 7) failed: a worker");
    peers_join(f, 0);
    peers_hear_nothing(f);
    peers_done(f, 1);
    hear_closed(f, 0, "oh", "node host1 (pid 7) has succeeded, and 1 of the 2 nodes that it needs is left");
}

static void spare_or_a_smaller_world_takes_the_place_of_the_done(void **state) {
    struct peers *f = *state;
    peers_form(f, 2, 2, 2);
    peers_join(f, 2);
    peers_hear(f, 2, COORDINATOR_SPARE);
    peers_done(f, 1);
    lose_worker(f, 0, "oh", false);
    peers_hear_change(f, 1, COORDINATOR_NODE_FAILED, "node host0 (pid 7) failed: a worker");
    peers_hear(f, 2, COORDINATOR_LET_IN);
    peers_join(f, 0);
    peers_hear_world(f, 0, 2, 0, 2);
    peers_hear_world(f, 2, 2, 1, 2);
    peers_form(f, 1, 2, 2);
    peers_done(f, 1);
    lose_worker(f, 0, "oh", false);
    peers_hear_change(f, 1, COORDINATOR_NODE_FAILED, "node host0 (pid 7) failed: a worker");
    peers_join(f, 0);
    peers_hear_world(f, 0, 2, 0, 1);
}

/* A job that ends well says so to its spare. */
static void spare_hears_that_all_went_well(void **state) {
    struct peers *f = *state;
    peers_form(f, 2, 2, 2);
    peers_join(f, 2);
    peers_hear(f, 2, COORDINATOR_SPARE);
    peers_done(f, 0);
    peers_done(f, 1);
    peers_hear(f, 0, COORDINATOR_ALL_DONE);
    peers_hear(f, 1, COORDINATOR_ALL_DONE);
    assert_false(peers_hear(f, 2, COORDINATOR_CLOSED)->has_failed);
}

/* With several coordinators its end is no loss where no other world can follow without those who work. */
static void host_that_is_done_may_go_where_nobody_else_can_form_a_world(void **state) {
    struct peers *f = *state;
    for (uint32_t min_nodes = 1; min_nodes <= 2; min_nodes++) {
        peers_begin_leased(f, min_nodes, 2);
        coordinator_lead(f->coordinator, NULL, f->now_ms);
        f->list[0].node.is_host = true;
        peers_join_many(f, 2);
        coordinator_fenced(f->coordinator, 1, f->now_ms);
        for (uint32_t i = 0; i < 2; i++) {
            peers_hear_world(f, i, 1, i, 2);
        }
        peers_done(f, 0);
        if (min_nodes == 2) {
            peers_hear(f, 1, COORDINATOR_HOST_DONE);
        }
        peers_hear_nothing(f);
    }
}

#define END_TEST(name) cmocka_unit_test_setup_teardown(name, peers_setup, peers_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        END_TEST(all_hear_of_the_first_failure_and_its_last_words),
        END_TEST(older_death_takes_the_place_of_its_victims),
        END_TEST(first_one_heard_counts_unless_another_is_older),
        END_TEST(later_record_tells_how_late_the_first_one_was),
        END_TEST(a_slow_node_is_heard),
        END_TEST(answers_are_awaited_for_a_moment),
        END_TEST(final_failure_ends_a_job_with_restarts_left),
        END_TEST(failure_counts_in_its_world),
        END_TEST(round_without_the_done_fails_at_once),
        END_TEST(round_that_loses_one_to_success_fails),
        END_TEST(spare_or_a_smaller_world_takes_the_place_of_the_done),
        END_TEST(spare_hears_that_all_went_well),
        END_TEST(host_that_is_done_may_go_where_nobody_else_can_form_a_world),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
