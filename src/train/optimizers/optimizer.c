/* The optimizers' memory: ranges, groups and what is remembered, made, described and moved. See optimizer_impl.h. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "base/sized.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/device/cuda_adopt.h"
#include "comm/device/device.h"
#include "train/optimizers/optimizer_impl.h"

enum { ALIGNMENT_FLOATS = 16 };
#define ALIGNMENT_BYTES (ALIGNMENT_FLOATS * sizeof(float))
#define STEPS_NAME "optimizer.steps"

/* What each rule remembers of each element. PyTorch's names. */
static const char *const slot_names[RULE_COUNT][OPTIMIZER_SLOTS_MAX] = {
    [RULE_SGD_MOMENTUM] = {"momentum_buffer"},     [RULE_SGD_NESTEROV] = {"momentum_buffer"},
    [RULE_ADADELTA] = {"square_avg", "acc_delta"}, [RULE_ADAM] = {"exp_avg", "exp_avg_sq"},
    [RULE_ADAMW] = {"exp_avg", "exp_avg_sq"},
};

/* ---- making one ---- */

static size_t aligned_floats(size_t count) {
    return (count + ALIGNMENT_FLOATS - 1) / ALIGNMENT_FLOATS * ALIGNMENT_FLOATS;
}

static int check_ranges(const struct muster_optimizer_range *ranges, size_t count, size_t group_count) {
    size_t floats = 0;
    for (size_t i = 0; i < count; i++) {
        if (!ranges[i].name || ranges[i].name[0] == '\0' || (!ranges[i].data && ranges[i].count > 0)) {
            return status_fail(MUSTER_EINVAL, "parameter %zu has no name or no data", i);
        }
        if (ranges[i].group >= group_count) {
            return status_fail(MUSTER_EINVAL, "parameter %s is in group %zu of %zu", ranges[i].name, ranges[i].group,
                               group_count);
        }
        if (ranges[i].count > SIZE_MAX / 64 || floats > SIZE_MAX / 64) {
            return status_fail(MUSTER_ELIMIT, "parameter %s is too large", ranges[i].name);
        }
        int gpu = device_number_of(ranges[i].data);
        if (gpu >= 0) {
            return status_fail(MUSTER_EINVAL,
                               "parameter %s is in memory of GPU %d: these optimizers compute in memory of the host",
                               ranges[i].name, gpu);
        }
        floats += aligned_floats(ranges[i].count);
    }
    return 0;
}

/* False without memory. */
static bool range_init(struct optimizer_range *range, const struct muster_optimizer_range *given,
                       const struct optimizer_settings *settings) {
    *range = (struct optimizer_range){.settings = settings,
                                      .data = given->data,
                                      .count = given->count,
                                      .slot_count = optimizer_rule_slots(settings->rule)};
    for (size_t slot = 0; slot < range->slot_count; slot++) {
        range->slot_names[slot] = str_format_new("optimizer.%s.%s", slot_names[settings->rule][slot], given->name);
        if (!range->slot_names[slot]) {
            return false;
        }
    }
    return true;
}

/* Zeros that nobody has touched yet: they cost no memory if the program moves what is remembered. */
static bool allocate_slots(struct muster_optimizer *optimizer) {
    size_t floats = 0;
    for (size_t i = 0; i < optimizer->range_count; i++) {
        floats += optimizer->ranges[i].slot_count * aligned_floats(optimizer->ranges[i].count);
    }
    optimizer->memory_bytes = (floats + ALIGNMENT_FLOATS) * sizeof(float);
    optimizer->memory = calloc(1, optimizer->memory_bytes);
    if (!optimizer->memory) {
        return false;
    }
    size_t past = (uintptr_t)optimizer->memory % ALIGNMENT_BYTES;
    float *place = (float *)optimizer->memory + (past > 0 ? (ALIGNMENT_BYTES - past) / sizeof(float) : 0);
    for (size_t i = 0; i < optimizer->range_count; i++) {
        struct optimizer_range *range = &optimizer->ranges[i];
        for (size_t slot = 0; slot < range->slot_count; slot++) {
            range->slots[slot] = place;
            place += aligned_floats(range->count);
        }
    }
    return true;
}

