/* Learning rates against recorded PyTorch values (learning_rate_values.h). */
#include <muster/schedule.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "train/optimizers/learning_rate_values.h"

enum { STEPS = sizeof recorded_rates[0].rates / sizeof recorded_rates[0].rates[0] };

/* The cases of learning_rate_values.py. */
static struct muster_schedule schedule_of(const char *name) {
    struct muster_schedule s = MUSTER_SCHEDULE_INIT;
    s.learning_rate = 0.1;
    if (strcmp(name, "constant_warm") == 0) {
        s.warmup_steps = 7, s.warmup_start = 1.0 / 3;
    } else if (strcmp(name, "step") == 0) {
        s.kind = MUSTER_SCHEDULE_STEP, s.decay = 0.3, s.decay_steps = 7;
    } else if (strcmp(name, "step_warm") == 0) {
        s.kind = MUSTER_SCHEDULE_STEP, s.decay = 0.5, s.decay_steps = 5;
        s.learning_rate = 0.02, s.warmup_steps = 4, s.warmup_start = 0.1;
    } else if (strcmp(name, "cosine") == 0) {
        s.kind = MUSTER_SCHEDULE_COSINE, s.total_steps = STEPS, s.learning_rate_min = 1e-4;
    } else if (strcmp(name, "cosine_warm") == 0) {
        s.kind = MUSTER_SCHEDULE_COSINE, s.total_steps = STEPS, s.learning_rate_min = 3e-5;
        s.learning_rate = 3e-4, s.warmup_steps = 6, s.warmup_start = 0.01;
    }
    return s;
}

/* PyTorch multiplies the rate of one step to have that of the next, which rounds a few times in each: up to STEPS times
 * 8 roundings of 2^-53. An error in a formula is very much larger. */
static void rates_are_those_of_pytorch(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof recorded_rates / sizeof recorded_rates[0]; c++) {
        struct muster_schedule s = schedule_of(recorded_rates[c].name);
        for (int64_t step = 0; step < STEPS; step++) {
            double rate = 0, wanted = recorded_rates[c].rates[step];
            assert_int_equal(muster_schedule_rate(&s, step, &rate), 0);
            if (!(fabs(rate - wanted) <= 8 * STEPS * 0x1p-53 * s.learning_rate)) {
                fail_msg("%s, step %d: %.17g, not %.17g", recorded_rates[c].name, (int)step, rate, wanted);
            }
        }
    }
}

static void the_ends_are_exact(void **state) {
    (void)state;
    struct muster_schedule s = schedule_of("cosine_warm");
    double rate = 0;
    assert_int_equal(muster_schedule_rate(&s, 6, &rate), 0);
    assert_true(rate == 3e-4);
    for (int64_t step = STEPS; step < STEPS + 9; step++) { /* PyTorch's goes up again */
        assert_int_equal(muster_schedule_rate(&s, step, &rate), 0);
        assert_true(rate == 3e-5);
    }
    assert_int_equal(muster_schedule_rate(&s, INT64_MAX, &rate), 0);
    s = schedule_of("step");
    assert_int_equal(muster_schedule_rate(&s, INT64_MAX, &rate), 0);
    assert_true(rate == 0);
    s.warmup_steps = 10, s.warmup_start = 0;
    assert_int_equal(muster_schedule_rate(&s, 0, &rate), 0);
    assert_true(rate == 0);
}

/* NAME's schedule with one member changed, told by a part of the sentence. */
#define REFUSED(name, member, value, sentence)                                                                         \
    do {                                                                                                               \
        struct muster_schedule bad = schedule_of(name);                                                                \
        double written = -7;                                                                                           \
        bad.member = (value);                                                                                          \
        assert_int_equal(muster_schedule_rate(&bad, 0, &written), MUSTER_EINVAL);                                      \
        assert_non_null(strstr(muster_detail(), sentence));                                                            \
        assert_true(written == -7);                                                                                    \
    } while (0)

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    double rate = 0;
    struct muster_schedule s = MUSTER_SCHEDULE_INIT;
    REFUSED("constant", kind, 3, "kind 3");
    REFUSED("constant", kind, -1, "kind -1");
    REFUSED("constant", learning_rate, -0.1, "learning rate -0.1");
    REFUSED("constant", learning_rate, (double)INFINITY, "learning rate inf");
    REFUSED("constant", warmup_steps, -1, "-1 steps of warm-up");
    REFUSED("constant", warmup_start, 1.5, "warm-up from 1.5");
    REFUSED("step", decay, (double)NAN, "multiplies by");
    REFUSED("step", decay_steps, 0, "every 0 steps");
    REFUSED("cosine", total_steps, 0, "over 0 steps");
    REFUSED("cosine_warm", total_steps, 6, "over 6 steps, 6 of them warm-up");
    REFUSED("cosine", learning_rate_min, -1, "down to a learning rate of -1");
    REFUSED("cosine", size, 0, "MUSTER_SCHEDULE_INIT");
    assert_int_equal(muster_schedule_rate(&s, -1, &rate), MUSTER_EINVAL);
    assert_int_equal(muster_schedule_rate(NULL, 0, &rate), MUSTER_EINVAL);
    assert_int_equal(muster_schedule_rate(&s, 0, NULL), MUSTER_EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rates_are_those_of_pytorch),
        cmocka_unit_test(the_ends_are_exact),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
