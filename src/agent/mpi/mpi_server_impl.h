/* The MPI server's private state, shared by these files and nobody else.
 *
 * mpi_server.c   the beginning, the other nodes, the end
 * mpi_say.c      what it says to the agent
 * mpi_workers.c  the workers' sockets, and PMI-1's barriers */
#ifndef AGENT_MPI_SERVER_IMPL_H
#define AGENT_MPI_SERVER_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "agent/guardian/guardian_channel.h"
#include "agent/mpi/mpi_exchange.h"
#include "agent/mpi/mpi_layout.h"
#include "agent/mpi/mpi_stages.h"
#include "agent/mpi/mpi_wire.h"
#include "agent/mpi/pmi_server.h"
#include "agent/mpi/pmix_host.h"
#include "base/log.h"

struct mpi_server;

struct mpi_worker {
    uv_poll_t poll;
    struct mpi_server *server;
    uint32_t local_rank;
    int fd; /* -1: closed */
};

struct mpi_server {
    uv_loop_t loop;
    struct mpi_setup setup;
    struct mpi_stages stages;
    struct guardian_channel channel; /* to the agent */
    uv_poll_t agent;
    uv_signal_t signal;
    struct mpi_node *nodes;        /* setup.group_world_size of them */
    struct mpi_exchange *exchange; /* NULL: there is no other node */
    struct pmi_server *pmi;
    struct pmix_host *pmix;     /* NULL: PMIx is not served */
    struct mpi_worker *workers; /* setup.local_count of them */
    bool barrier_due;           /* all workers of this node wait, and the other nodes have not been told */
    uint64_t barrier_count;
};

#define MPI_SERVER_QUEUE_BYTES_MAX (64u << 20) /* what the agent has not read */

/* mpi_say.c */
/* Watches the agent's socket, from the beginning on. */
void mpi_server_listen(struct mpi_server *s);
void mpi_server_say(struct mpi_server *s, enum mpi_frame kind, uint32_t local_rank, int number, const char *text);
void mpi_server_log(struct mpi_server *s, enum log_level level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
/* Tells why there is nothing to be served any more. The agent ends this process. is_final: a restart does not help. */
void mpi_server_fail(struct mpi_server *s, const char *why, bool is_final);

/* mpi_workers.c */
/* All nodes are known: makes the workers' sockets and tells the agent. 0 or a code. */
int mpi_workers_begin(struct mpi_server *s);

#endif
