/* The job's budgets: what is allowed, what a window forgets, what is learnt from nodes, and the words. */
#include "rendezvous/coordinator/coordinator_budget.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { UNLIMITED = -1 };

static struct coordinator_budget budget; /* large */

static void begin(int failures, int changes, int preemptions, int64_t window_ms) {
    const int allowed[COORDINATOR_CHARGE_COUNT] = {failures, changes, preemptions};
    struct coordinator_limits limits = {.window_ms = window_ms};
    for (size_t i = 0; i < COORDINATOR_CHARGE_COUNT; i++) {
        limits.is_limited[i] = allowed[i] != UNLIMITED;
        limits.allowed[i] = allowed[i] != UNLIMITED ? (uint32_t)allowed[i] : 0;
    }
    coordinator_budget_init(&budget, &limits);
}

static bool fails_at(int64_t now_ms) {
    return !coordinator_budget_charge(&budget, COORDINATOR_CHARGE_FAILURE, now_ms);
}

static void assert_described(enum coordinator_charge charge, int64_t now_ms, const char *expected) {
    char text[COORDINATOR_BUDGET_TEXT_SIZE];
    coordinator_budget_describe(&budget, charge, now_ms, text);
    assert_string_equal(text, expected);
}

static void assert_explained(enum coordinator_charge charge, int64_t now_ms, const char *expected) {
    char text[COORDINATOR_BUDGET_TEXT_SIZE];
    coordinator_budget_explain(&budget, charge, now_ms, text);
    assert_string_equal(text, expected);
}

static void kinds_are_charged_apart(void **state) {
    (void)state;
    begin(1, 0, UNLIMITED, 0);
    assert_true(coordinator_budget_allows(&budget, COORDINATOR_CHARGE_FAILURE, 0));
    assert_true(coordinator_budget_charge(&budget, COORDINATOR_CHARGE_FAILURE, 5000));
    assert_described(COORDINATOR_CHARGE_FAILURE, 5000, "charged 1 failure (1 of 1)");
    assert_false(coordinator_budget_allows(&budget, COORDINATOR_CHARGE_FAILURE, 5000));
    for (uint32_t i = 0; i < 5000; i++) {
        assert_true(coordinator_budget_charge(&budget, COORDINATOR_CHARGE_PREEMPTION, i));
    }
    assert_described(COORDINATOR_CHARGE_PREEMPTION, 5000, "charged 1 pre-emption (5000 so far)");
    assert_false(coordinator_budget_charge(&budget, COORDINATOR_CHARGE_CHANGE, 6000));
    assert_explained(COORDINATOR_CHARGE_CHANGE, 6000,
                     "1 membership change, and 0 are allowed (--rdzv-conf max_membership_changes raises that)");
    assert_true(fails_at(9001));
    assert_explained(COORDINATOR_CHARGE_FAILURE, 9001,
                     "2 failures within 5 s, and 1 is allowed (--max-restarts raises that)");
    struct coordinator_charges charges = coordinator_budget_charges(&budget);
    assert_int_equal(charges.failures, 2);
    assert_int_equal(charges.changes, 1);
    assert_int_equal(charges.preemptions, 5000);
}

static void window_forgets(void **state) {
    (void)state;
    begin(2, 2, 2, 600000);
    assert_false(fails_at(0));
    assert_false(fails_at(1000));
    assert_described(COORDINATOR_CHARGE_FAILURE, 1000, "charged 1 failure (2 of 2 within 600 s)");
    assert_false(coordinator_budget_allows(&budget, COORDINATOR_CHARGE_FAILURE, 599999));
    assert_true(coordinator_budget_allows(&budget, COORDINATOR_CHARGE_FAILURE, 600000));
    assert_false(fails_at(600000)); /* the first one has just gone */
    assert_false(fails_at(601000));
    assert_true(fails_at(601001));
    assert_explained(COORDINATOR_CHARGE_FAILURE, 601001,
                     "3 failures within 2 s, and 2 are allowed (--max-restarts raises that)");
    assert_int_equal(coordinator_budget_charges(&budget).failures, 5);
}

/* The ring goes round many times, and its largest limit is exact. */
static void window_of_the_largest_limit(void **state) {
    (void)state;
    begin(COORDINATOR_WINDOW_CHARGES_MAX, 0, 0, 1000000);
    for (int64_t i = 0; i < 10000; i++) {
        assert_false(fails_at(i * 1000)); /* 1000 of them are in the window */
    }
    int64_t now_ms = 9999000;
    for (uint32_t i = 1000; i < COORDINATOR_WINDOW_CHARGES_MAX; i++) {
        assert_false(fails_at(now_ms));
    }
    assert_true(fails_at(now_ms));
}

static void numbers_of_another_coordinator(void **state) {
    (void)state;
    begin(3, UNLIMITED, 0, 0);
    coordinator_budget_learn(&budget, &(struct coordinator_charges){.failures = 2, .changes = 7});
    coordinator_budget_learn(&budget, &(struct coordinator_charges){.failures = 1, .changes = 9});
    assert_int_equal(coordinator_budget_charges(&budget).failures, 2);
    assert_int_equal(coordinator_budget_charges(&budget).changes, 9);
    assert_false(fails_at(1000));
    assert_true(fails_at(2000));
    assert_explained(COORDINATOR_CHARGE_FAILURE, 2000, "4 failures, and 3 are allowed (--max-restarts raises that)");
    /* With a window they are in no window: only the total knows them. */
    begin(1, 0, 0, 1000);
    coordinator_budget_learn(&budget, &(struct coordinator_charges){.failures = 5});
    assert_false(fails_at(1000));
    assert_described(COORDINATOR_CHARGE_FAILURE, 1000, "charged 1 failure (1 of 1 within 1 s)");
    assert_int_equal(coordinator_budget_charges(&budget).failures, 6);
}

static void highest_number_stays(void **state) {
    (void)state;
    begin(UNLIMITED, 3, 0, 0);
    coordinator_budget_learn(&budget, &(struct coordinator_charges){.failures = UINT32_MAX, .changes = UINT32_MAX});
    assert_false(fails_at(0));
    assert_false(coordinator_budget_charge(&budget, COORDINATOR_CHARGE_CHANGE, 0));
    assert_int_equal(coordinator_budget_charges(&budget).failures, UINT32_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_are_charged_apart),     cmocka_unit_test(window_forgets),
        cmocka_unit_test(window_of_the_largest_limit), cmocka_unit_test(numbers_of_another_coordinator),
        cmocka_unit_test(highest_number_stays),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
