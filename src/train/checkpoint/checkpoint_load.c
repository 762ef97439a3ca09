/* A load by the ranks of a group: which checkpoint, who reads what, and agreement on the outcome. What each does by
 * itself is in checkpoint_find.c and checkpoint_read.c.
 *
 * Records are read by one rank a host. The lowest rank that sees the newest one reads its map and tells it to all, so
 * that no rank depends on when it sees which names. Then each rank reads its ranges. If one of them cannot, all go on
 * to the next older checkpoint. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>

#include <muster/collective.h>

#include "base/fnv.h"
#include "base/sized.h"
#include "base/status.h"
#include "comm/device/cuda_adopt.h"
#include "comm/group/mark.h"
#include "train/checkpoint/checkpoint_group_impl.h"
#include "train/checkpoint/checkpoint_impl.h"
#include "train/state/snapshot_parts.h"
#include "train/state/tensor_places.h"

/* How often to look for a folder that is not in sight. */
enum { FOLDER_PAUSE_MS = 50 };

struct load {
    struct muster_group *group;
    uint32_t rank, size;
    const struct state_description *state;
    int64_t step_max, visible_ms, until_ms;
    struct checkpoint_renames renames;
    struct checkpoint_listener listener;
    struct snapshot_folder folder; /* handle -1: not in sight so far */
    struct checkpoint_search search;
    bool has_candidate; /* the newest that this rank sees; of readers alone */
    struct checkpoint_record record;
    uint32_t owner;
    uint8_t *text; /* of the map */
    struct checkpoint_map map;
    uint32_t *order;
    struct checkpoint_ranges ranges;
};

static bool is_reader(const struct load *load) {
    return muster_group_local_rank(load->group) == 0;
}

static int begin(struct load *load, const struct snapshot_io *io, const char *path) {
    load->folder = (struct snapshot_folder){.io = io, .path = path, .handle = -1};
    load->search = (struct checkpoint_search){.found = {.step = -1}};
    int code = state_description_check(load->state);
    /* All ranks get all of a tensor that they have whole, from where the others have read their shares to. */
    code = code ? code : tensors_check_group(load->group, load->state->tensors, load->state->tensor_count);
    load->order = calloc(load->state->tensor_count + 1, sizeof *load->order);
    if (code == 0 && !load->order) {
        code = status_fail(MUSTER_ENOMEM, "no memory for a list of %zu tensors", load->state->tensor_count);
    }
    code = code ? code : snapshot_folder_open(&load->folder, io, path, false);
    if (code == 0 && is_reader(load)) {
        return checkpoint_search_begin(&load->search, &load->folder);
    }
    load->folder.io = io; /* closing has forgotten them */
    load->folder.path = path;
    return code == MUSTER_ENOENT ? 0 : code; /* no folder: no checkpoint */
}

/* ---- agreement ---- */

/* Collective. A rank that lacks the checkpoint (it is damaged, or not in sight) makes all pass over it; any other
 * failure is that of the load. */
static int settle(struct load *load, int code, bool *out_passed) {
    bool lacks = snapshot_is_lack(code);
    int result = snapshot_agree(load->group, lacks ? 0 : code);
    if (result) {
        return result;
    }
    result = snapshot_agree(load->group, lacks ? code : 0);
    *out_passed = snapshot_is_lack(result);
    return *out_passed ? 0 : result;
}

/* This rank's candidate, up to step_max. */
static int find_candidate(struct load *load) {
    if (!is_reader(load) || (load->has_candidate && load->record.step <= load->step_max)) {
        return 0;
    }
    int code = checkpoint_search_next(&load->search, &load->folder, load->step_max, &load->record);
    load->has_candidate = code == 0;
    return code;
}

/* Collective: the newest candidate of any rank, and the lowest rank that has it. MUSTER_ENOENT, MUSTER_ECORRUPT: there
 * is none. */
static int choose(struct load *load, int64_t *out_step) {
    int lack = find_candidate(load);
    int code = snapshot_agree(load->group, snapshot_is_lack(lack) ? 0 : lack);
    if (code) {
        return code;
    }
    int64_t newest[2] = {load->has_candidate ? -load->record.step : 1, lack};
    code = muster_all_reduce(load->group, newest, newest, 2, MUSTER_INT64, MUSTER_OP_MIN, NULL);
    if (code) {
        return code;
    }
    if (newest[0] == 1) { /* the lowest code is the one that says most */
        return snapshot_agree(load->group, lack == newest[1] ? lack : 0);
    }
    *out_step = -newest[0];
    int64_t owner = load->has_candidate && load->record.step == *out_step ? (int64_t)load->rank : INT64_MAX;
    code = muster_all_reduce(load->group, &owner, &owner, 1, MUSTER_INT64, MUSTER_OP_MIN, NULL);
    load->owner = (uint32_t)owner;
    return code;
}

