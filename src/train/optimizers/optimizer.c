/* The optimizers' memory and options; the arithmetic is in optimizer_kernels.c. See muster/optimizer.h. */
#include <muster/optimizer.h>

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/sized.h"
#include "base/status.h"
#include "base/str.h"
#include "train/optimizers/optimizer_kernels.h"

enum { SLOTS_MAX = 2, ALIGNMENT_FLOATS = 16 };
#define STEPS_NAME "optimizer.steps"

enum kind { KIND_SGD, KIND_ADADELTA, KIND_ADAMW };

/* What each kind remembers of each element; NULL ends the list. PyTorch's names. */
static const char *const slot_names[][SLOTS_MAX + 1] = {
    [KIND_SGD] = {"momentum_buffer"},
    [KIND_ADADELTA] = {"square_avg", "acc_delta"},
    [KIND_ADAMW] = {"exp_avg", "exp_avg_sq"},
};

struct parameter {
    float *data; /* the caller's */
    size_t count;
    float *slots[SLOTS_MAX]; /* in `memory` */
    char *slot_names[SLOTS_MAX];
};

struct muster_optimizer {
    enum kind kind;
    union {
        struct muster_sgd_options sgd;
        struct muster_adadelta_options adadelta;
        struct muster_adamw_options adamw;
    } options;
    double learning_rate;
    size_t slot_count;
    struct parameter *parameters;
    size_t parameter_count;
    int64_t *steps; /* of each parameter */
    float *memory;
};

/* ---- making one ---- */

static int check_parameters(const struct muster_optimizer_parameter *parameters, size_t count, size_t *out_floats) {
    size_t floats = 0;
    if (count == 0 || count > MUSTER_OPTIMIZER_PARAMETERS_MAX) {
        return status_fail(MUSTER_ELIMIT, "an optimizer of %zu parameters; 1 to %zu are possible", count,
                           MUSTER_OPTIMIZER_PARAMETERS_MAX);
    }
    for (size_t i = 0; i < count; i++) {
        if (!parameters[i].name || parameters[i].name[0] == '\0' || !parameters[i].data) {
            return status_fail(MUSTER_EINVAL, "parameter %zu has no name or no data", i);
        }
        if (parameters[i].count > SIZE_MAX / 64 || floats > SIZE_MAX / 64) {
            return status_fail(MUSTER_ELIMIT, "parameter %s is too large", parameters[i].name);
        }
        floats += (parameters[i].count + ALIGNMENT_FLOATS - 1) / ALIGNMENT_FLOATS * ALIGNMENT_FLOATS;
    }
    *out_floats = floats;
    return 0;
}

static bool name_slots(struct muster_optimizer *optimizer, const char *name, struct parameter *parameter) {
    for (size_t slot = 0; slot < optimizer->slot_count; slot++) {
        parameter->slot_names[slot] = str_format_new("optimizer.%s.%s", slot_names[optimizer->kind][slot], name);
        if (!parameter->slot_names[slot]) {
            return false;
        }
    }
    return true;
}

static int fill(struct muster_optimizer *optimizer, const struct muster_optimizer_parameter *parameters, size_t count,
                size_t floats) {
    optimizer->parameters = calloc(count, sizeof *optimizer->parameters);
    optimizer->steps = calloc(count, sizeof *optimizer->steps);
    size_t bytes = (floats * optimizer->slot_count + ALIGNMENT_FLOATS) * sizeof(float);
    optimizer->memory = aligned_alloc(ALIGNMENT_FLOATS * sizeof(float), bytes);
    if (!optimizer->parameters || !optimizer->steps || !optimizer->memory) {
        return status_fail(MUSTER_ENOMEM, "no memory for an optimizer of %zu parameters", count);
    }
    memset(optimizer->memory, 0, bytes);
    float *free_memory = optimizer->memory;
    for (size_t i = 0; i < count; i++) {
        struct parameter *parameter = &optimizer->parameters[optimizer->parameter_count++];
        *parameter = (struct parameter){.data = parameters[i].data, .count = parameters[i].count};
        if (!name_slots(optimizer, parameters[i].name, parameter)) {
            return status_fail(MUSTER_ENOMEM, "no memory for an optimizer of %zu parameters", count);
        }
        for (size_t slot = 0; slot < optimizer->slot_count; slot++) {
            parameter->slots[slot] = free_memory;
            free_memory += (parameters[i].count + ALIGNMENT_FLOATS - 1) / ALIGNMENT_FLOATS * ALIGNMENT_FLOATS;
        }
    }
    return 0;
}

