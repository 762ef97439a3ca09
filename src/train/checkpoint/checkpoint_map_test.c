/* Maps: golden text, damage, and a writer that got it wrong but summed it right. Layouts of parts, and tilings. */
#include "train/checkpoint/checkpoint_map.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "base/str.h"
#include "train/state/checksum.h"
#include "train/state/safetensors.h"

/* Three parts of one even tensor and one that is cut: the second part has nothing of it. */
static struct checkpoint_tensor tensors[] = {
    {.name = "even",
     .type = MUSTER_FLOAT64,
     .dim_count = 1,
     .shape = {4},
     .count = 4,
     .element_bytes = 8,
     .is_even = true},
    {.name = "cut", .type = MUSTER_FLOAT32, .dim_count = 2, .shape = {2, 5}, .count = 10, .element_bytes = 4},
};
static struct checkpoint_range ranges[] = {{.tensor = 1, .first = 0, .count = 3},
                                           {.tensor = 1, .first = 7, .count = 3},
                                           {.tensor = 1, .first = 3, .count = 4}};
static struct checkpoint_part parts[] = {
    {.bytes = 400, .data_at = 304, .digest = 1, .listed = {ranges, 2}},
    {.bytes = 200, .data_at = 184, .digest = 2},
    {.bytes = 300, .data_at = 260, .digest = 3, .listed = {ranges + 2, 1}},
};
static const struct checkpoint_map example = {.step = 4,
                                              .token = 0xa01a3a1f5c4e54b5,
                                              .block_bytes = 16,
                                              .tensors = tensors,
                                              .tensor_count = 2,
                                              .parts = parts,
                                              .part_count = 3,
                                              .ranges = ranges,
                                              .range_count = 3};

static const char golden[] =
    "{\"format\":\"muster-checkpoint-map\",\"version\":1,\"step\":4,\"token\":\"a01a3a1f5c4e54b5\",\"block\":16,"
    "\"values\":{\"epoch\":3},\"tensors\":[[\"even\",\"float64\",[4]],"
    "[\"cut\",\"float32\",[2,5],[[0,3],[2,4],[0,3]]]],\"parts\":[[400,304,\"0000000000000001\"],"
    "[200,184,\"0000000000000002\"],[300,260,\"0000000000000003\"]],\n"
    "  \"checksum\": \"edd879e10fa0381b\"\n}\n";

static void golden_text(void **state) {
    (void)state;
    int64_t epoch = 3, again = 0;
    struct muster_value value = muster_value_integer("epoch", &epoch);
    struct checkpoint_map map;
    struct buf text;
    buf_init(&text, CHECKPOINT_MAP_BYTES_MAX);
    assert_int_equal(checkpoint_map_encode(&example, &value, 1, &text), 0);
    assert_int_equal(text.len, strlen(golden));
    assert_memory_equal(buf_bytes(&text), golden, text.len);
    assert_int_equal(checkpoint_map_decode(buf_bytes(&text), text.len, &map), 0);
    assert_true(map.step == 4 && map.token == example.token && map.block_bytes == 16 && map.tensor_count == 2 &&
                map.part_count == 3 && map.range_count == 3);
    assert_true(map.tensors[1].count == 10 && map.tensors[1].element_bytes == 4 && !map.tensors[1].is_even);
    assert_string_equal(map.tensors[0].name, "even");
    assert_true(map.parts[0].listed.count == 2 && map.parts[1].listed.count == 0 && map.parts[2].digest == 3);
    assert_true(map.parts[2].listed.items[0].first == 3 && map.parts[2].listed.items[0].count == 4);
    value = muster_value_integer("epoch", &again);
    assert_int_equal(checkpoint_map_values(&map, &value, 1, true), 0);
    assert_int_equal(again, 3);
    value.name = "step";
    assert_int_equal(checkpoint_map_values(&map, &value, 1, false), MUSTER_EINVAL);
    checkpoint_map_done(&map);
    buf_done(&text);
}

