/* Valid and invalid UTF-8 sequences. */
#include "base/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void every_boundary_is_recognised(void **state) {
    (void)state;
    const struct {
        const char *bytes;
        size_t count, expected;
        uint32_t value;
    } cases[] = {
        {"a", 1, 1, 'a'},
        {"\x00", 1, 1, 0},
        {"\x7f", 1, 1, 0x7F},
        {"\x80", 1, 0, 0},
        {"\xc1\xbf", 2, 0, 0},
        {"\xc2\x80", 2, 2, 0x80},
        {"\xdf\xbf", 2, 2, 0x7FF},
        {"\xe0\x9f\xbf", 3, 0, 0},
        {"\xe0\xa0\x80", 3, 3, 0x800},
        {"\xed\x9f\xbf", 3, 3, 0xD7FF},
        {"\xed\xa0\x80", 3, 0, 0},
        {"\xee\x80\x80", 3, 3, 0xE000},
        {"\xef\xbf\xbf", 3, 3, 0xFFFF},
        {"\xf0\x8f\xbf\xbf", 4, 0, 0},
        {"\xf0\x90\x80\x80", 4, 4, 0x10000},
        {"\xf4\x8f\xbf\xbf", 4, 4, 0x10FFFF},
        {"\xf4\x90\x80\x80", 4, 0, 0},
        {"\xf5\x80\x80\x80", 4, 0, 0},
        {"\xff", 1, 0, 0},
        {"\xe2\x28\xa1", 3, 0, 0},
        {"\xe2\x82\x28", 3, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint8_t *bytes = (const uint8_t *)cases[i].bytes;
        assert_int_equal(utf8_length(bytes, cases[i].count), cases[i].expected);
        if (cases[i].expected > 0) {
            assert_int_equal(utf8_decode(bytes, cases[i].expected), cases[i].value);
        }
        for (size_t cut = 1; cut < cases[i].expected; cut++) {
            assert_int_equal(utf8_length(bytes, cut), 0);
        }
    }
}

static void a_text_is_valid_as_a_whole(void **state) {
    (void)state;
    assert_true(utf8_is_valid(""));
    assert_true(utf8_is_valid("plain"));
    assert_true(utf8_is_valid("\xe2\x82\xac and \xf0\x9f\x98\x80"));
    assert_false(utf8_is_valid("\xff"));
    assert_false(utf8_is_valid("cut \xe2\x82"));
    assert_false(utf8_is_valid("\xe2\x82 inside"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_boundary_is_recognised),
        cmocka_unit_test(a_text_is_valid_as_a_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
