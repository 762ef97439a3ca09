/* The list of units as it was given: checked, copied, and compared between ranks. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <muster/virtual_ranks.h>

#include "base/buf.h"
#include "base/sized.h"
#include "base/status.h"
#include "train/reduction/agreement.h"
#include "train/reduction/model_copy.h"
#include "train/units/fsdp_impl.h"

/* ---- checks ---- */

static int check_shape(const struct muster_fsdp_parameter *parameter, const char *unit) {
    uint64_t count = 1;
    bool fits = parameter->dim_count <= MUSTER_TENSOR_DIMS_MAX;
    for (uint32_t i = 0; fits && i < parameter->dim_count; i++) {
        fits = !__builtin_mul_overflow(count, parameter->shape[i], &count);
    }
    return parameter->dim_count == 0 || (fits && count == parameter->count)
               ? MUSTER_OK
               : status_fail(MUSTER_EINVAL,
                             "unit \"%s\": the shape of parameter \"%s\" has not %zu elements, or more than %d "
                             "dimensions",
                             unit, parameter->name, parameter->count, MUSTER_TENSOR_DIMS_MAX);
}

static int check_parameter(const struct muster_fsdp_parameter *parameter, const char *unit, size_t index) {
    int status = model_check_name("parameter", index, parameter->name);
    if (status != MUSTER_OK) {
        return status_prefix(status, "unit \"%s\"", unit);
    }
    if (parameter->count == 0 || (parameter->block > 1 && parameter->count % parameter->block != 0)) {
        return status_fail(MUSTER_EINVAL, "unit \"%s\": parameter \"%s\" has no elements, or no whole number of blocks",
                           unit, parameter->name);
    }
    return check_shape(parameter, unit);
}

static bool is_type(enum muster_type type) {
    return type == MUSTER_FLOAT32 || type == MUSTER_BFLOAT16;
}

static int check_options(const struct muster_fsdp_options *options) {
    if (!is_type(options->compute_type) || !is_type(options->gradient_type) || !is_type(options->reduce_type)) {
        return status_fail(MUSTER_EINVAL, "types are float32 or bfloat16");
    }
    if (options->sharding != MUSTER_FSDP_FULL && options->sharding != MUSTER_FSDP_HYBRID) {
        return status_fail(MUSTER_EINVAL, "sharding %d is none", (int)options->sharding);
    }
    if (options->prefetch > 8) {
        return status_fail(MUSTER_EINVAL, "prefetch is %u: 0 to 8 are possible", options->prefetch);
    }
    if (options->virtual_ranks > MUSTER_VIRTUAL_RANKS_MAX) {
        return status_fail(MUSTER_EINVAL, "%zu virtual ranks: 1 to %zu are possible", options->virtual_ranks,
                           MUSTER_VIRTUAL_RANKS_MAX);
    }
    return options->virtual_ranks == 0 || (!options->hook && !options->uneven_inputs)
               ? MUSTER_OK
               : status_fail(MUSTER_EINVAL, "virtual_ranks with %s: choose one of them",
                             options->hook ? "a hook" : "uneven_inputs");
}

/* ---- what was given, as this version's structs ---- */

struct reader {
    struct sized_array units;
    struct sized_array *parameters; /* per unit */
    size_t unit_count, parameter_count, name_bytes;
};

static void reader_done(struct reader *reader) {
    for (size_t i = 0; reader->parameters && i < reader->unit_count; i++) {
        free(reader->parameters[i].owned);
    }
    free(reader->parameters);
    free(reader->units.owned);
}

static const struct muster_fsdp_unit *unit_of(const struct reader *reader, size_t unit) {
    return (const struct muster_fsdp_unit *)reader->units.items + unit;
}

static const struct muster_fsdp_parameter *parameter_of(const struct reader *reader, size_t unit, size_t index) {
    return (const struct muster_fsdp_parameter *)reader->parameters[unit].items + index;
}

static int read_unit(struct reader *reader, size_t index, size_t parameter_bytes) {
    const struct muster_fsdp_unit *unit = unit_of(reader, index);
    int status = model_check_name("unit", index, unit->name);
    if (status == MUSTER_OK &&
        (unit->parameter_count == 0 || unit->parameter_count > MUSTER_FSDP_PARAMETERS_MAX - reader->parameter_count)) {
        status = status_fail(MUSTER_EINVAL, "unit \"%s\" has %zu parameters: 1 to %zu of all units are possible",
                             unit->name, unit->parameter_count, MUSTER_FSDP_PARAMETERS_MAX);
    }
    if (status == MUSTER_OK) {
        status = sized_read_array(&reader->parameters[index], sizeof(struct muster_fsdp_parameter), unit->parameters,
                                  parameter_bytes, unit->parameter_count, sizeof(struct muster_fsdp_parameter),
                                  "muster_fsdp_parameter");
        status = status ? status_prefix(status, "unit \"%s\"", unit->name) : MUSTER_OK;
    }
    for (size_t i = 0; status == MUSTER_OK && i < unit->parameter_count; i++) {
        status = check_parameter(parameter_of(reader, index, i), unit->name, i);
        reader->name_bytes += status == MUSTER_OK ? strlen(parameter_of(reader, index, i)->name) + 1 : 0;
    }
    reader->parameter_count += unit->parameter_count;
    reader->name_bytes += status == MUSTER_OK ? strlen(unit->name) + 1 : 0;
    return status;
}

