/* What the two files about the MPI server share, and nobody else.
 *
 * agent_mpi.c         its start and its end, and reading what it says
 * agent_mpi_ranks.c   what its words mean for the workers */
#ifndef AGENT_MPI_IMPL_H
#define AGENT_MPI_IMPL_H

#include "agent/agent_impl.h"
#include "agent/guardian/guardian_channel.h"
#include "agent/mpi/mpi_stages.h"
#include "agent/mpi/mpi_wire.h"

struct agent_mpi {
    struct agent *agent;
    struct guardian_channel channel;
    uv_poll_t poll;
    uv_timer_t timer;      /* until the workers start, for the server; then for those that are to end */
    uv_timer_t left_timer; /* for the end of those that have left */
    unsigned handles_open;
    pid_t pid;  /* 0 until it has started */
    bool waits; /* the workers, for its word */
    bool serves_pmix;
    bool has_killed;                  /* workers that had failed and did not end by SIGTERM */
    char folder[MPI_WIRE_PATH_MAX];   /* "": none */
    struct launch_strings *variables; /* one list for each worker */
    int *fds;                         /* and its descriptor, until it has started; 0: none */
    struct mpi_stages stages;
};

/* agent_mpi_ranks.c */
/* An ABORT, BEGUN, LEFT or BROKEN frame. */
void agent_mpi_on_rank(struct agent *a, enum mpi_frame kind, const struct mpi_said *said);
/* agent_mpi_end_of(), when all that the server has said is known. */
int agent_mpi_rank_end(struct agent *a, uint32_t local_rank, int wait_status);

#endif
