/* A save by the ranks of a group: who does what when, and agreement on the outcome. What each does by itself is in
 * checkpoint_write.c. */
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

/* A range or a part as it travels. */
enum { RANGE_NUMBERS = 3, PART_NUMBERS = 3 };

/* The smallest hash and the smallest complement of one are each other's complement if all hashes are equal. */
int checkpoint_agree_on_call(struct muster_group *group, uint64_t hash) {
    int64_t numbers[2] = {(int64_t)hash, (int64_t)~hash};
    int code = muster_all_reduce(group, numbers, numbers, 2, MUSTER_INT64, MUSTER_OP_MIN, NULL);
    return code || numbers[0] == ~numbers[1]
               ? code
               : status_fail(MUSTER_EMISMATCH,
                             "the ranks describe different states, or make the call with other numbers: "
                             "tensors, which of them have data, which are on a GPU, values and "
                             "their order must be the same");
}

/* ---- who has what ---- */

/* What travels to rank 0. Arrays of every rank have as many entries as there are ranks. */
struct exchange {
    int64_t *counts;  /* numbers that each rank sends */
    size_t *sizes;    /* the same, for the collective */
    int64_t *send;    /* this rank's */
    int64_t *receive; /* rank 0: all of them */
};

static void exchange_done(struct exchange *e) {
    free(e->counts);
    free(e->sizes);
    free(e->send);
    free(e->receive);
}

/* The ranges that no rule tells. */
static int64_t list_ranges(const struct checkpoint_save *save, int64_t *out) {
    int64_t count = 0;
    for (size_t i = 0; i < save->ranges.count; i++) {
        const struct checkpoint_range *range = &save->ranges.items[i];
        if (!save->map.tensors[range->tensor].is_even) {
            out[count++] = range->tensor;
            out[count++] = (int64_t)range->first;
            out[count++] = (int64_t)range->count;
        }
    }
    return count;
}

static int exchange_init(struct exchange *e, const struct checkpoint_save *save) {
    e->counts = calloc(save->size, sizeof *e->counts);
    e->sizes = calloc(save->size, sizeof *e->sizes);
    e->send = calloc(RANGE_NUMBERS * save->ranges.count + PART_NUMBERS, sizeof *e->send);
    return e->counts && e->sizes && e->send ? 0 : status_fail(MUSTER_ENOMEM, "no memory for lists of ranges");
}

/* Rank 0: the ranges of all parts, as they came. */
static int fill_map(struct checkpoint_save *save, const struct exchange *e, size_t total) {
    struct checkpoint_map *map = &save->map;
    assert(e->receive && e->sizes);
    int code = checkpoint_map_make_room(map, save->size, total / RANGE_NUMBERS);
    if (code) {
        return code;
    }
    for (size_t i = 0; i < map->range_count; i++) {
        const int64_t *numbers = &e->receive[i * RANGE_NUMBERS];
        map->ranges[i] = (struct checkpoint_range){
            .tensor = (uint32_t)numbers[0], .first = (uint64_t)numbers[1], .count = (uint64_t)numbers[2]};
    }
    size_t begin = 0;
    for (uint32_t rank = 0; rank < save->size; rank++) {
        size_t count = e->sizes[rank] / RANGE_NUMBERS;
        map->parts[rank].listed = (struct checkpoint_ranges){.items = map->ranges + begin, .count = count};
        begin += count;
    }
    return checkpoint_map_check(map);
}

/* Collective: rank 0 learns who has what, and checks it. */
static int gather_ranges(struct muster_group *group, struct checkpoint_save *save, struct exchange *e) {
    assert(e->counts && e->sizes && e->send); /* all have agreed that there is memory */
    int64_t own = list_ranges(save, e->send);
    size_t total = 0;
    int code = muster_all_gather(group, &own, e->counts, 1, MUSTER_INT64, NULL);
    if (code) {
        return code;
    }
    for (uint32_t rank = 0; rank < save->size; rank++) {
        e->sizes[rank] = (size_t)e->counts[rank];
        total += e->sizes[rank];
    }
    if (save->rank == 0) {
        size_t room = total > (size_t)PART_NUMBERS * save->size ? total : (size_t)PART_NUMBERS * save->size;
        e->receive = calloc(room + 1, sizeof *e->receive);
        code = e->receive ? 0 : status_fail(MUSTER_ENOMEM, "no memory for %zu numbers of ranges", room);
    }
    code = snapshot_agree(group, code);
    code = code ? code : muster_gather_v(group, e->send, e->receive, e->sizes, MUSTER_INT64, 0, NULL);
    return code ? code : snapshot_agree(group, save->rank == 0 ? fill_map(save, e, total) : 0);
}

