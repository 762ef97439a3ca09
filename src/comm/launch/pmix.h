/* PMIx, through its library, which is opened when it is needed: Open MPI's mpirun and Slurm with --mpi=pmix. Used once,
 * to pass one text from rank 0 to all. Blocks; the server is asked to give up at the deadline. While it is connected
 * the library runs a thread of its own. */
#ifndef COMM_LAUNCH_PMIX_H
#define COMM_LAUNCH_PMIX_H

#include <stdint.h>

#define PMIX_SHARE_VALUE_MAX 200

/* What the server says about this process. */
struct pmix_place {
    uint32_t rank, size;
};

/* open finds rank and size; share has rank 0 give `text` (others: ignored) and all get it in `out`, of
 * PMIX_SHARE_VALUE_MAX bytes; close ends the connection (NULL is accepted).
 * MUSTER_EUNSUPPORTED: there is no libpmix.so.2; MUSTER_ECLOSED: the server's answer is a failure, or this process has
 * opened it before. */
struct pmix_client;
int pmix_open(struct pmix_client **out, struct pmix_place *out_place);
int pmix_share(struct pmix_client *client, const char *text, int64_t deadline_ns, char *out);
void pmix_close(struct pmix_client *client);

#endif
