/* Which scheduler there is; see scheduler.h. What its readers have in common is in scheduler_read.c. */
#include "cli/run/scheduler.h"

#include <inttypes.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "cli/run/scheduler_impl.h"

/* One of the two is wrong, and nobody knows which. */
static void check_rank(struct scheduler *s) {
    if (s->knows_rank && s->agents > 0 && s->rank >= s->agents) {
        scheduler_doubt(s, "this is process %" PRIu32 ", but %s says that there are %" PRIu32, s->rank,
                        s->count_variable, s->agents);
        s->is_contradictory = true;
        s->knows_rank = false;
        s->rank = s->agents = s->local_agents = 0;
    }
}

typedef void reader_fn(const struct scheduler_source *source, struct scheduler *out);

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

static int fail_absent(const char *choice, const char *doubt) {
    const char *names = strcmp(choice, "slurm") == 0        ? "SLURM_JOB_ID"
                        : strcmp(choice, "kubernetes") == 0 ? "PET_NNODES, JOB_COMPLETION_INDEX, or RANK and WORLD_SIZE"
                                                            : "OMPI_COMM_WORLD_SIZE, PMI_SIZE or PMIX_RANK";
    return status_fail(
        MUSTER_EINVAL,
        "--scheduler=%.20s: none of its variables is set here (%s)%s%s; --scheduler=auto takes what there is", choice,
        names, doubt[0] != '\0' ? "; " : "", doubt);
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
    char doubt[SCHEDULER_TEXT_MAX] = "";
    *out = (struct scheduler){.kind = SCHEDULER_NONE};
    if (strcmp(choice, "none") == 0 || (any && scheduler_variable(&source, "TORCHELASTIC_RUN_ID") != NULL)) {
        return MUSTER_OK;
    }
    for (size_t i = 0; i < sizeof readers / sizeof *readers; i++) {
        if (!any && strcmp(choice, readers[i].choice) != 0) {
            continue;
        }
        *out = (struct scheduler){.kind = SCHEDULER_NONE};
        readers[i].read(&source, out);
        if (out->kind != SCHEDULER_NONE) {
            check_rank(out);
            return MUSTER_OK;
        }
        if (doubt[0] == '\0') {
            (void)str_copy(doubt, sizeof doubt, out->doubt);
        }
    }
    return any ? MUSTER_OK : fail_absent(choice, doubt);
}
