/* The fast layers of examples/mnist against naive ones, in the shapes of the network, with whole and partial batches;
 * and against values recorded from PyTorch, in smaller shapes.
 *
 * Tolerances. Inputs are uniform in [-1, 1): products have a mean square of 1/9. A sum of n such products has a typical
 * size of s = sqrt(n)/3; summed in float in any order its error is a random walk of n roundings of 2^-24 times partial
 * sums no larger than a few s, so of about sqrt(n) * s * 2^-24 = n/3 * 2^-24. We allow six of these: n * 2^-23. */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "conv.h"
#include "naive.h"
#include "norm_pool.h"
#include "numbers.h"

static const double UNIT = 0x1p-23;

static void *array(size_t count, size_t element_bytes) {
    void *memory = calloc(count, element_bytes);
    assert_non_null(memory);
    return memory;
}

/* ---- Convolution ---- */

struct conv_case {
    struct conv_shape shape;
    float *x, *weight, *bias, *dy;   /* inputs */
    float *y, *dx, *dweight, *dbias; /* what the fast layer makes of them */
    size_t x_count, y_count, weight_count, bias_count;
};

static struct conv_case conv_run(struct conv_shape s) {
    struct conv_case c = {.shape = s,
                          .x_count = (size_t)(s.batch * s.in_side * s.in_side * s.in_channels),
                          .y_count = (size_t)(s.batch * s.out_side * s.out_side * s.out_channels),
                          .weight_count = (size_t)(s.out_channels * s.in_channels * 9),
                          .bias_count = (size_t)s.out_channels};
    c.x = numbers_draw_nhwc(1, s.batch, s.in_side, s.in_channels);
    c.weight = numbers_draw(2, c.weight_count);
    c.bias = numbers_draw(3, c.bias_count);
    c.dy = numbers_draw_nhwc(4, s.batch, s.out_side, s.out_channels);
    c.y = array(c.y_count, sizeof *c.y);
    c.dx = array(c.x_count, sizeof *c.dx);
    c.dweight = array(c.weight_count, sizeof *c.dweight);
    c.dbias = array(c.bias_count, sizeof *c.dbias);
    struct conv *conv = conv_create(s);
    conv_forward(conv, c.x, c.weight, c.bias, c.y);
    conv_backward_weights(conv, c.x, c.dy, c.dweight, c.dbias);
    if (s.in_channels > 1) {
        conv_backward_data(conv, c.dy, c.weight, c.dx);
    }
    conv_free(conv);
    return c;
}

static void conv_done(struct conv_case *c) {
    float *arrays[] = {c->x, c->weight, c->bias, c->dy, c->y, c->dx, c->dweight, c->dbias};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        free(arrays[i]);
    }
}

/* Terms of a sum: of y and dx one for each weight that meets a pixel, of dweight and dbias one for each pixel. */
static double forward_terms(struct conv_shape s) {
    return s.in_channels * 9 + 1;
}
static double data_terms(struct conv_shape s) {
    return s.out_channels * 9;
}
static double weight_terms(struct conv_shape s) {
    return s.batch * s.out_side * s.out_side;
}

static void check_conv_against_naive(struct conv_shape s) {
    struct conv_case c = conv_run(s);
    const struct naive_conv naive = {s.batch, s.in_channels, s.out_channels, s.in_side, s.out_side};
    double *y = array(c.y_count, sizeof *y), *dx = array(c.x_count, sizeof *dx);
    double *dweight = array(c.weight_count, sizeof *dweight), *dbias = array(c.bias_count, sizeof *dbias);
    naive_conv_forward(&naive, c.x, c.weight, c.bias, y);
    naive_conv_backward(&naive, c.x, c.weight, c.dy, s.in_channels > 1 ? dx : NULL, dweight, dbias);
    numbers_assert_near("y", c.y, y, c.y_count, forward_terms(s) * UNIT);
    numbers_assert_near("dx", c.dx, dx, c.x_count, data_terms(s) * UNIT);
    numbers_assert_near("dweight", c.dweight, dweight, c.weight_count, weight_terms(s) * UNIT);
    numbers_assert_near("dbias", c.dbias, dbias, c.bias_count, weight_terms(s) * UNIT);
    free(y);
    free(dx);
    free(dweight);
    free(dbias);
    conv_done(&c);
}

