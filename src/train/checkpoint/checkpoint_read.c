/* What each rank does in a load: reads the map, and the blocks of parts that have something of its ranges. See
 * checkpoint_impl.h. */
#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/status.h"
#include "train/checkpoint/checkpoint_impl.h"
#include "train/state/checksum.h"
#include "train/state/safetensors.h"

/* How long to pause before looking again for a file: twice as long each time. */
enum { PAUSE_MIN_MS = 10, PAUSE_MAX_MS = 500 };

/* ---- files that may come into sight later ---- */

/* 0: it is there with all its bytes. */
static int try_open(const struct snapshot_folder *folder, const char *name, uint64_t bytes, int *out_file,
                    bool *out_may_come) {
    uint64_t count = 0;
    int file = -1;
    int code = snapshot_open_file(folder, name, MUSTER_ENOENT, &file, &count);
    *out_may_come = code == MUSTER_ENOENT;
    if (code) {
        return code == MUSTER_ENOENT ? MUSTER_ECORRUPT : code;
    }
    if (count != bytes) {
        folder->io->close(folder->io->ctx, file);
        *out_may_come = count < bytes;
        return status_fail(MUSTER_ECORRUPT, "%s/%s has %" PRIu64 " bytes instead of %" PRIu64, folder->path, name,
                           count, bytes);
    }
    *out_file = file;
    return 0;
}

int64_t checkpoint_until_ms(const struct snapshot_io *io, int64_t visible_ms) {
    int64_t until_ms = 0;
    return __builtin_add_overflow(io->now_ms(io->ctx), visible_ms, &until_ms) ? INT64_MAX : until_ms;
}

int checkpoint_open_file(const struct snapshot_folder *folder, const struct checkpoint_name *name, uint64_t bytes,
                         int64_t until_ms, int *out_file) {
    const struct snapshot_io *io = folder->io;
    char text[CHECKPOINT_NAME_MAX];
    bool may_come = false;
    int64_t pause_ms = PAUSE_MIN_MS;
    checkpoint_name_write(text, name);
    int code = try_open(folder, text, bytes, out_file, &may_come);
    while (code && may_come) {
        int64_t left_ms = until_ms - io->now_ms(io->ctx);
        if (left_ms <= 0) {
            break;
        }
        io->pause(io->ctx, pause_ms < left_ms ? pause_ms : left_ms);
        pause_ms = 2 * pause_ms < PAUSE_MAX_MS ? 2 * pause_ms : PAUSE_MAX_MS;
        code = try_open(folder, text, bytes, out_file, &may_come);
    }
    return code;
}

int checkpoint_read_map(const struct snapshot_folder *folder, const struct checkpoint_record *record, int64_t until_ms,
                        uint8_t **out) {
    const struct checkpoint_name name = {.kind = CHECKPOINT_MAP, .step = record->step, .token = record->token};
    char text[CHECKPOINT_NAME_MAX];
    int file = -1;
    uint64_t id = 0;
    int code = checkpoint_open_file(folder, &name, record->map_bytes, until_ms, &file);
    if (code) {
        return code;
    }
    uint8_t *bytes = malloc((size_t)record->map_bytes + 1);
    checkpoint_name_write(text, &name);
    code = bytes ? snapshot_read(folder, text, file, bytes, (size_t)record->map_bytes, 0)
                 : status_fail(MUSTER_ENOMEM, "no memory for a map of %" PRIu64 " bytes", record->map_bytes);
    folder->io->close(folder->io->ctx, file);
    if (code == 0) {
        code = checkpoint_map_id(bytes, (size_t)record->map_bytes, &id);
        if (code == 0 && id != record->map_id) {
            code = status_fail(MUSTER_ECORRUPT, "it is not the map that the record names");
        }
        code = code ? status_prefix(code, "%s/%s", folder->path, text) : 0;
    }
    if (code) {
        free(bytes);
        return code;
    }
    *out = bytes;
    return 0;
}

/* ---- the program's tensors ---- */

static int by_name(const void *left, const void *right) {
    return strcmp((*(const struct checkpoint_tensor *const *)left)->name,
                  (*(const struct checkpoint_tensor *const *)right)->name);
}

static int match_tensor(const struct checkpoint_tensor *there, const struct muster_tensor *tensor) {
    struct safetensors_entry entry = {.name = there->name, .type = there->type, .dim_count = there->dim_count};
    memcpy(entry.shape, there->shape, sizeof entry.shape);
    return safetensors_match(&entry, tensor);
}

