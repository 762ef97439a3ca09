/* Copies of an earlier life of the job, whatever world it had: found, and told to all ranks. They stay held until what
 * they are of is committed again. */
#ifndef TRAIN_PEER_FIND_H
#define TRAIN_PEER_FIND_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/group.h>

struct peer_find_options {
    const char *name;           /* of the state among those that agents hold */
    struct muster_group *group; /* borrowed for the call */
    uint64_t fingerprint;       /* of the state */
    bool is_wanted;             /* nothing is committed: a generation is to be gone on from. Equal on all ranks */
    bool is_given_up;           /* what there is is of no use. Likewise */
    /* Bytes of the share of a part, of so many. */
    size_t (*share_bytes)(const void *context, uint32_t part_count, uint32_t part);
    const void *context;
};

/* A part of the generation to go on from. */
struct peer_source {
    uint32_t rank, part, part_count;
    const void *share; /* on that rank; NULL on others */
};

struct peer_finds;

/* Looks, and with is_wanted chooses a generation. Collective. Errors as of peer_copies_open(). */
int peer_find(const struct peer_find_options *options, struct peer_finds **out);

/* The step of that generation; PEER_NOTHING: there is none. Its parts, all of them, equal on all ranks but for `share`.
 */
int64_t peer_finds_step(const struct peer_finds *finds);
size_t peer_finds_sources(const struct peer_finds *finds, const struct peer_source **out);

/* All ranks have committed what they go on from: what was found goes, but for the memory that is used now, this rank's
 * by that name. NULL: all ranks do without. */
int peer_finds_drop(const struct peer_finds *finds, const char *name);

/* NULL is accepted. */
void peer_finds_free(struct peer_finds *finds);

#endif
