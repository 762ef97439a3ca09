/* From a scheduler's facts to options; see run_scheduler.h. Their contradictions are run_scheduler_check.c's. The rules
 * are in docs/schedulers.md. */
#include "cli/run/run_scheduler.h"

#include <inttypes.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/run/run_rdzv.h"
#include "cli/run/run_scheduler_impl.h"

static void set(struct options *options, enum option_id id, const char *text, struct run_scheduler *room) {
    struct option_value *value = &options->values[id];
    size_t used = strlen(room->plan);
    value->source = OPTION_FROM_SCHEDULER;
    value->text = text;
    (void)options_parse_integer(text, &value->integer);
    (void)str_format(room->plan + used, sizeof room->plan - used, " %s=%s", option_specs[id].name, text);
}

static void set_number(struct options *options, enum option_id id, uint32_t number, char text[16],
                       struct run_scheduler *room) {
    (void)str_format(text, 16, "%" PRIu32, number);
    set(options, id, text, room);
}

/* ---- what follows ---- */

/* How many of the agents are to be spare nodes (--spares). A text that is no such number is left to its own check. */
static uint32_t spares_of(const struct options *options, const struct scheduler *s) {
    const char *text = value_of(options, OPTION_SPARES)->text;
    int64_t spares = 0;
    bool fine = text != NULL && options_parse_integer(text, &spares) && spares > 0 && spares < (int64_t)s->agents;
    return fine ? (uint32_t)spares : 0;
}

/* With several endpoints the loss of the host that serves is survived. A job that takes more nodes than there are, or
 * fewer, would begin later for it, since it might run elsewhere as well (docs/rendezvous.md, "When the host dies"). */
static uint32_t count_places(const struct options *options, enum rdzv_backend backend, const struct scheduler *s) {
    uint32_t min_nodes = 0, max_nodes = 0;
    int rc = run_rdzv_parse_nodes(value_of(options, OPTION_NNODES)->text, &min_nodes, &max_nodes);
    bool are_all = rc == MUSTER_OK && (uint64_t)max_nodes + spares_of(options, s) == s->agents;
    return rdzv_backend_endpoint(backend) == RDZV_ENDPOINT_HOSTS && are_all ? s->host_count : 1;
}

static void write_endpoints(const struct scheduler *s, uint32_t count, struct run_scheduler *room) {
    room->endpoint[0] = '\0';
    for (uint32_t i = 0; i < count; i++) {
        size_t used = strlen(room->endpoint);
        const bool is_v6 = strchr(s->hosts[i], ':') != NULL && s->port > 0;
        (void)str_format(room->endpoint + used, sizeof room->endpoint - used, "%s%s%s%s%s%s", i > 0 ? "," : "",
                         is_v6 ? "[" : "", s->hosts[i], is_v6 ? "]" : "", s->port > 0 ? ":" : "",
                         s->port > 0 ? room->port : "");
    }
}

static int set_place(struct options *options, enum rdzv_backend backend, struct run_scheduler *room) {
    const struct scheduler *s = &room->found;
    enum rdzv_endpoint_form form = rdzv_backend_endpoint(backend);
    if (form == RDZV_ENDPOINT_ETCD || form == RDZV_ENDPOINT_URLS) {
        return MUSTER_OK; /* etcd is elsewhere */
    }
    if (s->host_count == 0) {
        char doubt[SCHEDULER_TEXT_MAX + 2];
        return status_fail(MUSTER_EINVAL,
                           "%s does not say on which host its first process runs: give --rdzv-endpoint=HOST:PORT, the "
                           "same on all, or pass MASTER_ADDR=HOST to all%s%s%s",
                           s->where,
                           s->kind == SCHEDULER_KUBERNETES ? "; in an Indexed Job, MUSTER_SERVICE=NAME of its headless "
                                                             "service"
                                                           : "",
                           run_scheduler_unless_sure(room), run_scheduler_doubt(s, doubt));
    }
    if (s->is_master_elsewhere) {
        log_warning("MASTER_ADDR is a node of the job but not one of the nodes of %s, where nobody would serve: the "
                    "nodes meet at %s",
                    s->where, s->hosts[0]);
    }
    (void)str_format(room->port, sizeof room->port, "%u", (unsigned)s->port);
    if (is_static(backend)) {
        set(options, OPTION_MASTER_ADDR, s->hosts[0], room);
        if (s->port > 0) {
            set(options, OPTION_MASTER_PORT, room->port, room);
        }
        return MUSTER_OK;
    }
    write_endpoints(s, count_places(options, backend, s), room);
    set(options, OPTION_RDZV_ENDPOINT, room->endpoint, room);
    return MUSTER_OK;
}

