/* A rank's part of a save: written, or taken over from the checkpoint before; see checkpoint_impl.h. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "train/checkpoint/checkpoint_output.h"
#include "train/checkpoint/checkpoint_stream.h"
#include "train/state/checksum.h"
#include "train/state/safetensors.h"

#define HEADER_ROOM (SAFETENSORS_HEADER_BYTES_MAX + SAFETENSORS_PREFIX_BYTES)

static int look_at_watch(const struct checkpoint_watch *watch) {
    return watch && atomic_load_explicit(watch->gives_up, memory_order_relaxed)
               ? status_fail(MUSTER_ECANCELED, "what is saved was needed for the next step")
               : 0;
}

/* A part, when it is known where everything goes. */
struct part_plan {
    struct checkpoint_layout layout;
    struct buf header;
    uint64_t *checksums;        /* of blocks */
    struct device_stage *stage; /* that ranges are read through */
};

static uint64_t bytes_of(const struct checkpoint_save *save, const struct checkpoint_range *range) {
    return range->count * save->map.tensors[range->tensor].element_bytes;
}

static uint64_t digest_of(const struct part_plan *plan) {
    struct checksum digest;
    checksum_init(&digest);
    checksum_add(&digest, buf_bytes(&plan->header), plan->header.len);
    checksum_add(&digest, plan->checksums, plan->layout.block_count * sizeof *plan->checksums);
    return checksum_value(&digest);
}

static void tell_watch(const struct checkpoint_settings *settings) {
    if (settings->watch) {
        settings->watch->has_read(settings->watch->context);
    }
}

/* ---- writing ---- */

/* A part that is being written. */
struct writer {
    const struct checkpoint_settings *settings;
    struct checkpoint_stream stream;
    struct checkpoint_progress progress;
};

/* A range of it. */
struct range_writer {
    struct writer *writer;
    uint64_t bytes, done;     /* of the range */
    struct checksum checksum; /* of the block so far */
    uint64_t *checksums;      /* where that of the block goes */
};

/* Writes the next bytes of the range, and fills in the checksums of blocks that end in them. */
static int write_bytes(struct range_writer *range, const uint8_t *data, uint64_t count) {
    struct writer *writer = range->writer;
    uint64_t block_bytes = writer->settings->block_bytes;
    for (uint64_t at = 0; at < count;) {
        uint64_t piece = block_bytes - range->done % block_bytes;
        piece = piece < count - at ? piece : count - at;
        piece = piece < CHECKPOINT_PIECE_BYTES ? piece : CHECKPOINT_PIECE_BYTES;
        checksum_add(&range->checksum, data + at, (size_t)piece);
        int code = look_at_watch(writer->settings->watch);
        code = code ? code : checkpoint_stream_add(&writer->stream, data + at, (size_t)piece);
        if (code) {
            return code;
        }
        checkpoint_progress_add(&writer->progress, piece);
        at += piece;
        range->done += piece;
        if (range->done % block_bytes == 0 || range->done == range->bytes) {
            *range->checksums++ = checksum_value(&range->checksum);
            checksum_init(&range->checksum);
        }
    }
    return 0;
}

static int write_from_source(const struct checkpoint_save *save, size_t number, struct range_writer *range) {
    const struct snapshot_source *source = save->source;
    int code = 0;
    while (range->done < range->bytes && code == 0) {
        const void *data = NULL;
        uint64_t count = 0, left = range->bytes - range->done;
        code = source->next(source->context, number, left, &data, &count);
        assert(code || (count > 0 && count <= left));
        code = code ? code : write_bytes(range, data, count);
    }
    return code;
}

static int name_tensor(const struct checkpoint_save *save, const struct checkpoint_range *range, int code) {
    return code ? status_prefix(code, "tensor %s", save->map.tensors[range->tensor].name) : 0;
}

static int write_from_memory(const struct checkpoint_save *save, const struct checkpoint_range *from,
                             struct device_stage *stage, struct range_writer *range) {
    int code = name_tensor(save, from, device_stage_read(stage, from->data, range->bytes));
    while (range->done < range->bytes && code == 0) {
        const void *data = NULL;
        size_t count = 0;
        code = name_tensor(save, from, device_stage_next(stage, range->bytes - range->done, &data, &count));
        code = code ? code : write_bytes(range, data, count);
    }
    return code;
}

