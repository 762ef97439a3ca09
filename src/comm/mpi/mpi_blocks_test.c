/* Counts and offsets in both widths; see mpi_library.h. */
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "comm/mpi/mpi_library.h"

/* The allocation that fails, counted from 1; 0: none. */
static int failing;

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);

void *__wrap_calloc(size_t count, size_t size) {
    return failing > 0 && --failing == 0 ? NULL : __real_calloc(count, size);
}

static void assert_empty(const struct mpi_blocks *blocks) {
    assert_true(!blocks->counts && !blocks->offsets && !blocks->large_counts && !blocks->large_offsets);
}

static void both_widths_say_the_same(void **state) {
    (void)state;
    struct mpi_blocks blocks;
    const size_t counts[] = {3, 0, 5}, offsets[] = {7, 100, 0};
    assert_int_equal(mpi_blocks_make(&blocks, counts, NULL, 3), 0);
    assert_true(blocks.counts[0] == 3 && blocks.counts[1] == 0 && blocks.counts[2] == 5);
    assert_true(blocks.offsets[0] == 0 && blocks.offsets[1] == 3 && blocks.offsets[2] == 3);
    assert_true(blocks.large_counts[2] == 5 && blocks.large_offsets[2] == 3);
    mpi_blocks_done(&blocks);
    assert_empty(&blocks);
    assert_int_equal(mpi_blocks_make(&blocks, counts, offsets, 3), 0);
    assert_true(blocks.offsets[0] == 7 && blocks.offsets[1] == 100 && blocks.large_offsets[1] == 100);
    mpi_blocks_done(&blocks);
    assert_int_equal(mpi_blocks_make(&blocks, NULL, NULL, 0), 0);
    assert_non_null(blocks.counts); /* or MPI would take it for large ones */
    mpi_blocks_done(&blocks);
    mpi_blocks_done(&blocks);
}

static void what_does_not_fit_an_int_is_large_alone(void **state) {
    (void)state;
    struct mpi_blocks blocks;
    const size_t most[] = {INT_MAX, 1}, far[] = {INT_MAX, 1, 1}, large[] = {(size_t)INT_MAX + 1, 1};
    assert_int_equal(mpi_blocks_make(&blocks, most, NULL, 2), 0);
    assert_true(blocks.counts[0] == INT_MAX && blocks.offsets[1] == INT_MAX);
    mpi_blocks_done(&blocks);
    assert_int_equal(mpi_blocks_make(&blocks, far, NULL, 3), 0); /* the third begins behind INT_MAX */
    assert_true(!blocks.counts && !blocks.offsets && blocks.large_offsets[2] == (intptr_t)INT_MAX + 1);
    mpi_blocks_done(&blocks);
    assert_int_equal(mpi_blocks_make(&blocks, large, NULL, 2), 0);
    assert_true(!blocks.counts && blocks.large_counts[0] == (int64_t)INT_MAX + 1);
    mpi_blocks_done(&blocks);
}

static void what_does_not_fit_at_all_is_refused(void **state) {
    (void)state;
    struct mpi_blocks blocks;
    const size_t counts[] = {SIZE_MAX, 1}, sum[] = {(size_t)INT64_MAX, 1}, one[] = {1}, far[] = {(size_t)INT64_MAX};
    assert_int_equal(mpi_blocks_make(&blocks, counts, NULL, 2), MUSTER_EINVAL);
    assert_empty(&blocks);
    assert_int_equal(mpi_blocks_make(&blocks, sum, NULL, 2), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "more than 2^63 - 1"));
    assert_int_equal(mpi_blocks_make(&blocks, one, far, 1), MUSTER_EINVAL);
    assert_empty(&blocks);
}

static void without_memory_nothing_is_held(void **state) {
    (void)state;
    struct mpi_blocks blocks;
    const size_t counts[] = {1, 2};
    for (int n = 1; n <= 4; n++) {
        failing = n;
        assert_int_equal(mpi_blocks_make(&blocks, counts, NULL, 2), MUSTER_ENOMEM);
        failing = 0;
        assert_empty(&blocks);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_widths_say_the_same),
        cmocka_unit_test(what_does_not_fit_an_int_is_large_alone),
        cmocka_unit_test(what_does_not_fit_at_all_is_refused),
        cmocka_unit_test(without_memory_nothing_is_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
