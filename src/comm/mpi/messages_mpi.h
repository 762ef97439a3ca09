/* Sends and receives of the engine on MPI.
 *
 * A message begins with a header: tag, type, length. A short one is all in one piece with it. A long one follows
 * straight from the sender's buffer into the receiver's, once the header has met its receive. So Muster's rules hold
 * (any tag, receives from anybody, a wrong type or length is an error that names both), and MPI's own matching sees
 * only headers, in order, and pieces with a number. A sender's short messages are copied; above 1 MiB of them that MPI
 * has not taken yet, a send waits.
 *
 * Threads: any. They move while somebody calls one of these. */
#ifndef COMM_MPI_MESSAGES_MPI_H
#define COMM_MPI_MESSAGES_MPI_H

#include "comm/engine/message.h"
#include "comm/host/bell.h"
#include "comm/mpi/mpi_world.h"

struct messages_mpi;

/* Borrowed. */
struct messages_mpi_config {
    const struct mpi_world *world;
    mpi_handle comm;
    struct comm_waiter *waiter;
    const char *name; /* of the group, for sentences */
    uint32_t rank, size;
    const uint32_t *peers; /* struct engine_mpi_config */
    const char *(*host_name)(const void *context, uint32_t root_rank);
    const void *context;
};

int messages_mpi_create(const struct messages_mpi_config *config, struct messages_mpi **out);
/* What was sent goes out first, for a second at most. NULL is accepted. */
void messages_mpi_free(struct messages_mpi *messages);

int messages_mpi_post(struct messages_mpi *messages, struct comm_message *message);
int messages_mpi_wait(struct messages_mpi *messages, struct comm_message *const *waited, size_t count,
                      int64_t deadline_ns);
/* struct engine_messages. What MPI has begun to move gets a second to end; if it has not, MPI is left alone from then
 * on, which is the error: MUSTER_ESYSTEM. The second: NULL is accepted. */
int messages_mpi_let_go(struct messages_mpi *messages, struct comm_message *message);
void messages_mpi_let_go_all(struct messages_mpi *messages);
void messages_mpi_forget(struct comm_message *message);
bool messages_mpi_has_ended(const struct comm_message *message);
void messages_mpi_progress(struct messages_mpi *messages);
/* The same for all groups of the process. */
void messages_mpi_progress_all(void);
/* A rank of this host has freed the group: receives of what it has not sent end, and so do sends that it has not taken,
 * which leaves MPI alone from then on. */
void messages_mpi_peer_left(struct messages_mpi *messages, uint32_t rank);

#endif
