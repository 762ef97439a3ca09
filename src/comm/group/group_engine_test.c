/* The group above any engine: one that carries calls out later is asked until they have ended, and given up when the
 * group fails or their time is up. The engine here is a puppet; the two real ones have the same public calls. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/status.h"
#include "comm/group/group_impl.h"

struct puppet {
    struct engine base;
    struct muster_group *group;
    int looks_left; /* until the call has ended; < 0: never */
    int result;
    bool aborts_at_look; /* the program aborts the group meanwhile */
    struct comm_call call;
    uint64_t number;
    uint32_t starts, tests, aborts;
};

static struct puppet puppet;

static int start(struct engine *engine, const struct comm_call *call, uint64_t number, int64_t deadline_ns) {
    struct puppet *p = (struct puppet *)(void *)engine;
    assert_true(deadline_ns > clock_monotonic_ns());
    p->call = *call;
    p->number = number;
    p->starts++;
    return p->looks_left == 0 ? p->result : ENGINE_UNDER_WAY;
}

static int test(struct engine *engine, int64_t patience_ns) {
    struct puppet *p = (struct puppet *)(void *)engine;
    assert_true(patience_ns > 0);
    p->tests++;
    if (p->aborts_at_look) {
        muster_group_abort(p->group, "no more");
    }
    if (p->looks_left > 0) {
        p->looks_left--;
    }
    return p->looks_left == 0 ? p->result : ENGINE_UNDER_WAY;
}

static void abort_call(struct engine *engine) {
    ((struct puppet *)(void *)engine)->aborts++;
}

static void free_puppet(struct engine *engine) {
    (void)engine;
}

static const struct engine_table puppet_table = {
    .name = "puppet", .start = start, .test = test, .abort = abort_call, .free = free_puppet};

/* A group of one with the puppet for its engine. */
static struct muster_group *make_group(int64_t timeout_ms) {
    struct muster_group *group = NULL;
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.timeout_ms = timeout_ms;
    assert_int_equal(muster_group_create_env(&options, &group), 0);
    assert_string_equal(group->engine->table->name, "solo");
    engine_free(group->engine);
    puppet = (struct puppet){.base = {.table = &puppet_table}, .group = group};
    group->engine = &puppet.base;
    return group;
}

static int sum_of(struct muster_group *group) {
    int32_t value = 3, sum = 0;
    return muster_all_reduce(group, &value, &sum, 1, MUSTER_INT32, MUSTER_OP_SUM, NULL);
}

static void a_call_may_be_carried_out_at_once(void **state) {
    (void)state;
    struct muster_group *group = make_group(10000);
    assert_int_equal(sum_of(group), 0);
    assert_int_equal(puppet.starts, 1);
    assert_int_equal(puppet.tests, 0);
    assert_int_equal(puppet.number, 1);
    assert_int_equal(puppet.call.type_bytes, 4);
    assert_true(puppet.call.fingerprint == comm_call_fingerprint(&puppet.call, 1));
    muster_group_free(group);
}

static void a_call_under_way_is_asked_for_until_it_has_ended(void **state) {
    (void)state;
    struct muster_group *group = make_group(10000);
    puppet.looks_left = 5;
    assert_int_equal(sum_of(group), 0);
    assert_int_equal(puppet.tests, 5);
    assert_int_equal(puppet.aborts, 0);
    puppet.looks_left = 2;
    assert_int_equal(sum_of(group), 0);
    assert_int_equal(puppet.number, 2);
    muster_group_free(group);
}

static void a_call_that_fails_later_fails_the_group(void **state) {
    (void)state;
    struct muster_group *group = make_group(10000);
    puppet.looks_left = 3;
    puppet.result = MUSTER_ESYSTEM;
    assert_int_equal(sum_of(group), MUSTER_ESYSTEM);
    assert_non_null(strstr(muster_detail(), "all_reduce of 1 int32, sum"));
    assert_int_equal(puppet.aborts, 0); /* it has ended by itself */
    assert_int_equal(sum_of(group), MUSTER_EGROUP);
    assert_int_equal(puppet.starts, 1);
    muster_group_free(group);
}

static void a_call_is_given_up_when_its_time_is_up(void **state) {
    (void)state;
    struct muster_group *group = make_group(30);
    puppet.looks_left = -1;
    assert_int_equal(sum_of(group), MUSTER_ETIMEOUT);
    assert_int_equal(puppet.aborts, 1);
    assert_non_null(strstr(muster_detail(), "not done within 0.030 s"));
    muster_group_free(group);
}

static void a_call_is_given_up_when_the_group_is_aborted(void **state) {
    (void)state;
    struct muster_group *group = make_group(60000);
    puppet.looks_left = -1;
    puppet.aborts_at_look = true;
    assert_int_equal(sum_of(group), MUSTER_EABORTED);
    assert_int_equal(puppet.aborts, 1);
    assert_non_null(strstr(muster_detail(), "no more"));
    muster_group_free(group);
}

static void an_engine_that_there_is_none_of_is_refused(void **state) {
    (void)state;
    struct muster_group *group = NULL;
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.engine = "gloo";
    assert_int_equal(muster_group_create_env(&options, &group), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "the group's engine is 'gloo'; it can be 'auto', 'muster'"));
    (void)setenv("MUSTER_ENGINE", "glue", 1);
    assert_int_equal(muster_group_create_env(NULL, &group), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "MUSTER_ENGINE is 'glue'"));
    (void)unsetenv("MUSTER_ENGINE");
    assert_null(group);
}

static void a_group_tells_its_engine_and_why(void **state) {
    (void)state;
    struct muster_group *group = NULL;
    assert_int_equal(muster_group_create_env(NULL, &group), 0);
    assert_string_equal(muster_group_engine(group), "solo");
    assert_string_equal(muster_group_engine_reason(group), "a group of one rank");
    muster_group_free(group);
    assert_string_equal(muster_group_engine(NULL), "");
    assert_string_equal(muster_group_engine_reason(NULL), "");
}

/* A group of one has nobody to receive from, and says so. */
static void a_rank_alone_receives_nothing(void **state) {
    (void)state;
    struct muster_group *group = NULL;
    char byte;
    assert_int_equal(muster_group_create_env(NULL, &group), 0);
    assert_int_equal(muster_receive(group, &byte, 1, MUSTER_UINT8, MUSTER_ANY_RANK, 0, NULL, NULL), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "nobody to receive from"));
    muster_group_free(group);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_call_may_be_carried_out_at_once),
        cmocka_unit_test(a_call_under_way_is_asked_for_until_it_has_ended),
        cmocka_unit_test(a_call_that_fails_later_fails_the_group),
        cmocka_unit_test(a_call_is_given_up_when_its_time_is_up),
        cmocka_unit_test(a_call_is_given_up_when_the_group_is_aborted),
        cmocka_unit_test(an_engine_that_there_is_none_of_is_refused),
        cmocka_unit_test(a_group_tells_its_engine_and_why),
        cmocka_unit_test(a_rank_alone_receives_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
