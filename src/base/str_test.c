/* Strict parsing, bounded copying and the distance behind "did you mean". */
#include "base/str.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void integers_are_read_as_python_reads_them(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool good;
        int64_t value;
    } rows[] = {
        {"0", true, 0},
        {"-0", true, 0},
        {"007", true, 7},
        {"+5", true, 5},
        {" \t42\n", true, 42},
        {"1_000_000", true, 1000000},
        {"9223372036854775807", true, INT64_MAX},
        {"-9223372036854775808", true, INT64_MIN},
        {"9223372036854775808", false, 0},
        {"-9223372036854775809", false, 0},
        {"99999999999999999999999999", false, 0},
        {"18446744073709551616", false, 0},
        {"", false, 0},
        {" ", false, 0},
        {"-", false, 0},
        {"+-1", false, 0},
        {"- 1", false, 0},
        {"_1", false, 0},
        {"1_", false, 0},
        {"1__0", false, 0},
        {"1 2", false, 0},
        {"0x10", false, 0},
        {"1.0", false, 0},
        {"1e3", false, 0},
        {"five", false, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t value = 77;
        bool good = str_parse_i64(rows[i].text, &value);
        if (good != rows[i].good || value != (rows[i].good ? rows[i].value : 77)) {
            fail_msg("\"%s\": %s, %lld", rows[i].text, good ? "accepted" : "rejected", (long long)value);
        }
    }
}

static void doubles_are_finite_and_whole(void **state) {
    (void)state;
    static const struct {
        const char *text;
        bool good;
        double value;
    } rows[] = {
        {"0.1", true, 0.1},  {" 3 ", true, 3},   {"1e-3", true, 0.001}, {"-2.5", true, -2.5}, {".5", true, 0.5},
        {"", false, 0},      {" ", false, 0},    {"nan", false, 0},     {"inf", false, 0},    {"-inf", false, 0},
        {"1e999", false, 0}, {"1.5s", false, 0}, {"1 2", false, 0},     {"--1", false, 0},    {"one", false, 0},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        double value = 77;
        bool good = str_parse_double(rows[i].text, &value);
        if (good != rows[i].good || value != (rows[i].good ? rows[i].value : 77)) {
            fail_msg("\"%s\": %s, %g", rows[i].text, good ? "accepted" : "rejected", value);
        }
    }
}

static void bytes_have_units_and_end_anywhere(void **state) {
    static const struct {
        const char *text;
        uint64_t value;
        const char *rest; /* NULL: it is no number of bytes */
    } cases[] = {{"7", 7, ""},
                 {"64K", 65536, ""},
                 {"3M,always", 3 << 20, ",always"},
                 {"2G-", UINT64_C(2) << 30, "-"},
                 {"1KK", 1024, "K"},
                 {"1.5M", 1, ".5M"},
                 {"007 ", 7, " "},
                 {"18446744073709551615", UINT64_MAX, ""},
                 {"18446744073709551616", 0, NULL},
                 {"99999999999999999999", 0, NULL},
                 {"17179869183G", UINT64_MAX - (UINT64_C(1) << 30) + 1, ""},
                 {"17179869184G", 0, NULL},
                 {"", 0, NULL},
                 {"K", 0, NULL},
                 {"-1", 0, NULL},
                 {" 1", 0, NULL}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t value = 0;
        const char *rest = str_read_bytes(cases[i].text, &value);
        assert_int_equal(!rest, !cases[i].rest);
        if (rest) {
            assert_string_equal(rest, cases[i].rest);
            assert_true(value == cases[i].value);
        }
    }
}

static void copy_fits_whole_or_not_at_all(void **state) {
    (void)state;
    char out[4] = "zzz";
    assert_true(str_copy(out, sizeof out, "abc"));
    assert_string_equal(out, "abc");
    assert_false(str_copy(out, sizeof out, "abcd"));
    assert_string_equal(out, "");
    assert_true(str_copy(out, sizeof out, ""));
    assert_string_equal(out, "");
    out[0] = 'q';
    assert_false(str_copy(out, 0, ""));
    assert_int_equal(out[0], 'q'); /* a buffer of no bytes is not written to */
}

static void format_says_whether_it_fitted(void **state) {
    (void)state;
    char out[6];
    assert_true(str_format(out, sizeof out, "%d-%d", 12, 34));
    assert_string_equal(out, "12-34");
    assert_false(str_format(out, sizeof out, "%d-%d", 12, 345));
    assert_string_equal(out, "12-34");
    char *made = str_format_new("%s/%u", "rank", 7U);
    assert_string_equal(made, "rank/7");
    free(made);
}

static void prefixes(void **state) {
    (void)state;
    assert_true(str_has_prefix("--nnodes", "--nn"));
    assert_true(str_has_prefix("abc", ""));
    assert_true(str_has_prefix("abc", "abc"));
    assert_false(str_has_prefix("ab", "abc"));
    assert_false(str_has_prefix("xabc", "abc"));
}

static void distance_counts_single_edits(void **state) {
    (void)state;
    static const struct {
        const char *a, *b;
        unsigned distance;
    } rows[] = {
        {"", "", 0},
        {"same", "same", 0},
        {"", "four", 4},
        {"nnodes", "nodes", 1}, /* a letter lost */
        {"standalone", "standalon", 1},
        {"max-restart", "max-restarts", 1}, /* a letter added */
        {"rdzv-id", "rdzv-ix", 1},          /* replaced */
        {"tee", "ete", 1},                  /* neighbours swapped */
        {"kitten", "sitting", 3},
        {"ca", "abc", 3}, /* not 2: no edit inside a swapped pair */
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        assert_int_equal(str_distance(rows[i].a, rows[i].b), rows[i].distance);
        assert_int_equal(str_distance(rows[i].b, rows[i].a), rows[i].distance);
    }
}

static void long_texts_are_far_apart(void **state) {
    (void)state;
    char text[65];
    memset(text, 'a', sizeof text);
    text[63] = '\0';
    assert_int_equal(str_distance(text, text), 0);
    assert_int_equal(str_distance(text, ""), 63);
    text[63] = 'a';
    text[64] = '\0';
    assert_int_equal(str_distance(text, text), 63);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_are_read_as_python_reads_them), cmocka_unit_test(doubles_are_finite_and_whole),
        cmocka_unit_test(bytes_have_units_and_end_anywhere),      cmocka_unit_test(copy_fits_whole_or_not_at_all),
        cmocka_unit_test(format_says_whether_it_fitted),          cmocka_unit_test(prefixes),
        cmocka_unit_test(distance_counts_single_edits),           cmocka_unit_test(long_texts_are_far_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
