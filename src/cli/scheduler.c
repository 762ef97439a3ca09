/* Which scheduler there is, and what its readers have in common; see scheduler.h. */
#include "cli/scheduler.h"

#include <inttypes.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/scheduler_impl.h"

enum { PORT_FIRST = 12000, PORT_COUNT = 20000, RANK_MAX = INT32_MAX };

const char *scheduler_variable(const struct scheduler_source *source, const char *name) {
    const char *text = source->lookup(source->ctx, name);
    return text != NULL && text[0] != '\0' ? text : NULL;
}

int scheduler_number(const struct scheduler_source *source, const char *name, uint32_t least, uint32_t *out,
                     bool *found) {
    const char *text = scheduler_variable(source, name);
    int64_t value = 0;
    *found = text != NULL;
    *out = 0;
    if (text == NULL) {
        return MUSTER_OK;
    }
    if (!str_parse_i64(text, &value) || value < (int64_t)least || value > RANK_MAX) {
        return status_fail(MUSTER_EINVAL,
                           "%s is '%.100s': a number from %" PRIu32 " on is expected (--scheduler=none ignores it)",
                           name, text, least);
    }
    *out = (uint32_t)value;
    return MUSTER_OK;
}

int scheduler_agents(const struct scheduler_source *source, const char *const *names, struct scheduler *out) {
    bool found = false;
    int rc = MUSTER_OK;
    for (; rc == MUSTER_OK && !found && *names != NULL; names++) {
        rc = scheduler_number(source, *names, 1, &out->agents, &found);
        if (rc == MUSTER_OK && found) {
            (void)str_copy(out->count_variable, sizeof out->count_variable, *names);
        }
    }
    if (rc == MUSTER_OK && out->agents > SCHEDULER_AGENTS_MAX) {
        rc = status_fail(MUSTER_EINVAL, "%s is %" PRIu32 ": a job has at most %d nodes", out->count_variable,
                         out->agents, SCHEDULER_AGENTS_MAX);
    }
    return rc;
}

int scheduler_first_hosts(const char *list, struct scheduler *out) {
    size_t count = 0;
    int rc = hostlist_count(list, &count);
    out->host_count = count < SCHEDULER_HOSTS_MAX ? (uint32_t)count : SCHEDULER_HOSTS_MAX;
    for (size_t i = 0; rc == MUSTER_OK && i < out->host_count; i++) {
        rc = hostlist_get(list, i, out->hosts[i]);
    }
    return rc;
}

int scheduler_master(const struct scheduler_source *source, struct scheduler *out) {
    const char *host = scheduler_variable(source, "MASTER_ADDR");
    uint32_t port = 0;
    bool found = false;
    int rc = scheduler_number(source, "MASTER_PORT", 0, &port, &found);
    if (rc == MUSTER_OK && port > UINT16_MAX) {
        rc = status_fail(MUSTER_EINVAL, "MASTER_PORT is %" PRIu32 ": a port is at most 65535", port);
    }
    if (rc == MUSTER_OK && host != NULL) {
        out->host_count = 1;
        if (!str_copy(out->hosts[0], sizeof out->hosts[0], host)) {
            rc = status_fail(MUSTER_EINVAL, "MASTER_ADDR has more than %d bytes", HOSTLIST_HOST_MAX - 1);
        }
    }
    if (rc == MUSTER_OK && found) {
        out->port = (uint16_t)port;
    }
    return rc;
}

uint16_t scheduler_port(uint64_t number) {
    return (uint16_t)(PORT_FIRST + number % PORT_COUNT);
}

static int check_rank(const struct scheduler *s) {
    if (s->knows_rank && s->agents > 0 && s->rank >= s->agents) {
        return status_fail(MUSTER_EINVAL,
                           "%s: this is process %" PRIu32 ", but %s says that there are %" PRIu32 " (0 to %" PRIu32
                           "): is the variable left over from elsewhere? --scheduler=none ignores all of them",
                           s->where, s->rank, s->count_variable, s->agents, s->agents - 1);
    }
    return MUSTER_OK;
}

typedef int reader_fn(const struct scheduler_source *source, struct scheduler *out);

/* Who starts processes itself comes before the scheduler in whose allocation it does so: mpirun under Slurm has started
 * this agent, and Slurm's variables are about mpirun's own daemons. */
static const struct {
    const char *choice;
    reader_fn *read;
} readers[] = {
    {"mpi", scheduler_read_open_mpi},          {"mpi", scheduler_read_hydra},
    {"slurm", scheduler_read_slurm},           {"mpi", scheduler_read_pmi},
    {"kubernetes", scheduler_read_kubernetes},
};

static int fail_absent(const char *choice) {
    return status_fail(
        MUSTER_EINVAL,
        "--scheduler=%.20s: none of its variables is set here (%s); --scheduler=auto takes what there is", choice,
        strcmp(choice, "slurm") == 0        ? "SLURM_JOB_ID"
        : strcmp(choice, "kubernetes") == 0 ? "PET_NNODES, JOB_COMPLETION_INDEX, or RANK and WORLD_SIZE"
                                            : "OMPI_COMM_WORLD_SIZE, PMI_SIZE or PMIX_RANK");
}

int scheduler_detect(const char *choice, options_lookup *lookup, void *ctx, struct scheduler *out) {
    const struct scheduler_source source = {.lookup = lookup, .ctx = ctx};
    const bool any = strcmp(choice, "auto") == 0;
    bool known = any || strcmp(choice, "none") == 0;
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
        known = known || strcmp(choice, readers[i].choice) == 0;
    }
    if (!known) { /* from MUSTER_SCHEDULER: the command line's words are checked by the parser */
        return status_fail(MUSTER_EINVAL, "--scheduler=%.20s: auto, slurm, kubernetes, mpi or none is expected",
                           choice);
    }
    *out = (struct scheduler){.kind = SCHEDULER_NONE};
    if (strcmp(choice, "none") == 0 || (any && scheduler_variable(&source, "TORCHELASTIC_RUN_ID") != NULL)) {
        return MUSTER_OK;
    }
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
        if (!any && strcmp(choice, readers[i].choice) != 0) {
            continue;
        }
        *out = (struct scheduler){.kind = SCHEDULER_NONE};
        int rc = readers[i].read(&source, out);
        if (rc != MUSTER_OK || out->kind != SCHEDULER_NONE) {
            return rc == MUSTER_OK ? check_rank(out) : rc;
        }
    }
    return any ? MUSTER_OK : fail_absent(choice);
}
