/* What each rank does in a save: its part; and, on rank 0, the map and the record, which makes the checkpoint complete.
 * See checkpoint_impl.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "train/checkpoint/checkpoint_impl.h"
#include "train/checkpoint/checkpoint_stream.h"
#include "train/state/checksum.h"
#include "train/state/safetensors.h"

#define HEADER_ROOM (SAFETENSORS_HEADER_BYTES_MAX + SAFETENSORS_PREFIX_BYTES)

/* ---- the description ---- */

/* Larger elements first, so that all are aligned, else in the list's order. */
static void list_tensors(const struct state_description *state, struct checkpoint_tensor *out, uint32_t *order) {
    static const size_t sizes[] = {8, 4, 2, 1};
    uint32_t count = 0;
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        for (size_t i = 0; i < state->tensor_count; i++) {
            const struct muster_tensor *tensor = &state->tensors[i];
            if (muster_type_bytes(tensor->type) != sizes[s]) {
                continue;
            }
            out[count] = (struct checkpoint_tensor){.name = tensor->name,
                                                    .type = tensor->type,
                                                    .dim_count = tensor->dim_count,
                                                    .count = state_element_count(tensor),
                                                    .element_bytes = sizes[s],
                                                    .is_even = state_is_whole(tensor)};
            memcpy(out[count].shape, tensor->shape, sizeof out[count].shape);
            order[i] = count++;
        }
    }
}

static int by_place(const void *left, const void *right) {
    const struct checkpoint_range *a = left, *b = right;
    if (a->tensor != b->tensor) {
        return a->tensor < b->tensor ? -1 : 1;
    }
    return a->first < b->first ? -1 : a->first > b->first;
}

int checkpoint_ranges_of_state(const struct state_description *state, const uint32_t *order, uint32_t rank,
                               uint32_t size, struct checkpoint_ranges *out) {
    struct checkpoint_ranges all = {.items = calloc(state->tensor_count + state->chunk_count + 1, sizeof *all.items)};
    if (!all.items) {
        return status_fail(MUSTER_ENOMEM, "no memory for the ranges of a checkpoint");
    }
    for (size_t i = 0; i < state->tensor_count; i++) {
        const struct muster_tensor *tensor = &state->tensors[i];
        uint64_t count = state_is_whole(tensor) ? state_element_count(tensor) : 0;
        uint64_t first = state_even_first(count, rank, size), end = state_even_first(count, rank + 1, size);
        if (end > first) {
            all.items[all.count++] = (struct checkpoint_range){
                order[i], first, end - first, (uint8_t *)tensor->data + first * muster_type_bytes(tensor->type)};
        }
    }
    for (size_t i = 0; i < state->chunk_count; i++) {
        const struct state_chunk *chunk = &state->chunks[i];
        if (chunk->count > 0) {
            all.items[all.count++] =
                (struct checkpoint_range){order[chunk->tensor], chunk->first, chunk->count, chunk->data};
        }
    }
    if (all.count > 1) {
        qsort(all.items, all.count, sizeof *all.items, by_place);
    }
    *out = all;
    return 0;
}

/* Values and names are seen by writing them; the parts are not yet known. */
static int check_map(const struct checkpoint_save *save) {
    struct buf text;
    buf_init(&text, CHECKPOINT_MAP_BYTES_MAX + 1);
    int code = checkpoint_map_encode(&save->map, save->state->values, save->state->value_count, &text);
    buf_done(&text);
    return code;
}

static int describe(struct checkpoint_save *save) {
    const struct state_description *state = save->state;
    uint32_t *order = calloc(state->tensor_count + 1, sizeof *order);
    save->map.tensors = calloc(state->tensor_count + 1, sizeof *save->map.tensors);
    int code = order && save->map.tensors ? 0 : status_fail(MUSTER_ENOMEM, "no memory for a list of tensors");
    if (code == 0) {
        save->map.tensor_count = state->tensor_count;
        list_tensors(state, save->map.tensors, order);
        code = checkpoint_ranges_of_state(state, order, save->rank, save->size, &save->ranges);
    }
    free(order);
    return code ? code : check_map(save);
}

