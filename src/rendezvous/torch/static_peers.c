/* Pure: connections of ranks; see static_peers.h. */
#include "rendezvous/torch/static_peers.h"

#include <assert.h>

static void take_out(struct static_peer *peers, uint32_t count, uint32_t rank) {
    uint32_t *at = &peers[peers[rank].connection % count].first;
    while (*at != rank + 1) {
        at = &peers[*at - 1].next;
    }
    *at = peers[rank].next;
}

void static_peers_set(struct static_peer *peers, uint32_t count, uint32_t rank, uint64_t connection) {
    assert(rank < count);
    struct static_peer *list = &peers[connection % count];
    if (peers[rank].is_known) {
        take_out(peers, count, rank);
    }
    peers[rank].is_known = 1;
    peers[rank].connection = connection;
    peers[rank].next = list->first;
    list->first = rank + 1;
}

int64_t static_peers_rank_of(const struct static_peer *peers, uint32_t count, uint64_t connection) {
    uint32_t at = peers[connection % count].first;
    while (at != 0 && peers[at - 1].connection != connection) {
        at = peers[at - 1].next;
    }
    return (int64_t)at - 1;
}
