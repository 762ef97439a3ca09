/* Waits for ranks of which the launcher says that one is lost. */
#include "comm/context/kv_lost.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/status.h"

enum { SIZE = 2, LONG_MS = 60000, SHORT_MS = 700 };
static const char lost_key[] = "muster/lost/3", who[] = "rank 1 (pid 7 on host b) has ended";

struct fixture {
    struct muster_store *root, *prefixed;
    struct kv_lost lost;
    struct comm_kv meeting;
};

static int begin(void **state) {
    static struct fixture fixture;
    struct muster_store_options options = MUSTER_STORE_OPTIONS_INIT;
    options.host = options.bind_host = "127.0.0.1";
    options.is_host = true;
    fixture = (struct fixture){0};
    assert_int_equal(setenv("MUSTER_LOST_KEY", lost_key, 1), 0);
    assert_int_equal(setenv("WORLD_SIZE", "2", 1), 0);
    assert_int_equal(muster_store_open_tcp(&options, &fixture.root), 0);
    assert_int_equal(muster_store_prefix(fixture.root, "muster/world/2-ranks", &fixture.prefixed), 0);
    fixture.meeting = comm_kv_of_store(fixture.prefixed);
    *state = &fixture;
    return 0;
}

static int end(void **state) {
    struct fixture *f = *state;
    muster_store_close(f->prefixed);
    muster_store_close(f->root);
    return 0;
}

static struct comm_kv watch(struct fixture *f) {
    return kv_lost_watch(&f->lost, f->meeting, f->root, SIZE);
}

static void tell(struct fixture *f) {
    assert_int_equal(muster_store_set(f->root, lost_key, who, strlen(who)), 0);
}

static void a_wait_ends_when_a_rank_is_lost(void **state) {
    struct fixture *f = *state;
    struct comm_kv kv = watch(f);
    struct muster_store_value value = {0};
    int64_t began_ns = clock_monotonic_ns();
    tell(f);
    assert_int_equal(kv.get(kv.context, "1/rank/0", LONG_MS, &value), MUSTER_EPEER);
    assert_non_null(strstr(muster_detail(), who));
    assert_true(clock_monotonic_ns() - began_ns < LONG_MS / 2 * CLOCK_NS_PER_MS);
}

/* Who is lost may have come, and been counted, before. */
static void what_is_there_counts(void **state) {
    struct fixture *f = *state;
    struct comm_kv kv = watch(f);
    const char *const keys[] = {"1/rank/0", "1/rank/1"};
    struct muster_store_value values[2] = {{0}};
    tell(f);
    assert_int_equal(kv.set(kv.context, keys[0], "a", 1), 0);
    assert_int_equal(kv.multi_get(kv.context, keys, 2, LONG_MS, values), MUSTER_EPEER);
    assert_int_equal(kv.set(kv.context, keys[1], "b", 1), 0);
    assert_int_equal(kv.multi_get(kv.context, keys, 2, LONG_MS, values), 0);
    assert_int_equal(values[1].len, 1);
    for (int i = 0; i < 2; i++) {
        muster_store_value_free(&values[i]);
    }
}

static void a_time_out_stays_one(void **state) {
    struct fixture *f = *state;
    struct comm_kv kv = watch(f);
    struct muster_store_value value = {0};
    assert_int_equal(kv.get(kv.context, "1/rank/0", SHORT_MS, &value), MUSTER_ETIMEOUT);
    tell(f);
    assert_int_equal(kv.get(kv.context, "1/rank/0", 0, &value), MUSTER_ETIMEOUT); /* a look is no wait */
}

/* As the meeting does where it looks after rank 0, or waits for another one. */
static void a_wait_in_short_parts_ends_as_well(void **state) {
    struct fixture *f = *state;
    struct comm_kv kv = watch(f);
    struct muster_store_value value = {0};
    int code = MUSTER_ETIMEOUT;
    tell(f);
    for (int i = 0; code == MUSTER_ETIMEOUT && i < LONG_MS / 50; i++) {
        code = kv.get(kv.context, "1/rank/0", 50, &value);
    }
    assert_int_equal(code, MUSTER_EPEER);
}

/* Survivors may make groups of their own: those are not of all ranks. */
static void other_groups_are_let_alone(void **state) {
    struct fixture *f = *state;
    assert_ptr_equal(kv_lost_watch(&f->lost, f->meeting, f->root, SIZE - 1).context, f->meeting.context);
    assert_ptr_equal(kv_lost_watch(&f->lost, f->meeting, NULL, SIZE).context, f->meeting.context);
    assert_int_equal(unsetenv("MUSTER_LOST_KEY"), 0);
    assert_ptr_equal(watch(f).context, f->meeting.context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_wait_ends_when_a_rank_is_lost, begin, end),
        cmocka_unit_test_setup_teardown(a_wait_in_short_parts_ends_as_well, begin, end),
        cmocka_unit_test_setup_teardown(what_is_there_counts, begin, end),
        cmocka_unit_test_setup_teardown(a_time_out_stays_one, begin, end),
        cmocka_unit_test_setup_teardown(other_groups_are_let_alone, begin, end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