/* `made` has kind, options, rate and slot_count. */
static int create_from(const struct muster_optimizer *made, const struct muster_optimizer_parameter *parameters,
                       size_t count, struct muster_optimizer **out) {
    size_t floats = 0;
    int code = check_parameters(parameters, count, &floats);
    if (code) {
        return code;
    }
    struct muster_optimizer *optimizer = malloc(sizeof *optimizer);
    if (!optimizer) {
        return status_fail(MUSTER_ENOMEM, "no memory for an optimizer");
    }
    *optimizer = *made;
    code = fill(optimizer, parameters, count, floats);
    if (code) {
        muster_optimizer_free(optimizer);
        return code;
    }
    *out = optimizer;
    return 0;
}

/* With the caller's parameters, of whatever version. */
static int create(const struct muster_optimizer *made, const struct muster_optimizer_parameter *parameters,
                  size_t parameter_bytes, size_t count, struct muster_optimizer **out) {
    struct sized_array own = {NULL, NULL};
    if (!out) {
        return status_fail_null("muster_optimizer_create", "out");
    }
    int code = count > MUSTER_OPTIMIZER_PARAMETERS_MAX
                   ? 0 /* refused below */
                   : sized_read_array(&own, sizeof *parameters, parameters, parameter_bytes, count, sizeof *parameters,
                                      "muster_optimizer_parameter");
    code = code ? code : create_from(made, own.items, count, out);
    free(own.owned);
    return code;
}

void muster_optimizer_free(struct muster_optimizer *optimizer) {
    if (!optimizer) {
        return;
    }
    for (size_t i = 0; i < optimizer->parameter_count; i++) {
        for (size_t slot = 0; slot < SLOTS_MAX; slot++) {
            free(optimizer->parameters[i].slot_names[slot]);
        }
    }
    free(optimizer->parameters);
    free(optimizer->steps);
    free(optimizer->memory);
    free(optimizer);
}

/* Is it a number from `low` on, below `high`? */
static bool within(double number, double low, double high) {
    return number >= low && number < high;
}

int muster_optimizer_create_sgd_sized(const struct muster_optimizer_parameter *parameters, size_t parameter_bytes,
                                      size_t count, const struct muster_sgd_options *options,
                                      struct muster_optimizer **out) {
    struct muster_sgd_options own = MUSTER_SGD_OPTIONS_INIT;
    const struct muster_sgd_options *o = &own;
    int code = sized_read_options(&own, sizeof own, options, "muster_sgd_options", "MUSTER_SGD_OPTIONS_INIT");
    if (code) {
        return code;
    }
    if (!within(o->learning_rate, 0, INFINITY) || !within(o->momentum, 0, INFINITY) ||
        !within(o->weight_decay, 0, INFINITY) || !isfinite(o->dampening) ||
        (o->nesterov && (o->momentum <= 0 || o->dampening != 0))) {
        return status_fail(MUSTER_EINVAL,
                           "SGD with learning rate %g, momentum %g, dampening %g, weight decay %g%s: none may be "
                           "negative, and nesterov needs a momentum and no dampening",
                           o->learning_rate, o->momentum, o->dampening, o->weight_decay,
                           o->nesterov ? ", nesterov" : "");
    }
    struct muster_optimizer made = {.kind = KIND_SGD, .options.sgd = *o, .learning_rate = o->learning_rate};
    made.slot_count = o->momentum > 0 ? 1 : 0;
    return create(&made, parameters, parameter_bytes, count, out);
}

