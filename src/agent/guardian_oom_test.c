/* The out-of-memory counter: both spellings of the file, and claims against a counter that rises. */
#include "agent/guardian_oom.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static void both_formats(void **state) {
    uint64_t count = 7;
    (void)state;
    assert_true(guardian_oom_parse("oom_kill_disable 0\nunder_oom 0\noom_kill 12\n", &count));
    assert_int_equal(count, 12);
    assert_true(guardian_oom_parse("low 0\nhigh 0\nmax 9\noom 3\noom_kill 2\noom_group_kill 5\n", &count));
    assert_int_equal(count, 2);
    assert_false(guardian_oom_parse("oom_kill_disable 0\nunder_oom 0\n", &count)); /* before Linux 4.13 */
    assert_false(guardian_oom_parse("", &count));
    assert_false(guardian_oom_parse("oom 3", &count));
}

static void counter_write(int fd, unsigned count) {
    char text[64];
    int length = snprintf(text, sizeof text, "oom 9\noom_kill %u\n", count);
    assert_int_equal(ftruncate(fd, 0), 0);
    assert_int_equal(pwrite(fd, text, (size_t)length, 0), length);
}

static void each_victim_is_claimed_once(void **state) {
    char path[] = "/tmp/guardian_oom_test.XXXXXX";
    struct guardian_oom oom = {.fd = mkstemp(path), .seen = 3};
    (void)state;
    assert_true(oom.fd >= 0);
    assert_int_equal(unlink(path), 0);
    counter_write(oom.fd, 3);
    assert_false(guardian_oom_claim(&oom));
    counter_write(oom.fd, 5);
    assert_true(guardian_oom_claim(&oom));
    assert_true(guardian_oom_claim(&oom));
    assert_false(guardian_oom_claim(&oom));
    guardian_oom_done(&oom);
    assert_false(guardian_oom_claim(&oom)); /* unknown is "no" */
}

static void this_machine(void **state) {
    struct guardian_oom oom;
    (void)state;
    guardian_oom_init(&oom); /* whether there is a counter depends on the machine */
    assert_false(guardian_oom_claim(&oom) && oom.fd < 0);
    guardian_oom_done(&oom);
    assert_int_equal(oom.fd, -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_formats),
        cmocka_unit_test(each_victim_is_claimed_once),
        cmocka_unit_test(this_machine),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
