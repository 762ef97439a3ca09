/* Leaves tests of cmocka out of a run (base/testing/parts_test_support.h). Every unit test is linked with it. */
#include "base/testing/parts_test_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

enum { TESTS_MAX = 256 }; /* of a program */

/* The linker puts it in the place of cmocka's (muster_unit_test() in cmake/muster.cmake). */
int __real__cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t count,
                                   CMFixtureFunction set_up, CMFixtureFunction tear_down);
int __wrap__cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t count,
                                   CMFixtureFunction set_up, CMFixtureFunction tear_down);

int __wrap__cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t count,
                                   CMFixtureFunction set_up, CMFixtureFunction tear_down) {
    static struct CMUnitTest chosen[TESTS_MAX]; /* no memory: some programs have it fail */
    size_t kept = 0;
    if (count > TESTS_MAX) {
        print_error("%s has %zu tests: raise TESTS_MAX in %s\n", group, count, __FILE__);
        return 1;
    }
    for (size_t i = 0; i < count; i++) {
        if (part_is_wanted(tests[i].name)) {
            chosen[kept++] = tests[i];
        }
    }
    return kept > 0 ? __real__cmocka_run_group_tests(group, chosen, kept, set_up, tear_down) : 0;
}
