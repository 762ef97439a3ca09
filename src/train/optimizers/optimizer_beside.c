/* See optimizer_beside.h. */
#include "train/optimizers/optimizer_beside.h"

#include <stdlib.h>

#include "base/sized.h"
#include "base/status.h"
#include "train/optimizers/optimizer_impl.h"

static float *beside(float *at, ptrdiff_t distance) {
    return at ? (float *)(void *)((char *)at + distance) : NULL;
}

/* places: room for one pointer for each range, and for each tensor of the state. */
static struct muster_optimizer_memory find_twin(const struct muster_optimizer *optimizer, ptrdiff_t distance,
                                                float **places) {
    struct muster_optimizer_memory memory = MUSTER_OPTIMIZER_MEMORY_INIT;
    memory.parameters = places;
    memory.state = places + optimizer->range_count;
    float **state = places + optimizer->range_count;
    for (size_t i = 0; i < optimizer->range_count; i++) {
        const struct optimizer_range *range = &optimizer->ranges[i];
        places[i] = beside(range->data, distance);
        for (size_t slot = 0; slot < range->slot_count; slot++) {
            *state++ = beside(range->slots[slot], distance);
        }
    }
    return memory;
}

int optimizer_step_beside(struct muster_optimizer *optimizer, const float *const *gradients,
                          const struct muster_optimizer_step_options *options, ptrdiff_t distance) {
    struct muster_optimizer_step_options own = MUSTER_OPTIMIZER_STEP_OPTIONS_INIT;
    int status = sized_read_options(&own, sizeof own, options, "muster_optimizer_step_options",
                                    "MUSTER_OPTIMIZER_STEP_OPTIONS_INIT");
    float **places = calloc(optimizer->range_count + optimizer->state_count, sizeof *places);
    if (status != MUSTER_OK || !places) {
        free(places);
        return status ? status : status_fail(MUSTER_ENOMEM, "no memory for the places of an optimizer's values");
    }
    struct muster_optimizer_memory memory = find_twin(optimizer, distance, places);
    own.out = &memory;
    status = muster_optimizer_step_into(optimizer, gradients, &own);
    free(places);
    return status;
}

void optimizer_move_beside(struct muster_optimizer *optimizer, ptrdiff_t distance) {
    for (size_t i = 0; i < optimizer->range_count; i++) {
        struct optimizer_range *range = &optimizer->ranges[i];
        range->data = beside(range->data, distance);
        for (size_t slot = 0; slot < range->slot_count; slot++) {
            range->slots[slot] = beside(range->slots[slot], distance);
        }
    }
}

size_t optimizer_range_count(const struct muster_optimizer *optimizer) {
    return optimizer->range_count;
}

float *optimizer_range_at(const struct muster_optimizer *optimizer, size_t range, size_t *out_count) {
    *out_count = optimizer->ranges[range].count;
    return optimizer->ranges[range].data;
}
