/* The server's side of PMIx, for Open MPI: what the library is told of this world, and what it asks for. Exchanges with
 * the other nodes go through the store (mpi_exchange.h).
 *
 * One thread, that of the loop, but for the library's callbacks, which only put something into a queue. Creating blocks
 * for as long as the library takes. */
#ifndef AGENT_PMIX_HOST_H
#define AGENT_PMIX_HOST_H

#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "agent/mpi/mpi_exchange.h"
#include "agent/mpi/mpi_layout.h"
#include "agent/mpi/mpi_stages.h"

struct pmix_host;

struct pmix_host_options {
    const struct mpi_node *nodes; /* settled; borrowed as long as the host lives */
    size_t node_count, node;
    uint32_t world_size;
    const char *space;               /* name of the job, a new one each time; copied */
    const char *folder;              /* for what goes into a file system; copied */
    struct mpi_exchange *exchange;   /* NULL: there is one node */
    const struct mpi_stages *stages; /* of the workers; written on the library's thread; borrowed like the nodes */
    void (*on_begun)(void *ctx, uint32_t local_rank); /* a worker is in PMIx_Init() */
    void (*on_left)(void *ctx, uint32_t local_rank);  /* its connection has ended before PMIx_Finalize() */
    /* A worker has called PMIx_Abort(). */
    void (*on_abort)(void *ctx, uint32_t local_rank, int code, const char *text);
    void *ctx;
};

/* MUSTER_EUNSUPPORTED (no library, or one that is too old), MUSTER_ESYSTEM, MUSTER_ENOMEM. */
int pmix_host_create(uv_loop_t *loop, const struct pmix_host_options *options, struct pmix_host **out);

/* Gives the environment of a worker, "NAME=VALUE" with a NULL at the end, to be freed with pmix_host_free_variables().
 * MUSTER_ESYSTEM. */
int pmix_host_variables(struct pmix_host *host, uint32_t local_rank, char ***out);
void pmix_host_free_variables(char **variables);

/* The library removes what belongs to the job. Nothing else is freed: the process ends. */
void pmix_host_end(struct pmix_host *host);

#endif