/* The map's tensor that the program calls `tensor`. */
static int find_tensor(const struct checkpoint_map *map, const struct checkpoint_tensor *const *sorted,
                       const struct muster_tensor *tensor, const struct checkpoint_renames *renames, uint32_t *out) {
    char name[MUSTER_NAME_MAX];
    const struct checkpoint_tensor key = {.name = name}, *wanted = &key;
    int code = checkpoint_rename(renames, tensor->name, name);
    if (code) {
        return code;
    }
    const struct checkpoint_tensor *const *found =
        map->tensor_count == 0
            ? NULL
            : bsearch(&wanted, sorted, map->tensor_count, sizeof(struct checkpoint_tensor *), by_name);
    if (!found && strcmp(name, tensor->name) != 0) {
        return status_fail(MUSTER_EINVAL, "tensor %s is not in the checkpoint, where it is to be %s", tensor->name,
                           name);
    }
    if (!found) {
        return status_fail(MUSTER_EINVAL, "tensor %s is not in the checkpoint", tensor->name);
    }
    *out = (uint32_t)(*found - map->tensors);
    return match_tensor(*found, tensor);
}

int checkpoint_match(const struct checkpoint_map *map, const struct state_description *state,
                     const struct checkpoint_renames *renames, uint32_t *order) {
    const struct checkpoint_tensor **sorted = calloc(map->tensor_count + 1, sizeof(struct checkpoint_tensor *));
    int code = sorted ? 0 : status_fail(MUSTER_ENOMEM, "no memory for a list of %zu tensors", map->tensor_count);
    for (size_t i = 0; i < map->tensor_count && sorted; i++) {
        sorted[i] = &map->tensors[i];
    }
    if (sorted && map->tensor_count > 1) {
        qsort(sorted, map->tensor_count, sizeof(struct checkpoint_tensor *), by_name);
    }
    for (size_t i = 0; i < state->tensor_count && code == 0; i++) {
        code = find_tensor(map, sorted, &state->tensors[i], renames, &order[i]);
    }
    free(sorted);
    return code ? code : checkpoint_map_values(map, state->values, state->value_count, false);
}

/* ---- a part ---- */

/* A part that is read. */
struct reader {
    const struct snapshot_folder *folder;
    const struct checkpoint_map *map;
    uint32_t part;
    struct checkpoint_ranges ranges;
    struct checkpoint_layout layout;
    char name[CHECKPOINT_NAME_MAX];
    int file; /* -1: not open */
    uint8_t *header;
    uint64_t *checksums;                  /* of blocks; NULL: they are read one by one */
    uint8_t *block;                       /* room for one */
    struct checkpoint_progress *progress; /* NULL: nobody listens */
    struct device_stage *stage;           /* to where what is wanted belongs */
};

static int read_bytes(const struct reader *reader, void *out, uint64_t count, uint64_t offset) {
    return snapshot_read(reader->folder, reader->name, reader->file, out, (size_t)count, offset);
}

/* Reads the header and the checksums, and checks them. */
static int read_tables(struct reader *reader) {
    const struct checkpoint_part *part = &reader->map->parts[reader->part];
    size_t table_bytes = (size_t)reader->layout.block_count * sizeof *reader->checksums;
    struct checksum digest;
    reader->header = malloc((size_t)part->data_at + 1);
    reader->checksums = malloc(table_bytes + 1);
    if (!reader->header || !reader->checksums) {
        return status_fail(MUSTER_ENOMEM, "no memory for the checksums of %s", reader->name);
    }
    int code = read_bytes(reader, reader->header, part->data_at, 0);
    code = code ? code : read_bytes(reader, reader->checksums, table_bytes, part->data_at + reader->layout.table_at);
    if (code) {
        return code;
    }
    checksum_init(&digest);
    checksum_add(&digest, reader->header, (size_t)part->data_at);
    checksum_add(&digest, reader->checksums, table_bytes);
    return checksum_value(&digest) == part->digest
               ? 0
               : status_fail(MUSTER_ECORRUPT, "%s/%s is damaged: the checksum of its header and checksums does not fit",
                             reader->folder->path, reader->name);
}

