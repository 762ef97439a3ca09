/* For the tests of ddp in memory of a GPU, on the doubles of the driver and of NCCL: the model of ddp_test_support.h,
 * there. */
#ifndef TRAIN_DDP_DEVICE_TEST_SUPPORT_H
#define TRAIN_DDP_DEVICE_TEST_SUPPORT_H

#include "comm/device/hold_test_support.h"
#include "comm/nccl/device_ranks_test_support.h"
#include "train/reduction/ddp_test_support.h"

struct device_model {
    struct device_rank d;
    float *data[PARAMETERS], *own[PARAMETERS]; /* own: gradients of odd parameters, if wished */
    float *running;
    int64_t *tracked;
    /* What the stream copies to the GPU is here, and stays until the stream has come to it. */
    float host[PARAMETERS][COUNT_MAX];
    struct muster_ddp *ddp;
};

/* Makes the root group, whose stream becomes the test's, and memory for the model, filled as by model_make(). */
void device_model_begin(struct rank *rank, bool with_own_gradients, struct device_model *out);
/* Its ddp; what that gives. */
int device_model_register(struct device_model *model, const struct muster_ddp_options *options);
/* Both, which is to succeed. */
void device_model_make(struct rank *rank, const struct muster_ddp_options *options, bool with_own_gradients,
                       struct device_model *out);
/* Frees all of it; then nothing may be left on the GPU. */
void device_model_end(struct device_model *model);

/* Gives this rank's gradient of a parameter to the stream, and calls ready. */
int device_gradient_ready(struct device_model *model, uint32_t rank, uint32_t step, size_t parameter);
/* As backward() and step_run(). Nothing waits for the stream. */
int device_backward(struct device_model *model, uint32_t rank, uint32_t step, uint32_t turn);
int device_step_run(struct device_model *model, uint32_t rank, uint32_t step, uint32_t turn);

/* Reads a gradient, by the stream. */
void device_gradient_get(struct device_model *model, size_t parameter, float *out);
/* As check_averages(); with a number of ranks that is no power of two within the rounding of NCCL's averages. */
void device_check_averages(struct rank *rank, struct device_model *model, uint32_t present, uint32_t size,
                           uint32_t step);

#endif
