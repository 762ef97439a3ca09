/* Whose a connection is, among the nodes of a static job: by rank and by connection, in the same time for ten thousand
 * nodes as for two. The host asks for each connection that ends, and when it empties the store for each that there is.
 *
 * Pure. */
#ifndef RENDEZVOUS_STATIC_PEERS_H
#define RENDEZVOUS_STATIC_PEERS_H

#include <stdint.h>

/* Beside its connection each holds the beginning of one of as many lists of ranks: of those whose connection's number
 * falls to its own. In the lists a rank is counted from 1; 0 is none. */
struct static_peer {
    uint64_t connection; /* the latest of this rank */
    uint32_t is_known;
    uint32_t first, next;
};

/* peers: `count` of them, all zero. Set a rank's connection; one that it had before is nobody's then. */
void static_peers_set(struct static_peer *peers, uint32_t count, uint32_t rank, uint64_t connection);
/* -1: it is nobody's. */
int64_t static_peers_rank_of(const struct static_peer *peers, uint32_t count, uint64_t connection);

#endif
