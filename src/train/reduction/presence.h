/* Which ranks of a group have data in this step? With uneven inputs some run out before others, and keep these company.
 * Every rank says in one byte what it is about to do. */
#ifndef TRAIN_PRESENCE_H
#define TRAIN_PRESENCE_H

#include <stddef.h>
#include <stdint.h>

#include <muster/group.h>

enum presence_step { PRESENCE_OUT_OF_DATA, PRESENCE_WITHOUT_SYNC, PRESENCE_WITH_SYNC };

struct presence {
    struct muster_group *group;
    uint8_t *steps; /* a byte per rank: enum presence_step; muster_alloc() */
    size_t bytes;
};

struct presence_result {
    enum presence_step step; /* of all ranks that have data; PRESENCE_OUT_OF_DATA: there are none */
    uint32_t active_count;   /* ranks that have data */
    uint32_t source;         /* the lowest of them; 0 without any */
};

/* In memory of `group`, which must outlive it. Fails as muster_alloc() does. */
int presence_create(struct muster_group *group, struct presence *out);
/* A zeroed one is accepted. */
void presence_free(struct presence *presence);
/* Tells all ranks what this one is about to do, and finds out what the step is. Collective. MUSTER_EMISMATCH, on all
 * ranks: some that have data synchronise, others do not. *out is written on success. */
int presence_agree(const struct presence *presence, enum presence_step own, struct presence_result *out);

#endif
