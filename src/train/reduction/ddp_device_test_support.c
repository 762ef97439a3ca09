/* A model in memory of a GPU; see ddp_device_test_support.h. */
#include "train/reduction/ddp_device_test_support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "comm/device/cuda_double_test_support.h"
#include "comm/device/device.h"
#include "comm/nccl/nccl_double_test_support.h"

static const char *const names[PARAMETERS] = {"conv.weight", "conv.bias", "norm",
                                              "fc1.weight",  "fc1.bias",  "fc2.weight"};

static size_t bytes_of(size_t parameter) {
    return model_counts[parameter] * sizeof(float);
}

/* ---- life ---- */

void device_model_begin(struct rank *rank, bool with_own_gradients, struct device_model *out) {
    *out = (struct device_model){.ddp = NULL};
    device_rank_start(rank, &out->d);
    rank_check_code(rank, muster_group_set_stream(out->d.group, out->d.stream), MUSTER_OK);
    for (size_t i = 0; i < PARAMETERS; i++) {
        for (size_t at = 0; at < model_counts[i]; at++) {
            out->host[i][at] = gradient_of(rank->rank + 50, 0, i, at);
        }
        out->data[i] = device_rank_allocate(&out->d, bytes_of(i), 1);
        device_rank_put(&out->d, out->data[i], out->host[i], bytes_of(i));
        out->own[i] = with_own_gradients && i % 2 == 1 ? device_rank_allocate(&out->d, bytes_of(i), 1) : NULL;
    }
    float running[STATISTICS];
    int64_t tracked = rank->rank;
    for (size_t i = 0; i < STATISTICS; i++) {
        running[i] = (float)(rank->rank + i);
    }
    out->running = device_rank_allocate(&out->d, sizeof running, 1);
    out->tracked = device_rank_allocate(&out->d, sizeof tracked, 1);
    device_rank_put(&out->d, out->running, running, sizeof running);
    device_rank_put(&out->d, out->tracked, &tracked, sizeof tracked);
}

int device_model_register(struct device_model *model, const struct muster_ddp_options *options) {
    struct muster_ddp_parameter parameters[PARAMETERS];
    const struct muster_ddp_buffer buffers[2] = {{"running", MUSTER_FLOAT32, STATISTICS, model->running},
                                                 {"tracked", MUSTER_INT64, 1, model->tracked}};
    for (size_t i = 0; i < PARAMETERS; i++) {
        parameters[i] =
            (struct muster_ddp_parameter){names[i], MUSTER_FLOAT32, model_counts[i], model->data[i], model->own[i]};
    }
    return muster_ddp_create(model->d.group, parameters, PARAMETERS, buffers, 2, options, &model->ddp);
}

void device_model_make(struct rank *rank, const struct muster_ddp_options *options, bool with_own_gradients,
                       struct device_model *out) {
    device_model_begin(rank, with_own_gradients, out);
    rank_check_code(rank, device_model_register(out, options), MUSTER_OK);
}

void device_model_end(struct device_model *model) {
    muster_ddp_free(model->ddp);
    for (size_t i = 0; i < PARAMETERS; i++) {
        device_rank_release(&model->d, model->data[i], 1);
        if (model->own[i]) {
            device_rank_release(&model->d, model->own[i], 1);
        }
    }
    device_rank_release(&model->d, model->running, 1);
    device_rank_release(&model->d, model->tracked, 1);
    device_rank_end(&model->d);
    rank_check(model->d.rank, nccl_double_live() == 0);
    rank_check(model->d.rank, cuda_double_live() == 0);
}

/* ---- steps ---- */

int device_gradient_ready(struct device_model *model, uint32_t rank, uint32_t step, size_t parameter) {
    for (size_t at = 0; at < model_counts[parameter]; at++) {
        model->host[parameter][at] = gradient_of(rank, step, parameter, at);
    }
    void *gradient = muster_ddp_gradient(model->ddp, parameter);
    rank_check(model->d.rank, cuda_library()->copy_to_device(device_address(gradient), model->host[parameter],
                                                             bytes_of(parameter), model->d.stream) == CUDA_OK);
    return muster_ddp_ready(model->ddp, parameter);
}

int device_backward(struct device_model *model, uint32_t rank, uint32_t step, uint32_t turn) {
    int status = MUSTER_OK;
    for (size_t n = 0; status == MUSTER_OK && n < PARAMETERS; n++) {
        size_t i = turn == 0 ? PARAMETERS - 1 - n : (n * 5 + turn) % PARAMETERS;
        status = device_gradient_ready(model, rank, step, i);
    }
    return status;
}

int device_step_run(struct device_model *model, uint32_t rank, uint32_t step, uint32_t turn) {
    int status = muster_ddp_begin(model->ddp);
    if (status == MUSTER_OK) {
        status = device_backward(model, rank, step, turn);
    }
    int finished = muster_ddp_finish(model->ddp);
    return status != MUSTER_OK ? status : finished;
}

void device_gradient_get(struct device_model *model, size_t parameter, float *out) {
    device_rank_get(&model->d, out, muster_ddp_gradient(model->ddp, parameter), bytes_of(parameter));
}

void device_check_averages(struct rank *rank, struct device_model *model, uint32_t present, uint32_t size,
                           uint32_t step) {
    float gradient[COUNT_MAX];
    for (size_t i = 0; i < PARAMETERS; i++) {
        device_gradient_get(model, i, gradient);
        for (size_t at = 0; at < model_counts[i]; at++) {
            float expected = average_of(size, present, size, step, i, at);
            bool is_exact = (size & (size - 1)) == 0; /* 1/size is, and NCCL multiplies by it */
            rank_check(rank,
                       is_exact ? gradient[at] == expected : fabsf(gradient[at] - expected) <= 1e-6F * (float)size);
        }
    }
}
