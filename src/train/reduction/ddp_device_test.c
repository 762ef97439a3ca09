/* Data parallel training in memory of GPUs, on doubles of the driver and of NCCL: the same numbers as on the host;
 * buckets that are reduced while the program's stream goes on; accumulation, buffers, unused parameters, uneven inputs,
 * a hook of the program's own. The CPU cannot read the doubles' memory, so a ddp that touched it would die. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "comm/device/cuda_double_test_support.h"
#include "comm/device/device.h"
#include "train/reduction/ddp_device_test_support.h"
#include "train/reduction/ddp_impl.h"

/* ---- the same numbers as on the host ---- */

struct plan {
    bool with_own_gradients, each_its_order, one_bucket;
};

static struct muster_ddp_options options_of(const struct plan *plan) {
    struct muster_ddp_options options = several_buckets();
    if (plan->one_bucket) {
        options.first_bucket_bytes = options.bucket_bytes = (size_t)1 << 20;
    }
    return options;
}

static void check_data(struct rank *rank, struct device_model *model) {
    float data[COUNT_MAX], running[STATISTICS];
    int64_t tracked = -1;
    for (size_t i = 0; i < PARAMETERS; i++) {
        device_rank_get(&model->d, data, model->data[i], model_counts[i] * sizeof *data);
        for (size_t at = 0; at < model_counts[i]; at++) {
            rank_check(rank, data[at] == gradient_of(50, 0, i, at));
        }
    }
    device_rank_get(&model->d, running, model->running, sizeof running);
    device_rank_get(&model->d, &tracked, model->tracked, sizeof tracked);
    rank_check(rank, running[3] == 3 && tracked == 0);
}

/* Two models in one group, whose gradients are in either memory. */
static int train_both(struct rank *rank, void *argument) {
    const struct plan *plan = argument;
    const struct muster_ddp_options options = options_of(plan);
    static struct device_model model;
    static struct model twin;
    struct muster_ddp_statistics numbers, twins_numbers;
    (void)setenv("MUSTER_DOUBLE_JITTER_US", "200", 1);
    device_model_make(rank, &options, plan->with_own_gradients, &model);
    model_make(rank, model.d.group, &options, plan->with_own_gradients, &twin);
    check_data(rank, &model);
    for (uint32_t step = 0; step < 6; step++) {
        float gradient[COUNT_MAX];
        uint32_t turn = plan->each_its_order ? rank->rank + step % 3 : step % 3;
        rank_check_code(rank, device_step_run(&model, rank->rank, step, turn), MUSTER_OK);
        rank_check_code(rank, step_run(&twin, rank->rank, step, turn), MUSTER_OK);
        for (size_t i = 0; i < PARAMETERS; i++) {
            device_gradient_get(&model, i, gradient);
            rank_check(rank, same_bits(gradient, muster_ddp_gradient(twin.ddp, i), model_counts[i] * sizeof *gradient));
        }
    }
    rank_check_code(rank, muster_ddp_statistics(model.ddp, &numbers), MUSTER_OK);
    rank_check_code(rank, muster_ddp_statistics(twin.ddp, &twins_numbers), MUSTER_OK);
    rank_check(rank, numbers.step_count == 6 && numbers.reduced_bytes == twins_numbers.reduced_bytes);
    rank_check(rank, numbers.bucket_count == twins_numbers.bucket_count);
    rank_check(rank, numbers.bucket_bytes == twins_numbers.bucket_bytes);
    rank_check(rank, numbers.overhead_bytes == twins_numbers.overhead_bytes);
    muster_ddp_free(twin.ddp);
    device_model_end(&model);
    return 0;
}

static void has_the_bits_of_the_host(void **state) {
    (void)state;
    struct plan plans[] = {{false, false, false}, {true, false, false}, {false, true, false}, {true, true, true}};
    for (uint32_t size = 1; size <= 8; size *= 2) {
        for (size_t i = 0; i < sizeof plans / sizeof plans[0]; i++) {
            ranks_run(size, train_both, &plans[i]);
        }
    }
}

/* NCCL multiplies by 1/3 before it adds. And hosts that are apart. */
static int train(struct rank *rank, void *argument) {
    const struct plan plan = {.with_own_gradients = true, .each_its_order = true};
    const struct muster_ddp_options options = options_of(&plan);
    static struct device_model model;
    (void)argument;
    device_model_make(rank, &options, true, &model);
    for (uint32_t step = 0; step < 4; step++) {
        rank_check_code(rank, device_step_run(&model, rank->rank, step, rank->rank), MUSTER_OK);
        device_check_averages(rank, &model, (1U << rank->size) - 1, rank->size, step);
    }
    device_model_end(&model);
    return 0;
}

