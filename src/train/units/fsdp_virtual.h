/* Gradients of an fsdp over virtual ranks (muster/virtual_ranks.h): added up in the same tree in every world.
 *
 * Ranks compute virtual ranks in rounds (train/reduction/virtual_rounds.h). Each unit's gradients go to the owners of
 * its parts: not added up on the way, as a reduce_scatter would, but each by itself, or between hosts what the ranks of
 * a host can add up. The owner adds them to what waits from the rounds before. All of that is of its part alone.
 *
 * A rank without a virtual rank in the last round gives nothing, but receives for its part, and gathers what the others
 * compute with. */
#ifndef TRAIN_FSDP_VIRTUAL_H
#define TRAIN_FSDP_VIRTUAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "train/reduction/virtual_rounds.h"
#include "train/units/fsdp_impl.h"

/* What the memory depends on. */
struct fsdp_virtual_job {
    uint32_t virtual_ranks, hosts, each; /* each: ranks of a host */
    enum muster_type type;               /* in which gradients travel */
    enum virtual_way way;
};

/* Elements of a unit, at most, that a rank gets of each member, and that it owns. */
struct fsdp_virtual_largest {
    size_t share, part;
};

/* An acquire or a release. */
struct fsdp_use {
    uint32_t unit;
    enum muster_fsdp_pass pass;
    bool is_release;
};

struct fsdp_virtual {
    struct virtual_rounds rounds;
    struct fsdp_virtual_job job;
    struct fsdp_virtual_largest largest;
    struct muster_group *members_group; /* in which gradients are scattered; NULL: this rank is alone */
    struct muster_group *hosts_group;   /* in which the sums of hosts are exchanged then; or NULL */
    size_t *counts[2];                  /* for a call */
    uint8_t *memory; /* sums that wait, but the first one of float32, which has room in the averages' place */
    size_t memory_bytes, block_bytes;
    struct fsdp_use *uses; /* of the last own virtual rank in this step, if others have one more */
    size_t use_count, use_room;
};

/* With options.virtual_ranks, else does nothing. MUSTER_EINVAL: fewer virtual ranks than ranks; MUSTER_ENOMEM. */
int fsdp_virtual_create(struct muster_fsdp *fsdp);
void fsdp_virtual_free(struct muster_fsdp *fsdp);
/* As mesh_abort(): the groups that were made here. */
void fsdp_virtual_abort(const struct muster_fsdp *fsdp, const char *reason);
/* Bytes that a buffer needs beside the gradients. */
size_t fsdp_virtual_scratch_bytes(const struct muster_fsdp *fsdp);

/* Bytes that wait on a rank whose parts have `shard_count` elements, and that a buffer of the rank of that part needs
 * beside the gradients. Pure. */
size_t fsdp_virtual_waiting_bytes(const struct fsdp_virtual_job *job, size_t shard_count);
size_t fsdp_virtual_buffer_bytes(const struct fsdp_virtual_job *job, const struct unit_layout *layout, uint32_t part);

/* Whose turn is it in this round? */
void fsdp_virtual_begin_round(struct muster_fsdp *fsdp);
/* This rank has no virtual rank in this round. */
static inline bool fsdp_virtual_is_absent(const struct muster_fsdp *fsdp) {
    return fsdp->virtual && muster_group_rank(fsdp->mesh.group) >= fsdp->virtual->rounds.present;
}

/* Is there a second stage, fsdp_virtual_exchange()? */
static inline bool fsdp_virtual_exchanges(const struct muster_fsdp *fsdp) {
    return fsdp->virtual->hosts_group != NULL;
}
/* The way of a unit's gradients: to the owners, or between hosts to those of each host, and then between these; and
 * what they come to, which waits, or in the last round is this rank's part of the averages. As fsdp_reduce.c does
 * without virtual ranks. sent: the whole unit. */
int fsdp_virtual_scatter(struct muster_fsdp *fsdp, uint32_t unit, void *sent, struct muster_work **work);
int fsdp_virtual_exchange(struct muster_fsdp *fsdp, uint32_t unit, void *sent, struct muster_work **work);
void fsdp_virtual_keep(struct muster_fsdp *fsdp, uint32_t unit, void *sent);

/* ---- the rounds of a step ---- */

/* May a step of that kind begin? */
int fsdp_virtual_check_begin(const struct muster_fsdp *fsdp, enum muster_fsdp_step_kind kind);
/* Is a step under way, and this rank between its virtual ranks? */
static inline bool fsdp_virtual_is_between(const struct muster_fsdp *fsdp) {
    return fsdp->virtual && fsdp->virtual->rounds.round > 0;
}
/* A round is over. True: the step as well. */
bool fsdp_virtual_end_round(struct muster_fsdp *fsdp);
/* A unit was acquired or released. Remembers it, if this rank is to do the same again without computing. */
int fsdp_virtual_record(struct muster_fsdp *fsdp, uint32_t unit, enum muster_fsdp_pass pass, bool is_release);
/* The others have another round, in which this rank has no virtual rank. */
bool fsdp_virtual_is_left_out(const struct muster_fsdp *fsdp);

#endif
