/* Synchronised batch norm in memory of a GPU, on the doubles: what is refused, ranks that differ or lack NVRTC, and
 * calls that fail: a rank that dies in one, the driver that refuses a kernel, a stream that hangs. */
#include <muster/syncbn.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <muster/collective.h>

#include "comm/device/hold_test_support.h"
#include "train/norm/syncbn_device_test_support.h"

/* ---- what is refused ---- */

static void expect_mixture(struct rank *rank, int code, const char *name, bool is_there) {
    char words[160];
    (void)snprintf(words, sizeof words, "batch norm: %s is in memory of the %s, and this layer computes on the %s",
                   name, is_there ? "GPU" : "host", is_there ? "host" : "GPU");
    device_rank_expect(rank, code, MUSTER_EINVAL, words);
    rank_check(rank, strstr(muster_detail(), "all arrays of a layer must be in one memory"));
}

/* Each array but the first is in the other memory; the first one decides. */
static void refuse_options(struct norms *n) {
    static const char *const names[] = {"bias", "running_mean", "running_variance", "batches_tracked"};
    for (size_t i = 0; i < 2 * sizeof names / sizeof *names; i++) {
        bool is_there = i % 2;
        struct muster_syncbn *layer = NULL;
        norms_describe(n, NORM_ALL, 0.1);
        struct muster_syncbn_options *own = is_there ? &n->host.options : &n->there.options,
                                     *other = is_there ? &n->there.options : &n->host.options;
        own->bias = i / 2 == 0 ? other->bias : own->bias;
        own->running_mean = i / 2 == 1 ? other->running_mean : own->running_mean;
        own->running_variance = i / 2 == 2 ? other->running_variance : own->running_variance;
        own->batches_tracked = i / 2 == 3 ? other->batches_tracked : own->batches_tracked;
        expect_mixture(n->d.rank, muster_syncbn_create(n->d.group, own, &layer), names[i / 2], is_there);
        rank_check(n->d.rank, !layer);
    }
}

static void refuse_calls(struct norms *n) {
    struct rank *rank = n->d.rank;
    struct norm *h = &n->host;
    struct norm_there *t = &n->there;
    expect_mixture(rank, muster_syncbn_forward(h->layer, t->x, 2, 2, h->y), "x", true);
    expect_mixture(rank, muster_syncbn_forward(h->layer, h->x, 2, 2, t->y), "the result", true);
    expect_mixture(rank, muster_syncbn_evaluate(h->layer, t->x, 2, 2, h->y), "x", true);
    expect_mixture(rank, muster_syncbn_forward(t->layer, h->x, 2, 2, t->y), "x", false);
    expect_mixture(rank, muster_syncbn_forward(t->layer, t->x, 2, 2, h->y), "the result", false);
    expect_mixture(rank, muster_syncbn_evaluate(t->layer, t->x, 2, 2, h->y), "the result", false);
    rank_check_code(rank, norm_forward(h, 2, 2), MUSTER_OK);
    rank_check_code(rank, norms_forward(n, 2, 2), MUSTER_OK);
    expect_mixture(rank, muster_syncbn_backward(h->layer, h->x, t->dy, h->dx, NULL, NULL), "dy", true);
    expect_mixture(rank, muster_syncbn_backward(t->layer, t->x, h->dy, t->dx, NULL, NULL), "dy", false);
    expect_mixture(rank, muster_syncbn_backward(t->layer, t->x, t->dy, t->dx, h->weight_gradient, NULL),
                   "weight_gradient", false);
    expect_mixture(rank, muster_syncbn_backward(t->layer, t->x, t->dy, t->dx, NULL, h->bias_gradient), "bias_gradient",
                   false);
    rank_check_code(rank, muster_syncbn_backward(t->layer, t->x, t->dy, t->dx, NULL, NULL), MUSTER_OK);
}

/* A layer without arrays is on the host. */
static void refuse_without_arrays(struct norms *n) {
    struct muster_syncbn *layer = NULL;
    norms_describe(n, 0, 0.1);
    rank_check_code(n->d.rank, muster_syncbn_create(n->d.group, &n->there.options, &layer), MUSTER_OK);
    expect_mixture(n->d.rank, muster_syncbn_forward(layer, n->there.x, 2, 2, n->there.y), "x", true);
    rank_check(n->d.rank, strstr(muster_detail(), "if it has none: on the host"));
    muster_syncbn_free(layer);
}

