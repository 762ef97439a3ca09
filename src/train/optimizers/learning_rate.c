/* Learning rates by the number of steps; see muster/schedule.h. Pure: functions of a schedule and a step. */
#include <muster/schedule.h>

#include <inttypes.h>
#include <math.h>
#include <stdbool.h>

#include "base/sized.h"
#include "base/status.h"

#define PI 3.14159265358979323846

static bool is_rate(double number) {
    return number >= 0 && isfinite(number);
}

static int check(const struct muster_schedule *s) {
    if (s->kind < MUSTER_SCHEDULE_CONSTANT || s->kind > MUSTER_SCHEDULE_COSINE) {
        return status_fail(MUSTER_EINVAL, "a schedule of kind %" PRId64 ", which does not exist", s->kind);
    }
    if (!is_rate(s->learning_rate) || s->warmup_steps < 0 || !(s->warmup_start >= 0 && s->warmup_start <= 1)) {
        return status_fail(MUSTER_EINVAL,
                           "a schedule with learning rate %g and %" PRId64
                           " steps of warm-up from %g of it: neither may be negative, the last is from 0 to 1",
                           s->learning_rate, s->warmup_steps, s->warmup_start);
    }
    if (s->kind == MUSTER_SCHEDULE_STEP && (!is_rate(s->decay) || s->decay_steps <= 0)) {
        return status_fail(MUSTER_EINVAL,
                           "a schedule that multiplies by %g every %" PRId64
                           " steps: the first may not be negative, the second is above 0",
                           s->decay, s->decay_steps);
    }
    if (s->kind == MUSTER_SCHEDULE_COSINE && (!is_rate(s->learning_rate_min) || s->total_steps <= s->warmup_steps)) {
        return status_fail(MUSTER_EINVAL,
                           "a cosine down to a learning rate of %g over %" PRId64 " steps, %" PRId64
                           " of them warm-up: the rate may not be negative, and there must be more steps",
                           s->learning_rate_min, s->total_steps, s->warmup_steps);
    }
    return 0;
}

/* The schedule is complete and checked. */
static double rate_at(const struct muster_schedule *s, int64_t step) {
    if (step < s->warmup_steps) {
        double done = (double)step / (double)s->warmup_steps;
        return s->learning_rate * (s->warmup_start + (1 - s->warmup_start) * done);
    }
    int64_t after = step - s->warmup_steps;
    if (s->kind == MUSTER_SCHEDULE_STEP) {
        int64_t decays = after / s->decay_steps; /* rounded down */
        return s->learning_rate * pow(s->decay, (double)decays);
    }
    if (s->kind == MUSTER_SCHEDULE_COSINE) {
        double part = (double)after / (double)(s->total_steps - s->warmup_steps);
        double height = step >= s->total_steps ? 0 : (1 + cos(PI * part)) / 2;
        return s->learning_rate_min + (s->learning_rate - s->learning_rate_min) * height;
    }
    return s->learning_rate;
}

int muster_schedule_rate(const struct muster_schedule *schedule, int64_t step, double *out) {
    struct muster_schedule own = MUSTER_SCHEDULE_INIT;
    if (!schedule || !out) {
        return status_fail_null("muster_schedule_rate", schedule ? "out" : "schedule");
    }
    int code = sized_read_options(&own, sizeof own, schedule, "muster_schedule", "MUSTER_SCHEDULE_INIT");
    code = code ? code : check(&own);
    if (code) {
        return code;
    }
    if (step < 0) {
        return status_fail(MUSTER_EINVAL, "the learning rate after %" PRId64 " steps; it must be 0 or more", step);
    }
    *out = rate_at(&own, step);
    return 0;
}
