/* Kubernetes: what Kubeflow's operators set (PET_ variables, which are options already; MASTER_ADDR, RANK and
 * WORLD_SIZE), and an Indexed Job with a headless service; see scheduler.h. */
#include <inttypes.h>
#include <string.h>

#include "base/str.h"
#include "cli/run/scheduler_impl.h"

/* "4" or "2:4": the most. It stands for --nnodes, whose own check says what is wrong with it. */
static void read_pet_nodes(const struct scheduler_source *source, struct scheduler *out) {
    const char *text = scheduler_variable(source, "PET_NNODES");
    const char *colon = text != NULL ? strchr(text, ':') : NULL;
    int64_t most = 0;
    if (text != NULL && str_parse_i64(colon != NULL ? colon + 1 : text, &most) && most >= 1 &&
        most <= SCHEDULER_AGENTS_MAX) {
        (void)str_copy(out->count_variable, sizeof out->count_variable, "PET_NNODES");
        out->agents = (uint32_t)most;
    }
}

static void read_rank(const struct scheduler_source *source, struct scheduler *out) {
    static const char *const names[] = {"PET_NODE_RANK", "JOB_COMPLETION_INDEX", "RANK"};
    for (size_t i = 0; !out->knows_rank && i < sizeof names / sizeof *names; i++) {
        scheduler_rank(source, names[i], out);
    }
}

/* The pods of an Indexed Job are called JOB-INDEX, and the headless service makes that a name for the others. */
static bool name_pods(const char *job, int job_len, const char *service, struct scheduler *out) {
    uint32_t count = out->agents > 0 ? out->agents : 1;
    bool fits = true;
    out->host_count = service == NULL ? 0 : count < SCHEDULER_HOSTS_MAX ? count : SCHEDULER_HOSTS_MAX;
    for (uint32_t i = 0; fits && i < out->host_count; i++) {
        fits = str_format(out->hosts[i], sizeof out->hosts[i], "%.*s-%" PRIu32 ".%s", job_len, job, i, service);
    }
    return fits;
}

static void take_first_pods(const struct scheduler_source *source, struct scheduler *out) {
    const char *host = scheduler_variable(source, "HOSTNAME");
    const char *service = scheduler_variable(source, "MUSTER_SERVICE");
    const char *dash = host != NULL ? strrchr(host, '-') : NULL;
    int64_t index = 0;
    if (dash == NULL || !str_parse_i64(dash + 1, &index) || index != out->rank) {
        if (service != NULL) {
            scheduler_doubt(out,
                            "MUSTER_SERVICE is set, but this pod is called '%.100s' and not JOB-%" PRIu32
                            ", as those of an Indexed Job are",
                            host != NULL ? host : "", out->rank);
        }
        return;
    }
    if (!str_format(out->run_id, sizeof out->run_id, "%.*s", (int)(dash - host), host) ||
        !name_pods(host, (int)(dash - host), service, out)) {
        out->host_count = 0;
        scheduler_doubt(out, "the name of the pod or of MUSTER_SERVICE is too long");
    }
}

/* What Kubeflow's operators set for PyTorch's env:// method. A number that is none is not theirs. */
static bool is_operators(const struct scheduler_source *source, struct scheduler *out) {
    uint32_t size = 0, rank = 0;
    return scheduler_variable(source, "MASTER_ADDR") != NULL && scheduler_number(source, "WORLD_SIZE", 1, out, &size) &&
           scheduler_number(source, "RANK", 0, out, &rank);
}

void scheduler_read_kubernetes(const struct scheduler_source *source, struct scheduler *out) {
    static const char *const counts[] = {"WORLD_SIZE", NULL};
    uint32_t index = 0;
    const bool is_pod = scheduler_variable(source, "KUBERNETES_SERVICE_HOST") != NULL;
    const bool is_indexed = is_pod && scheduler_number(source, "JOB_COMPLETION_INDEX", 0, out, &index);
    const bool is_pet = is_pod && scheduler_variable(source, "PET_NNODES") != NULL;
    const bool is_operator = is_pod && is_operators(source, out);
    if (!is_indexed && !is_pet && !is_operator) {
        return;
    }
    out->kind = SCHEDULER_KUBERNETES;
    out->is_launched = out->is_on_node = true;
    out->local_agents = 1;
    (void)str_copy(out->where, sizeof out->where,
                   is_indexed ? "Kubernetes (Indexed Job)" : "Kubernetes (training operator)");
    if (is_pet || !is_operator) {
        read_pet_nodes(source, out);
    } else {
        (void)scheduler_agents(source, counts, out);
    }
    read_rank(source, out);
    if (is_indexed) {
        take_first_pods(source, out);
    }
    scheduler_master(source, out);
}
