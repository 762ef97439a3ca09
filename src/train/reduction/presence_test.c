/* Who has data: what each combination of ranks comes to, and failures that leave the result alone. */
#include "train/reduction/presence.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "train/reduction/fake_group_test_support.h"

enum { SIZE = 4, OWN = 2 };

static const uint8_t *others; /* of all ranks, as the gather brings them */

static void gather_others(struct muster_group *group, void *receive, size_t block_bytes) {
    assert_int_equal(block_bytes, 1);
    assert_int_equal(((uint8_t *)receive)[group->rank], others[group->rank]);
    memcpy(receive, others, group->size);
}

static int agree(struct muster_group *group, const uint8_t *steps, struct presence_result *out) {
    struct presence presence;
    others = steps;
    assert_int_equal(presence_create(group, &presence), MUSTER_OK);
    assert_int_equal(presence.bytes, group->size);
    int status = presence_agree(&presence, (enum presence_step)steps[group->rank], out);
    presence_free(&presence);
    assert_int_equal(group->allocation_count, 0);
    return status;
}

static void those_with_data_are_counted(void **state) {
    (void)state;
    enum { OUT = PRESENCE_OUT_OF_DATA, ALONE = PRESENCE_WITHOUT_SYNC, SYNC = PRESENCE_WITH_SYNC };
    static const struct {
        uint8_t steps[SIZE];
        struct presence_result expected;
    } cases[] = {
        {{SYNC, SYNC, SYNC, SYNC}, {PRESENCE_WITH_SYNC, 4, 0}},
        {{ALONE, ALONE, ALONE, ALONE}, {PRESENCE_WITHOUT_SYNC, 4, 0}},
        {{OUT, SYNC, OUT, SYNC}, {PRESENCE_WITH_SYNC, 2, 1}},
        {{OUT, OUT, OUT, ALONE}, {PRESENCE_WITHOUT_SYNC, 1, 3}},
        {{OUT, OUT, SYNC, OUT}, {PRESENCE_WITH_SYNC, 1, 2}},
        {{OUT, OUT, OUT, OUT}, {PRESENCE_OUT_OF_DATA, 0, 0}},
    };
    struct muster_group group = {.rank = OWN, .size = SIZE, .gathered = gather_others};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct presence_result result = {PRESENCE_OUT_OF_DATA, 99, 99};
        assert_int_equal(agree(&group, cases[i].steps, &result), MUSTER_OK);
        assert_int_equal(result.step, cases[i].expected.step);
        assert_int_equal(result.active_count, cases[i].expected.active_count);
        assert_int_equal(result.source, cases[i].expected.source);
    }
}

static void ranks_that_differ_are_named(void **state) {
    (void)state;
    struct muster_group group = {.rank = OWN, .size = SIZE, .gathered = gather_others};
    struct presence_result result = {PRESENCE_OUT_OF_DATA, 99, 99};
    const uint8_t steps[SIZE] = {PRESENCE_OUT_OF_DATA, PRESENCE_WITHOUT_SYNC, PRESENCE_OUT_OF_DATA, PRESENCE_WITH_SYNC};
    assert_int_equal(agree(&group, steps, &result), MUSTER_EMISMATCH);
    assert_string_equal(muster_detail(), "rank 1 begins a step without synchronisation, rank 3 one with");
    assert_int_equal(result.active_count, 99);
    assert_int_equal(group.failed, MUSTER_OK); /* all ranks know: nobody is aborted */
}

static void a_failed_gather_is_passed_on(void **state) {
    (void)state;
    const uint8_t steps[SIZE] = {PRESENCE_WITH_SYNC, PRESENCE_WITH_SYNC, PRESENCE_WITH_SYNC, PRESENCE_WITH_SYNC};
    struct muster_group group = {
        .rank = OWN, .size = SIZE, .gathered = gather_others, .fail_at = 2, .fail_code = MUSTER_EPEER};
    struct presence_result result = {PRESENCE_OUT_OF_DATA, 99, 99};
    assert_int_equal(agree(&group, steps, &result), MUSTER_EPEER);
    assert_string_equal(muster_detail(), "agreeing on who has data: the fake's failure");
    assert_int_equal(result.active_count, 99);
}

static void no_memory(void **state) {
    (void)state;
    struct muster_group group = {.size = SIZE, .fail_at = 1, .fail_code = MUSTER_ENOMEM};
    struct presence none = {0};
    assert_int_equal(presence_create(&group, &none), MUSTER_ENOMEM);
    presence_free(&none); /* as it was */
    assert_int_equal(group.allocation_count, 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(those_with_data_are_counted),
        cmocka_unit_test(ranks_that_differ_are_named),
        cmocka_unit_test(a_failed_gather_is_passed_on),
        cmocka_unit_test(no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
