/* Fingerprints: equal for equal calls, different wherever ranks must agree, and readable. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "comm/engine/call.h"

static const struct comm_call example = {
    .operation = COMM_REDUCE, .type = MUSTER_FLOAT32, .reduction = MUSTER_OP_MAX, .root = 3, .count = 1024};

static void every_field_counts(void **state) {
    (void)state;
    uint64_t print = comm_call_fingerprint(&example, 4);
    struct comm_call other = example;
    assert_int_equal(comm_call_fingerprint(&other, 4), print);
    other.send = "elsewhere";
    assert_int_equal(comm_call_fingerprint(&other, 4), print);
    other.count++;
    assert_int_not_equal(comm_call_fingerprint(&other, 4), print);
    other = example, other.root = 2;
    assert_int_not_equal(comm_call_fingerprint(&other, 4), print);
    other = example, other.type = MUSTER_FLOAT64;
    assert_int_not_equal(comm_call_fingerprint(&other, 4), print);
    other = example, other.reduction = MUSTER_OP_MIN;
    assert_int_not_equal(comm_call_fingerprint(&other, 4), print);
    other = example, other.operation = COMM_BROADCAST;
    assert_int_not_equal(comm_call_fingerprint(&other, 4), print);
}

static void what_does_not_matter_is_left_out(void **state) {
    (void)state;
    struct comm_call one = {.operation = COMM_ALL_GATHER, .type = MUSTER_INT8, .count = 5}, other = one;
    other.root = 7;
    other.reduction = MUSTER_OP_BIT_XOR;
    assert_int_equal(comm_call_fingerprint(&one, 4), comm_call_fingerprint(&other, 4));
}

static void marks_count_where_they_are_read(void **state) {
    (void)state;
    size_t counts[] = {1, 2, 3};
    const enum comm_operation marked[] = {COMM_ALL_REDUCE, COMM_REDUCE_SCATTER, COMM_ALL_GATHER};
    for (size_t i = 0; i < sizeof marked / sizeof *marked; i++) {
        struct comm_call none = {.operation = marked[i], .type = MUSTER_INT8, .count = 5}, one = none, last = none;
        one.mark = 1;
        last.mark = COMM_MARK_MAX;
        assert_int_not_equal(comm_call_fingerprint(&none, 3), comm_call_fingerprint(&one, 3));
        assert_int_not_equal(comm_call_fingerprint(&one, 3), comm_call_fingerprint(&last, 3));
        /* A mark touches no neighbouring field. */
        assert_int_equal(comm_call_fingerprint(&none, 3) ^ comm_call_fingerprint(&last, 3), (uint64_t)0xffff << 12);
        none.receive_counts = one.receive_counts = counts;
        assert_int_not_equal(comm_call_fingerprint(&none, 3), comm_call_fingerprint(&one, 3));
    }
    struct comm_call rooted = example;
    rooted.mark = 9;
    assert_int_equal(comm_call_fingerprint(&rooted, 4), comm_call_fingerprint(&example, 4));
}

static void counts_per_rank_are_hashed(void **state) {
    (void)state;
    size_t here[] = {1, 2, 3}, there[] = {1, 2, 4};
    struct comm_call one = {.operation = COMM_ALL_GATHER, .type = MUSTER_INT8, .receive_counts = here}, other = one;
    other.receive_counts = there;
    assert_int_not_equal(comm_call_fingerprint(&one, 3), comm_call_fingerprint(&other, 3));
    assert_int_equal(comm_call_fingerprint(&one, 2), comm_call_fingerprint(&other, 2));
    one.operation = other.operation = COMM_ALL_TO_ALL;
    assert_int_equal(comm_call_fingerprint(&one, 3), comm_call_fingerprint(&other, 3));
}

static void fingerprints_are_readable(void **state) {
    (void)state;
    char text[128];
    assert_string_equal(comm_fingerprint_format(comm_call_fingerprint(&example, 4), text, sizeof text),
                        "reduce of 1024 float32, max, root 3");
    assert_string_equal(comm_fingerprint_format(0, text, sizeof text), "nothing");
    struct comm_call barrier = {.operation = COMM_BARRIER};
    assert_string_equal(comm_fingerprint_format(comm_call_fingerprint(&barrier, 4), text, sizeof text), "barrier");
    struct comm_call scatter = {.operation = COMM_REDUCE_SCATTER,
                                .type = MUSTER_FLOAT32,
                                .reduction = MUSTER_OP_AVERAGE,
                                .mark = 4,
                                .count = 16};
    assert_string_equal(comm_fingerprint_format(comm_call_fingerprint(&scatter, 4), text, sizeof text),
                        "reduce_scatter of 16 float32, average, unit 3");
    scatter.mark = 0;
    assert_string_equal(comm_fingerprint_format(comm_call_fingerprint(&scatter, 4), text, sizeof text),
                        "reduce_scatter of 16 float32, average");
    struct comm_call gather = {.operation = COMM_ALL_GATHER, .type = MUSTER_FLOAT32, .mark = 1, .count = 16};
    assert_string_equal(comm_fingerprint_format(comm_call_fingerprint(&gather, 4), text, sizeof text),
                        "all_gather of 16 float32, unit 0");
    gather.operation = COMM_ALL_REDUCE;
    assert_string_equal(comm_fingerprint_format(comm_call_fingerprint(&gather, 4), text, sizeof text),
                        "all_reduce of 16 float32, sum, after 1 no_sync step");
    gather.mark = COMM_MARK_OF_UNIT;
    assert_string_equal(comm_fingerprint_format(comm_call_fingerprint(&gather, 4), text, sizeof text),
                        "all_reduce of 16 float32, sum, unit 0");
    gather.mark = COMM_MARK_MAX;
    assert_string_equal(comm_fingerprint_format(comm_call_fingerprint(&gather, 4), text, sizeof text),
                        "all_reduce of 16 float32, sum, unit 32767");
    /* Two that differ in their counts alone. */
    char other_text[128];
    size_t here[] = {1, 2, 3}, there[] = {1, 2, 4};
    struct comm_call one = {.operation = COMM_ALL_GATHER, .type = MUSTER_INT8, .receive_counts = here}, other = one;
    other.receive_counts = there;
    (void)comm_fingerprint_format(comm_call_fingerprint(&one, 3), text, sizeof text);
    (void)comm_fingerprint_format(comm_call_fingerprint(&other, 3), other_text, sizeof other_text);
    assert_string_equal(text, "all_gather_v of int8");
    assert_string_equal(other_text, text);
    uint64_t print = comm_call_fingerprint(&one, 3);
    assert_string_equal(comm_fingerprints_remark(print, comm_call_fingerprint(&other, 3)),
                        "; their counts differ: give the same on every rank");
    assert_string_equal(comm_fingerprints_remark(print, print), "");
    other.type = MUSTER_UINT8;
    assert_string_equal(comm_fingerprints_remark(print, comm_call_fingerprint(&other, 3)), "");
    assert_string_equal(comm_call_name(&one), "all_gather_v");
    one.operation = COMM_ALL_TO_ALL;
    assert_string_equal(comm_fingerprint_format(comm_call_fingerprint(&one, 3), text, sizeof text),
                        "all_to_all_v of int8");
    char narrow[8];
    assert_string_equal(comm_fingerprint_format(comm_call_fingerprint(&example, 4), narrow, sizeof narrow), "reduce ");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_counts),
        cmocka_unit_test(what_does_not_matter_is_left_out),
        cmocka_unit_test(marks_count_where_they_are_read),
        cmocka_unit_test(counts_per_rank_are_hashed),
        cmocka_unit_test(fingerprints_are_readable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
