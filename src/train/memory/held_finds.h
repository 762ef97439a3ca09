/* What a launcher holds of earlier lives, looked at together: memory of a role ("training/host a") may lie under two
 * names, so that new memory is held before the old is let go. Nothing is changed before held_finds_drop(). */
#ifndef TRAIN_HELD_FINDS_H
#define TRAIN_HELD_FINDS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "train/memory/holder.h"
#include "train/memory/state_region.h"

enum { HELD_FIND_NAME_BYTES = 128 };
#define HELD_NOT_COUNTED UINT32_MAX

struct held_find {
    char name[HELD_FIND_NAME_BYTES];
    int fd;                     /* -1: somebody has taken it */
    struct state_region region; /* all of it; memory is NULL where it cannot be mapped */
    uint32_t number;            /* of its role among those that are counted; HELD_NOT_COUNTED */
    bool is_needed;             /* its name is not given to other memory */
};

/* Begins zeroed. */
struct held_finds {
    struct held_find *items;
    size_t count, room;
};

/* Bytes of what was mapped. */
size_t held_find_bytes(const struct held_find *find);

/* Is it of that role? */
bool held_find_is_of(const struct held_find *find, const char *role);

/* Adds what lies under the names of a role. Of memory that was found before, too. Errors of holder_get(). */
int held_finds_look(struct held_finds *finds, struct holder *holder, const char *role);

/* Adds that of "<roles>0", "<roles>1", ..., up to the first of which there is nothing. */
int held_finds_look_on(struct held_finds *finds, struct holder *holder, const char *roles);

/* A name of the role that no needed memory has: the same one until that changes. */
void held_finds_free_name(const struct held_finds *finds, const char *role, char out[HELD_FIND_NAME_BYTES]);

/* Which names are in use from now on. */
struct held_use {
    const char *role, *name; /* this process's, and its name; name NULL: none of the role */
    uint32_t counted;        /* counted roles up to this number are other processes' business */
};

/* Drops all names that are not in use. The last first, so that whoever looks later finds all that is left. */
int held_finds_drop(const struct held_finds *finds, struct holder *holder, const struct held_use *use);

/* Unmaps all and forgets it; it stays held. */
void held_finds_done(struct held_finds *finds);

#endif