static void every_flipped_bit_and_every_cut_is_seen(void **state) {
    (void)state;
    uint8_t bytes[sizeof golden];
    struct checkpoint_map map;
    memcpy(bytes, golden, sizeof golden);
    for (size_t bit = 0; bit < strlen(golden) * 8; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_int_equal(checkpoint_map_decode(bytes, strlen(golden), &map), MUSTER_ECORRUPT);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    for (size_t length = 0; length < strlen(golden); length++) {
        assert_int_equal(checkpoint_map_decode(bytes, length, &map), MUSTER_ECORRUPT);
    }
}

static int decode_with(const char *from, const char *to) {
    char body[2048], text[2200];
    struct checkpoint_map map;
    const char *at = strstr(golden, from);
    size_t length = strlen(golden) - strlen(",\n  \"checksum\": \"0123456789abcdef\"\n}\n");
    assert_non_null(at);
    assert_true(str_format(body, sizeof body, "%.*s%s%.*s", (int)(at - golden), golden, to,
                           (int)(length - (size_t)(at - golden) - strlen(from)), at + strlen(from)));
    assert_true(str_format(text, sizeof text, "%s,\n  \"checksum\": \"%016" PRIx64 "\"\n}\n", body,
                           checksum_of(body, strlen(body))));
    status_clear();
    int code = checkpoint_map_decode((const uint8_t *)text, strlen(text), &map);
    if (code == 0) {
        checkpoint_map_done(&map);
    }
    return code;
}

static void what_does_not_fit_together_is_refused(void **state) {
    (void)state;
    static const char *const changes[][2] = {
        {"\"version\":1", "\"version\":2"},
        {"muster-checkpoint-map", "muster-checkpoint"},
        {"\"step\":4", "\"step\":-1"},
        {"\"block\":16", "\"block\":0"},
        {"\"block\":16", "\"block\":67108865"},
        {"\"values\":{\"epoch\":3}", "\"values\":[]"},
        /* tensors */
        {"\"float32\"", "\"float33\""},
        {"\"float32\"", "7"},
        {"\"float64\"", "\"\""}, /* there is none before it */
        {"[2,5]", "[2,-5]"},
        {"[2,5]", "[2,5.0]"},
        {"[2,5]", "[1,1,1,1,1,1,1,2,5]"},
        {"[2,5]", "[2,1152921504606846976]"},
        {"[2,5]", "10"},
        {"\"cut\"", "\"\""},
        {"\"cut\"", "7"},
        {"[\"cut\",", "["},
        {"[4]]", "[4],0]"},
        {"[0,3]]]]", "[0,3]],0]]"},
        {"\"float64\"", "\"int16\""}, /* larger elements come first */
        /* parts */
        {"\"parts\":[", "\"part\":["},
        {"[400,304,", "[400,401,"},
        {"[400,304,", "[400,7,"},
        {"[400,304,", "[-400,304,"},
        {"[400,304,", "[304,"},
        {"[400,304,", "[400,304,0,"},
        {"\"0000000000000002\"", "2"},
        /* ranges: of no part, empty, beyond the tensor, missing, of parts that are not there, too many */
        {"[2,4]", "[3,4]"},
        {"[2,4]", "[-1,4]"},
        {"[2,4]", "[2,0]"},
        {"[2,4]", "[2,5]"},
        {"[2,4]", "[2,3]"},
        {"[2,4]", "[2]"},
        {"[2,4]", "[2,4,1,1]"},
        {"[2,4]", "[2,4.0]"},
        {"[2,4]", "[2,2,2]"},
        {"[2,4]", "[2,4,0]"},
        {"[2,4]", "[0,9223372036854775807,3]"},
        {"[2,4]", "[0,4,9223372036854775807]"},
        {"[2,4]", "4"},
        {",[2,4]", ""},
        {"[[0,3],[2,4],[0,3]]", "[]"},
        {"[4]]", "[4],[]]"}, /* not even, and in no part */
    };
    assert_int_equal(decode_with("\"step\":4", "\"step\":5"), 0);
    assert_int_equal(decode_with("[2,4]", "[1,2,2]"), 0);
    assert_int_equal(decode_with("\"float32\"", "\"\""), 0);
    assert_int_equal(decode_with("[2,4]", "[2,4,1]"), 0);
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        if (decode_with(changes[i][0], changes[i][1]) != MUSTER_EUNSUPPORTED || muster_detail()[0] == '\0') {
            fail_msg("%s: %s", changes[i][1], muster_detail());
        }
    }
}

