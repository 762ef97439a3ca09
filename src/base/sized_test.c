/* Structs of older and newer programs; see sized.h. */
#include "base/sized.h"

#include <muster/version.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"

struct older {
    size_t size;
    uint64_t a;
};
struct own {
    size_t size;
    uint64_t a, b;
};
struct newer {
    size_t size;
    uint64_t a, b, c;
};

static int read_options(const void *given, struct own *out) {
    *out = (struct own){sizeof *out, 1, 2};
    return sized_read_options(out, sizeof *out, given, "own", "OWN_INIT");
}

static void options_of_every_version_are_read(void **state) {
    (void)state;
    struct own out;
    assert_int_equal(read_options(NULL, &out), 0);
    assert_true(out.a == 1 && out.b == 2);
    struct older older = {sizeof older, 10};
    assert_int_equal(read_options(&older, &out), 0);
    assert_true(out.size == sizeof out && out.a == 10 && out.b == 2); /* what the older one lacks keeps its default */
    struct own same = {sizeof same, 10, 20};
    assert_int_equal(read_options(&same, &out), 0);
    assert_true(out.a == 10 && out.b == 20);
    struct newer newer = {sizeof newer, 10, 20, 0};
    assert_int_equal(read_options(&newer, &out), 0);
    assert_true(out.size == sizeof out && out.a == 10 && out.b == 20);
    newer.c = UINT64_C(1) << 56; /* the last byte counts */
    assert_int_equal(read_options(&newer, &out), MUSTER_EUNSUPPORTED);
    assert_non_null(strstr(muster_detail(), "struct own has 32 bytes, of which libmuster " MUSTER_VERSION_TEXT));
}

static void options_without_their_initializer_are_refused(void **state) {
    (void)state;
    struct own out, zeroed = {0}, garbage = {SIZE_MAX / 3, 0, 0};
    assert_int_equal(read_options(&zeroed, &out), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "was not made with OWN_INIT: its size is 0"));
    assert_int_equal(read_options(&garbage, &out), MUSTER_EINVAL);
    garbage.size = SIZED_BYTES_MAX + 1;
    assert_int_equal(read_options(&garbage, &out), MUSTER_EINVAL);
}

static void arrays_have_the_callers_stride(void **state) {
    (void)state;
    struct sized_array array;
    const struct newer newer[] = {{1, 2, 3, 0}, {4, 5, 6, 0}};
    const struct older older[] = {{1, 2}, {4, 5}};
    assert_int_equal(sized_read_array(&array, sizeof(struct own), newer, sizeof *newer, 2, sizeof *older, "own"), 0);
    const struct own *items = array.items;
    assert_true(items[1].size == 4 && items[1].a == 5 && items[1].b == 6);
    free(array.owned);
    assert_int_equal(sized_read_array(&array, sizeof(struct own), older, sizeof *older, 2, sizeof *older, "own"), 0);
    items = array.items;
    assert_true(items[0].a == 2 && items[0].b == 0 && items[1].size == 4);
    free(array.owned);
    assert_int_equal(sized_read_array(&array, sizeof *newer, newer, sizeof *newer, 2, sizeof *older, "own"), 0);
    assert_ptr_equal(array.items, newer); /* no copy where there is no need */
    assert_null(array.owned);
    assert_int_equal(sized_read_array(&array, sizeof(struct own), older, 8, 2, sizeof *older, "own"), MUSTER_EINVAL);
    assert_int_equal(sized_read_array(&array, sizeof(struct own), NULL, 16, 2, 16, "own"), MUSTER_EINVAL);
    assert_int_equal(sized_read_array(&array, sizeof(struct own), NULL, 16, 0, 16, "own"), 0);
}

static void results_fill_the_callers_struct(void **state) {
    (void)state;
    const struct own own = {1, 2, 3};
    struct older older;
    struct newer newer;
    memset(&newer, 0xff, sizeof newer);
    sized_write(&older, sizeof older, &own, sizeof own);
    assert_true(older.size == 1 && older.a == 2);
    sized_write(&newer, sizeof newer, &own, sizeof own);
    assert_true(newer.b == 3 && newer.c == 0);
}

static void the_version_is_that_of_the_header(void **state) {
    (void)state;
    assert_int_equal(muster_version(), MUSTER_VERSION);
    assert_string_equal(muster_version_text(), MUSTER_VERSION_TEXT);
    int major = 0, minor = 0, patch = 0;
    char *rest = NULL;
    major = (int)strtol(MUSTER_VERSION_TEXT, &rest, 10);
    minor = (int)strtol(rest + 1, &rest, 10);
    patch = (int)strtol(rest + 1, &rest, 10);
    assert_int_equal(major * 10000 + minor * 100 + patch, MUSTER_VERSION);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_of_every_version_are_read),
        cmocka_unit_test(options_without_their_initializer_are_refused),
        cmocka_unit_test(arrays_have_the_callers_stride),
        cmocka_unit_test(results_fill_the_callers_struct),
        cmocka_unit_test(the_version_is_that_of_the_header),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
