/* Checkpoints by groups of real processes: what one rank meets with, all hear of; and the group goes on. */
#include <errno.h>
#include <fcntl.h>
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
#include "train/checkpoint/checkpoint_test_support.h"

#include <muster/collective.h>

enum { PATH_BYTES = 256, RANKS = 3 };

static char top[PATH_BYTES];

static void make_top(void) {
    const char *base = getenv("TMPDIR");
    assert_true(str_format(top, sizeof top, "%s/muster-group-XXXXXX", base ? base : "/tmp"));
    assert_non_null(mkdtemp(top));
}

static void init(struct rank *rank, struct test_state *t, uint64_t seed) {
    struct test_cut cut = {.seed = seed, .rank = rank->rank, .size = rank->size};
    test_state_init(t, test_small, TEST_SMALL_COUNT, &cut);
}

/* Saves a state that comes from `tag`. */
static int save(struct muster_group *group, struct rank *rank, int64_t step, int64_t tag, uint32_t keep) {
    struct test_state t;
    struct muster_checkpoint_options options = MUSTER_CHECKPOINT_OPTIONS_INIT;
    options.keep = keep;
    init(rank, &t, (uint64_t)tag);
    test_state_fill(&t, tag);
    int code = muster_checkpoint_save(group, top, step, &t.state, &options);
    test_state_done(&t);
    return code;
}

static int64_t load(struct muster_group *group, struct rank *rank, struct muster_checkpoint_found *found) {
    struct test_state t;
    struct muster_checkpoint_load_options options = MUSTER_CHECKPOINT_LOAD_OPTIONS_INIT;
    options.visible_ms = 0;
    init(rank, &t, 77);
    int code = muster_checkpoint_load_newest(group, top, &t.state, &options, found);
    int64_t tag = code ? code : test_state_tag(&t);
    test_state_done(&t);
    return tag;
}

/* The path of part `part` of the checkpoint of `step`. */
static void part_path(struct rank *rank, char out[PATH_BYTES], int64_t step, uint32_t part) {
    struct snapshot_folder folder;
    struct checkpoint_record record = {.step = -1};
    char text[CHECKPOINT_NAME_MAX];
    rank_check_code(rank, snapshot_folder_open(&folder, &snapshot_io_system, top, false), 0);
    rank_check_code(rank, checkpoint_read_record(&folder, step, &record), 0);
    snapshot_folder_close(&folder);
    checkpoint_name_write(
        text, &(struct checkpoint_name){.kind = CHECKPOINT_PART, .step = step, .token = record.token, .part = part});
    rank_check(rank, str_format(out, PATH_BYTES, "%s/%s", top, text));
}

/* ---- a rank whose disk fails ---- */

/* Fails the n-th call that changes something, once. */
struct failing {
    struct snapshot_io io;
    unsigned calls, at;
};

static struct failing failing;

static bool fails(void) {
    return ++failing.calls == failing.at;
}

static int failing_create(void *ctx, int folder, const char *name) {
    return fails() ? -ENOSPC : snapshot_io_system.create(ctx, folder, name);
}

static int64_t failing_write(void *ctx, int file, const void *bytes, size_t count) {
    return fails() ? -ENOSPC : snapshot_io_system.write(ctx, file, bytes, count);
}

static int failing_sync(void *ctx, int handle) {
    return fails() ? -EIO : snapshot_io_system.sync(ctx, handle);
}

static int failing_rename(void *ctx, int folder, const char *from, const char *to) {
    return fails() ? -EACCES : snapshot_io_system.rename(ctx, folder, from, to);
}

static void failing_init(unsigned at) {
    failing = (struct failing){.io = snapshot_io_system, .at = at};
    failing.io.create = failing_create;
    failing.io.write = failing_write;
    failing.io.sync = failing_sync;
    failing.io.rename = failing_rename;
}

