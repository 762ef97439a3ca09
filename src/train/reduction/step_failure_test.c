/* A failure is remembered once, and told to those who cannot know it. */
#include "train/reduction/step_failure.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "base/status.h"
#include "train/reduction/fake_group_test_support.h"

static void the_first_failure_stays(void **state) {
    (void)state;
    struct muster_group group = {.size = 2};
    struct step_failure failure = {0};
    assert_int_equal(step_failure_status(&failure), MUSTER_OK);
    (void)status_fail(MUSTER_ENOMEM, "no memory here");
    assert_int_equal(step_failure_set(&failure, &group, MUSTER_ENOMEM), MUSTER_ENOMEM);
    assert_string_equal(group.abort_reason, "no memory here");
    (void)status_fail(MUSTER_EPEER, "what came of it");
    assert_int_equal(step_failure_set(&failure, &group, MUSTER_EPEER), MUSTER_ENOMEM);
    assert_string_equal(muster_detail(), "no memory here");
    (void)status_fail(MUSTER_EMISMATCH, "what came of it");
    assert_int_equal(step_failure_set_unagreed(&failure, &group, MUSTER_EMISMATCH), MUSTER_ENOMEM);
    assert_int_equal(step_failure_status(&failure), MUSTER_ENOMEM);
    assert_string_equal(muster_detail(), "no memory here");
    assert_string_equal(group.abort_reason, "no memory here");
}

static void a_failed_group_is_not_aborted(void **state) {
    (void)state;
    struct muster_group group = {.size = 2, .failed = MUSTER_EPEER};
    struct step_failure failure = {0};
    (void)status_fail(MUSTER_EPEER, "rank 1 has died");
    assert_int_equal(step_failure_set(&failure, &group, MUSTER_EPEER), MUSTER_EPEER);
    assert_string_equal(muster_detail(), "rank 1 has died");
    assert_string_equal(group.abort_reason, "");
    assert_int_equal(group.failed, MUSTER_EPEER);
}

static void a_mismatch_is_known_to_all(void **state) {
    (void)state;
    struct muster_group group = {.size = 2};
    struct step_failure failure = {0};
    (void)status_fail(MUSTER_EMISMATCH, "they differ");
    assert_int_equal(step_failure_set_unagreed(&failure, &group, MUSTER_EMISMATCH), MUSTER_EMISMATCH);
    assert_int_equal(group.failed, MUSTER_OK);
    assert_int_equal(step_failure_status(&failure), MUSTER_EMISMATCH);
    assert_string_equal(muster_detail(), "they differ");
    failure = (struct step_failure){0};
    (void)status_fail(MUSTER_ENOMEM, "no memory here");
    assert_int_equal(step_failure_set_unagreed(&failure, &group, MUSTER_ENOMEM), MUSTER_ENOMEM);
    assert_string_equal(group.abort_reason, "no memory here");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_failure_stays),
        cmocka_unit_test(a_failed_group_is_not_aborted),
        cmocka_unit_test(a_mismatch_is_known_to_all),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