static void conv1_equals_naive(void **state) {
    (void)state;
    check_conv_against_naive((struct conv_shape){5, 1, 32, 28, 26});
}

static void conv2_equals_naive(void **state) {
    (void)state;
    check_conv_against_naive((struct conv_shape){3, 32, 64, 13, 11});
}

static void check_conv_against_pytorch(const char *name, struct conv_shape s) {
    struct conv_case c = conv_run(s);
    char full[64];
    /* PyTorch's values have the same errors again: twice the tolerance. */
    (void)snprintf(full, sizeof full, "%s.y", name);
    numbers_assert_recorded(full, c.y, c.y_count, 2 * forward_terms(s) * UNIT);
    (void)snprintf(full, sizeof full, "%s.dx", name);
    numbers_assert_recorded(full, c.dx, c.x_count, 2 * data_terms(s) * UNIT);
    (void)snprintf(full, sizeof full, "%s.dweight", name);
    numbers_assert_recorded(full, c.dweight, c.weight_count, 2 * weight_terms(s) * UNIT);
    (void)snprintf(full, sizeof full, "%s.dbias", name);
    numbers_assert_recorded(full, c.dbias, c.bias_count, 2 * weight_terms(s) * UNIT);
    conv_done(&c);
}

static void convolutions_equal_pytorch(void **state) {
    (void)state;
    check_conv_against_pytorch("conv_small", (struct conv_shape){2, 2, 3, 6, 4});
    check_conv_against_pytorch("conv_wide", (struct conv_shape){3, 32, 64, 13, 11});
}

/* ---- Normalisation, ReLU and pooling ---- */

struct norm_case {
    int batch, count, side, channels;
    enum norm_pool_mode mode;
    size_t x_count, y_count; /* of `count` images */
    float *x, *gamma, *beta, *dy;
    float *y, *dx, *dgamma, *dbeta, *running_mean, *running_variance, *tested;
};

static size_t image_floats(int count, int side, int channels) {
    return (size_t)count * (size_t)side * (size_t)side * (size_t)channels;
}

static struct norm_case norm_run(enum norm_pool_mode mode, int batch, int count, int side, int channels) {
    int half = side / 2;
    struct norm_case c = {.batch = batch, .count = count, .side = side, .channels = channels, .mode = mode};
    c.x_count = image_floats(count, side, channels);
    c.y_count = image_floats(count, half, channels);
    c.x = numbers_draw_nhwc(1, batch, side, channels);
    c.gamma = numbers_draw(2, (size_t)channels);
    c.beta = numbers_draw(3, (size_t)channels);
    c.dy = numbers_draw_nhwc(4, batch, half, channels);
    c.y = array(image_floats(batch, half, channels), sizeof *c.y);
    c.tested = array(image_floats(batch, half, channels), sizeof *c.y);
    c.dx = numbers_draw_nhwc(1, batch, side, channels);
    float **small[] = {&c.dgamma, &c.dbeta, &c.running_mean, &c.running_variance};
    for (size_t i = 0; i < 4; i++) {
        *small[i] = array((size_t)channels, sizeof(float));
    }
    for (int i = 0; i < channels; i++) {
        c.running_variance[i] = 1;
    }
    struct norm_pool layer;
    norm_pool_create(&layer, batch, side, channels);
    const struct norm_pool_values values = {c.gamma, c.beta, c.running_mean, c.running_variance};
    norm_pool_forward(&layer, mode, count, c.x, &values, c.y);
    norm_pool_backward(&layer, mode, count, c.dy, c.gamma, c.dx, c.dgamma, c.dbeta);
    if (mode == NORM_POOL_TRAIN) {
        norm_pool_forward(&layer, NORM_POOL_TEST, count, c.x, &values, c.tested);
    }
    norm_pool_free(&layer);
    return c;
}

static void norm_done(struct norm_case *c) {
    float *arrays[] = {c->x,     c->gamma,  c->beta,  c->dy,           c->y,
                       c->dx,    c->dgamma, c->dbeta, c->running_mean, c->running_variance,
                       c->tested};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        free(arrays[i]);
    }
}

/* x is within [-1, 1] with a deviation of 1/sqrt(3), gamma within [-1, 1]: z is within 3, and each of its few roundings
 * adds 2^-24 times that; mean and deviation add as much again. */
static const double NORM_TOLERANCE = 16 * 0x1p-23;