static void three_ranks_and_hosts_apart(void **state) {
    (void)state;
    struct ranks_options two_each = {.ranks_per_host = 2};
    ranks_run(3, train, NULL);
    ranks_run_with(4, train, NULL, &two_each);
}

/* ---- communication beside computing ---- */

static void await_work(const struct muster_work *work) {
    while (!muster_work_done(work)) {
        (void)sched_yield();
    }
}

/* The progress thread comes to the first bucket only after the stream has been given what follows the bucket's last
 * gradient: work that holds it up, as the rest of a backward pass does. The bucket does not wait for that. */
static int reduce_beside(struct rank *rank, void *argument) {
    const struct muster_ddp_options options = several_buckets();
    static struct device_model model;
    static struct hold hold = HOLD_INIT;
    struct muster_work *other = NULL;
    int32_t number = 1;
    (void)argument;
    device_model_make(rank, &options, false, &model);
    rank_check_code(rank, muster_ddp_begin(model.ddp), MUSTER_OK);
    if (rank->rank > 0) {
        rank_await(rank, 0, 1);
    }
    /* By the progress thread, which is busy with it until rank 0 has got to its mark. */
    rank_check_code(rank, muster_all_reduce(model.d.group, &number, &number, 1, MUSTER_INT32, MUSTER_OP_SUM, &other),
                    0);
    rank_check_code(rank, device_gradient_ready(&model, rank->rank, 7, 5), MUSTER_OK);
    rank_check_code(rank, device_gradient_ready(&model, rank->rank, 7, 4), MUSTER_OK);
    struct ddp_bucket *first = &model.ddp->layout->buckets[0];
    rank_check(rank, first->missing == 0 && first->work && model.ddp->layout->bucket_count > 2);
    hold_begin(&hold, model.d.stream);
    rank_mark(rank, 1);
    await_work(first->work);
    const float *average = cuda_double_contents(device_address(muster_ddp_gradient(model.ddp, 4)), sizeof *average);
    for (size_t at = 0; at < model_counts[4]; at++) {
        rank_check(rank, average[at] == average_of(rank->size, (1U << rank->size) - 1, rank->size, 7, 4, at));
    }
    rank_check(rank, cuda_library()->stream_query(model.d.stream) == CUDA_NOT_READY);
    for (size_t i = 4; i-- > 0;) { /* behind the hold */
        rank_check_code(rank, device_gradient_ready(&model, rank->rank, 7, i), MUSTER_OK);
    }
    hold_end(&hold);
    rank_check_code(rank, muster_work_wait(&other), 0);
    rank_check(rank, number == (int32_t)rank->size);
    rank_check_code(rank, muster_ddp_finish(model.ddp), MUSTER_OK);
    device_check_averages(rank, &model, (1U << rank->size) - 1, rank->size, 7);
    device_model_end(&model);
    return 0;
}

static void a_bucket_is_reduced_while_the_stream_goes_on(void **state) {
    (void)state;
    for (uint32_t size = 2; size <= 8; size *= 2) {
        ranks_run(size, reduce_beside, NULL);
    }
}

/* Gradients that the stream has yet to write are waited for, though ready has been called. */
static int reduce_behind(struct rank *rank, void *argument) {
    const struct muster_ddp_options options = several_buckets();
    static struct device_model model;
    static struct hold hold = HOLD_INIT;
    (void)argument;
    device_model_make(rank, &options, true, &model);
    rank_check_code(rank, muster_ddp_begin(model.ddp), MUSTER_OK);
    if (rank->rank == 0) {
        hold_begin(&hold, model.d.stream);
    }
    rank_check_code(rank, device_backward(&model, rank->rank, 3, 0), MUSTER_OK);
    if (rank->rank == 0) { /* the others are in finish by now, or not: they get the right numbers */
        rank_check(rank, !muster_work_done(model.ddp->layout->buckets[0].work));
        hold_end(&hold);
    }
    rank_check_code(rank, muster_ddp_finish(model.ddp), MUSTER_OK);
    device_check_averages(rank, &model, (1U << rank->size) - 1, rank->size, 3);
    device_model_end(&model);
    return 0;
}

static void a_bucket_waits_for_its_gradients(void **state) {
    (void)state;
    ranks_run(4, reduce_behind, NULL);
}

/* ---- accumulation ---- */

/* Adds a rank's gradient to what is there, as a backward pass does. */
static int accumulate_one(struct device_model *model, uint32_t rank, uint32_t step, size_t parameter) {
    float gradient[COUNT_MAX];
    device_gradient_get(model, parameter, gradient);
    for (size_t at = 0; at < model_counts[parameter]; at++) {
        gradient[at] += gradient_of(rank, step, parameter, at);
    }
    device_rank_put(&model->d, muster_ddp_gradient(model->ddp, parameter), gradient,
                    model_counts[parameter] * sizeof *gradient);
    return muster_ddp_ready(model->ddp, parameter);
}