int checkpoint_save_begin(struct checkpoint_save *save, const struct snapshot_io *io, const char *path, int64_t step,
                          const struct state_description *state, uint32_t rank, uint32_t size) {
    *save = (struct checkpoint_save){.folder = {.io = io, .path = path, .handle = -1},
                                     .step = step,
                                     .state = state,
                                     .rank = rank,
                                     .size = size,
                                     .settings = {.keep = 2,
                                                  .visible_ms = MUSTER_CHECKPOINT_VISIBLE_MS,
                                                  .block_bytes = CHECKPOINT_BLOCK_BYTES,
                                                  .write_bytes = CHECKPOINT_WRITE_BYTES}};
    if (step < 0) {
        return status_fail(MUSTER_EINVAL, "step %" PRId64 ": it must be >= 0", step);
    }
    int code = state_description_check(state);
    return code ? code : describe(save);
}

/* ---- rank 0 before all write ---- */

static int open_folder(struct checkpoint_save *save) {
    int code = snapshot_folder_open(&save->folder, save->folder.io, save->folder.path, true);
    return code == MUSTER_ENOENT ? MUSTER_ESYSTEM : code;
}

int checkpoint_save_open(struct checkpoint_save *save) {
    const struct snapshot_io *io = save->folder.io;
    int code = open_folder(save);
    if (code) {
        return code;
    }
    int result = io->lock_folder(io->ctx, save->folder.handle);
    if (result) {
        return result == -EWOULDBLOCK
                   ? status_fail(MUSTER_ESYSTEM, "another job is saving in %s: give each a folder of its own",
                                 save->folder.path)
                   : snapshot_io_fail(&save->folder, "lock", "", result);
    }
    save->locked = true;
    code = checkpoint_sweep(&save->folder, NULL);
    if (code) {
        return code;
    }
    result = io->draw(io->ctx, &save->token);
    return result ? status_fail_errno(-result, "draw a random number") : 0;
}

/* ---- files ---- */

/* A file under way. */
struct output {
    const struct snapshot_folder *folder;
    char name[CHECKPOINT_NAME_MAX];
    int file;
    uint64_t bytes;
};

static int output_create(struct output *out, const struct checkpoint_save *save, enum checkpoint_kind kind) {
    const struct checkpoint_name name = {.kind = kind, .part = save->rank, .step = save->step, .token = save->token};
    const struct snapshot_io *io = save->folder.io;
    *out = (struct output){.folder = &save->folder};
    checkpoint_name_write(out->name, &name);
    out->file = io->create(io->ctx, save->folder.handle, out->name);
    return out->file < 0 ? snapshot_io_fail(&save->folder, "create", out->name, out->file) : 0;
}

static int output_add(struct output *out, const void *bytes, size_t count) {
    return snapshot_write(out->folder, out->name, out->file, bytes, count, &out->bytes);
}

/* Syncs and closes; with `code`, a failure of before, only closes. */
static int output_finish(struct output *out, int code) {
    const struct snapshot_io *io = out->folder->io;
    int result = code ? 0 : io->sync(io->ctx, out->file);
    io->close(io->ctx, out->file);
    return code ? code : result ? snapshot_io_fail(out->folder, "sync", out->name, result) : 0;
}

static int sync_folder(const struct snapshot_folder *folder) {
    int result = folder->io->sync(folder->io->ctx, folder->handle);
    return result ? snapshot_io_fail(folder, "sync", "", result) : 0;
}

/* ---- a part ---- */

static int look_at_watch(const struct checkpoint_watch *watch) {
    return watch && atomic_load_explicit(watch->gives_up, memory_order_relaxed)
               ? status_fail(MUSTER_ECANCELED, "what is saved was needed for the next step")
               : 0;
}

/* Writes a range, and fills in the checksums of its blocks. */
static int write_range(const struct checkpoint_settings *settings, struct checkpoint_stream *out, const uint8_t *data,
                       uint64_t bytes, uint64_t *checksums) {
    uint64_t block_bytes = settings->block_bytes;
    struct checksum checksum;
    checksum_init(&checksum);
    for (uint64_t done = 0; done < bytes;) {
        uint64_t piece = block_bytes - done % block_bytes;
        piece = piece < bytes - done ? piece : bytes - done;
        piece = piece < CHECKPOINT_PIECE_BYTES ? piece : CHECKPOINT_PIECE_BYTES;
        checksum_add(&checksum, data + done, (size_t)piece);
        int code = look_at_watch(settings->watch);
        code = code ? code : checkpoint_stream_add(out, data + done, (size_t)piece);
        if (code) {
            return code;
        }
        done += piece;
        if (done % block_bytes == 0 || done == bytes) {
            *checksums++ = checksum_value(&checksum);
            checksum_init(&checksum);
        }
    }
    return 0;
}

