/* See block.h. */
#include "block.h"

#include <stdlib.h>

#include "floats.h"
#include "random.h"
#include "tensors.h"

/* ---- Memory ---- */

void block_state_init(struct block_state *state, const struct gpt_shape *shape, int batch) {
    size_t length = (size_t)shape->context, rows = (size_t)batch * length, narrow = rows * (size_t)shape->width;
    state->norm1 = (struct layer_norm){floats_allocate(rows), floats_allocate(rows)};
    state->norm2 = (struct layer_norm){floats_allocate(rows), floats_allocate(rows)};
    state->normed1 = floats_allocate(narrow);
    state->qkv = floats_allocate(3 * narrow);
    state->probabilities = floats_allocate(rows * (size_t)shape->heads * length);
    state->attended = floats_allocate(narrow);
    state->middle = floats_allocate(narrow);
    state->normed2 = floats_allocate(narrow);
    state->active = floats_allocate(4 * narrow);
    state->derivative = floats_allocate(4 * narrow);
}

void block_state_done(struct block_state *state) {
    float *owned[] = {state->norm1.mean,    state->norm1.inverse_deviation,
                      state->norm2.mean,    state->norm2.inverse_deviation,
                      state->normed1,       state->qkv,
                      state->probabilities, state->attended,
                      state->middle,        state->normed2,
                      state->active,        state->derivative};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) {
        free(owned[i]);
    }
}

void block_scratch_init(struct block_scratch *scratch, const struct gpt_shape *shape, int batch) {
    size_t length = (size_t)shape->context, narrow = (size_t)batch * length * (size_t)shape->width;
    scratch->narrow = floats_allocate(narrow);
    scratch->dropped = floats_allocate(narrow);
    scratch->wide = floats_allocate(4 * narrow);
    scratch->attention = floats_allocate(2 * ATTENTION_ROWS * length);
}

void block_scratch_done(struct block_scratch *scratch) {
    free(scratch->narrow);
    free(scratch->dropped);
    free(scratch->wide);
    free(scratch->attention);
}

/* ---- What both passes need ---- */

static int rows_of(const struct block *block) {
    return block->batch * block->length;
}

static struct linear linear(const struct block *block, int in, int out) {
    return (struct linear){rows_of(block), in * block->shape->width, out * block->shape->width};
}

/* The three places where values are dropped. */
enum dropout_place { IN_ATTENTION, AFTER_ATTENTION, AFTER_MLP };

static struct dropout dropout_at(const struct block *block, enum dropout_place place) {
    float rate = place == IN_ATTENTION ? block->shape->attention_dropout : block->shape->residual_dropout;
    return (struct dropout){random_mix(block->key, place), block->drops ? rate : 0};
}

static uint64_t first_row(const struct block *block) {
    return block->first_sequence * (uint64_t)block->length;
}

static struct attention attention_of(const struct block *block) {
    return (struct attention){.batch = block->batch,
                              .length = block->length,
                              .heads = block->shape->heads,
                              .width = block->shape->width,
                              .dropout = dropout_at(block, IN_ATTENTION),
                              .first_sequence = block->first_sequence,
                              .scratch = block->scratch->attention};
}

/* ---- Forward ---- */

/* y = x + dropout(in w^T + bias). */
static void residual_forward(const struct block *block, struct linear shape, const float *in, const float *weight,
                             const float *bias, enum dropout_place place, const float *x, float *y) {
    struct dropout dropout = dropout_at(block, place);
    if (dropout.rate == 0) { /* one pass over memory less */
        linear_add(shape, in, weight, bias, x, y);
    } else {
        float *projected = block->scratch->narrow;
        linear_forward(shape, in, weight, bias, projected);
        dropout_add(&dropout, first_row(block), shape.rows, shape.out, x, projected, y);
    }
}

void block_forward(const struct block *block, const float *parameters, const float *x, struct block_state *state,
                   float *y) {
    int rows = rows_of(block), width = block->shape->width;
    const float *p[BLOCK_TENSORS];
    for (int i = 0; i < BLOCK_TENSORS; i++) {
        p[i] = parameters + block->unit->tensors[i].offset;
    }
    struct attention attention = attention_of(block);

    layer_norm_forward(&state->norm1, rows, width, x, p[BLOCK_NORM1_WEIGHT], p[BLOCK_NORM1_BIAS], state->normed1);
    linear_forward(linear(block, 1, 3), state->normed1, p[BLOCK_QKV_WEIGHT], p[BLOCK_QKV_BIAS], state->qkv);
    attention_forward(&attention, state->qkv, state->probabilities, state->attended);
    residual_forward(block, linear(block, 1, 1), state->attended, p[BLOCK_HEADS_WEIGHT], p[BLOCK_HEADS_BIAS],
                     AFTER_ATTENTION, x, state->middle);

    layer_norm_forward(&state->norm2, rows, width, state->middle, p[BLOCK_NORM2_WEIGHT], p[BLOCK_NORM2_BIAS],
                       state->normed2);
    linear_forward(linear(block, 1, 4), state->normed2, p[BLOCK_UP_WEIGHT], NULL, state->active);
    gelu_forward(rows, 4 * width, p[BLOCK_UP_BIAS], state->active, state->derivative);
    if (y != NULL) {
        residual_forward(block, linear(block, 4, 1), state->active, p[BLOCK_DOWN_WEIGHT], p[BLOCK_DOWN_BIAS], AFTER_MLP,
                         state->middle, y);
    }
}

