/* The whole network of examples/mnist: logits, loss and gradients against PyTorch's, the order in which gradients
 * become ready, and that adding up the gradients of parts gives the same bits as adding them afterwards. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "net.h"
#include "numbers.h"

enum { IMAGES = 6, SEED = 7, IMAGES_SEED = 8 };

static const uint8_t LABELS[IMAGES] = {3, 1, 4, 1, 5, 9};

/* Values and gradients are of size 1 and less (the largest gradients are near 0.3); a few hundred roundings of 2^-24
 * each lie between the images and the result, and normalisation of few images can enlarge an error several times. */
static const double TOLERANCE = 512 * 0x1p-24 / 4;

struct fixture {
    struct net *net;
    float *gradients;
};

static struct fixture fixture_create(int batch, bool normalise) {
    struct fixture f = {.net = net_create(batch, normalise, SEED)};
    size_t bytes = net_parameter_floats(f.net) * sizeof(float);
    f.gradients = aligned_alloc(64, bytes);
    assert_non_null(f.gradients);
    memset(f.gradients, 0, bytes); /* the gaps between parameters are compared, too */
    net_set_gradients(f.net, f.gradients);
    return f;
}

static void fixture_free(struct fixture *f) {
    net_free(f->net);
    free(f->gradients);
}

/* Images first .. first + count of the drawn ones. */
static void load(struct net *net, int first, int count) {
    float *images = numbers_draw(IMAGES_SEED, (size_t)IMAGES * NET_PIXELS);
    memcpy(net->images, images + first * NET_PIXELS, (size_t)count * NET_PIXELS * sizeof *images);
    memcpy(net->labels, LABELS + first, (size_t)count);
    free(images);
}

static void step(struct net *net, int first, int count) {
    load(net, first, count);
    net_forward(net, NET_TRAIN, count);
    (void)net_loss(net);
    net_backward(net);
}

/* `batch` more than the images: a partial batch must not differ. */
static void check_against_pytorch(const char *name, bool normalise, int batch) {
    struct fixture f = fixture_create(batch, normalise);
    char full[64];
    load(f.net, 0, IMAGES);
    net_forward(f.net, NET_TRAIN, IMAGES);
    (void)snprintf(full, sizeof full, "%s.logits", name);
    numbers_assert_recorded(full, f.net->logits, (size_t)IMAGES * NET_CLASSES, TOLERANCE);
    float loss = (float)net_loss(f.net);
    (void)snprintf(full, sizeof full, "%s.loss", name);
    numbers_assert_recorded(full, &loss, 1, TOLERANCE);
    net_backward(f.net);
    for (int i = 0; i < NET_PARAMETER_COUNT; i++) {
        const struct net_tensor *tensor = &f.net->parameters[i];
        if (tensor->count > 0) {
            (void)snprintf(full, sizeof full, "%s.%s", name, tensor->name);
            numbers_assert_recorded(full, tensor->gradient, tensor->count, TOLERANCE);
        }
    }
    for (int i = 0; normalise && i < NET_BUFFER_COUNT; i++) {
        (void)snprintf(full, sizeof full, "%s.%s", name, f.net->buffers[i].name);
        numbers_assert_recorded(full, f.net->buffers[i].value, f.net->buffers[i].count, TOLERANCE);
    }
    net_forward(f.net, NET_TEST, IMAGES);
    (void)snprintf(full, sizeof full, "%s.tested", name);
    numbers_assert_recorded(full, f.net->logits, (size_t)IMAGES * NET_CLASSES, TOLERANCE);
    fixture_free(&f);
}

static void equals_pytorch(void **state) {
    (void)state;
    check_against_pytorch("net", true, IMAGES);
    check_against_pytorch("net_without_norm", false, IMAGES);
}

static void a_partial_batch_equals_pytorch(void **state) {
    (void)state;
    check_against_pytorch("net", true, IMAGES + 3);
    check_against_pytorch("net_without_norm", false, IMAGES + 3);
}