/* Sums over n windows of terms of at most sqrt(3): as above. */
static double sum_tolerance(const struct norm_case *c) {
    return 2 * c->count * c->side * c->side * UNIT;
}

static void check_norm_against_naive(enum norm_pool_mode mode, int batch, int count, int side, int channels) {
    struct norm_case c = norm_run(mode, batch, count, side, channels);
    int pixels = count * side * side;
    double mean[64], variance[64], dgamma[64], dbeta[64];
    const struct naive_norm norm = {pixels, channels, mean, variance, mode == NORM_POOL_NONE ? NULL : c.gamma, c.beta};
    double *z = array(c.x_count, sizeof *z), *dz = array(c.x_count, sizeof *dz), *dx = array(c.x_count, sizeof *dx);
    double *y = array(c.y_count, sizeof *y);
    naive_moments(pixels, channels, c.x, mean, variance);
    naive_norm_forward(&norm, c.x, z);
    naive_relu_pool_forward(count, side, channels, z, y);
    naive_relu_pool_backward(count, side, channels, z, c.dy, dz);
    numbers_assert_near("y", c.y, y, c.y_count, mode == NORM_POOL_NONE ? 0 : NORM_TOLERANCE);
    if (mode == NORM_POOL_NONE) {
        numbers_assert_near("dx", c.dx, dz, c.x_count, 0);
    } else {
        naive_norm_backward(&norm, c.x, dz, dx, dgamma, dbeta);
        numbers_assert_near("dx", c.dx, dx, c.x_count, NORM_TOLERANCE);
        numbers_assert_near("dgamma", c.dgamma, dgamma, (size_t)channels, sum_tolerance(&c));
        numbers_assert_near("dbeta", c.dbeta, dbeta, (size_t)channels, sum_tolerance(&c));
    }
    for (size_t i = c.x_count; i < image_floats(batch, side, channels); i++) {
        assert_true(c.dx[i] == 0); /* images that took no part */
    }
    free(z);
    free(dz);
    free(dx);
    free(y);
    norm_done(&c);
}

static void norm_pool_equals_naive(void **state) {
    (void)state;
    check_norm_against_naive(NORM_POOL_TRAIN, 4, 4, 26, 32);
    check_norm_against_naive(NORM_POOL_TRAIN, 4, 4, 11, 64);
    check_norm_against_naive(NORM_POOL_TRAIN, 4, 1, 26, 32);
    check_norm_against_naive(NORM_POOL_TRAIN, 4, 3, 11, 64);
    check_norm_against_naive(NORM_POOL_NONE, 4, 4, 26, 32);
    check_norm_against_naive(NORM_POOL_NONE, 4, 3, 11, 64);
}

static void check_norm_against_pytorch(const char *name, enum norm_pool_mode mode, int batch, int side, int channels) {
    struct norm_case c = norm_run(mode, batch, batch, side, channels);
    char full[64];
    (void)snprintf(full, sizeof full, "%s.y", name);
    numbers_assert_recorded(full, c.y, c.y_count, NORM_TOLERANCE);
    (void)snprintf(full, sizeof full, "%s.dx", name);
    numbers_assert_recorded(full, c.dx, c.x_count, NORM_TOLERANCE);
    if (mode == NORM_POOL_TRAIN) {
        size_t width = (size_t)channels;
        (void)snprintf(full, sizeof full, "%s.dgamma", name);
        numbers_assert_recorded(full, c.dgamma, width, sum_tolerance(&c));
        (void)snprintf(full, sizeof full, "%s.dbeta", name);
        numbers_assert_recorded(full, c.dbeta, width, sum_tolerance(&c));
        (void)snprintf(full, sizeof full, "%s.running_mean", name);
        numbers_assert_recorded(full, c.running_mean, width, NORM_TOLERANCE);
        (void)snprintf(full, sizeof full, "%s.running_variance", name);
        numbers_assert_recorded(full, c.running_variance, width, NORM_TOLERANCE);
        (void)snprintf(full, sizeof full, "%s.tested", name);
        numbers_assert_recorded(full, c.tested, c.y_count, NORM_TOLERANCE);
    }
    norm_done(&c);
}

