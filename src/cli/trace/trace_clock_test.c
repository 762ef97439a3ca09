/* Comparing clocks: a simulated job whose true offsets are known. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>

#include "cli/trace/trace_clock.h"

#define US INT64_C(1000)
#define MS INT64_C(1000000)

static uint64_t random_state;

static int64_t random_below(int64_t limit) {
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((random_state >> 33) % (uint64_t)limit);
}

/* A call of ranks on `clocks` hosts in true time: everybody comes within `skew_ns`, and leaves at the earliest when the
 * last has come. Clock c shows true time - offsets[c]. */
static size_t simulate(struct trace_part *parts, uint64_t call, const uint32_t *clocks, size_t count,
                       const int64_t *offsets, int64_t at_ns, int64_t skew_ns) {
    int64_t last_ns = 0, begin_ns[16];
    assert_true(count <= 16);
    for (size_t i = 0; i < count; i++) {
        begin_ns[i] = at_ns + random_below(skew_ns);
        last_ns = begin_ns[i] > last_ns ? begin_ns[i] : last_ns;
    }
    for (size_t i = 0; i < count; i++) {
        int64_t offset = offsets[clocks[i]];
        parts[i] = (struct trace_part){.call = call,
                                       .clock = clocks[i],
                                       .begin_ns = begin_ns[i] - offset,
                                       .end_ns = last_ns + 10 * US + random_below(20 * US) - offset};
    }
    return count;
}

static void assert_near(const struct trace_offset *found, int64_t offset_ns, int64_t bound_ns) {
    int64_t error_ns = llabs(found->offset_ns - offset_ns);
    assert_true(error_ns <= found->uncertainty_ns);
    assert_true(found->uncertainty_ns <= bound_ns);
}

static void offsets_are_found(void **state) {
    (void)state;
    static const int64_t offsets[] = {0, 5000 * MS, -7 * MS};
    static const uint32_t clocks[] = {0, 0, 1, 1, 2, 2};
    static struct trace_part parts[6 * 500];
    struct trace_offset found[3];
    size_t count = 0;
    random_state = 1;
    for (uint64_t call = 0; call < 500; call++) {
        count += simulate(parts + count, call, clocks, 6, offsets, 1000 * MS + (int64_t)call * MS, 200 * US);
    }
    assert_int_equal(trace_clock_align(parts, count, 3, found), 0);
    assert_int_equal(found[0].offset_ns, 0);
    assert_int_equal(found[1].call_count, 500);
    assert_near(&found[1], offsets[1], 40 * US);
    assert_near(&found[2], offsets[2], 40 * US);
}

/* Groups of two hosts each: 0 with 1, 1 with 2. */
static void clocks_without_a_common_call_are_joined_through_others(void **state) {
    (void)state;
    static const int64_t offsets[] = {0, 3 * MS, 9000 * MS};
    static struct trace_part parts[400];
    struct trace_offset found[3];
    size_t count = 0;
    random_state = 2;
    for (uint64_t call = 0; call < 200; call++) {
        uint32_t pair[2] = {(uint32_t)call % 2, (uint32_t)call % 2 + 1};
        count += simulate(parts + count, call, pair, 2, offsets, (int64_t)call * MS, 100 * US);
    }
    assert_int_equal(trace_clock_align(parts, count, 3, found), 0);
    assert_near(&found[1], offsets[1], 60 * US);
    assert_near(&found[2], offsets[2], 120 * US);
    assert_int_equal(found[2].call_count, 100);
}

static void a_clock_without_calls_stays_unknown(void **state) {
    (void)state;
    struct trace_part part = {.call = 1, .clock = 1, .begin_ns = 5, .end_ns = 6};
    struct trace_offset found[3];
    assert_int_equal(trace_clock_align(&part, 1, 3, found), 0);
    for (size_t i = 0; i < 3; i++) {
        assert_int_equal(found[i].offset_ns, 0);
        assert_int_equal(found[i].call_count, 0);
    }
    assert_int_equal(trace_clock_align(NULL, 0, 1, found), 0);
    assert_int_equal(found[0].call_count, 0);
}

/* Clock 1 runs fast by 20 ppm over 100 s, 2 ms in all: the middle is off by at most half of it, and says so. */
static void drift_is_owned_up_to(void **state) {
    (void)state;
    static struct trace_part parts[2000];
    struct trace_offset found[2];
    size_t count = 0;
    random_state = 3;
    for (int64_t call = 0; call < 1000; call++) {
        int64_t offsets[2] = {0, 50 * MS + call * 2 * US};
        static const uint32_t clocks[] = {0, 1};
        count += simulate(parts + count, (uint64_t)call, clocks, 2, offsets, call * 100 * MS, 100 * US);
    }
    assert_int_equal(trace_clock_align(parts, count, 2, found), 0);
    assert_true(llabs(found[1].offset_ns - (51 * MS)) < 100 * US);
    assert_true(found[1].uncertainty_ns > 800 * US && found[1].uncertainty_ns < 1100 * US);
}

/* Whatever a damaged file says, the result is some number. */
static void nonsense_is_survived(void **state) {
    (void)state;
    struct trace_part parts[] = {
        {.call = 1, .clock = 0, .begin_ns = INT64_MAX / 8, .end_ns = 0},
        {.call = 1, .clock = 0, .begin_ns = 0, .end_ns = INT64_MAX / 8},
        {.call = 1, .clock = 1, .begin_ns = 0, .end_ns = INT64_MAX / 8},
        {.call = 1, .clock = 1, .begin_ns = INT64_MAX / 8, .end_ns = -(INT64_MAX / 8)},
    };
    struct trace_offset found[2];
    assert_int_equal(trace_clock_align(parts, 4, 2, found), 0);
    assert_int_equal(found[1].call_count, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(offsets_are_found),
        cmocka_unit_test(clocks_without_a_common_call_are_joined_through_others),
        cmocka_unit_test(a_clock_without_calls_stays_unknown),
        cmocka_unit_test(drift_is_owned_up_to),
        cmocka_unit_test(nonsense_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
