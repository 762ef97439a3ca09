/* Sharded training has the results of one process: to the bit on one host, to rounding elsewhere. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "train/units/fsdp_test_support.h"

enum { CLOSE = 1 }; /* that is, not to the bit */
static const double tolerance = 2e-6;

/* Every layout of hosts that can be made of the ranks. */
static void check_everywhere(const struct job *given) {
    static const uint32_t crossed[4] = {0, 1, 0, 1}, uneven[4] = {0, 0, 0, 1};
    const struct {
        uint32_t size;
        struct ranks_options ranks;
        const char *environment;
        int close;
    } places[] = {
        {1, {0}, NULL, 0},
        {2, {0}, NULL, 0},
        {3, {0}, NULL, 0},
        {4, {0}, NULL, 0},
        {2, {0}, "MUSTER_SHM=0", CLOSE},
        {3, {.ranks_per_host = 1}, NULL, CLOSE},
        {4, {.ranks_per_host = 2}, NULL, CLOSE},
        {4, {.host_of = crossed}, NULL, CLOSE},
        {4, {.host_of = uneven}, NULL, CLOSE},
    };
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        struct job job = *given;
        if (job.options.sharding == MUSTER_FSDP_HYBRID && places[i].ranks.host_of == uneven) {
            continue;
        }
        job.ranks = places[i].ranks;
        job.environment = places[i].environment;
        bool is_close = places[i].close == CLOSE || ranks_use_engine("mpi"); /* which adds in an order of its own */
        job.tolerance = job.tolerance > 0 || !is_close ? job.tolerance : tolerance;
        job_check(places[i].size, &job);
    }
}

static void it_trains_as_one_process(void **state) {
    (void)state;
    struct job job = JOB_INIT;
    check_everywhere(&job);
    if (ranks_wished_size() > 4) {
        job.tolerance = ranks_use_engine("mpi") ? tolerance : 0;
        job_check(ranks_wished_size(), &job);
    }
}

static void hybrid_sharding_trains_as_well(void **state) {
    (void)state;
    struct job job = JOB_INIT;
    job.options.sharding = MUSTER_FSDP_HYBRID;
    check_everywhere(&job);
}

static void gradients_are_clipped_by_the_global_norm(void **state) {
    (void)state;
    struct job job = JOB_INIT;
    job.norm_max = 5;
    job.tolerance = tolerance;
    check_everywhere(&job);
}

static void frozen_parameters_stay(void **state) {
    (void)state;
    struct job job = JOB_INIT;
    job.frozen = 1U << 2 | 1U << 4 | 1U << 8; /* parts of units, and a whole one */
    check_everywhere(&job);
}

static void blocks_stay_whole(void **state) {
    (void)state;
    struct job job = JOB_INIT;
    job.block = 250;
    check_everywhere(&job);
}

static void gradients_accumulate_without_communication(void **state) {
    (void)state;
    struct job job = JOB_INIT;
    job.before[0] = job.before[1] = MUSTER_FSDP_NO_SYNC;
    job.before_count = 2;
    check_everywhere(&job);
}

static void gradients_accumulate_in_shards(void **state) {
    (void)state;
    struct job job = JOB_INIT;
    job.before[0] = job.before[1] = MUSTER_FSDP_ACCUMULATE;
    job.before_count = 2;
    job.tolerance = tolerance;
    check_everywhere(&job);
    job.options.sharding = MUSTER_FSDP_HYBRID;
    check_everywhere(&job);
    job.before[0] = MUSTER_FSDP_NO_SYNC;
    check_everywhere(&job);
}

static void a_unit_is_used_twice(void **state) {
    (void)state;
    struct job job = JOB_INIT;
    job.uses_first_twice = true;
    check_everywhere(&job);
}

static void some_units_are_not_used(void **state) {
    (void)state;
    struct job job = JOB_INIT;
    job.options.find_unused = true;
    job.skipped = 2;
    check_everywhere(&job);
}

static void ranks_run_out_of_data(void **state) {
    (void)state;
    struct job job = JOB_INIT;
    job.options.uneven_inputs = true;
    job.batches = 1;
    check_everywhere(&job);
    job.options.divide_by_active = true;
    job.tolerance = tolerance;
    check_everywhere(&job);
}

static void units_stay_gathered_or_are_gathered_ahead(void **state) {
    (void)state;
    struct job job = JOB_INIT;
    job.options.reshard_after_forward = false;
    check_everywhere(&job);
    job.options.reshard_after_forward = true;
    job.options.prefetch = 0;
    check_everywhere(&job);
    job.options.prefetch = 3;
    job.uses_first_twice = true;
    check_everywhere(&job);
}

/* Values differ where a rounding falls to the other side: a few units in the last of 8 bits, times the rate. */
static void parameters_are_computed_with_in_bfloat16(void **state) {
    (void)state;
    struct job job = JOB_INIT;
    job.options.compute_type = MUSTER_BFLOAT16;
    check_everywhere(&job);
    job.tolerance = 0.05;
    job.options.reduce_type = MUSTER_BFLOAT16;
    check_everywhere(&job);
    job.options.gradient_type = MUSTER_BFLOAT16;
    check_everywhere(&job);
    job.options.reduce_type = MUSTER_FLOAT32;
    check_everywhere(&job);
}

static void a_hook_takes_the_place_of_the_average(void **state) {
    (void)state;
    struct job job = JOB_INIT;
    job.options.hook = muster_ddp_hook_bfloat16();
    job.tolerance = 0.05;
    check_everywhere(&job);
    job.before[0] = MUSTER_FSDP_ACCUMULATE;
    job.before_count = 1;
    check_everywhere(&job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_trains_as_one_process),
        cmocka_unit_test(hybrid_sharding_trains_as_well),
        cmocka_unit_test(gradients_are_clipped_by_the_global_norm),
        cmocka_unit_test(frozen_parameters_stay),
        cmocka_unit_test(blocks_stay_whole),
        cmocka_unit_test(gradients_accumulate_without_communication),
        cmocka_unit_test(gradients_accumulate_in_shards),
        cmocka_unit_test(a_unit_is_used_twice),
        cmocka_unit_test(some_units_are_not_used),
        cmocka_unit_test(ranks_run_out_of_data),
        cmocka_unit_test(units_stay_gathered_or_are_gathered_ahead),
        cmocka_unit_test(parameters_are_computed_with_in_bfloat16),
        cmocka_unit_test(a_hook_takes_the_place_of_the_average),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
