/* How this process was started, as its environment tells: by a launcher that sets RANK and MASTER_ADDR, by a starter of
 * processes (Open MPI's or MPICH's mpirun, Slurm's srun), or alone. Pure: the environment is asked through a function.
 *
 * Starters tell ranks, but no place to meet. That comes from MASTER_ADDR, or is passed on through the interface that
 * they offer their processes: PMI-1 over a socket (pmi1.h), or PMIx (pmix.h). */
#ifndef COMM_LAUNCH_H
#define COMM_LAUNCH_H

#include <stdbool.h>
#include <stdint.h>

enum launch_kind {
    LAUNCH_ALONE,  /* a world of one */
    LAUNCH_ENV,    /* MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE; some may be missing */
    LAUNCH_MASTER, /* MASTER_ADDR, and a starter's ranks */
    LAUNCH_PMI1,   /* a starter with a socket, `pmi_fd` */
    LAUNCH_PMIX    /* a starter with PMIx */
};

#define LAUNCH_MASTER_PORT 29500 /* torchrun's, where MASTER_PORT is not set */

struct launch {
    enum launch_kind kind;
    const char *starter; /* "Open MPI's mpirun"; NULL: none */
    uint32_t rank, size; /* by the starter; size 0: it did not say */
    int pmi_fd;
    const char *master_host; /* in the environment */
    uint16_t master_port;
};

typedef const char *launch_variable(void *context, const char *name);

/* MUSTER_EINVAL: a starter says that there are several ranks, but not where they can meet; or a number is none. The
 * sentence says what would help. */
int launch_find(launch_variable *variable, void *context, struct launch *out);

#endif
