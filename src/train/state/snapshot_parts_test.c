/* A state that comes in pieces gives the files of the same state in memory, and is read by ranges; a source that fails
 * ends the save with its own sentence. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/folder_test_support.h"
#include "base/status.h"
#include "base/str.h"
#include "train/state/snapshot_parts.h"

enum { PATH_BYTES = 256, FLOATS = 100000, TENSORS = 4 };

static char folder[PATH_BYTES];
static float first[FLOATS], second[7];
static double exact[3];

static int set_up(void **state) {
    (void)state;
    const char *base = getenv("TMPDIR");
    assert_true(str_format(folder, sizeof folder, "%s/muster-parts-XXXXXX", base ? base : "/tmp"));
    assert_non_null(mkdtemp(folder));
    for (int i = 0; i < FLOATS; i++) {
        first[i] = (float)i;
        second[i % 7] = (float)-i;
    }
    exact[2] = 0.1;
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    return folder_remove(folder) >= 0 ? 0 : -1;
}

/* ---- a state and its pieces ---- */

static const struct muster_tensor whole[TENSORS] = {
    {.name = "first", .type = MUSTER_FLOAT32, .dim_count = 2, .shape = {FLOATS / 4, 4}, .data = first},
    {.name = "second", .type = MUSTER_FLOAT32, .dim_count = 1, .shape = {7}, .data = second},
    {.name = "exact", .type = MUSTER_FLOAT64, .dim_count = 1, .shape = {3}, .data = exact},
    {.name = "none", .type = MUSTER_FLOAT32, .dim_count = 1, .shape = {0}},
};

struct pieces {
    size_t at[TENSORS]; /* bytes of each that have been given */
    size_t last;        /* tensor */
    uint64_t piece_bytes;
    unsigned calls, fails_at; /* 0: never */
};

static int next_piece(void *context, size_t tensor, uint64_t most, const void **out, uint64_t *out_bytes) {
    struct pieces *pieces = context;
    if (++pieces->calls == pieces->fails_at) {
        return status_fail(MUSTER_EGROUP, "piece %u is lost", pieces->calls);
    }
    assert_true(tensor >= pieces->last);
    pieces->last = tensor;
    *out = (const char *)whole[tensor].data + pieces->at[tensor];
    *out_bytes = most < pieces->piece_bytes ? most : pieces->piece_bytes;
    pieces->at[tensor] += *out_bytes;
    return 0;
}

static int save(int64_t step, struct pieces *pieces) {
    struct muster_tensor tensors[TENSORS];
    struct snapshot_source source = {.context = pieces, .next = next_piece};
    struct muster_snapshot_state state = MUSTER_SNAPSHOT_STATE(tensors, TENSORS, NULL, 0);
    memcpy(tensors, whole, sizeof whole);
    if (pieces) {
        tensors[0].data = tensors[1].data = tensors[3].data = snapshot_from_source;
    }
    return snapshot_save_parts(folder, step, &state, NULL, NULL, &source);
}

/* ---- */

static void pieces_give_the_same_files(void **state) {
    (void)state;
    static const uint64_t sizes[] = {1 << 30, 300000, 1000, 28};
    struct muster_snapshot_found found, again;
    assert_int_equal(save(1, NULL), 0);
    assert_int_equal(muster_snapshot_find(folder, INT64_MAX, &found), 0);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct pieces pieces = {.piece_bytes = sizes[i]};
        assert_int_equal(save(1, &pieces), 0);
        assert_int_equal(muster_snapshot_find(folder, INT64_MAX, &again), 0);
        assert_true(again.id == found.id);
        assert_true(pieces.at[0] == sizeof first && pieces.at[1] == sizeof second && pieces.at[3] == 0);
    }
}

static void a_lost_piece_ends_the_save(void **state) {
    (void)state;
    struct muster_snapshot_found found;
    assert_int_equal(save(1, NULL), 0);
    for (unsigned n = 1; n <= 5; n++) { /* 4 pieces of the first, 1 of the second */
        struct pieces pieces = {.piece_bytes = 100000, .fails_at = n};
        char sentence[64];
        (void)snprintf(sentence, sizeof sentence, "save step 2: piece %u is lost", n);
        assert_int_equal(save(2, &pieces), MUSTER_EGROUP);
        assert_string_equal(muster_detail(), sentence);
        assert_int_equal(muster_snapshot_find(folder, INT64_MAX, &found), 0);
        assert_true(found.step == 1 && found.passed_over == 0);
    }
    struct pieces pieces = {.piece_bytes = 100000, .fails_at = 6};
    assert_int_equal(save(2, &pieces), 0);
}

static void ranges_are_read(void **state) {
    (void)state;
    struct muster_snapshot_found found;
    struct snapshot_reader *reader = NULL;
    float values[50] = {0};
    assert_int_equal(save(3, NULL), 0);
    assert_int_equal(muster_snapshot_find(folder, INT64_MAX, &found), 0);
    for (int checked = 0; checked < 2; checked++) {
        assert_int_equal(snapshot_reader_open(folder, 3, found.id, checked, &reader), 0);
        assert_int_equal(snapshot_reader_range(reader, "first", 777 * sizeof *values, values, sizeof values), 0);
        assert_memory_equal(values, first + 777, sizeof values);
        assert_int_equal(snapshot_reader_range(reader, "second", 3 * sizeof *values, values, 4 * sizeof *values), 0);
        assert_memory_equal(values, second + 3, 4 * sizeof *values);
        snapshot_reader_close(reader);
    }
    assert_int_equal(snapshot_reader_open(folder, 3, found.id + 1, true, &reader), MUSTER_ECORRUPT);
    assert_int_equal(snapshot_reader_open(folder, 4, 0, true, &reader), MUSTER_ENOENT);
}

static void a_state_is_matched_before_it_is_read(void **state) {
    (void)state;
    struct snapshot_reader *reader = NULL;
    float values[7] = {0};
    int64_t missing = 0;
    struct muster_tensor tensor = {
        .name = "second", .type = MUSTER_FLOAT32, .dim_count = 1, .shape = {7}, .data = values};
    struct muster_value value = muster_value_integer("epoch", &missing);
    struct muster_snapshot_state given = MUSTER_SNAPSHOT_STATE(&tensor, 1, NULL, 0);
    assert_int_equal(save(3, NULL), 0);
    assert_int_equal(snapshot_reader_open(folder, 3, 0, false, &reader), 0);
    assert_int_equal(snapshot_reader_match(reader, &given), 0);
    assert_int_equal(snapshot_reader_load(reader, &given, NULL), 0);
    assert_memory_equal(values, second, sizeof values);
    tensor.shape[0] = 6;
    assert_int_equal(snapshot_reader_match(reader, &given), MUSTER_EINVAL);
    assert_string_equal(muster_detail(), "tensor second is float32 [7] in the file, float32 [6] in the program");
    tensor.name = "third";
    assert_int_equal(snapshot_reader_match(reader, &given), MUSTER_EINVAL);
    assert_string_equal(muster_detail(), "tensor third is not in the file");
    given = (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(NULL, 0, &value, 1);
    assert_int_equal(snapshot_reader_match(reader, &given), MUSTER_EINVAL);
    snapshot_reader_close(reader);
}

#define parts_test(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        parts_test(pieces_give_the_same_files),
        parts_test(a_lost_piece_ends_the_save),
        parts_test(ranges_are_read),
        parts_test(a_state_is_matched_before_it_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