static float sum_of_three(uint32_t rank, uint32_t step, size_t parameter, size_t at) {
    float sum = 0 + gradient_of(rank, step, parameter, at);
    sum += gradient_of(rank, step + 1, parameter, at);
    return sum + gradient_of(rank, step + 2, parameter, at);
}

static int accumulate(struct rank *rank, void *argument) {
    const struct muster_ddp_options options = several_buckets();
    static struct device_model model;
    (void)argument;
    device_model_make(rank, &options, true, &model);
    rank_check_code(rank, muster_ddp_zero_gradients(model.ddp), MUSTER_OK);
    for (uint32_t step = 0; step < 9; step++) {
        bool is_synchronised = step % 3 == 2;
        rank_check_code(rank, (is_synchronised ? muster_ddp_begin : muster_ddp_begin_no_sync)(model.ddp), MUSTER_OK);
        for (size_t i = 0; i < PARAMETERS; i++) {
            rank_check_code(rank, accumulate_one(&model, rank->rank, step, i), MUSTER_OK);
        }
        rank_check_code(rank, muster_ddp_finish(model.ddp), MUSTER_OK);
        for (size_t i = 0; is_synchronised && i < PARAMETERS; i++) {
            float gradient[COUNT_MAX];
            device_gradient_get(&model, i, gradient);
            for (size_t at = 0; at < model_counts[i]; at++) {
                float expected = (sum_of_three(0, step - 2, i, at) + sum_of_three(1, step - 2, i, at)) / 2;
                rank_check(rank, gradient[at] == expected);
            }
        }
        if (is_synchronised) {
            rank_check_code(rank, muster_ddp_zero_gradients(model.ddp), MUSTER_OK);
        }
    }
    device_model_end(&model);
    return 0;
}

static void no_sync_accumulates(void **state) {
    (void)state;
    ranks_run(2, accumulate, NULL);
}

/* ---- buffers ---- */

static int share_buffers(struct rank *rank, void *argument) {
    const struct muster_ddp_options options = several_buckets();
    static struct device_model model;
    (void)argument;
    device_model_make(rank, &options, false, &model);
    for (uint32_t step = 0; step < 3; step++) {
        int64_t tracked = 100 * (int64_t)step + rank->rank;
        device_rank_put(&model.d, model.tracked, &tracked, sizeof tracked);
        rank_check_code(rank, device_step_run(&model, rank->rank, step, 0), MUSTER_OK);
        device_rank_get(&model.d, &tracked, model.tracked, sizeof tracked);
        rank_check(rank, tracked == 100 * (int64_t)step);
    }
    device_model_end(&model);
    return 0;
}

static void buffers_are_those_of_rank_0(void **state) {
    (void)state;
    ranks_run(3, share_buffers, NULL);
}

/* ---- unused parameters ---- */

/* Rank r uses the parameters of bit r; nobody uses number 2, and number 3 only in the first step. */
static bool uses(uint32_t rank, uint32_t step, size_t parameter) {
    return parameter != 2 && (parameter != 3 || step == 0) && (parameter != 1 || rank == 1);
}

static int leave_out(struct rank *rank, void *argument) {
    struct muster_ddp_options options = several_buckets();
    static struct device_model model;
    (void)argument;
    options.find_unused = true;
    device_model_make(rank, &options, true, &model);
    float gradient[COUNT_MAX], before = gradient_of(0, 99, 2, 0);
    device_rank_put(&model.d, muster_ddp_gradient(model.ddp, 2), &before, sizeof before);
    for (uint32_t step = 0; step < 3; step++) {
        rank_check_code(rank, muster_ddp_begin(model.ddp), MUSTER_OK);
        for (size_t i = PARAMETERS; i-- > 0;) {
            if (uses(rank->rank, step, i)) {
                rank_check_code(rank, device_gradient_ready(&model, rank->rank, step, i), MUSTER_OK);
            }
        }
        rank_check_code(rank, muster_ddp_finish(model.ddp), MUSTER_OK);
        for (size_t i = 0; i < PARAMETERS; i++) {
            bool was_used = uses(0, step, i) || uses(1, step, i);
            device_gradient_get(&model, i, gradient);
            rank_check(rank, muster_ddp_was_used(model.ddp, i) == was_used);
            for (size_t at = 0; at < model_counts[i]; at++) {
                uint32_t of = i == 3 ? 0 : step, present = i == 1 ? 2 : 3; /* an unused one keeps what it had */
                rank_check(rank, gradient[at] == (i == 2 ? before : average_of(2, present, 2, of, i, at)));
            }
        }
    }
    device_model_end(&model);
    return 0;
}

