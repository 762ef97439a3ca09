/* What the files of copies on peer hosts share: peer_find.c finds those of earlier lives, peer_copies.c makes memory
 * for new ones, peer_copy.c copies, and peer_thread.c has the thread that does. */
#ifndef TRAIN_PEER_COPIES_IMPL_H
#define TRAIN_PEER_COPIES_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "train/memory/held_finds.h"
#include "train/peers/peer_copies.h"
#include "train/peers/peer_find.h"
#include "train/peers/peer_labels.h"

enum { PEER_PAGE_BYTES = 4096, PEER_TABLE_VERSION = 4 }; /* the table is a page: shares begin behind it */

enum { PEER_LIVES = 2 };

/* In memory that outlives the process. A program may write into it by mistake: what is read again has a seal. */
struct peer_slot {
    _Atomic int64_t step; /* PEER_NOTHING: what follows does not count */
    uint64_t life;
    uint32_t parts[PEER_SHARES];
    uint64_t bytes[PEER_SHARES], sums[PEER_SHARES];
    uint64_t seal; /* of all of it */
};

/* What was copied in lives up to this one is not used again. */
struct peer_given_up {
    uint64_t life, seal;
};

struct peer_table {
    char magic[16];
    uint32_t version, part_count;
    uint64_t fingerprint, room;                /* bytes for each share, whole pages */
    uint64_t seal;                             /* of these three */
    struct peer_given_up given_up[PEER_LIVES]; /* the same twice: who writes one may be killed */
    struct peer_slot slots[PEER_SLOTS];
};

_Static_assert(sizeof(struct peer_table) <= PEER_PAGE_BYTES, "the table is a page");

static inline size_t peer_region_bytes(uint64_t room) {
    return PEER_PAGE_BYTES + (size_t)PEER_SLOTS * PEER_SHARES * room;
}
static inline void *peer_table_share(struct peer_table *table, uint64_t room, uint32_t slot, uint32_t share) {
    return (char *)table + PEER_PAGE_BYTES + (slot * PEER_SHARES + share) * room;
}

/* Memory that a rank has found. */
struct peer_found {
    struct peer_offer offer;
    uint32_t rank;
    size_t find; /* the rank's own number of it */
};

struct peer_finds {
    struct holder *holder;
    char role[HELD_FIND_NAME_BYTES]; /* of this rank's memory */
    struct held_finds held;          /* found by this rank */
    struct peer_found *own, *all;    /* found by this rank, and by all; all: only if it was wanted */
    struct peer_offer *offers;       /* of all */
    size_t own_count, count;
    struct peer_label chosen;
    uint32_t part_count;
    struct peer_source *sources;
};

struct peer_copies {
    struct peer_copies_options options;
    struct muster_group *group; /* of the threads; NULL until they may start */
    struct state_region region;
    char name[HELD_FIND_NAME_BYTES]; /* under which it is held */
    struct peer_table *table;
    uint64_t room;             /* the table's */
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
    return peer_table_share(copies->table, copies->room, slot, share);
}

/* ---- peer_find.c ---- */

/* Into zeroed memory. room: bytes for each share. */
void peer_table_init(struct peer_table *table, uint64_t fingerprint, uint32_t part_count, uint64_t room);
/* Is this a table of that state? Nothing in it is trusted, and what is in slots is not looked at. */
bool peer_table_is_of(const struct peer_table *table, size_t bytes, uint64_t fingerprint);
void peer_table_give_up(struct peer_table *table, uint64_t life);
/* Of a slot that holds `step`. */
uint64_t peer_slot_seal(const struct peer_slot *slot, int64_t step);
void peer_table_offer(const struct peer_table *table, struct peer_offer *out);

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
