/* Sharded training goes on from snapshots: in another world, on other hosts, with other sharding, as one process that
 * has everything, and the other way round. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/folder_test_support.h"
#include "train/units/fsdp_snapshot_test_support.h"

static void load_and_train(const struct place *place, const struct place *before) {
    struct job job = next_job_at(place, before);
    job.prepare = load_job;
    job_check(place->size, &job);
}

static int plain_save(struct rank *rank, void *argument) {
    const struct job *job = argument;
    struct plain plain;
    plain_init(rank, job, &plain);
    reference_run(rank, job, 4, 0, &plain.r);
    rank_check_code(rank, muster_snapshot_save(folder, SAVED, &plain.state, NULL), 0);
    reference_free(&plain.r);
    return 0;
}

/* Loads what a sharded job saved, and saves it again: the same file, byte by byte. Then it trains on. */
static int plain_load(struct rank *rank, void *argument) {
    const struct job *job = argument;
    struct plain plain, whole;
    struct muster_snapshot_found found, again;
    plain_init(rank, job, &plain);
    plain.added.step = 0;
    rank_check_code(rank, muster_snapshot_load_newest(folder, &plain.state, &found), 0);
    rank_check(rank, found.step == SAVED && plain.added.step == SAVED);
    rank_check_code(rank, muster_snapshot_save(other_folder, SAVED, &plain.state, NULL), 0);
    rank_check_code(rank, muster_snapshot_find(other_folder, INT64_MAX, &again), 0);
    rank_check(rank, found.id == again.id);
    reference_run(rank, job, 1, SAVED, &plain.r);
    plain_init(rank, job, &whole);
    reference_run(rank, job, 1, 0, &whole.r);
    for (size_t p = 0; p < PARAMETERS; p++) {
        for (size_t i = 0; i < parameter_counts[p]; i++) {
            double off = (double)plain.r.values[p][i] - (double)whole.r.values[p][i];
            rank_check(rank, off <= job->tolerance && off >= -job->tolerance);
        }
    }
    reference_free(&plain.r);
    reference_free(&whole.r);
    return 0;
}

/* ---- what is loaded where ---- */

static void any_world_goes_on_where_another_stopped(void **state) {
    (void)state;
    for (size_t i = 0; i < PLACES; i++) {
        train_and_save(&places[i]);
        load_and_train(&places[(i + 1) % PLACES], &places[i]);
        load_and_train(&places[(i + 5) % PLACES], &places[i]);
    }
}

static void one_process_reads_the_same_file(void **state) {
    (void)state;
    for (size_t i = 0; i < PLACES; i++) {
        struct job job = next_job_at(&places[ONE_RANK], &places[i]);
        train_and_save(&places[i]);
        ranks_run(1, plain_load, &job);
        assert_true(folder_remove(other_folder) > 0);
    }
}

static void one_process_is_gone_on_from(void **state) {
    (void)state;
    struct job job = job_at(&places[ONE_HOST]);
    ranks_run(1, plain_save, &job);
    for (size_t i = 0; i < PLACES; i++) {
        load_and_train(&places[i], &places[ONE_HOST]);
    }
}

static void frozen_parameters_and_bfloat16_copies_come_back(void **state) {
    (void)state;
    struct job job = job_at(&places[ONE_HOST]);
    job.frozen = 1U << 2 | 1U << 4 | 1U << 8;
    job.options.compute_type = MUSTER_BFLOAT16;
    job.conclude = save_job;
    job_check(4, &job);
    for (size_t i = 0; i < PLACES; i++) {
        struct job next = next_job_at(&places[i], &places[ONE_HOST]);
        next.frozen = job.frozen;
        next.options.compute_type = MUSTER_BFLOAT16;
        next.prepare = load_job;
        job_check(places[i].size, &next);
    }
}

/* Units that were acquired before hold what was there before. */
static int look_and_load(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                         struct muster_optimizer *optimizer) {
    struct muster_fsdp_view view;
    rank_check_code(rank, muster_fsdp_begin(fsdp, MUSTER_FSDP_EVALUATE), 0);
    for (size_t unit = 0; unit < UNITS; unit++) {
        rank_check_code(rank, muster_fsdp_acquire(fsdp, unit, MUSTER_FSDP_FORWARD, &view), 0);
        rank_check_code(rank, muster_fsdp_release(fsdp, unit, MUSTER_FSDP_FORWARD), 0);
    }
    rank_check_code(rank, muster_fsdp_finish(fsdp), 0);
    return load_job(rank, job, fsdp, optimizer);
}

