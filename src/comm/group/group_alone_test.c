/* A program that no launcher has started: a world of one rank, made without a store, and what it says when the
 * environment is half of a launcher's. */
#include <muster/collective.h>
#include <muster/group.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/str.h"
#include "comm/context/kv.h"

static const char *const names[] = {"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK"};

static int forget_launcher(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)unsetenv(names[i]);
    }
    return 0;
}

static void check_collectives(struct muster_group *group) {
    float sum = 3, gathered = 0;
    struct muster_work *work = NULL, *works[2] = {NULL, NULL};
    size_t index = 2;
    assert_int_equal(muster_all_reduce(group, &sum, &sum, 1, MUSTER_FLOAT32, MUSTER_OP_AVERAGE, NULL), 0);
    assert_true(sum == 3);
    assert_int_equal(muster_scan(group, &sum, &gathered, 1, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL), 0);
    assert_true(gathered == 3);
    gathered = 0;
    assert_int_equal(muster_exscan(group, &sum, &gathered, 1, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL), 0);
    assert_int_equal(muster_exscan(group, &sum, NULL, 1, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL), 0);
    assert_true(gathered == 0); /* there is nobody before the first */
    assert_int_equal(muster_all_gather(group, &sum, &gathered, 1, MUSTER_FLOAT32, &work), 0);
    assert_int_equal(muster_work_wait(&work), 0);
    assert_true(gathered == 3);
    assert_int_equal(muster_all_gather(group, &sum, &gathered, 1, MUSTER_FLOAT32, &works[1]), 0);
    assert_int_equal(muster_work_wait_any(works, 2, -1, &index), 0);
    assert_int_equal(index, 1);
    assert_int_equal(muster_barrier(group, &works[0]), 0);
    assert_int_equal(muster_work_wait_all(works, 2, 10000), 0);
    assert_true(!works[0] && !works[1]);
    assert_int_equal(muster_barrier(group, NULL), 0);
}

static void without_a_launcher_the_process_is_a_world_of_one(void **state) {
    (void)state;
    for (int round = 0; round < 2; round++) { /* groups may be made again */
        struct muster_group *group = NULL, *part = NULL, *survivors = NULL;
        assert_int_equal(muster_group_create_env(NULL, &group), 0);
        assert_int_equal(muster_group_size(group), 1);
        assert_int_equal(muster_group_rank(group), 0);
        assert_string_equal(muster_group_name(group), "world");
        check_collectives(group);
        assert_int_equal(muster_group_split(group, 0, 0, NULL, &part), 0);
        check_collectives(part);
        muster_group_abort(part, "try a shrink");
        assert_int_equal(muster_group_shrink(part, 10000, &survivors), 0);
        check_collectives(survivors);
        muster_group_free(survivors);
        muster_group_free(part);
        muster_group_free(group);
    }
}

static void half_of_a_launchers_environment_is_an_error_that_names_what_is_missing(void **state) {
    (void)state;
    struct muster_group *group = NULL;
    assert_int_equal(setenv("RANK", "0", 1), 0);
    assert_int_equal(setenv("MASTER_ADDR", "", 1), 0); /* as good as not set */
    assert_int_equal(muster_group_create_env(NULL, &group), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "MASTER_ADDR, MASTER_PORT, WORLD_SIZE are not set, but RANK is"));
    assert_int_equal(setenv("MASTER_ADDR", "127.0.0.1", 1), 0);
    assert_int_equal(setenv("MASTER_PORT", "0", 1), 0);
    assert_int_equal(muster_group_create_env(NULL, &group), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "WORLD_SIZE is not set, but MASTER_ADDR, MASTER_PORT, RANK are"));
    assert_null(group);
    assert_int_equal(muster_group_create_env(NULL, NULL), MUSTER_EINVAL);
}

static void its_keys_are_a_list_in_memory(void **state) {
    (void)state;
    struct comm_kv_alone *alone = NULL;
    struct comm_kv kv;
    struct muster_store_value values[2] = {{0}, {0}};
    const char *const keys[] = {"a", "b"};
    assert_int_equal(comm_kv_alone_create(&alone, &kv), 0);
    assert_int_equal(kv.set(kv.context, "a", "one", 3), 0);
    assert_int_equal(kv.set(kv.context, "a", "two", 3), 0);
    assert_int_equal(kv.get(kv.context, "a", 0, &values[0]), 0);
    assert_string_equal(values[0].data, "two");
    muster_store_value_free(&values[0]);
    assert_int_equal(kv.multi_get(kv.context, keys, 2, 600000, values), MUSTER_ETIMEOUT); /* at once */
    assert_null(values[0].data);
    assert_int_equal(kv.set_if_absent(kv.context, "b", NULL, 0, &values[0]), 0);
    assert_int_equal(values[0].len, 0);
    muster_store_value_free(&values[0]);
    assert_int_equal(kv.set_if_absent(kv.context, "a", "three", 5, &values[0]), 0);
    assert_string_equal(values[0].data, "two");
    muster_store_value_free(&values[0]);
    assert_int_equal(kv.multi_get(kv.context, keys, 2, 0, values), 0);
    assert_int_equal(values[1].len, 0);
    muster_store_value_free(&values[0]);
    muster_store_value_free(&values[1]);
    assert_int_equal(kv.remove(kv.context, "a"), 0);
    assert_int_equal(kv.remove(kv.context, "a"), 0);
    assert_int_equal(kv.get(kv.context, "a", 0, &values[0]), MUSTER_ETIMEOUT);
    assert_int_equal(kv.set(kv.context, "a", "four", 4), 0);
    char key[16];
    int code = 0, count = 2;
    for (; code == 0 && count < 100000; count++) {
        (void)str_format(key, sizeof key, "%d", count);
        code = kv.set(kv.context, key, "", 0);
    }
    assert_int_equal(code, MUSTER_ELIMIT);
    comm_kv_alone_free(alone);
    comm_kv_alone_free(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(without_a_launcher_the_process_is_a_world_of_one, forget_launcher),
        cmocka_unit_test_setup(half_of_a_launchers_environment_is_an_error_that_names_what_is_missing, forget_launcher),
        cmocka_unit_test(its_keys_are_a_list_in_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
