/* Hearing nodes out: which death counts, who is waited for, and when it is told. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "rendezvous/round/hearing.h"

enum { NOW_MS = 1000000 };

/* Of `rank`, that long ago. */
static struct rdzv_cause death(uint32_t rank, int64_t age_ms, bool is_told) {
    return (struct rdzv_cause){
        .rank = rank, .pid = 100 + rank, .wait_status = 9, .age_us = age_ms * 1000, .is_told = is_told};
}

static void judge_alone_waits_for_its_last_words(void **state) {
    struct rdzv_cause own = death(0, 1, false);
    struct hearing h;
    (void)state;
    hearing_begin(&h, &own, 0, NOW_MS);
    assert_false(hearing_is_over(&h));
    h.is_silent_now = true; /* nothing else brings them */
    assert_false(hearing_is_over(&h));
    own = death(0, 51, true);
    hearing_own(&h, &own, NOW_MS + 50);
    assert_true(hearing_is_over(&h));
    struct rdzv_cause verdict = hearing_verdict(&h, NOW_MS + 60);
    assert_int_equal(verdict.rank, 0);
    assert_true(verdict.is_final && verdict.is_told);
    assert_int_equal(verdict.age_us, 61000);
}

/* The victims' node wrote first: ten milliseconds older is the cause, four are no difference. */
static void older_death_of_another_node_counts(void **state) {
    (void)state;
    for (int64_t age_ms = 4; age_ms <= 11; age_ms += 7) {
        struct rdzv_cause own = death(0, 1, true), other = death(3, age_ms + 1, true);
        struct hearing h;
        hearing_begin(&h, &own, 1, NOW_MS);
        assert_false(hearing_is_over(&h));
        hearing_take(&h, &other, NOW_MS);
        hearing_excuse(&h, 1);
        assert_true(hearing_is_over(&h));
        assert_int_equal(hearing_verdict(&h, NOW_MS).rank, age_ms == 4 ? 0 : 3);
    }
}

/* The first record was long on its way, the second one was not. */
static void last_words_tell_the_age_again(void **state) {
    struct rdzv_cause own = death(0, 0, true), other = death(3, 10, false);
    struct hearing h;
    (void)state;
    hearing_begin(&h, &own, 2, NOW_MS);
    hearing_take(&h, &other, NOW_MS + 9);
    assert_true(h.is_own);
    other = death(3, 60, true);
    hearing_take(&h, &other, NOW_MS + 50);
    assert_false(h.is_own);
    struct rdzv_cause third = death(5, 62, true); /* no older by more than a tick */
    hearing_take(&h, &third, NOW_MS + 50);
    assert_int_equal(h.first.rank, 3);
    third = death(5, 70, true);
    hearing_take(&h, &third, NOW_MS + 50);
    assert_int_equal(h.first.rank, 5);
}

static void judge_hears_of_an_older_death_of_its_own(void **state) {
    struct rdzv_cause own = death(0, 0, false), other = death(3, 20, true), worker = death(1, 0, false);
    struct hearing h;
    (void)state;
    hearing_begin(&h, &own, 1, NOW_MS);
    hearing_own(&h, &worker, NOW_MS); /* as its agent says now */
    assert_int_equal(h.first.rank, 1);
    hearing_take(&h, &other, NOW_MS);
    own = death(0, 10, true);
    hearing_own(&h, &own, NOW_MS); /* a victim as well */
    assert_int_equal(h.first.rank, 3);
    worker = death(1, 30, true);
    hearing_own(&h, &worker, NOW_MS);
    assert_int_equal(h.first.rank, 1);
    assert_true(h.is_own);
}

static void silent_node_is_waited_for_no_longer_than_its_time(void **state) {
    struct rdzv_cause own = death(0, 0, true), other = death(3, 20, false);
    struct hearing h;
    (void)state;
    hearing_begin(&h, &own, 2, NOW_MS);
    hearing_take(&h, &other, NOW_MS);
    hearing_excuse(&h, 1);
    assert_false(hearing_is_over(&h));
    h.is_silent_now = true;
    assert_true(hearing_is_over(&h)); /* the other one's last words are missing */
    assert_int_equal(hearing_verdict(&h, NOW_MS).rank, 3);
    hearing_excuse(&h, 7);
    assert_int_equal(h.owed, 0);
}

static void record_without_an_age_is_not_compared(void **state) {
    struct rdzv_cause own = death(0, 0, true), other = death(3, 20, true);
    struct hearing h;
    (void)state;
    other.age_us = -1;
    hearing_begin(&h, &own, 1, NOW_MS);
    hearing_take(&h, &other, NOW_MS);
    assert_true(h.is_own);
    own.age_us = -1;
    hearing_begin(&h, &own, 1, NOW_MS);
    other = death(3, 20, true);
    hearing_take(&h, &other, NOW_MS);
    assert_true(h.is_own);
    assert_true(hearing_verdict(&h, NOW_MS).age_us < 0);
}

/* The node that says that nothing has failed there may not know it yet. */
static void victim_is_not_told_before_the_others_have_had_their_time(void **state) {
    struct rdzv_cause own = death(0, 0, true), other = death(3, 0, true);
    struct hearing h;
    (void)state;
    own.is_victim = true;
    hearing_begin(&h, &own, 1, NOW_MS);
    hearing_excuse(&h, 1);
    assert_false(hearing_is_over(&h));
    hearing_take(&h, &other, NOW_MS + 5);
    assert_true(hearing_is_over(&h));
    assert_int_equal(hearing_verdict(&h, NOW_MS).rank, 3);
    hearing_begin(&h, &own, 1, NOW_MS);
    h.is_silent_now = true;
    assert_true(hearing_is_over(&h));
    hearing_begin(&h, &own, 0, NOW_MS); /* no other node */
    assert_true(hearing_is_over(&h));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(judge_alone_waits_for_its_last_words),
        cmocka_unit_test(older_death_of_another_node_counts),
        cmocka_unit_test(last_words_tell_the_age_again),
        cmocka_unit_test(judge_hears_of_an_older_death_of_its_own),
        cmocka_unit_test(silent_node_is_waited_for_no_longer_than_its_time),
        cmocka_unit_test(record_without_an_age_is_not_compared),
        cmocka_unit_test(victim_is_not_told_before_the_others_have_had_their_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
