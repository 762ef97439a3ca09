/* Which scheduler there is; see scheduler.h. What its readers have in common is in scheduler_read.c. */
#include "cli/run/scheduler.h"

#include <inttypes.h>
#include <string.h>

#include "base/status.h"
#include "cli/run/scheduler_impl.h"

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