static int read_units(struct reader *reader, const struct muster_fsdp_unit *units, size_t unit_bytes, size_t unit_count,
                      size_t parameter_bytes) {
    if (unit_count == 0 || unit_count > MUSTER_FSDP_UNITS_MAX) {
        return status_fail(MUSTER_EINVAL, "%zu units: 1 to %zu are possible", unit_count, MUSTER_FSDP_UNITS_MAX);
    }
    reader->unit_count = unit_count;
    reader->parameters = calloc(unit_count, sizeof *reader->parameters);
    int status = reader->parameters ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for %zu units", unit_count);
    status = status ? status
                    : sized_read_array(&reader->units, sizeof *units, units, unit_bytes, unit_count, sizeof *units,
                                       "muster_fsdp_unit");
    for (size_t i = 0; status == MUSTER_OK && i < unit_count; i++) {
        status = read_unit(reader, i, parameter_bytes);
    }
    return status;
}

/* ---- the copy ---- */

/* Places the lists in `block`, or finds out how large that must be (block NULL). */
static size_t place(struct muster_fsdp *block, const struct reader *reader, char **out_names) {
    size_t used = 0;
    (void)model_carve(block, &used, sizeof *block);
    void *units = model_carve(block, &used, reader->unit_count * sizeof(struct fsdp_unit));
    void *names = model_carve(block, &used, reader->parameter_count * sizeof(const char *));
    void *dims = model_carve(block, &used, reader->parameter_count * sizeof(struct fsdp_dims));
    void *learning = model_carve(block, &used, reader->parameter_count * sizeof(uint32_t));
    void *buffers = model_carve(block, &used, reader->unit_count * sizeof(struct fsdp_buffer));
    void *shard_at = model_carve(block, &used, reader->unit_count * sizeof(size_t));
    void *queue = model_carve(block, &used, reader->unit_count * sizeof(uint32_t));
    char *characters = model_carve(block, &used, reader->name_bytes);
    if (block) {
        block->units = units;
        block->parameter_names = names;
        block->parameter_dims = dims;
        block->learning = learning;
        block->buffers = buffers;
        block->shard_at = shard_at;
        block->queue = queue;
        block->block_bytes = used;
        *out_names = characters;
    }
    return used;
}

static struct fsdp_dims dims_of(const struct muster_fsdp_parameter *parameter) {
    struct fsdp_dims dims = {.count = 1, .sizes = {parameter->count}};
    if (parameter->dim_count > 0) {
        dims.count = parameter->dim_count;
        memcpy(dims.sizes, parameter->shape, dims.count * sizeof *dims.sizes);
    }
    return dims;
}

static void copy_unit(struct muster_fsdp *fsdp, const struct reader *reader, uint32_t index, uint32_t first,
                      char **names, struct unit_item *items) {
    const struct muster_fsdp_unit *unit = unit_of(reader, index);
    bool learns = false;
    fsdp->units[index] = (struct fsdp_unit){
        .name = model_keep_name(names, unit->name), .first = first, .item_count = (uint32_t)unit->parameter_count};
    for (uint32_t i = 0; i < unit->parameter_count; i++) {
        const struct muster_fsdp_parameter *parameter = parameter_of(reader, index, i);
        items[first + i] = (struct unit_item){
            .count = parameter->count, .block = parameter->block, .unit = index, .frozen = parameter->frozen};
        fsdp->parameter_names[first + i] = model_keep_name(names, parameter->name);
        fsdp->parameter_dims[first + i] = dims_of(parameter);
        if (!parameter->frozen) {
            fsdp->learning[fsdp->learning_count++] = first + i;
            learns = true;
        }
    }
    fsdp->unit_learning_count += learns;
}

static int copy_model(const struct reader *reader, const struct muster_fsdp_options *options, struct muster_fsdp **out,
                      struct unit_item **out_items) {
    struct muster_fsdp *fsdp = calloc(1, place(NULL, reader, NULL));
    struct unit_item *items = calloc(reader->parameter_count, sizeof *items);
    char *names = NULL;
    if (!fsdp || !items) {
        free(fsdp);
        free(items);
        return status_fail(MUSTER_ENOMEM, "no memory for an fsdp of %zu parameters", reader->parameter_count);
    }
    (void)place(fsdp, reader, &names);
    fsdp->options = *options;
    if (options->hook) {
        fsdp->hook = *options->hook;
        fsdp->options.hook = &fsdp->hook;
    }
    fsdp->unit_count = (uint32_t)reader->unit_count;
    fsdp->parameter_count = (uint32_t)reader->parameter_count;
    uint32_t first = 0;
    for (uint32_t i = 0; i < fsdp->unit_count; i++) {
        copy_unit(fsdp, reader, i, first, &names, items);
        first += fsdp->units[i].item_count;
    }
    *out = fsdp;
    *out_items = items;
    return MUSTER_OK;
}

