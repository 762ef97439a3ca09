/* Sharded training over virtual ranks: the bits of one process, in every world, with any sharding and on any hosts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <muster/collective.h>
#include <muster/virtual_ranks.h>

#include "base/testing/parts_test_support.h"
#include "train/units/fsdp_impl.h"
#include "train/units/fsdp_test_support.h"

static int64_t committed; /* of this rank's process */

/* ---- bits ---- */

/* 3 and 8 come first and stand for all: uneven shares, and a whole tree, reach all code. */
static const size_t numbers_of_virtual_ranks[] = {3, 8, 1, 2, 4, 6, 13};
enum { FEW = 2, ALL = sizeof numbers_of_virtual_ranks / sizeof numbers_of_virtual_ranks[0] };

static void check_on(uint32_t size, const struct job *given, const struct ranks_options *ranks,
                     const char *environment) {
    struct job job = *given;
    job.ranks = *ranks;
    job.environment = environment;
    if (job.options.virtual_ranks >= size) {
        job_check(size, &job);
    }
}

/* Every layout of hosts that can be made of the ranks. */
static void check_places(const struct job *job) {
    static const uint32_t crossed[4] = {0, 1, 0, 1}, uneven[4] = {0, 0, 0, 1};
    const struct ranks_options one_host = {0}, one_each = {.ranks_per_host = 1}, two_each = {.ranks_per_host = 2},
                               three_each = {.ranks_per_host = 3}, over_cross = {.host_of = crossed},
                               lopsided = {.host_of = uneven};
    unsigned stride = part_stride("whole_matrix", 4);
    for (uint32_t size = 1; size <= 5; size += stride) {
        check_on(size, job, &one_host, NULL);
    }
    check_on(2, job, &one_host, "MUSTER_SHM=0");
    check_on(3, job, &one_each, NULL);
    check_on(4, job, &two_each, NULL);
    check_on(6, job, &two_each, NULL);
    check_on(6, job, &three_each, NULL);
    check_on(4, job, &over_cross, NULL);
    if (job->options.sharding == MUSTER_FSDP_FULL) {
        check_on(4, job, &lopsided, NULL);
    }
}

static void check_everywhere(const struct job *given) {
    size_t count = part_is_wanted("whole_matrix") ? ALL : FEW;
    for (size_t i = 0; i < count; i++) {
        struct job job = *given;
        job.options.virtual_ranks = numbers_of_virtual_ranks[i];
        check_places(&job);
    }
}

/* One number that every world shares out unevenly, but that of one rank. */
static void check_unevenly(const struct job *given) {
    struct job job = *given;
    job.options.virtual_ranks = 7;
    check_places(&job);
    job.options.sharding = MUSTER_FSDP_HYBRID;
    if (part_is_wanted("each_layout_of_hybrid")) {
        check_places(&job);
    } else {
        check_on(4, &job, &(struct ranks_options){.ranks_per_host = 2}, NULL);
    }
}

static struct job short_job(void) {
    struct job job = JOB_INIT;
    job.steps = 3;
    return job;
}

static void full_sharding_has_the_bits_of_one_process(void **state) {
    (void)state;
    struct job job = short_job();
    job.norm_max = 5;
    check_everywhere(&job);
}

static void hybrid_sharding_as_well(void **state) {
    (void)state;
    struct job job = short_job();
    job.options.sharding = MUSTER_FSDP_HYBRID;
    job.norm_max = 5;
    check_everywhere(&job);
}

static void with_momentum(void **state) {
    (void)state;
    struct job job = short_job();
    job.momentum = true;
    check_unevenly(&job);
}

static void with_types_of_16_bits(void **state) {
    (void)state;
    struct job job = short_job();
    job.norm_max = 5;
    job.options.compute_type = job.options.reduce_type = MUSTER_BFLOAT16;
    check_unevenly(&job);
    job.options.gradient_type = MUSTER_BFLOAT16;
    check_unevenly(&job);
    job.options.reduce_type = MUSTER_FLOAT32;
    check_unevenly(&job);
}

static void with_units_used_twice_or_not_at_all(void **state) {
    (void)state;
    struct job job = short_job();
    job.uses_first_twice = true;
    check_unevenly(&job);
    job.options.reshard_after_forward = false;
    check_unevenly(&job);
    job.uses_first_twice = false;
    job.options.reshard_after_forward = true;
    job.options.find_unused = job.options.check_finite = true;
    job.skipped = 2;
    job.options.prefetch = 3;
    check_unevenly(&job);
}

static void with_frozen_parameters_and_blocks(void **state) {
    (void)state;
    struct job job = short_job();
    job.norm_max = 5;
    job.frozen = 1U << 2 | 1U << 4 | 1U << 8; /* parts of units, and a whole one */
    job.block = 250;
    check_unevenly(&job);
}

/* ---- the norm ---- */

/* Of the gradients that this rank has together with all others: the bits that one rank that has them all would say. */
static int measure_norm(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                        struct muster_optimizer *optimizer) {
    enum { MOST = 1200 };
    static float whole[PARAMETERS][MOST];
    const float *gradients[PARAMETERS];
    double squares = 0, expected = 0;
    (void)job, (void)optimizer;
    memset(whole, 0, sizeof whole);
    for (size_t i = 0; i < muster_fsdp_range_count(fsdp); i++) {
        struct muster_fsdp_range range;
        rank_check_code(rank, muster_fsdp_range(fsdp, i, &range), 0);
        gradients[i] = whole[i];
        if (range.count > 0) {
            memcpy(&whole[i][range.offset], range.gradient, range.count * sizeof(float));
        }
    }
    rank_check_code(rank, muster_fsdp_squared_norm(fsdp, &squares), 0);
    rank_check_code(rank,
                    muster_all_reduce(fsdp->mesh.group, whole, whole, sizeof whole / sizeof(float), MUSTER_FLOAT32,
                                      MUSTER_OP_SUM, NULL),
                    0);
    rank_check_code(rank, muster_exact_squared_norm(NULL, gradients, parameter_counts, PARAMETERS, &expected), 0);
    rank_check(rank, squares == expected && squares > 0);
    return 0;
}

