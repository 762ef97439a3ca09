/* The calls that make an optimizer, of whole parameters or of ranges in groups. See muster/optimizer.h. */
#include <stdlib.h>

#include "base/sized.h"
#include "base/status.h"
#include "train/optimizers/optimizer_impl.h"

static int check_call(size_t count, size_t group_count, struct muster_optimizer *const *out) {
    if (!out) {
        return status_fail_null("muster_optimizer_create", "out");
    }
    if (count == 0 || count > MUSTER_OPTIMIZER_PARAMETERS_MAX) {
        return status_fail(MUSTER_ELIMIT, "an optimizer of %zu parameters; 1 to %zu are possible", count,
                           MUSTER_OPTIMIZER_PARAMETERS_MAX);
    }
    if (group_count == 0 || group_count > MUSTER_OPTIMIZER_GROUPS_MAX) {
        return status_fail(MUSTER_ELIMIT, "an optimizer of %zu groups of parameters; 1 to %zu are possible",
                           group_count, MUSTER_OPTIMIZER_GROUPS_MAX);
    }
    return 0;
}

/* ---- ranges in groups ---- */

static int read_groups(const struct muster_optimizer_group *groups, size_t count, struct optimizer_settings *out) {
    for (size_t i = 0; i < count; i++) {
        int code = optimizer_settings_read(&groups[i], &out[i]);
        if (code) {
            return status_prefix(code, "group %zu of parameters", i);
        }
        if (out[i].kind != out[0].kind) {
            return status_fail(MUSTER_EINVAL,
                               "group %zu of parameters is of another kind than group 0: an optimizer is of one kind",
                               i);
        }
    }
    return 0;
}

static int make_of_groups(const struct muster_optimizer_range *ranges, size_t count,
                          const struct muster_optimizer_group *groups, size_t group_count,
                          struct muster_optimizer **out) {
    struct optimizer_settings *settings = calloc(group_count, sizeof *settings);
    if (!settings) {
        return status_fail(MUSTER_ENOMEM, "no memory for %zu groups of parameters", group_count);
    }
    int code = read_groups(groups, group_count, settings);
    if (code) {
        free(settings);
        return code;
    }
    return optimizer_make(ranges, count, settings, group_count, out);
}

int muster_optimizer_create_sized(const struct muster_optimizer_range *ranges, size_t range_bytes, size_t count,
                                  const struct muster_optimizer_group *groups, size_t group_bytes, size_t group_count,
                                  struct muster_optimizer **out) {
    struct sized_array own_ranges = {NULL, NULL}, own_groups = {NULL, NULL};
    int code = check_call(count, group_count, out);
    code = code ? code
                : sized_read_array(&own_ranges, sizeof *ranges, ranges, range_bytes, count, sizeof *ranges,
                                   "muster_optimizer_range");
    code = code ? code
                : sized_read_array(&own_groups, sizeof *groups, groups, group_bytes, group_count, sizeof *groups,
                                   "muster_optimizer_group");
    code = code ? code : make_of_groups(own_ranges.items, count, own_groups.items, group_count, out);
    free(own_ranges.owned);
    free(own_groups.owned);
    return code;
}

/* ---- whole parameters, all with the same options ---- */

/* Takes `settings`. */
static int ranges_make(const struct muster_optimizer_parameter *parameters, size_t count,
                       struct optimizer_settings *settings, struct muster_optimizer **out) {
    struct muster_optimizer_range *ranges = calloc(count, sizeof *ranges);
    if (!ranges) {
        free(settings);
        return status_fail(MUSTER_ENOMEM, "no memory for an optimizer of %zu parameters", count);
    }
    for (size_t i = 0; i < count; i++) {
        ranges[i] = (struct muster_optimizer_range){
            .name = parameters[i].name, .data = parameters[i].data, .count = parameters[i].count};
    }
    int code = optimizer_make(ranges, count, settings, 1, out);
    free(ranges);
    return code;
}

/* With the caller's parameters and options, of whatever version. */
static int create(const struct muster_optimizer_group *group, const struct muster_optimizer_parameter *parameters,
                  size_t parameter_bytes, size_t count, struct muster_optimizer **out) {
    struct sized_array own = {NULL, NULL};
    struct optimizer_settings *settings = malloc(sizeof *settings);
    if (!settings) {
        return status_fail(MUSTER_ENOMEM, "no memory for an optimizer");
    }
    int code = optimizer_settings_read(group, settings);
    code = code ? code : check_call(count, 1, out);
    code = code ? code
                : sized_read_array(&own, sizeof *parameters, parameters, parameter_bytes, count, sizeof *parameters,
                                   "muster_optimizer_parameter");
    if (code) {
        free(settings);
    } else {
        code = ranges_make(own.items, count, settings, out);
    }
    free(own.owned);
    return code;
}

int muster_optimizer_create_sgd_sized(const struct muster_optimizer_parameter *parameters, size_t parameter_bytes,
                                      size_t count, const struct muster_sgd_options *options,
                                      struct muster_optimizer **out) {
    const struct muster_sgd_options defaults = MUSTER_SGD_OPTIONS_INIT;
    const struct muster_optimizer_group group = {.sgd = options ? options : &defaults};
    return create(&group, parameters, parameter_bytes, count, out);
}

int muster_optimizer_create_adadelta_sized(const struct muster_optimizer_parameter *parameters, size_t parameter_bytes,
                                           size_t count, const struct muster_adadelta_options *options,
                                           struct muster_optimizer **out) {
    const struct muster_adadelta_options defaults = MUSTER_ADADELTA_OPTIONS_INIT;
    const struct muster_optimizer_group group = {.adadelta = options ? options : &defaults};
    return create(&group, parameters, parameter_bytes, count, out);
}

int muster_optimizer_create_adam_sized(const struct muster_optimizer_parameter *parameters, size_t parameter_bytes,
                                       size_t count, const struct muster_adam_options *options,
                                       struct muster_optimizer **out) {
    const struct muster_adam_options defaults = MUSTER_ADAM_OPTIONS_INIT;
    const struct muster_optimizer_group group = {.adam = options ? options : &defaults};
    return create(&group, parameters, parameter_bytes, count, out);
}

int muster_optimizer_create_adamw_sized(const struct muster_optimizer_parameter *parameters, size_t parameter_bytes,
                                        size_t count, const struct muster_adamw_options *options,
                                        struct muster_optimizer **out) {
    const struct muster_adamw_options defaults = MUSTER_ADAMW_OPTIONS_INIT;
    const struct muster_optimizer_group group = {.adamw = options ? options : &defaults};
    return create(&group, parameters, parameter_bytes, count, out);
}