static int set_world(struct options *options, struct run_scheduler *room) {
    const struct scheduler *s = &room->found;
    if (!is_given(options, OPTION_NNODES)) {
        set_number(options, OPTION_NNODES, s->agents - spares_of(options, s), room->nnodes, room);
    }
    if (!is_given(options, OPTION_RDZV_BACKEND) && !run_scheduler_has_place(options)) {
        set(options, OPTION_RDZV_BACKEND, rdzv_backend_name(RDZV_BACKEND_MUSTER), room);
    }
    if (!is_given(options, OPTION_RDZV_ID) && s->run_id[0] != '\0') {
        set(options, OPTION_RDZV_ID, s->run_id, room);
    }
    enum rdzv_backend backend;
    if (!find_backend(options, &backend)) {
        return MUSTER_OK;
    }
    /* static needs it; a coordinator orders nodes by it; the others follow host names, as torchrun does */
    bool has_order = is_static(backend) || rdzv_has_coordinator(backend);
    if (!is_given(options, OPTION_NODE_RANK) && s->knows_rank && has_order) {
        set_number(options, OPTION_NODE_RANK, s->rank, room->rank, room);
    }
    return run_scheduler_has_place(options) ? MUSTER_OK : set_place(options, backend, room);
}

/* For the line that comes while this agent waits for others. */
static void note_wait(struct run_scheduler *room) {
    const struct scheduler *s = &room->found;
    if (room->starter == STARTER_UNKNOWN) {
        (void)str_format(room->waits_because, sizeof room->waits_because,
                         "this agent waits for others since %s=%" PRIu32
                         " says that there are so many (%s). If it is the only one, --nnodes=1 makes a job of this "
                         "node alone, and --scheduler=none ignores such variables",
                         s->count_variable, s->agents, s->where);
    }
}

static int apply_count(struct options *options, struct run_scheduler *room, bool given, uint32_t max_nodes) {
    const struct scheduler *s = &room->found;
    if (s->is_contradictory && !run_scheduler_is_complete(options)) {
        return status_fail(MUSTER_EINVAL,
                           "%s: %s: is the variable left over from elsewhere? --scheduler=none ignores all of them%s",
                           s->where, s->doubt, run_scheduler_unless_sure(room));
    }
    if (s->agents == 0 && !given && !run_scheduler_has_place(options)) {
        if (s->kind != SCHEDULER_KUBERNETES || s->doubt[0] != '\0') {
            return run_scheduler_fail_count(room);
        }
        log_warning("%s: nothing says how many pods belong together (PET_NNODES): this one, number %" PRIu32
                    ", runs on its own",
                    s->where, s->rank);
        return MUSTER_OK;
    }
    if (given ? max_nodes < 2 : s->agents < 2) {
        return MUSTER_OK;
    }
    int rc = set_world(options, room);
    if (rc == MUSTER_OK && !given) {
        note_wait(room);
    }
    return rc;
}

static int apply_launched(struct options *options, struct run_scheduler *room) {
    const struct scheduler *s = &room->found;
    uint32_t min_nodes = 1, max_nodes = 1;
    int rc = run_rdzv_parse_nodes(value_of(options, OPTION_NNODES)->text, &min_nodes, &max_nodes);
    if (rc != MUSTER_OK) {
        return rc;
    }
    const char *alone = run_scheduler_says_alone(options);
    if (alone) {
        if (s->agents > 1 && run_scheduler_is_sure(room)) {
            run_scheduler_warn_alone(s, alone);
        }
        return MUSTER_OK;
    }
    const bool given = is_given(options, OPTION_NNODES);
    rc = run_scheduler_check_crowd(options, room, given ? max_nodes : 0);
    if (rc == MUSTER_OK && run_scheduler_is_sure(room)) {
        rc = run_scheduler_check_nodes(options, s, min_nodes, max_nodes);
        run_scheduler_check_rank(options, s);
    }
    return rc ? rc : apply_count(options, room, given, max_nodes);
}

/* ---- who has started this process ---- */

static enum starter find_starter(const struct options *options, const struct run_machine *machine,
                                 const struct scheduler *s, struct starter_sight *seen) {
    const bool is_chosen = strcmp(value_of(options, OPTION_SCHEDULER)->text, "auto") != 0;
    const struct starter_query query = {
        .root = machine->root,
        .has_terminal = machine->has_terminal,
        .first_is_task = s->kind == SCHEDULER_KUBERNETES,
        .variable = s->kind == SCHEDULER_SLURM     ? "SLURM_STEP_ID"
                    : s->count_variable[0] != '\0' ? s->count_variable
                                                   : "PMIX_RANK",
        .task_process = s->kind == SCHEDULER_SLURM ? run_machine_variable(machine, "SLURM_TASK_PID") : NULL,
    };
    *seen = (struct starter_sight){.is_whole = false};
    if (machine->look != NULL) {
        machine->look(&query, seen);
    }
    return is_chosen ? STARTER_SCHEDULER : starter_judge(s->kind, seen);
}