/* Memory of another GPU of the machine. */
static void refuse_another_gpu(struct norms *n) {
    const struct cuda_library *cuda = cuda_library();
    struct rank *rank = n->d.rank;
    struct CUctx_st *own = NULL, *other = NULL;
    unsigned long long memory = 0;
    rank_check(rank, cuda->context_current(&own) == CUDA_OK && own);
    rank_check(rank, cuda->primary_context_retain(&other, 7) == CUDA_OK && cuda->context_set_current(other) == CUDA_OK);
    rank_check(rank, cuda->memory_allocate(&memory, sizeof n->host.x) == CUDA_OK);
    rank_check(rank, cuda->context_set_current(own) == CUDA_OK);
    float *there = (float *)(uintptr_t)memory; /* NOLINT(performance-no-int-to-ptr) */
    device_rank_expect(rank, muster_syncbn_forward(n->there.layer, there, 2, 2, n->there.y), MUSTER_EINVAL,
                       "batch norm: x is in memory of GPU 7, and the group 'world' works with GPU ");
    rank_check(rank, cuda->memory_free(memory) == CUDA_OK && cuda->primary_context_release(7) == CUDA_OK);
}

static void refuse_engine(struct norms *n) {
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    struct muster_group *plain = NULL;
    struct muster_syncbn *layer = NULL;
    options.engine = "muster";
    rank_check_code(n->d.rank, muster_group_split(n->d.group, 0, 0, &options, &plain), MUSTER_OK);
    norms_describe(n, NORM_ALL, 0.1);
    device_rank_expect(n->d.rank, muster_syncbn_create(plain, &n->there.options, &layer), MUSTER_EUNSUPPORTED,
                       "batch norm: weight is in memory of a GPU: group 'world.1:0' has the engine 'muster'");
    muster_group_free(plain);
}

static int refuse(struct rank *rank, void *argument) {
    static struct norms n;
    (void)argument;
    norms_begin(rank, &n);
    refuse_options(&n);
    refuse_without_arrays(&n);
    refuse_engine(&n);
    norms_make(&n, NORM_ALL, 0.1);
    refuse_calls(&n);
    refuse_another_gpu(&n);
    norms_end(&n);
    return 0;
}

static void what_does_not_go_is_refused(void **state) {
    (void)state;
    ranks_run(2, refuse, NULL);
}

static int differ(struct rank *rank, void *argument) {
    static struct norms n;
    struct muster_syncbn *layer = NULL;
    (void)argument;
    norms_begin(rank, &n);
    norms_describe(&n, NORM_ALL, 0.1);
    const struct muster_syncbn_options *options = rank->rank == 1 ? &n.host.options : &n.there.options;
    device_rank_expect(
        rank, muster_syncbn_create(n.d.group, options, &layer), MUSTER_EMISMATCH,
        "syncbn: the ranks have different options: memory is that of the host on rank 1, and that of the GPU "
        "on rank 0");
    rank_check(rank, !layer);
    rank_check_code(rank, muster_barrier(n.d.group, NULL), MUSTER_OK); /* the group has not failed */
    norms_end(&n);
    return 0;
}

/* One rank alone has arrays in both memories. */
static int refuse_alone(struct rank *rank, void *argument) {
    static struct norms n;
    struct muster_syncbn *layer = NULL;
    (void)argument;
    norms_begin(rank, &n);
    norms_describe(&n, NORM_ALL, 0.1);
    bool is_odd = rank->rank == 1;
    n.there.options.bias = is_odd ? n.host.options.bias : n.there.options.bias;
    device_rank_expect(rank, muster_syncbn_create(n.d.group, &n.there.options, &layer),
                       is_odd ? MUSTER_EINVAL : MUSTER_EMISMATCH,
                       is_odd ? "batch norm: bias is in memory of the host"
                              : "syncbn: rank 1 cannot take part: batch norm: bias is in memory of the host");
    rank_check(rank, !layer);
    rank_check_code(rank, muster_barrier(n.d.group, NULL), MUSTER_OK); /* the group has not failed */
    norms_end(&n);
    return 0;
}

