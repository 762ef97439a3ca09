/* The model that the tests of ddp train. */
#include "train/reduction/ddp_test_support.h"

#include <math.h>
#include <string.h>

#include <muster/collective.h>

const size_t model_counts[PARAMETERS] = {7, 300, 1, 64, COUNT_MAX, 33};
static const char *const names[PARAMETERS] = {"conv.weight", "conv.bias", "norm",
                                              "fc1.weight",  "fc1.bias",  "fc2.weight"};

float gradient_of(uint32_t rank, uint32_t step, size_t parameter, size_t element) {
    uint32_t seed = ((rank * 131 + step) * 31 + (uint32_t)parameter) * 4099 + (uint32_t)element;
    seed = (seed ^ seed >> 15) * 0x2c1b3c6dU;
    seed = (seed ^ seed >> 12) * 0x297a2d39U;
    return (float)(int32_t)(seed ^ seed >> 15) * 0x1p-30F;
}

float average_of(uint32_t size, uint32_t present, uint32_t divisor, uint32_t step, size_t parameter, size_t element) {
    float sum = present & 1 ? gradient_of(0, step, parameter, element) : 0;
    for (uint32_t rank = 1; rank < size; rank++) {
        sum += present >> rank & 1 ? gradient_of(rank, step, parameter, element) : 0;
    }
    return sum / (float)divisor;
}

bool same_bits(const void *left, const void *right, size_t bytes) {
    return memcmp(left, right, bytes) == 0;
}

bool same_sums(const float *left, const float *right, size_t count) {
    bool is_same = true;
    if (!ranks_use_engine("mpi")) {
        return same_bits(left, right, count * sizeof *left);
    }
    for (size_t i = 0; i < count; i++) {
        is_same = is_same && fabsf(left[i] - right[i]) <= 1e-5F * (1 + fabsf(right[i]));
    }
    return is_same;
}

struct muster_ddp_options several_buckets(void) {
    struct muster_ddp_options options = MUSTER_DDP_OPTIONS_INIT;
    options.first_bucket_bytes = 500;
    options.bucket_bytes = 1000;
    return options;
}

static int model_register(struct model *model, struct muster_group *group, const struct muster_ddp_options *options,
                          bool with_own_gradients) {
    struct muster_ddp_parameter parameters[PARAMETERS];
    struct muster_ddp_buffer buffers[2] = {{"running", MUSTER_FLOAT32, STATISTICS, model->running},
                                           {"tracked", MUSTER_INT64, 1, &model->tracked}};
    for (size_t i = 0; i < PARAMETERS; i++) {
        float *own = with_own_gradients && i % 2 == 1 ? model->own[i] : NULL;
        parameters[i] = (struct muster_ddp_parameter){names[i], MUSTER_FLOAT32, model_counts[i], model->data[i], own};
    }
    return muster_ddp_create(group, parameters, PARAMETERS, buffers, 2, options, &model->ddp);
}

void model_make(struct rank *rank, struct muster_group *group, const struct muster_ddp_options *options,
                bool with_own_gradients, struct model *model) {
    for (size_t i = 0; i < PARAMETERS; i++) {
        for (size_t at = 0; at < model_counts[i]; at++) {
            model->data[i][at] = gradient_of(rank->rank + 50, 0, i, at);
        }
    }
    for (size_t i = 0; i < STATISTICS; i++) {
        model->running[i] = (float)(rank->rank + i);
    }
    model->tracked = rank->rank;
    rank_check_code(rank, model_register(model, group, options, with_own_gradients), MUSTER_OK);
}

void model_free(struct model *model, struct muster_group *group) {
    muster_ddp_free(model->ddp);
    muster_group_free(group);
}

int backward(struct model *model, uint32_t rank, uint32_t step, uint32_t turn) {
    int status = MUSTER_OK;
    for (size_t n = 0; status == MUSTER_OK && n < PARAMETERS; n++) {
        size_t i = turn == 0 ? PARAMETERS - 1 - n : (n * 5 + turn) % PARAMETERS;
        float *gradient = muster_ddp_gradient(model->ddp, i);
        for (size_t at = 0; at < model_counts[i]; at++) {
            gradient[at] = gradient_of(rank, step, i, at);
        }
        status = muster_ddp_ready(model->ddp, i);
    }
    return status;
}

int step_run(struct model *model, uint32_t rank, uint32_t step, uint32_t turn) {
    int status = muster_ddp_begin(model->ddp);
    if (status == MUSTER_OK) {
        status = backward(model, rank, step, turn);
    }
    int finished = muster_ddp_finish(model->ddp);
    return status != MUSTER_OK ? status : finished;
}

void model_descend(struct model *model) {
    for (size_t i = 0; i < PARAMETERS; i++) {
        const float *gradient = muster_ddp_gradient(model->ddp, i);
        for (size_t at = 0; at < model_counts[i]; at++) {
            model->data[i][at] -= 0.125F * gradient[at];
        }
    }
}

void check_averages(struct rank *rank, struct model *model, uint32_t present, uint32_t divisor, uint32_t step) {
    for (size_t i = 0; i < PARAMETERS; i++) {
        const float *gradient = muster_ddp_gradient(model->ddp, i);
        for (size_t at = 0; at < model_counts[i]; at++) {
            float expected = average_of(rank->size, present, divisor, step, i, at);
            rank_check(rank, same_sums(&gradient[at], &expected, 1));
        }
    }
}

void check_agreement(struct rank *rank, struct model *model, struct muster_group *group) {
    for (size_t i = 0; i < PARAMETERS; i++) {
        float zero[COUNT_MAX];
        memcpy(zero, model->data[i], sizeof zero);
        rank_check_code(rank, muster_broadcast(group, zero, model_counts[i], MUSTER_FLOAT32, 0, NULL), MUSTER_OK);
        rank_check(rank, same_bits(zero, model->data[i], model_counts[i] * sizeof(float)));
    }
}
