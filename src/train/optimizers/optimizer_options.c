/* Options of the optimizers: reads and checks those of each kind, for programs of any version. See muster/optimizer.h.
 */
#include <math.h>

#include "base/sized.h"
#include "base/status.h"
#include "train/optimizers/optimizer_impl.h"

static int read_sgd(const struct muster_sgd_options *options, struct optimizer_settings *out) {
    struct muster_sgd_options own = MUSTER_SGD_OPTIONS_INIT;
    const struct muster_sgd_options *o = &own;
    int code = sized_read_options(&own, sizeof own, options, "muster_sgd_options", "MUSTER_SGD_OPTIONS_INIT");
    if (code) {
        return code;
    }
    if (!optimizer_within(o->learning_rate, 0, INFINITY) || !optimizer_within(o->momentum, 0, INFINITY) ||
        !optimizer_within(o->weight_decay, 0, INFINITY) || !isfinite(o->dampening) ||
        (o->nesterov && (o->momentum <= 0 || o->dampening != 0))) {
        return status_fail(MUSTER_EINVAL,
                           "SGD with learning rate %g, momentum %g, dampening %g, weight decay %g%s: none may be "
                           "negative, and nesterov needs a momentum and no dampening",
                           o->learning_rate, o->momentum, o->dampening, o->weight_decay,
                           o->nesterov ? ", nesterov" : "");
    }
    *out = (struct optimizer_settings){.kind = KIND_SGD,
                                       .rule = o->nesterov       ? RULE_SGD_NESTEROV
                                               : o->momentum > 0 ? RULE_SGD_MOMENTUM
                                                                 : RULE_SGD,
                                       .learning_rate = o->learning_rate,
                                       .options.sgd = *o};
    return 0;
}

static int read_adadelta(const struct muster_adadelta_options *options, struct optimizer_settings *out) {
    struct muster_adadelta_options own = MUSTER_ADADELTA_OPTIONS_INIT;
    const struct muster_adadelta_options *o = &own;
    int code = sized_read_options(&own, sizeof own, options, "muster_adadelta_options", "MUSTER_ADADELTA_OPTIONS_INIT");
    if (code) {
        return code;
    }
    if (!optimizer_within(o->learning_rate, 0, INFINITY) || !(o->rho >= 0 && o->rho <= 1) ||
        !optimizer_within(o->epsilon, 0, INFINITY) || !optimizer_within(o->weight_decay, 0, INFINITY)) {
        return status_fail(MUSTER_EINVAL,
                           "Adadelta with learning rate %g, rho %g, epsilon %g, weight decay %g: none may be negative, "
                           "rho at most 1",
                           o->learning_rate, o->rho, o->epsilon, o->weight_decay);
    }
    *out = (struct optimizer_settings){
        .kind = KIND_ADADELTA, .rule = RULE_ADADELTA, .learning_rate = o->learning_rate, .options.adadelta = *o};
    return 0;
}

/* name: "Adam" or "AdamW". */
static int check_adam(const char *name, double learning_rate, const double betas[2], double epsilon,
                      double weight_decay) {
    if (!optimizer_within(learning_rate, 0, INFINITY) || !optimizer_within(betas[0], 0, 1) ||
        !optimizer_within(betas[1], 0, 1) || !optimizer_within(epsilon, 0, INFINITY) ||
        !optimizer_within(weight_decay, 0, INFINITY)) {
        return status_fail(MUSTER_EINVAL,
                           "%s with learning rate %g, betas %g and %g, epsilon %g, weight decay %g: none may be "
                           "negative, betas below 1",
                           name, learning_rate, betas[0], betas[1], epsilon, weight_decay);
    }
    return 0;
}

static int read_adam(const struct muster_adam_options *options, struct optimizer_settings *out) {
    struct muster_adam_options own = MUSTER_ADAM_OPTIONS_INIT;
    const struct muster_adam_options *o = &own;
    int code = sized_read_options(&own, sizeof own, options, "muster_adam_options", "MUSTER_ADAM_OPTIONS_INIT");
    const double betas[2] = {o->beta1, o->beta2};
    code = code ? code : check_adam("Adam", o->learning_rate, betas, o->epsilon, o->weight_decay);
    if (code) {
        return code;
    }
    *out = (struct optimizer_settings){
        .kind = KIND_ADAM, .rule = RULE_ADAM, .learning_rate = o->learning_rate, .options.adam = *o};
    return 0;
}

static int read_adamw(const struct muster_adamw_options *options, struct optimizer_settings *out) {
    struct muster_adamw_options own = MUSTER_ADAMW_OPTIONS_INIT;
    const struct muster_adamw_options *o = &own;
    int code = sized_read_options(&own, sizeof own, options, "muster_adamw_options", "MUSTER_ADAMW_OPTIONS_INIT");
    const double betas[2] = {o->beta1, o->beta2};
    code = code ? code : check_adam("AdamW", o->learning_rate, betas, o->epsilon, o->weight_decay);
    if (code) {
        return code;
    }
    *out = (struct optimizer_settings){
        .kind = KIND_ADAMW, .rule = RULE_ADAMW, .learning_rate = o->learning_rate, .options.adamw = *o};
    return 0;
}

int optimizer_settings_read(const struct muster_optimizer_group *group, struct optimizer_settings *out) {
    int set = (group->sgd != NULL) + (group->adadelta != NULL) + (group->adam != NULL) + (group->adamw != NULL);
    if (set != 1) {
        return status_fail(MUSTER_EINVAL, "it has options of %d kinds of optimizers; it must have those of one", set);
    }
    return group->sgd        ? read_sgd(group->sgd, out)
           : group->adadelta ? read_adadelta(group->adadelta, out)
           : group->adam     ? read_adam(group->adam, out)
                             : read_adamw(group->adamw, out);
}
