/* The passes over all units, and the memory of the activations. See gpt.h. */
#include <stdlib.h>
#include <string.h>

#include "block.h"
#include "fail.h"
#include "floats.h"
#include "gpt.h"
#include "layers.h"
#include "random.h"
#include "tensors.h"

struct gpt {
    struct gpt_shape shape;
    const struct gpt_parameters *parameters;
    struct gpt_memory memory;

    /* Of the last forward call. */
    int batch, length;
    const int32_t *tokens, *targets;
    bool drops;
    struct gpt_dropout dropout;

    float **streams;            /* [layers + 1] (n, c): what goes into each block, and into the final norm */
    struct block_state *states; /* of each block; with checkpoints one for all */
    struct block_scratch scratch;
    struct layer_norm norm;
    float *normed;   /* (n, c) */
    float *logits;   /* (n, vocabulary) */
    float *log_sums; /* (n) */
    float *d;        /* (n, c): gradient of the residual stream */
};

static int state_count(const struct gpt *model) {
    return model->shape.checkpoint ? 1 : model->shape.layers;
}

struct gpt *gpt_create(const struct gpt_shape *shape, const struct gpt_parameters *parameters, int batch,
                       const struct gpt_memory *memory) {
    struct gpt *model = allocate(1, sizeof *model);
    size_t rows = (size_t)batch * (size_t)shape->context, narrow = rows * (size_t)shape->width;
    model->shape = *shape;
    model->parameters = parameters;
    model->memory = *memory;
    model->streams = allocate((size_t)shape->layers + 1, sizeof *model->streams);
    for (int i = 0; i <= shape->layers; i++) {
        model->streams[i] = floats_allocate(narrow);
    }
    model->states = allocate((size_t)state_count(model), sizeof *model->states);
    for (int i = 0; i < state_count(model); i++) {
        block_state_init(&model->states[i], shape, batch);
    }
    block_scratch_init(&model->scratch, shape, batch);
    model->norm = (struct layer_norm){floats_allocate(rows), floats_allocate(rows)};
    model->normed = floats_allocate(narrow);
    model->logits = floats_allocate(rows * (size_t)shape->vocabulary);
    model->log_sums = floats_allocate(rows);
    model->d = floats_allocate(narrow);
    return model;
}

void gpt_free(struct gpt *model) {
    if (model == NULL) {
        return;
    }
    for (int i = 0; i <= model->shape.layers; i++) {
        free(model->streams[i]);
    }
    for (int i = 0; i < state_count(model); i++) {
        block_state_done(&model->states[i]);
    }
    block_scratch_done(&model->scratch);
    free(model->streams);
    free(model->states);
    free(model->norm.mean);
    free(model->norm.inverse_deviation);
    free(model->normed);
    free(model->logits);
    free(model->log_sums);
    free(model->d);
    free(model);
}

/* ---- What both passes need ---- */

static struct gpt_range acquire(struct gpt *model, int unit, enum gpt_pass pass) {
    return model->memory.acquire(model->memory.context, unit, pass);
}

static void release(struct gpt *model, int unit, enum gpt_pass pass) {
    model->memory.release(model->memory.context, unit, pass);
}

static int final_unit(const struct gpt *model) {
    return model->parameters->unit_count - 1;
}

static int row_count(const struct gpt *model) {
    return model->batch * model->length;
}

/* Of tensor number `tensor` in its unit. */
static size_t offset(const struct gpt *model, int unit, int tensor) {
    return model->parameters->units[unit].tensors[tensor].offset;
}

static uint64_t dropout_key(const struct gpt *model, int unit) {
    uint64_t step = random_mix(random_mix(model->dropout.seed, RANDOM_DROPOUT), model->dropout.step);
    return random_mix(step, (uint64_t)unit);
}

static struct block block_of(const struct gpt *model, int layer) {
    int unit = GPT_FIRST_BLOCK + layer;
    return (struct block){.shape = &model->shape,
                          .unit = &model->parameters->units[unit],
                          .batch = model->batch,
                          .length = model->length,
                          .drops = model->drops,
                          .key = dropout_key(model, unit),
                          .first_sequence = model->dropout.first_sequence,
                          .scratch = &model->scratch};
}

static struct block_state *state_of(struct gpt *model, int layer) {
    return &model->states[model->shape.checkpoint ? 0 : layer];
}

static struct embedding embedding_of(const struct gpt *model) {
    const struct gpt_shape *shape = &model->shape;
    return (struct embedding){model->batch, model->length, shape->width, shape->vocabulary, shape->context};
}

/* Dropout after the embedding, in both passes. */
static void drop_embedding(const struct gpt *model, float *x) {
    struct dropout dropout = {dropout_key(model, GPT_EMBEDDING), model->drops ? model->shape.embedding_dropout : 0};
    uint64_t first_row = model->dropout.first_sequence * (uint64_t)model->length;
    dropout_rows(&dropout, first_row, row_count(model), model->shape.width, x, x);
}

/* ---- Forward ---- */

static void head_forward(struct gpt *model) {
    int unit = final_unit(model), rows = row_count(model), width = model->shape.width;
    struct gpt_range final = acquire(model, unit, GPT_FORWARD);
    const float *p = final.parameters, *weight = NULL;
    if (model->shape.tied) {
        weight = acquire(model, GPT_EMBEDDING, GPT_FORWARD).parameters + offset(model, GPT_EMBEDDING, EMBEDDING_TOKEN);
    } else {
        weight = p + offset(model, unit, FINAL_HEAD_WEIGHT);
    }
    layer_norm_forward(&model->norm, rows, width, model->streams[model->shape.layers],
                       p + offset(model, unit, FINAL_NORM_WEIGHT), p + offset(model, unit, FINAL_NORM_BIAS),
                       model->normed);
    linear_forward((struct linear){rows, width, model->shape.vocabulary}, model->normed, weight, NULL, model->logits);
    if (model->shape.tied) {
        release(model, GPT_EMBEDDING, GPT_FORWARD);
    }
    release(model, unit, GPT_FORWARD);
}

