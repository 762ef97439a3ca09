/* The published values of FNV-1a. */
#include "base/fnv.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

static void published_values(void **state) {
    (void)state;
    assert_true(fnv_bytes(FNV_BEGIN, NULL, 0) == UINT64_C(0xcbf29ce484222325));
    assert_true(fnv_bytes(FNV_BEGIN, "a", 1) == UINT64_C(0xaf63dc4c8601ec8c));
    assert_true(fnv_bytes(FNV_BEGIN, "foobar", 6) == UINT64_C(0x85944171f73967e8));
}

static void parts_are_the_whole(void **state) {
    (void)state;
    uint64_t whole = fnv_bytes(FNV_BEGIN, "foobar", 6);
    assert_true(fnv_bytes(fnv_bytes(FNV_BEGIN, "foo", 3), "bar", 3) == whole);
    uint64_t hash = FNV_BEGIN;
    for (const char *p = "foobar"; *p; p++) {
        hash = fnv_step(hash, (uint8_t)*p);
    }
    assert_true(hash == whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_values),
        cmocka_unit_test(parts_are_the_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