int muster_optimizer_create_adadelta_sized(const struct muster_optimizer_parameter *parameters, size_t parameter_bytes,
                                           size_t count, const struct muster_adadelta_options *options,
                                           struct muster_optimizer **out) {
    struct muster_adadelta_options own = MUSTER_ADADELTA_OPTIONS_INIT;
    const struct muster_adadelta_options *o = &own;
    int code = sized_read_options(&own, sizeof own, options, "muster_adadelta_options", "MUSTER_ADADELTA_OPTIONS_INIT");
    if (code) {
        return code;
    }
    if (!within(o->learning_rate, 0, INFINITY) || !(o->rho >= 0 && o->rho <= 1) || !within(o->epsilon, 0, INFINITY) ||
        !within(o->weight_decay, 0, INFINITY)) {
        return status_fail(MUSTER_EINVAL,
                           "Adadelta with learning rate %g, rho %g, epsilon %g, weight decay %g: none may be negative, "
                           "rho at most 1",
                           o->learning_rate, o->rho, o->epsilon, o->weight_decay);
    }
    struct muster_optimizer made = {.kind = KIND_ADADELTA, .options.adadelta = *o, .learning_rate = o->learning_rate};
    made.slot_count = 2;
    return create(&made, parameters, parameter_bytes, count, out);
}

int muster_optimizer_create_adamw_sized(const struct muster_optimizer_parameter *parameters, size_t parameter_bytes,
                                        size_t count, const struct muster_adamw_options *options,
                                        struct muster_optimizer **out) {
    struct muster_adamw_options own = MUSTER_ADAMW_OPTIONS_INIT;
    const struct muster_adamw_options *o = &own;
    int code = sized_read_options(&own, sizeof own, options, "muster_adamw_options", "MUSTER_ADAMW_OPTIONS_INIT");
    if (code) {
        return code;
    }
    if (!within(o->learning_rate, 0, INFINITY) || !within(o->beta1, 0, 1) || !within(o->beta2, 0, 1) ||
        !within(o->epsilon, 0, INFINITY) || !within(o->weight_decay, 0, INFINITY)) {
        return status_fail(MUSTER_EINVAL,
                           "AdamW with learning rate %g, betas %g and %g, epsilon %g, weight decay %g: none may be "
                           "negative, betas below 1",
                           o->learning_rate, o->beta1, o->beta2, o->epsilon, o->weight_decay);
    }
    struct muster_optimizer made = {.kind = KIND_ADAMW, .options.adamw = *o, .learning_rate = o->learning_rate};
    made.slot_count = 2;
    return create(&made, parameters, parameter_bytes, count, out);
}

/* ---- stepping ---- */

static void step_sgd(const struct muster_optimizer *optimizer, struct parameter *p, const float *gradient,
                     int64_t step) {
    const struct muster_sgd_options *o = &optimizer->options.sgd;
    struct sgd_factors factors = {.rate = (float)optimizer->learning_rate,
                                  .momentum = (float)o->momentum,
                                  .undamped = (float)(1 - o->dampening),
                                  .decay = (float)o->weight_decay,
                                  .nesterov = o->nesterov};
    kernel_sgd(p->data, gradient, p->slots[0], p->count, &factors, step == 1);
}

static void step_adadelta(const struct muster_optimizer *optimizer, struct parameter *p, const float *gradient) {
    const struct muster_adadelta_options *o = &optimizer->options.adadelta;
    struct adadelta_factors factors = {.rate = (float)optimizer->learning_rate,
                                       .rho = (float)o->rho,
                                       .one_minus_rho = (float)(1 - o->rho),
                                       .epsilon = (float)o->epsilon,
                                       .decay = (float)o->weight_decay};
    kernel_adadelta(p->data, gradient, p->slots[0], p->slots[1], p->count, &factors);
}