static void unused_parameters_take_part_with_zeros(void **state) {
    (void)state;
    ranks_run(2, leave_out, NULL);
}

/* ---- uneven inputs ---- */

static int run_out_of_data(struct rank *rank, void *argument) {
    static const uint32_t batches[] = {2, 4, 3, 1};
    const bool *find_unused = argument;
    struct muster_ddp_options options = several_buckets();
    static struct device_model model;
    options.uneven_inputs = true;
    options.find_unused = *find_unused;
    device_model_make(rank, &options, true, &model);
    bool stepped = true;
    for (uint32_t step = 0; stepped; step++) {
        uint32_t present = 0;
        for (uint32_t other = 0; other < rank->size; other++) {
            present |= (uint32_t)(step < batches[other]) << other;
        }
        if (step < batches[rank->rank]) {
            rank_check_code(rank, device_step_run(&model, rank->rank, step, rank->rank), MUSTER_OK);
        } else {
            rank_check_code(rank, muster_ddp_shadow(model.ddp, &stepped), MUSTER_OK);
            rank_check(rank, stepped == (present != 0));
        }
        if (stepped) {
            device_check_averages(rank, &model, present, rank->size, step);
        }
    }
    device_model_end(&model);
    return 0;
}

static void uneven_inputs_end_together(void **state) {
    (void)state;
    bool find_unused = false;
    ranks_run(4, run_out_of_data, &find_unused);
    find_unused = true;
    ranks_run(4, run_out_of_data, &find_unused);
}

/* ---- a hook of the program's own ---- */

static int sum_start(void *context, struct muster_group *group, const struct muster_ddp_bucket *bucket,
                     struct muster_work **work) {
    unsigned *started = context;
    (*started)++;
    if (device_place_of(bucket->gradients) != DEVICE_PLACE_DEVICE ||
        device_place_of(bucket->scratch) != DEVICE_PLACE_DEVICE) {
        return MUSTER_EINVAL;
    }
    return muster_all_reduce(group, bucket->gradients, bucket->scratch, bucket->count, bucket->type, MUSTER_OP_SUM,
                             work);
}

static int sum_finish(void *context, struct muster_group *group, const struct muster_ddp_bucket *bucket) {
    (void)context;
    (void)group;
    return cuda_library()->copy_on_device(device_address(bucket->gradients), device_address(bucket->scratch),
                                          bucket->count * sizeof(float), NULL) == CUDA_OK &&
                   cuda_library()->stream_synchronize(NULL) == CUDA_OK
               ? MUSTER_OK
               : MUSTER_ESYSTEM;
}

static int hook(struct rank *rank, void *argument) {
    struct muster_ddp_options options = several_buckets();
    struct muster_ddp_hook sum = MUSTER_DDP_HOOK_INIT;
    static struct device_model model;
    unsigned started = 0;
    (void)argument;
    sum.name = "sum";
    sum.scratch_bytes = sizeof(float);
    sum.start = sum_start;
    sum.finish = sum_finish;
    sum.context = &started;
    options.hook = &sum;
    device_model_make(rank, &options, false, &model);
    for (uint32_t step = 0; step < 3; step++) {
        float gradient[COUNT_MAX];
        rank_check_code(rank, device_step_run(&model, rank->rank, step, 0), MUSTER_OK);
        device_gradient_get(&model, 4, gradient);
        for (size_t at = 0; at < model_counts[4]; at++) {
            rank_check(rank, gradient[at] == average_of(rank->size, 3, 1, step, 4, at));
        }
    }
    rank_check(rank, started == 3 * model.ddp->layout->bucket_count);
    device_model_end(&model);
    return 0;
}

static void a_programs_hook_gets_memory_of_the_gpu(void **state) {
    (void)state;
    ranks_run(2, hook, NULL);
}

int main(void) {
    device_ranks_use_doubles(CUDA_DOUBLE, NCCL_DOUBLE);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(has_the_bits_of_the_host),
        cmocka_unit_test(three_ranks_and_hosts_apart),
        cmocka_unit_test(a_bucket_is_reduced_while_the_stream_goes_on),
        cmocka_unit_test(a_bucket_waits_for_its_gradients),
        cmocka_unit_test(no_sync_accumulates),
        cmocka_unit_test(buffers_are_those_of_rank_0),
        cmocka_unit_test(unused_parameters_take_part_with_zeros),
        cmocka_unit_test(uneven_inputs_end_together),
        cmocka_unit_test(a_programs_hook_gets_memory_of_the_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
