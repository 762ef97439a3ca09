/* What the options and a scheduler's facts say of each other: what is complete, what cannot be meant, and the sentences
 * about it; see run_scheduler_impl.h. The rules are in docs/schedulers.md. */
#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/run/run_rdzv.h"
#include "cli/run/run_scheduler_impl.h"

/* Does the user say where the nodes meet? */
bool run_scheduler_has_place(const struct options *options) {
    return (is_given(options, OPTION_RDZV_ENDPOINT) && value_of(options, OPTION_RDZV_ENDPOINT)->text[0] != '\0') ||
           is_given(options, OPTION_MASTER_ADDR) || is_given(options, OPTION_MASTER_PORT);
}

const char *run_scheduler_origin(const struct options *options, enum option_id id) {
    return value_of(options, id)->source == OPTION_FROM_ENVIRONMENT ? option_specs[id].variable : option_specs[id].name;
}

/* The option by which the user says that the job has one node, or NULL. It wins over what the scheduler says. */
const char *run_scheduler_says_alone(const struct options *options) {
    uint32_t min_nodes = 0, max_nodes = 0;
    if (value_of(options, OPTION_STANDALONE)->on) {
        return run_scheduler_origin(options, OPTION_STANDALONE);
    }
    bool is_one = is_given(options, OPTION_NNODES) &&
                  run_rdzv_parse_nodes(value_of(options, OPTION_NNODES)->text, &min_nodes, &max_nodes) == MUSTER_OK &&
                  max_nodes == 1;
    return is_one ? run_scheduler_origin(options, OPTION_NNODES) : NULL;
}

/* Nothing of the scheduler is needed. */
bool run_scheduler_is_complete(const struct options *options) {
    return run_scheduler_says_alone(options) != NULL ||
           (is_given(options, OPTION_NNODES) && run_scheduler_has_place(options));
}

/* Is it known that there are so many agents? The variables may be another process's, and WORLD_SIZE of an operator
 * counts workers now and then. */
bool run_scheduler_is_sure(const struct run_scheduler *room) {
    const struct scheduler *s = &room->found;
    return s->kind == SCHEDULER_KUBERNETES ? strcmp(s->count_variable, "PET_NNODES") == 0
                                           : room->starter == STARTER_SCHEDULER;
}

const char *run_scheduler_unless_sure(const struct run_scheduler *room) {
    return run_scheduler_is_sure(room) ? "" : "; if this is the only agent, add --nnodes=1";
}

/* "; PMI_SIZE is 'x', ..." */
const char *run_scheduler_doubt(const struct scheduler *s, char out[SCHEDULER_TEXT_MAX + 2]) {
    (void)str_format(out, SCHEDULER_TEXT_MAX + 2, "%s%s", s->doubt[0] != '\0' ? "; " : "", s->doubt);
    return out;
}

/* A script or a shell of an allocation runs once, however many nodes there are. Who types sees what happens. */
int run_scheduler_check_outside_step(const struct options *options, const struct run_scheduler *room, bool is_shell) {
    const struct scheduler *s = &room->found;
    const char *alone = run_scheduler_says_alone(options);
    if (s->nodes > 1 && alone) {
        log_warning("this is %s, which has %" PRIu32 " nodes, but %s says that the job has one: going on here alone",
                    s->where, s->nodes, alone);
    } else if (s->nodes > 1 && !run_scheduler_has_place(options) && is_shell) {
        log_warning("this is %s, which has %" PRIu32
                    " nodes: going on here alone; \"srun --ntasks-per-node=1 muster run ...\" is a job of all of them",
                    s->where, s->nodes);
    } else if (s->nodes > 1 && !run_scheduler_has_place(options)) {
        return status_fail(MUSTER_EINVAL,
                           "this is %s, which has %" PRIu32
                           " nodes, and the agent would run on one: start it on all of them with \"srun "
                           "--ntasks-per-node=1 muster run ...\"; if one node is meant, add --nnodes=1",
                           s->where, s->nodes);
    }
    if (!s->is_on_node) {
        log_warning("this is %s, and perhaps not one of its nodes: \"srun muster run ...\" runs there; going on here",
                    s->where);
    }
    return MUSTER_OK;
}

