/* Fuzzes reading a checkpoint from outside of a job (checkpoint_view.h). The bytes of an input choose tensors, how they
 * are cut among how many parts, and what is in them; of that a checkpoint is made. All of it is read, then pieces of
 * it, and is what was written. If the first byte is odd, one bit of a part is wrong: verifying finds it, and nothing
 * wrong is read. (Records and maps that fit nothing: checkpoint_fuzz.c.) */
#include <assert.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <muster/status.h>

#include "train/checkpoint/checkpoint_name.h"
#include "train/checkpoint/checkpoint_view.h"
#include "train/state/checksum.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum {
    PARTS_MAX = 8,
    TENSORS_MAX = 8,
    EXTENT_MAX = 5, /* of up to three dimensions */
    RANGES_MAX = TENSORS_MAX * EXTENT_MAX * EXTENT_MAX * EXTENT_MAX,
    BLOCK_BYTES_MAX = 256,
    HEADER_BYTES_MAX = 64,
    STEP = 3,
    TOKEN = 7,
};

static char folder[] = "/tmp/checkpoint_read_fuzz-XXXXXX";

/* The input, without an end: every round differs from the one before. */
struct bytes {
    const uint8_t *data;
    size_t count, at;
};

struct part {
    uint8_t *file;
    struct checkpoint_ranges ranges;
    struct checkpoint_layout layout;
};

static struct {
    struct checkpoint_map map;
    char names[TENSORS_MAX][16];
    struct checkpoint_owned owned[RANGES_MAX]; /* of tensors that are not even */
    size_t owned_count;
    struct part parts[PARTS_MAX];
    uint8_t *tensors[TENSORS_MAX]; /* what they are */
    uint32_t damaged;              /* part, or PARTS_MAX */
} made;

static uint64_t bytes_of(uint32_t tensor) {
    return made.map.tensors[tensor].count * made.map.tensors[tensor].element_bytes;
}

/* ---- making ---- */

static uint32_t below(struct bytes *bytes, uint32_t limit) {
    size_t at = bytes->at++;
    assert(bytes->count > 0 && limit > 0);
    return (uint8_t)(bytes->data[at % bytes->count] + at / bytes->count) % limit;
}

/* Ranges of any length, each of any part. */
static void cut(struct bytes *bytes, uint32_t number) {
    uint64_t count = made.map.tensors[number].count, length = 0;
    for (uint64_t first = 0; first < count; first += length) {
        uint64_t most = 1 + below(bytes, 64);
        length = most < count - first ? most : count - first;
        made.owned[made.owned_count++] = (struct checkpoint_owned){
            .range = {.tensor = number, .first = first, .count = length}, .part = below(bytes, made.map.part_count)};
    }
}

/* Each no longer in its elements than the one before. */
static void choose_tensor(struct bytes *bytes, uint32_t number) {
    static const enum muster_type types[] = {MUSTER_FLOAT64, MUSTER_FLOAT32, MUSTER_BFLOAT16, MUSTER_INT8};
    struct checkpoint_tensor *tensor = &made.map.tensors[number];
    uint32_t type = number * 4 / TENSORS_MAX;
    (void)snprintf(made.names[number], sizeof made.names[number], "t%" PRIu32, number);
    *tensor = (struct checkpoint_tensor){.name = made.names[number],
                                         .type = types[type],
                                         .dim_count = below(bytes, 4),
                                         .count = 1,
                                         .element_bytes = muster_type_bytes(types[type])};
    for (uint32_t i = 0; i < tensor->dim_count; i++) {
        tensor->shape[i] = below(bytes, EXTENT_MAX + 1);
        tensor->count *= tensor->shape[i];
    }
    tensor->is_even = tensor->count == 0 || below(bytes, 2) == 0;
    if (!tensor->is_even) {
        cut(bytes, number);
    }
}

/* Each part's ranges side by side, in the order of tensors. */
static void list_ranges(void) {
    struct checkpoint_map *map = &made.map;
    size_t count = 0;
    for (uint32_t part = 0; part < map->part_count; part++) {
        map->parts[part].listed.items = &map->ranges[count];
        for (size_t i = 0; i < made.owned_count; i++) {
            if (made.owned[i].part == part) {
                map->ranges[count++] = made.owned[i].range;
                map->parts[part].listed.count++;
            }
        }
    }
}