/* A part, when it is known where everything goes. */
struct part_plan {
    struct checkpoint_layout layout;
    struct buf header;
    uint64_t *checksums;
};

static int write_ranges(const struct checkpoint_save *save, const struct part_plan *plan,
                        struct checkpoint_stream *out) {
    int code = checkpoint_stream_add(out, buf_bytes(&plan->header), plan->header.len);
    for (size_t i = 0; i < save->ranges.count && code == 0; i++) {
        const struct checkpoint_range *range = &save->ranges.items[i];
        code = write_range(&save->settings, out, range->data,
                           range->count * save->map.tensors[range->tensor].element_bytes,
                           plan->checksums + plan->layout.places[i].block);
    }
    return code ? code
                : checkpoint_stream_add(out, plan->checksums, plan->layout.block_count * sizeof *plan->checksums);
}

static int write_part(const struct checkpoint_save *save, const struct part_plan *plan, struct output *out) {
    struct checkpoint_stream stream;
    uint64_t bytes = plan->header.len + checkpoint_layout_data_bytes(&plan->layout);
    int code = checkpoint_stream_begin(&stream, out->folder, out->name, out->file, bytes, save->settings.write_bytes);
    if (code) {
        return code;
    }
    code = write_ranges(save, plan, &stream);
    if (save->settings.watch) {
        save->settings.watch->has_read(save->settings.watch->context);
    }
    int end_code = checkpoint_stream_end(&stream);
    out->bytes = stream.bytes;
    return code ? code : end_code;
}

static int save_planned(struct checkpoint_save *save, const struct part_plan *plan, struct checkpoint_part *out) {
    struct output file;
    struct checksum digest;
    int code = output_create(&file, save, CHECKPOINT_PART);
    if (code) {
        return code;
    }
    code = output_finish(&file, write_part(save, plan, &file));
    code = code ? code : sync_folder(&save->folder);
    checksum_init(&digest);
    checksum_add(&digest, buf_bytes(&plan->header), plan->header.len);
    checksum_add(&digest, plan->checksums, plan->layout.block_count * sizeof *plan->checksums);
    out->bytes = file.bytes;
    out->data_at = plan->header.len;
    out->digest = checksum_value(&digest);
    return code;
}

int checkpoint_save_part(struct checkpoint_save *save, struct checkpoint_part *out) {
    struct part_plan plan = {.checksums = NULL};
    buf_init(&plan.header, HEADER_ROOM);
    int code = save->folder.handle < 0 ? open_folder(save) : 0;
    code = code ? code
                : checkpoint_layout_create(save->map.tensors, &save->ranges, save->settings.block_bytes, &plan.layout);
    code = code ? code
                : checkpoint_layout_header(&plan.layout, save->map.tensors, &save->ranges, save->step, &plan.header);
    if (code == 0) {
        plan.checksums = calloc(plan.layout.block_count + 1, sizeof *plan.checksums);
        code = plan.checksums
                   ? save_planned(save, &plan, out)
                   : status_fail(MUSTER_ENOMEM, "no memory for %" PRIu64 " checksums", plan.layout.block_count);
    }
    free(plan.checksums);
    buf_done(&plan.header);
    checkpoint_layout_done(&plan.layout);
    return code;
}

/* ---- rank 0 when all have written ---- */

