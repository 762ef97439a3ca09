/* What the two files of copies on peer hosts share: fsdp_copies.c, which makes them, and fsdp_copied.c. */
#ifndef TRAIN_FSDP_COPIES_IMPL_H
#define TRAIN_FSDP_COPIES_IMPL_H

#include "train/peers/peer_copies.h"
#include "train/peers/peer_find.h"
#include "train/units/fsdp_copies.h"
#include "train/units/fsdp_parts.h"

enum { FSDP_COPIES_NOTE_BYTES = 160 };

struct fsdp_copies {
    struct peer_copies *peers; /* NULL: these ranks cannot copy */
    struct peer_finds *finds;  /* of earlier lives; until what is gone on from is committed */
    uint64_t every;
    int64_t last;     /* step of which the copying was started last in this life; -1: of none */
    const void *read; /* the copy that the thread reads, or has read last */
    struct fsdp_parts parts;
    const struct fsdp_table *table; /* during a start */
    void *common;
    size_t chunk_bytes, common_bytes;
    char note[FSDP_COPIES_NOTE_BYTES];
};

#endif