/* Of 1,024 ranks, each with a range of each of 100 tensors, of equal lengths but for the last: as small as if a rule
 * told the ranges. */
static void a_map_of_many_ranks_is_small(void **state) {
    (void)state;
    enum { MANY_PARTS = 1024, MANY_TENSORS = 100, ROW = 1000003 };
    static char names[MANY_TENSORS][64];
    struct checkpoint_map map = {.step = 1, .block_bytes = CHECKPOINT_BLOCK_BYTES, .tensor_count = MANY_TENSORS}, again;
    struct buf text;
    map.tensors = calloc(MANY_TENSORS, sizeof *map.tensors);
    assert_non_null(map.tensors);
    assert_int_equal(checkpoint_map_make_room(&map, MANY_PARTS, (size_t)MANY_PARTS * MANY_TENSORS), 0);
    for (uint32_t t = 0; t < MANY_TENSORS; t++) {
        assert_true(str_format(names[t], sizeof names[t], "optimizer.exp_avg.blocks.%" PRIu32 ".attention.weight", t));
        map.tensors[t] = (struct checkpoint_tensor){.name = names[t],
                                                    .type = MUSTER_FLOAT32,
                                                    .dim_count = 1,
                                                    .shape = {(uint64_t)MANY_PARTS * ROW - 1},
                                                    .count = (uint64_t)MANY_PARTS * ROW - 1,
                                                    .element_bytes = 4};
    }
    for (uint32_t p = 0; p < MANY_PARTS; p++) {
        struct checkpoint_range *listed = &map.ranges[(size_t)p * MANY_TENSORS];
        uint64_t less = p == MANY_PARTS - 1;
        map.parts[p] = (struct checkpoint_part){
            .bytes = 1 << 30, .data_at = 1 << 14, .digest = UINT64_MAX, .listed = {listed, MANY_TENSORS}};
        for (uint32_t t = 0; t < MANY_TENSORS; t++) {
            listed[t] = (struct checkpoint_range){.tensor = t, .first = (uint64_t)p * ROW, .count = ROW - less};
        }
    }
    assert_int_equal(checkpoint_map_check(&map), 0);
    buf_init(&text, CHECKPOINT_MAP_BYTES_MAX);
    assert_int_equal(checkpoint_map_encode(&map, NULL, 0, &text), 0);
    assert_true(text.len < (size_t)MANY_TENSORS * 110 + (size_t)MANY_PARTS * 40 + 256);
    assert_int_equal(checkpoint_map_decode(buf_bytes(&text), text.len, &again), 0);
    assert_int_equal(again.range_count, map.range_count);
    for (uint32_t p = 0; p < MANY_PARTS; p++) {
        assert_int_equal(again.parts[p].listed.count, MANY_TENSORS);
        assert_memory_equal(again.parts[p].listed.items, map.parts[p].listed.items, MANY_TENSORS * sizeof *map.ranges);
    }
    checkpoint_map_done(&again);
    checkpoint_map_done(&map);
    buf_done(&text);
}

/* ---- layouts ---- */

