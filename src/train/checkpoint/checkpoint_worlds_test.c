/* Checkpoints between worlds of all sizes, in real processes: what any number of ranks has saved, any other number
 * loads, whoever has which ranges.
 *
 *   checkpoint_worlds_test            up to 6 ranks
 *   checkpoint_worlds_test SIZE       up to so many */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/folder_test_support.h"
#include "base/str.h"
#include "comm/group/ranks_test_support.h"
#include "train/checkpoint/checkpoint_impl.h"
#include "train/checkpoint/checkpoint_test_support.h"

enum { PATH_BYTES = 256, SMALL_BLOCK_BYTES = 16 };

static char top[PATH_BYTES];
static uint32_t largest = 6;

static void folder_of(char out[PATH_BYTES], uint32_t size) {
    if (!str_format(out, PATH_BYTES, "%s/world%" PRIu32, top, size)) {
        abort();
    }
}

static struct test_cut cut_of(const struct rank *rank, uint64_t series) {
    return (struct test_cut){.seed = series * 1000 + rank->size,
                             .rank = rank->rank,
                             .size = rank->size,
                             .whole = series == 2 && rank->size % 3 == 1};
}

/* Saves as step 1 what comes from number 100 + size. Blocks are small in some, so that ranges have several. */
static int save(struct rank *rank, void *argument) {
    (void)argument;
    char folder[PATH_BYTES];
    struct test_state t;
    struct test_cut cut = cut_of(rank, 1);
    struct muster_group *group = rank_group(rank, NULL);
    const struct checkpoint_settings settings = {
        .keep = 2, .visible_ms = 0, .block_bytes = SMALL_BLOCK_BYTES, .write_bytes = CHECKPOINT_WRITE_BYTES};
    folder_of(folder, rank->size);
    test_state_init(&t, test_small, TEST_SMALL_COUNT, &cut);
    test_state_fill(&t, 100 + rank->size);
    if (rank->size % 2 == 0) {
        rank_check_code(rank, muster_checkpoint_save(group, folder, 1, &t.state, NULL), 0);
    } else {
        rank_check_code(rank, checkpoint_save_group(&snapshot_io_system, group, folder, 1, &t.description, &settings),
                        0);
    }
    test_state_done(&t);
    muster_group_free(group);
    return 0;
}

static int load_all(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    for (uint32_t size = 1; size <= largest; size++) {
        char folder[PATH_BYTES];
        struct test_state t;
        struct muster_checkpoint_found found;
        struct test_cut cut = cut_of(rank, 2);
        cut.seed += (uint64_t)100 * size;
        folder_of(folder, size);
        test_state_init(&t, test_small, TEST_SMALL_COUNT, &cut);
        rank_check_code(rank, muster_checkpoint_load_newest(group, folder, &t.state, NULL, &found), 0);
        rank_check(rank, found.step == 1 && found.part_count == size && found.passed_over == 0);
        rank_check(rank, test_state_tag(&t) == 100 + size);
        test_state_done(&t);
    }
    muster_group_free(group);
    return 0;
}

static void make_top(void) {
    const char *base = getenv("TMPDIR");
    assert_true(str_format(top, sizeof top, "%s/muster-worlds-XXXXXX", base ? base : "/tmp"));
    assert_non_null(mkdtemp(top));
}

static void every_world_loads_what_every_world_has_saved(void **state) {
    (void)state;
    make_top();
    for (uint32_t size = 1; size <= largest; size++) {
        ranks_run(size, save, NULL);
    }
    for (uint32_t size = 1; size <= largest; size++) {
        ranks_run(size, load_all, NULL);
    }
    for (uint32_t size = 1; size <= largest; size++) {
        char folder[PATH_BYTES];
        folder_of(folder, size);
        assert_int_equal(folder_remove(folder), size + 2); /* a file a rank, the map, the record */
    }
    assert_int_equal(rmdir(top), 0);
}

/* ---- tensors of many blocks ---- */

static const struct muster_tensor big[] = {
    {.name = "big", .type = MUSTER_FLOAT32, .dim_count = 2, .shape = {1000, 1100}},
    {.name = "big.whole", .type = MUSTER_UINT16, .dim_count = 1, .shape = {1200001}},
};

static int save_big(struct rank *rank, void *argument) {
    struct test_state t;
    struct test_cut cut = {.seed = 5, .rank = rank->rank, .size = rank->size};
    struct muster_group *group = rank_group(rank, NULL);
    test_state_init(&t, big, 2, &cut);
    test_state_fill(&t, 7);
    rank_check_code(rank, muster_checkpoint_save(group, argument, 30, &t.state, NULL), 0);
    test_state_done(&t);
    muster_group_free(group);
    return 0;
}

static int load_big(struct rank *rank, void *argument) {
    struct test_state t;
    struct test_cut cut = {.seed = 6, .rank = rank->rank, .size = rank->size};
    struct muster_group *group = rank_group(rank, NULL);
    test_state_init(&t, big, 2, &cut);
    rank_check_code(rank, muster_checkpoint_load_newest(group, argument, &t.state, NULL, NULL), 0);
    rank_check(rank, test_state_tag(&t) == 7);
    test_state_done(&t);
    muster_group_free(group);
    return 0;
}

static void ranges_may_begin_and_end_anywhere_in_blocks(void **state) {
    (void)state;
    make_top();
    ranks_run(3, save_big, top);
    ranks_run(2, load_big, top);
    ranks_run_with(4, load_big, top, &(struct ranks_options){.ranks_per_host = 2});
    assert_int_equal(folder_remove(top), 5);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        largest = (uint32_t)strtoul(argv[1], NULL, 10);
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_world_loads_what_every_world_has_saved),
        cmocka_unit_test(ranges_may_begin_and_end_anywhere_in_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
