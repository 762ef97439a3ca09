/* What `muster bench` decides: sizes, rates, the command line, and the data by which it checks results. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/status.h"
#include "cli/bench/bench_data.h"
#include "cli/bench/bench_plan.h"

static int parse(struct bench_options *out, const char *line) {
    static char text[512];
    char *words[32] = {0}, *rest = text;
    int count = 0;
    strncpy(text, line, sizeof text - 1);
    for (char *word; (word = strsep(&rest, " ")) != NULL;) {
        words[count++] = word;
    }
    return bench_options_parse(count, words, out);
}

static void options_have_defaults(void **state) {
    (void)state;
    struct bench_options options;
    assert_int_equal(parse(&options, "bench"), 0);
    assert_true(options.operations[BENCH_ALL_REDUCE]);
    assert_false(options.operations[BENCH_BROADCAST]);
    assert_int_equal(options.begin_bytes, 8);
    assert_int_equal(options.end_bytes, 64 << 20);
    assert_true(options.checks && !options.uses_own_memory && !options.tunes && options.ranks == 0);
}

static void options_are_those_of_nccl_tests(void **state) {
    (void)state;
    struct bench_options options;
    assert_int_equal(parse(&options, "bench broadcast all_gather -b 16 -e 1G -f 2 -n 20 -w 1 -c 0 -o prod -d half -r 3 "
                                     "--ranks=8 --memory own --tune"),
                     0);
    assert_true(options.operations[BENCH_BROADCAST] && options.operations[BENCH_ALL_GATHER]);
    assert_false(options.operations[BENCH_ALL_REDUCE]);
    assert_true(options.begin_bytes == 16 && options.end_bytes == 1 << 30 && options.factor == 2);
    assert_true(options.iterations == 20 && options.warm_up == 1 && !options.checks);
    assert_true(options.reduction == MUSTER_OP_PRODUCT && options.type == MUSTER_FLOAT16 && options.root == 3);
    assert_true(options.ranks == 8 && options.uses_own_memory && options.tunes && !options.engine);
    assert_int_equal(parse(&options, "bench --engine mpi"), 0);
    assert_string_equal(options.engine, "mpi");
    assert_int_equal(parse(&options, "bench all -d int32 -o bxor"), 0);
    for (int i = 0; i < BENCH_OPERATION_COUNT; i++) {
        assert_true(options.operations[i]);
    }
    assert_int_equal(parse(&options, "bench nonsense --help"), MUSTER_EINVAL);
    assert_int_equal(parse(&options, "bench --help nonsense"), 0);
    assert_true(options.wants_help);
}

static void wrong_options_are_explained(void **state) {
    (void)state;
    static const char *const lines[][2] = {
        {"bench allreduce", "'allreduce'"},
        {"bench -b", "-b needs a value"},
        {"bench -b 8x", "-b 8x"},
        {"bench -b 0", "-b must be >= 1"},
        {"bench -b 2M -e 1M", "-e >= -b"},
        {"bench -f 1", "-f must"},
        {"bench -o bor", "bit operations"},
        {"bench -o add", "-o add"},
        {"bench -d int", "-d int"},
        {"bench -c 2", "-c 2"},
        {"bench --memory x", "--memory x"},
        {"bench -q", "'-q'"},
        {"bench --ranks 5000", "--ranks 50"},
        {"bench --ranks 0", "a number from 1 to 4096"},
        {"bench -n -1", "-n -1"},
        {"bench --tune --engine mpi", "--engine mpi does not use"},
        {"bench --tune=links --engine mpi", "--engine mpi does not use"},
        {"bench --tune=links --tune", "give one of them"},
        {"bench --tune=streams", "'--tune=streams' is not understood"},
    };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        struct bench_options options;
        assert_int_equal(parse(&options, lines[i][0]), MUSTER_EINVAL);
        if (strstr(muster_detail(), lines[i][1]) == NULL) {
            fail_msg("%s: \"%s\" does not have \"%s\"", lines[i][0], muster_detail(), lines[i][1]);
        }
    }
}

static void sizes_are_whole_numbers_with_units(void **state) {
    (void)state;
    uint64_t bytes = 0;
    assert_true(bench_parse_bytes("7", &bytes) && bytes == 7);
    assert_true(bench_parse_bytes("64K", &bytes) && bytes == 65536);
    assert_true(bench_parse_bytes("3M", &bytes) && bytes == 3 << 20);
    assert_true(bench_parse_bytes("256G", &bytes) && bytes == BENCH_BYTES_MAX);
    static const char *const wrong[] = {"", "K", "1.5M", "257G", "-1", "9999999999999999999", "1KK"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(bench_parse_bytes(wrong[i], &bytes));
    }
}

static void sizes_follow_each_other_to_the_end(void **state) {
    (void)state;
    struct bench_options options = {.begin_bytes = 8, .end_bytes = 130, .factor = 4};
    assert_int_equal(bench_next(&options, 8), 32);
    assert_int_equal(bench_next(&options, 32), 128);
    assert_int_equal(bench_next(&options, 128), 0);
    options.step_bytes = 100;
    assert_int_equal(bench_next(&options, 8), 108);
    assert_int_equal(bench_next(&options, 108), 0);
    options.step_bytes = UINT64_MAX; /* no endless row */
    assert_int_equal(bench_next(&options, 8), 0);
}