/* Variables of others: this process is none of the agents that they speak of. */
static void tell_inherited(const struct options *options, const struct scheduler *s, const struct starter_sight *seen) {
    const char *why = seen->is_shell ? "this is a shell at a terminal" : "no daemon of it has started this process";
    if (s->agents == 1 || run_scheduler_is_complete(options) || seen->is_shell) {
        log_info("scheduler: variables of %s, but %s: a job of this node alone", s->where, why);
    } else {
        log_warning("there are variables of %s, but %s: going on here alone. --scheduler=%s makes it one of the agents "
                    "that they speak of",
                    s->where, why, s->kind == SCHEDULER_SLURM ? "slurm" : "mpi");
    }
}

/* In a line for torchrun no option comes from a scheduler, but who forgets --nnodes in a script for srun must know. */
static void warn_torchrun(const struct options *options, const struct run_scheduler *room) {
    const struct scheduler *s = &room->found;
    if (room->starter != STARTER_ELSE && s->is_launched && s->agents > 1 && !is_given(options, OPTION_NNODES) &&
        !value_of(options, OPTION_STANDALONE)->on) {
        log_warning("%s=%" PRIu32 " says that there are several agents (%s), but called as torchrun this program takes "
                    "no option from a scheduler: without --nnodes this is a job of one node. --scheduler=auto (or "
                    "MUSTER_SCHEDULER=auto) makes it one job of all of them",
                    s->count_variable, s->agents, s->where);
    }
}

static void tell(const struct run_scheduler *room) {
    const struct scheduler *s = &room->found;
    char rank[64] = "";
    if (s->is_launched && s->agents > 0) {
        (void)str_format(rank, sizeof rank, ", agent %" PRIu32 " of %" PRIu32, s->rank, s->agents);
    }
    char again[32] = "";
    if (s->restarts > 0) {
        (void)str_format(again, sizeof again, ", requeue %" PRIu32, s->restarts);
    }
    log_info("scheduler: %s%s%s:%s", s->where, rank, again,
             room->plan[0] != '\0' ? room->plan : " nothing to add to the options that were given");
}

static void warn_of_workers(const struct options *options, const struct scheduler *s) {
    int64_t workers = 0;
    const char *text = value_of(options, OPTION_NPROC_PER_NODE)->text;
    if (s->workers > 0 && s->is_on_node && is_given(options, OPTION_NPROC_PER_NODE) && text != NULL &&
        options_parse_integer(text, &workers) && workers > (int64_t)s->workers) {
        log_warning("%s=%.20s, but %s has %" PRIu32 " GPUs on this node (SLURM_GPUS_ON_NODE)",
                    run_scheduler_origin(options, OPTION_NPROC_PER_NODE), text, s->where, s->workers);
    }
}

static int apply_found(struct options *options, const struct starter_sight *seen, struct run_scheduler *room) {
    struct scheduler *s = &room->found;
    if (s->is_launched && room->starter == STARTER_ELSE) {
        if (s->kind != SCHEDULER_SLURM || !seen->is_shell) {
            tell_inherited(options, s, seen);
            return MUSTER_OK;
        }
        s->is_launched = false; /* a shell of srun --pty is as good as one of salloc */
        char step[SCHEDULER_TEXT_MAX];
        (void)str_copy(step, sizeof step, s->where);
        (void)str_format(s->where, sizeof s->where, "a shell of %s", step);
    }
    int rc = s->is_launched ? apply_launched(options, room)
                            : run_scheduler_check_outside_step(options, room, seen->is_shell);
    if (rc != MUSTER_OK) {
        return rc;
    }
    warn_of_workers(options, s);
    if (s->workers > 0 && s->is_on_node && !is_given(options, OPTION_NPROC_PER_NODE)) {
        set_number(options, OPTION_NPROC_PER_NODE, s->workers, room->workers, room);
    }
    if (s->kind == SCHEDULER_SLURM && s->is_on_node && !is_given(options, OPTION_PREEMPT_SIGNAL)) {
        set(options, OPTION_PREEMPT_SIGNAL, "SIGUSR1", room);
    }
    tell(room);
    return MUSTER_OK;
}

int run_scheduler_apply(struct options *options, const struct run_machine *machine, struct run_scheduler *room) {
    struct scheduler *s = &room->found;
    struct starter_sight seen;
    room->plan[0] = room->waits_because[0] = '\0';
    int rc = scheduler_detect(value_of(options, OPTION_SCHEDULER)->text, machine->lookup, machine->ctx, s);
    if (rc != MUSTER_OK || s->kind == SCHEDULER_NONE) {
        return rc;
    }
    room->starter = find_starter(options, machine, s, &seen);
    if (machine->is_torchrun && !is_given(options, OPTION_SCHEDULER)) {
        warn_torchrun(options, room);
        return MUSTER_OK;
    }
    return apply_found(options, &seen, room);
}
