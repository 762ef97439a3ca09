/* See reshard.h. */
#include "train/layout/reshard.h"

bool reshard_next(const struct unit_layout *old, const struct unit_layout *now, uint32_t item, uint32_t to,
                  size_t walked, size_t most, struct reshard_run *out) {
    size_t first = 0, old_first = 0, count = unit_layout_overlap(now, item, to, &first);
    if (walked >= count || most == 0) {
        return false;
    }
    out->offset = first + walked;
    out->from = unit_layout_part_of(old, item, out->offset);
    size_t old_end = unit_layout_overlap(old, item, out->from, &old_first);
    old_end += old_first;
    size_t end = first + count < old_end ? first + count : old_end;
    out->count = end - out->offset < most ? end - out->offset : most;
    return true;
}
