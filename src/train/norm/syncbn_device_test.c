/* Synchronised batch norm in a group with the engine nccl, on the doubles: arrays of the host go on working, arrays on
 * a GPU get a sentence before anything is computed, and sums that a program has made on the GPU are added up there. */
#include <muster/syncbn.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/collective.h>

#include "comm/device/cuda_double_test_support.h"
#include "comm/device/device.h"
#include "comm/nccl/device_ranks_test_support.h"

enum { CHANNELS = 2, BATCH = 3, PLANE = 2, VALUES = BATCH * CHANNELS * PLANE };

static void expect_refusal(struct rank *rank, int code, const char *name) {
    char words[100];
    (void)snprintf(words, sizeof words, "batch norm: %s is in memory of the GPU, and this layer computes on the host",
                   name);
    rank_check_code(rank, code, MUSTER_EUNSUPPORTED);
    rank_check(rank, strstr(muster_detail(), words));
}

static void refuse_options(struct rank *rank, struct muster_group *group, float *device) {
    struct muster_syncbn *layer = NULL;
    float host[CHANNELS] = {0, 0};
    for (int i = 0; i < 5; i++) {
        static const char *const names[] = {"weight", "bias", "running_mean", "running_variance", "batches_tracked"};
        struct muster_syncbn_options options = MUSTER_SYNCBN_OPTIONS_INIT;
        options.channels = CHANNELS;
        options.weight = i == 0 ? device : host;
        options.bias = i == 1 ? device : host;
        options.running_mean = i == 2 ? device : host;
        options.running_variance = i == 3 ? device : host;
        options.batches_tracked = i == 4 ? (int64_t *)(void *)device : NULL;
        expect_refusal(rank, muster_syncbn_create(group, &options, &layer), names[i]);
    }
}

static void refuse_calls(struct rank *rank, struct muster_syncbn *layer, float *device) {
    float x[VALUES], y[VALUES], gradient[CHANNELS];
    for (int i = 0; i < VALUES; i++) {
        x[i] = (float)(i * i % 7) + (float)rank->rank;
    }
    expect_refusal(rank, muster_syncbn_forward(layer, device, BATCH, PLANE, y), "x");
    expect_refusal(rank, muster_syncbn_forward(layer, x, BATCH, PLANE, device), "the result");
    expect_refusal(rank, muster_syncbn_evaluate(layer, device, BATCH, PLANE, y), "x");
    rank_check_code(rank, muster_syncbn_forward(layer, x, BATCH, PLANE, y), 0);
    expect_refusal(rank, muster_syncbn_backward(layer, x, device, y, NULL, NULL), "dy");
    expect_refusal(rank, muster_syncbn_backward(layer, x, y, device, NULL, NULL), "the result");
    expect_refusal(rank, muster_syncbn_backward(layer, x, y, y, device, NULL), "weight_gradient");
    expect_refusal(rank, muster_syncbn_backward(layer, x, y, y, NULL, device), "bias_gradient");
    rank_check_code(rank, muster_syncbn_backward(layer, x, y, y, gradient, gradient), 0);
}

/* Two sums a channel, and the number of values, as docs/ddp.md says. */
static void add_up_sums(struct rank *rank, struct device_rank *d) {
    double sums[2 * CHANNELS + 1], *there = device_rank_allocate(d, sizeof sums, 1);
    for (size_t i = 0; i < 2 * CHANNELS + 1; i++) {
        sums[i] = (double)(rank->rank + 1) * (double)(i + 1);
    }
    device_rank_put(d, there, sums, sizeof sums);
    rank_check_code(
        rank, muster_all_reduce(d->group, there, there, 2 * CHANNELS + 1, MUSTER_FLOAT64, MUSTER_OP_SUM, NULL), 0);
    device_rank_get(d, sums, there, sizeof sums);
    uint32_t all = rank->size * (rank->size + 1) / 2;
    for (size_t i = 0; i < 2 * CHANNELS + 1; i++) {
        rank_check(rank, sums[i] == (double)all * (double)(i + 1));
    }
    device_rank_release(d, there, 1);
}

static int body(struct rank *rank, void *argument) {
    struct device_rank d;
    struct muster_syncbn_options options = MUSTER_SYNCBN_OPTIONS_INIT;
    struct muster_syncbn *layer = NULL;
    float mean[CHANNELS] = {0, 0}, variance[CHANNELS] = {1, 1};
    (void)argument;
    device_rank_start(rank, &d);
    float *device = device_rank_allocate(&d, VALUES * sizeof *device, 1);
    refuse_options(rank, d.group, device);
    options.channels = CHANNELS;
    options.running_mean = mean;
    options.running_variance = variance;
    rank_check_code(rank, muster_syncbn_create(d.group, &options, &layer), 0);
    refuse_calls(rank, layer, device);
    add_up_sums(rank, &d);
    muster_syncbn_free(layer);
    device_rank_release(&d, device, 1);
    device_rank_end(&d);
    rank_check(rank, cuda_double_live() == 0);
    return 0;
}

static void arrays_on_a_device_get_a_sentence(void **state) {
    (void)state;
    static const uint32_t sizes[] = {1, 2, 4, 8};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        ranks_run(sizes[i], body, NULL);
    }
}

int main(void) {
    device_ranks_use_doubles(CUDA_DOUBLE, NCCL_DOUBLE);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(arrays_on_a_device_get_a_sentence),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
