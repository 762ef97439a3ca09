/* Kubernetes: what Kubeflow's operators set (PET_ variables, which are options already; MASTER_ADDR, RANK and
 * WORLD_SIZE), and an Indexed Job with a headless service; see scheduler.h. */
#include <inttypes.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/run/scheduler_impl.h"

/* "4" or "2:4": the most. */
static int read_pet_nodes(const struct scheduler_source *source, struct scheduler *out) {
    const char *text = scheduler_variable(source, "PET_NNODES");
    const char *colon = text != NULL ? strchr(text, ':') : NULL;
    int64_t most = 0;
    if (text == NULL) {
        return MUSTER_OK;
    }
    (void)str_copy(out->count_variable, sizeof out->count_variable, "PET_NNODES");
    if (!str_parse_i64(colon != NULL ? colon + 1 : text, &most) || most < 1 || most > SCHEDULER_AGENTS_MAX) {
        return status_fail(MUSTER_EINVAL, "PET_NNODES is '%.100s': a number of nodes, or MIN:MAX, is expected", text);
    }
    out->agents = (uint32_t)most;
    return MUSTER_OK;
}

static int read_rank(const struct scheduler_source *source, struct scheduler *out) {
    static const char *const names[] = {"PET_NODE_RANK", "JOB_COMPLETION_INDEX", "RANK"};
    int rc = MUSTER_OK;
    for (size_t i = 0; rc == MUSTER_OK && !out->knows_rank && i < sizeof names / sizeof *names; i++) {
        rc = scheduler_number(source, names[i], 0, &out->rank, &out->knows_rank);
    }
    return rc;
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

static int take_first_pods(const struct scheduler_source *source, struct scheduler *out) {
    const char *host = scheduler_variable(source, "HOSTNAME");
    const char *service = scheduler_variable(source, "MUSTER_SERVICE");
    const char *dash = host != NULL ? strrchr(host, '-') : NULL;
    int64_t index = 0;
    if (dash == NULL || !str_parse_i64(dash + 1, &index) || index != out->rank) {
        return service == NULL ? MUSTER_OK
                               : status_fail(MUSTER_EINVAL,
                                             "MUSTER_SERVICE is set, but this pod is called '%.100s' and not "
                                             "JOB-%" PRIu32 ", as those of an Indexed Job are: give --rdzv-endpoint",
                                             host != NULL ? host : "", out->rank);
    }
    if (!str_format(out->run_id, sizeof out->run_id, "%.*s", (int)(dash - host), host) ||
        !name_pods(host, (int)(dash - host), service, out)) {
        return status_fail(MUSTER_EINVAL, "the name of the pod or of MUSTER_SERVICE is too long");
    }
    return MUSTER_OK;
}

int scheduler_read_kubernetes(const struct scheduler_source *source, struct scheduler *out) {
    static const char *const counts[] = {"WORLD_SIZE", NULL};
    const bool is_indexed = scheduler_variable(source, "JOB_COMPLETION_INDEX") != NULL;
    const bool is_pet = scheduler_variable(source, "PET_NNODES") != NULL;
    const bool is_operator = scheduler_variable(source, "WORLD_SIZE") != NULL &&
                             scheduler_variable(source, "RANK") != NULL &&
                             scheduler_variable(source, "MASTER_ADDR") != NULL;
    if (scheduler_variable(source, "KUBERNETES_SERVICE_HOST") == NULL || (!is_indexed && !is_pet && !is_operator)) {
        return MUSTER_OK;
    }
    out->kind = SCHEDULER_KUBERNETES;
    out->is_launched = out->is_on_node = true;
    out->local_agents = 1;
    (void)str_copy(out->where, sizeof out->where,
                   is_indexed ? "Kubernetes (Indexed Job)" : "Kubernetes (training operator)");
    int rc = is_pet || !is_operator ? read_pet_nodes(source, out) : scheduler_agents(source, counts, out);
    rc = rc ? rc : read_rank(source, out);
    rc = rc == MUSTER_OK && is_indexed ? take_first_pods(source, out) : rc;
    return rc ? rc : scheduler_master(source, out);
}
