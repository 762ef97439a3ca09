/* What an agent and its MPI server (mpi_server.h) say to each other: kinds of frames of guardian/guardian_channel.h,
 * and their bodies. Both are the same program, so integers are in host order. Pure. */
#ifndef AGENT_MPI_WIRE_H
#define AGENT_MPI_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/mpi/mpi_layout.h"
#include "base/buf.h"

enum mpi_frame {
    MPI_FRAME_SETUP = 1, /* to the server, once: struct mpi_setup; and the memory of mpi_stages.h */
    MPI_FRAME_WORKER,    /* from here on to the agent: uint32_t local_rank, its variables, each with its end; and its
                            descriptor */
    MPI_FRAME_READY,     /* all of them have been said; empty */
    MPI_FRAME_LOG,       /* struct mpi_said: `number` is an enum log_level */
    MPI_FRAME_FAILED,    /* struct mpi_said: it cannot serve, and ends */
    MPI_FRAME_ABORT,     /* struct mpi_said: a worker has called MPI_Abort(), with the code `number` */
    MPI_FRAME_BEGUN,     /* struct mpi_said: a worker is in MPI_Init() */
    MPI_FRAME_LEFT,   /* struct mpi_said: its connection has ended between MPI_Init() and MPI_Finalize(), or others wait
                         for one whose connection has ended */
    MPI_FRAME_BROKEN, /* struct mpi_said: it does not speak PMI-1, and why that is clear */
};

#define MPI_WIRE_TEXT_MAX 1024
#define MPI_WIRE_PATH_MAX 1024
#define MPI_WIRE_VARIABLES_MAX 256               /* of one worker */
#define MPI_WIRE_VARIABLES_BYTES_MAX (256 << 10) /* their texts */

struct mpi_setup {
    uint64_t round;
    uint32_t group_rank, group_world_size;
    uint32_t base_rank, local_count, world_size;
    uint16_t master_port;
    uint8_t serves_pmi1, serves_pmix;
    uint8_t needs_pmix; /* without it: FAILED */
    char master_addr[MPI_LAYOUT_HOST_MAX];
    char host[MPI_LAYOUT_HOST_MAX]; /* of this node */
    char folder[MPI_WIRE_PATH_MAX]; /* of its own, there already, for what PMIx puts in a file system */
};

struct mpi_said {
    uint32_t local_rank;
    int32_t number;
    char text[MPI_WIRE_TEXT_MAX];
};

/* The body of a WORKER frame. Errors as those of `out`. */
int mpi_wire_write_worker(uint32_t local_rank, const char *const *variables, size_t count, struct buf *out);

struct mpi_worker_said {
    uint32_t local_rank;
    size_t count;
    const char *variables[MPI_WIRE_VARIABLES_MAX]; /* borrowed from the body */
};

/* False: it is none. */
bool mpi_wire_read_worker(const uint8_t *body, size_t length, struct mpi_worker_said *out);

#endif