/* Each rank in turn has a disk that fails at its n-th call, for every n. Nobody else notices but by the result. */
static int fail_at_every_call(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    const struct checkpoint_settings settings = {.keep = 2, .visible_ms = 0, .block_bytes = 64, .write_bytes = 512};
    rank_check_code(rank, save(group, rank, 1, 1, 2), 0);
    for (uint32_t victim = 0; victim < rank->size; victim++) {
        int code = MUSTER_ESYSTEM;
        for (unsigned at = 1; code; at++) {
            struct test_state t;
            struct muster_checkpoint_found found;
            char words[64];
            failing_init(rank->rank == victim ? at : 0);
            init(rank, &t, at);
            test_state_fill(&t, 1000 + at);
            code = checkpoint_save_group(&failing.io, group, top, 2 + victim, &t.description, &settings);
            test_state_done(&t);
            rank_check(rank, at < 60 && str_format(words, sizeof words, "save step %" PRIu32 ": rank %" PRIu32 ": ",
                                                   2 + victim, victim));
            rank_check(rank, code == 0 || (code == MUSTER_ESYSTEM && str_has_prefix(muster_detail(), words)));
            /* The record may have its name or not: its files stay. */
            bool may_lack_a_record = code != 0 && strstr(muster_detail(), "rename to its name") != NULL;
            int64_t tag = load(group, rank, &found);
            bool is_new = found.step == 2 + victim; /* also where the last call alone has failed */
            rank_check(rank, found.passed_over == (may_lack_a_record && !is_new) && (is_new || code));
            rank_check(rank, is_new ? tag == 1000 + at || code : tag > 0);
        }
    }
    rank_check_code(rank, muster_group_status(group), 0);
    muster_group_free(group);
    return 0;
}

static void a_failure_at_any_call_of_any_rank_is_every_rank_s(void **state) {
    (void)state;
    make_top();
    ranks_run(RANKS, fail_at_every_call, NULL);
    assert_int_equal(folder_remove(top), 2 * (RANKS + 2)); /* no leftovers */
}

/* ---- damage ---- */

static void damage(struct rank *rank, int64_t step, uint32_t part, off_t back) {
    char path[PATH_BYTES], byte = 0;
    part_path(rank, path, step, part);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat info;
    rank_check(rank, fd >= 0 && fstat(fd, &info) == 0 && pread(fd, &byte, 1, info.st_size - back) == 1);
    byte = (char)(byte ^ 1);
    rank_check(rank, pwrite(fd, &byte, 1, info.st_size - back) == 1);
    (void)close(fd);
}

/* Step 1 is whole; of step 2 a part is damaged, of step 3 one is missing, of step 4 the record is; 5 was cut off. */
static int find_damage(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_checkpoint_found found, own;
    char path[PATH_BYTES];
    for (int64_t step = 1; step <= 5; step++) {
        rank_check_code(rank, save(group, rank, step, step, 9), 0);
    }
    if (rank->rank == 0) {
        damage(rank, 2, 1, 60);
        part_path(rank, path, 3, 2);
        rank_check(rank, unlink(path) == 0);
        rank_check(rank, str_format(path, sizeof path, "%s/checkpoint-4.json", top) && truncate(path, 100) == 0);
        rank_check(rank, str_format(path, sizeof path, "%s/checkpoint-5.json", top) && unlink(path) == 0);
    }
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    rank_check(rank, load(group, rank, &found) == 1);
    rank_check(rank, found.step == 1 && found.passed_over == 4 && found.part_count == rank->size);
    rank_check(rank, strstr(found.note, "step 5: its save was cut off\nstep 4: ") == found.note);
    rank_check(rank,
               strstr(found.note, "checkpoint-4.json: the record is damaged") && strstr(found.note, "\nstep 3: rank "));
    rank_check(rank, strstr(found.note, "-2.safetensors: No such file") && strstr(found.note, "\nstep 2: rank "));
    rank_check(rank, strstr(found.note, "is damaged: ") && muster_checkpoint_find(top, INT64_MAX, &own) == 0);
    rank_check(rank, own.step == 3 && own.passed_over == 2); /* by records alone */
    /* Going back to step 1, and saving step 2 again: the files of before go. */
    rank_check_code(rank, save(group, rank, 2, 22, 9), 0);
    rank_check(rank, load(group, rank, &found) == 22 && found.step == 2);
    if (rank->rank == 0) {
        damage(rank, 2, 0, 8);
        damage(rank, 1, 0, 8);
    }
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    rank_check(rank, load(group, rank, &found) == MUSTER_ECORRUPT && strstr(muster_detail(), "step 1: rank 0: "));
    muster_group_free(group);
    return 0;
}

static void damage_makes_all_take_the_next_older(void **state) {
    (void)state;
    make_top();
    ranks_run_with(RANKS, find_damage, NULL, &(struct ranks_options){.ranks_per_host = 2});
    assert_true(folder_remove(top) > 0);
}

