/* How far the MPI of each worker has come, in memory that an agent and its MPI server share. The server notes a stage
 * before the worker has its answer. So whoever learns that the worker has ended finds the last stage here: a message
 * might still be on its way. One word a worker (docs/memory-model.md). */
#ifndef AGENT_MPI_STAGES_H
#define AGENT_MPI_STAGES_H

#include <stdatomic.h>
#include <stdint.h>

enum mpi_stage {
    MPI_STAGE_NONE = 0, /* its MPI has not asked who it is */
    MPI_STAGE_INSIDE,   /* between MPI_Init() and MPI_Finalize() */
    MPI_STAGE_FINALIZED,
};

struct mpi_stages {
    _Atomic uint32_t *words; /* NULL: not there */
    uint32_t count;
};

/* For `count` workers, all at NONE; *out_fd is the caller's, for the other process, and not needed here.
 * MUSTER_ESYSTEM. */
int mpi_stages_create(uint32_t count, struct mpi_stages *out, int *out_fd);

/* In the other process. `fd` is borrowed. MUSTER_ESYSTEM, MUSTER_EPROTOCOL (too short). */
int mpi_stages_open(int fd, uint32_t count, struct mpi_stages *out);

void mpi_stages_done(struct mpi_stages *stages); /* zeros are fine */

static inline void mpi_stages_set(const struct mpi_stages *stages, uint32_t local_rank, enum mpi_stage stage) {
    atomic_store_explicit(&stages->words[local_rank], (uint32_t)stage, memory_order_release);
}

static inline enum mpi_stage mpi_stages_get(const struct mpi_stages *stages, uint32_t local_rank) {
    return (enum mpi_stage)atomic_load_explicit(&stages->words[local_rank], memory_order_acquire);
}

#endif
