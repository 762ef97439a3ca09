/* Synchronised batch norm in memory of a GPU, on doubles of the driver, of NCCL and of NVRTC: the numbers of a layer on
 * the host, streams, and the same bits again. */
#include <muster/syncbn.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "comm/device/hold_test_support.h"
#include "train/norm/syncbn_device_test_support.h"

/* One rounding of float32. */
#define EPSILON 5.9604644775390625e-8

/* ---- the host's numbers ---- */

/* A batch of each of up to 8 ranks. */
struct batches {
    size_t plane, images[8];
    double momentum;
    unsigned arrays; /* of the options */
};

static float noise(uint32_t *seed) {
    *seed = *seed * 1664525U + 1013904223U;
    return (float)(*seed >> 8) / (float)(1 << 23) - 1;
}

static void draw(struct norm *host, uint32_t seed, size_t images, size_t plane) {
    static const float middle[CHANNELS] = {1, 400, -20};
    for (size_t i = 0; i < images * CHANNELS * plane; i++) {
        host->x[i] = noise(&seed) * 3 + middle[i / plane % CHANNELS];
        host->dy[i] = noise(&seed);
    }
}

static bool same_bits(const void *left, const void *right, size_t bytes) {
    return memcmp(left, right, bytes) == 0;
}

static bool near(double found, double expected, double bound) {
    return fabs(found - expected) <= bound;
}

/* Both sides know the sums of a channel within roundings of float64, which may move each constant of the channel by one
 * rounding of float32. y has three of these and two operations of its own, and its terms are at most |y| + |bias|; so
 * each side is within 5 roundings of the number without any, and the two within 10. In dx, with |dy| <= 1, so are the
 * means of dy and of dy times the normalised x; the latter is at most 2 here (of evenly drawn numbers the square root
 * of 3, and some more in small batches), and |scale| at most 1.5: so 10 roundings of 1.5 * (1 + 1 + 2). */
static void compare_values(struct rank *rank, const struct norm *host, const struct norm *found, size_t count) {
    for (size_t i = 0; i < count; i++) {
        rank_check(rank, near((double)found->y[i], (double)host->y[i], 10 * EPSILON * (fabs((double)host->y[i]) + 2)));
        rank_check(rank, near((double)found->dx[i], (double)host->dx[i], 10 * EPSILON * 1.5 * 4));
    }
}

/* Results of channels are rounded once; before that the sides differ by roundings of float64, which the differences of
 * large numbers make larger: with a mean of 400, of the order of 400 * 400 * 1e-16 for each value. */
static void compare_channels(struct rank *rank, const struct norm *host, const struct norm *found) {
    for (size_t c = 0; c < CHANNELS; c++) {
        const float *expected[] = {&host->mean[c], &host->variance[c], &host->weight_gradient[c],
                                   &host->bias_gradient[c]};
        const float *actual[] = {&found->mean[c], &found->variance[c], &found->weight_gradient[c],
                                 &found->bias_gradient[c]};
        for (size_t i = 0; i < 4; i++) {
            rank_check(rank,
                       near((double)*actual[i], (double)*expected[i], 2 * EPSILON * fabs((double)*expected[i]) + 1e-8));
        }
    }
    rank_check(rank, found->tracked == host->tracked);
}

static void evaluate_both(struct norms *n, size_t images, size_t plane) {
    static struct norm found;
    struct rank *rank = n->d.rank;
    if (!n->host.options.running_mean) {
        rank_check_code(rank, muster_syncbn_evaluate(n->there.layer, n->there.x, images, plane, n->there.y),
                        MUSTER_EINVAL);
        return;
    }
    float *y = n->host.evaluated;
    rank_check_code(rank, muster_syncbn_evaluate(n->host.layer, n->host.x, images, plane, y), MUSTER_OK);
    rank_check_code(rank, muster_syncbn_evaluate(n->there.layer, n->there.x, images, plane, n->there.evaluated),
                    MUSTER_OK);
    norms_get(n, &found);
    for (size_t i = 0; i < images * CHANNELS * plane; i++) { /* as y, but the means may differ by a rounding, too */
        double bound = 10 * EPSILON * (fabs((double)y[i]) + 2) + 4 * EPSILON * 400 * 1.5;
        rank_check(rank, near((double)found.evaluated[i], (double)y[i], bound));
    }
}