/* Do other hosts write into the folder that rank 0 sees? */
static int see_witnesses(const struct checkpoint_save *save, const uint32_t *witnesses, uint32_t count) {
    const struct snapshot_io *io = save->folder.io;
    int64_t until_ms = io->now_ms(io->ctx) + save->settings.visible_ms;
    for (uint32_t i = 0; i < count; i++) {
        const struct checkpoint_name name = {
            .kind = CHECKPOINT_PART, .part = witnesses[i], .step = save->step, .token = save->token};
        int file = -1;
        int code = checkpoint_open_file(&save->folder, &name, save->map.parts[witnesses[i]].bytes, until_ms, &file);
        if (code) {
            (void)status_prefix(code,
                                "rank %" PRIu32 " has written its part, which rank 0 does not see: all need one "
                                "folder",
                                witnesses[i]);
            return code == MUSTER_ECORRUPT ? MUSTER_ESYSTEM : code;
        }
        io->close(io->ctx, file);
    }
    return 0;
}

static int write_file(const struct checkpoint_save *save, enum checkpoint_kind kind, const struct buf *text) {
    struct output file;
    int code = output_create(&file, save, kind);
    return code ? code : output_finish(&file, output_add(&file, buf_bytes(text), text->len));
}

static int write_map(struct checkpoint_save *save, struct checkpoint_record *record) {
    struct buf text;
    buf_init(&text, CHECKPOINT_MAP_BYTES_MAX + 1);
    save->map.step = save->step;
    save->map.token = save->token;
    save->map.block_bytes = save->settings.block_bytes;
    int code = checkpoint_map_encode(&save->map, save->state->values, save->state->value_count, &text);
    code = code ? code : checkpoint_map_id(buf_bytes(&text), text.len, &record->map_id);
    code = code ? code : write_file(save, CHECKPOINT_MAP, &text);
    record->map_bytes = text.len;
    buf_done(&text);
    return code;
}

static int write_record(const struct checkpoint_save *save, const struct checkpoint_record *record) {
    struct buf text;
    buf_init(&text, CHECKPOINT_RECORD_BYTES_MAX + 1);
    int code = checkpoint_record_encode(record, &text);
    code = code ? code : write_file(save, CHECKPOINT_TEMPORARY, &text);
    buf_done(&text);
    return code;
}

/* Gives the record its name. Before, all other names have to be on the disk. */
static int publish(struct checkpoint_save *save) {
    const struct checkpoint_name from = {.kind = CHECKPOINT_TEMPORARY, .step = save->step, .token = save->token};
    const struct checkpoint_name to = {.kind = CHECKPOINT_RECORD, .step = save->step};
    char from_text[CHECKPOINT_NAME_MAX], to_text[CHECKPOINT_NAME_MAX];
    checkpoint_name_write(from_text, &from);
    checkpoint_name_write(to_text, &to);
    int code = sync_folder(&save->folder);
    if (code) {
        return code;
    }
    save->published = true;
    int result = save->folder.io->rename(save->folder.io->ctx, save->folder.handle, from_text, to_text);
    return result ? snapshot_io_fail(&save->folder, "rename to its name", from_text, result)
                  : sync_folder(&save->folder);
}

int checkpoint_save_commit(struct checkpoint_save *save, const uint32_t *witnesses, uint32_t witness_count) {
    struct checkpoint_record record = {.step = save->step, .token = save->token, .part_count = save->map.part_count};
    for (uint32_t i = 0; i < save->map.part_count; i++) {
        record.bytes += save->map.parts[i].bytes;
    }
    int code = see_witnesses(save, witnesses, witness_count);
    code = code ? code : write_map(save, &record);
    code = code ? code : write_record(save, &record);
    return code ? code : publish(save);
}

void checkpoint_save_end(struct checkpoint_save *save, bool ok) {
    char sentence[MUSTER_DETAIL_MAX]; /* a failure to clean up must not take its place */
    (void)str_copy(sentence, sizeof sentence, muster_detail());
    if (save->locked) {
        if (ok) {
            checkpoint_prune(&save->folder, save->step, save->settings.keep);
        }
        /* Once the record may have its name, its files are not a matter of what is seen: that may be late. */
        (void)checkpoint_sweep(&save->folder, save->published ? &save->token : NULL);
        save->folder.io->unlock_folder(save->folder.io->ctx, save->folder.handle);
    }
    snapshot_folder_close(&save->folder);
    checkpoint_ranges_done(&save->ranges);
    checkpoint_map_done(&save->map);
    if (sentence[0] != '\0') {
        (void)status_fail(MUSTER_ESYSTEM, "%s", sentence);
    }
}
