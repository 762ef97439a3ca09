/* The list of the model's parameters: names, shapes, places in their units, first values. See gpt.h. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "fail.h"
#include "gpt.h"
#include "random.h"
#include "tensors.h"

static const float DEVIATION = 0.02F; /* of first weights (Radford et al. 2018) */

enum first_values { ZEROS, ONES, NORMAL, NORMAL_RESIDUAL };

/* Projections into the residual stream start smaller, because 2 * layers of them are added up (Radford et al. 2019). */
static float deviation_of(enum first_values values, int layers) {
    switch (values) {
    case NORMAL:
        return DEVIATION;
    case NORMAL_RESIDUAL:
        return DEVIATION / sqrtf((float)(2 * layers));
    default:
        return 0;
    }
}

/* ---- Building the list ---- */

struct builder {
    const struct gpt_shape *shape;
    struct gpt_parameters *list;
    struct gpt_unit *unit; /* that is being filled */
};

static void begin_unit(struct builder *builder) {
    struct gpt_parameters *list = builder->list;
    builder->unit = &list->units[list->unit_count++];
    builder->unit->uses = 1;
    builder->unit->tensors = list->tensors + list->tensor_count;
}

static struct gpt_tensor *add_tensor(struct builder *builder, int rows, int columns, enum first_values values) {
    struct gpt_parameters *list = builder->list;
    struct gpt_tensor *tensor = &list->tensors[list->tensor_count++];
    tensor->rows = rows;
    tensor->columns = columns;
    tensor->count = (size_t)rows * (size_t)(columns == 0 ? 1 : columns);
    tensor->offset = builder->unit->float_count;
    tensor->deviation = deviation_of(values, builder->shape->layers);
    tensor->constant = values == ONES ? 1 : 0;
    tensor->decays = columns != 0;
    builder->unit->tensor_count++;
    size_t room = (tensor->count + GPT_ALIGNMENT - 1) / GPT_ALIGNMENT * GPT_ALIGNMENT;
    builder->unit->float_count += room;
    list->float_count += room;
    list->parameter_count += tensor->count;
    return tensor;
}

static void name_tensor(struct gpt_tensor *tensor, const char *name) {
    (void)snprintf(tensor->name, sizeof tensor->name, "%s", name);
}

static void add_embedding(struct builder *builder) {
    const struct gpt_shape *shape = builder->shape;
    const struct {
        const char *name;
        int rows;
    } tables[EMBEDDING_TENSORS] = {{"transformer.wte.weight", shape->vocabulary},
                                   {"transformer.wpe.weight", shape->context}};
    begin_unit(builder);
    builder->unit->uses = shape->tied ? 2 : 1;
    for (int i = 0; i < EMBEDDING_TENSORS; i++) {
        struct gpt_tensor *tensor = add_tensor(builder, tables[i].rows, shape->width, NORMAL);
        tensor->decays = false; /* as in minGPT, though they are matrices */
        name_tensor(tensor, tables[i].name);
    }
}

static void add_block(struct builder *builder, int layer) {
    static const struct {
        const char *name;
        int rows, columns;
        enum first_values values;
    } table[BLOCK_TENSORS] = {
#define X(name, text, rows, columns, values) {text, rows, columns, values},
        BLOCK_TENSOR_TABLE(X)
#undef X
    };
    int width = builder->shape->width;
    begin_unit(builder);
    for (int i = 0; i < BLOCK_TENSORS; i++) {
        struct gpt_tensor *tensor =
            add_tensor(builder, table[i].rows * width, table[i].columns * width, table[i].values);
        (void)snprintf(tensor->name, sizeof tensor->name, "transformer.h.%d.%s", layer, table[i].name);
    }
}

static void add_final(struct builder *builder) {
    const struct gpt_shape *shape = builder->shape;
    begin_unit(builder);
    name_tensor(add_tensor(builder, shape->width, 0, ONES), "transformer.ln_f.weight");
    name_tensor(add_tensor(builder, shape->width, 0, ZEROS), "transformer.ln_f.bias");
    if (!shape->tied) {
        name_tensor(add_tensor(builder, shape->vocabulary, shape->width, NORMAL), "lm_head.weight");
    }
}

struct gpt_parameters *gpt_parameters_create(const struct gpt_shape *shape) {
    size_t layers = (size_t)shape->layers;
    struct gpt_parameters *list = allocate(1, sizeof *list);
    list->units = allocate(layers + 2, sizeof *list->units);
    list->tensors = allocate(EMBEDDING_TENSORS + layers * BLOCK_TENSORS + FINAL_TENSORS, sizeof *list->tensors);
    struct builder builder = {.shape = shape, .list = list};
    add_embedding(&builder);
    for (int layer = 0; layer < shape->layers; layer++) {
        add_block(&builder, layer);
    }
    add_final(&builder);
    return list;
}

void gpt_parameters_free(struct gpt_parameters *parameters) {
    if (parameters != NULL) {
        free(parameters->units);
        free(parameters->tensors);
        free(parameters);
    }
}

/* ---- First values ---- */

/* Box and Muller 1958. */
static float draw_normal(uint64_t key, uint64_t i) {
    double radius = sqrt(-2 * log(random_unit(random_mix(key, 2 * i))));
    return (float)(radius * cos(2 * M_PI * random_unit(random_mix(key, 2 * i + 1))));
}

void gpt_parameters_fill(const struct gpt_parameters *parameters, int unit, uint64_t seed, float *values) {
    const struct gpt_unit *filled = &parameters->units[unit];
    for (size_t i = 0; i < filled->tensor_count; i++) {
        const struct gpt_tensor *tensor = &filled->tensors[i];
        uint64_t number = (uint64_t)(tensor - parameters->tensors);
        uint64_t key = random_mix(random_mix(seed, RANDOM_WEIGHTS), number);
        for (size_t j = 0; j < tensor->count; j++) {
            float drawn = tensor->deviation == 0 ? 0 : tensor->deviation * draw_normal(key, j);
            values[tensor->offset + j] = tensor->constant + drawn;
        }
    }
}
