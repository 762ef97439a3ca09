/* What each rank does in a save but for its part (checkpoint_part.c): the description of what is saved; and, on rank 0,
 * the map and the record, which makes the checkpoint complete. See checkpoint_impl.h. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "train/checkpoint/checkpoint_impl.h"
#include "train/checkpoint/checkpoint_output.h"

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
                                                    .is_even = state_is_whole(tensor),
                                                    .number = i};
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

int checkpoint_save_open_folder(struct checkpoint_save *save) {
    int code = snapshot_folder_open(&save->folder, save->folder.io, save->folder.path, true);
    return code == MUSTER_ENOENT ? MUSTER_ESYSTEM : code;
}

int checkpoint_save_open(struct checkpoint_save *save) {
    const struct snapshot_io *io = save->folder.io;
    int code = checkpoint_save_open_folder(save);
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

/* Files that are seen late are no reason to wait: then all is written. */
static int read_base(const struct checkpoint_save *save, const struct checkpoint_record *record,
                     struct checkpoint_map *out) {
    uint8_t *text = NULL;
    int code = checkpoint_read_map(&save->folder, record, save->folder.io->now_ms(save->folder.io->ctx), &text);
    code = code ? code : checkpoint_map_decode(text, (size_t)record->map_bytes, out);
    free(text);
    if (code == 0 && (out->step != record->step || out->token != record->token || out->part_count != save->size ||
                      out->block_bytes != save->settings.block_bytes)) {
        return status_fail(MUSTER_ENOENT, "the checkpoint of step %" PRId64 " was cut in another way", record->step);
    }
    return code;
}

int checkpoint_save_find_base(const struct checkpoint_save *save, struct checkpoint_map *out) {
    struct checkpoint_search search = {.next = 0};
    struct checkpoint_record record;
    *out = (struct checkpoint_map){.tensors = NULL};
    int code = checkpoint_search_begin(&search, &save->folder);
    code = code ? code : checkpoint_search_next(&search, &save->folder, save->step, &record);
    code = code ? code : read_base(save, &record, out);
    checkpoint_search_done(&search);
    return code;
}

/* ---- rank 0 when all have written ---- */

/* Do other hosts write into the folder that rank 0 sees? */
static int see_witnesses(const struct checkpoint_save *save, const uint32_t *witnesses, uint32_t count) {
    const struct snapshot_io *io = save->folder.io;
    int64_t until_ms = checkpoint_until_ms(io, save->settings.visible_ms);
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
    struct checkpoint_output file;
    int code = checkpoint_output_create(&file, save, kind);
    return code ? code : checkpoint_output_finish(&file, checkpoint_output_add(&file, buf_bytes(text), text->len));
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
    int code = checkpoint_sync_folder(&save->folder);
    if (code) {
        return code;
    }
    save->published = true;
    int result = save->folder.io->rename(save->folder.io->ctx, save->folder.handle, from_text, to_text);
    return result ? snapshot_io_fail(&save->folder, "rename to its name", from_text, result)
                  : checkpoint_sync_folder(&save->folder);
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