static void step_both(struct norms *n, size_t images, size_t plane) {
    static struct norm found, again;
    struct rank *rank = n->d.rank;
    struct norm *host = &n->host;
    rank_check_code(rank, norm_forward(host, images, plane), MUSTER_OK);
    rank_check_code(rank, norm_backward(host), MUSTER_OK);
    rank_check_code(rank, norms_forward(n, images, plane), MUSTER_OK);
    evaluate_both(n, images, plane); /* between the passes, which it leaves alone */
    rank_check_code(rank, norms_backward(n), MUSTER_OK);
    norms_get(n, &found);
    compare_values(rank, host, &found, images * CHANNELS * plane);
    compare_channels(rank, host, &found);
    rank_check_code(rank, norms_backward(n), MUSTER_OK);
    norms_get(n, &again);
    rank_check(rank, same_bits(found.dx, again.dx, sizeof found.dx));
    rank_check(rank, same_bits(found.weight_gradient, again.weight_gradient, sizeof found.weight_gradient));
}

static int compare(struct rank *rank, void *argument) {
    const struct batches *batches = argument;
    static struct norms n;
    (void)setenv("MUSTER_DOUBLE_JITTER_US", "100", 1);
    norms_begin(rank, &n);
    norms_make(&n, batches->arrays, batches->momentum);
    for (uint32_t step = 0; step < 3; step++) {
        size_t images = batches->images[(rank->rank + step) % rank->size];
        draw(&n.host, step * 100 + rank->rank, images, batches->plane);
        norms_put(&n);
        step_both(&n, images, batches->plane);
    }
    norms_end(&n);
    return 0;
}

static void a_gpu_has_the_numbers_of_the_host(void **state) {
    static struct batches batches[] = {
        {4, {3, 3, 3, 3, 3, 3, 3, 3}, 0.25, NORM_ALL},
        {5, {4, 0, 1, 6, 0, 2, 5, 3}, -1, NORM_ALL},                          /* uneven, and ranks without data */
        {1, {40, 7, 0, 19, 1, 2, 3, 60}, 0.1, NORM_RUNNING},                  /* [n, channels] */
        {64, {20, 17, 18, 23, 1, 0, 22, 24}, 0.25, NORM_WEIGHT | NORM_BIAS}}; /* folded twice */
    (void)state;
    for (uint32_t size = 1; size <= 8; size *= 2) {
        for (size_t i = 0; i < sizeof batches / sizeof *batches; i++) {
            ranks_run(size, compare, &batches[i]);
        }
    }
}

/* Too few values for a variance: every rank is told, and the running statistics stay. */
static int have_too_few(struct rank *rank, void *argument) {
    static struct norms n;
    static struct norm found;
    (void)argument;
    norms_begin(rank, &n);
    norms_make(&n, NORM_ALL, -1);
    for (size_t c = 0; c < CHANNELS; c++) {
        n.host.x[c] = (float)c + (float)rank->rank;
    }
    norms_put(&n);
    rank_check_code(rank, norms_forward(&n, rank->rank == 1, 1), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "batch norm: 1 values a channel on all ranks together; 2 are needed"));
    rank_check_code(rank, norms_backward(&n), MUSTER_EINVAL);
    norms_get(&n, &found);
    rank_check(rank, found.tracked == 0 && found.mean[1] == n.host.mean[1]);
    rank_check_code(rank, norms_forward(&n, 1, 1), MUSTER_OK);
    norms_get(&n, &found);
    rank_check(rank, found.tracked == 1 && found.mean[1] == 1.5F && found.variance[1] == 0.5F);
    norms_end(&n);
    return 0;
}

static void too_few_values_are_told_to_all(void **state) {
    (void)state;
    ranks_run(2, have_too_few, NULL);
}

