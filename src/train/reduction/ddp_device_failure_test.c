/* A ddp in memory of GPUs, on doubles of the driver and of NCCL: what is refused when it is made, ranks that differ,
 * and steps that fail: a rank that dies in backward, NCCL and the driver that refuse, a stream that hangs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <muster/optimizer.h>

#include "comm/device/cuda_double_test_support.h"
#include "comm/device/device.h"
#include "train/reduction/ddp_device_test_support.h"
#include "train/reduction/ddp_impl.h"

#define CUDA_PROTOTYPE(member, symbol, parameters) unsigned symbol parameters; /* the double's, which is linked */
CUDA_FUNCTION_TABLE(CUDA_PROTOTYPE)
#undef CUDA_PROTOTYPE

/* ---- what is refused ---- */

static void refuse_options(struct rank *rank, struct device_model *model) {
    struct muster_ddp_options options = several_buckets();
    options.virtual_ranks = 4;
    device_rank_expect(
        rank, device_model_register(model, &options), MUSTER_EINVAL,
        "virtual_ranks does not go with memory of a GPU: leave it out, or keep parameters, gradients and buffers "
        "in memory of the host");
}

static void refuse_mixtures(struct rank *rank, struct device_model *model) {
    static float here[2][8];
    static int64_t number;
    struct muster_ddp *ddp = NULL;
    struct muster_group *group = model->d.group;
    const struct muster_ddp_parameter data[] = {{"a", MUSTER_FLOAT32, 7, model->data[0], NULL},
                                                {"b", MUSTER_FLOAT32, 8, here[0], NULL}};
    device_rank_expect(
        rank, muster_ddp_create(group, data, 2, NULL, 0, NULL, &ddp), MUSTER_EINVAL,
        "the data of parameter \"b\" is in memory of the host, and the first parameter is in memory of the GPU: "
        "parameters and gradients must all be in one of them");
    const struct muster_ddp_parameter gradients[] = {{"a", MUSTER_FLOAT32, 7, here[0], model->data[0]}};
    device_rank_expect(
        rank, muster_ddp_create(group, gradients, 1, NULL, 0, NULL, &ddp), MUSTER_EINVAL,
        "the gradient of parameter \"a\" is in memory of the GPU, and the first parameter is in memory of the "
        "host");
    const struct muster_ddp_buffer buffers[] = {{"running", MUSTER_FLOAT32, STATISTICS, model->running},
                                                {"number", MUSTER_INT64, 1, &number}};
    device_rank_expect(rank, muster_ddp_create(group, data, 1, buffers, 2, NULL, &ddp), MUSTER_EINVAL,
                       "buffer \"number\" is in memory of the host, and the first buffer is in memory of the GPU");
    rank_check(rank, !ddp);
}

/* Memory of another GPU of the machine. */
static void refuse_another_gpu(struct rank *rank, struct device_model *model) {
    const struct cuda_library *cuda = cuda_library();
    struct CUctx_st *own = NULL, *other = NULL;
    struct muster_ddp *ddp = NULL;
    unsigned long long memory = 0;
    rank_check(rank, cuda->context_current(&own) == CUDA_OK && own);
    rank_check(rank, cuda->primary_context_retain(&other, 5) == CUDA_OK && cuda->context_set_current(other) == CUDA_OK);
    rank_check(rank, cuda->memory_allocate(&memory, sizeof(float)) == CUDA_OK);
    rank_check(rank, cuda->context_set_current(own) == CUDA_OK);
    float *there = (float *)(uintptr_t)memory; /* NOLINT(performance-no-int-to-ptr) */
    const struct muster_ddp_parameter parameter = {"a", MUSTER_FLOAT32, 1, model->data[2], there};
    device_rank_expect(
        rank, muster_ddp_create(model->d.group, &parameter, 1, NULL, 0, NULL, &ddp), MUSTER_EINVAL,
        "the gradient of \"a\" is in memory of GPU 5, and the group works with GPU 0: set the process's GPU");
    rank_check(rank, !ddp && cuda->memory_free(memory) == CUDA_OK && cuda->primary_context_release(5) == CUDA_OK);
}

static void refuse_engine(struct rank *rank, struct device_model *model) {
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    struct muster_group *plain = NULL, *group = model->d.group;
    const struct muster_ddp_options several = several_buckets();
    options.engine = "muster";
    rank_check_code(rank, muster_group_split(group, 0, 0, &options, &plain), MUSTER_OK);
    model->d.group = plain;
    device_rank_expect(rank, device_model_register(model, &several), MUSTER_EUNSUPPORTED,
                       "muster_ddp_create: parameters are in memory of a GPU: group 'world.1:0' has the engine 'solo'");
    model->d.group = group;
    muster_group_free(plain);
}

