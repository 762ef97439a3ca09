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

static void read_hosts(const struct scheduler_source *source, struct scheduler *out) {
    const char *list = scheduler_variable(source, out->is_launched ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST");
    list = list != NULL ? list : scheduler_variable(source, "SLURM_JOB_NODELIST");
    list = list != NULL ? list : scheduler_variable(source, "SLURM_NODELIST");
    size_t count = 0;
    if (list == NULL || !scheduler_first_hosts(list, out) || hostlist_count(list, &count) != MUSTER_OK) {
        return;
    }
    if (out->nodes > 0 && out->nodes != count) {
        scheduler_doubt(out, "Slurm says that there are %" PRIu32 " nodes, and lists %zu: \"%.100s\"", out->nodes,
                        count, list);
        out->nodes = out->host_count = 0;
        return;
    }
    out->nodes = (uint32_t)count;
}

/* False where the list is none. */
static bool lists(const char *list, const char *host) {
    char one[HOSTLIST_HOST_MAX];
    size_t count = 0;
    int rc = hostlist_count(list, &count);
    bool found = false;
    for (size_t i = 0; rc == MUSTER_OK && !found && i < count && i < SCHEDULER_AGENTS_MAX; i++) {
        rc = hostlist_get(list, i, one);
        found = rc == MUSTER_OK && strcmp(one, host) == 0;
    }
    status_clear();
    return found;
}

static void read_counts(const struct scheduler_source *source, struct scheduler *out) {
    static const char *const step_nodes[] = {"SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES", NULL};
    static const char *const job_nodes[] = {"SLURM_JOB_NUM_NODES", "SLURM_NNODES", NULL};
    const char *const *name = out->is_launched ? step_nodes : job_nodes;
    while (*name != NULL && !scheduler_number(source, *name, 1, out, &out->nodes)) {
        name++;
    }
    (void)scheduler_number(source, "SLURM_RESTART_COUNT", 0, out, &out->restarts);
    (void)scheduler_number(source, "SLURM_GPUS_ON_NODE", 0, out, &out->workers);
}

static void read_task(const struct scheduler_source *source, struct scheduler *out) {
    static const char *const counts[] = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS", NULL};
    (void)scheduler_agents(source, counts, out);
    scheduler_rank(source, "SLURM_PROCID", out);
    if (out->nodes > 0) {
        out->local_agents = out->agents % out->nodes == 0 ? out->agents / out->nodes : 0;
    }
}

/* A batch script of a heterogeneous job has the first component's numbers; a step of several has those of all. */
static void add_components(const struct scheduler_source *source, struct scheduler *out) {
    uint32_t count = 0;
    (void)scheduler_number(source, "SLURM_HET_SIZE", 1, out, &count);
    if (count > COMPONENTS_MAX) {
        scheduler_doubt(out, "SLURM_HET_SIZE is %" PRIu32 ", and a job has at most %d components", count,
                        COMPONENTS_MAX);
        count = 0;
    }
    for (uint32_t i = 1; i < count; i++) {
        char name[48];
        uint32_t nodes = 0;
        (void)str_format(name, sizeof name, "SLURM_JOB_NUM_NODES_HET_GROUP_%" PRIu32, i);
        (void)scheduler_number(source, name, 1, out, &nodes);
        out->nodes = nodes <= INT32_MAX - out->nodes ? out->nodes + nodes : out->nodes;
    }
}

/* Batch scripts set MASTER_ADDR to the first node of the job, which the step need not have: nobody would serve there.
 */
static bool is_elsewhere(const struct scheduler_source *source) {
    const char *master = scheduler_variable(source, "MASTER_ADDR");
    const char *step = scheduler_variable(source, "SLURM_STEP_NODELIST");
    const char *job = scheduler_variable(source, "SLURM_JOB_NODELIST");
    return master != NULL && step != NULL && job != NULL && lists(job, master) && !lists(step, master);
}

/* Names, run id, port: what needs no other variable. */
static void name_job(const struct scheduler_source *source, int64_t job, struct scheduler *out) {
    int64_t step = 0;
    out->kind = SCHEDULER_SLURM;
    out->is_launched = read_step(source, &step);
    out->is_on_node = out->is_launched || scheduler_variable(source, "SLURMD_NODENAME") != NULL;
    step = out->is_launched ? step : 0;
    (void)str_format(out->run_id, sizeof out->run_id, "%" PRId64, job);
    out->port = scheduler_port((uint64_t)job + 1000 * (uint64_t)step);
    if (out->is_launched) {
        (void)str_format(out->where, sizeof out->where, "Slurm job %" PRId64 ", step %" PRId64, job, step);
    } else {
        (void)str_format(out->where, sizeof out->where, "the %s of Slurm job %" PRId64,
                         out->is_on_node ? "batch script" : "shell", job);
    }
}

void scheduler_read_slurm(const struct scheduler_source *source, struct scheduler *out) {
    const char *text = scheduler_variable(source, "SLURM_JOB_ID");
    int64_t job = 0;
    if (text == NULL) {
        return;
    }
    if (!str_parse_i64(text, &job) || job < 0) {
        scheduler_doubt(out, "SLURM_JOB_ID is '%.100s', and a number is expected", text);
        return;
    }
    name_job(source, job, out);
    read_counts(source, out);
    read_hosts(source, out);
    if (out->is_launched) {
        read_task(source, out);
    } else {
        add_components(source, out);
    }
    out->is_master_elsewhere = out->is_launched && is_elsewhere(source);
    if (!out->is_master_elsewhere) {
        scheduler_master(source, out);
    }
}
