/* See resident.h. */
#include "resident.h"

#include <stdlib.h>

#include "fail.h"
#include "floats.h"

void resident_init(struct resident *resident, const struct gpt_parameters *list) {
    *resident = (struct resident){.list = list};
    resident->parameters = floats_allocate(list->float_count);
    resident->gradients = floats_allocate(list->float_count);
    resident->begins = allocate((size_t)list->unit_count, sizeof *resident->begins);
    for (int unit = 1; unit < list->unit_count; unit++) {
        resident->begins[unit] = resident->begins[unit - 1] + list->units[unit - 1].float_count;
    }
}

void resident_done(struct resident *resident) {
    free(resident->parameters);
    free(resident->gradients);
    free(resident->begins);
}

void resident_fill(struct resident *resident, uint64_t seed) {
    for (int unit = 0; unit < resident->list->unit_count; unit++) {
        gpt_parameters_fill(resident->list, unit, seed, resident->parameters + resident->begins[unit]);
    }
}

size_t resident_at(const struct resident *resident, int unit, size_t number) {
    return resident->begins[unit] + resident->list->units[unit].tensors[number].offset;
}

static struct gpt_range acquire(void *context, int unit, enum gpt_pass pass) {
    const struct resident *resident = context;
    size_t begin = resident->begins[unit];
    (void)pass; /* always there */
    return (struct gpt_range){resident->parameters + begin, resident->gradients + begin, resident->add};
}

static void release(void *context, int unit, enum gpt_pass pass) {
    (void)context;
    (void)unit;
    (void)pass;
}

struct gpt_memory resident_memory(struct resident *resident) {
    return (struct gpt_memory){resident, acquire, release};
}