static int refuse(struct rank *rank, void *argument) {
    static struct device_model model;
    (void)argument;
    device_model_begin(rank, true, &model);
    refuse_options(rank, &model);
    refuse_mixtures(rank, &model);
    refuse_another_gpu(rank, &model);
    refuse_engine(rank, &model);
    rank_check(rank, !model.ddp);
    device_model_end(&model);
    return 0;
}

static void what_does_not_go_is_refused_when_it_is_made(void **state) {
    (void)state;
    ranks_run(1, refuse, NULL);
}

/* One rank alone has a parameter on the host: the others are told, none waits, and the group can be used on. */
static int refuse_alone(struct rank *rank, void *argument) {
    static struct device_model model;
    static float here[COUNT_MAX];
    const struct muster_ddp_options options = several_buckets();
    (void)argument;
    device_model_begin(rank, false, &model);
    float *there = model.data[2];
    bool is_odd = rank->rank == 1;
    model.data[2] = is_odd ? here : there;
    device_rank_expect(rank, device_model_register(&model, &options), is_odd ? MUSTER_EINVAL : MUSTER_EMISMATCH,
                       is_odd ? "the data of parameter \"norm\" is in memory of the host, and the first parameter"
                              : "rank 1 cannot take part: the data of parameter \"norm\" is in memory of the host");
    model.data[2] = there;
    rank_check_code(rank, device_model_register(&model, &options), MUSTER_OK);
    device_model_end(&model);
    return 0;
}

static void a_rank_that_alone_is_refused_is_named(void **state) {
    (void)state;
    ranks_run(3, refuse_alone, NULL);
}

/* The optimizers and norms of this library work on the host. */
static int refuse_optimizers(struct rank *rank, void *argument) {
    static struct device_model model;
    static float here[COUNT_MAX];
    struct muster_optimizer_parameter own[] = {{"a", here, 2}, {"b", NULL, 2}};
    struct muster_optimizer *optimizer = NULL;
    double norm = 0;
    (void)argument;
    device_model_begin(rank, false, &model);
    own[1].data = model.data[0];
    float *const gradients[] = {NULL, model.data[0]};
    const float *const ranges[] = {model.data[0]};
    const size_t counts[] = {2, 2};
    device_rank_expect(rank, muster_optimizer_create_sgd(own, 2, NULL, &optimizer), MUSTER_EINVAL,
                       "parameter b is in memory of GPU 0: these optimizers compute in memory of the host");
    device_rank_expect(
        rank, muster_clip_gradients(NULL, gradients, counts, 2, 1, &norm), MUSTER_EINVAL,
        "muster_clip_gradients: range 1 is in memory of GPU 0: norms are computed in memory of the host");
    device_rank_expect(rank, muster_squared_norm(NULL, ranges, counts, 1, &norm), MUSTER_EINVAL,
                       "range 0 is in memory of GPU 0");
    device_rank_expect(rank, muster_exact_squared_norm(NULL, ranges, counts, 1, &norm), MUSTER_EINVAL,
                       "range 0 is in memory of GPU 0");
    own[1].data = here + 2;
    rank_check_code(rank, muster_optimizer_create_sgd(own, 2, NULL, &optimizer), MUSTER_OK);
    muster_optimizer_free(optimizer);
    device_model_end(&model);
    return 0;
}

static void optimizers_refuse_memory_of_gpus(void **state) {
    (void)state;
    ranks_run(1, refuse_optimizers, NULL);
}