static bool fill(struct muster_optimizer *optimizer, const struct muster_optimizer_range *ranges, size_t count) {
    optimizer->ranges = calloc(count, sizeof *optimizer->ranges);
    optimizer->steps = optimizer->own_steps = calloc(count, sizeof *optimizer->own_steps);
    if (!optimizer->ranges || !optimizer->own_steps) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        struct optimizer_range *range = &optimizer->ranges[optimizer->range_count++];
        if (!range_init(range, &ranges[i], &optimizer->groups[ranges[i].group])) {
            return false;
        }
        optimizer->state_count += range->slot_count;
    }
    return allocate_slots(optimizer);
}

int optimizer_make(const struct muster_optimizer_range *ranges, size_t count, struct optimizer_settings *groups,
                   size_t group_count, struct muster_optimizer **out) {
    cuda_library_adopt();
    int code = check_ranges(ranges, count, group_count);
    struct muster_optimizer *optimizer = code ? NULL : calloc(1, sizeof *optimizer);
    if (!optimizer) {
        free(groups);
        return code ? code : status_fail(MUSTER_ENOMEM, "no memory for an optimizer");
    }
    optimizer->groups = groups;
    optimizer->group_count = group_count;
    if (!fill(optimizer, ranges, count)) {
        muster_optimizer_free(optimizer);
        return status_fail(MUSTER_ENOMEM, "no memory for an optimizer of %zu parameters", count);
    }
    *out = optimizer;
    return 0;
}

void muster_optimizer_free(struct muster_optimizer *optimizer) {
    if (!optimizer) {
        return;
    }
    for (size_t i = 0; i < optimizer->range_count; i++) {
        for (size_t slot = 0; slot < OPTIMIZER_SLOTS_MAX; slot++) {
            free(optimizer->ranges[i].slot_names[slot]);
        }
    }
    free(optimizer->ranges);
    free(optimizer->groups);
    free(optimizer->own_steps);
    free(optimizer->memory);
    free(optimizer);
}

/* ---- rates ---- */

static int check_rate(double learning_rate) {
    return optimizer_within(learning_rate, 0, INFINITY)
               ? 0
               : status_fail(MUSTER_EINVAL, "a learning rate of %g; it must be a number >= 0", learning_rate);
}

int muster_optimizer_set_learning_rate(struct muster_optimizer *optimizer, double learning_rate) {
    if (!optimizer) {
        return status_fail_null("muster_optimizer_set_learning_rate", "optimizer");
    }
    int code = check_rate(learning_rate);
    for (size_t i = 0; code == 0 && i < optimizer->group_count; i++) {
        optimizer->groups[i].learning_rate = learning_rate;
    }
    return code;
}

double muster_optimizer_learning_rate(const struct muster_optimizer *optimizer) {
    return optimizer ? optimizer->groups[0].learning_rate : 0;
}

/* 0, or why not. */
static int check_group(const struct muster_optimizer *optimizer, size_t group) {
    static const char call[] = "muster_optimizer_set_group_learning_rate";
    if (!optimizer) {
        return status_fail_null(call, "optimizer");
    }
    return group < optimizer->group_count
               ? 0
               : status_fail(MUSTER_EINVAL, "%s: group %zu of %zu", call, group, optimizer->group_count);
}

int muster_optimizer_set_group_learning_rate(struct muster_optimizer *optimizer, size_t group, double learning_rate) {
    int code = check_group(optimizer, group);
    code = code ? code : check_rate(learning_rate);
    if (code == 0) {
        optimizer->groups[group].learning_rate = learning_rate;
    }
    return code;
}

