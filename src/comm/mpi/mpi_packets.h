/* Headers of messages over MPI on their way, in lists. A short message's body is behind its header. No locks: the owner
 * of the messages (messages_mpi.c) has one. */
#ifndef MUSTER_COMM_MPI_MPI_PACKETS_H
#define MUSTER_COMM_MPI_MPI_PACKETS_H

#include <stddef.h>
#include <stdint.h>

#include "comm/mpi/mpi_library.h"

struct mpi_header {
    uint32_t tag, type;
    uint64_t bytes;
    uint32_t body_tag; /* 0: the body is behind the header */
    uint32_t reserved;
};

/* A header on its way, with the body of a short message: out, or in. */
struct mpi_packet {
    struct mpi_packet *next;
    mpi_handle request;
    uint32_t source; /* of one that comes in */
    size_t bytes;
    struct mpi_header header;
    unsigned char body[];
};

struct mpi_packets {
    struct mpi_packet *first, **end;
};

void mpi_packets_init(struct mpi_packets *packets);
void mpi_packets_add(struct mpi_packets *packets, struct mpi_packet *packet);
/* The one that `at` points to, out of the list; the caller's from now on. */
struct mpi_packet *mpi_packets_take(struct mpi_packets *packets, struct mpi_packet **at);
struct mpi_packet *mpi_packets_last(const struct mpi_packets *packets); /* NULL: the list is empty */
void mpi_packets_free(struct mpi_packets *packets);                     /* all that are in it */

/* With room for a body of that many bytes; the caller's, by malloc(). NULL, with the detail: no memory. */
struct mpi_packet *mpi_packet_create(size_t bytes);

#endif
