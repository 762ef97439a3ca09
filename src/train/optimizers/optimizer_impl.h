/* What the files of the optimizers share. Private to them; see muster/optimizer.h.
 *
 * optimizer_options.c reads the options of the kinds; optimizer.c has the memory of an optimizer and describes it;
 * optimizer_create.c has the calls that make one, of both; optimizer_step.c takes steps; the arithmetic is in
 * optimizer_kernels.c. */
#ifndef TRAIN_OPTIMIZER_IMPL_H
#define TRAIN_OPTIMIZER_IMPL_H

#include <muster/optimizer.h>

#include "train/optimizers/optimizer_kernels.h"

enum optimizer_kind { KIND_SGD, KIND_ADADELTA, KIND_ADAM, KIND_ADAMW };

/* Of a group. */
struct optimizer_settings {
    enum optimizer_kind kind;
    enum optimizer_rule rule;
    double learning_rate; /* the one in use; that of the options is where it began */
    union {
        struct muster_sgd_options sgd;
        struct muster_adadelta_options adadelta;
        struct muster_adam_options adam;
        struct muster_adamw_options adamw;
    } options;
};

struct optimizer_range {
    const struct optimizer_settings *settings; /* of its group */
    float *data;                               /* the caller's */
    size_t count;
    size_t slot_count;
    float *slots[OPTIMIZER_SLOTS_MAX]; /* in the optimizer's memory, or the caller's after a move */
    char *slot_names[OPTIMIZER_SLOTS_MAX];
};

struct muster_optimizer {
    struct optimizer_settings *groups;
    size_t group_count;
    struct optimizer_range *ranges;
    size_t range_count;
    size_t state_count; /* slots of all ranges */
    int64_t *steps;     /* of each range; own_steps, or the caller's after a move */
    int64_t *own_steps;
    void *memory; /* of the slots; NULL if all are the caller's */
    size_t memory_bytes;
};

/* Is it a number from `low` on, below `high`? */
static inline bool optimizer_within(double number, double low, double high) {
    return number >= low && number < high;
}

/* Reads the one member of `group` that is set. MUSTER_EINVAL, MUSTER_EUNSUPPORTED. */
int optimizer_settings_read(const struct muster_optimizer_group *group, struct optimizer_settings *out);

/* Of whatever version; out->size is this library's. */
int optimizer_memory_read(const struct muster_optimizer_memory *memory, struct muster_optimizer_memory *out);

/* Takes `groups` (from malloc()), also if it fails. Ranges of this library's version. */
int optimizer_make(const struct muster_optimizer_range *ranges, size_t count, struct optimizer_settings *groups,
                   size_t group_count, struct muster_optimizer **out);

#endif