static void a_rank_that_alone_is_refused_is_named(void **state) {
    (void)state;
    ranks_run(3, refuse_alone, NULL);
}

static void ranks_with_other_memories_are_told(void **state) {
    (void)state;
    ranks_run(3, differ, NULL);
}

/* ---- without NVRTC ---- */

static int lack(struct rank *rank, void *argument) {
    static struct norms n;
    bool is_here = rank->rank == 1;
    (void)argument;
    if (is_here) {
        (void)setenv("MUSTER_NVRTC_LIBRARY", "libno-such-compiler.so.12", 1);
    }
    norms_begin(rank, &n);
    norms_describe(&n, NORM_ALL, 0.1);
    device_rank_expect(rank, muster_syncbn_create(n.d.group, &n.there.options, &n.there.layer),
                       is_here ? MUSTER_EUNSUPPORTED : MUSTER_EABORTED,
                       "batch norm in memory of a GPU: kernels need NVRTC, which cannot be opened");
    rank_check(rank, !n.there.layer);
    norms_end(&n);
    return 0;
}

static void a_rank_without_nvrtc_lets_nobody_wait(void **state) {
    (void)state;
    ranks_run(3, lack, NULL);
}

/* Layers of a group share kernels: NVRTC, which here would refuse a second time, is asked once while there are any. */
static int share_kernels(struct rank *rank, void *argument) {
    static struct norms n;
    struct muster_syncbn *second = NULL;
    (void)argument;
    (void)setenv("MUSTER_DOUBLE_NVRTC", "error:nvrtcCompileProgram:2:6", 1);
    norms_begin(rank, &n);
    norms_describe(&n, NORM_ALL, 0.1);
    rank_check_code(rank, muster_syncbn_create(n.d.group, &n.there.options, &n.there.layer), MUSTER_OK);
    rank_check_code(rank, muster_syncbn_create(n.d.group, &n.there.options, &second), MUSTER_OK);
    muster_syncbn_free(n.there.layer);
    n.there.layer = second;
    rank_check_code(rank, norms_forward(&n, 3, 4), MUSTER_OK);
    muster_syncbn_free(second);
    device_rank_expect(rank, muster_syncbn_create(n.d.group, &n.there.options, &n.there.layer), MUSTER_EUNSUPPORTED,
                       "does not compile kernels for sm_90");
    n.there.layer = NULL;
    norms_end(&n);
    return 0;
}

static void layers_of_a_group_share_kernels(void **state) {
    (void)state;
    ranks_run(2, share_kernels, NULL);
}

static int do_without(struct rank *rank, void *argument) {
    static struct norms n;
    (void)argument;
    (void)setenv("MUSTER_NVRTC_LIBRARY", "libno-such-compiler.so.12", 1);
    norms_begin(rank, &n);
    norms_describe(&n, NORM_ALL, 0.1);
    rank_check_code(rank, muster_syncbn_create(n.d.group, &n.host.options, &n.host.layer), MUSTER_OK);
    rank_check_code(rank, norm_forward(&n.host, 2, 2), MUSTER_OK);
    rank_check_code(rank, norm_backward(&n.host), MUSTER_OK);
    norms_end(&n);
    return 0;
}

static void a_layer_on_the_host_needs_no_nvrtc(void **state) {
    (void)state;
    ranks_run(2, do_without, NULL);
}

/* ---- calls that fail ---- */

/* Rank 1 is killed in NCCL's second call. */
static int die_in_forward(struct rank *rank, void *argument) {
    static struct norms n;
    (void)argument;
    if (rank->rank == 1) {
        (void)setenv("MUSTER_DOUBLE_NCCL", "die:ncclAllReduce:2", 1);
    }
    norms_begin(rank, &n);
    norms_describe(&n, NORM_ALL, 0.1);
    rank_check_code(rank, muster_syncbn_create(n.d.group, &n.there.options, &n.there.layer), MUSTER_OK);
    rank_check_code(rank, norms_forward(&n, 3, 4), MUSTER_OK);
    device_rank_expect(rank, norms_forward(&n, 3, 4), MUSTER_EPEER, "batch norm, forward: ");
    rank_check(rank, strstr(muster_detail(), "rank 1"));
    device_rank_expect(rank, norms_backward(&n), MUSTER_EINVAL, "backward without a training forward before it");
    norms_end(&n);
    return 0;
}