static void choose_map(struct bytes *bytes) {
    struct checkpoint_map *map = &made.map;
    uint32_t parts = 1 + below(bytes, PARTS_MAX);
    map->step = STEP;
    map->token = TOKEN;
    map->block_bytes = 1 + below(bytes, BLOCK_BYTES_MAX);
    map->part_count = parts;
    map->tensor_count = below(bytes, TENSORS_MAX + 1);
    map->tensors = calloc(TENSORS_MAX, sizeof *map->tensors);
    assert(map->tensors);
    for (uint32_t i = 0; i < map->tensor_count; i++) {
        choose_tensor(bytes, i);
    }
    assert(checkpoint_map_make_room(map, parts, made.owned_count) == 0);
    list_ranges();
    assert(checkpoint_map_check(map) == 0);
}

static void make_tensors(struct bytes *bytes) {
    for (uint32_t i = 0; i < made.map.tensor_count; i++) {
        made.tensors[i] = malloc((size_t)bytes_of(i) + 1);
        assert(made.tensors[i]);
        for (uint64_t at = 0; at < bytes_of(i); at++) {
            made.tensors[i][at] = (uint8_t)below(bytes, 256);
        }
    }
}

/* The ranges, and the checksums of their blocks. */
static void fill_part(struct part *part, const struct checkpoint_part *of) {
    uint8_t *data = part->file + of->data_at;
    for (size_t i = 0; i < part->ranges.count; i++) {
        const struct checkpoint_range *range = &part->ranges.items[i];
        uint64_t element = made.map.tensors[range->tensor].element_bytes, count = range->count * element;
        uint8_t *to = data + part->layout.places[i].offset;
        uint8_t *table = data + part->layout.table_at + part->layout.places[i].block * sizeof(uint64_t);
        memcpy(to, made.tensors[range->tensor] + range->first * element, (size_t)count);
        for (uint64_t at = 0, block = 0; at < count; at += block, table += sizeof(uint64_t)) {
            block = count - at < made.map.block_bytes ? count - at : made.map.block_bytes;
            uint64_t checksum = checksum_of(to + at, (size_t)block);
            memcpy(table, &checksum, sizeof checksum);
        }
    }
}

/* The part, and what the map says of it. */
static void make_part(struct bytes *bytes, uint32_t number) {
    struct part *part = &made.parts[number];
    struct checkpoint_part *of = &made.map.parts[number];
    struct checksum digest;
    assert(checkpoint_ranges_of_part(made.map.tensors, made.map.tensor_count, number, made.map.part_count, &of->listed,
                                     &part->ranges) == 0);
    assert(checkpoint_layout_create(made.map.tensors, &part->ranges, made.map.block_bytes, &part->layout) == 0);
    of->data_at = sizeof(uint64_t) + below(bytes, HEADER_BYTES_MAX); /* nobody reads what the header says */
    of->bytes = of->data_at + checkpoint_layout_data_bytes(&part->layout);
    part->file = calloc(1, (size_t)of->bytes);
    assert(part->file);
    fill_part(part, of);
    checksum_init(&digest);
    checksum_add(&digest, part->file, (size_t)of->data_at);
    checksum_add(&digest, part->file + of->data_at + part->layout.table_at,
                 (size_t)part->layout.block_count * sizeof(uint64_t));
    of->digest = checksum_value(&digest);
}

static void done(void) {
    for (uint32_t i = 0; i < PARTS_MAX; i++) {
        free(made.parts[i].file);
        checkpoint_ranges_done(&made.parts[i].ranges);
        checkpoint_layout_done(&made.parts[i].layout);
    }
    for (uint32_t i = 0; i < TENSORS_MAX; i++) {
        free(made.tensors[i]);
    }
    checkpoint_map_done(&made.map);
    memset(&made, 0, sizeof made);
}

/* ---- files ---- */

static void name_file(char out[CHECKPOINT_NAME_MAX], enum checkpoint_kind kind, uint32_t part) {
    const struct checkpoint_name name = {.kind = kind, .step = STEP, .token = TOKEN, .part = part};
    checkpoint_name_write(out, &name);
}