int run_scheduler_check_crowd(const struct options *options, const struct run_scheduler *room, uint32_t max_nodes) {
    const struct scheduler *s = &room->found;
    const bool crowded = s->local_agents > 1 || (s->nodes > 0 && s->agents > s->nodes);
    if (!crowded || max_nodes == s->agents || (run_scheduler_is_complete(options) && !run_scheduler_is_sure(room))) {
        return MUSTER_OK; /* that many agents are meant, or nobody is asked */
    }
    char nodes[32] = "the same nodes", how[128], text[512];
    if (s->nodes > 0) {
        (void)str_format(nodes, sizeof nodes, "%" PRIu32 " node%s", s->nodes, s->nodes == 1 ? "" : "s");
    }
    (void)str_format(how, sizeof how, "%" PRIu32 " agents have been started on %s", s->agents, nodes);
    if (!run_scheduler_is_sure(room)) {
        (void)str_format(how, sizeof how, "%s=%" PRIu32 " says that there are so many agents on %s", s->count_variable,
                         s->agents, nodes);
    }
    (void)str_format(text, sizeof text,
                     "%s: %s, and one on each node starts all workers of it: use %s, and --nproc-per-node=N for N "
                     "workers; --nnodes=%" PRIu32 " makes a job of that many agents all the same%s",
                     s->where, how,
                     s->kind == SCHEDULER_SLURM ? "srun --ntasks-per-node=1"
                                                : "one process a node (mpirun --map-by ppr:1:node)",
                     s->agents, run_scheduler_unless_sure(room));
    if (run_scheduler_is_complete(options)) {
        log_warning("%s", text);
        return MUSTER_OK;
    }
    return status_fail(MUSTER_EINVAL, "%s", text);
}

void run_scheduler_warn_alone(const struct scheduler *s, const char *what) {
    log_warning("%s has started %" PRIu32
                " agents (%s), but %s says that a job has one node: each of them runs a job of its own. Leave it out, "
                "and they form one job",
                s->where, s->agents, s->count_variable, what);
}

int run_scheduler_check_nodes(const struct options *options, const struct scheduler *s, uint32_t min_nodes,
                              uint32_t max_nodes) {
    char what[128];
    if (!is_given(options, OPTION_NNODES)) {
        return MUSTER_OK;
    }
    (void)str_format(what, sizeof what, "%s=%.60s", run_scheduler_origin(options, OPTION_NNODES),
                     value_of(options, OPTION_NNODES)->text);
    if (s->agents > 0 && min_nodes > s->agents && !run_scheduler_has_place(options)) {
        return status_fail(
            MUSTER_EINVAL,
            "%s: the job would wait for nodes that do not come, since %s has started %" PRIu32
            " agents (%s): ask the scheduler for more nodes, or leave it out; jobs of several steps need "
            "--rdzv-endpoint",
            what, s->where, s->agents, s->count_variable);
    }
    if (s->agents > max_nodes && !is_given(options, OPTION_SPARES)) {
        log_warning("%s, but %s has started %" PRIu32 " agents: the others are spare nodes", what, s->where, s->agents);
    }
    return MUSTER_OK;
}

/* The classic: a variable of the scheduler that the batch script expands, once for all nodes. */
void run_scheduler_check_rank(const struct options *options, const struct scheduler *s) {
    const int64_t rank = value_of(options, OPTION_NODE_RANK)->integer;
    enum rdzv_backend backend;
    if (s->agents > 1 && s->knows_rank && is_given(options, OPTION_NODE_RANK) && rank != (int64_t)s->rank &&
        find_backend(options, &backend) && is_static(backend)) {
        log_warning("%s=%" PRId64 ", but this is process %" PRIu32
                    " of %s: leave it out if it is not meant (a variable in a batch script's command line is the same "
                    "on all nodes)",
                    run_scheduler_origin(options, OPTION_NODE_RANK), rank, s->rank, s->where);
    }
}

int run_scheduler_fail_count(const struct run_scheduler *room) {
    const struct scheduler *s = &room->found;
    char doubt[SCHEDULER_TEXT_MAX + 2], number[48] = "";
    if (s->knows_rank) {
        (void)str_format(number, sizeof number, " (this is number %" PRIu32 ")", s->rank);
    }
    return status_fail(MUSTER_EINVAL,
                       "%s does not say how many agents there are%s: give --nnodes, the same on all, or "
                       "--scheduler=none%s%s",
                       s->where, number, run_scheduler_unless_sure(room), run_scheduler_doubt(s, doubt));
}
