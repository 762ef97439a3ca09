/* One collective of Muster as nonblocking calls of MPI: mostly one, several where a count does not fit. */
#ifndef COMM_MPI_MPI_CALL_H
#define COMM_MPI_MPI_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/engine/call.h"
#include "comm/mpi/mpi_library.h"

/* Where it is made. */
struct mpi_call_place {
    const struct mpi *mpi;
    mpi_handle comm;
    uint32_t rank, size;
    size_t piece_max; /* elements of one call of MPI, where a call can be cut */
};

/* Under way. Zeroed: none is. */
struct mpi_call {
    const struct comm_call *call; /* borrowed */
    mpi_handle request;
    size_t done, piece; /* elements: those before, and those of the piece under way */
    struct mpi_blocks send_blocks, receive_blocks;
    void *scratch; /* in the receive buffer's place, where MPI cannot take that */
};

/* Starts it, or its next piece. 0, an error of MPI, or MPI_TOO_LONG (the call cannot be cut); MUSTER_ENOMEM in
 * *out_code instead, with its detail. The caller is in MPI. */
int mpi_call_start(const struct mpi_call_place *place, struct mpi_call *call, int *out_code);
/* The piece under way has ended. true: so has the call, and its result is complete; else mpi_call_start() is due. */
bool mpi_call_advance(const struct mpi_call_place *place, struct mpi_call *call);
/* Frees what it holds. Not of a call that MPI still carries out. */
void mpi_call_done(struct mpi_call *call);

/* "MPI_Iallreduce": what a call is for MPI. Static. */
const char *mpi_call_name(const struct comm_call *call);

#endif
