/* Frozen states: what the program may change is copied, what is committed is read where it is, until it is moved. */
#include "train/background/frozen_state.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/str.h"
#include "train/state/state_description.h"

enum { COUNT = 10, SIZE = 3, CHUNKED = 7 };

/* Committed memory: a tensor that every rank has whole, and a chunk of another; and what the program has besides. */
static struct {
    float committed[COUNT + CHUNKED];
    double own[2];
    int64_t step;
    char text[8], name[8];
    struct muster_tensor tensors[3];
    struct muster_checkpoint_chunk chunk;
    struct muster_value values[2];
    struct muster_checkpoint_state state;
} given;

static void describe(void) {
    for (size_t i = 0; i < COUNT + CHUNKED; i++) {
        given.committed[i] = (float)i;
    }
    given.own[0] = 0.5;
    given.own[1] = 1.5;
    given.step = 12;
    assert_true(str_copy(given.text, sizeof given.text, "adamw") && str_copy(given.name, sizeof given.name, "whole"));
    given.tensors[0] = (struct muster_tensor){
        .name = given.name, .type = MUSTER_FLOAT32, .dim_count = 2, .shape = {2, 5}, .data = given.committed};
    given.tensors[1] = (struct muster_tensor){.name = "parts", .type = MUSTER_FLOAT32, .dim_count = 1, .shape = {100}};
    given.tensors[2] =
        (struct muster_tensor){.name = "own", .type = MUSTER_FLOAT64, .dim_count = 1, .shape = {2}, .data = given.own};
    given.chunk = (struct muster_checkpoint_chunk){1, 20, CHUNKED, given.committed + COUNT};
    given.values[0] = muster_value_integer("step", &given.step);
    given.values[1] = muster_value_text("optimizer", given.text, sizeof given.text);
    given.state =
        (struct muster_checkpoint_state)MUSTER_CHECKPOINT_STATE(given.tensors, 3, &given.chunk, 1, given.values, 2);
}

static struct frozen_state freeze(uint32_t rank) {
    const struct frozen_place place = {given.committed, sizeof given.committed, rank, SIZE, NULL};
    struct frozen_state frozen;
    describe();
    assert_int_equal(frozen_state_init(&frozen, &given.state, &place), 0);
    return frozen;
}

static void the_program_may_change_its_own(void **state) {
    (void)state;
    struct frozen_state frozen = freeze(0);
    memset(given.own, 0xff, sizeof given.own);
    memset(given.text, 'x', sizeof given.text);
    memset(given.name, 'x', sizeof given.name);
    given.step = 13;
    assert_string_equal(frozen.state.tensors[0].name, "whole");
    assert_ptr_equal(frozen.state.tensors[0].data, given.committed);
    assert_null(frozen.state.tensors[1].data);
    assert_ptr_equal(frozen.state.chunks[0].data, given.committed + COUNT);
    const double own[2] = {0.5, 1.5};
    assert_memory_equal(frozen.state.tensors[2].data, own, sizeof own);
    assert_int_equal(*(const int64_t *)frozen.state.values[0].data, 12);
    assert_string_equal(frozen.state.values[1].data, "adamw");
    assert_int_equal(frozen.state.values[1].room, sizeof given.text);
    frozen_state_done(&frozen);
    frozen_state_done(&frozen);
}

static void a_rank_moves_its_share(void **state) {
    (void)state;
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        struct frozen_state frozen = freeze(rank);
        size_t bytes = frozen_state_committed_bytes(&frozen);
        size_t first = state_even_first(COUNT, rank, SIZE), end = state_even_first(COUNT, rank + 1, SIZE);
        assert_true(bytes >= (CHUNKED + end - first) * sizeof(float) && bytes <= 2 * 64);
        char *room = aligned_alloc(64, 2 * 64);
        assert_non_null(room);
        frozen_state_move(&frozen, room);
        memset(given.committed, 0xff, sizeof given.committed);
        const float *whole = frozen.state.tensors[0].data, *chunk = frozen.state.chunks[0].data;
        for (size_t i = first; i < end; i++) {
            assert_true((const char *)&whole[i] >= room && (const char *)&whole[i + 1] <= room + bytes);
            assert_true(whole[i] == (float)i);
        }
        for (size_t i = 0; i < CHUNKED; i++) {
            assert_true(chunk[i] == (float)(COUNT + i));
        }
        assert_int_equal(frozen_state_committed_bytes(&frozen), 64); /* the chunk; the share is no matter any more */
        frozen_state_done(&frozen);
        free(room);
    }
}

static void nothing_is_a_state_too(void **state) {
    (void)state;
    const struct muster_checkpoint_state nothing = MUSTER_CHECKPOINT_STATE_INIT;
    const struct frozen_place place = {.size = 1};
    struct frozen_state frozen;
    assert_int_equal(frozen_state_init(&frozen, &nothing, &place), 0);
    assert_int_equal(frozen_state_committed_bytes(&frozen), 0);
    frozen_state_done(&frozen);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_program_may_change_its_own),
        cmocka_unit_test(a_rank_moves_its_share),
        cmocka_unit_test(nothing_is_a_state_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
