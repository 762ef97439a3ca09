/* See check.h. */
#include "check.h"

#include <stdlib.h>

#include "fail.h"
#include "floats.h"
#include "resident.h"

static struct muster_tensor matrix(const char *name, enum muster_type type, int rows, int columns, void *data) {
    return (struct muster_tensor){
        .name = name, .type = type, .dim_count = 2, .shape = {(uint64_t)rows, (uint64_t)columns}, .data = data};
}

void check_write(const struct options *options) {
    const struct gpt_shape *shape = &options->shape;
    int batch = options->batch, length = shape->context;
    size_t count = (size_t)batch * (size_t)length;
    struct gpt_parameters *parameters = gpt_parameters_create(shape);
    struct resident resident;
    resident_init(&resident, parameters);
    resident_own_gradients(&resident);
    struct gpt_memory memory = resident_memory(&resident);
    struct gpt *model = gpt_create(shape, parameters, batch, &memory);
    int32_t *tokens = allocate(count, sizeof *tokens), *targets = allocate(count, sizeof *targets);
    float *logits = floats_allocate(count * (size_t)shape->vocabulary);
    struct muster_tensor *tensors = allocate(parameters->tensor_count + 2, sizeof *tensors);

    size_t described = 0;
    if (options->weights != NULL) {
        resident_fill(&resident, &(struct first_values){options->weights, 0});
    } else {
        described = resident_describe(parameters, resident.parameters, tensors);
    }
    tensors[described++] = matrix("tokens", MUSTER_INT32, batch, length, tokens);
    tensors[described++] = matrix("targets", MUSTER_INT32, batch, length, targets);
    check(muster_safetensors_load(options->check, tensors, described), "read the parameters and the batch");
    for (size_t i = 0; i < count; i++) {
        if (tokens[i] < 0 || tokens[i] >= shape->vocabulary || targets[i] < 0 || targets[i] >= shape->vocabulary) {
            fail("a token of %s is not in the vocabulary", options->check);
        }
    }

    gpt_forward(model, tokens, batch, length, NULL);
    double loss = gpt_loss(model, targets);
    for (size_t i = 0; i < count * (size_t)shape->vocabulary; i++) {
        logits[i] = gpt_logits(model)[i]; /* the backward pass overwrites them */
    }
    gpt_backward(model, 1);

    described = resident_describe(parameters, resident.gradients, tensors);
    tensors[described++] = matrix("logits", MUSTER_FLOAT32, (int)count, shape->vocabulary, logits);
    tensors[described++] = (struct muster_tensor){.name = "loss", .type = MUSTER_FLOAT64, .data = &loss};
    struct muster_snapshot_state state = MUSTER_SNAPSHOT_STATE(tensors, described, NULL, 0);
    check(muster_snapshot_save(options->check_out, 0, &state, NULL), "write the gradients");

    free(tensors);
    free(logits);
    free(tokens);
    free(targets);
    gpt_free(model);
    resident_done(&resident);
    gpt_parameters_free(parameters);
}