/* ---- what ranks disagree upon ---- */

static int disagree(struct rank *rank, void *argument) {
    (void)argument;
    float memory[8] = {0};
    int64_t number = 5;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_tensor tensor = {.name = "w", .type = MUSTER_FLOAT32, .dim_count = 1, .shape = {8}};
    struct muster_checkpoint_chunk chunk = {.tensor = 0, .first = 4 * rank->rank, .count = 4, .data = memory};
    struct muster_value value = muster_value_integer("n", &number);
    struct muster_checkpoint_state state = MUSTER_CHECKPOINT_STATE(&tensor, 1, &chunk, 1, &value, 1);
    struct muster_checkpoint_found found;
    rank_check_code(rank, muster_checkpoint_load_newest(group, top, &state, NULL, &found), MUSTER_ENOENT);
    rank_check_code(rank, muster_checkpoint_save(group, top, rank->rank, &state, NULL), MUSTER_EMISMATCH);
    chunk.first = 0;
    rank_check_code(rank, muster_checkpoint_save(group, top, 1, &state, NULL), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "rank 0: element 0 of tensor w is of rank "));
    chunk.first = rank->rank == 0 ? 0 : 5;
    chunk.count = rank->rank == 0 ? 4 : 3;
    rank_check_code(rank, muster_checkpoint_save(group, top, 1, &state, NULL), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "rank 0: element 4 of tensor w is of no rank"));
    rank_check(rank, access(top, F_OK) == 0 && muster_checkpoint_find(top, INT64_MAX, &found) == MUSTER_ENOENT);
    chunk = (struct muster_checkpoint_chunk){.tensor = 0, .first = 4 * rank->rank, .count = 4, .data = memory};
    number = 5 + rank->rank; /* rank 0's is saved */
    rank_check_code(rank, muster_checkpoint_save(group, top, 1, &state, NULL), 0);
    number = 0;
    rank_check_code(rank, muster_checkpoint_load_newest(group, top, &state, NULL, NULL), 0);
    rank_check(rank, number == 5);
    tensor.shape[0] = 9;
    rank_check_code(rank, muster_checkpoint_load_newest(group, top, &state, NULL, NULL), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "tensor w is float32 [8] in the file, float32 [9] in the program"));
    tensor.shape[0] = 8;
    tensor.type = MUSTER_INT32;
    rank_check_code(rank, muster_checkpoint_load_newest(group, top, &state, NULL, NULL), MUSTER_EINVAL);
    tensor.type = MUSTER_FLOAT32;
    tensor.name = "v";
    rank_check_code(rank, muster_checkpoint_load_newest(group, top, &state, NULL, NULL), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "tensor v is not in the checkpoint"));
    tensor.name = "w";
    value.name = "m";
    rank_check_code(rank, muster_checkpoint_load_newest(group, top, &state, NULL, NULL), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "load step 1: rank 0: value m is not in the snapshot"));
    value = muster_value_optional_integer("m", &number);
    number = 7;
    rank_check_code(rank, muster_checkpoint_load_newest(group, top, &state, NULL, NULL), 0);
    rank_check(rank, number == 7);
    value.name = "n";
    rank_check_code(rank, muster_checkpoint_load_newest(group, top, &state, NULL, NULL), 0);
    rank_check(rank, number == 5);
    rank_check_code(rank, muster_group_status(group), 0);
    muster_group_free(group);
    return 0;
}

static void wrong_descriptions_are_refused_by_all(void **state) {
    (void)state;
    make_top();
    ranks_run(2, disagree, NULL);
    assert_int_equal(folder_remove(top), 4);
}

/* Structs of older and newer programs (base/sized.h), and arguments that cannot be: one rank's mistake is everybody's
 * result. */
