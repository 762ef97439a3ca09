/* Sharded training goes on from checkpoints, of which every rank writes what it owns: in another world, on other hosts,
 * with other sharding. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/checkpoint.h>

#include "base/folder_test_support.h"
#include "train/units/fsdp_snapshot_test_support.h"

static int save_checkpoint(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                           struct muster_optimizer *optimizer) {
    struct added added;
    added_init(&added, job->steps);
    rank_check_code(rank, muster_fsdp_save_checkpoint(fsdp, optimizer, folder, job->steps, &added.state, NULL), 0);
    return 0;
}

static int load_checkpoint(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                           struct muster_optimizer *optimizer) {
    struct added added, wanted;
    struct muster_checkpoint_found found;
    added_init(&added, 0);
    added_init(&wanted, job->first_step);
    memset(added.marks, 0, sizeof added.marks);
    rank_check_code(rank, muster_fsdp_load_newest_checkpoint(fsdp, optimizer, folder, &added.state, NULL, &found), 0);
    rank_check(rank, found.step == job->first_step && added.step == found.step && found.passed_over == 0);
    rank_check(rank, found.part_count == job->first_size);
    rank_check(rank, memcmp(added.marks, wanted.marks, sizeof added.marks) == 0);
    return 0;
}

static void any_world_goes_on_where_another_stopped(void **state) {
    (void)state;
    for (size_t i = 0; i < PLACES; i++) {
        const struct place *next = &places[(i + 4) % PLACES];
        struct job job = job_at(&places[i]), next_job = next_job_at(next, &places[i]);
        job.conclude = save_checkpoint;
        next_job.prepare = load_checkpoint;
        job_check(places[i].size, &job);
        job_check(next->size, &next_job);
        assert_int_equal(folder_remove(folder), places[i].size + 2);
    }
}

static int refuse(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                  struct muster_optimizer *optimizer) {
    (void)job;
    rank_check_code(rank, muster_fsdp_load_newest_checkpoint(fsdp, optimizer, no_folder, NULL, NULL, NULL),
                    MUSTER_ENOENT);
    rank_check_code(rank, muster_fsdp_save_checkpoint(fsdp, optimizer, folder, -1, NULL, NULL), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "muster_fsdp_save_checkpoint: save step -1: rank 0: step -1") != NULL);
    rank_check_code(rank, muster_fsdp_save_checkpoint(NULL, optimizer, folder, 1, NULL, NULL), MUSTER_EINVAL);
    return 0;
}

static void what_cannot_be_is_refused_and_training_goes_on(void **state) {
    (void)state;
    struct job job = job_at(&places[THREE_RANKS]);
    job.prepare = refuse;
    job_check(places[THREE_RANKS].size, &job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_world_goes_on_where_another_stopped),
        cmocka_unit_test(what_cannot_be_is_refused_and_training_goes_on),
    };
    return cmocka_run_group_tests(tests, folders_set_up, folders_tear_down);
}