/* ---- the checkpoint before ---- */

/* What is told to each rank of its part; all zeros: there is none. */
enum { BASE_STEP, BASE_TOKEN, BASE_BYTES, BASE_DATA_AT, BASE_DIGEST, BASE_NUMBERS };

/* Rank 0: each rank's part of the checkpoint before. Any reason why there is none is good enough to write all. */
static int list_base(const struct checkpoint_save *save, int64_t **out) {
    struct checkpoint_map map;
    int64_t *all = calloc(save->size, BASE_NUMBERS * sizeof *all);
    if (!all) {
        return status_fail(MUSTER_ENOMEM, "no memory for a list of parts");
    }
    if (checkpoint_save_find_base(save, &map) == 0) {
        for (uint32_t rank = 0; rank < save->size; rank++) {
            int64_t *numbers = &all[(size_t)rank * BASE_NUMBERS];
            numbers[BASE_STEP] = map.step;
            numbers[BASE_TOKEN] = (int64_t)map.token;
            numbers[BASE_BYTES] = (int64_t)map.parts[rank].bytes;
            numbers[BASE_DATA_AT] = (int64_t)map.parts[rank].data_at;
            numbers[BASE_DIGEST] = (int64_t)map.parts[rank].digest;
        }
    }
    checkpoint_map_done(&map);
    *out = all;
    return 0;
}

/* Collective: each rank learns what its part of the checkpoint before is. */
static int share_base(struct muster_group *group, struct checkpoint_save *save) {
    int64_t *all = NULL, own[BASE_NUMBERS];
    int code = snapshot_agree(group, save->rank == 0 ? list_base(save, &all) : 0);
    code = code ? code : muster_scatter(group, all, own, BASE_NUMBERS, MUSTER_INT64, 0, NULL);
    free(all);
    if (code == 0 && own[BASE_BYTES] != 0) {
        save->base = (struct checkpoint_base){.has_part = true,
                                              .step = own[BASE_STEP],
                                              .token = (uint64_t)own[BASE_TOKEN],
                                              .part = {.bytes = (uint64_t)own[BASE_BYTES],
                                                       .data_at = (uint64_t)own[BASE_DATA_AT],
                                                       .digest = (uint64_t)own[BASE_DIGEST]}};
    }
    return code;
}

/* ---- the parts ---- */

static int gather_parts(struct muster_group *group, struct checkpoint_save *save, const struct checkpoint_part *own,
                        struct exchange *e) {
    assert(e->send && (e->receive || save->rank > 0));
    e->send[0] = (int64_t)own->bytes;
    e->send[1] = (int64_t)own->data_at;
    e->send[2] = (int64_t)own->digest;
    int code = muster_gather(group, e->send, e->receive, PART_NUMBERS, MUSTER_INT64, 0, NULL);
    for (uint32_t rank = 0; rank < save->size && code == 0 && save->rank == 0; rank++) {
        const int64_t *numbers = &e->receive[(size_t)rank * PART_NUMBERS];
        save->map.parts[rank].bytes = (uint64_t)numbers[0];
        save->map.parts[rank].data_at = (uint64_t)numbers[1];
        save->map.parts[rank].digest = (uint64_t)numbers[2];
    }
    return code;
}

/* Collective: all write. */
static int save_parts(struct muster_group *group, struct checkpoint_save *save, struct exchange *e) {
    struct checkpoint_part own = {.bytes = 0};
    int code = snapshot_agree(group, save->rank == 0 ? checkpoint_save_open(save) : 0);
    code = code ? code : muster_broadcast(group, &save->token, 1, MUSTER_UINT64, 0, NULL);
    code = code || !save->settings.incremental ? code : share_base(group, save);
    code = code ? code : snapshot_agree(group, checkpoint_save_part(save, &own));
    return code ? code : gather_parts(group, save, &own, e);
}

/* The first rank of each host but rank 0's: all ranks of a host see the same folder. */
static int commit(struct muster_group *group, struct checkpoint_save *save) {
    uint32_t hosts = muster_group_host_count(group), count = 0;
    uint32_t *witnesses = calloc(hosts, sizeof *witnesses);
    bool *seen = calloc(hosts, sizeof *seen);
    int code = witnesses && seen ? 0 : status_fail(MUSTER_ENOMEM, "no memory for a list of %" PRIu32 " hosts", hosts);
    for (uint32_t rank = 0; rank < save->size && code == 0; rank++) {
        uint32_t host = muster_group_host_of(group, rank);
        if (host != 0 && !seen[host]) {
            seen[host] = true;
            witnesses[count++] = rank;
        }
    }
    code = code ? code : checkpoint_save_commit(save, witnesses, count);
    free(witnesses);
    free(seen);
    return code;
}