static int check_names(const struct muster_fsdp *fsdp) {
    int status = model_check_unique("unit", &fsdp->units[0].name, sizeof *fsdp->units, fsdp->unit_count);
    return status ? status
                  : model_check_unique("parameter", fsdp->parameter_names, sizeof *fsdp->parameter_names,
                                       fsdp->parameter_count);
}

/* NOLINTNEXTLINE(readability-function-size): muster_fsdp_create()'s */
int fsdp_model_create(const struct muster_fsdp_unit *units, size_t unit_bytes, size_t unit_count,
                      size_t parameter_bytes, const struct muster_fsdp_options *options, struct muster_fsdp **out,
                      struct unit_item **out_items) {
    struct muster_fsdp_options read = MUSTER_FSDP_OPTIONS_INIT;
    struct muster_ddp_hook hook = MUSTER_DDP_HOOK_INIT;
    struct muster_fsdp *fsdp = NULL;
    struct unit_item *items = NULL;
    struct reader reader = {0};
    int status = sized_read_options(&read, sizeof read, options, "muster_fsdp_options", "MUSTER_FSDP_OPTIONS_INIT");
    status = status ? status : check_options(&read);
    status = status || !read.hook
                 ? status
                 : sized_read_options(&hook, sizeof hook, read.hook, "muster_ddp_hook", "MUSTER_DDP_HOOK_INIT");
    read.hook = read.hook ? &hook : NULL;
    status = status ? status : read_units(&reader, units, unit_bytes, unit_count, parameter_bytes);
    status = status ? status : copy_model(&reader, &read, &fsdp, &items);
    status = status ? status : check_names(fsdp);
    status = status ? status : fsdp_hook_check(fsdp);
    reader_done(&reader);
    if (status != MUSTER_OK) {
        free(fsdp);
        free(items);
        return status;
    }
    *out = fsdp;
    *out_items = items;
    return MUSTER_OK;
}

/* ---- do the ranks agree? ---- */

static int describe_parameter(const struct muster_fsdp *fsdp, const struct unit_item *item, uint32_t index,
                              struct buf *text) {
    const struct fsdp_dims *dims = &fsdp->parameter_dims[index];
    int status =
        buf_printf(text, "parameter %u: %s, %zu in blocks of %zu%s%s", index, fsdp->parameter_names[index], item->count,
                   item->block > 1 ? item->block : 1, item->frozen ? ", frozen" : "", dims->count > 1 ? ", shape" : "");
    for (uint32_t i = 0; status == MUSTER_OK && dims->count > 1 && i < dims->count; i++) {
        status = buf_printf(text, " %" PRIu64, dims->sizes[i]);
    }
    return status ? status : buf_printf(text, "\n");
}

static int describe(const struct muster_fsdp *fsdp, const struct unit_item *items, struct buf *text) {
    const struct muster_fsdp_options *o = &fsdp->options;
    buf_init(text, AGREEMENT_BYTES_MAX);
    int status = buf_printf(
        text,
        "option sharding: %s\noption reshard_after_forward: %s\noption prefetch: %u\noption compute_type: %s\n"
        "option gradient_type: %s\noption reduce_type: %s\noption find_unused: %s\noption check_finite: %s\n"
        "option uneven_inputs: %s\noption divide_by_active: %s\noption fill: %s\noption hook: %s\n"
        "option virtual_ranks: %zu\n",
        o->sharding == MUSTER_FSDP_HYBRID ? "hybrid" : "full", agreement_truth(o->reshard_after_forward), o->prefetch,
        muster_type_name(o->compute_type), muster_type_name(o->gradient_type), muster_type_name(o->reduce_type),
        agreement_truth(o->find_unused), agreement_truth(o->check_finite), agreement_truth(o->uneven_inputs),
        agreement_truth(o->divide_by_active), o->fill ? "a function" : "NULL", o->hook ? o->hook->name : "none",
        o->virtual_ranks);
    for (uint32_t u = 0; status == MUSTER_OK && u < fsdp->unit_count; u++) {
        const struct fsdp_unit *unit = &fsdp->units[u];
        status = buf_printf(text, "unit %u: %s, %u parameters\n", u, unit->name, unit->item_count);
        for (uint32_t i = unit->first; status == MUSTER_OK && i < unit->first + unit->item_count; i++) {
            status = describe_parameter(fsdp, &items[i], i, text);
        }
    }
    return status;
}

int fsdp_model_agree(const struct muster_fsdp *fsdp, const struct unit_item *items, struct muster_group *group) {
    struct buf text;
    int status = describe(fsdp, items, &text);
    status = status ? status : agreement_compare(group, &text);
    buf_done(&text);
    return status;
}