/* ---- Backward ---- */

/* Where each tensor and its gradient are, by enum block_tensor. */
struct places {
    const float *parameters[BLOCK_TENSORS];
    float *gradients[BLOCK_TENSORS];
    bool add;
};

static struct places places_of(const struct gpt_unit *unit, const struct gpt_range *range) {
    struct places places = {.add = range->add};
    for (int i = 0; i < BLOCK_TENSORS; i++) {
        places.parameters[i] = range->parameters + unit->tensors[i].offset;
        places.gradients[i] = range->gradients + unit->tensors[i].offset;
    }
    return places;
}

/* The gradient of what was dropped and added, from that of the sum. */
static const float *residual_backward(const struct block *block, enum dropout_place place, const float *d) {
    struct dropout dropout = dropout_at(block, place);
    if (dropout.rate == 0) {
        return d;
    }
    dropout_rows(&dropout, first_row(block), rows_of(block), block->shape->width, d, block->scratch->dropped);
    return block->scratch->dropped;
}

static void mlp_backward(const struct block *block, const struct places *places, const struct block_state *state,
                         float *d) {
    float *const *g = places->gradients;
    const float *const *p = places->parameters;
    const struct block_scratch *scratch = block->scratch;
    struct linear up = linear(block, 1, 4), down = linear(block, 4, 1);
    struct layer_norm_gradients norm = {g[BLOCK_NORM2_WEIGHT], g[BLOCK_NORM2_BIAS], places->add};

    const float *dy = residual_backward(block, AFTER_MLP, d);
    linear_backward_weight(down, state->active, dy, g[BLOCK_DOWN_WEIGHT], g[BLOCK_DOWN_BIAS], places->add);
    linear_backward_input(down, dy, p[BLOCK_DOWN_WEIGHT], scratch->wide);
    gelu_backward((size_t)up.rows * (size_t)up.out, state->derivative, scratch->wide);
    linear_backward_weight(up, state->normed2, scratch->wide, g[BLOCK_UP_WEIGHT], g[BLOCK_UP_BIAS], places->add);
    linear_backward_input(up, scratch->wide, p[BLOCK_UP_WEIGHT], scratch->narrow);
    layer_norm_backward(&state->norm2, up.rows, up.in, state->middle, p[BLOCK_NORM2_WEIGHT], scratch->narrow, d, &norm);
}

static void attention_part_backward(const struct block *block, const struct places *places, const float *x,
                                    const struct block_state *state, float *d) {
    float *const *g = places->gradients;
    const float *const *p = places->parameters;
    const struct block_scratch *scratch = block->scratch;
    struct linear qkv = linear(block, 1, 3), heads = linear(block, 1, 1);
    struct layer_norm_gradients norm = {g[BLOCK_NORM1_WEIGHT], g[BLOCK_NORM1_BIAS], places->add};
    struct attention attention = attention_of(block);

    const float *dy = residual_backward(block, AFTER_ATTENTION, d);
    linear_backward_weight(heads, state->attended, dy, g[BLOCK_HEADS_WEIGHT], g[BLOCK_HEADS_BIAS], places->add);
    linear_backward_input(heads, dy, p[BLOCK_HEADS_WEIGHT], scratch->narrow);
    attention_backward(&attention, state->qkv, state->probabilities, scratch->narrow, scratch->wide);
    linear_backward_weight(qkv, state->normed1, scratch->wide, g[BLOCK_QKV_WEIGHT], g[BLOCK_QKV_BIAS], places->add);
    linear_backward_input(qkv, scratch->wide, p[BLOCK_QKV_WEIGHT], scratch->narrow);
    layer_norm_backward(&state->norm1, qkv.rows, qkv.in, x, p[BLOCK_NORM1_WEIGHT], scratch->narrow, d, &norm);
}

void block_backward(const struct block *block, const struct gpt_range *range, const float *x,
                    const struct block_state *state, float *d) {
    struct places places = places_of(block->unit, range);
    mlp_backward(block, &places, state, d);
    attention_part_backward(block, &places, x, state, d);
}