static int write_range(const struct checkpoint_save *save, const struct checkpoint_range *from,
                       struct device_stage *stage, struct range_writer *range) {
    checksum_init(&range->checksum);
    return save->source ? write_from_source(save, save->map.tensors[from->tensor].number, range)
                        : write_from_memory(save, from, stage, range);
}

static int write_ranges(const struct checkpoint_save *save, const struct part_plan *plan, struct writer *writer) {
    int code = checkpoint_stream_add(&writer->stream, buf_bytes(&plan->header), plan->header.len);
    for (size_t i = 0; i < save->ranges.count && code == 0; i++) {
        const struct checkpoint_range *from = &save->ranges.items[i];
        struct range_writer range = {.writer = writer,
                                     .bytes = bytes_of(save, from),
                                     .checksums = plan->checksums + plan->layout.places[i].block};
        code = write_range(save, from, plan->stage, &range);
    }
    return code ? code
                : checkpoint_stream_add(&writer->stream, plan->checksums,
                                        plan->layout.block_count * sizeof *plan->checksums);
}

static int write_part(const struct checkpoint_save *save, const struct part_plan *plan, struct checkpoint_output *out) {
    const struct checkpoint_settings *settings = &save->settings;
    struct writer writer = {.settings = settings};
    uint64_t bytes = plan->header.len + checkpoint_layout_data_bytes(&plan->layout);
    int code = checkpoint_stream_begin(&writer.stream, out->folder, out->name, out->file, bytes, settings->write_bytes);
    if (code) {
        return code;
    }
    writer.stream.pace =
        (struct checkpoint_pace){settings->bytes_per_second, settings->watch ? settings->watch->is_awaited : NULL};
    checkpoint_progress_begin(
        &writer.progress, save->folder.io, &settings->listener,
        &(struct muster_checkpoint_progress){.step = save->step, .total_bytes = plan->layout.table_at});
    code = write_ranges(save, plan, &writer);
    tell_watch(settings);
    int end_code = checkpoint_stream_end(&writer.stream);
    checkpoint_progress_end(&writer.progress);
    out->bytes = writer.stream.bytes;
    return code ? code : end_code;
}

static int save_planned(struct checkpoint_save *save, const struct part_plan *plan, struct checkpoint_part *out) {
    struct checkpoint_output file;
    int code = checkpoint_output_create(&file, save, CHECKPOINT_PART);
    if (code) {
        return code;
    }
    code = checkpoint_output_finish(&file, write_part(save, plan, &file));
    out->bytes = file.bytes;
    out->data_at = plan->header.len;
    out->digest = digest_of(plan);
    return code;
}

/* ---- taking over ---- */

/* The checksum of the next `count` bytes of what the stage reads. */
static int checksum_next(struct device_stage *stage, uint64_t count, uint64_t *out) {
    struct checksum checksum;
    int code = 0;
    checksum_init(&checksum);
    for (size_t done = 0, piece = 0; done < count && code == 0; done += piece) {
        const void *bytes = NULL;
        piece = 0;
        code = device_stage_next(stage, count - done, &bytes, &piece);
        checksum_add(&checksum, bytes, piece);
    }
    *out = checksum_value(&checksum);
    return code;
}

/* Is every block of memory what the checksums say? */
static int compare_blocks(const struct checkpoint_save *save, const struct part_plan *plan, bool *out_same) {
    int code = 0;
    *out_same = true;
    for (size_t i = 0; i < save->ranges.count && *out_same && code == 0; i++) {
        const struct checkpoint_range *range = &save->ranges.items[i];
        const uint64_t *checksum = plan->checksums + plan->layout.places[i].block;
        uint64_t bytes = bytes_of(save, range), block_bytes = save->settings.block_bytes, found = 0;
        code = name_tensor(save, range, device_stage_read(plan->stage, range->data, bytes));
        for (uint64_t at = 0; at < bytes && *out_same && code == 0; at += block_bytes) {
            uint64_t count = bytes - at < block_bytes ? bytes - at : block_bytes;
            code = name_tensor(save, range, checksum_next(plan->stage, count, &found));
            *out_same = found == *checksum++;
            code = code ? code : look_at_watch(save->settings.watch);
        }
    }
    return code;
}

