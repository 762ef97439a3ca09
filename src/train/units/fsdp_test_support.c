/* See fsdp_test_support.h. */
#include "train/units/fsdp_test_support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include <muster/collective.h>
#include <muster/optimizer.h>
#include <muster/virtual_ranks.h>

/* Sizes with and without remainders; one is smaller than a cache line. */
const size_t parameter_counts[PARAMETERS] = {300, 7, 64, 1000, 33, 1, 500, 64, 16, 1200, 5};
const uint32_t parameter_units[PARAMETERS] = {0, 0, 1, 1, 1, 2, 2, 2, 3, 4, 4};
const char *const parameter_names[PARAMETERS] = {"embedding", "position", "norm1",  "w1",    "b1",  "scale",
                                                 "w2",        "b2",       "narrow", "final", "bias"};
static const char *const unit_names[UNITS] = {"embedding", "block 0", "block 1", "middle", "head"};
static const struct muster_adamw_options adamw = {sizeof adamw, 0.01, 0.9, 0.99, 1e-8, 0.1};
static const struct muster_adamw_options adamw_plain = {sizeof adamw_plain, 0.02, 0.9, 0.99, 1e-8, 0};
static const struct muster_optimizer_group adamw_groups[2] = {{.adamw = &adamw}, {.adamw = &adamw_plain}};

enum { MATRIX = 3 }; /* the parameter that has two dimensions */
static const uint64_t matrix_rows = 25;

static float number_of(uint32_t rank, uint32_t step, size_t parameter, size_t element) {
    uint32_t seed = ((rank * 131 + step) * 31 + (uint32_t)parameter) * 4099 + (uint32_t)element;
    seed = (seed ^ seed >> 15) * 0x2c1b3c6dU;
    seed = (seed ^ seed >> 12) * 0x297a2d39U;
    return (float)(int32_t)(seed ^ seed >> 15) * 0x1p-30F;
}

static float gradient_of(uint32_t rank, uint32_t step, size_t parameter, size_t element, float value) {
    return 0.25F * value + number_of(rank, step, parameter, element);
}

int fill_parameter(void *context, size_t unit, size_t parameter, float *values) {
    (void)context;
    (void)unit;
    for (size_t i = 0; i < parameter_counts[parameter]; i++) {
        values[i] = number_of(77, 0, parameter, i);
    }
    return 0;
}

struct muster_tensor job_parameter(size_t parameter, float *values) {
    struct muster_tensor tensor = {.name = parameter_names[parameter],
                                   .type = MUSTER_FLOAT32,
                                   .dim_count = 1,
                                   .shape = {parameter_counts[parameter]},
                                   .data = values};
    if (parameter == MATRIX) {
        tensor.dim_count = 2;
        tensor.shape[0] = matrix_rows;
        tensor.shape[1] = parameter_counts[parameter] / matrix_rows;
    }
    return tensor;
}

static const struct muster_optimizer_group *groups_of_options(const struct job *job) {
    static struct muster_sgd_options sgd = MUSTER_SGD_OPTIONS_INIT;
    static struct muster_optimizer_group groups[2];
    sgd.learning_rate = 0.01;
    sgd.momentum = 0.9;
    groups[0].sgd = groups[1].sgd = &sgd;
    return job->momentum ? groups : adamw_groups;
}

static bool is_frozen(const struct job *job, size_t parameter) {
    return job->frozen >> parameter & 1;
}

const struct muster_fsdp_unit *job_units(const struct job *job) {
    static struct muster_fsdp_parameter parameters[PARAMETERS];
    static struct muster_fsdp_unit units[UNITS];
    memset(units, 0, sizeof units);
    for (size_t i = 0; i < PARAMETERS; i++) {
        struct muster_fsdp_unit *unit = &units[parameter_units[i]];
        parameters[i] = (struct muster_fsdp_parameter){.name = parameter_names[i],
                                                       .count = parameter_counts[i],
                                                       .block = i == 3 ? job->block : 0,
                                                       .frozen = is_frozen(job, i),
                                                       .dim_count = i == MATRIX ? 2 : 0,
                                                       .shape = {matrix_rows, parameter_counts[i] / matrix_rows}};
        unit->name = unit_names[parameter_units[i]];
        unit->parameters = unit->parameter_count == 0 ? &parameters[i] : unit->parameters;
        unit->parameter_count++;
    }
    return units;
}

/* ---- one process ---- */