static struct checkpoint_name name_of(const struct reader *reader) {
    const struct checkpoint_map *map = reader->map;
    return (struct checkpoint_name){
        .kind = CHECKPOINT_PART, .part = reader->part, .step = map->step, .token = map->token};
}

/* What the map says of the part. */
static int lay_out(struct reader *reader) {
    const struct checkpoint_map *map = reader->map;
    const struct checkpoint_part *part = &map->parts[reader->part];
    const struct checkpoint_name name = name_of(reader);
    checkpoint_name_write(reader->name, &name);
    int code = checkpoint_layout_create(map->tensors, &reader->ranges, map->block_bytes, &reader->layout);
    if (code == 0 && part->bytes - part->data_at != checkpoint_layout_data_bytes(&reader->layout)) {
        return status_fail(MUSTER_EUNSUPPORTED, "the map says that %s has other sizes than its ranges", reader->name);
    }
    return code;
}

static int open_part(struct reader *reader, int64_t until_ms) {
    const struct checkpoint_name name = name_of(reader);
    int code = lay_out(reader);
    code = code ? code
                : checkpoint_open_file(reader->folder, &name, reader->map->parts[reader->part].bytes, until_ms,
                                       &reader->file);
    return code ? code : read_tables(reader);
}

static void reader_done(struct reader *reader) {
    if (reader->file >= 0) {
        reader->folder->io->close(reader->folder->io->ctx, reader->file);
    }
    free(reader->header);
    free(reader->checksums);
    checkpoint_layout_done(&reader->layout);
    checkpoint_ranges_done(&reader->ranges);
}

/* ---- reading blocks ---- */

/* What of one range of a part goes where, in bytes from the range's beginning. */
struct overlap {
    size_t range;
    uint64_t begin, end;
    uint8_t *out; /* where `begin` goes */
};

/* Memory that was never touched gets its pages in one call, rather than in a fault for each while the kernel copies
 * into them. A hint. */
static void touch(uint8_t *at, uint64_t bytes) {
#ifdef MADV_POPULATE_WRITE
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)at + page - 1) / page * page, end = ((uintptr_t)at + bytes) / page * page;
    if (end > begin) {
        (void)madvise(at + (begin - (uintptr_t)at), end - begin, MADV_POPULATE_WRITE);
    }
#else
    (void)at;
    (void)bytes;
#endif
}

/* Reads bytes of the file, and their checksum while they are in the processor's cache. */
static int read_checked(const struct reader *reader, uint8_t *out, uint64_t bytes, uint64_t offset,
                        uint64_t *out_checksum) {
    struct checksum checksum;
    int code = 0;
    checksum_init(&checksum);
    for (uint64_t done = 0, piece = 0; done < bytes && code == 0; done += piece) {
        piece = bytes - done < CHECKPOINT_PIECE_BYTES ? bytes - done : CHECKPOINT_PIECE_BYTES;
        code = read_bytes(reader, out + done, piece, offset + done);
        if (code == 0) {
            checksum_add(&checksum, out + done, (size_t)piece);
        }
    }
    *out_checksum = checksum_value(&checksum);
    return code;
}

static int checksum_at(const struct reader *reader, uint64_t block, uint64_t *out) {
    if (reader->checksums) {
        *out = reader->checksums[block];
        return 0;
    }
    uint64_t table_at = reader->map->parts[reader->part].data_at + reader->layout.table_at;
    return read_bytes(reader, out, sizeof *out, table_at + block * sizeof *out);
}

/* Bytes of a block that belong to the range's byte `at` and behind it. */
static int put(const struct reader *reader, const struct overlap *overlap, uint64_t at, const uint8_t *bytes,
               uint64_t count) {
    int code = device_stage_put(reader->stage, overlap->out + (at - overlap->begin), bytes, (size_t)count);
    return code ? status_prefix(code, "tensor %s",
                                reader->map->tensors[reader->ranges.items[overlap->range].tensor].name)
                : 0;
}