static int give_wrong_arguments(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_checkpoint_state state = MUSTER_CHECKPOINT_STATE_INIT;
    struct muster_checkpoint_options options = MUSTER_CHECKPOINT_OPTIONS_INIT;
    struct muster_checkpoint_load_options load_options = MUSTER_CHECKPOINT_LOAD_OPTIONS_INIT;
    struct {
        struct muster_checkpoint_options options;
        uint64_t more;
    } newer = {.options = options, .more = 1};
    bool mine = rank->rank == 1;
    newer.options.size = sizeof newer;
    rank_check_code(rank, muster_checkpoint_save(group, top, 1, &state, &newer.options), MUSTER_EUNSUPPORTED);
    newer.more = 0;
    rank_check_code(rank, muster_checkpoint_save(group, top, 1, &state, &newer.options), 0);
    options.size = mine ? 0 : options.size;
    rank_check_code(rank, muster_checkpoint_save(group, top, 1, &state, &options), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "rank 1: ") == muster_detail());
    options = (struct muster_checkpoint_options)MUSTER_CHECKPOINT_OPTIONS_INIT;
    options.keep = mine ? 0 : 2;
    rank_check_code(rank, muster_checkpoint_save(group, top, 1, &state, &options), MUSTER_EINVAL);
    options.keep = mine ? 3 : 2;
    rank_check_code(rank, muster_checkpoint_save(group, top, 1, &state, &options), MUSTER_EMISMATCH);
    rank_check_code(rank, muster_checkpoint_save(group, mine ? NULL : top, 1, &state, NULL), MUSTER_EINVAL);
    rank_check_code(rank, muster_checkpoint_save(group, top, 1, mine ? NULL : &state, NULL), MUSTER_EINVAL);
    rank_check_code(rank, muster_checkpoint_save(NULL, top, 1, &state, NULL), MUSTER_EINVAL);
    state.chunk_count = mine ? 1 : 0;
    rank_check_code(rank, muster_checkpoint_save(group, top, 1, &state, NULL), MUSTER_EINVAL);
    state.chunk_count = 0;
    load_options.visible_ms = mine ? -1 : 0;
    rank_check_code(rank, muster_checkpoint_load_newest(group, top, &state, &load_options, NULL), MUSTER_EINVAL);
    load_options.visible_ms = 0;
    load_options.step_max = mine ? 1 : 2;
    rank_check_code(rank, muster_checkpoint_load_newest(group, top, &state, &load_options, NULL), MUSTER_EMISMATCH);
    rank_check_code(rank, muster_checkpoint_load_newest(group, top, &state, NULL, NULL), 0);
    rank_check_code(rank, muster_group_status(group), 0);
    muster_group_free(group);
    return 0;
}

static void wrong_arguments_of_one_are_everybody_s(void **state) {
    (void)state;
    make_top();
    ranks_run(RANKS, give_wrong_arguments, NULL);
    assert_int_equal(folder_remove(top), RANKS + 2);
}

/* ---- several hosts ---- */

/* Hosts with a folder each: a checkpoint that nobody could load. */
static int save_apart(struct rank *rank, void *argument) {
    (void)argument;
    char folder[PATH_BYTES];
    struct test_state t;
    struct muster_checkpoint_options options = MUSTER_CHECKPOINT_OPTIONS_INIT;
    struct muster_group *group = rank_group(rank, NULL);
    options.visible_ms = 0;
    init(rank, &t, 3);
    rank_check(rank, str_format(folder, sizeof folder, "%s/host%" PRIu32, top, rank->rank / 2));
    rank_check_code(rank, muster_checkpoint_save(group, folder, 1, &t.state, &options), MUSTER_ESYSTEM);
    rank_check(rank, strstr(muster_detail(), "rank 0: rank 2 has written its part, which rank 0 does not see"));
    test_state_done(&t);
    muster_group_free(group);
    return 0;
}

static void folders_that_hosts_do_not_share_are_noticed(void **state) {
    (void)state;
    char folder[PATH_BYTES];
    make_top();
    ranks_run_with(4, save_apart, NULL, &(struct ranks_options){.ranks_per_host = 2});
    for (int host = 0; host < 2; host++) {
        assert_true(str_format(folder, sizeof folder, "%s/host%d", top, host));
        assert_int_equal(folder_remove(folder), 2 * host); /* rank 0 has removed what it sees */
    }
    assert_int_equal(rmdir(top), 0);
}

/* A file system that shows files to the second host three seconds late, by a clock that runs in pauses alone. */
static int64_t late_now_ms;

static int late_open(void *ctx, int folder, const char *name) {
    return late_now_ms < 3000 ? -ENOENT : snapshot_io_system.open(ctx, folder, name);
}

static int late_open_folder(void *ctx, const char *path, bool make) {
    return late_now_ms < 1000 ? -ENOENT : snapshot_io_system.open_folder(ctx, path, make);
}