/* The averages of the last step belong to parameters that are gone. */
static int load_instead_of_a_step(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                                  struct muster_optimizer *optimizer) {
    (void)load_job(rank, job, fsdp, optimizer);
    rank_check_code(rank, muster_fsdp_step(fsdp, optimizer, 1), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "there are no averages") != NULL);
    return 1;
}

static void nothing_of_before_a_load_is_used(void **state) {
    (void)state;
    train_and_save(&places[ONE_HOST]);
    for (size_t i = 0; i < PLACES; i++) {
        struct job job = next_job_at(&places[i], &places[ONE_HOST]);
        job.options.reshard_after_forward = i % 2 == 0;
        job.prepare = look_and_load;
        job.conclude = i % 3 == 0 ? load_instead_of_a_step : NULL;
        job_check(places[i].size, &job);
    }
}

/* ---- who sees the folder ---- */

static int load_where_one_rank_sees_it(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                                       struct muster_optimizer *optimizer) {
    const uint32_t *sees = job->context;
    (void)load_state(rank, fsdp, optimizer, rank->rank == *sees ? folder : no_folder, SAVED);
    return 0;
}

static void one_rank_sees_it_and_all_get_it(void **state) {
    (void)state;
    static const struct {
        size_t place;
        uint32_t sees;
    } cases[] = {{ONE_HOST, 0},    {TWO_HOSTS, 0},        {TWO_HOSTS, 2}, {HYBRID, 0}, {HYBRID, 2},
                 {THREE_HOSTS, 1}, {NO_SHARED_MEMORY, 1}, {CROSSED, 1},   {UNEVEN, 3}};
    train_and_save(&places[ONE_HOST]);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct place *place = &places[cases[i].place];
        struct job job = next_job_at(place, &places[ONE_HOST]);
        job.prepare = load_where_one_rank_sees_it;
        job.context = &cases[i].sees;
        job_check(place->size, &job);
    }
}

static int save_on_each_host(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                             struct muster_optimizer *optimizer) {
    (void)job;
    rank_check_code(rank, save_state(fsdp, optimizer, rank->rank % 2 == 0, host_folder(rank), SAVED), 0);
    return 0;
}

static int load_on_each_host(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                             struct muster_optimizer *optimizer) {
    (void)job;
    (void)load_state(rank, fsdp, optimizer, host_folder(rank), SAVED);
    return 0;
}

static void each_host_has_a_folder_of_its_own(void **state) {
    (void)state;
    struct muster_snapshot_found here, there;
    for (size_t i = TWO_HOSTS; i <= HYBRID; i += HYBRID - TWO_HOSTS) { /* full and hybrid sharding */
        struct job job = job_at(&places[i]), next = next_job_at(&places[i], &places[i]);
        job.conclude = save_on_each_host;
        job_check(places[i].size, &job);
        assert_int_equal(muster_snapshot_find(folder, INT64_MAX, &here), 0);
        assert_int_equal(muster_snapshot_find(other_folder, INT64_MAX, &there), 0);
        assert_true(here.id == there.id && here.step == SAVED);
        next.prepare = load_on_each_host;
        job_check(places[i].size, &next);
        assert_true(folder_remove(other_folder) > 0);
    }
}

static void shapes_are_checked(void **state) {
    (void)state;
    struct muster_fsdp_memory memory;
    struct muster_fsdp_parameter parameter = {.name = "p", .count = 12, .dim_count = 2, .shape = {3, 4}};
    const struct muster_fsdp_unit unit = {"u", &parameter, 1};
    assert_int_equal(muster_fsdp_plan(&unit, 1, NULL, 1, 1, 2, &memory), 0);
    parameter.shape[1] = 5;
    assert_int_equal(muster_fsdp_plan(&unit, 1, NULL, 1, 1, 2, &memory), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "the shape of parameter \"p\""));
    parameter.dim_count = MUSTER_TENSOR_DIMS_MAX + 1;
    assert_int_equal(muster_fsdp_plan(&unit, 1, NULL, 1, 1, 2, &memory), MUSTER_EINVAL);
}

#define snapshot_test(name) cmocka_unit_test_setup_teardown(name, folders_set_up, folders_tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        snapshot_test(any_world_goes_on_where_another_stopped),
        snapshot_test(one_process_reads_the_same_file),
        snapshot_test(one_process_is_gone_on_from),
        snapshot_test(frozen_parameters_and_bfloat16_copies_come_back),
        snapshot_test(nothing_of_before_a_load_is_used),
        snapshot_test(one_rank_sees_it_and_all_get_it),
        snapshot_test(each_host_has_a_folder_of_its_own),
        snapshot_test(shapes_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
