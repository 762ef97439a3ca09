/* See sharding_fsdp.h. */
#include "sharding_fsdp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fail.h"
#include "floats.h"

enum { WIDE = 2, NO_UNIT = -1 };

/* ---- Setting up ---- */

struct filler {
    const struct gpt_parameters *list;
    const struct first_values *first;
    float *values; /* of the unit that is being filled */
};

/* The library asks for one tensor at a time, in order. */
static int fill(void *context, size_t unit, size_t parameter, float *values) {
    const struct filler *filler = context;
    const struct gpt_tensor *tensor = &filler->list->tensors[parameter];
    if (tensor == filler->list->units[unit].tensors) {
        first_values_fill(filler->first, filler->list, (int)unit, filler->values);
    }
    memcpy(values, filler->values + tensor->offset, tensor->count * sizeof *values);
    return 0;
}

static size_t largest_unit(const struct gpt_parameters *list) {
    size_t largest = 0;
    for (int unit = 0; unit < list->unit_count; unit++) {
        size_t count = list->units[unit].float_count;
        largest = count > largest ? count : largest;
    }
    return largest;
}

/* The library lays a unit out as the model does: tensors in order, each on a cache line. */
static void check_layout(const struct sharding *sharding) {
    for (size_t i = 0; i < sharding->list->tensor_count; i++) {
        if (muster_fsdp_offset(sharding->fsdp, i) != sharding->list->tensors[i].offset) {
            fail("%s is not where the model looks for it", sharding->list->tensors[i].name);
        }
    }
}

void sharding_fsdp_init(struct sharding *sharding, const struct first_values *first) {
    const struct gpt_parameters *list = sharding->list;
    struct muster_fsdp_unit *units = allocate((size_t)list->unit_count, sizeof *units);
    struct muster_fsdp_parameter *parameters = allocate(list->tensor_count, sizeof *parameters);
    char(*names)[32] = allocate((size_t)list->unit_count, sizeof *names);
    for (size_t i = 0; i < list->tensor_count; i++) {
        const struct gpt_tensor *tensor = &list->tensors[i];
        parameters[i] = (struct muster_fsdp_parameter){.name = tensor->name,
                                                       .count = tensor->count,
                                                       .dim_count = tensor->columns == 0 ? 1 : 2,
                                                       .shape = {(uint64_t)tensor->rows, (uint64_t)tensor->columns}};
    }
    for (int unit = 0; unit < list->unit_count; unit++) {
        const struct gpt_unit *u = &list->units[unit];
        (void)snprintf(names[unit], sizeof names[unit], unit == GPT_EMBEDDING ? "embedding" : "block %d",
                       unit - GPT_FIRST_BLOCK);
        units[unit] =
            (struct muster_fsdp_unit){names[unit], parameters + (u->tensors - list->tensors), u->tensor_count};
    }
    units[list->unit_count - 1].name = "head";
    float *values = floats_allocate(largest_unit(list));
    struct muster_fsdp_options options = MUSTER_FSDP_OPTIONS_INIT;
    options.virtual_ranks = (size_t)sharding->choice.virtual_ranks;
    options.fill = fill;
    options.fill_context = &(struct filler){list, first, values};
    options.sharding = sharding->choice.kind == SHARDING_HYBRID ? MUSTER_FSDP_HYBRID : MUSTER_FSDP_FULL;
    if (sharding->choice.bfloat16) {
        options.compute_type = options.reduce_type = MUSTER_BFLOAT16;
        for (int i = 0; i < WIDE; i++) {
            sharding->wide[i] = floats_allocate(largest_unit(list));
            sharding->wide_unit[i] = NO_UNIT;
        }
    }
    check(muster_fsdp_create(sharding->group, units, (size_t)list->unit_count, &options, &sharding->fsdp),
          "shard the model");
    check_layout(sharding);
    free(values);
    free(names);
    free(parameters);
    free(units);
}

void sharding_fsdp_make_optimizer(struct sharding *sharding, const struct muster_optimizer_group *groups,
                                  struct muster_optimizer **out) {
    const struct gpt_parameters *list = sharding->list;
    size_t *group_of = allocate(list->tensor_count, sizeof *group_of);
    for (size_t i = 0; i < list->tensor_count; i++) {
        group_of[i] = list->tensors[i].decays ? SHARDING_DECAYS : SHARDING_KEEPS;
    }
    check(muster_fsdp_optimizer(sharding->fsdp, group_of, groups, SHARDING_GROUPS, out), "make an optimizer");
    free(group_of);
}

/* ---- The model's memory ---- */

static enum muster_fsdp_pass pass_of(enum gpt_pass pass) {
    return pass == GPT_FORWARD ? MUSTER_FSDP_FORWARD : MUSTER_FSDP_BACKWARD;
}

/* The model computes in float32. It holds two units at most, and none of them twice. */
static const float *widen(struct sharding *sharding, int unit, const uint16_t *narrow) {
    int place = sharding->wide_unit[0] == NO_UNIT ? 0 : 1;
    float *wide = sharding->wide[place];
    sharding->wide_unit[place] = unit;
    for (size_t i = 0; i < sharding->list->units[unit].float_count; i++) {
        const uint32_t bits = (uint32_t)narrow[i] << 16;
        memcpy(&wide[i], &bits, sizeof bits);
    }
    return wide;
}

static struct gpt_range acquire(void *context, int unit, enum gpt_pass pass) {
    struct sharding *sharding = context;
    struct muster_fsdp_view view;
    check(muster_fsdp_acquire(sharding->fsdp, (size_t)unit, pass_of(pass), &view), "gather parameters");
    const float *parameters =
        sharding->choice.bfloat16 ? widen(sharding, unit, view.parameters) : (const float *)view.parameters;
    return (struct gpt_range){parameters, view.gradients, view.add};
}

static void release(void *context, int unit, enum gpt_pass pass) {
    struct sharding *sharding = context;
    for (int i = 0; i < WIDE; i++) {
        sharding->wide_unit[i] = sharding->wide_unit[i] == unit ? NO_UNIT : sharding->wide_unit[i];
    }
    check(muster_fsdp_release(sharding->fsdp, (size_t)unit, pass_of(pass)), "average gradients");
}

struct gpt_memory sharding_fsdp_memory(struct sharding *sharding) {
    return (struct gpt_memory){sharding, acquire, release};
}
