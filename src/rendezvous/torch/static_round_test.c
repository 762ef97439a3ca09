/* The attempts of a static job: who is waited for, when all go, what is told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "rendezvous/torch/static_keys.h"
#include "rendezvous/torch/static_round.h"

enum { NODES = 3 };

struct scene {
    enum static_node_state nodes[NODES];
    struct static_round round;
};

static void all_come(struct scene *s) {
    *s = (struct scene){0};
    static_round_init(&s->round, s->nodes, NODES, false);
    for (uint32_t i = 0; i < NODES; i++) {
        static_round_came(&s->round, i);
    }
}

static void all_are_ready(struct scene *s, uint64_t round) {
    for (uint32_t i = 0; i < NODES; i++) {
        static_round_ready(&s->round, i, round);
    }
}

static void all_run(struct scene *s) {
    all_come(s);
    all_are_ready(s, 0);
    static_round_go(&s->round);
}

static void expect_word(const struct scene *s, const char *expected) {
    char word[STATIC_WORD_SIZE];
    assert_string_equal(static_round_word(&s->round, word), expected);
}

static void expect_missing(const struct scene *s, uint32_t count, const char *expected) {
    char missing[STATIC_MISSING_SIZE];
    assert_int_equal(static_round_missing(&s->round, missing), count);
    assert_string_equal(missing, expected);
}

static void all_begin_together(void **state) {
    (void)state;
    struct scene s;
    all_come(&s);
    expect_word(&s, "form 0 0");
    static_round_ready(&s.round, 0, 0);
    static_round_ready(&s.round, 2, 0);
    assert_false(static_round_is_complete(&s.round));
    expect_missing(&s, 1, "node rank 1");
    static_round_ready(&s.round, 1, 0);
    assert_true(static_round_is_complete(&s.round));
    static_round_go(&s.round);
    expect_word(&s, "run 0 0");
    assert_false(static_round_is_complete(&s.round));
}

static void one_that_is_ready_stops_the_others(void **state) {
    (void)state;
    struct scene s;
    all_run(&s);
    static_round_broke(&s.round, 1, 0);
    expect_word(&s, "form 1 1");
    static_round_broke(&s.round, 2, 0); /* at the same time */
    expect_word(&s, "form 1 1");
    static_round_ready(&s.round, 1, 1);
    static_round_ready(&s.round, 2, 1);
    expect_missing(&s, 1, "node rank 0");
    static_round_ready(&s.round, 0, 1);
    assert_true(static_round_is_complete(&s.round));
    static_round_go(&s.round);
    expect_word(&s, "run 1 1");
}

/* What was said of an attempt that is over does not end the one that runs. */
static void late_words_count_for_nothing(void **state) {
    (void)state;
    struct scene s;
    all_run(&s);
    all_are_ready(&s, 1);
    static_round_go(&s.round);
    static_round_broke(&s.round, 0, 0);
    static_round_ready(&s.round, 0, 0);
    static_round_ready(&s.round, 0, 1);
    expect_word(&s, "run 1 0");
    static_round_ready(&s.round, NODES, 2); /* no rank of the job */
    static_round_came(&s.round, NODES);
    static_round_done(&s.round, NODES);
    expect_word(&s, "run 1 0");
}

static void who_is_gone_is_waited_for_and_can_be_replaced(void **state) {
    (void)state;
    struct scene s;
    all_run(&s);
    static_round_lost(&s.round, 1);
    expect_word(&s, "run 0 0"); /* a connection is no worker */
    expect_missing(&s, 1, "node rank 1");
    static_round_ready(&s.round, 0, 1);
    static_round_ready(&s.round, 2, 1);
    assert_false(static_round_is_complete(&s.round));
    static_round_came(&s.round, 1);
    static_round_ready(&s.round, 1, 1);
    assert_true(static_round_is_complete(&s.round));
    static_round_lost(&s.round, 0);
    assert_false(static_round_is_complete(&s.round));
}

static void agents_of_pytorch_and_the_done_let_each_restart_alone(void **state) {
    (void)state;
    struct scene s;
    all_come(&s);
    static_round_ready(&s.round, 0, 0);
    static_round_is_mixed(&s.round);
    expect_word(&s, "alone");
    all_are_ready(&s, 0);
    assert_false(static_round_is_complete(&s.round));
    all_run(&s);
    static_round_done(&s.round, 0);
    expect_word(&s, "run 0 0");
    static_round_broke(&s.round, 1, 0);
    expect_word(&s, "alone");
    all_run(&s);
    static_round_ready(&s.round, 1, 1);
    static_round_done(&s.round, 0); /* before it heard of it */
    expect_word(&s, "alone");
}