/* ---- one checkpoint ---- */

static int allocate_text(struct load *load, uint64_t bytes) {
    load->text = load->text ? load->text : malloc((size_t)bytes + 1);
    return load->text ? 0 : status_fail(MUSTER_ENOMEM, "no memory for a map of %" PRIu64 " bytes", bytes);
}

/* Collective: all get the map of the owner's record. */
static int share_map(struct load *load, struct checkpoint_record *record, bool *out_passed) {
    int code =
        load->rank == load->owner ? checkpoint_read_map(&load->folder, &load->record, load->until_ms, &load->text) : 0;
    code = settle(load, code, out_passed);
    if (code || *out_passed) {
        return code;
    }
    uint64_t numbers[] = {(uint64_t)load->record.step, load->record.token, load->record.part_count,
                          load->record.map_bytes};
    code = muster_broadcast(load->group, numbers, sizeof numbers / sizeof numbers[0], MUSTER_UINT64, load->owner, NULL);
    if (code) {
        return code;
    }
    *record = (struct checkpoint_record){
        .step = (int64_t)numbers[0], .token = numbers[1], .part_count = (uint32_t)numbers[2], .map_bytes = numbers[3]};
    code = snapshot_agree(load->group, allocate_text(load, record->map_bytes));
    return code ? code
                : muster_broadcast(load->group, load->text, (size_t)record->map_bytes, MUSTER_UINT8, load->owner, NULL);
}

/* What of the checkpoint is this rank's to read? */
static int plan(struct load *load, const struct checkpoint_record *record) {
    int code = checkpoint_map_decode(load->text, (size_t)record->map_bytes, &load->map);
    if (code) {
        return code;
    }
    if (load->map.step != record->step || load->map.token != record->token ||
        load->map.part_count != record->part_count) {
        return status_fail(MUSTER_EUNSUPPORTED, "the map is of another checkpoint than its record");
    }
    code = checkpoint_match(&load->map, load->state, &load->renames, load->order);
    return code ? code : checkpoint_ranges_of_state(load->state, load->order, load->rank, load->size, &load->ranges);
}

/* The folder may be as new as the checkpoint. */
static int open_folder(struct load *load) {
    const struct snapshot_io *io = load->folder.io;
    const char *path = load->folder.path;
    int code = 0;
    while (load->folder.handle < 0) {
        code = snapshot_folder_open(&load->folder, io, path, false);
        load->folder.io = io;
        load->folder.path = path;
        int64_t left_ms = load->until_ms - io->now_ms(io->ctx);
        if (code != MUSTER_ENOENT || left_ms <= 0) {
            break;
        }
        io->pause(io->ctx, left_ms < FOLDER_PAUSE_MS ? left_ms : FOLDER_PAUSE_MS);
    }
    return code;
}

static int read_ranges(struct load *load) {
    struct device_stage stage;
    int code = open_folder(load);
    device_stage_init(&stage, group_stream(load->group), DEVICE_STAGE_CHUNKS * (size_t)load->map.block_bytes);
    code = code ? code
                : checkpoint_read_ranges(&load->folder, &load->map, &load->ranges, load->until_ms, &load->listener,
                                         &stage);
    code = code ? code : device_stage_settle(&stage);
    device_stage_done(&stage);
    return code;
}

/* Collective: of tensors that every rank is to have whole each has read a share. */
static int exchange_shares(struct load *load) {
    size_t *counts = calloc(load->size, sizeof *counts);
    int code = snapshot_agree(load->group, counts ? 0 : status_fail(MUSTER_ENOMEM, "no memory for a list of ranks"));
    assert(counts || code);
    for (size_t i = 0; i < load->state->tensor_count && code == 0; i++) {
        const struct muster_tensor *tensor = &load->state->tensors[i];
        uint64_t count = state_element_count(tensor);
        if (!state_is_whole(tensor) || count == 0) {
            continue;
        }
        for (uint32_t rank = 0; rank < load->size; rank++) {
            counts[rank] =
                (size_t)(state_even_first(count, rank + 1, load->size) - state_even_first(count, rank, load->size));
        }
        const uint8_t *own = (const uint8_t *)tensor->data +
                             state_even_first(count, load->rank, load->size) * muster_type_bytes(tensor->type);
        code = muster_all_gather_v(load->group, own, tensor->data, counts, tensor->type, NULL);
    }
    free(counts);
    return code;
}

static void forget(struct load *load) {
    free(load->text);
    load->text = NULL;
    checkpoint_map_done(&load->map);
    checkpoint_ranges_done(&load->ranges);
}

