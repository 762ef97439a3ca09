/* Opening one tensor of a checkpoint that many ranks have saved: what is read of it, and how long that takes.
 *
 *   checkpoint_many_test                   500 tensors of 64 ranks
 *   checkpoint_many_test TENSORS RANKS     so many; 10000 1024 takes a minute, and a gigabyte in TMPDIR
 */
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/folder_test_support.h"
#include "base/str.h"
#include "train/checkpoint/checkpoint_impl.h"
#include "train/checkpoint/checkpoint_view.h"

enum { PATH_BYTES = 256, NAME_BYTES = 64, UNIT_TENSORS = 100 };

static uint32_t tensor_count = 500, rank_count = 64;
static char top[PATH_BYTES];

/* Every tensor has an element of each rank: its number. */
struct state {
    struct muster_tensor *tensors;
    char (*names)[NAME_BYTES];
    float *values;
    struct state_chunk *chunks; /* of the rank that saves */
    bool is_flat;
    struct state_description description;
};

static void name_tensor(char out[NAME_BYTES], uint32_t number) {
    (void)str_format(out, NAME_BYTES, "optimizer.exp_avg_sq.layers.%" PRIu32 ".attention.%" PRIu32 ".weight",
                     number / 12, number % 12);
}

/* is_flat: a hundred tensors side by side are split evenly, as an fsdp does it. Else every rank has all. */
static void state_init(struct state *state, bool is_flat) {
    *state = (struct state){.is_flat = is_flat,
                            .chunks = calloc(2 * (size_t)tensor_count + 1, sizeof *state->chunks),
                            .tensors = calloc(tensor_count, sizeof *state->tensors),
                            .names = calloc(tensor_count, sizeof *state->names),
                            .values = calloc(rank_count, sizeof *state->values)};
    assert_true(state->tensors && state->names && state->values && state->chunks);
    for (uint32_t i = 0; i < rank_count; i++) {
        state->values[i] = (float)i;
    }
    for (uint32_t i = 0; i < tensor_count; i++) {
        name_tensor(state->names[i], i);
        state->tensors[i] = (struct muster_tensor){.name = state->names[i],
                                                   .type = MUSTER_FLOAT32,
                                                   .dim_count = 1,
                                                   .shape = {rank_count},
                                                   .data = is_flat ? NULL : state->values};
    }
    state->description =
        (struct state_description){.tensors = state->tensors, .tensor_count = tensor_count, .chunks = state->chunks};
}

static void state_done(struct state *state) {
    free(state->tensors);
    free(state->names);
    free(state->values);
    free(state->chunks);
}

/* The chunks of a rank. */
static void cut(struct state *state, uint32_t rank) {
    size_t count = 0;
    for (uint32_t unit = 0; state->is_flat && unit < tensor_count; unit += UNIT_TENSORS) {
        uint64_t tensors = tensor_count - unit < UNIT_TENSORS ? tensor_count - unit : UNIT_TENSORS;
        uint64_t at = state_even_first(tensors * rank_count, rank, rank_count);
        uint64_t end = state_even_first(tensors * rank_count, rank + 1, rank_count);
        for (uint64_t length = 0; at < end; at += length) {
            uint64_t first = at % rank_count, left = rank_count - first;
            length = left < end - at ? left : end - at;
            state->chunks[count++] =
                (struct state_chunk){unit + (size_t)(at / rank_count), first, length, state->values + first};
        }
    }
    state->description.chunk_count = count;
}

/* What rank 0 hears of a part. */
static void tell(struct checkpoint_map *map, const struct checkpoint_save *save, const struct checkpoint_part *part) {
    struct checkpoint_part *told = &map->parts[save->rank];
    *told = *part;
    told->listed = (struct checkpoint_ranges){.items = map->ranges + map->range_count};
    for (size_t i = 0; i < save->ranges.count; i++) {
        if (!map->tensors[save->ranges.items[i].tensor].is_even) {
            struct checkpoint_range *range = &told->listed.items[told->listed.count++];
            *range = save->ranges.items[i];
            range->data = NULL;
        }
    }
    map->range_count += told->listed.count;
}

