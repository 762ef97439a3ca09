/* Slurm's variables, inside a step (srun), in a batch script and in a shell of salloc; see scheduler.h.
 *
 * Only in a step has Slurm started this process on its node, with a rank. A batch script and an allocation's shell know
 * the job, and run once. */
#include <inttypes.h>
#include <stddef.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/run/scheduler_impl.h"

/* Steps that are none: the batch script's, a container's, an allocation's interactive shell... (slurm.h). */
#define STEP_SPECIAL_FIRST INT64_C(0xfffffff0)

enum { COMPONENTS_MAX = 128 /* of a heterogeneous job, in Slurm */ };

static bool read_step(const struct scheduler_source *source, int64_t *out) {
    const char *text = scheduler_variable(source, "SLURM_STEP_ID");
    return text != NULL && str_parse_i64(text, out) && *out >= 0 && *out < STEP_SPECIAL_FIRST;
}

static int read_hosts(const struct scheduler_source *source, struct scheduler *out) {
    const char *list = scheduler_variable(source, out->is_launched ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST");
    list = list != NULL ? list : scheduler_variable(source, "SLURM_JOB_NODELIST");
    list = list != NULL ? list : scheduler_variable(source, "SLURM_NODELIST");
    size_t count = 0;
    int rc = list != NULL ? hostlist_count(list, &count) : MUSTER_OK;
    rc = rc == MUSTER_OK && list != NULL ? scheduler_first_hosts(list, out) : rc;
    if (rc != MUSTER_OK) {
        return status_prefix(rc, "Slurm's list of nodes (--scheduler=none ignores it)");
    }
    if (out->nodes > 0 && list != NULL && out->nodes != count) {
        return status_fail(MUSTER_EINVAL,
                           "%s: Slurm says that there are %" PRIu32 " nodes, and lists %zu: \"%.100s\"; "
                           "--scheduler=none ignores both",
                           out->where, out->nodes, count, list);
    }
    out->nodes = (uint32_t)count;
    return MUSTER_OK;
}

static int lists(const char *list, const char *host, bool *found) {
    char one[HOSTLIST_HOST_MAX];
    size_t count = 0;
    int rc = hostlist_count(list, &count);
    *found = false;
    for (size_t i = 0; rc == MUSTER_OK && !*found && i < count && i < SCHEDULER_AGENTS_MAX; i++) {
        rc = hostlist_get(list, i, one);
        *found = rc == MUSTER_OK && strcmp(one, host) == 0;
    }
    return rc;
}

static int read_counts(const struct scheduler_source *source, struct scheduler *out) {
    static const char *const step_nodes[] = {"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"};
    static const char *const job_nodes[] = {"SLURM_JOB_NUM_NODES", "SLURM_NNODES"};
    const char *const *names = out->is_launched ? step_nodes : job_nodes;
    size_t name_count =
        out->is_launched ? sizeof step_nodes / sizeof *step_nodes : sizeof job_nodes / sizeof *job_nodes;
    bool found = false;
    int rc = MUSTER_OK;
    for (size_t i = 0; rc == MUSTER_OK && !found && i < name_count; i++) {
        rc = scheduler_number(source, names[i], 1, &out->nodes, &found);
    }
    rc = rc ? rc : scheduler_number(source, "SLURM_RESTART_COUNT", 0, &out->restarts, &found);
    return rc ? rc : scheduler_number(source, "SLURM_GPUS_ON_NODE", 0, &out->workers, &found);
}

static int read_task(const struct scheduler_source *source, struct scheduler *out) {
    static const char *const counts[] = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS", NULL};
    int rc = scheduler_agents(source, counts, out);
    rc = rc ? rc : scheduler_number(source, "SLURM_PROCID", 0, &out->rank, &out->knows_rank);
    if (rc == MUSTER_OK && out->nodes > 0) {
        out->local_agents = out->agents % out->nodes == 0 ? out->agents / out->nodes : 0;
    }
    return rc;
}

/* A batch script of a heterogeneous job has the first component's numbers; a step of several has those of all. */
static int add_components(const struct scheduler_source *source, struct scheduler *out) {
    uint32_t count = 0, nodes = 0;
    bool found = false;
    int rc = scheduler_number(source, "SLURM_HET_SIZE", 1, &count, &found);
    if (rc == MUSTER_OK && count > COMPONENTS_MAX) {
        rc = status_fail(MUSTER_EINVAL, "SLURM_HET_SIZE is %" PRIu32 ": a job has at most %d components", count,
                         COMPONENTS_MAX);
    }
    for (uint32_t i = 1; rc == MUSTER_OK && i < count; i++) {
        char name[48];
        (void)str_format(name, sizeof name, "SLURM_JOB_NUM_NODES_HET_GROUP_%" PRIu32, i);
        rc = scheduler_number(source, name, 1, &nodes, &found);
        out->nodes = rc == MUSTER_OK && nodes <= INT32_MAX - out->nodes ? out->nodes + nodes : out->nodes;
    }
    return rc;
}

/* Batch scripts set MASTER_ADDR to the first node of the job, which the step need not have. */
static int check_master(const struct scheduler_source *source, const struct scheduler *out) {
    const char *master = scheduler_variable(source, "MASTER_ADDR");
    const char *step = scheduler_variable(source, "SLURM_STEP_NODELIST");
    const char *job = scheduler_variable(source, "SLURM_JOB_NODELIST");
    bool is_of_job = false, is_of_step = false;
    if (master == NULL || step == NULL || job == NULL) {
        return MUSTER_OK;
    }
    int rc = lists(job, master, &is_of_job);
    rc = rc ? rc : lists(step, master, &is_of_step);
    if (rc == MUSTER_OK && is_of_job && !is_of_step) {
        rc = status_fail(MUSTER_EINVAL,
                         "MASTER_ADDR is %.100s, which is a node of the job but is not one of the nodes of %s "
                         "(%.100s): nobody would serve there; leave it out",
                         master, out->where, step);
    }
    return rc;
}

int scheduler_read_slurm(const struct scheduler_source *source, struct scheduler *out) {
    const char *job = scheduler_variable(source, "SLURM_JOB_ID");
    int64_t step = 0, job_number = 0;
    if (job == NULL) {
        return MUSTER_OK;
    }
    if (!str_parse_i64(job, &job_number) || job_number < 0) {
        return status_fail(MUSTER_EINVAL,
                           "SLURM_JOB_ID is '%.100s': a number is expected (--scheduler=none ignores it)", job);
    }
    out->kind = SCHEDULER_SLURM;
    out->is_launched = read_step(source, &step);
    out->is_on_node = out->is_launched || scheduler_variable(source, "SLURMD_NODENAME") != NULL;
    step = out->is_launched ? step : 0;
    (void)str_format(out->run_id, sizeof out->run_id, "%" PRId64, job_number);
    out->port = scheduler_port((uint64_t)job_number + 1000 * (uint64_t)step);
    if (out->is_launched) {
        (void)str_format(out->where, sizeof out->where, "Slurm job %" PRId64 ", step %" PRId64, job_number, step);
    } else {
        (void)str_format(out->where, sizeof out->where, "the %s of Slurm job %" PRId64,
                         out->is_on_node ? "batch script" : "shell", job_number);
    }
    int rc = read_counts(source, out);
    rc = rc ? rc : read_hosts(source, out);
    if (rc == MUSTER_OK) {
        rc = out->is_launched ? read_task(source, out) : add_components(source, out);
    }
    rc = rc == MUSTER_OK && out->is_launched ? check_master(source, out) : rc;
    return rc ? rc : scheduler_master(source, out);
}