static void the_barrier_is_over_when_nobody_can_come(void **state) {
    (void)state;
    struct scene s;
    all_run(&s);
    static_round_done(&s.round, 0);
    static_round_lost(&s.round, 0);
    static_round_lost(&s.round, 2);
    assert_false(static_round_is_over(&s.round));
    static_round_done(&s.round, 1);
    assert_true(static_round_is_over(&s.round));
    assert_true(static_round_is_alone(&s.round, 0));
    static_round_came(&s.round, 2);
    assert_false(static_round_is_alone(&s.round, 0));
    assert_true(static_round_is_alone(&s.round, 2));
    assert_false(static_round_is_over(&s.round));
    assert_true(static_round_knows_all(&s.round));
}

static void many_that_are_missing_are_counted(void **state) {
    (void)state;
    enum static_node_state nodes[20] = {STATIC_ABSENT};
    struct static_round round;
    char missing[STATIC_MISSING_SIZE];
    static_round_init(&round, nodes, 20, true);
    static_round_came(&round, 1);
    assert_int_equal(static_round_missing(&round, missing), 19);
    assert_string_equal(missing, "node ranks 0, 2, 3, 4, 5, 6, 7, 8 and 11 more");
}

static void words_are_read_as_they_are_written(void **state) {
    (void)state;
    static const char *const wrong[] = {
        "", "form", "form ", "form 1", "form 1 x", "run -1 0", "run 1 4294967296", "aloneness", "late 1"};
    struct static_word word;
    assert_true(static_round_read_word("form 7 3", 8, &word));
    assert_true(word.phase == STATIC_FORMING && word.round == 7 && word.broken_by == 3);
    assert_true(static_round_read_word("run 12 0", 8, &word));
    assert_true(word.phase == STATIC_RUNNING && word.round == 12);
    assert_true(static_round_read_word("alone", 5, &word));
    assert_true(word.phase == STATIC_ALONE);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(static_round_read_word(wrong[i], strlen(wrong[i]), &word));
    }
}

static void different_numbers_of_nodes_are_told_as_each_sees_them(void **state) {
    (void)state;
    static const char *const wrong[] = {"", "2", "2 ", " 3", "x 3", "-2 3", "2 99999999999999999999999"};
    assert_int_equal(static_other_nnodes(kv_slice_text("2 3"), 2), 3);
    assert_int_equal(static_other_nnodes(kv_slice_text("2 3"), 3), 2);
    assert_int_equal(static_other_nnodes(kv_slice_text("2 3"), 4), 2);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(static_other_nnodes(kv_slice_text(wrong[i]), 2), 0);
    }
}

static void a_question_follows_any_word(void **state) {
    (void)state;
    static const char *const words[] = {"form 3 1 ask 12", "run 3 1 ask 12", "alone ask 12", "failed ask 12"};
    struct static_word word;
    for (size_t i = 0; i < 4; i++) {
        assert_int_equal(static_round_read_asked(words[i], strlen(words[i])), 12);
        assert_int_equal(static_round_read_word(words[i], strlen(words[i]), &word), i < 3);
    }
    assert_true(static_round_read_word(words[1], strlen(words[1]), &word));
    assert_true(word.phase == STATIC_RUNNING && word.round == 3 && word.broken_by == 1);
    static const char *const others[] = {
        "run 3 1", "run 3 1 ask ", "run 3 1 ask x", "alone ask -1", "", "alone ask 123456789012345678901234567890"};
    for (size_t i = 0; i < 6; i++) {
        assert_int_equal(static_round_read_asked(others[i], strlen(others[i])), 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_question_follows_any_word),
        cmocka_unit_test(all_begin_together),
        cmocka_unit_test(one_that_is_ready_stops_the_others),
        cmocka_unit_test(late_words_count_for_nothing),
        cmocka_unit_test(who_is_gone_is_waited_for_and_can_be_replaced),
        cmocka_unit_test(agents_of_pytorch_and_the_done_let_each_restart_alone),
        cmocka_unit_test(the_barrier_is_over_when_nobody_can_come),
        cmocka_unit_test(many_that_are_missing_are_counted),
        cmocka_unit_test(words_are_read_as_they_are_written),
        cmocka_unit_test(different_numbers_of_nodes_are_told_as_each_sees_them),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