double muster_optimizer_group_learning_rate(const struct muster_optimizer *optimizer, size_t group) {
    return optimizer && group < optimizer->group_count ? optimizer->groups[group].learning_rate : 0;
}

/* ---- what is remembered ---- */

size_t muster_optimizer_tensor_count(const struct muster_optimizer *optimizer) {
    return !optimizer || optimizer->state_count == 0 ? 0 : optimizer->state_count + 1;
}

int muster_optimizer_tensors_sized(struct muster_optimizer *optimizer, struct muster_tensor *out, size_t tensor_bytes) {
    if (!optimizer || !out) {
        return status_fail_null("muster_optimizer_tensors", optimizer ? "out" : "optimizer");
    }
    uint8_t *at = (uint8_t *)out;
    for (size_t i = 0; i < optimizer->range_count; i++) {
        const struct optimizer_range *range = &optimizer->ranges[i];
        for (size_t slot = 0; slot < range->slot_count; slot++) {
            struct muster_tensor tensor = {.name = range->slot_names[slot],
                                           .type = MUSTER_FLOAT32,
                                           .dim_count = 1,
                                           .shape = {range->count},
                                           .data = range->slots[slot]};
            sized_write(at, tensor_bytes, &tensor, sizeof tensor);
            at += tensor_bytes;
        }
    }
    struct muster_tensor steps = {.name = STEPS_NAME,
                                  .type = MUSTER_INT64,
                                  .dim_count = 1,
                                  .shape = {optimizer->range_count},
                                  .data = optimizer->steps};
    if (optimizer->state_count > 0) {
        sized_write(at, tensor_bytes, &steps, sizeof steps);
    }
    return 0;
}

int optimizer_memory_read(const struct muster_optimizer_memory *memory, struct muster_optimizer_memory *out) {
    *out = (struct muster_optimizer_memory)MUSTER_OPTIMIZER_MEMORY_INIT;
    return sized_read_options(out, sizeof *out, memory, "muster_optimizer_memory", "MUSTER_OPTIMIZER_MEMORY_INIT");
}

/* Frees the optimizer's own memory when all that is remembered is the caller's; empty ranges need none. */
static void release_unused(struct muster_optimizer *optimizer) {
    const uintptr_t begin = (uintptr_t)optimizer->memory;
    for (size_t i = 0; i < optimizer->range_count; i++) {
        const struct optimizer_range *range = &optimizer->ranges[i];
        for (size_t slot = 0; range->count > 0 && slot < range->slot_count; slot++) {
            if ((uintptr_t)range->slots[slot] - begin < optimizer->memory_bytes) {
                return;
            }
        }
    }
    for (size_t i = 0; i < optimizer->range_count; i++) {
        struct optimizer_range *range = &optimizer->ranges[i];
        for (size_t slot = 0; range->count == 0 && slot < range->slot_count; slot++) {
            range->slots[slot] = NULL;
        }
    }
    free(optimizer->memory);
    optimizer->memory = NULL;
    optimizer->memory_bytes = 0;
}

int muster_optimizer_move(struct muster_optimizer *optimizer, const struct muster_optimizer_memory *memory) {
    struct muster_optimizer_memory own;
    if (!optimizer || !memory) {
        return status_fail_null("muster_optimizer_move", optimizer ? "memory" : "optimizer");
    }
    int code = optimizer_memory_read(memory, &own);
    if (code) {
        return code;
    }
    size_t tensor = 0;
    for (size_t i = 0; i < optimizer->range_count; i++) {
        struct optimizer_range *range = &optimizer->ranges[i];
        range->data = own.parameters && own.parameters[i] ? own.parameters[i] : range->data;
        for (size_t slot = 0; slot < range->slot_count; slot++, tensor++) {
            range->slots[slot] = own.state && own.state[tensor] ? own.state[tensor] : range->slots[slot];
        }
    }
    optimizer->steps = own.steps ? own.steps : optimizer->steps;
    release_unused(optimizer);
    return 0;
}
