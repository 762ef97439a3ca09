/* What goes where when a model's parts are cut anew: another number of ranks, or other owners. Pure.
 *
 *     old:  part 0 [0, 96)   part 1 [96, 192)                        two ranks
 *     now:  part 0 [0, 64)   part 1 [64, 128)   part 2 [128, 192)    three
 *
 *     part 1 of now: elements 64 to 96 from part 0, then 96 to 128 from part 1
 *
 * Both are layouts of the same items (unit_layout.h), so their parts alone differ. */
#ifndef TRAIN_RESHARD_H
#define TRAIN_RESHARD_H

#include "train/layout/unit_layout.h"

/* Elements of an item that go from one part to another. */
struct reshard_run {
    size_t offset, count; /* from the item's beginning */
    uint32_t from;        /* part of the old layout */
};

/* A walk over what part `to` of the new layout has of an item: the elements behind the first `walked` ones, all from
 * one part, at most `most`. False: that was all. */
bool reshard_next(const struct unit_layout *old, const struct unit_layout *now, uint32_t item, uint32_t to,
                  size_t walked, size_t most, struct reshard_run *out);

#endif
