/* Pauses that grow, and endpoints that take turns. */
#include "net/retry.h"

#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void pauses_double_up_to_the_longest(void **state) {
    static const struct retry_pace pace = {1, 250};
    static const uint64_t expected[] = {1, 2, 4, 8, 16, 32, 64, 128, 250, 250};
    (void)state;
    for (unsigned i = 0; i < sizeof expected / sizeof *expected; i++) {
        assert_int_equal(retry_pause_ms(&pace, i + 1, 1), expected[i]);
    }
    assert_int_equal(retry_pause_ms(&pace, UINT_MAX, 1), 250);
    assert_int_equal(retry_pause_ms(&(struct retry_pace){100, 100}, 7, 1), 100);
    assert_int_equal(retry_pause_ms(&(struct retry_pace){1, UINT64_MAX}, UINT_MAX, 1), UINT64_MAX);
}

static void the_others_are_asked_at_once(void **state) {
    static const struct retry_pace pace = {100, 1000};
    static const uint64_t expected[] = {0, 0, 100, 0, 0, 200, 0, 0, 400};
    (void)state;
    for (unsigned i = 0; i < sizeof expected / sizeof *expected; i++) {
        assert_int_equal(retry_pause_ms(&pace, i + 1, 3), expected[i]);
    }
}

static void endpoints_take_turns(void **state) {
    struct retry_turn turn = {.count = 3}, alone = {.count = 1};
    (void)state;
    assert_true(retry_turn_move_on(&turn, 0));
    assert_false(retry_turn_move_on(&turn, 0)); /* somebody else has found that out */
    assert_true(retry_turn_move_on(&turn, 1));
    assert_true(retry_turn_move_on(&turn, 2));
    assert_int_equal(turn.current, 0);
    assert_false(retry_turn_move_on(&alone, 0));
    assert_int_equal(retry_share_ms(&turn, 3000, 5000), 1001);
    assert_int_equal(retry_share_ms(&turn, UINT64_MAX, 5000), 5000);
    assert_int_equal(retry_share_ms(&turn, 0, 5000), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pauses_double_up_to_the_longest),
        cmocka_unit_test(the_others_are_asked_at_once),
        cmocka_unit_test(endpoints_take_turns),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