void gpt_forward(struct gpt *model, const int32_t *tokens, int batch, int length, const struct gpt_dropout *dropout) {
    model->batch = batch;
    model->length = length;
    model->tokens = tokens;
    model->drops = dropout != NULL;
    model->dropout = dropout != NULL ? *dropout : (struct gpt_dropout){0, 0, 0};

    struct embedding embedding = embedding_of(model);
    const float *p = acquire(model, GPT_EMBEDDING, GPT_FORWARD).parameters;
    embedding_forward(&embedding, tokens, p + offset(model, GPT_EMBEDDING, EMBEDDING_TOKEN),
                      p + offset(model, GPT_EMBEDDING, EMBEDDING_POSITION), model->streams[0]);
    release(model, GPT_EMBEDDING, GPT_FORWARD);
    drop_embedding(model, model->streams[0]);

    for (int layer = 0; layer < model->shape.layers; layer++) {
        struct block block = block_of(model, layer);
        struct gpt_range range = acquire(model, GPT_FIRST_BLOCK + layer, GPT_FORWARD);
        block_forward(&block, range.parameters, model->streams[layer], state_of(model, layer),
                      model->streams[layer + 1]);
        release(model, GPT_FIRST_BLOCK + layer, GPT_FORWARD);
    }
    head_forward(model);
}

const float *gpt_logits(const struct gpt *model) {
    return model->logits;
}

double gpt_loss(struct gpt *model, const int32_t *targets) {
    model->targets = targets;
    return loss_forward(row_count(model), model->shape.vocabulary, model->logits, targets, model->log_sums);
}

/* ---- Backward ---- */

/* What of the embedding a tied head has no part in: to be added to later. */
static void clear_positions(struct gpt *model, const struct gpt_range *embedding) {
    const struct gpt_tensor *positions = &model->parameters->units[GPT_EMBEDDING].tensors[EMBEDDING_POSITION];
    if (!embedding->add) {
        memset(embedding->gradients + positions->offset, 0, positions->count * sizeof(float));
    }
}

/* d becomes the gradient of the last block's output. weight: of the loss. */
static void head_backward(struct gpt *model, float weight) {
    int unit = final_unit(model), rows = row_count(model), width = model->shape.width;
    bool tied = model->shape.tied;
    struct linear head = {rows, width, model->shape.vocabulary};
    struct gpt_range range = acquire(model, unit, GPT_BACKWARD);
    struct gpt_range holder = tied ? acquire(model, GPT_EMBEDDING, GPT_BACKWARD) : range; /* of the head's weight */
    size_t at = tied ? offset(model, GPT_EMBEDDING, EMBEDDING_TOKEN) : offset(model, unit, FINAL_HEAD_WEIGHT);
    float *dnormed = model->scratch.narrow;
    struct layer_norm_gradients norm = {range.gradients + offset(model, unit, FINAL_NORM_WEIGHT),
                                        range.gradients + offset(model, unit, FINAL_NORM_BIAS), range.add};
    loss_backward(rows, model->shape.vocabulary, weight, model->logits, model->targets, model->log_sums);
    linear_backward_weight(head, model->normed, model->logits, holder.gradients + at, NULL, holder.add);
    linear_backward_input(head, model->logits, holder.parameters + at, dnormed);
    if (tied) {
        clear_positions(model, &holder);
        release(model, GPT_EMBEDDING, GPT_BACKWARD);
    }
    memset(model->d, 0, (size_t)rows * (size_t)width * sizeof *model->d);
    layer_norm_backward(&model->norm, rows, width, model->streams[model->shape.layers],
                        range.parameters + offset(model, unit, FINAL_NORM_WEIGHT), dnormed, model->d, &norm);
    release(model, unit, GPT_BACKWARD);
}

static void block_backward_of(struct gpt *model, int layer) {
    struct block block = block_of(model, layer);
    struct gpt_range range = acquire(model, GPT_FIRST_BLOCK + layer, GPT_BACKWARD);
    if (model->shape.checkpoint) {
        block_forward(&block, range.parameters, model->streams[layer], state_of(model, layer), NULL);
    }
    block_backward(&block, &range, model->streams[layer], state_of(model, layer), model->d);
    release(model, GPT_FIRST_BLOCK + layer, GPT_BACKWARD);
}

static void embedding_backward_of(struct gpt *model) {
    const struct gpt_unit *unit = &model->parameters->units[GPT_EMBEDDING];
    struct embedding embedding = embedding_of(model);
    struct gpt_range range = acquire(model, GPT_EMBEDDING, GPT_BACKWARD);
    for (int i = 0; i < EMBEDDING_TENSORS && !range.add; i++) {
        memset(range.gradients + unit->tensors[i].offset, 0, unit->tensors[i].count * sizeof(float));
    }
    drop_embedding(model, model->d);
    embedding_backward(&embedding, model->tokens, model->d, range.gradients + unit->tensors[EMBEDDING_TOKEN].offset,
                       range.gradients + unit->tensors[EMBEDDING_POSITION].offset);
    release(model, GPT_EMBEDDING, GPT_BACKWARD);
}

void gpt_backward(struct gpt *model, float weight) {
    head_backward(model, weight);
    for (int layer = model->shape.layers - 1; layer >= 0; layer--) {
        block_backward_of(model, layer);
    }
    embedding_backward_of(model);
}