/* Collective: loads the checkpoint of the owner's record. */
static int attempt(struct load *load, bool *out_passed) {
    struct checkpoint_record record;
    load->until_ms = checkpoint_until_ms(load->folder.io, load->visible_ms);
    int code = share_map(load, &record, out_passed);
    if (code || *out_passed) {
        return code;
    }
    code = settle(load, plan(load, &record), out_passed);
    if (code || *out_passed) {
        return code;
    }
    code = settle(load, read_ranges(load), out_passed);
    if (code || *out_passed) {
        return code;
    }
    code = exchange_shares(load);
    return code ? code : checkpoint_map_values(&load->map, load->state->values, load->state->value_count, true);
}

/* ---- all of it ---- */

/* Collective: what the owner has found, which is the same for all but for what other hosts passed over. */
static int tell(struct load *load, struct muster_checkpoint_found *out) {
    struct muster_checkpoint_found *found = &load->search.found;
    found->step = load->record.step;
    found->id = load->record.id;
    found->part_count = load->record.part_count;
    int code = muster_broadcast(load->group, found, sizeof *found, MUSTER_UINT8, load->owner, NULL);
    *out = *found;
    return code;
}

static int load_newest(struct load *load, struct muster_checkpoint_found *out) {
    bool passed = true;
    int64_t step = 0;
    int code = 0;
    while (code == 0 && passed) {
        code = choose(load, &step);
        if (code) {
            return code;
        }
        code = attempt(load, &passed);
        code = code ? status_prefix(code, "load step %" PRId64, step) : 0;
        forget(load);
        if (code == 0 && passed) {
            load->search.any_complete = true;
            checkpoint_pass_over(&load->search.found, step, muster_detail());
            load->step_max = step - 1;
        }
    }
    return code ? code : tell(load, out);
}

int checkpoint_load_group(const struct snapshot_io *io, struct muster_group *group, const char *path,
                          const struct state_description *state, const struct muster_checkpoint_load_options *options,
                          struct muster_checkpoint_found *out) {
    struct load load = {
        .group = group,
        .rank = muster_group_rank(group),
        .size = muster_group_size(group),
        .state = state,
        .step_max = options->step_max,
        .visible_ms = options->visible_ms,
        .renames = {options->renames, options->rename_count},
        .listener = checkpoint_listener_of(options->progress, options->progress_context, muster_group_rank(group))};
    int code = snapshot_agree(group, begin(&load, io, path));
    if (code == 0) {
        uint64_t hash = state_description_hash(state) ^ tensors_places(state->tensors, state->tensor_count);
        hash = fnv_bytes(hash, &options->step_max, sizeof options->step_max);
        code = checkpoint_agree_on_call(group, checkpoint_renames_hash(&load.renames, hash));
    }
    code = code ? code : load_newest(&load, out);
    checkpoint_search_done(&load.search);
    snapshot_folder_close(&load.folder);
    free(load.order);
    return code;
}

static int read_options(const struct muster_checkpoint_load_options *given,
                        struct muster_checkpoint_load_options *out) {
    *out = (struct muster_checkpoint_load_options)MUSTER_CHECKPOINT_LOAD_OPTIONS_INIT;
    int code = sized_read_options(out, sizeof *out, given, "muster_checkpoint_load_options",
                                  "MUSTER_CHECKPOINT_LOAD_OPTIONS_INIT");
    if (code == 0 && out->visible_ms < 0) {
        return status_fail(MUSTER_EINVAL, "visible_ms %" PRId64 ": it must be >= 0", out->visible_ms);
    }
    return code ? code : checkpoint_renames_check(&(const struct checkpoint_renames){out->renames, out->rename_count});
}

int muster_checkpoint_load_newest_sized(struct muster_group *group, const char *folder,
                                        const struct muster_checkpoint_state *state,
                                        const struct muster_checkpoint_load_options *options,
                                        struct muster_checkpoint_found *out, size_t out_bytes) {
    struct checkpoint_description own = {.chunks = NULL};
    struct muster_checkpoint_load_options own_options = MUSTER_CHECKPOINT_LOAD_OPTIONS_INIT;
    struct muster_checkpoint_found found;
    if (!group) {
        return status_fail_null("muster_checkpoint_load_newest", "group");
    }
    int code = folder && folder[0] ? 0 : status_fail(MUSTER_EINVAL, "no folder for checkpoints is named");
    code = code ? code : read_options(options, &own_options);
    cuda_library_adopt();
    code = code ? code : checkpoint_description_read(state, &own);
    code = snapshot_agree(group, code);
    code = code ? code : checkpoint_load_group(&snapshot_io_system, group, folder, &own.state, &own_options, &found);
    checkpoint_description_done(&own);
    if (code == 0 && out) {
        sized_write(out, out_bytes, &found, sizeof found);
    }
    return code;
}