static void sizes_are_those_of_the_largest_buffer(void **state) {
    (void)state;
    assert_int_equal(bench_count(BENCH_ALL_REDUCE, 1024, 4, 4), 256);
    assert_int_equal(bench_count(BENCH_ALL_GATHER, 1024, 4, 4), 64);
    assert_int_equal(bench_count(BENCH_ALL_GATHER, 15, 4, 4), 0);
    assert_int_equal(bench_bytes(BENCH_REDUCE_SCATTER, 64, 4, 4), 1024);
    assert_int_equal(bench_bytes(BENCH_BROADCAST, 64, 4, 4), 256);
}

/* nccl-tests, doc/PERFORMANCE.md. */
static void bus_factors_are_those_of_nccl_tests(void **state) {
    (void)state;
    assert_true(bench_bus_factor(BENCH_ALL_REDUCE, 4) == 1.5);
    assert_true(bench_bus_factor(BENCH_ALL_GATHER, 4) == 0.75);
    assert_true(bench_bus_factor(BENCH_REDUCE_SCATTER, 4) == 0.75);
    assert_true(bench_bus_factor(BENCH_ALL_TO_ALL, 4) == 0.75);
    assert_true(bench_bus_factor(BENCH_BROADCAST, 4) == 1);
    assert_true(bench_bus_factor(BENCH_REDUCE, 4) == 1);
    assert_true(bench_bus_factor(BENCH_SENDRECV, 4) == 1);
}

/* ---- data ---- */

static void a_pattern_finds_what_differs(void **state) {
    (void)state;
    struct bench_pattern pattern;
    int16_t buffer[100];
    bench_pattern_sent(&pattern, MUSTER_INT16, MUSTER_OP_SUM, 2, 1);
    bench_pattern_fill(&pattern, buffer, 100);
    assert_int_equal(bench_pattern_wrong(&pattern, buffer, 100), 0);
    buffer[0]++;
    buffer[99]--;
    assert_int_equal(bench_pattern_wrong(&pattern, buffer, 100), 2);
    assert_int_equal(bench_pattern_wrong(&pattern, buffer, 99), 1);
    bench_pattern_sent(&pattern, MUSTER_INT16, MUSTER_OP_SUM, 1, 1); /* another rank's */
    assert_true(bench_pattern_wrong(&pattern, buffer, 100) >= 90);
}

/* Ranks 0 to 2 send 1, 4, 7 in element 0 of block 0, and 1, 2, 1 for a product. */
static void reductions_are_right(void **state) {
    (void)state;
    static const struct {
        enum muster_reduction reduction;
        int32_t whole;
        float fraction;
    } cases[] = {
        {MUSTER_OP_SUM, 12, 12},   {MUSTER_OP_PRODUCT, 2, 2}, {MUSTER_OP_MIN, 1, 1},    {MUSTER_OP_MAX, 7, 7},
        {MUSTER_OP_AVERAGE, 4, 4}, {MUSTER_OP_BIT_AND, 0, 0}, {MUSTER_OP_BIT_OR, 7, 7}, {MUSTER_OP_BIT_XOR, 2, 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct bench_pattern pattern;
        int32_t whole;
        bench_pattern_reduced(&pattern, MUSTER_INT32, cases[i].reduction, 3, 0);
        memcpy(&whole, &pattern.elements[0], sizeof whole);
        assert_int_equal(whole, cases[i].whole);
        if (cases[i].reduction < MUSTER_OP_BIT_AND) {
            float fraction;
            bench_pattern_reduced(&pattern, MUSTER_FLOAT32, cases[i].reduction, 3, 0);
            memcpy(&fraction, &pattern.elements[0], sizeof fraction);
            assert_true(fraction == cases[i].fraction);
        }
    }
}

/* A sum of 100 ranks does not fit int8, a product of 100 not even int64; both wrap as muster/types.h says. */
static void integers_wrap_around(void **state) {
    (void)state;
    struct bench_pattern pattern;
    uint64_t wide;
    int8_t narrow;
    int64_t sum = 0;
    for (int64_t rank = 0; rank < 100; rank++) {
        sum += 1 + 3 * rank % 7;
    }
    bench_pattern_reduced(&pattern, MUSTER_INT8, MUSTER_OP_SUM, 100, 0);
    memcpy(&narrow, &pattern.elements[0], sizeof narrow);
    assert_int_equal(narrow, (int8_t)sum);
    bench_pattern_reduced(&pattern, MUSTER_INT8, MUSTER_OP_AVERAGE, 100, 0);
    memcpy(&narrow, &pattern.elements[0], sizeof narrow);
    assert_int_equal(narrow, (int8_t)sum / 100);
    bench_pattern_reduced(&pattern, MUSTER_INT64, MUSTER_OP_PRODUCT, 140, 0); /* 2 to the 70th */
    memcpy(&wide, &pattern.elements[0], sizeof wide);
    assert_true(wide == 0);
    double real;
    bench_pattern_reduced(&pattern, MUSTER_FLOAT64, MUSTER_OP_PRODUCT, 140, 0);
    memcpy(&real, &pattern.elements[0], sizeof real);
    assert_true(real == 1180591620717411303424.0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_have_defaults),
        cmocka_unit_test(options_are_those_of_nccl_tests),
        cmocka_unit_test(wrong_options_are_explained),
        cmocka_unit_test(sizes_are_whole_numbers_with_units),
        cmocka_unit_test(sizes_follow_each_other_to_the_end),
        cmocka_unit_test(sizes_are_those_of_the_largest_buffer),
        cmocka_unit_test(bus_factors_are_those_of_nccl_tests),
        cmocka_unit_test(a_pattern_finds_what_differs),
        cmocka_unit_test(reductions_are_right),
        cmocka_unit_test(integers_wrap_around),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