static float to_bfloat16(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000U;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float rounded(enum muster_type type, float value) {
    return type == MUSTER_BFLOAT16 ? to_bfloat16(value) : value;
}

static bool uses_unit(const struct job *job, uint32_t step, uint32_t unit) {
    return !(job->skipped > 0 && unit == job->skipped && step % 2 == 1);
}

static bool has_batch(const struct job *job, uint32_t rank, uint32_t step) {
    return step < job->steps - rank * job->batches;
}

/* What this rank's passes over the parts of one optimizer step leave as gradient of an element. */
static float own_gradient(const struct job *job, uint32_t rank, uint32_t step, size_t parameter, size_t element,
                          float value) {
    uint32_t unit = parameter_units[parameter];
    float sum = 0, seen = rounded(job->options.compute_type, value);
    for (uint32_t part = 0; part <= job->before_count; part++) {
        uint32_t uses = unit == 0 && job->uses_first_twice ? 2 : 1;
        for (uint32_t use = 0; use < uses && uses_unit(job, step, unit); use++) {
            float next = gradient_of(rank, step * 8 + part * 2 + use, parameter, element, seen);
            sum = rounded(job->options.gradient_type, sum + next);
        }
    }
    return has_batch(job, rank, step) ? sum : 0;
}

/* Virtual ranks from `begin` on, `width` of them as far as there are so many: added up as muster/virtual_ranks.h says.
 */
static float tree_sum(const struct job *job, uint32_t step, size_t p, size_t i, float value, uint32_t begin,
                      uint32_t width) {
    if (width == 1) {
        return rounded(job->options.reduce_type, own_gradient(job, begin, step, p, i, value));
    }
    uint32_t middle = begin + width / 2;
    float left = tree_sum(job, step, p, i, value, begin, width / 2);
    return middle >= job->options.virtual_ranks
               ? left
               : rounded(job->options.reduce_type, left + tree_sum(job, step, p, i, value, middle, width / 2));
}

static double virtual_average(const struct job *job, uint32_t step, struct reference *r) {
    enum { MOST = 64 };
    double squares = 0;
    const float *ranges[PARAMETERS];
    for (size_t p = 0; p < PARAMETERS; p++) {
        for (size_t i = 0; !is_frozen(job, p) && i < parameter_counts[p]; i++) {
            float sum = tree_sum(job, step, p, i, r->values[p][i], 0, MOST);
            r->averages[p][i] = rounded(job->options.reduce_type, sum / (float)job->options.virtual_ranks);
        }
        ranges[p] = is_frozen(job, p) ? NULL : r->averages[p];
    }
    return muster_exact_squared_norm(NULL, ranges, parameter_counts, PARAMETERS, &squares) == 0 ? sqrt(squares) : -1;
}

static double reference_average(const struct job *job, uint32_t size, uint32_t step, struct reference *r) {
    double squares = 0;
    uint32_t active = 0;
    for (uint32_t rank = 0; rank < size; rank++) {
        active += has_batch(job, rank, step);
    }
    for (size_t p = 0; p < PARAMETERS; p++) {
        for (size_t i = 0; !is_frozen(job, p) && i < parameter_counts[p]; i++) {
            float sum = own_gradient(job, 0, step, p, i, r->values[p][i]);
            for (uint32_t rank = 1; rank < size; rank++) {
                sum += own_gradient(job, rank, step, p, i, r->values[p][i]);
            }
            r->averages[p][i] = sum / (float)(job->options.divide_by_active ? active : size);
            squares += (double)r->averages[p][i] * (double)r->averages[p][i];
        }
    }
    return sqrt(squares);
}

static size_t group_of(size_t parameter) {
    return parameter % 3 == 0;
}

void reference_init(struct rank *rank, const struct job *job, struct reference *out) {
    struct muster_optimizer_range ranges[PARAMETERS];
    size_t count = 0;
    for (size_t p = 0; p < PARAMETERS; p++) {
        out->values[p] = calloc(parameter_counts[p], sizeof(float));
        out->averages[p] = calloc(parameter_counts[p], sizeof(float));
        (void)fill_parameter(NULL, 0, p, out->values[p]);
        if (!is_frozen(job, p)) {
            ranges[count++] =
                (struct muster_optimizer_range){parameter_names[p], out->values[p], parameter_counts[p], group_of(p)};
        }
    }
    rank_check_code(rank, muster_optimizer_create(ranges, count, groups_of_options(job), 2, &out->optimizer), 0);
}

void reference_run(struct rank *rank, const struct job *job, uint32_t size, uint32_t first, struct reference *r) {
    for (uint32_t step = first; step < job->steps; step++) {
        const float *gradients[PARAMETERS];
        struct muster_optimizer_step_options options = MUSTER_OPTIMIZER_STEP_OPTIONS_INIT;
        double norm = job->options.virtual_ranks > 0
                          ? virtual_average(job, step, r)
                          : reference_average(job, step < job->first_step ? job->first_size : size, step, r);
        size_t at = 0;
        for (size_t p = 0; p < PARAMETERS; p++) {
            if (!is_frozen(job, p)) {
                gradients[at++] = r->averages[p];
            }
        }
        options.gradient_scale = job->norm_max > 0 ? muster_clip_scale(norm, job->norm_max) : 1;
        rank_check_code(rank, muster_optimizer_step_into(r->optimizer, gradients, &options), 0);
    }
}

void reference_free(struct reference *r) {
    muster_optimizer_free(r->optimizer);
    for (size_t p = 0; p < PARAMETERS; p++) {
        free(r->values[p]);
        free(r->averages[p]);
    }
}

/* ---- several ranks ---- */

struct run {
    struct rank *rank;
    struct muster_group *group;
    const struct job *job;
    struct muster_fsdp *fsdp;
    struct muster_optimizer *optimizer;
};

static float read_value(const struct job *job, const void *parameters, size_t at) {
    if (job->options.compute_type == MUSTER_FLOAT32) {
        return ((const float *)parameters)[at];
    }
    uint32_t bits = (uint32_t)((const uint16_t *)parameters)[at] << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void write_gradient(const struct job *job, const struct muster_fsdp_view *view, size_t at, float value) {
    if (job->options.gradient_type == MUSTER_FLOAT32) {
        float *gradients = view->gradients;
        gradients[at] = (view->add ? gradients[at] : 0) + value;
        return;
    }
    uint16_t *gradients = view->gradients;
    uint32_t bits = (uint32_t)gradients[at] << 16;
    float before;
    memcpy(&before, &bits, sizeof before);
    float sum = to_bfloat16((view->add ? before : 0) + value);
    memcpy(&bits, &sum, sizeof bits);
    gradients[at] = (uint16_t)(bits >> 16);
}

/* share: the rank's number, or that of a virtual rank. */
static void backward_parameter(const struct run *run, const struct muster_fsdp_view *view, size_t p, uint32_t share,
                               uint32_t number) {
    size_t offset = muster_fsdp_offset(run->fsdp, p);
    for (size_t i = 0; i < parameter_counts[p]; i++) {
        float value = read_value(run->job, view->parameters, offset + i);
        write_gradient(run->job, view, offset + i, gradient_of(share, number, p, i, value));
    }
}

/* One use of a unit. In the forward pass it is looked at, so that what reads too late is noticed by its checker. */
static int use_unit(const struct run *run, uint32_t unit, enum muster_fsdp_pass pass, uint32_t share, uint32_t number) {
    struct muster_fsdp_view view;
    int status = muster_fsdp_acquire(run->fsdp, unit, pass, &view);
    rank_check(run->rank, status != 0 || ((uintptr_t)view.parameters | (uintptr_t)view.gradients) % 64 == 0);
    for (size_t p = 0; status == 0 && pass == MUSTER_FSDP_BACKWARD && p < PARAMETERS; p++) {
        if (parameter_units[p] == unit && !is_frozen(run->job, p)) {
            backward_parameter(run, &view, p, share, number);
        }
    }
    return status ? status : muster_fsdp_release(run->fsdp, unit, pass);
}

static int pass_over(const struct run *run, uint32_t share, uint32_t step, uint32_t part, enum muster_fsdp_pass pass) {
    int status = 0;
    bool is_forward = pass == MUSTER_FSDP_FORWARD, is_twice = run->job->uses_first_twice;
    uint32_t number = step * 8 + part * 2;
    /* The gradients of the first unit are added up in the order of `number`. */
    if (!is_forward && is_twice) {
        status = use_unit(run, 0, pass, share, number);
    }
    for (uint32_t i = 0; status == 0 && i < UNITS; i++) {
        uint32_t unit = is_forward ? i : UNITS - 1 - i;
        if (uses_unit(run->job, step, unit)) {
            status = use_unit(run, unit, pass, share, number + (unit == 0 && is_twice));
        }
    }
    return status || !is_forward || !is_twice ? status : use_unit(run, 0, pass, share, number);
}

static int run_part(const struct run *run, uint32_t share, uint32_t step, uint32_t part) {
    enum muster_fsdp_step_kind kind = part < run->job->before_count ? run->job->before[part] : MUSTER_FSDP_STEP;
    int status = muster_fsdp_begin(run->fsdp, kind);
    status = status ? status : pass_over(run, share, step, part, MUSTER_FSDP_FORWARD);
    status = status ? status : pass_over(run, share, step, part, MUSTER_FSDP_BACKWARD);
    return status ? status : muster_fsdp_finish(run->fsdp);
}

static int optimize(const struct run *run) {
    double scale = 1, squares = 0;
    int status = 0;
    if (run->job->norm_max > 0) {
        status = muster_fsdp_squared_norm(run->fsdp, &squares);
        scale = muster_clip_scale(sqrt(squares), run->job->norm_max);
    }
    return status ? status : muster_fsdp_step(run->fsdp, run->optimizer, scale);
}

static int call(job_hook *hook, const struct run *run) {
    return hook ? hook(run->rank, run->job, run->fsdp, run->optimizer) : 0;
}

/* A pass for each virtual rank of this rank; one without. */
static int run_shares(const struct run *run, uint32_t step, uint32_t part) {
    uint32_t share = run->rank->rank, stride = 0, count = 1;
    int status = 0;
    if (run->job->options.virtual_ranks > 0) {
        status = muster_virtual_turns(run->group, run->job->options.virtual_ranks, &share, &stride, &count);
    }
    for (uint32_t i = 0; status == 0 && i < count; i++, share += stride) {
        status = run_part(run, share, step, part);
        status = status ? status : call(run->job->after_share, run);
    }
    return status;
}

static int run_steps(const struct run *run) {
    int status = 0;
    uint32_t step = run->job->first_step;
    for (; status == 0 && has_batch(run->job, run->rank->rank, step); step++) {
        for (uint32_t part = 0; status == 0 && part <= run->job->before_count; part++) {
            status = run_shares(run, step, part);
        }
        status = status ? status : optimize(run);
        status = status ? status : call(run->job->after_step, run);
    }
    bool stepped = run->job->options.uneven_inputs;
    while (status == 0 && stepped) {
        status = muster_fsdp_shadow(run->fsdp, &stepped);
        status = status || !stepped ? status : optimize(run);
        status = status || !stepped ? status : call(run->job->after_step, run);
    }
    return status;
}

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* MPI adds in an order of its own: as close as two hosts. */
static bool is_close(const struct job *job, float value, float expected) {
    double tolerance = job->tolerance > 0 || !ranks_use_engine("mpi") ? job->tolerance : 4e-6;
    return tolerance > 0 ? fabs((double)value - (double)expected) <= tolerance : bits_of(value) == bits_of(expected);
}

/* Every rank reads all parameters, as a program would. */
static void compare(const struct run *run, const struct reference *r) {
    struct muster_fsdp_view view;
    rank_check_code(run->rank, muster_fsdp_begin(run->fsdp, MUSTER_FSDP_EVALUATE), 0);
    for (uint32_t unit = 0; unit < UNITS; unit++) {
        rank_check_code(run->rank, muster_fsdp_acquire(run->fsdp, unit, MUSTER_FSDP_FORWARD, &view), 0);
        for (size_t p = 0; p < PARAMETERS; p++) {
            size_t offset = muster_fsdp_offset(run->fsdp, p);
            for (size_t i = 0; parameter_units[p] == unit && i < parameter_counts[p]; i++) {
                float expected = rounded(run->job->options.compute_type, r->values[p][i]);
                rank_check(run->rank, is_close(run->job, read_value(run->job, view.parameters, offset + i), expected));
            }
        }
        rank_check_code(run->rank, muster_fsdp_release(run->fsdp, unit, MUSTER_FSDP_FORWARD), 0);
    }
    rank_check_code(run->rank, muster_fsdp_finish(run->fsdp), 0);
}

static void train_and_compare(const struct run *run) {
    struct reference reference;
    if (call(run->job->prepare, run) != 0) {
        return;
    }
    int status = run_steps(run);
    if (run->job->fails) {
        rank_check(run->rank, status != 0);
        return;
    }
    rank_check_code(run->rank, status, 0);
    if (call(run->job->conclude, run) != 0) {
        return;
    }
    reference_init(run->rank, run->job, &reference);
    reference_run(run->rank, run->job, run->rank->size, 0, &reference);
    compare(run, &reference);
    reference_free(&reference);
}

void job_run(struct rank *rank, const struct job *job, struct muster_group *group) {
    struct run run = {.rank = rank, .job = job, .group = group};
    struct muster_fsdp_options options = job->options;
    size_t groups_of[PARAMETERS], learning = 0;
    options.fill = fill_parameter;
    for (size_t p = 0; p < PARAMETERS; p++) {
        if (!is_frozen(job, p)) {
            groups_of[learning++] = group_of(p);
        }
    }
    rank_check_code(rank, muster_fsdp_create(group, job_units(job), UNITS, &options, &run.fsdp), 0);
    rank_check_code(rank, muster_fsdp_optimizer(run.fsdp, groups_of, groups_of_options(job), 2, &run.optimizer), 0);
    train_and_compare(&run);
    muster_optimizer_free(run.optimizer);
    muster_fsdp_free(run.fsdp);
}

int job_body(struct rank *rank, void *argument) {
    const struct job *job = argument;
    if (job->environment) {
        rank_check(rank, putenv((char *)(uintptr_t)job->environment) == 0);
    }
    struct muster_group *group = rank_group(rank, NULL);
    job_run(rank, job, group);
    muster_group_free(group);
    return 0;
}

void job_check(uint32_t size, const struct job *job) {
    ranks_run_with(size, job_body, (void *)(uintptr_t)job, &job->ranks);
}
