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
    .vocabulary = VOCABULARY, .context = LENGTH, .layers = 2, .heads = 2, .width = 12} /* gaps behind most tensors */;

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

/* Loss of sequences `first` up to `first + batch`, and its gradients times `weight`. */
static double weighted_pass(struct gpt *model, int first, int batch, float weight) {
    struct gpt_dropout dropout = {.seed = 3, .step = 5, .first_sequence = (uint64_t)first};
    gpt_forward(model, tokens + first * LENGTH, batch, LENGTH, &dropout);
    double loss = gpt_loss(model, targets + first * LENGTH);
    gpt_backward(model, weight);
    return loss;
}

static double pass(struct gpt *model, int first, int batch) {
    return weighted_pass(model, first, batch, 1);
}

struct resident_model {
    struct gpt_parameters *list;
    struct gpt *model;
};

static struct resident_model resident_model(const struct gpt_shape *shape, struct resident *resident) {
    struct resident_model made = {.list = gpt_parameters_create(shape)};
    make_batch();
    resident_init(resident, made.list);
    resident_own_gradients(resident);
    resident_fill(resident, &(struct first_values){NULL, 1});
    for (size_t i = 0; i < made.list->float_count; i++) {
        resident->parameters[0][i] *= 5; /* far from linear */
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
    float *held[8], *gradients[8];
    int uses[8]; /* in this backward pass */
    int held_count, held_most, complete_count;
};

static struct gpt_range gather(void *context, int unit, enum gpt_pass pass) {
    struct gathered *g = context;
    size_t count = g->from->list->units[unit].float_count;
    bool again = pass == GPT_BACKWARD && g->uses[unit]++ > 0;
    assert_null(g->held[unit]);
    g->held[unit] = allocate(count, sizeof(float));
    memcpy(g->held[unit], g->from->parameters[unit], count * sizeof(float));
    if (pass == GPT_BACKWARD) { /* where no number is, or what there was before, elsewhere */
        float *moved = allocate(count, sizeof(float));
        memset(moved, 0xff, count * sizeof(float));
        if (again) {
            memcpy(moved, g->gradients[unit], count * sizeof(float));
        }
        free(g->gradients[unit]);
        g->gradients[unit] = moved;
    }
    g->held_count++;
    g->held_most = g->held_count > g->held_most ? g->held_count : g->held_most;
    return (struct gpt_range){g->held[unit], g->gradients[unit], again};
}

static void let_go(void *context, int unit, enum gpt_pass pass) {
    struct gathered *g = context;
    size_t count = g->from->list->units[unit].float_count;
    assert_non_null(g->held[unit]);
    assert_memory_equal(g->held[unit], g->from->parameters[unit], count * sizeof(float));
    g->complete_count += pass == GPT_BACKWARD && g->uses[unit] == g->from->list->units[unit].uses;
    free(g->held[unit]);
    g->held[unit] = NULL;
    g->held_count--;
}

/* Tensors have the same gradients, and nobody has written between them. */
static void compare_gradients(const struct gathered *gathered, const struct resident *resident) {
    const struct gpt_parameters *list = resident->list;
    for (int unit = 0; unit < list->unit_count; unit++) {
        const float *found = gathered->gradients[unit], *expected = resident->gradients[unit];
        size_t done = 0;
        for (size_t i = 0; i < list->units[unit].tensor_count; i++) {
            const struct gpt_tensor *tensor = &list->units[unit].tensors[i];
            assert_true(tensor->offset % GPT_ALIGNMENT == 0);
            for (; done < tensor->offset; done++) {
                assert_true(isnan(found[done]) && expected[done] == 0);
            }
            assert_memory_equal(found + done, expected + done, tensor->count * sizeof(float));
            done += tensor->count;
        }
    }
}

static void compare_gathered(struct gpt_shape shape, int held_most) {
    struct resident resident;
    struct resident_model made = resident_model(&shape, &resident);
    struct gathered gathered = {.from = &resident};
    struct gpt_memory memory = {&gathered, gather, let_go};
    struct gpt *model = gpt_create(&shape, made.list, BATCH, &memory);
    for (int repeat = 0; repeat < 2; repeat++) {
        double expected = pass(made.model, 0, BATCH), loss = pass(model, 0, BATCH);
        assert_true(loss == expected);
        compare_gradients(&gathered, &resident);
        memset(gathered.uses, 0, sizeof gathered.uses);
    }
    assert_int_equal(gathered.complete_count, 2 * made.list->unit_count);
    assert_int_equal(gathered.held_count, 0);
    assert_int_equal(gathered.held_most, held_most);
    gpt_free(model);
    for (int unit = 0; unit < made.list->unit_count; unit++) {
        free(gathered.gradients[unit]);
    }
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

/* Processes with a part of the sequences each, or one that adds up parts: the same gradients, dropout included. */
static void parts_of_a_batch_add_up(void **state) {
    (void)state;
    for (int tied = 0; tied < 2; tied++) {
        struct gpt_shape shape = dropping(0.3F);
        shape.tied = tied != 0;
        struct resident resident;
        struct resident_model made = resident_model(&shape, &resident);
        size_t count = made.list->float_count;
        float *whole = allocate(count, sizeof *whole);
        double loss = pass(made.model, 0, BATCH);
        memcpy(whole, resident.gradients[0], count * sizeof *whole);
        double parts = weighted_pass(made.model, 0, 1, 0.25F) / 4;
        resident.add = true;
        parts += weighted_pass(made.model, 1, 3, 0.75F) * 3 / 4;
        assert_true(fabs(loss - parts) < 1e-6);
        float apart = 0, most = 0;
        for (size_t i = 0; i < count; i++) {
            apart = fmaxf(apart, fabsf(resident.gradients[0][i] - whole[i]));
            most = fmaxf(most, fabsf(whole[i]));
        }
        if (!(apart < 2e-6F * most)) {
            fail_msg("%g apart, of %g", (double)apart, (double)most);
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
    memcpy(start, resident.parameters[0], count * sizeof *start);
    double squares = 0, losses[2], step = 1e-3;
    for (size_t i = 0; i < count; i++) {
        squares += (double)resident.gradients[0][i] * (double)resident.gradients[0][i];
    }
    double norm = sqrt(squares);
    for (size_t i = 0; i < count; i++) {
        direction[i] = (float)((double)resident.gradients[0][i] / norm);
    }
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < count; i++) {
            resident.parameters[0][i] = start[i] + (float)(side == 0 ? -step : step) * direction[i];
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
                                       cmocka_unit_test(parts_of_a_batch_add_up),
                                       cmocka_unit_test(gradients_fit_the_loss_with_dropout)};
    product_set_threads(false);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