static void step_adamw(const struct muster_optimizer *optimizer, struct parameter *p, const float *gradient,
                       int64_t step) {
    const struct muster_adamw_options *o = &optimizer->options.adamw;
    struct adamw_factors factors = {
        .shrink = (float)(1 - optimizer->learning_rate * o->weight_decay),
        .one_minus_beta1 = (float)(1 - o->beta1),
        .beta2 = (float)o->beta2,
        .one_minus_beta2 = (float)(1 - o->beta2),
        .rate = (float)(optimizer->learning_rate / (1 - pow(o->beta1, (double)step))),
        .root_bias = (float)sqrt(1 - pow(o->beta2, (double)step)),
        .epsilon = (float)o->epsilon,
    };
    kernel_adamw(p->data, gradient, p->slots[0], p->slots[1], p->count, &factors);
}

int muster_optimizer_step(struct muster_optimizer *optimizer, const float *const *gradients) {
    if (!optimizer || !gradients) {
        return status_fail_null("muster_optimizer_step", optimizer ? "gradients" : "optimizer");
    }
    for (size_t i = 0; i < optimizer->parameter_count; i++) {
        struct parameter *parameter = &optimizer->parameters[i];
        if (!gradients[i]) {
            continue;
        }
        int64_t step = ++optimizer->steps[i];
        switch (optimizer->kind) {
        case KIND_SGD:
            step_sgd(optimizer, parameter, gradients[i], step);
            break;
        case KIND_ADADELTA:
            step_adadelta(optimizer, parameter, gradients[i]);
            break;
        case KIND_ADAMW:
            step_adamw(optimizer, parameter, gradients[i], step);
            break;
        }
    }
    return 0;
}

int muster_optimizer_set_learning_rate(struct muster_optimizer *optimizer, double learning_rate) {
    if (!optimizer) {
        return status_fail_null("muster_optimizer_set_learning_rate", "optimizer");
    }
    if (!within(learning_rate, 0, INFINITY)) {
        return status_fail(MUSTER_EINVAL, "a learning rate of %g; it must be a number >= 0", learning_rate);
    }
    optimizer->learning_rate = learning_rate;
    return 0;
}

double muster_optimizer_learning_rate(const struct muster_optimizer *optimizer) {
    if (!optimizer) {
        (void)status_fail_null("muster_optimizer_learning_rate", "optimizer");
        return 0;
    }
    return optimizer->learning_rate;
}

/* ---- what is remembered ---- */

size_t muster_optimizer_tensor_count(const struct muster_optimizer *optimizer) {
    if (!optimizer) {
        (void)status_fail_null("muster_optimizer_tensor_count", "optimizer");
        return 0;
    }
    return optimizer->slot_count == 0 ? 0 : optimizer->slot_count * optimizer->parameter_count + 1;
}

int muster_optimizer_tensors_sized(struct muster_optimizer *optimizer, struct muster_tensor *out, size_t tensor_bytes) {
    if (!optimizer || !out) {
        return status_fail_null("muster_optimizer_tensors", optimizer ? "out" : "optimizer");
    }
    uint8_t *at = (uint8_t *)out;
    for (size_t i = 0; optimizer->slot_count > 0 && i < optimizer->parameter_count; i++) {
        const struct parameter *parameter = &optimizer->parameters[i];
        for (size_t slot = 0; slot < optimizer->slot_count; slot++) {
            struct muster_tensor tensor = {.name = parameter->slot_names[slot],
                                           .type = MUSTER_FLOAT32,
                                           .dim_count = 1,
                                           .shape = {parameter->count},
                                           .data = parameter->slots[slot]};
            sized_write(at, tensor_bytes, &tensor, sizeof tensor);
            at += tensor_bytes;
        }
    }
    struct muster_tensor steps = {.name = STEPS_NAME,
                                  .type = MUSTER_INT64,
                                  .dim_count = 1,
                                  .shape = {optimizer->parameter_count},
                                  .data = optimizer->steps};
    if (optimizer->slot_count > 0) {
        sized_write(at, tensor_bytes, &steps, sizeof steps);
    }
    return 0;
}
