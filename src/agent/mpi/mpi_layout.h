/* Which ranks of the world are on which node: what each node says of itself, and how PMI-1 and PMIx want to hear of
 * all. Pure. */
#ifndef AGENT_MPI_LAYOUT_H
#define AGENT_MPI_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define MPI_LAYOUT_HOST_MAX 256         /* bytes of a node's name, terminator included */
#define MPI_LAYOUT_NODES_MAX 65536u     /* nodes of a world */
#define MPI_LAYOUT_TEXT_MAX (64u << 20) /* of one of the texts below */
#define MPI_LAYOUT_RECORD_MAX                                                                                          \
    (MPI_LAYOUT_HOST_MAX + 48) /* bytes of what a node says of itself, terminator included                             \
                                */

struct mpi_node {
    uint32_t base, count; /* its ranks: base to base + count - 1 */
    uint32_t token;       /* a random number; that of the first node names this world */
    bool shares_host;     /* other nodes have the same host: two agents run there */
    char host[MPI_LAYOUT_HOST_MAX];
};

/* What a node says of itself: "BASE COUNT TOKEN HOST". Blanks and what a list of names is made of become '-'. */
void mpi_node_write(const struct mpi_node *node, char out[MPI_LAYOUT_RECORD_MAX]);

/* Reads it back. False: it is none. */
bool mpi_node_read(const void *bytes, size_t length, struct mpi_node *out);

/* Checks that the nodes, in their order, have the ranks 0 to world_size - 1 without a gap. Nodes of the same name (two
 * agents of one host) get a number behind it: ranks of different agents do not share a node. MUSTER_EPROTOCOL,
 * MUSTER_ENOMEM. */
int mpi_layout_settle(struct mpi_node *nodes, size_t count, uint32_t world_size);

/* The index of the node of `rank`, which must be one of the world. Nodes are settled. */
size_t mpi_layout_node_of(const struct mpi_node *nodes, size_t count, uint32_t rank);

/* For PMI-1: "(vector,(FIRST NODE,NODES,RANKS OF EACH),...)". Errors as those of `out`. */
int mpi_layout_mapping(const struct mpi_node *nodes, size_t count, struct buf *out);

/* For PMIx: "HOST,HOST", and the ranks of each, "0,1,2;3". Errors as those of `out`. */
int mpi_layout_hosts(const struct mpi_node *nodes, size_t count, struct buf *out);
int mpi_layout_ranks(const struct mpi_node *nodes, size_t count, struct buf *out);
/* "0,1,2": those of one node. */
int mpi_layout_peers(const struct mpi_node *node, struct buf *out);

#endif
