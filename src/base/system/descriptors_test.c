/* The limit on open files. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <sys/resource.h>

#include "base/system/descriptors.h"

static void the_soft_limit_rises_to_the_hard_one(void **state) {
    (void)state;
    struct rlimit limit = {.rlim_cur = 50, .rlim_max = 70};
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(descriptors_limit(), 70);
    descriptors_raise();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_int_equal(limit.rlim_cur, 70);
    assert_int_equal(limit.rlim_max, 70);
    descriptors_raise();
    assert_int_equal(descriptors_limit(), 70);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_soft_limit_rises_to_the_hard_one)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
