/* Leaves tests out of a run. MUSTER_TEST_EXCEPT is a file with lines "program test  # reason"
 * (tests/engines/except-mpi): these are not run, and are named with their reasons. MUSTER_TEST_ONLY is one test, which
 * is run alone. Every unit test that has ranks is linked with it. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { LINE_BYTES = 512 };

/* The linker puts it in the place of cmocka's (muster_unit_test() in cmake/muster.cmake). */
int __real__cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t count,
                                   CMFixtureFunction set_up, CMFixtureFunction tear_down);
int __wrap__cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t count,
                                   CMFixtureFunction set_up, CMFixtureFunction tear_down);

/* Does a line "program test  # reason" speak of this one? *out_reason points into the line. */
static int line_is_of(char *line, const char *test, const char **out_reason) {
    char *reason = strchr(line, '#'), *rest = NULL;
    *out_reason = "";
    if (reason) {
        *reason++ = '\0';
        *out_reason = reason + strspn(reason, " ");
    }
    const char *program = strtok_r(line, " \n", &rest);
    const char *name = strtok_r(NULL, " \n", &rest);
    return program && name && strcmp(program, program_invocation_short_name) == 0 && strcmp(name, test) == 0;
}

/* Says so. */
static int is_excepted(const char *path, const char *test) {
    char line[LINE_BYTES];
    const char *reason;
    FILE *file = fopen(path, "re");
    if (!file) {
        fail_msg("MUSTER_TEST_EXCEPT=%s cannot be read", path);
    }
    int is_named = 0;
    while (!is_named && fgets(line, sizeof line, file)) {
        is_named = line_is_of(line, test, &reason);
    }
    (void)fclose(file);
    if (is_named) {
        print_message("[ EXCEPTED ] %s: %s", test, reason);
    }
    return is_named;
}

static int is_to_run(const char *test) {
    const char *except = getenv("MUSTER_TEST_EXCEPT"), *only = getenv("MUSTER_TEST_ONLY");
    return (!only || strcmp(only, test) == 0) && (!except || !is_excepted(except, test));
}

int __wrap__cmocka_run_group_tests(const char *group, const struct CMUnitTest *tests, size_t count,
                                   CMFixtureFunction set_up, CMFixtureFunction tear_down) {
    size_t kept = 0;
    struct CMUnitTest *chosen = calloc(count + 1, sizeof *chosen);
    if (!chosen) {
        return 1;
    }
    for (size_t i = 0; i < count; i++) {
        if (is_to_run(tests[i].name)) {
            chosen[kept++] = tests[i];
        }
    }
    int failed = kept > 0 ? __real__cmocka_run_group_tests(group, chosen, kept, set_up, tear_down) : 0;
    free(chosen);
    return failed;
}