static void the_norm_does_not_depend_on_who_has_what(void **state) {
    (void)state;
    struct job job = short_job();
    job.after_step = measure_norm;
    job.options.virtual_ranks = 7;
    check_places(&job);
}

/* ---- memory ---- */

/* What waits: of this rank's part alone, once for each binary digit that is 1; one has room already. */
static int measure(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                   struct muster_optimizer *optimizer) {
    (void)optimizer;
    struct muster_fsdp_memory now;
    const size_t slots = *(const size_t *)job->context;
    rank_check_code(rank, muster_fsdp_memory(fsdp, &now), 0);
    rank_check(rank, now.waiting_bytes == slots * now.shard_bytes && now.shard_bytes > 0);
    return 0;
}

static void little_waits(void **state) {
    (void)state;
    static const struct {
        uint32_t size;
        size_t virtual_ranks, slots;
    } cases[] = {{1, 1, 0}, {1, 2, 0}, {1, 8, 2}, {2, 2, 0}, {2, 4, 0}, {2, 8, 1}, {3, 8, 1}, {4, 8, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job job = short_job();
        job.options.virtual_ranks = cases[i].virtual_ranks;
        job.after_step = measure;
        job.context = &cases[i].slots;
        job_check(cases[i].size, &job);
    }
}

/* ---- worlds that change ---- */

/* Goes on from the job's first step, as it was left in memory. */
static int keep(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                struct muster_optimizer *optimizer) {
    int64_t step = 0;
    rank_check_code(rank, muster_fsdp_keep(fsdp, optimizer, NULL, NULL, &step), 0);
    rank_check(rank, step == (job->first_step > 0 ? (int64_t)job->first_step : -1));
    if (step < 0) {
        rank_check_code(rank, muster_fsdp_commit(fsdp, 0, NULL), 0);
    }
    committed = step < 0 ? 0 : step;
    return 0;
}

static int commit(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                  struct muster_optimizer *optimizer) {
    (void)job, (void)optimizer;
    rank_check_code(rank, muster_fsdp_commit(fsdp, ++committed, NULL), 0);
    return 0;
}

static struct job kept_job(uint32_t first_step, uint32_t steps) {
    struct job job = JOB_INIT;
    job.options.virtual_ranks = 7;
    job.norm_max = 5;
    job.prepare = keep;
    job.after_step = commit;
    job.first_step = first_step;
    job.steps = steps;
    return job;
}

/* Parts get other owners, and virtual ranks other ranks. */
static int change_size(struct rank *rank, void *argument) {
    (void)argument;
    static const uint32_t sizes[] = {2, 3, 4, 1, 3};
    struct muster_group *group = rank_group(rank, NULL), *some = NULL;
    uint32_t all = rank->size;
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const struct job job = kept_job(2 * i, 2 * i + 2);
        rank_check_code(rank, muster_group_split(group, rank->rank < sizes[i] ? 0 : -1, 0, NULL, &some), 0);
        if (some) {
            rank->size = sizes[i];
            job_run(rank, &job, some);
            rank->size = all;
        }
        muster_group_free(some);
        rank_check_code(rank, muster_barrier(group, NULL), 0);
    }
    muster_group_free(group);
    return 0;
}

static void the_world_changes_and_the_bits_do_not(void **state) {
    (void)state;
    ranks_run(4, change_size, NULL);
}

enum { MARK_ENDED = 1 };

/* Between the virtual ranks of its fourth step. */
static int die(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp, struct muster_optimizer *optimizer) {
    (void)job, (void)fsdp, (void)optimizer;
    if (rank->rank == 1 && committed == 3) {
        rank_mark(rank, MARK_ENDED);
        _exit(0); /* without a word */
    }
    return 0;
}

static int survive(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL), *smaller = NULL;
    struct job job = kept_job(0, 5);
    job.after_share = die;
    job.fails = true;
    job_run(rank, &job, group);
    rank_await(rank, 1, MARK_ENDED);
    rank_check_code(rank, muster_group_shrink(group, RANKS_PATIENCE_MS, &smaller), 0);
    muster_group_free(group);
    rank->rank = muster_group_rank(smaller);
    rank->size = muster_group_size(smaller);
    job = kept_job(3, 5);
    job_run(rank, &job, smaller);
    muster_group_free(smaller);
    return 0;
}

static void survivors_take_over_virtual_ranks(void **state) {
    (void)state;
    ranks_run(3, survive, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(full_sharding_has_the_bits_of_one_process),
        cmocka_unit_test(hybrid_sharding_as_well),
        cmocka_unit_test(with_momentum),
        cmocka_unit_test(with_types_of_16_bits),
        cmocka_unit_test(with_units_used_twice_or_not_at_all),
        cmocka_unit_test(with_frozen_parameters_and_blocks),
        cmocka_unit_test(the_norm_does_not_depend_on_who_has_what),
        cmocka_unit_test(little_waits),
        cmocka_unit_test(the_world_changes_and_the_bits_do_not),
        cmocka_unit_test(survivors_take_over_virtual_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