/* Has this file of the base the header that the part is to have? Then its checksums are read. */
static int read_checksums(const struct checkpoint_save *save, const struct checkpoint_name *name, int file,
                          struct part_plan *plan, bool *out_same) {
    char text[CHECKPOINT_NAME_MAX];
    uint8_t *header = malloc(plan->header.len);
    int code = header ? 0 : status_fail(MUSTER_ENOMEM, "no memory for the header of a part");
    checkpoint_name_write(text, name);
    code = code ? code : snapshot_read(&save->folder, text, file, header, plan->header.len, 0);
    code = code ? code
                : snapshot_read(&save->folder, text, file, plan->checksums,
                                (size_t)plan->layout.block_count * sizeof *plan->checksums,
                                plan->header.len + plan->layout.table_at);
    *out_same = code == 0 && memcmp(header, buf_bytes(&plan->header), plan->header.len) == 0 &&
                digest_of(plan) == save->base.part.digest;
    free(header);
    return code;
}

static int is_same(const struct checkpoint_save *save, const struct checkpoint_name *name, struct part_plan *plan,
                   bool *out) {
    const struct snapshot_io *io = save->folder.io;
    const struct checkpoint_part *part = &save->base.part;
    int file = -1;
    *out = part->data_at == plan->header.len &&
           part->bytes == plan->header.len + checkpoint_layout_data_bytes(&plan->layout) &&
           checkpoint_open_file(&save->folder, name, part->bytes, io->now_ms(io->ctx), &file) == 0;
    if (!*out) {
        return 0;
    }
    (void)read_checksums(save, name, file, plan,
                         out); /* a file that cannot be read is no reason not to write another */
    io->close(io->ctx, file);
    return *out ? compare_blocks(save, plan, out) : 0;
}

/* Gives the base's part another name, if it has the content that this one is to have. */
static int take_over(struct checkpoint_save *save, struct part_plan *plan, bool *out_done) {
    const struct snapshot_io *io = save->folder.io;
    const struct checkpoint_name from = {
        .kind = CHECKPOINT_PART, .part = save->rank, .step = save->base.step, .token = save->base.token};
    const struct checkpoint_name to = {
        .kind = CHECKPOINT_PART, .part = save->rank, .step = save->step, .token = save->token};
    char from_text[CHECKPOINT_NAME_MAX], to_text[CHECKPOINT_NAME_MAX];
    int code = is_same(save, &from, plan, out_done);
    if (code || !*out_done) {
        return code;
    }
    checkpoint_name_write(from_text, &from);
    checkpoint_name_write(to_text, &to);
    *out_done = io->link(io->ctx, save->folder.handle, from_text, to_text) == 0;
    if (*out_done) {
        tell_watch(&save->settings);
    }
    return 0;
}

/* ---- both ---- */

static int save_or_take_over(struct checkpoint_save *save, struct part_plan *plan, struct checkpoint_part *out) {
    bool is_done = false;
    int code = save->base.has_part ? take_over(save, plan, &is_done) : 0;
    if (is_done) {
        *out = save->base.part;
    } else {
        code = code ? code : save_planned(save, plan, out);
    }
    return code ? code : checkpoint_sync_folder(&save->folder);
}

int checkpoint_save_part(struct checkpoint_save *save, struct checkpoint_part *out) {
    struct device_stage stage;
    struct part_plan plan = {.stage = &stage};
    buf_init(&plan.header, HEADER_ROOM);
    int code = save->folder.handle < 0 ? checkpoint_save_open_folder(save) : 0;
    code = code ? code
                : checkpoint_layout_create(save->map.tensors, &save->ranges, save->settings.block_bytes, &plan.layout);
    device_stage_init(&stage, save->settings.stream, plan.layout.table_at);
    code = code ? code : checkpoint_layout_header(&plan.layout, save->map.tensors, &save->ranges, &plan.header);
    if (code == 0) {
        plan.checksums = calloc(plan.layout.block_count + 1, sizeof *plan.checksums);
        code = plan.checksums
                   ? save_or_take_over(save, &plan, out)
                   : status_fail(MUSTER_ENOMEM, "no memory for %" PRIu64 " checksums", plan.layout.block_count);
    }
    device_stage_done(&stage);
    free(plan.checksums);
    buf_done(&plan.header);
    checkpoint_layout_done(&plan.layout);
    return code;
}
