/* What saving and loading an fsdp share: the tensors of its snapshot, in the order of the file, and who stores what of
 * them.
 *
 * Parameters and what the optimizer remembers are sharded: no rank has them whole, a host may. What a program adds, and
 * the optimizer's numbers of steps, every rank has whole. */
#ifndef TRAIN_FSDP_SNAPSHOT_H
#define TRAIN_FSDP_SNAPSHOT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "train/moves/move.h"
#include "train/state/snapshot_parts.h"
#include "train/units/fsdp_impl.h"

/* All tensors are float32 where they are sharded. Those come first in the list. */
struct fsdp_table {
    struct muster_fsdp *fsdp;
    const struct state_region *region; /* what the optimizer remembers; NULL: nothing */
    size_t slot_count;                 /* numbers remembered for each element that learns */
    struct muster_tensor *tensors;
    struct snapshot_state extra;
    struct muster_snapshot_state all, sharded, common; /* common: what every rank has whole */
    size_t piece_count; /* elements of sharded tensors that are sent at a time: two pieces are no more than a unit */
};

/* Does the host have every sharded tensor whole? Then it is data of the table's tensor, else that is
 * snapshot_from_source. */
static inline bool fsdp_table_is_whole(const struct fsdp_table *table) {
    return !fsdp_gathers(table->fsdp);
}

/* optimizer, given: NULL for none. Not collective. MUSTER_EINVAL: an optimizer that was not made for this fsdp, or it
 * is in a step. Also after a failure the table is to be handed to fsdp_table_done(). */
int fsdp_table_init(struct fsdp_table *table, struct muster_fsdp *fsdp, struct muster_optimizer *optimizer,
                    const struct muster_snapshot_state *given);
void fsdp_table_done(struct fsdp_table *table);

/* Elements [begin, begin + count) of a sharded tensor. */
struct fsdp_extent {
    size_t tensor, begin, count;
};

/* A walk over all elements of all sharded tensors, in the order of the file. It begins zeroed. */
struct fsdp_walk {
    size_t tensor, begin; /* what comes next */
};
/* The next elements, at most `most`, all of one tensor. False: that was all. */
bool fsdp_walk_next(const struct fsdp_table *table, struct fsdp_walk *walk, size_t most, struct fsdp_extent *out);
bool fsdp_walk_is_done(const struct fsdp_table *table, const struct fsdp_walk *walk);

/* What part `part` has of an extent; false: nothing. */
bool fsdp_table_overlap(const struct fsdp_table *table, const struct fsdp_extent *extent, uint32_t part,
                        struct fsdp_extent *out);
/* The number of a sharded tensor's parameter among the layout's items. */
uint32_t fsdp_table_item(const struct fsdp_table *table, size_t tensor);

/* Memory of a row: the fsdp's own, or that of another world. */
struct fsdp_stored {
    const struct unit_layout *layout;
    float *values, *remembered;
};
/* Where an extent lies that is all in part `part`, which the row has. */
float *fsdp_stored_at(const struct fsdp_table *table, const struct fsdp_stored *stored,
                      const struct fsdp_extent *extent, uint32_t part);
/* Where this host stores an extent that lies in the part of its rank `column`. */
float *fsdp_table_at(const struct fsdp_table *table, const struct fsdp_extent *extent, uint32_t column);

/* ---- fsdp_moves.c: what lies in memory of another world ---- */

/* Of what is kept, wherever its parts lie: what must be equal for one to go on from the other's memory. */
uint64_t fsdp_table_fingerprint(const struct fsdp_table *table);

/* The items of this state, cut for another place. */
int fsdp_table_lay_out(const struct fsdp_table *table, const struct commit_place *place, struct unit_layout **out);

/* Sources that have every part, equal on all ranks but for their memory. */
struct fsdp_move {
    const struct move_source *sources; /* their places: of one number of parts */
    size_t count;
    const float *(*from)(const void *table, const struct move_source *source, const struct move_range *range,
                         uint32_t part);
    const void *common; /* what every rank has whole: on the rank of the first source */
};

/* All of it into the fsdp's memory, which is not committed, and what the table describes. Collective. MUSTER_ENOMEM is
 * agreed on before anything is written, and the group goes on. So is MUSTER_ECORRUPT, when all has been. */
int fsdp_move_in(const struct fsdp_table *table, const struct fsdp_move *move);

#endif