static void a_part_has_its_shares_and_its_ranges_in_order(void **state) {
    (void)state;
    struct checkpoint_ranges all;
    struct checkpoint_layout layout;
    assert_int_equal(checkpoint_ranges_of_part(tensors, 2, 0, 3, &parts[0].listed, &all), 0);
    assert_int_equal(all.count, 3);
    assert_true(all.items[0].tensor == 0 && all.items[0].first == 0 && all.items[0].count == 2);
    assert_true(all.items[1].first == 0 && all.items[2].first == 7);
    assert_int_equal(checkpoint_layout_create(tensors, &all, 16, &layout), 0);
    /* 16 bytes of the share: a block; then twice 12 bytes, a block each. */
    assert_true(layout.places[1].offset == 16 && layout.places[1].block == 1);
    assert_true(layout.places[2].offset == 28 && layout.places[2].block == 2);
    assert_true(layout.table_at == 40 && layout.block_count == 3);
    assert_int_equal(checkpoint_layout_data_bytes(&layout), 64);
    checkpoint_layout_done(&layout);
    checkpoint_ranges_done(&all);
}

static void the_header_is_that_of_a_safetensors_file(void **state) {
    (void)state;
    struct checkpoint_ranges all;
    struct checkpoint_layout layout;
    struct safetensors table;
    struct buf header;
    size_t length = 0;
    buf_init(&header, 65536);
    assert_int_equal(checkpoint_ranges_of_part(tensors, 2, 2, 3, &parts[2].listed, &all), 0);
    assert_int_equal(checkpoint_layout_create(tensors, &all, 16, &layout), 0);
    assert_int_equal(checkpoint_layout_header(&layout, tensors, &all, &header), 0);
    uint64_t data_bytes = checkpoint_layout_data_bytes(&layout);
    assert_int_equal(safetensors_header_length(buf_bytes(&header), header.len + data_bytes, &length), 0);
    assert_int_equal(length + SAFETENSORS_PREFIX_BYTES, header.len);
    assert_int_equal(safetensors_decode(buf_bytes(&header) + SAFETENSORS_PREFIX_BYTES, length, data_bytes, &table), 0);
    assert_int_equal(table.count, 3);
    assert_non_null(safetensors_find(&table, "even[3:4]"));
    assert_int_equal(safetensors_find(&table, "cut[3:7]")->shape[0], 4);
    assert_int_equal(safetensors_find(&table, "xxh3")->shape[0], layout.block_count);
    safetensors_done(&table);
    checkpoint_layout_done(&layout);
    checkpoint_ranges_done(&all);
    buf_done(&header);
}

static void gaps_and_overlaps_are_named(void **state) {
    (void)state;
    struct checkpoint_owned twice[] = {{{.tensor = 1, .first = 5, .count = 5}, 7},
                                       {{.tensor = 1, .first = 0, .count = 6}, 2}};
    assert_int_equal(checkpoint_check_tiling(tensors, 2, twice, 2), MUSTER_EINVAL);
    assert_string_equal(muster_detail(), "element 5 of tensor cut is of rank 2 and of rank 7");
    struct checkpoint_owned gap[] = {{{.tensor = 1, .first = 6, .count = 4}, 7},
                                     {{.tensor = 1, .first = 0, .count = 5}, 2}};
    assert_int_equal(checkpoint_check_tiling(tensors, 2, gap, 2), MUSTER_EINVAL);
    assert_string_equal(muster_detail(), "element 5 of tensor cut is of no rank");
    assert_int_equal(checkpoint_check_tiling(tensors, 2, gap, 0), MUSTER_EINVAL);
    assert_string_equal(muster_detail(), "element 0 of tensor cut is of no rank");
    assert_int_equal(checkpoint_check_tiling(tensors, 1, NULL, 0), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_text),
        cmocka_unit_test(every_flipped_bit_and_every_cut_is_seen),
        cmocka_unit_test(what_does_not_fit_together_is_refused),
        cmocka_unit_test(a_map_of_many_ranks_is_small),
        cmocka_unit_test(a_part_has_its_shares_and_its_ranges_in_order),
        cmocka_unit_test(the_header_is_that_of_a_safetensors_file),
        cmocka_unit_test(gaps_and_overlaps_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