static void a_death_in_the_call_is_told(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(4, die_in_forward, NULL, NULL);
    for (uint32_t rank = 0; rank < 4; rank++) {
        assert_int_equal(ranks_wait(ranks, rank), rank == 1 ? RANKS_KILLED - 9 : 0);
    }
    ranks_free(ranks);
}

/* A forward pass of few values is five kernels: sums, fold, count, statistics, apply. */
struct failing {
    const char *faults;
    bool is_backward;
};

static int fail_to_launch(struct rank *rank, void *argument) {
    const struct failing *failing = argument;
    static struct norms n;
    bool is_here = rank->rank == 1;
    if (is_here) {
        (void)setenv("MUSTER_DOUBLE_CUDA", failing->faults, 1);
    }
    norms_begin(rank, &n);
    norms_describe(&n, NORM_ALL, 0.1);
    rank_check_code(rank, muster_syncbn_create(n.d.group, &n.there.options, &n.there.layer), MUSTER_OK);
    int status = norms_forward(&n, 3, 4);
    status = status ? status : norms_backward(&n);
    status = status ? status : norms_forward(&n, 3, 4);
    device_rank_expect(rank, status, is_here ? MUSTER_ESYSTEM : MUSTER_EABORTED,
                       failing->is_backward ? "batch norm, backward: " : "batch norm, forward: ");
    rank_check(rank, strstr(muster_detail(), "start a kernel: CUDA_ERROR_LAUNCH_FAILED"));
    norms_end(&n);
    return 0;
}

static void a_kernel_that_does_not_start_lets_nobody_wait(void **state) {
    (void)state;
    static struct failing failing[] = {{"error:cuLaunchKernel:1:719", false},
                                       {"error:cuLaunchKernel:6:719", true},
                                       {"error:cuLaunchKernel:8:719", true}};
    ranks_run(3, fail_to_launch, &failing[0]);
    ranks_run(3, fail_to_launch, &failing[1]);
    ranks_run(3, fail_to_launch, &failing[2]);
}

/* A kernel of the program that never ends. The layer is freed nevertheless; what the GPU may still use is left to it.
 */
static int hang(struct rank *rank, void *argument) {
    static struct norms n;
    static struct hold hold = HOLD_INIT;
    (void)argument;
    norms_begin(rank, &n);
    norms_describe(&n, NORM_ALL, 0.1);
    rank_check_code(rank, muster_syncbn_create(n.d.group, &n.there.options, &n.there.layer), MUSTER_OK);
    rank_check_code(rank, norms_forward(&n, 3, 4), MUSTER_OK);
    rank_hurry(n.d.group, 1000);
    hold_begin(&hold, n.d.stream);
    device_rank_expect(rank, norms_forward(&n, 3, 4), MUSTER_ETIMEOUT, "batch norm, forward: ");
    unsigned live = cuda_double_live();
    muster_syncbn_free(n.there.layer);
    rank_check(rank, cuda_double_live() == live);
    muster_group_free(n.d.group);
    _exit(0);
}

static void a_stream_that_hangs_holds_nobody(void **state) {
    (void)state;
    ranks_run(2, hang, NULL);
}

int main(void) {
    device_ranks_use_doubles(CUDA_DOUBLE, NCCL_DOUBLE);
    (void)setenv("MUSTER_NVRTC_LIBRARY", NVRTC_DOUBLE, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_does_not_go_is_refused),
        cmocka_unit_test(ranks_with_other_memories_are_told),
        cmocka_unit_test(a_rank_that_alone_is_refused_is_named),
        cmocka_unit_test(a_rank_without_nvrtc_lets_nobody_wait),
        cmocka_unit_test(layers_of_a_group_share_kernels),
        cmocka_unit_test(a_layer_on_the_host_needs_no_nvrtc),
        cmocka_unit_test(a_death_in_the_call_is_told),
        cmocka_unit_test(a_kernel_that_does_not_start_lets_nobody_wait),
        cmocka_unit_test(a_stream_that_hangs_holds_nobody),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
