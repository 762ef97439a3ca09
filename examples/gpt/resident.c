/* See resident.h. */
#include "resident.h"

#include <stdlib.h>

#include "fail.h"
#include "floats.h"

/* Memory for all units; where each begins. */
static float *lay_out(const struct gpt_parameters *list, float **units) {
    float *memory = floats_allocate(list->float_count), *next = memory;
    for (int unit = 0; unit < list->unit_count; unit++) {
        units[unit] = next;
        next += list->units[unit].float_count;
    }
    return memory;
}

void resident_init(struct resident *resident, const struct gpt_parameters *list) {
    size_t units = (size_t)list->unit_count;
    *resident = (struct resident){.list = list};
    resident->parameters = allocate(units, sizeof *resident->parameters);
    resident->gradients = allocate(units, sizeof *resident->gradients);
    resident->uses = allocate(units, sizeof *resident->uses);
    resident->memory[0] = lay_out(list, resident->parameters);
}

void resident_own_gradients(struct resident *resident) {
    resident->memory[1] = lay_out(resident->list, resident->gradients);
}

void resident_give_up(struct resident *resident) {
    free(resident->memory[0]);
    resident->memory[0] = NULL;
}

void resident_done(struct resident *resident) {
    free(resident->memory[0]);
    free(resident->memory[1]);
    free(resident->parameters);
    free(resident->gradients);
    free(resident->uses);
}

void resident_fill(struct resident *resident, const struct first_values *first) {
    for (int unit = 0; unit < resident->list->unit_count; unit++) {
        first_values_fill(first, resident->list, unit, resident->parameters[unit]);
    }
}

static struct gpt_range acquire(void *context, int unit, enum gpt_pass pass) {
    const struct resident *resident = context;
    bool again = pass == GPT_BACKWARD && resident->uses[unit] > 0;
    return (struct gpt_range){resident->parameters[unit], resident->gradients[unit], resident->add || again};
}

static void release(void *context, int unit, enum gpt_pass pass) {
    struct resident *resident = context;
    if (pass == GPT_FORWARD || ++resident->uses[unit] < resident->list->units[unit].uses) {
        return;
    }
    resident->uses[unit] = 0;
    if (resident->complete != NULL) {
        resident->complete(resident->context, unit);
    }
}

struct gpt_memory resident_memory(struct resident *resident) {
    return (struct gpt_memory){resident, acquire, release};
}

size_t resident_describe(const struct gpt_parameters *list, float *const *units, struct muster_tensor *out) {
    size_t count = 0;
    for (int unit = 0; unit < list->unit_count; unit++) {
        const struct gpt_unit *u = &list->units[unit];
        for (size_t i = 0; i < u->tensor_count; i++, count++) {
            const struct gpt_tensor *tensor = &u->tensors[i];
            out[count] = (struct muster_tensor){.name = tensor->name,
                                                .type = MUSTER_FLOAT32,
                                                .dim_count = tensor->columns == 0 ? 1 : 2,
                                                .shape = {(uint64_t)tensor->rows, (uint64_t)tensor->columns},
                                                .data = units[unit] + tensor->offset};
        }
    }
    return count;
}