/* ---- all of it ---- */

static uint64_t hash_of(const struct checkpoint_save *save) {
    uint64_t hash = state_description_hash(save->state);
    hash = fnv_bytes(hash, &save->step, sizeof save->step);
    hash = fnv_bytes(hash, &save->settings.keep, sizeof save->settings.keep);
    return fnv_bytes(hash, &save->settings.incremental, sizeof save->settings.incremental);
}

int checkpoint_save_group(const struct snapshot_io *io, struct muster_group *group, const char *path, int64_t step,
                          const struct state_description *state, const struct checkpoint_settings *settings) {
    struct checkpoint_save save;
    struct exchange exchange = {.counts = NULL};
    int code = checkpoint_save_begin(&save, io, path, step, state, muster_group_rank(group), muster_group_size(group));
    save.settings = *settings;
    code = code ? code : exchange_init(&exchange, &save);
    code = snapshot_agree(group, code);
    code = code ? code : checkpoint_agree_on_call(group, hash_of(&save));
    code = code ? code : gather_ranges(group, &save, &exchange);
    code = code ? code : save_parts(group, &save, &exchange);
    code = code ? code : snapshot_agree(group, save.rank == 0 ? commit(group, &save) : 0);
    checkpoint_save_end(&save, code == 0);
    exchange_done(&exchange);
    return code ? status_prefix(code, "save step %" PRId64, step) : 0;
}

int checkpoint_options_read(const struct muster_checkpoint_options *given, struct muster_checkpoint_options *out) {
    *out = (struct muster_checkpoint_options)MUSTER_CHECKPOINT_OPTIONS_INIT;
    int code =
        sized_read_options(out, sizeof *out, given, "muster_checkpoint_options", "MUSTER_CHECKPOINT_OPTIONS_INIT");
    return code == 0 && (out->keep == 0 || out->visible_ms < 0)
               ? status_fail(MUSTER_EINVAL,
                             "keep %" PRIu32 ", visible_ms %" PRId64 ": keep must be >= 1, visible_ms >= 0", out->keep,
                             out->visible_ms)
               : code;
}

static int read_settings(const struct muster_checkpoint_options *given, uint32_t rank,
                         struct checkpoint_settings *out) {
    struct muster_checkpoint_options own;
    int code = checkpoint_options_read(given, &own);
    *out = (struct checkpoint_settings){.keep = own.keep,
                                        .visible_ms = own.visible_ms,
                                        .block_bytes = CHECKPOINT_BLOCK_BYTES,
                                        .write_bytes = CHECKPOINT_WRITE_BYTES,
                                        .bytes_per_second = own.bytes_per_second,
                                        .incremental = own.incremental,
                                        .listener = checkpoint_listener_of(own.progress, own.progress_context, rank)};
    return code;
}

int checkpoint_save_watched(const struct snapshot_io *io, struct muster_group *group, const char *folder, int64_t step,
                            const struct muster_checkpoint_state *state,
                            const struct muster_checkpoint_options *options, const struct checkpoint_watch *watch) {
    struct checkpoint_description own = {.chunks = NULL};
    struct checkpoint_settings settings = {.keep = 0};
    if (!group) {
        return status_fail_null("muster_checkpoint_save", "group");
    }
    int code = folder && folder[0] ? 0 : status_fail(MUSTER_EINVAL, "no folder for checkpoints is named");
    code = code ? code : read_settings(options, muster_group_rank(group), &settings);
    settings.watch = watch;
    settings.stream = group_stream(group);
    cuda_library_adopt();
    code = code ? code : checkpoint_description_read(state, &own);
    code = snapshot_agree(group, code);
    code = code ? code : checkpoint_save_group(io, group, folder, step, &own.state, &settings);
    checkpoint_description_done(&own);
    return code;
}

int muster_checkpoint_save(struct muster_group *group, const char *folder, int64_t step,
                           const struct muster_checkpoint_state *state,
                           const struct muster_checkpoint_options *options) {
    return checkpoint_save_watched(&snapshot_io_system, group, folder, step, state, options, NULL);
}
