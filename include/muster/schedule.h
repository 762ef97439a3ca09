/* Learning rates that change from step to step: constant, in steps or along a cosine, each with a linear warm-up in
 * front if wanted. They agree with PyTorch's schedulers (ConstantLR with factor 1, StepLR, CosineAnnealingLR; behind
 * LinearLR in a SequentialLR) to rounding of float64.
 *
 * A schedule is a small struct without pointers, and the rate a pure function of it and of the number of steps taken.
 * That number is all of its state: a program saves it with its snapshot, and goes on from it.
 *
 * Threads: any. */
#ifndef MUSTER_SCHEDULE_H
#define MUSTER_SCHEDULE_H

#include <stddef.h>
#include <stdint.h>

#include <muster/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

enum muster_schedule_kind { MUSTER_SCHEDULE_CONSTANT, MUSTER_SCHEDULE_STEP, MUSTER_SCHEDULE_COSINE };

/* With u = step - warmup_steps, from step 0 on:
 *
 *   step < warmup_steps    learning_rate * (warmup_start + (1 - warmup_start) * step / warmup_steps)
 *   CONSTANT               learning_rate
 *   STEP                   learning_rate * decay^(u / decay_steps), the quotient rounded down
 *   COSINE                 learning_rate_min + (learning_rate - learning_rate_min) * (1 + cos(pi * u / U)) / 2 with
 *                          U = total_steps - warmup_steps; learning_rate_min from total_steps on (PyTorch's goes up
 *                          again there). (Loshchilov and Hutter 2017, without restarts.)
 */
struct muster_schedule {
    size_t size;
    int64_t kind;             /* enum muster_schedule_kind */
    double learning_rate;     /* at the end of the warm-up, >= 0 */
    int64_t warmup_steps;     /* 0: none */
    double warmup_start;      /* 0 to 1 */
    double learning_rate_min; /* COSINE: >= 0 */
    int64_t total_steps;      /* COSINE: more than warmup_steps, which it includes */
    double decay;             /* STEP: >= 0 */
    int64_t decay_steps;      /* STEP: above 0 */
};
#define MUSTER_SCHEDULE_INIT                                                                                           \
    { sizeof(struct muster_schedule), MUSTER_SCHEDULE_CONSTANT, 1e-3, 0, 1.0 / 3, 0, 0, 0.1, 1 }

/* The rate of the next step after `step` (>= 0) steps have been taken. Writes *out on success only. Errors:
 * MUSTER_EINVAL (the sentence says what does not fit), MUSTER_EUNSUPPORTED (of a newer version). */
int muster_schedule_rate(const struct muster_schedule *schedule, int64_t step, double *out);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