/* The first call of ours that a program makes with memory of a GPU, in a group that knows nothing of GPUs. */
static int start_cuda_alone(struct rank *rank, void *argument) {
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    struct muster_ddp *ddp = NULL;
    struct CUctx_st *context = NULL;
    unsigned long long address = 0;
    (void)argument;
    options.engine = "muster";
    struct muster_group *group = rank_group(rank, &options);
    rank_check(rank, !cuda_library_if_open());
    rank_check(rank, cuInit(0) == CUDA_OK && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_OK);
    rank_check(rank, cuCtxSetCurrent(context) == CUDA_OK && cuMemAlloc_v2(&address, sizeof(float)) == CUDA_OK);
    float *there = (float *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
    const struct muster_ddp_parameter parameter = {"a", MUSTER_FLOAT32, 1, there, NULL};
    device_rank_expect(rank, muster_ddp_create(group, &parameter, 1, NULL, 0, NULL, &ddp), MUSTER_EUNSUPPORTED,
                       "parameters are in memory of a GPU");
    rank_check(rank, cuMemFree_v2(address) == CUDA_OK);
    muster_group_free(group);
    return 0;
}

static void memory_of_a_program_that_started_cuda_alone_is_seen(void **state) {
    (void)state;
    ranks_run(1, start_cuda_alone, NULL);
}

/* Buffers may be on the host while gradients are on the GPU, as in many a model. */
static int keep_buffers_on_the_host(struct rank *rank, void *argument) {
    static struct device_model model;
    int64_t number = rank->rank;
    (void)argument;
    device_model_begin(rank, false, &model);
    const struct muster_ddp_parameter parameter = {"a", MUSTER_FLOAT32, COUNT_MAX, model.data[4], NULL};
    const struct muster_ddp_buffer buffer = {"number", MUSTER_INT64, 1, &number};
    rank_check_code(rank, muster_ddp_create(model.d.group, &parameter, 1, &buffer, 1, NULL, &model.ddp), MUSTER_OK);
    rank_check(rank, number == 0);
    number = 7 - rank->rank;
    rank_check_code(rank, muster_ddp_begin(model.ddp), MUSTER_OK);
    rank_check(rank, number == 7);
    rank_check_code(rank, muster_ddp_ready(model.ddp, 0), MUSTER_OK);
    rank_check_code(rank, muster_ddp_finish(model.ddp), MUSTER_OK);
    device_model_end(&model);
    return 0;
}

static void buffers_may_stay_on_the_host(void **state) {
    (void)state;
    ranks_run(2, keep_buffers_on_the_host, NULL);
}

static int differ(struct rank *rank, void *argument) {
    static struct device_model model;
    static struct model twin;
    (void)argument;
    device_model_begin(rank, false, &model);
    float *data = rank->rank == 1 ? twin.data[0] : model.data[0];
    const struct muster_ddp_parameter parameter = {"a", MUSTER_FLOAT32, 7, data, NULL};
    device_rank_expect(
        rank, muster_ddp_create(model.d.group, &parameter, 1, NULL, 0, NULL, &model.ddp), MUSTER_EMISMATCH,
        "rank 1 has \"parameter 0: a, 7 float32\" where rank 0 has \"parameter 0: a, 7 float32 in memory of the "
        "GPU\"");
    rank_check_code(rank, muster_barrier(model.d.group, NULL), MUSTER_OK); /* the group has not failed */
    device_model_end(&model);
    return 0;
}

static void ranks_with_other_memories_are_told(void **state) {
    (void)state;
    ranks_run(3, differ, NULL);
}

/* ---- steps that fail ---- */

/* Rank 1 dies when a bucket of its is under way, and another one is not. The survivors go on. */
static int die_in_backward(struct rank *rank, void *argument) {
    const struct muster_ddp_options options = several_buckets();
    static struct device_model model;
    struct muster_group *survivors = NULL;
    (void)argument;
    device_model_make(rank, &options, true, &model);
    rank_check_code(rank, device_step_run(&model, rank->rank, 0, 0), MUSTER_OK);
    rank_check_code(rank, muster_ddp_begin(model.ddp), MUSTER_OK);
    if (rank->rank == 1) {
        for (size_t i = PARAMETERS; i-- > 4;) {
            rank_check_code(rank, device_gradient_ready(&model, rank->rank, 1, i), MUSTER_OK);
        }
        rank_mark(rank, 1);
        rank_await_signal(rank, 1); /* which never comes */
    }
    int status = device_backward(&model, rank->rank, 1, 0);
    int finished = muster_ddp_finish(model.ddp);
    device_rank_expect(rank, status ? status : finished, MUSTER_EPEER, "rank 1");
    device_rank_expect(rank, finished, MUSTER_EPEER, "(");
    rank_check(rank, strstr(muster_detail(), "bucket "));
    rank_check_code(rank, muster_group_shrink(model.d.group, RANKS_PATIENCE_MS, &survivors), MUSTER_OK);
    rank_check_code(rank, muster_group_set_stream(survivors, model.d.stream), MUSTER_OK);
    rank_check_code(rank, muster_ddp_rebind(model.ddp, survivors), MUSTER_OK);
    muster_group_free(model.d.group);
    model.d.group = survivors;
    uint32_t number = muster_group_rank(survivors);
    for (uint32_t step = 1; step < 4; step++) {
        rank_check_code(rank, device_step_run(&model, number, step, 0), MUSTER_OK);
        device_check_averages(rank, &model, 7, 3, step);
    }
    device_model_end(&model);
    return 0;
}

static void survivors_of_a_death_in_backward_go_on(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(4, die_in_backward, NULL, NULL);
    ranks_await(ranks, 1, 1);
    ranks_kill(ranks, 1);
    for (uint32_t rank = 0; rank < 4; rank++) {
        assert_int_equal(ranks_wait(ranks, rank), rank == 1 ? RANKS_KILLED - 9 : 0);
    }
    ranks_free(ranks);
}

/* Faults of rank 1's libraries in its second step. */
struct failing {
    const char *variable, *faults, *sentence;
    int expected, expected_elsewhere;
};

static int fail_in_step(struct rank *rank, void *argument) {
    const struct failing *failing = argument;
    const struct muster_ddp_options options = several_buckets();
    static struct device_model model;
    if (rank->rank == 1) {
        (void)setenv(failing->variable, failing->faults, 1);
    }
    device_model_make(rank, &options, true, &model);
    rank_check_code(rank, device_step_run(&model, rank->rank, 0, 0), MUSTER_OK);
    int status = device_step_run(&model, rank->rank, 1, 0);
    bool is_here = rank->rank == 1;
    device_rank_expect(rank, status, is_here ? failing->expected : failing->expected_elsewhere,
                       is_here ? failing->sentence : "rank 1");
    rank_check(rank, strstr(muster_detail(), "gradient"));
    device_rank_expect(rank, muster_ddp_begin(model.ddp), status, is_here ? failing->sentence : "rank 1");
    device_model_end(&model);
    return 0;
}

static void a_bucket_that_nccl_refuses_is_named(void **state) {
    (void)state;
    struct failing failing = {.variable = "MUSTER_DOUBLE_NCCL",
                              .faults = "error:ncclAllReduce:5:3",
                              .sentence = "bucket 2 of 3 (3 gradients, from fc1.weight to conv.bias): ",
                              .expected = MUSTER_ESYSTEM,
                              .expected_elsewhere = MUSTER_ESYSTEM};
    ranks_run(3, fail_in_step, &failing);
    failing.faults = "fail:ncclAllReduce:4:2"; /* later, on the GPU */
    failing.sentence = "carry out the call: NCCL: a system call failed";
    ranks_run(3, fail_in_step, &failing);
}

/* Copies of rank 1: two buffers when it is made and in each step, three gradients into buckets, three out of them. */
static void a_copy_that_the_driver_refuses_is_named(void **state) {
    (void)state;
    struct failing failing = {.variable = "MUSTER_DOUBLE_CUDA",
                              .faults = "error:cuMemcpyDtoDAsync_v2:13:1",
                              .sentence =
                                  "copying the gradient of fc2.weight: copy on the GPU: CUDA_ERROR_INVALID_VALUE",
                              .expected = MUSTER_ESYSTEM,
                              .expected_elsewhere = MUSTER_EABORTED};
    ranks_run(3, fail_in_step, &failing);
}

/* A kernel of the program that never ends. The ddp is freed nevertheless; what the GPU may still use is left to it. */
static int hang(struct rank *rank, void *argument) {
    const struct muster_ddp_options options = several_buckets();
    static struct device_model model;
    static struct hold hold = HOLD_INIT;
    (void)argument;
    device_model_make(rank, &options, true, &model);
    rank_check_code(rank, device_step_run(&model, rank->rank, 0, 0), MUSTER_OK);
    rank_check_code(rank, muster_ddp_begin(model.ddp), MUSTER_OK);
    rank_hurry(model.d.group, 1000);
    hold_begin(&hold, model.d.stream);
    int status = device_backward(&model, rank->rank, 1, 0);
    int finished = muster_ddp_finish(model.ddp);
    device_rank_expect(rank, status ? status : finished, MUSTER_ETIMEOUT, "not done within 1.000 s");
    void *bucket = muster_ddp_gradient(model.ddp, 0);
    muster_ddp_free(model.ddp);
    rank_check(rank, cuda_double_contents(device_address(bucket), 1)); /* its memory is still there */
    muster_group_free(model.d.group);
    _exit(0);
}

static void a_stream_that_hangs_holds_nobody(void **state) {
    (void)state;
    ranks_run(2, hang, NULL);
}

int main(void) {
    device_ranks_use_doubles(CUDA_DOUBLE, NCCL_DOUBLE);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_does_not_go_is_refused_when_it_is_made),
        cmocka_unit_test(a_rank_that_alone_is_refused_is_named),
        cmocka_unit_test(optimizers_refuse_memory_of_gpus),
        cmocka_unit_test(memory_of_a_program_that_started_cuda_alone_is_seen),
        cmocka_unit_test(buffers_may_stay_on_the_host),
        cmocka_unit_test(ranks_with_other_memories_are_told),
        cmocka_unit_test(survivors_of_a_death_in_backward_go_on),
        cmocka_unit_test(a_bucket_that_nccl_refuses_is_named),
        cmocka_unit_test(a_copy_that_the_driver_refuses_is_named),
        cmocka_unit_test(a_stream_that_hangs_holds_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
