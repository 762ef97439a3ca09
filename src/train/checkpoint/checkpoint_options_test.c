/* What can be asked of a save or a load beside the plain one: parts that are taken over, other names, progress. */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/folder_test_support.h"
#include "base/str.h"
#include "comm/group/ranks_test_support.h"
#include "train/checkpoint/checkpoint_impl.h"

#include <muster/collective.h>

enum { PATH_BYTES = 256, RANKS = 3, COUNT = 1000 };

static char top[PATH_BYTES];

static void make_top(void) {
    const char *base = getenv("TMPDIR");
    assert_true(str_format(top, sizeof top, "%s/muster-options-XXXXXX", base ? base : "/tmp"));
    assert_non_null(mkdtemp(top));
}

/* Each rank has a chunk of one tensor. */
struct share {
    float values[COUNT];
    struct muster_tensor tensor;
    struct muster_checkpoint_chunk chunk;
    struct muster_checkpoint_state state;
};

static void share_init(struct share *share, const struct rank *rank, const char *name, float first) {
    struct muster_tensor tensor = {.name = name, .type = MUSTER_FLOAT32, .dim_count = 1};
    tensor.shape[0] = (uint64_t)rank->size * COUNT;
    share->tensor = tensor;
    share->chunk = (struct muster_checkpoint_chunk){0, (uint64_t)rank->rank * COUNT, COUNT, share->values};
    share->state =
        (struct muster_checkpoint_state)MUSTER_CHECKPOINT_STATE(&share->tensor, 1, &share->chunk, 1, NULL, 0);
    for (size_t i = 0; i < COUNT; i++) {
        share->values[i] = first + (float)i;
    }
}

/* ---- incremental ---- */

static ino_t part_inode(struct rank *rank, int64_t step, uint32_t part) {
    struct snapshot_folder folder;
    struct checkpoint_record record = {.step = -1};
    struct stat info = {.st_ino = 0};
    char text[CHECKPOINT_NAME_MAX], path[PATH_BYTES];
    rank_check_code(rank, snapshot_folder_open(&folder, &snapshot_io_system, top, false), 0);
    rank_check_code(rank, checkpoint_read_record(&folder, step, &record), 0);
    snapshot_folder_close(&folder);
    checkpoint_name_write(
        text, &(struct checkpoint_name){.kind = CHECKPOINT_PART, .step = step, .token = record.token, .part = part});
    rank_check(rank, str_format(path, sizeof path, "%s/%s", top, text) && stat(path, &info) == 0);
    return info.st_ino;
}

static void check_loads(struct rank *rank, struct muster_group *group, int64_t step, float first) {
    static struct share loaded;
    struct muster_checkpoint_found found;
    share_init(&loaded, rank, "weight", 0);
    memset(loaded.values, 0, sizeof loaded.values);
    rank_check_code(rank, muster_checkpoint_load_newest(group, top, &loaded.state, NULL, &found), 0);
    rank_check(rank, found.step == step && found.passed_over == 0);
    rank_check(rank, loaded.values[0] == first && loaded.values[COUNT - 1] == first + COUNT - 1);
}

/* Rank 1's values change from step to step, and by their last element alone. */
static int save_changes(struct rank *rank, void *argument) {
    (void)argument;
    static struct share share;
    struct muster_checkpoint_options options = MUSTER_CHECKPOINT_OPTIONS_INIT;
    struct muster_group *group = rank_group(rank, NULL);
    ino_t before = 0;
    share_init(&share, rank, "weight", (float)rank->rank);
    options.incremental = true;
    for (int64_t step = 1; step <= 4; step++) {
        if (rank->rank == 1) {
            share.values[COUNT / 2] = (float)step;
        }
        rank_check_code(rank, muster_checkpoint_save(group, top, step, &share.state, &options), 0);
        ino_t now = part_inode(rank, step, rank->rank);
        rank_check(rank, step == 1 || (now == before) == (rank->rank != 1));
        before = now;
        check_loads(rank, group, step, (float)rank->rank);
    }
    /* The same step again; without the wish; and with other files before. */
    rank_check_code(rank, muster_checkpoint_save(group, top, 4, &share.state, &options), 0);
    rank_check(rank, part_inode(rank, 4, rank->rank) == before);
    options.incremental = false;
    rank_check_code(rank, muster_checkpoint_save(group, top, 5, &share.state, &options), 0);
    rank_check(rank, part_inode(rank, 5, rank->rank) != before);
    options.incremental = rank->rank != 2; /* they have to agree */
    rank_check_code(rank, muster_checkpoint_save(group, top, 6, &share.state, &options), MUSTER_EMISMATCH);
    muster_group_free(group);
    return 0;
}

