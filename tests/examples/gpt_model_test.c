/* The passes of examples/gpt: parameters that move between uses, batches that are shared out, and dropout. The numbers
 * themselves are compared with PyTorch's in test_gpt_pytorch.py. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h" /* before cmocka.h, which has a macro of that name */

#include <cmocka.h>

#include "gpt.h"
#include "product.h"
#include "resident.h"

enum { BATCH = 4, LENGTH = 9, VOCABULARY = 13 };

static const struct gpt_shape SHAPE = {
    .vocabulary = VOCABULARY, .context = LENGTH, .layers = 2, .heads = 2, .width = 16};

static struct gpt_shape dropping(float rate) {
    struct gpt_shape shape = SHAPE;
    shape.embedding_dropout = shape.residual_dropout = shape.attention_dropout = rate;
    return shape;
}

static int32_t tokens[BATCH * LENGTH], targets[BATCH * LENGTH];

static void make_batch(void) {
    for (int i = 0; i < BATCH * LENGTH; i++) {
        tokens[i] = i * 7 % VOCABULARY;
        targets[i] = i * 5 % VOCABULARY;
    }
}

/* Loss of sequences `first` up to `first + batch`, and its gradients. */
static double pass(struct gpt *model, int first, int batch) {
    struct gpt_dropout dropout = {.seed = 3, .step = 5, .first_sequence = (uint64_t)first};
    gpt_forward(model, tokens + first * LENGTH, batch, LENGTH, &dropout);
    double loss = gpt_loss(model, targets + first * LENGTH);
    gpt_backward(model);
    return loss;
}

struct resident_model {
    struct gpt_parameters *list;
    struct gpt *model;
};

static struct resident_model resident_model(const struct gpt_shape *shape, struct resident *resident) {
    struct resident_model made = {.list = gpt_parameters_create(shape)};
    make_batch();
    resident_init(resident, made.list);
    resident_fill(resident, 1);
    for (size_t i = 0; i < made.list->float_count; i++) {
        resident->parameters[i] *= 5; /* far from linear */
    }
    struct gpt_memory memory = resident_memory(resident);
    made.model = gpt_create(shape, made.list, BATCH, &memory);
    return made;
}

static void resident_model_free(struct resident_model *made, struct resident *resident) {
    gpt_free(made->model);
    resident_done(resident);
    gpt_parameters_free(made->list);
}

/* ---- Parameters that are gathered for each use ---- */

struct gathered {
    const struct resident *from;
    float *gradients; /* what release() has handed over */
    float *held[8], *held_gradients[8];
    int held_count, held_most;
};

static struct gpt_range gather(void *context, int unit, enum gpt_pass pass) {
    struct gathered *g = context;
    size_t count = g->from->list->units[unit].float_count;
    assert_null(g->held[unit]);
    g->held[unit] = allocate(count, sizeof(float));
    memcpy(g->held[unit], g->from->parameters + g->from->begins[unit], count * sizeof(float));
    if (pass == GPT_BACKWARD) {
        g->held_gradients[unit] = allocate(count, sizeof(float));
        memset(g->held_gradients[unit], 0xff, count * sizeof(float)); /* no numbers */
    }
    g->held_count++;
    g->held_most = g->held_count > g->held_most ? g->held_count : g->held_most;
    return (struct gpt_range){g->held[unit], g->held_gradients[unit], false};
}

static void let_go(void *context, int unit, enum gpt_pass pass) {
    struct gathered *g = context;
    size_t count = g->from->list->units[unit].float_count, begin = g->from->begins[unit];
    assert_non_null(g->held[unit]);
    assert_memory_equal(g->held[unit], g->from->parameters + begin, count * sizeof(float));
    if (pass == GPT_BACKWARD) {
        memcpy(g->gradients + begin, g->held_gradients[unit], count * sizeof(float));
    }
    free(g->held_gradients[unit]);
    free(g->held[unit]);
    g->held_gradients[unit] = g->held[unit] = NULL;
    g->held_count--;
}