/* Three forward passes over one batch, and another layer's. */
static int repeat(struct rank *rank, void *argument) {
    static struct norms n;
    static struct norm first, later;
    struct muster_syncbn *second = NULL;
    (void)argument;
    (void)setenv("MUSTER_DOUBLE_JITTER_US", "100", 1);
    norms_begin(rank, &n);
    norms_make(&n, NORM_WEIGHT, 0.1);
    draw(&n.host, rank->rank, 24, 64);
    norms_put(&n);
    rank_check_code(rank, muster_syncbn_create(n.d.group, &n.there.options, &second), MUSTER_OK);
    rank_check_code(rank, norms_forward(&n, 24, 64), MUSTER_OK);
    norms_get(&n, &first);
    for (int i = 0; i < 3; i++) {
        struct muster_syncbn *layer = i == 2 ? second : n.there.layer;
        rank_check_code(rank, muster_syncbn_forward(layer, n.there.x, 24, 64, n.there.y), MUSTER_OK);
        norms_get(&n, &later);
        rank_check(rank, same_bits(first.y, later.y, sizeof first.y));
    }
    muster_syncbn_free(second);
    norms_end(&n);
    return 0;
}

static void the_bits_are_those_of_every_run(void **state) {
    (void)state;
    ranks_run(3, repeat, NULL);
}

/* ---- streams ---- */

struct forward {
    struct norms *norms;
    _Atomic int is_done, status;
};

static void *run_forward(void *argument) {
    struct forward *forward = argument;
    atomic_store(&forward->status, norms_forward(forward->norms, 3, 4));
    atomic_store(&forward->is_done, 1);
    return NULL;
}

/* What the stream has yet to write is waited for: x comes to the GPU behind the hold. */
static int hold_stream(struct rank *rank, void *argument) {
    static struct norms n;
    static struct norm found;
    static struct hold hold = HOLD_INIT;
    struct forward forward = {.norms = &n};
    pthread_t thread;
    (void)argument;
    norms_begin(rank, &n);
    norms_make(&n, NORM_ALL, 0.1);
    norms_put(&n); /* zeros */
    draw(&n.host, rank->rank, 3, 4);
    if (rank->rank == 0) {
        hold_begin(&hold, n.d.stream);
    }
    rank_check(rank, cuda_library()->copy_to_device(device_address(n.there.x), n.host.x, sizeof n.host.x, n.d.stream) ==
                         CUDA_OK);
    rank_check(rank, pthread_create(&thread, NULL, run_forward, &forward) == 0);
    if (rank->rank == 0) { /* the others may be in the call by now, or not */
        rank_await(rank, rank->size - 1, 1);
        rank_check(rank, !atomic_load(&forward.is_done));
        hold_end(&hold);
    } else {
        rank_mark(rank, 1);
    }
    rank_check(rank, pthread_join(thread, NULL) == 0);
    rank_check_code(rank, atomic_load(&forward.status), MUSTER_OK);
    rank_check_code(rank, norm_forward(&n.host, 3, 4), MUSTER_OK);
    rank_check_code(rank, norm_backward(&n.host), MUSTER_OK);
    rank_check(rank, cuda_library()->copy_to_device(device_address(n.there.dy), n.host.dy, sizeof n.host.dy,
                                                    n.d.stream) == CUDA_OK);
    rank_check_code(rank, norms_backward(&n), MUSTER_OK);
    norms_get(&n, &found);
    compare_values(rank, &n.host, &found, (size_t)3 * CHANNELS * 4);
    norms_end(&n);
    return 0;
}

static void a_layer_waits_for_the_stream(void **state) {
    (void)state;
    ranks_run(2, hold_stream, NULL);
    ranks_run(4, hold_stream, NULL);
}

int main(void) {
    device_ranks_use_doubles(CUDA_DOUBLE, NCCL_DOUBLE);
    (void)setenv("MUSTER_NVRTC_LIBRARY", NVRTC_DOUBLE, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_gpu_has_the_numbers_of_the_host),
        cmocka_unit_test(too_few_values_are_told_to_all),
        cmocka_unit_test(the_bits_are_those_of_every_run),
        cmocka_unit_test(a_layer_waits_for_the_stream),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
