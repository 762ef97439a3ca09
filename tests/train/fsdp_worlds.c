/* Checkpoints between all pairs of worlds, sharded (fsdp) and whole on every rank (ddp): what each of them has saved
 * after some steps, each other one loads, to the bit, and trains on.
 *
 *   fsdp_worlds         1 to 4 ranks
 *   fsdp_worlds SIZE    1 to SIZE ranks, with more ranks than some parameters have elements */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/checkpoint.h>

#include "base/folder_test_support.h"
#include "base/str.h"
#include "train/units/fsdp_snapshot_test_support.h"

enum kind { FSDP, DDP, KINDS };

static uint32_t largest = 4;
static unsigned long pairs;

/* Who has saved, and where. */
struct saved {
    uint32_t size;
    char path[PATH_BYTES];
};

/* ---- fsdp ---- */

static int save_sharded(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                        struct muster_optimizer *optimizer) {
    const struct saved *saved = job->context;
    struct added added;
    added_init(&added, SAVED);
    rank_check_code(rank, muster_fsdp_save_checkpoint(fsdp, optimizer, saved->path, SAVED, &added.state, NULL), 0);
    return 0;
}

static int load_sharded(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                        struct muster_optimizer *optimizer) {
    const struct saved *saved = job->context;
    struct added added;
    struct muster_checkpoint_found found;
    added_init(&added, 0);
    rank_check_code(rank, muster_fsdp_load_newest_checkpoint(fsdp, optimizer, saved->path, &added.state, NULL, &found),
                    0);
    rank_check(rank, found.step == SAVED && added.step == SAVED && found.part_count == saved->size);
    rank_check(rank, added.marks[MARKS - 1] == SAVED && found.passed_over == 0);
    return 0;
}

/* ---- ddp ---- */

static struct muster_checkpoint_state whole(const struct plain *plain) {
    return (struct muster_checkpoint_state)MUSTER_CHECKPOINT_STATE(
        plain->state.tensors, plain->state.tensor_count, NULL, 0, plain->state.values, plain->state.value_count);
}

/* What a job of `size` ranks has after the steps that are saved. */
static void train_whole(struct rank *rank, uint32_t size, struct plain *plain) {
    const struct job job = job_at(&places[ONE_HOST]);
    plain_init(rank, &job, plain);
    reference_run(rank, &job, size, 0, &plain->r);
}

static int save_whole(struct rank *rank, void *argument) {
    const struct saved *saved = argument;
    struct plain plain;
    struct muster_group *group = rank_group(rank, NULL);
    train_whole(rank, saved->size, &plain);
    struct muster_checkpoint_state state = whole(&plain);
    rank_check_code(rank, muster_checkpoint_save(group, saved->path, SAVED, &state, NULL), 0);
    reference_free(&plain.r);
    muster_group_free(group);
    return 0;
}

static int load_whole(struct rank *rank, void *argument) {
    const struct saved *saved = argument;
    struct plain loaded, expected;
    struct muster_checkpoint_found found;
    const struct job job = job_at(&places[ONE_HOST]);
    struct muster_group *group = rank_group(rank, NULL);
    plain_init(rank, &job, &loaded);
    struct muster_checkpoint_state state = whole(&loaded);
    loaded.added.step = 0;
    memset(loaded.added.marks, 0, sizeof loaded.added.marks);
    rank_check_code(rank, muster_checkpoint_load_newest(group, saved->path, &state, NULL, &found), 0);
    rank_check(rank, found.part_count == saved->size && loaded.added.step == SAVED);
    train_whole(rank, saved->size, &expected);
    for (size_t i = 0; i < expected.state.tensor_count; i++) {
        const struct muster_tensor *tensor = &expected.tensors[i];
        uint64_t count = 1;
        for (uint32_t d = 0; d < tensor->dim_count; d++) {
            count *= tensor->shape[d];
        }
        rank_check(rank, memcmp(tensor->data, loaded.tensors[i].data, count * muster_type_bytes(tensor->type)) == 0);
    }
    reference_free(&loaded.r);
    reference_free(&expected.r);
    muster_group_free(group);
    return 0;
}

/* ---- pairs ---- */

static void save(enum kind kind, struct saved *saved) {
    struct job job = job_at(&places[ONE_HOST]);
    assert_true(str_format(saved->path, sizeof saved->path, "%s-%d-%" PRIu32, folder, (int)kind, saved->size));
    job.conclude = save_sharded;
    job.context = saved;
    if (kind == FSDP) {
        job_check(saved->size, &job);
    } else {
        ranks_run(saved->size, save_whole, saved);
    }
}

static void load(enum kind kind, uint32_t size, struct saved *saved) {
    struct place before = places[ONE_HOST];
    before.size = saved->size;
    struct job job = next_job_at(&places[ONE_HOST], &before);
    job.prepare = load_sharded;
    job.context = saved;
    job.steps = SAVED + 1; /* which needs all that the optimizer remembers */
    if (kind == FSDP) {
        job_check(size, &job);
    } else {
        ranks_run(size, load_whole, saved);
    }
    pairs++;
}

static void every_world_loads_what_every_world_has_saved(void **state) {
    (void)state;
    for (uint32_t before = 1; before <= largest; before++) {
        for (enum kind kind = FSDP; kind < KINDS; kind++) {
            struct saved saved = {.size = before};
            save(kind, &saved);
            for (uint32_t size = 1; size <= largest; size++) {
                load(FSDP, size, &saved);
                load(DDP, size, &saved);
            }
            assert_int_equal(folder_remove(saved.path), before + 2);
        }
    }
    (void)printf("%lu pairs\n", pairs);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_world_loads_what_every_world_has_saved),
    };
    if (argc > 1) {
        largest = (uint32_t)strtoul(argv[1], NULL, 10);
    }
    return cmocka_run_group_tests(tests, folders_set_up, folders_tear_down);
}
