/* A sharded state goes from whoever has it to its owners, when parts are cut anew or ranks have come and gone
 * (train/layout/reshard.h says what goes where).
 *
 * All ranks know who has which part. Each gets its elements in the order of the state, a window at a time, from all
 * that have some of them: so all ranks send and receive at once, and none needs more memory than a window, and one for
 * each rank that it sends to: 4 MiB, or 64 KiB a rank where that is more. */
#ifndef TRAIN_MOVE_H
#define TRAIN_MOVE_H

#include <stddef.h>
#include <stdint.h>

#include <muster/group.h>

#include "train/commit/commit_table.h"
#include "train/layout/unit_layout.h"

/* Memory with some parts, on a rank. */
struct move_source {
    uint32_t rank;
    struct commit_place place;
    void *memory; /* the caller's; NULL on other ranks */
};

/* Elements of a tensor that are all in one part. */
struct move_range {
    size_t tensor, offset, count;
};

struct move_options {
    struct muster_group *group;
    const struct unit_layout *old, *now; /* of the same items; how many parts each has is all that counts here */
    uint32_t part;                       /* this rank's, of `now` */
    size_t tensor_count;                 /* of float32 */
    const struct move_source *sources; /* equal on all ranks but for `memory`; the first one that has a part gives it */
    size_t source_count;
    const void *context;
    /* The layout's item that a tensor is of, as large as it. */
    uint32_t (*item)(const void *context, size_t tensor);
    /* Where a range of part `part` lies in a source of this rank; and where one of this rank's part belongs. */
    const float *(*from)(const void *context, const struct move_source *source, const struct move_range *range,
                         uint32_t part);
    float *(*to)(const void *context, const struct move_range *range);
};

/* Moves all. Collective. MUSTER_ENOMEM is agreed on, and the group goes on. MUSTER_EINVAL: no source has some part. */
int move_state(const struct move_options *options);

#endif