/* All ranks save, one after another. */
static void save(struct state *state) {
    struct checkpoint_save first, other;
    cut(state, 0);
    assert_int_equal(checkpoint_save_begin(&first, &snapshot_io_system, top, 7, &state->description, 0, rank_count), 0);
    assert_int_equal(
        checkpoint_map_make_room(&first.map, rank_count,
                                 2 * (size_t)(tensor_count + rank_count * (tensor_count / UNIT_TENSORS + 1))),
        0);
    first.map.range_count = 0;
    assert_int_equal(checkpoint_save_open(&first), 0);
    for (uint32_t rank = 0; rank < rank_count; rank++) {
        struct checkpoint_part part = {.bytes = 0};
        cut(state, rank);
        assert_int_equal(
            checkpoint_save_begin(&other, &snapshot_io_system, top, 7, &state->description, rank, rank_count), 0);
        other.token = first.token;
        assert_int_equal(checkpoint_save_part(&other, &part), 0);
        tell(&first.map, &other, &part);
        checkpoint_save_end(&other, true);
    }
    assert_int_equal(checkpoint_save_commit(&first, NULL, 0), 0);
    checkpoint_save_end(&first, true);
}

/* Bytes that this process has read so far, of files of any kind. */
static uint64_t bytes_read(void) {
    char text[64] = "";
    uint64_t count = 0;
    FILE *file = fopen("/proc/self/io", "re");
    bool is_there = file && fgets(text, sizeof text, file) && sscanf(text, "rchar: %" SCNu64, &count) == 1;
    if (file) {
        (void)fclose(file);
    }
    assert_true(is_there);
    return count;
}

static double since_ms(int64_t begin_ns) {
    return (double)(clock_monotonic_ns() - begin_ns) / (double)CLOCK_NS_PER_MS;
}

static void open_one(const struct state *state) {
    struct checkpoint_view *view = NULL;
    struct muster_checkpoint_found found;
    float *values = calloc(rank_count, sizeof *values);
    char name[NAME_BYTES];
    uint32_t wanted = tensor_count / 2;
    assert_non_null(values);
    name_tensor(name, wanted);
    int64_t begin_ns = clock_monotonic_ns();
    uint64_t before = bytes_read();
    assert_int_equal(muster_checkpoint_find(top, INT64_MAX, &found), 0);
    uint64_t finding = bytes_read() - before;
    double found_ms = since_ms(begin_ns);
    before = bytes_read();
    assert_int_equal(checkpoint_view_open(top, found.step, &view), 0);
    const struct checkpoint_map *map = checkpoint_view_map(view);
    while (strcmp(map->tensors[wanted].name, name) != 0) {
        wanted = (wanted + 1) % tensor_count;
    }
    assert_int_equal(checkpoint_view_read(view, wanted, 0, rank_count, values), 0);
    uint64_t opening = bytes_read() - before;
    double opened_ms = since_ms(begin_ns);
    assert_memory_equal(values, state->values, rank_count * sizeof *values);
    begin_ns = clock_monotonic_ns();
    for (uint32_t part = 0; part < rank_count; part++) {
        assert_int_equal(checkpoint_view_verify(view, part), 0);
    }
    (void)printf("%" PRIu32 " tensors of %" PRIu32 " ranks%s: the newest was found by reading %" PRIu64
                 " bytes in %.1f ms; "
                 "one tensor was opened by reading %" PRIu64 " bytes, %" PRIu64 " of them the map, in %.1f ms; "
                 "verifying all took %.0f ms\n",
                 tensor_count, rank_count, state->is_flat ? ", cut as by an fsdp" : "", finding, found_ms, opening,
                 checkpoint_view_record(view)->map_bytes, opened_ms, since_ms(begin_ns));
    assert_true(finding <= 64 << 10);
    assert_true(opening <= 1 << 20);
    checkpoint_view_close(view);
    free(values);
}

static void open_one_of_many(bool is_flat) {
    struct state many;
    const char *base = getenv("TMPDIR");
    assert_true(str_format(top, sizeof top, "%s/muster-many-XXXXXX", base ? base : "/tmp"));
    assert_non_null(mkdtemp(top));
    state_init(&many, is_flat);
    save(&many);
    open_one(&many);
    state_done(&many);
    assert_int_equal(folder_remove(top), rank_count + 2);
}

static void one_tensor_of_many_is_a_small_thing(void **state) {
    (void)state;
    open_one_of_many(false);
}

static void also_when_they_are_cut_anywhere(void **state) {
    (void)state;
    open_one_of_many(true);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_tensor_of_many_is_a_small_thing),
        cmocka_unit_test(also_when_they_are_cut_anywhere),
    };
    if (argc > 2) {
        tensor_count = (uint32_t)strtoul(argv[1], NULL, 10);
        rank_count = (uint32_t)strtoul(argv[2], NULL, 10);
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
