/* One step of an optimizer, in place or into other memory. See muster/optimizer.h; the arithmetic is in
 * optimizer_kernels.c. */
#include <math.h>

#include "base/sized.h"
#include "base/status.h"
#include "train/optimizers/optimizer_impl.h"

/* Of all that is written elsewhere in a step. Less is taken to stay in the caches until it is read. */
#define PAST_CACHES_BYTES_MIN ((size_t)12 << 20)

/* ---- the numbers in the formulas ---- */

static struct optimizer_factors factors_of_adam(const struct optimizer_settings *settings, const double betas[2],
                                                double epsilon, int64_t step) {
    return (struct optimizer_factors){
        .shrink = 1,
        .one_minus_beta1 = (float)(1 - betas[0]),
        .beta2 = (float)betas[1],
        .one_minus_beta2 = (float)(1 - betas[1]),
        .rate = (float)(settings->learning_rate / (1 - pow(betas[0], (double)step))),
        .root_bias = (float)sqrt(1 - pow(betas[1], (double)step)),
        .epsilon = (float)epsilon,
    };
}

static struct optimizer_factors factors_of_sgd(const struct optimizer_settings *settings, int64_t step) {
    const struct muster_sgd_options *o = &settings->options.sgd;
    return (struct optimizer_factors){
        .rate = (float)settings->learning_rate,
        .momentum = (float)o->momentum,
        .undamped = step == 1 ? 1 : (float)(1 - o->dampening), /* b is zero in the first step: b = d */
        .decay = (float)o->weight_decay,
    };
}

static struct optimizer_factors factors_of_adadelta(const struct optimizer_settings *settings) {
    const struct muster_adadelta_options *o = &settings->options.adadelta;
    return (struct optimizer_factors){
        .rate = (float)settings->learning_rate,
        .rho = (float)o->rho,
        .one_minus_rho = (float)(1 - o->rho),
        .epsilon = (float)o->epsilon,
        .decay = (float)o->weight_decay,
    };
}

/* step: 1 in the first one. */
static struct optimizer_factors factors_of(const struct optimizer_settings *settings, int64_t step) {
    const struct muster_adam_options *adam = &settings->options.adam;
    const struct muster_adamw_options *adamw = &settings->options.adamw;
    struct optimizer_factors factors = {0};
    switch (settings->kind) {
    case KIND_SGD:
        return factors_of_sgd(settings, step);
    case KIND_ADADELTA:
        return factors_of_adadelta(settings);
    case KIND_ADAM:
        factors = factors_of_adam(settings, (const double[]){adam->beta1, adam->beta2}, adam->epsilon, step);
        factors.decay = (float)adam->weight_decay;
        return factors;
    case KIND_ADAMW:
        factors = factors_of_adam(settings, (const double[]){adamw->beta1, adamw->beta2}, adamw->epsilon, step);
        factors.shrink = (float)(1 - settings->learning_rate * adamw->weight_decay);
        return factors;
    }
    return factors;
}

/* ---- from where to where ---- */

/* What the caller wants, complete and checked. */
struct plan {
    const float *const *gradients;
    struct muster_optimizer_memory out;
    uint16_t *const *bfloat16;
    float scale;
    bool past_caches;
};

/* state: the destinations of the range's slots, or NULL. */
static struct optimizer_span span_of(const struct plan *plan, const struct optimizer_range *range, size_t index,
                                     float *const *state) {
    float *parameter_out = plan->out.parameters ? plan->out.parameters[index] : NULL;
    struct optimizer_span span = {.count = range->count,
                                  .gradient = plan->gradients[index],
                                  .parameter = range->data,
                                  .parameter_out = parameter_out ? parameter_out : range->data,
                                  .bfloat16_out = plan->bfloat16 ? plan->bfloat16[index] : NULL};
    for (size_t slot = 0; slot < range->slot_count; slot++) {
        span.slots[slot] = range->slots[slot];
        span.slots_out[slot] = state && state[slot] ? state[slot] : range->slots[slot];
    }
    return span;
}

static size_t bytes_elsewhere(const struct muster_optimizer *optimizer, const struct plan *plan) {
    size_t bytes = 0, tensor = 0;
    for (size_t i = 0; i < optimizer->range_count; i++) {
        const struct optimizer_range *range = &optimizer->ranges[i];
        struct optimizer_span span = span_of(plan, range, i, plan->out.state ? plan->out.state + tensor : NULL);
        bytes += span.parameter_out != span.parameter ? range->count * sizeof(float) : 0;
        bytes += span.bfloat16_out ? range->count * sizeof(uint16_t) : 0;
        for (size_t slot = 0; slot < range->slot_count; slot++, tensor++) {
            bytes += span.slots_out[slot] != span.slots[slot] ? range->count * sizeof(float) : 0;
        }
    }
    return bytes;
}

static void step_run(struct muster_optimizer *optimizer, const struct plan *plan) {
    int64_t *steps_out = plan->out.steps ? plan->out.steps : optimizer->steps;
    size_t tensor = 0;
    for (size_t i = 0; i < optimizer->range_count; i++) {
        const struct optimizer_range *range = &optimizer->ranges[i];
        struct optimizer_span span = span_of(plan, range, i, plan->out.state ? plan->out.state + tensor : NULL);
        int64_t step = optimizer->steps[i] + (span.gradient ? 1 : 0);
        struct optimizer_factors factors = factors_of(range->settings, step > 0 ? step : 1);
        factors.scale = plan->scale;
        optimizer_span_step(range->settings->rule, &span, &factors, plan->past_caches);
        steps_out[i] = step;
        tensor += range->slot_count;
    }
}

int muster_optimizer_step_into(struct muster_optimizer *optimizer, const float *const *gradients,
                               const struct muster_optimizer_step_options *options) {
    struct muster_optimizer_step_options own = MUSTER_OPTIMIZER_STEP_OPTIONS_INIT;
    struct plan plan = {.gradients = gradients};
    if (!optimizer || !gradients) {
        return status_fail_null("muster_optimizer_step", optimizer ? "gradients" : "optimizer");
    }
    int code = sized_read_options(&own, sizeof own, options, "muster_optimizer_step_options",
                                  "MUSTER_OPTIMIZER_STEP_OPTIONS_INIT");
    code = code || !own.out ? code : optimizer_memory_read(own.out, &plan.out);
    if (code) {
        return code;
    }
    if (!isfinite(own.gradient_scale)) {
        return status_fail(MUSTER_EINVAL, "gradients are to be multiplied by %g; it must be a number",
                           own.gradient_scale);
    }
    plan.bfloat16 = own.bfloat16;
    plan.scale = (float)own.gradient_scale;
    plan.past_caches = bytes_elsewhere(optimizer, &plan) >= PAST_CACHES_BYTES_MIN;
    step_run(optimizer, &plan);
    return 0;
}

int muster_optimizer_step(struct muster_optimizer *optimizer, const float *const *gradients) {
    return muster_optimizer_step_into(optimizer, gradients, NULL);
}
