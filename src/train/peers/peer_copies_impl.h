/* What the files of copies on peer hosts share: peer_copies.c finds and fetches, peer_copy.c copies, and
 * peer_thread.c has the thread that does. */
#ifndef TRAIN_PEER_COPIES_IMPL_H
#define TRAIN_PEER_COPIES_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "train/memory/state_region.h"
#include "train/peers/peer_copies.h"
#include "train/peers/peer_labels.h"

/* In memory that outlives the process. */
struct peer_slot {
    _Atomic int64_t step; /* PEER_NOTHING: what follows does not count */
    uint64_t life;
    uint32_t parts[PEER_SHARES];
    uint64_t bytes[PEER_SHARES], sums[PEER_SHARES];
};

struct peer_table {
    char magic[16];
    uint32_t version, part_count;
    uint64_t fingerprint, room; /* bytes for each share, whole pages */
    uint64_t given_up;          /* what was copied in lives up to this one is not used again */
    struct peer_slot slots[PEER_SLOTS];
};

struct peer_copies {
    struct peer_copies_options options;
    struct muster_group *group; /* of the threads; NULL until they may start */
    struct state_region region;
    struct peer_table *table;
    struct peer_offer *offers; /* of all ranks, as they were found */
    uint64_t *bytes;           /* of all parts' shares */
    uint32_t *part_of;         /* of all ranks */
    size_t *sends, *receives;  /* bytes to and from each rank: zeros between calls */
    struct peer_label found;
    uint64_t life;
    uint32_t server, served; /* ranks */
    uint32_t next_slot;
    int64_t step;                            /* that is copied */
    int (*copy)(struct peer_copies *copies); /* peer_copy(), in the thread */
    pthread_t thread;
    bool has_thread;

    pthread_mutex_t lock; /* of what follows */
    pthread_cond_t changed;
    bool is_running, is_reading, is_ending;
    struct peer_numbers numbers;
};

static inline void *peer_share(const struct peer_copies *copies, uint32_t slot, uint32_t share) {
    const size_t page = 4096; /* of the table, too: shares begin behind it */
    return (char *)copies->region.memory + page + (slot * PEER_SHARES + share) * copies->table->room;
}

/* ---- peer_copy.c ---- */

int peer_copy(struct peer_copies *copies);

/* ---- peer_thread.c ---- */

int peer_thread_start(struct peer_copies *copies);
/* The thread is at work, or has failed. */
bool peer_thread_is_busy(struct peer_copies *copies);
void peer_thread_hand_over(struct peer_copies *copies, int64_t step);
void peer_thread_skip(struct peer_copies *copies);
/* In the thread: what was committed is not needed any more. */
void peer_thread_has_read(struct peer_copies *copies);

#endif
