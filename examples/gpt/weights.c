/* See weights.h. The library loads a tensor whose type and shape are given. So each tensor is asked for in all the
 * forms that it may have; each question reads the file's header again, which is short. */
#include "weights.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/snapshot.h>

#include "fail.h"
#include "tensors.h"

static const char PREFIX[] = "transformer.";
enum { PREFIX_LENGTH = sizeof PREFIX - 1 };

/* ---- Types ---- */

static float from_float16(uint16_t bits) {
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    float size = exponent == 0 ? ldexpf((float)fraction, -24) : ldexpf((float)(fraction + 1024), exponent - 25);
    if (exponent == 31) {
        size = fraction == 0 ? INFINITY : NAN;
    }
    return bits >> 15 != 0 ? -size : size;
}

static float from_bfloat16(uint16_t bits) {
    uint32_t wide = (uint32_t)bits << 16;
    float value = 0;
    memcpy(&value, &wide, sizeof value);
    return value;
}

/* ---- One tensor ---- */

/* As a file may have it; columns 0: a vector. */
struct form {
    const char *name;
    int rows, columns;
};

/* False: there is no tensor of this name, type and shape, and muster_detail() says what there is. */
static bool load(const char *path, const struct form *form, enum muster_type type, void *data) {
    struct muster_tensor tensor = {.name = form->name,
                                   .type = type,
                                   .dim_count = form->columns == 0 ? 1 : 2,
                                   .shape = {(uint64_t)form->rows, (uint64_t)form->columns},
                                   .data = data};
    int status = muster_safetensors_load(path, &tensor, 1);
    if (status != MUSTER_EINVAL) {
        check(status, "read the weights");
    }
    return status == MUSTER_OK;
}

/* The same of any type, as float32. */
static bool load_any(const char *path, const struct form *form, size_t count, float *values) {
    if (load(path, form, MUSTER_FLOAT32, values)) {
        return true;
    }
    uint16_t *narrow = allocate(count, sizeof *narrow);
    bool is_half = load(path, form, MUSTER_FLOAT16, narrow);
    bool is_there = is_half || load(path, form, MUSTER_BFLOAT16, narrow);
    for (size_t i = 0; is_there && i < count; i++) {
        values[i] = is_half ? from_float16(narrow[i]) : from_bfloat16(narrow[i]);
    }
    free(narrow);
    return is_there;
}

static bool load_transposed(const char *path, const struct form *form, size_t count, float *values) {
    size_t rows = (size_t)form->rows, columns = (size_t)form->columns;
    struct form other = {form->name, form->columns, form->rows};
    float *turned = allocate(count, sizeof *turned);
    bool is_there = load_any(path, &other, count, turned);
    for (size_t i = 0; is_there && i < rows; i++) {
        for (size_t j = 0; j < columns; j++) {
            values[i * columns + j] = turned[j * rows + i];
        }
    }
    free(turned);
    return is_there;
}

/* With or without the prefix. */
static bool load_named(const char *path, const struct gpt_tensor *tensor, bool transposed, float *values) {
    bool has_prefix = strncmp(tensor->name, PREFIX, PREFIX_LENGTH) == 0;
    for (int skipped = 0; skipped <= (has_prefix ? PREFIX_LENGTH : 0); skipped += PREFIX_LENGTH) {
        struct form form = {tensor->name + skipped, tensor->rows, tensor->columns};
        if (transposed ? load_transposed(path, &form, tensor->count, values)
                       : load_any(path, &form, tensor->count, values)) {
            return true;
        }
    }
    return false;
}

/* Says what the file has instead, under both names. */
static _Noreturn void complain(const char *path, const struct gpt_tensor *tensor, float *values) {
    struct form form = {tensor->name, tensor->rows, tensor->columns};
    char first[512] = "";
    (void)load(path, &form, MUSTER_FLOAT32, values);
    (void)snprintf(first, sizeof first, "%s", muster_detail());
    if (strncmp(tensor->name, PREFIX, PREFIX_LENGTH) != 0) { /* the head */
        fail("the weights in %s do not fit: %s; is its head the token embedding (--tied)?", path, first);
    }
    form.name += PREFIX_LENGTH;
    (void)load(path, &form, MUSTER_FLOAT32, values);
    fail("the weights in %s do not fit: %s; %s", path, first, muster_detail());
}

/* ---- A unit ---- */

/* Whether the block's linear layers are (in, out) in the file. Only a matrix that is not square tells. */
static bool is_transposed(const char *path, const struct gpt_unit *block) {
    const struct gpt_tensor *tensor = &block->tensors[BLOCK_QKV_WEIGHT];
    float *values = allocate(tensor->count, sizeof *values);
    bool is_turned = load_named(path, tensor, true, values);
    free(values);
    return is_turned;
}

/* A tied model cannot take weights whose head is another one. */
static void check_head(const char *path, const struct gpt_tensor *embedding, const float *values) {
    struct form head = {"lm_head.weight", embedding->rows, embedding->columns};
    float *other = allocate(embedding->count, sizeof *other);
    if (load_any(path, &head, embedding->count, other) &&
        memcmp(other, values, embedding->count * sizeof *other) != 0) {
        fail("the weights in %s do not fit: lm_head.weight is not transformer.wte.weight, as --tied says", path);
    }
    free(other);
}

void weights_fill(const char *path, const struct gpt_parameters *parameters, int unit, float *values) {
    const struct gpt_unit *filled = &parameters->units[unit], *last = &parameters->units[parameters->unit_count - 1];
    bool is_block = unit >= GPT_FIRST_BLOCK && filled != last;
    bool transposed = is_block && is_transposed(path, filled);
    for (size_t i = 0; i < filled->tensor_count; i++) {
        const struct gpt_tensor *tensor = &filled->tensors[i];
        if (!load_named(path, tensor, transposed && tensor->columns != 0, values + tensor->offset)) {
            complain(path, tensor, values + tensor->offset);
        }
    }
    if (unit == GPT_EMBEDDING && last->tensor_count < FINAL_TENSORS) {
        check_head(path, &filled->tensors[EMBEDDING_TOKEN], values + filled->tensors[EMBEDDING_TOKEN].offset);
    }
}

void first_values_fill(const struct first_values *first, const struct gpt_parameters *parameters, int unit,
                       float *values) {
    if (first->path != NULL) {
        weights_fill(first->path, parameters, unit, values);
    } else {
        gpt_parameters_fill(parameters, unit, first->seed, values);
    }
}