static int64_t late_clock(void *ctx) {
    (void)ctx;
    return late_now_ms;
}

static void late_pause(void *ctx, int64_t ms) {
    (void)ctx;
    late_now_ms += ms;
}

static int load_late(struct rank *rank, void *argument) {
    (void)argument;
    struct test_state t;
    struct muster_checkpoint_found found;
    struct muster_checkpoint_load_options options = MUSTER_CHECKPOINT_LOAD_OPTIONS_INIT;
    struct snapshot_io io = snapshot_io_system;
    struct muster_group *group = rank_group(rank, NULL);
    rank_check_code(rank, save(group, rank, 1, 11, 2), 0);
    io.now_ms = late_clock;
    io.pause = late_pause;
    if (rank->rank >= 2) {
        io.open = late_open;
        io.open_folder = late_open_folder;
    }
    init(rank, &t, 4);
    options.visible_ms = 4000;
    rank_check_code(rank, checkpoint_load_group(&io, group, top, &t.description, &options, &found), 0);
    rank_check(rank, test_state_tag(&t) == 11 && found.passed_over == 0);
    late_now_ms = 0;
    options.visible_ms = 2000; /* too short */
    rank_check_code(rank, checkpoint_load_group(&io, group, top, &t.description, &options, &found), MUSTER_ECORRUPT);
    rank_check(rank, strstr(muster_detail(), "step 1: rank 2: "));
    late_now_ms = 1;
    options.visible_ms = INT64_MAX; /* for ever */
    rank_check_code(rank, checkpoint_load_group(&io, group, top, &t.description, &options, &found), 0);
    rank_check_code(rank, muster_group_status(group), 0);
    test_state_done(&t);
    muster_group_free(group);
    return 0;
}

static void files_that_come_late_are_waited_for_and_not_for_ever(void **state) {
    (void)state;
    make_top();
    ranks_run_with(4, load_late, NULL, &(struct ranks_options){.ranks_per_host = 2});
    assert_int_equal(folder_remove(top), 6);
}

/* ---- what stays ---- */

static int keep_some(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_checkpoint_found found;
    char path[PATH_BYTES];
    rank_check(rank, str_format(path, sizeof path, "%s/checkpoint-7-0123456789abcdef-0.safetensors", top));
    int fd = rank->rank == 0 ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1; /* of a save that was cut off */
    rank_check(rank, str_format(path, sizeof path, "%s/checkpoint-7-0123456789abcdef.safetensors", top));
    int other = rank->rank == 0 ? open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600) : -1; /* a stranger's */
    rank_check(rank, rank->rank > 0 || (close(fd) == 0 && close(other) == 0));
    for (int64_t step = 1; step <= 4; step++) {
        rank_check_code(rank, save(group, rank, step, step, 2), 0);
    }
    rank_check_code(rank, save(group, rank, 4, 44, 2), 0);
    rank_check(rank, load(group, rank, &found) == 44 && found.step == 4 && found.passed_over == 0);
    struct muster_checkpoint_load_options options = MUSTER_CHECKPOINT_LOAD_OPTIONS_INIT;
    struct test_state t;
    options.step_max = 3;
    init(rank, &t, 9);
    rank_check_code(rank, muster_checkpoint_load_newest(group, top, &t.state, &options, &found), 0);
    rank_check(rank, test_state_tag(&t) == 3);
    options.step_max = 2;
    rank_check_code(rank, muster_checkpoint_load_newest(group, top, &t.state, &options, &found), MUSTER_ENOENT);
    test_state_done(&t);
    muster_group_free(group);
    return 0;
}

static void the_newest_stay_and_strangers_too(void **state) {
    (void)state;
    make_top();
    ranks_run(RANKS, keep_some, NULL);
    assert_int_equal(folder_remove(top), 2 * (RANKS + 2) + 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_at_any_call_of_any_rank_is_every_rank_s),
        cmocka_unit_test(damage_makes_all_take_the_next_older),
        cmocka_unit_test(wrong_descriptions_are_refused_by_all),
        cmocka_unit_test(wrong_arguments_of_one_are_everybody_s),
        cmocka_unit_test(folders_that_hosts_do_not_share_are_noticed),
        cmocka_unit_test(files_that_come_late_are_waited_for_and_not_for_ever),
        cmocka_unit_test(the_newest_stay_and_strangers_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
