/* See checkpoint_parts.h. Rank 0 of a save does what the others would have done, too: the stages are those of
 * checkpoint_save.c, without the collectives. */
#include "train/checkpoint/checkpoint_parts.h"

#include <inttypes.h>

#include "base/status.h"
#include "train/checkpoint/checkpoint_impl.h"

/* Turns the save into that of rank `part`. */
static int become(struct checkpoint_save *save, uint32_t part) {
    static const struct checkpoint_ranges none = {.items = NULL};
    save->rank = part;
    checkpoint_ranges_done(&save->ranges);
    return checkpoint_ranges_of_part(save->map.tensors, save->map.tensor_count, part, save->size, &none, &save->ranges);
}

static int save_parts(struct checkpoint_save *save) {
    int code = 0;
    for (uint32_t part = 0; part < save->size && code == 0; part++) {
        code = snapshot_source_goes_on(save->source);
        code = code ? code : become(save, part);
        code = code ? code : checkpoint_save_part(save, &save->map.parts[part]);
    }
    save->rank = 0;
    return code ? code : snapshot_source_goes_on(save->source);
}

int checkpoint_save_parts_on(const struct snapshot_io *io, const char *path, int64_t step,
                             const struct state_description *state, uint32_t part_count,
                             const struct checkpoint_settings *settings, const struct snapshot_source *source) {
    struct checkpoint_save save;
    int code = checkpoint_save_begin(&save, io, path, step, state, 0, part_count);
    save.settings = *settings;
    save.source = source;
    code = code ? code : checkpoint_map_make_room(&save.map, part_count, 0); /* all is even: no part lists ranges */
    code = code ? code : checkpoint_map_check(&save.map);
    code = code ? code : checkpoint_save_open(&save);
    code = code ? code : save_parts(&save);
    code = code ? code : checkpoint_save_commit(&save, NULL, 0);
    checkpoint_save_end(&save, code == 0);
    return code ? status_prefix(code, "save step %" PRId64, step) : 0;
}

int checkpoint_save_parts(const char *folder, int64_t step, const struct muster_snapshot_state *state,
                          uint32_t part_count, uint32_t keep, const struct snapshot_source *source) {
    const struct state_description description = {.tensors = state->tensors,
                                                  .tensor_count = state->tensor_count,
                                                  .values = state->values,
                                                  .value_count = state->value_count};
    const struct checkpoint_settings settings = {
        .keep = keep, .block_bytes = CHECKPOINT_BLOCK_BYTES, .write_bytes = CHECKPOINT_WRITE_BYTES};
    if (part_count == 0 || part_count > MUSTER_GROUP_SIZE_MAX) {
        return status_fail(MUSTER_EINVAL, "%" PRIu32 " parts: 1 to %u are possible", part_count, MUSTER_GROUP_SIZE_MAX);
    }
    return checkpoint_save_parts_on(&snapshot_io_system, folder, step, &description, part_count, &settings, source);
}