static void compare_gathered(struct gpt_shape shape, int held_most) {
    struct resident resident;
    struct resident_model made = resident_model(&shape, &resident);
    struct gathered gathered = {.from = &resident, .gradients = allocate(made.list->float_count, sizeof(float))};
    struct gpt_memory memory = {&gathered, gather, let_go};
    struct gpt *model = gpt_create(&shape, made.list, BATCH, &memory);
    double expected = pass(made.model, 0, BATCH), loss = pass(model, 0, BATCH);
    assert_true(loss == expected);
    assert_memory_equal(gathered.gradients, resident.gradients, made.list->float_count * sizeof(float));
    assert_int_equal(gathered.held_count, 0);
    assert_int_equal(gathered.held_most, held_most);
    gpt_free(model);
    free(gathered.gradients);
    resident_model_free(&made, &resident);
}

static void units_may_move_between_uses(void **state) {
    (void)state;
    struct gpt_shape shape = dropping(0.2F);
    compare_gathered(shape, 1);
    shape.checkpoint = true;
    compare_gathered(shape, 1);
    shape.tied = true;
    compare_gathered(shape, 2);
}

/* ---- Batches ---- */

/* Two processes with half of the sequences each, or one that adds up two halves: the same gradients, dropout included.
 */
static void halves_of_a_batch_add_up(void **state) {
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        struct gpt_shape shape = dropping(0.3F);
        shape.tied = tied != 0;
        struct resident resident;
        struct resident_model made = resident_model(&shape, &resident);
        size_t count = made.list->float_count;
        float *whole = allocate(count, sizeof *whole);
        double loss = pass(made.model, 0, BATCH);
        memcpy(whole, resident.gradients, count * sizeof *whole);
        double halves = pass(made.model, 0, BATCH / 2) / 2;
        resident.add = true;
        halves += pass(made.model, BATCH / 2, BATCH / 2) / 2;
        assert_true(fabs(loss - halves) < 1e-6);
        for (size_t i = 0; i < count; i++) {
            assert_true(fabsf(resident.gradients[i] / 2 - whole[i]) < 1e-6F);
        }
        free(whole);
        resident_model_free(&made, &resident);
    }
}

/* ---- Dropout ---- */

/* Along the gradient the loss rises by its norm: a central difference. */
static void gradients_fit_the_loss_with_dropout(void **state) {
    (void)state;
    struct gpt_shape shape = dropping(0.3F);
    struct resident resident;
    struct resident_model made = resident_model(&shape, &resident);
    size_t count = made.list->float_count;
    float *direction = allocate(count, sizeof *direction), *start = allocate(count, sizeof *start);
    (void)pass(made.model, 0, BATCH);
    memcpy(start, resident.parameters, count * sizeof *start);
    double squares = 0, losses[2], step = 1e-3;
    for (size_t i = 0; i < count; i++) {
        squares += (double)resident.gradients[i] * (double)resident.gradients[i];
    }
    double norm = sqrt(squares);
    for (size_t i = 0; i < count; i++) {
        direction[i] = (float)((double)resident.gradients[i] / norm);
    }
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < count; i++) {
            resident.parameters[i] = start[i] + (float)(side == 0 ? -step : step) * direction[i];
        }
        losses[side] = pass(made.model, 0, BATCH);
    }
    double slope = (losses[1] - losses[0]) / (2 * step);
    if (!(fabs(slope - norm) < 5e-3 * norm)) {
        fail_msg("the loss rises by %g along a gradient of norm %g", slope, norm);
    }
    free(direction);
    free(start);
    resident_model_free(&made, &resident);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(units_may_move_between_uses),
                                       cmocka_unit_test(halves_of_a_batch_add_up),
                                       cmocka_unit_test(gradients_fit_the_loss_with_dropout)};
    product_set_threads();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
