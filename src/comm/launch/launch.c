/* Reading the environment of a start; see launch.h. Pure. */
#include "comm/launch/launch.h"

#include <stddef.h>

#include "base/status.h"
#include "base/str.h"

struct environment {
    launch_variable *variable;
    void *context;
};

/* NULL: not set, or empty. */
static const char *value_of(const struct environment *environment, const char *name) {
    const char *text = environment->variable(environment->context, name);
    return text && *text ? text : NULL;
}

/* NULL: no port, or what Kubernetes sets for a service called "master". */
static const char *master_port_of(const struct environment *environment) {
    const char *text = value_of(environment, "MASTER_PORT");
    return text && !str_is_service_link(text) ? text : NULL;
}

/* false: not set. */
static bool number_of(const struct environment *environment, const char *name, int64_t max, int64_t *out, int *code) {
    const char *text = value_of(environment, name);
    if (text && (!str_parse_i64(text, out) || *out < 0 || *out > max)) {
        *code = status_fail(MUSTER_EINVAL, "the environment variable %s is '%.64s'; a number from 0 to %lld is needed",
                            name, text, (long long)max);
    }
    return text != NULL;
}

/* Whoever tells ranks: the innermost first, since mpirun may be run in Slurm's allocation. */
static int find_starter(const struct environment *environment, struct launch *out) {
    static const struct {
        const char *name, *rank, *size;
    } starters[] = {
        {"Open MPI's mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
        {"a PMI process manager", "PMI_RANK", "PMI_SIZE"},
        {"Slurm's srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
        {"a PMIx server", "PMIX_RANK", NULL},
    };
    int code = 0;
    for (size_t i = 0; code == 0 && i < sizeof starters / sizeof starters[0]; i++) {
        int64_t rank = 0, size = 0;
        bool has_size = starters[i].size && number_of(environment, starters[i].size, INT32_MAX, &size, &code);
        if (number_of(environment, starters[i].rank, INT32_MAX, &rank, &code) && (has_size || !starters[i].size)) {
            out->starter = starters[i].name;
            out->rank = (uint32_t)rank;
            out->size = (uint32_t)size;
            break;
        }
    }
    if (code == 0 && out->size > 0 && out->rank >= out->size) {
        code = status_fail(MUSTER_EINVAL, "%s says that this is rank %u of %u", out->starter, out->rank, out->size);
    }
    return code;
}

static int find_meeting(const struct environment *environment, struct launch *out) {
    int64_t number = LAUNCH_MASTER_PORT;
    int code = 0;
    out->master_host = value_of(environment, "MASTER_ADDR");
    if (out->master_host && out->size > 0) {
        out->kind = LAUNCH_MASTER;
        if (master_port_of(environment)) {
            (void)number_of(environment, "MASTER_PORT", UINT16_MAX, &number, &code);
        }
        out->master_port = (uint16_t)number;
    } else if (out->size == 1) {
        out->kind = LAUNCH_ALONE;
    } else if (number_of(environment, "PMI_FD", INT32_MAX, &number, &code)) {
        out->kind = LAUNCH_PMI1;
        out->pmi_fd = (int)number;
    } else if (value_of(environment, "PMIX_NAMESPACE") && value_of(environment, "PMIX_RANK")) {
        out->kind = LAUNCH_PMIX;
    } else {
        code =
            status_fail(MUSTER_EINVAL,
                        "%s has started this process as rank %u of %u, but nobody says where the ranks can meet: set "
                        "MASTER_ADDR to a name or address of rank 0's machine%s, or start with muster run",
                        out->starter, out->rank, out->size,
                        value_of(environment, "SLURM_JOB_ID") ? ", use srun --mpi=pmi2 or --mpi=pmix" : "");
    }
    return code;
}

int launch_find(launch_variable *variable, void *context, struct launch *out) {
    const struct environment environment = {variable, context};
    *out = (struct launch){.kind = LAUNCH_ALONE, .pmi_fd = -1};
    bool has_rank = value_of(&environment, "RANK") || value_of(&environment, "WORLD_SIZE");
    bool has_master = value_of(&environment, "MASTER_ADDR") != NULL;
    int code = has_rank ? 0 : find_starter(&environment, out);
    if (code == 0 && out->starter) {
        code = find_meeting(&environment, out);
    } else if (code == 0 && (has_rank || has_master || master_port_of(&environment))) {
        out->kind = LAUNCH_ENV;
    }
    return code;
}
