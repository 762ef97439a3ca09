/* Reading cgroups: made-up folders of both versions, and one's own. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/cgroup.h"
#include "base/str.h"

static char top[64];
static const char *const files[] = {
    "job/memory.max", "job/memory.current", "job/memory.stat", "job/memory.limit_in_bytes", "job/memory.usage_in_bytes",
    "memory.max",     "memory.current",     "memory.stat",     "memory.limit_in_bytes",     "memory.usage_in_bytes"};

static void put(const char *name, const char *text) {
    char path[256];
    assert_true(str_format(path, sizeof path, "%s/%s", top, name));
    FILE *file = fopen(path, "we");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static int make(void **state) {
    char path[256];
    (void)state;
    (void)str_copy(top, sizeof top, "/tmp/cgroup-test-XXXXXX");
    return mkdtemp(top) && str_format(path, sizeof path, "%s/job", top) ? mkdir(path, 0755) : -1;
}

static int unmake(void **state) {
    char path[256];
    (void)state;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        (void)str_format(path, sizeof path, "%s/%s", top, files[i]);
        (void)unlink(path);
    }
    (void)str_format(path, sizeof path, "%s/job", top);
    return rmdir(path) == 0 ? rmdir(top) : -1;
}

static bool room_of_job(bool is_v1, struct cgroup_room *out) {
    char path[256];
    assert_true(str_format(path, sizeof path, "%s/job", top));
    return cgroup_room_of(path, is_v1, out);
}

static void what_is_cached_counts_as_left(void **state) {
    (void)state;
    struct cgroup_room room;
    put("job/memory.max", "1000000\n");
    put("job/memory.current", "900000\n");
    put("job/memory.stat", "anon 200000\nactive_anon 1\ninactive_file 300000\nactive_file 100000\n");
    assert_true(room_of_job(false, &room));
    assert_true(room.limit_bytes == 1000000 && room.left_bytes == 500000);
    assert_non_null(strstr(room.folder, "/job"));
}

static void the_narrowest_on_the_way_up_counts(void **state) {
    (void)state;
    struct cgroup_room room;
    put("job/memory.max", "max\n");
    put("job/memory.current", "900000\n");
    assert_false(room_of_job(false, &room)); /* no limit anywhere */
    put("memory.max", "1000000\n");
    put("memory.current", "1000001\n");
    assert_true(room_of_job(false, &room));
    assert_int_equal(room.left_bytes, 0); /* more is used than is allowed */
    assert_string_equal(room.folder, top);
    put("job/memory.max", "900001\n");
    put("memory.max", "5000000\n");
    assert_true(room_of_job(false, &room));
    assert_int_equal(room.left_bytes, 1);
    assert_int_equal(room.limit_bytes, 900001);
}

static void version_1_has_other_names(void **state) {
    (void)state;
    struct cgroup_room room;
    put("memory.limit_in_bytes", "9223372036854771712\n"); /* which means none */
    put("memory.usage_in_bytes", "3000\n");
    put("job/memory.limit_in_bytes", "5000\n");
    put("job/memory.usage_in_bytes", "3000\n");
    put("job/memory.stat", "inactive_file 1\ntotal_inactive_file 100\ntotal_active_file 200\n");
    assert_true(room_of_job(true, &room));
    assert_true(room.limit_bytes == 5000 && room.left_bytes == 2300);
}

static void ones_own_can_be_asked_for(void **state) {
    (void)state;
    struct cgroup_room room;
    if (cgroup_memory_room(&room)) {
        assert_true(room.left_bytes > 0 && room.left_bytes <= room.limit_bytes && room.folder[0] == '/');
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_cached_counts_as_left, make, unmake),
        cmocka_unit_test_setup_teardown(the_narrowest_on_the_way_up_counts, make, unmake),
        cmocka_unit_test_setup_teardown(version_1_has_other_names, make, unmake),
        cmocka_unit_test(ones_own_can_be_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