static int read_block(const struct reader *reader, const struct overlap *overlap, uint64_t block,
                      uint64_t range_bytes) {
    const struct checkpoint_place *place = &reader->layout.places[overlap->range];
    uint64_t begin = block * reader->map->block_bytes, left = range_bytes - begin;
    uint64_t end = begin + (left < reader->map->block_bytes ? left : reader->map->block_bytes);
    bool is_wanted_whole = begin >= overlap->begin && end <= overlap->end;
    bool is_in_place = is_wanted_whole && device_place_of(overlap->out) == DEVICE_PLACE_HOST;
    uint8_t *at = is_in_place ? overlap->out + (begin - overlap->begin) : reader->block;
    uint64_t offset = reader->map->parts[reader->part].data_at + place->offset + begin, checksum = 0, expected = 0;
    touch(at, end - begin);
    int code = read_checked(reader, at, end - begin, offset, &checksum);
    code = code ? code : checksum_at(reader, place->block + block, &expected);
    if (code) {
        return code;
    }
    if (checksum != expected) {
        const char *tensor = reader->map->tensors[reader->ranges.items[overlap->range].tensor].name;
        return status_fail(MUSTER_ECORRUPT, "tensor %s in %s/%s is damaged: a checksum does not fit", tensor,
                           reader->folder->path, reader->name);
    }
    uint64_t from = begin > overlap->begin ? begin : overlap->begin;
    uint64_t to = end < overlap->end ? end : overlap->end;
    if (reader->progress) {
        checkpoint_progress_add(reader->progress, to - from);
    }
    return is_in_place || to <= from ? 0 : put(reader, overlap, from, reader->block + (from - begin), to - from);
}

/* Where in the part's ranges those begin that have something of `wanted`, or come after it. */
static size_t find_from(const struct checkpoint_ranges *ranges, const struct checkpoint_range *wanted) {
    size_t low = 0, high = ranges->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        const struct checkpoint_range *range = &ranges->items[middle];
        bool is_before = range->tensor < wanted->tensor ||
                         (range->tensor == wanted->tensor && range->first + range->count <= wanted->first);
        low = is_before ? middle + 1 : low;
        high = is_before ? high : middle;
    }
    return low;
}

static bool has_some(const struct checkpoint_ranges *ranges, size_t at, const struct checkpoint_range *wanted) {
    return at < ranges->count && ranges->items[at].tensor == wanted->tensor &&
           ranges->items[at].first < wanted->first + wanted->count;
}

/* What the part has of one wanted range. */
static int read_wanted(const struct reader *reader, const struct checkpoint_range *wanted) {
    uint64_t element_bytes = reader->map->tensors[wanted->tensor].element_bytes;
    int code = 0;
    for (size_t at = find_from(&reader->ranges, wanted); has_some(&reader->ranges, at, wanted) && code == 0; at++) {
        const struct checkpoint_range *range = &reader->ranges.items[at];
        uint64_t range_end = range->first + range->count, wanted_end = wanted->first + wanted->count;
        uint64_t first = range->first > wanted->first ? range->first : wanted->first;
        uint64_t end = range_end < wanted_end ? range_end : wanted_end;
        const struct overlap overlap = {.range = at,
                                        .begin = (first - range->first) * element_bytes,
                                        .end = (end - range->first) * element_bytes,
                                        .out = (uint8_t *)wanted->data + (first - wanted->first) * element_bytes};
        uint64_t block = overlap.begin / reader->map->block_bytes;
        for (; block * reader->map->block_bytes < overlap.end && code == 0; block++) {
            code = read_block(reader, &overlap, block, range->count * element_bytes);
        }
    }
    return code;
}

static bool is_needed(const struct checkpoint_ranges *ranges, const struct checkpoint_ranges *wanted) {
    for (size_t i = 0; i < wanted->count; i++) {
        if (has_some(ranges, find_from(ranges, &wanted->items[i]), &wanted->items[i])) {
            return true;
        }
    }
    return false;
}

static int read_part(struct reader *reader, const struct checkpoint_ranges *wanted, int64_t until_ms) {
    const struct checkpoint_map *map = reader->map;
    int code = checkpoint_ranges_of_part(map->tensors, map->tensor_count, reader->part, map->part_count,
                                         &map->parts[reader->part].listed, &reader->ranges);
    if (code || !is_needed(&reader->ranges, wanted)) {
        return code;
    }
    code = open_part(reader, until_ms);
    for (size_t i = 0; i < wanted->count && code == 0; i++) {
        code = read_wanted(reader, &wanted->items[i]);
    }
    return code;
}