static void a_part_that_has_not_changed_is_not_written_again(void **state) {
    (void)state;
    make_top();
    ranks_run(RANKS, save_changes, NULL);
    assert_int_equal(folder_remove(top), 2 * (RANKS + 2));
}

/* Another split, a damaged part and a file system without links: all is written, and what is written is whole. */
static int no_link(void *ctx, int folder, const char *from, const char *to) {
    (void)ctx;
    (void)folder;
    (void)from;
    (void)to;
    return -1;
}

static int save_without_links(struct rank *rank, void *argument) {
    (void)argument;
    static struct share share;
    struct checkpoint_settings settings = {
        .keep = 4, .visible_ms = 0, .block_bytes = 256, .write_bytes = 4096, .incremental = true};
    struct snapshot_io io = snapshot_io_system;
    struct muster_group *group = rank_group(rank, NULL);
    share_init(&share, rank, "weight", (float)rank->rank);
    const struct state_chunk chunk = {0, (uint64_t)rank->rank * COUNT, COUNT, share.values};
    const struct state_description description = {
        .tensors = &share.tensor, .tensor_count = 1, .chunks = &chunk, .chunk_count = 1};
    rank_check_code(rank, checkpoint_save_group(&io, group, top, 1, &description, &settings), 0);
    settings.block_bytes = 512; /* was cut in another way */
    rank_check_code(rank, checkpoint_save_group(&io, group, top, 2, &description, &settings), 0);
    rank_check(rank, part_inode(rank, 2, rank->rank) != part_inode(rank, 1, rank->rank));
    io.link = no_link;
    rank_check_code(rank, checkpoint_save_group(&io, group, top, 3, &description, &settings), 0);
    rank_check(rank, part_inode(rank, 3, rank->rank) != part_inode(rank, 2, rank->rank));
    check_loads(rank, group, 3, (float)rank->rank);
    muster_group_free(group);
    return 0;
}

static void where_nothing_can_be_taken_over_all_is_written(void **state) {
    (void)state;
    make_top();
    ranks_run(RANKS, save_without_links, NULL);
    assert_int_equal(folder_remove(top), 3 * (RANKS + 2));
}

/* ---- other names ---- */

static int load_renamed(struct rank *rank, void *argument) {
    (void)argument;
    static struct share share;
    struct muster_checkpoint_load_options options = MUSTER_CHECKPOINT_LOAD_OPTIONS_INIT;
    struct muster_group *group = rank_group(rank, NULL);
    const char *renames[] = {"head=tail", "encoder.*=model.encoder.*"};
    share_init(&share, rank, "model.encoder.weight", 7);
    rank_check_code(rank, muster_checkpoint_save(group, top, 1, &share.state, NULL), 0);
    share_init(&share, rank, "encoder.weight", 0);
    rank_check_code(rank, muster_checkpoint_load_newest(group, top, &share.state, NULL, NULL), MUSTER_EINVAL);
    options.renames = renames;
    options.rename_count = 2;
    rank_check_code(rank, muster_checkpoint_load_newest(group, top, &share.state, &options, NULL), 0);
    rank_check(rank, share.values[0] == 7 && share.values[COUNT - 1] == 7 + COUNT - 1);
    share_init(&share, rank, "head", 0);
    rank_check_code(rank, muster_checkpoint_load_newest(group, top, &share.state, &options, NULL), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "tensor head is not in the checkpoint, where it is to be tail") != NULL);
    options.rename_count = rank->rank == 0 ? 2 : 1;
    rank_check_code(rank, muster_checkpoint_load_newest(group, top, &share.state, &options, NULL), MUSTER_EMISMATCH);
    options.rename_count = 1;
    renames[0] = "no rename";
    rank_check_code(rank, muster_checkpoint_load_newest(group, top, &share.state, &options, NULL), MUSTER_EINVAL);
    rank_check_code(rank, muster_group_status(group), 0);
    muster_group_free(group);
    return 0;
}