static void norm_pool_equals_pytorch(void **state) {
    (void)state;
    check_norm_against_pytorch("norm_pool_odd", NORM_POOL_TRAIN, 3, 5, 32);
    check_norm_against_pytorch("norm_pool_even", NORM_POOL_TRAIN, 2, 6, 64);
    check_norm_against_pytorch("pool_alone", NORM_POOL_NONE, 2, 5, 32);
}

/* Of equal pixels the first is chosen, as in PyTorch; of pixels that are all 0 none. */
static void equal_pixels_have_one_winner(void **state) {
    (void)state;
    enum { SIDE = 4, CHANNELS = 32, COUNT = SIDE * SIDE * CHANNELS };
    for (int level = 0; level < 2; level++) {
        float x[COUNT], y[COUNT / 4], dy[COUNT / 4];
        for (int i = 0; i < COUNT; i++) {
            x[i] = (float)level;
            dy[i / 4] = 3;
        }
        struct norm_pool layer;
        norm_pool_create(&layer, 1, SIDE, CHANNELS);
        norm_pool_forward(&layer, NORM_POOL_NONE, 1, x, NULL, y);
        norm_pool_backward(&layer, NORM_POOL_NONE, 1, dy, NULL, x, NULL, NULL);
        for (int i = 0; i < COUNT; i++) {
            int row = i / CHANNELS / SIDE, column = i / CHANNELS % SIDE;
            bool first = row % 2 == 0 && column % 2 == 0;
            assert_true(x[i] == (float)(first && level > 0 ? 3 : 0));
        }
        norm_pool_free(&layer);
    }
}

/* A mean far from 0 must not eat the variance: 1000 + noise of 0.01 has about 7 bits of noise left in a float, and the
 * statistics are those of the floats as they are. */
static void a_large_mean_does_not_cancel(void **state) {
    (void)state;
    enum { BATCH = 8, SIDE = 26, CHANNELS = 32, COUNT = BATCH * SIDE * SIDE * CHANNELS };
    float *x = numbers_draw(9, COUNT), gamma[CHANNELS], beta[CHANNELS], mean[CHANNELS] = {0}, variance[CHANNELS] = {0};
    float *y = array(COUNT / 4, sizeof *y);
    double want_mean[CHANNELS], want_variance[CHANNELS];
    for (size_t i = 0; i < COUNT; i++) {
        x[i] = 1000 + x[i] / 100;
    }
    for (int c = 0; c < CHANNELS; c++) {
        gamma[c] = 1;
        beta[c] = 0;
    }
    naive_moments(BATCH * SIDE * SIDE, CHANNELS, x, want_mean, want_variance);
    struct norm_pool layer;
    norm_pool_create(&layer, BATCH, SIDE, CHANNELS);
    const struct norm_pool_values values = {gamma, beta, mean, variance};
    norm_pool_forward(&layer, NORM_POOL_TRAIN, BATCH, x, &values, y);
    for (int c = 0; c < CHANNELS; c++) {
        double got = 1 / (layer.inverse_deviation[c] * layer.inverse_deviation[c]) - 1e-5;
        assert_true(fabs(got - want_variance[c]) < want_variance[c] / 100);
    }
    norm_pool_free(&layer);
    free(x);
    free(y);
}

/* ---- Batch normalisation over several workers ---- */

enum { WORKERS = 2, WORKER_IMAGES = 3, JOIN_SIDE = 11, JOIN_CHANNELS = 64, JOINED_MAX = 2 * JOIN_CHANNELS + 1 };

/* Two threads, each with its half of the images; join adds up through memory. */
struct joined {
    pthread_barrier_t barrier;
    double numbers[WORKERS][JOINED_MAX];
};

struct joined_worker {
    struct joined *shared;
    int index;
    pthread_t thread;
    struct norm_pool layer;
    struct norm_pool_values values;
    float *x, *y, *dgamma, *dbeta;
    const float *dy;
};

static void join_through_memory(void *context, double *numbers, size_t count) {
    struct joined_worker *worker = context;
    struct joined *shared = worker->shared;
    assert_true(count <= JOINED_MAX);
    memcpy(shared->numbers[worker->index], numbers, count * sizeof *numbers);
    (void)pthread_barrier_wait(&shared->barrier);
    for (size_t i = 0; i < count; i++) {
        numbers[i] = shared->numbers[0][i] + shared->numbers[1][i];
    }
    (void)pthread_barrier_wait(&shared->barrier);
}

