/* What is in a library, what is not, and a library that is not there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "base/library.h"

static void a_function_is_found_and_works(void **state) {
    (void)state;
    const char *reason = NULL;
    double (*cosine)(double) = NULL;
    void *library = library_open("libm.so.6", &reason);
    assert_non_null(library);
    assert_true(library_find(library, "cos", &cosine, sizeof cosine));
    assert_true(cosine(0.0) == 1.0);
}

static void what_is_not_there_is_left_as_it_was(void **state) {
    (void)state;
    const char *reason = NULL;
    void (*before)(void **) = what_is_not_there_is_left_as_it_was, (*found)(void **) = before;
    void *library = library_open("libm.so.6", &reason);
    assert_non_null(library);
    assert_false(library_find(library, "no_such_function", &found, sizeof found));
    assert_true(found == before);
}

static void a_missing_library_is_named(void **state) {
    (void)state;
    const char *reason = NULL;
    assert_null(library_open("libno-such-library.so.1", &reason));
    assert_non_null(strstr(reason, "libno-such-library.so.1"));
}

static void a_library_is_not_loaded_by_asking_for_it(void **state) {
    (void)state;
    const char *reason = NULL;
    assert_null(library_loaded("libresolv.so.2"));
    assert_null(library_loaded("libno-such-library.so.1"));
    void *library = library_open("libresolv.so.2", &reason);
    assert_non_null(library);
    assert_ptr_equal(library_loaded("libresolv.so.2"), library);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_function_is_found_and_works),
        cmocka_unit_test(what_is_not_there_is_left_as_it_was),
        cmocka_unit_test(a_missing_library_is_named),
        cmocka_unit_test(a_library_is_not_loaded_by_asking_for_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