static void tensors_are_found_by_other_names(void **state) {
    (void)state;
    make_top();
    ranks_run(RANKS, load_renamed, NULL);
    assert_int_equal(folder_remove(top), RANKS + 2);
}

/* ---- progress ---- */

/* A clock that runs on by a second each time that it is asked. */
static int64_t seconds;

static int64_t hasty_clock(void *ctx) {
    (void)ctx;
    return 1000 * seconds++;
}

struct heard {
    unsigned count;
    struct muster_checkpoint_progress last;
    bool is_wrong;
};

static void hear(void *context, const struct muster_checkpoint_progress *progress) {
    struct heard *heard = context;
    heard->is_wrong = heard->is_wrong || progress->bytes < heard->last.bytes ||
                      progress->bytes > progress->total_bytes || progress->seconds <= 0;
    heard->last = *progress;
    heard->count++;
}

static int follow(struct rank *rank, void *argument) {
    (void)argument;
    static struct share share;
    struct snapshot_io io = snapshot_io_system;
    struct heard saved = {.count = 0}, loaded = {.count = 0};
    struct checkpoint_settings settings = {.keep = 2, .visible_ms = 0, .block_bytes = 256, .write_bytes = 4096};
    struct muster_checkpoint_load_options options = MUSTER_CHECKPOINT_LOAD_OPTIONS_INIT;
    struct muster_checkpoint_found found;
    struct muster_group *group = rank_group(rank, NULL);
    share_init(&share, rank, "weight", 0);
    const struct state_chunk chunk = {0, (uint64_t)rank->rank * COUNT, COUNT, share.values};
    const struct state_description description = {
        .tensors = &share.tensor, .tensor_count = 1, .chunks = &chunk, .chunk_count = 1};
    io.now_ms = hasty_clock;
    settings.listener = checkpoint_listener_of(hear, &saved, rank->rank);
    rank_check_code(rank, checkpoint_save_group(&io, group, top, 3, &description, &settings), 0);
    rank_check(rank, saved.count > 2 && !saved.is_wrong && saved.last.step == 3 && !saved.last.is_load);
    rank_check(rank, saved.last.bytes == sizeof share.values && saved.last.total_bytes == sizeof share.values);
    options.progress = hear;
    options.progress_context = &loaded;
    options.visible_ms = INT64_C(1000000);
    rank_check_code(rank, checkpoint_load_group(&io, group, top, &description, &options, &found), 0);
    rank_check(rank, loaded.count > 2 && !loaded.is_wrong && loaded.last.step == 3 && loaded.last.is_load);
    rank_check(rank, loaded.last.bytes == sizeof share.values && loaded.last.total_bytes == sizeof share.values);
    /* What is soon done is not told. */
    saved.count = loaded.count = 0;
    settings.listener.interval_ms = INT64_MAX;
    rank_check_code(rank, checkpoint_save_group(&snapshot_io_system, group, top, 4, &description, &settings), 0);
    rank_check(rank, saved.count == 0);
    muster_group_free(group);
    return 0;
}

static void long_saves_and_loads_say_how_far_they_are(void **state) {
    (void)state;
    make_top();
    ranks_run(RANKS, follow, NULL);
    assert_int_equal(folder_remove(top), 2 * (RANKS + 2));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_part_that_has_not_changed_is_not_written_again),
        cmocka_unit_test(where_nothing_can_be_taken_over_all_is_written),
        cmocka_unit_test(tensors_are_found_by_other_names),
        cmocka_unit_test(long_saves_and_loads_say_how_far_they_are),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