/* Gradients of what an earlier, larger batch left behind must not leak into a smaller one. */
static void leftovers_of_a_larger_batch_do_no_harm(void **state) {
    (void)state;
    for (int normalise = 0; normalise < 2; normalise++) {
        struct fixture used = fixture_create(IMAGES, normalise), fresh = fixture_create(IMAGES, normalise);
        step(used.net, 0, IMAGES);
        memcpy(used.net->statistics, fresh.net->statistics, sizeof(float) * 2 * (32 + 64));
        step(used.net, 2, 3);
        step(fresh.net, 2, 3);
        assert_memory_equal(used.gradients, fresh.gradients, net_parameter_floats(used.net) * sizeof(float));
        fixture_free(&used);
        fixture_free(&fresh);
    }
}

static void accumulation_adds_the_same_bits(void **state) {
    (void)state;
    struct fixture f = fixture_create(3, true);
    size_t floats = net_parameter_floats(f.net);
    step(f.net, 0, 3);
    float *sum = calloc(floats, sizeof *sum);
    assert_non_null(sum);
    memcpy(sum, f.gradients, floats * sizeof *sum);
    step(f.net, 3, 3);
    for (size_t i = 0; i < floats; i++) {
        sum[i] += f.gradients[i];
    }
    step(f.net, 0, 3);
    f.net->accumulate = true;
    step(f.net, 3, 3);
    assert_memory_equal(f.gradients, sum, floats * sizeof *sum);
    free(sum);
    fixture_free(&f);
}

struct order {
    int seen[NET_PARAMETER_COUNT];
    int count;
};

static void note(void *context, enum net_parameter parameter) {
    struct order *order = context;
    assert_in_range(order->count, 0, NET_PARAMETER_COUNT - 1);
    order->seen[order->count++] = (int)parameter;
}

/* Each once, the last layer first; those that a network does not have never. */
static void gradients_become_ready_from_the_end(void **state) {
    (void)state;
    for (int normalise = 0; normalise < 2; normalise++) {
        struct fixture f = fixture_create(2, normalise);
        struct order order = {.count = 0};
        f.net->ready = note;
        f.net->ready_context = &order;
        step(f.net, 0, 2);
        assert_int_equal(order.count, normalise ? NET_PARAMETER_COUNT : NET_PARAMETER_COUNT - 4);
        for (int i = 0; i < order.count; i++) {
            assert_true(f.net->parameters[order.seen[i]].count > 0);
            assert_true(i < 2 || order.seen[i] / 2 < order.seen[i - 2] / 2);
        }
        fixture_free(&f);
    }
}

static void has_as_many_parameters_as_in_pytorch(void **state) {
    (void)state;
    struct fixture f = fixture_create(1, true);
    size_t count = 0;
    for (int i = 0; i < NET_PARAMETER_COUNT; i++) {
        count += f.net->parameters[i].count;
    }
    assert_int_equal(count, 225226);
    fixture_free(&f);
}

static void counts_what_is_told_right(void **state) {
    (void)state;
    struct fixture f = fixture_create(IMAGES, true);
    f.net->count = IMAGES;
    memcpy(f.net->labels, LABELS, IMAGES);
    memset(f.net->logits, 0, sizeof(float) * IMAGES * NET_CLASSES);
    for (int i = 0; i < IMAGES - 2; i++) {
        f.net->logits[i * NET_CLASSES + LABELS[i]] = 1;
    }
    f.net->logits[4 * NET_CLASSES + 2] = 1; /* says 2 to a 5; the last says 0, the first of equals, to a 9 */
    assert_int_equal(net_right(f.net), IMAGES - 2);
    fixture_free(&f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_pytorch),
        cmocka_unit_test(a_partial_batch_equals_pytorch),
        cmocka_unit_test(leftovers_of_a_larger_batch_do_no_harm),
        cmocka_unit_test(accumulation_adds_the_same_bits),
        cmocka_unit_test(gradients_become_ready_from_the_end),
        cmocka_unit_test(has_as_many_parameters_as_in_pytorch),
        cmocka_unit_test(counts_what_is_told_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