static void remove_folder(void) {
    char text[CHECKPOINT_NAME_MAX];
    for (uint32_t part = 0; part < PARTS_MAX; part++) {
        name_file(text, CHECKPOINT_PART, part);
        (void)unlink(text);
    }
    name_file(text, CHECKPOINT_MAP, 0);
    (void)unlink(text);
    name_file(text, CHECKPOINT_RECORD, 0);
    (void)unlink(text);
    (void)rmdir(folder);
}

static void enter_folder(void) {
    static bool is_there;
    if (!is_there) {
        is_there = true;
        assert(mkdtemp(folder) && chdir(folder) == 0);
        (void)atexit(remove_folder);
    }
}

/* Over what was there, without a truncation to nothing: some file systems bring such files to the disk at once. */
static void put(enum checkpoint_kind kind, uint32_t part, const void *bytes, uint64_t count) {
    char text[CHECKPOINT_NAME_MAX];
    name_file(text, kind, part);
    int file = open(text, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    assert(file >= 0 && write(file, bytes, (size_t)count) == (ssize_t)count && ftruncate(file, (off_t)count) == 0);
    (void)close(file);
}

static void put_all(void) {
    struct checkpoint_record record = {.step = STEP, .token = TOKEN, .part_count = made.map.part_count};
    struct buf text;
    buf_init(&text, CHECKPOINT_MAP_BYTES_MAX);
    assert(checkpoint_map_encode(&made.map, NULL, 0, &text) == 0);
    assert(checkpoint_map_id(buf_bytes(&text), text.len, &record.map_id) == 0);
    record.map_bytes = text.len;
    put(CHECKPOINT_MAP, 0, buf_bytes(&text), text.len);
    for (uint32_t part = 0; part < made.map.part_count; part++) {
        put(CHECKPOINT_PART, part, made.parts[part].file, made.map.parts[part].bytes);
        record.bytes += made.map.parts[part].bytes;
    }
    buf_done(&text);
    buf_init(&text, CHECKPOINT_RECORD_BYTES_MAX);
    assert(checkpoint_record_encode(&record, &text) == 0);
    put(CHECKPOINT_RECORD, 0, buf_bytes(&text), text.len);
    buf_done(&text);
}

/* One bit of a part. */
static void damage(struct bytes *bytes) {
    uint32_t part = below(bytes, made.map.part_count);
    uint64_t at = (uint64_t)below(bytes, 256) << 8 | below(bytes, 256);
    made.damaged = PARTS_MAX;
    if (bytes->data[0] % 2 == 1) {
        made.damaged = part;
        made.parts[part].file[at % made.map.parts[part].bytes] ^= (uint8_t)(1u << below(bytes, 8));
    }
}

/* ---- reading ---- */

static void read_range(struct checkpoint_view *view, uint32_t tensor, uint64_t first, uint64_t count) {
    uint64_t element = made.map.tensors[tensor].element_bytes;
    uint8_t *have = malloc((size_t)(count * element));
    assert(have);
    int code = checkpoint_view_read(view, tensor, first, count, have);
    assert(code == 0 ? memcmp(have, made.tensors[tensor] + first * element, (size_t)(count * element)) == 0
                     : code == MUSTER_ECORRUPT && made.damaged < PARTS_MAX && muster_detail()[0] != '\0');
    free(have);
}

static void read_all(struct checkpoint_view *view, struct bytes *bytes) {
    for (uint32_t i = 0; i < made.map.tensor_count; i++) {
        uint64_t count = made.map.tensors[i].count;
        if (count > 0) {
            uint64_t first = below(bytes, 256) % count;
            read_range(view, i, 0, count);
            read_range(view, i, first, 1 + below(bytes, 256) % (count - first));
        }
    }
    for (uint32_t part = 0; part < made.map.part_count; part++) {
        assert(checkpoint_view_verify(view, part) == (part == made.damaged ? MUSTER_ECORRUPT : 0));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct bytes bytes = {.data = data, .count = size, .at = 1};
    struct checkpoint_view *view = NULL;
    if (size == 0) {
        return 0;
    }
    enter_folder();
    choose_map(&bytes);
    make_tensors(&bytes);
    for (uint32_t part = 0; part < made.map.part_count; part++) {
        make_part(&bytes, part);
    }
    damage(&bytes);
    put_all();
    assert(checkpoint_view_open(".", STEP, &view) == 0);
    read_all(view, &bytes);
    checkpoint_view_close(view);
    done();
    return 0;
}