int checkpoint_read_ranges(const struct snapshot_folder *folder, const struct checkpoint_map *map,
                           const struct checkpoint_ranges *wanted, int64_t until_ms,
                           const struct checkpoint_listener *listener, struct device_stage *stage) {
    struct checkpoint_progress progress;
    struct muster_checkpoint_progress first = {.step = map->step, .is_load = true};
    for (size_t i = 0; i < wanted->count; i++) {
        first.total_bytes += wanted->items[i].count * map->tensors[wanted->items[i].tensor].element_bytes;
    }
    checkpoint_progress_begin(&progress, folder->io, listener, &first);
    uint8_t *block = malloc((size_t)map->block_bytes);
    int code = block ? 0 : status_fail(MUSTER_ENOMEM, "no memory for a block of %" PRIu64 " bytes", map->block_bytes);
    for (uint32_t part = 0; part < map->part_count && code == 0; part++) {
        struct reader reader = {.folder = folder,
                                .map = map,
                                .part = part,
                                .file = -1,
                                .block = block,
                                .progress = &progress,
                                .stage = stage};
        code = read_part(&reader, wanted, until_ms);
        reader_done(&reader);
    }
    checkpoint_progress_end(&progress);
    free(block);
    return code;
}

/* ---- a part, here and there ---- */

struct checkpoint_part_reader {
    struct reader reader;
    struct device_stage stage; /* to memory of the host */
};

int checkpoint_part_reader_create(const struct snapshot_folder *folder, const struct checkpoint_map *map, uint32_t part,
                                  struct checkpoint_part_reader **out) {
    struct checkpoint_part_reader *own = calloc(1, sizeof *own);
    if (!own) {
        return status_fail(MUSTER_ENOMEM, "no memory to read a part of a checkpoint");
    }
    own->reader = (struct reader){.folder = folder, .map = map, .part = part, .file = -1, .stage = &own->stage};
    device_stage_init(&own->stage, NULL, 0);
    int code = checkpoint_ranges_of_part(map->tensors, map->tensor_count, part, map->part_count,
                                         &map->parts[part].listed, &own->reader.ranges);
    code = code ? code : lay_out(&own->reader);
    if (code == 0) {
        own->reader.block = malloc((size_t)map->block_bytes);
        code = own->reader.block
                   ? 0
                   : status_fail(MUSTER_ENOMEM, "no memory for a block of %" PRIu64 " bytes", map->block_bytes);
    }
    if (code) {
        checkpoint_part_reader_free(own);
        return code;
    }
    *out = own;
    return 0;
}

void checkpoint_part_reader_free(struct checkpoint_part_reader *reader) {
    if (reader) {
        free(reader->reader.block);
        reader_done(&reader->reader);
        free(reader);
    }
}

static int open_file(struct reader *reader) {
    const struct snapshot_io *io = reader->folder->io;
    const struct checkpoint_name name = name_of(reader);
    return reader->file >= 0 ? 0
                             : checkpoint_open_file(reader->folder, &name, reader->map->parts[reader->part].bytes,
                                                    io->now_ms(io->ctx), &reader->file);
}

int checkpoint_part_reader_read(struct checkpoint_part_reader *reader, const struct checkpoint_range *wanted) {
    int code = open_file(&reader->reader);
    return code ? code : read_wanted(&reader->reader, wanted);
}

void checkpoint_part_reader_rest(struct checkpoint_part_reader *reader) {
    if (reader->reader.file >= 0) {
        reader->reader.folder->io->close(reader->reader.folder->io->ctx, reader->reader.file);
        reader->reader.file = -1;
    }
}

static int verify_blocks(const struct reader *reader) {
    int code = 0;
    for (size_t i = 0; i < reader->ranges.count && code == 0; i++) {
        const struct checkpoint_range *range = &reader->ranges.items[i];
        uint64_t bytes = range->count * reader->map->tensors[range->tensor].element_bytes;
        const struct overlap nothing = {.range = i, .begin = bytes, .end = bytes};
        for (uint64_t block = 0; block * reader->map->block_bytes < bytes && code == 0; block++) {
            code = read_block(reader, &nothing, block, bytes);
        }
    }
    return code;
}

int checkpoint_part_reader_verify(struct checkpoint_part_reader *reader) {
    struct reader *part = &reader->reader;
    int code = open_file(part);
    code = code ? code : read_tables(part);
    code = code ? code : verify_blocks(part);
    free(part->header);
    free(part->checksums);
    part->header = NULL;
    part->checksums = NULL;
    return code;
}