static void *joined_worker_run(void *context) {
    struct joined_worker *w = context;
    norm_pool_create(&w->layer, WORKER_IMAGES, JOIN_SIDE, JOIN_CHANNELS);
    w->layer.join = join_through_memory;
    w->layer.join_context = w;
    norm_pool_forward(&w->layer, NORM_POOL_TRAIN, WORKER_IMAGES, w->x, &w->values, w->y);
    norm_pool_backward(&w->layer, NORM_POOL_TRAIN, WORKER_IMAGES, w->dy, w->values.gamma, w->x, w->dgamma, w->dbeta);
    norm_pool_free(&w->layer);
    return NULL;
}

/* As doubles, for numbers_assert_near(). */
static double *widened(const float *numbers, size_t count) {
    double *wide = array(count, sizeof *wide);
    for (size_t i = 0; i < count; i++) {
        wide[i] = (double)numbers[i];
    }
    return wide;
}

static void assert_near_floats(const char *name, const float *got, const float *want, size_t count, double tolerance) {
    double *wide = widened(want, count);
    numbers_assert_near(name, got, wide, count, tolerance);
    free(wide);
}

static void two_workers_normalise_as_one(void **state) {
    (void)state;
    struct norm_case whole =
        norm_run(NORM_POOL_TRAIN, WORKERS * WORKER_IMAGES, WORKERS * WORKER_IMAGES, JOIN_SIDE, JOIN_CHANNELS);
    size_t x_half = whole.x_count / WORKERS, y_half = whole.y_count / WORKERS;
    float *y = array(whole.y_count, sizeof *y), gradients[WORKERS][2][JOIN_CHANNELS];
    float running[WORKERS][2][JOIN_CHANNELS];
    struct joined shared;
    struct joined_worker workers[WORKERS];
    assert_int_equal(pthread_barrier_init(&shared.barrier, NULL, WORKERS), 0);
    for (int i = 0; i < WORKERS; i++) {
        for (int c = 0; c < JOIN_CHANNELS; c++) {
            running[i][0][c] = 0;
            running[i][1][c] = 1;
        }
        workers[i] = (struct joined_worker){.shared = &shared,
                                            .index = i,
                                            .x = whole.x + (size_t)i * x_half,
                                            .y = y + (size_t)i * y_half,
                                            .dy = whole.dy + (size_t)i * y_half,
                                            .dgamma = gradients[i][0],
                                            .dbeta = gradients[i][1],
                                            .values = {whole.gamma, whole.beta, running[i][0], running[i][1]}};
        assert_int_equal(pthread_create(&workers[i].thread, NULL, joined_worker_run, &workers[i]), 0);
    }
    for (int i = 0; i < WORKERS; i++) {
        assert_int_equal(pthread_join(workers[i].thread, NULL), 0);
    }
    assert_near_floats("y", y, whole.y, whole.y_count, NORM_TOLERANCE);
    assert_near_floats("dx", whole.x, whole.dx, whole.x_count, NORM_TOLERANCE); /* the workers' x lay in it */
    for (int c = 0; c < JOIN_CHANNELS; c++) {
        gradients[0][0][c] += gradients[1][0][c]; /* each has its share */
        gradients[0][1][c] += gradients[1][1][c];
    }
    assert_near_floats("dgamma", gradients[0][0], whole.dgamma, JOIN_CHANNELS, sum_tolerance(&whole));
    assert_near_floats("dbeta", gradients[0][1], whole.dbeta, JOIN_CHANNELS, sum_tolerance(&whole));
    for (int i = 0; i < WORKERS; i++) {
        assert_near_floats("running mean", running[i][0], whole.running_mean, JOIN_CHANNELS, NORM_TOLERANCE);
        assert_near_floats("running variance", running[i][1], whole.running_variance, JOIN_CHANNELS, NORM_TOLERANCE);
    }
    (void)pthread_barrier_destroy(&shared.barrier);
    free(y);
    norm_done(&whole);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(conv1_equals_naive),           cmocka_unit_test(conv2_equals_naive),
        cmocka_unit_test(convolutions_equal_pytorch),   cmocka_unit_test(norm_pool_equals_naive),
        cmocka_unit_test(norm_pool_equals_pytorch),     cmocka_unit_test(a_large_mean_does_not_cancel),
        cmocka_unit_test(equal_pixels_have_one_winner), cmocka_unit_test(two_workers_normalise_as_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
