/* What run_scheduler.c and its checks share. */
#ifndef CLI_RUN_SCHEDULER_IMPL_H
#define CLI_RUN_SCHEDULER_IMPL_H

#include "cli/run/run_scheduler.h"
#include "rendezvous/backends.h"

static inline const struct option_value *value_of(const struct options *options, enum option_id id) {
    return &options->values[id];
}

static inline bool is_given(const struct options *options, enum option_id id) {
    return value_of(options, id)->source != OPTION_FROM_DEFAULT;
}

/* False: there is no such backend, which is for its own check to say. */
static inline bool find_backend(const struct options *options, enum rdzv_backend *out) {
    return rdzv_backend_find(value_of(options, OPTION_RDZV_BACKEND)->text, out);
}

static inline bool is_static(enum rdzv_backend backend) {
    return rdzv_backend_endpoint(backend) == RDZV_ENDPOINT_STATIC;
}

/* Does the user say where the nodes meet? */
bool run_scheduler_has_place(const struct options *options);

/* How the user has said it: the option's name, or its variable's. */
const char *run_scheduler_origin(const struct options *options, enum option_id id);

/* The option by which the user says that the job has one node, or NULL. It wins over what the scheduler says. */
const char *run_scheduler_says_alone(const struct options *options);

/* Nothing of the scheduler is needed. */
bool run_scheduler_is_complete(const struct options *options);

/* Is it known that there are so many agents? */
bool run_scheduler_is_sure(const struct run_scheduler *room);

/* Ends of sentences: what to do if there are no others; which variable cannot be right. Or "". */
const char *run_scheduler_unless_sure(const struct run_scheduler *room);
const char *run_scheduler_doubt(const struct scheduler *s, char out[SCHEDULER_TEXT_MAX + 2]);

/* Each says what is odd. MUSTER_EINVAL: it cannot be meant. */
int run_scheduler_check_outside_step(const struct options *options, const struct run_scheduler *room, bool is_shell);
int run_scheduler_check_crowd(const struct options *options, const struct run_scheduler *room, uint32_t max_nodes);
int run_scheduler_check_nodes(const struct options *options, const struct scheduler *s, uint32_t min_nodes,
                              uint32_t max_nodes);
void run_scheduler_check_rank(const struct options *options, const struct scheduler *s);
void run_scheduler_warn_alone(const struct scheduler *s, const char *what);
int run_scheduler_fail_count(const struct run_scheduler *room);

#endif
