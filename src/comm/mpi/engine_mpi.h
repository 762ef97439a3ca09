/* The engine of groups whose ranks MPI connects: its networks, its collectives. See docs/engines.md.
 *
 * MPI is opened when the first such group connects. Each group has a communicator of its own. Calls are MPI's
 * nonblocking ones, which this engine asks for their end again and again: so the group can give up a call that MPI
 * would wait in for ever. After that MPI is not called any more in this process (mpi_world.h). */
#ifndef COMM_MPI_ENGINE_MPI_H
#define COMM_MPI_ENGINE_MPI_H

#include "comm/engine/call_line.h"
#include "comm/engine/engine.h"
#include "comm/host/bell.h"

struct memory;

/* Borrowed as long as the engine lives. */
struct engine_mpi_config {
    struct comm_waiter *waiter;         /* of collectives, and of connect() */
    struct comm_waiter *message_waiter; /* of messages */
    struct memory *memory;              /* of the context: what the ranks of a host share without MPI */
    uint32_t group;                     /* its id */
    const char *name;                   /* of the group, for sentences */
    uint32_t rank, size;
    const uint32_t *peers; /* per rank of the group: its number in the root group, which must be its rank in MPI */
    uint32_t root_rank, root_size;
    /* For sentences: of a rank of the root group. */
    const char *(*host_name)(const void *context, uint32_t root_rank);
    const void *context;
    /* The lines of this host's members, whose calls are compared with this rank's. */
    const struct call_line *const *lines;
    uint32_t line_count;
    const struct call_line *own_line;
    /* Each call begins with one that compares it among all ranks: those of other hosts are not seen otherwise. */
    bool compares_calls;
};

/* MUSTER_ENOMEM. */
int engine_mpi_create(const struct engine_mpi_config *config, struct engine **out);

#endif
