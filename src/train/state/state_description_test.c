/* Descriptions of a state: what is refused, what all must agree upon, and the regular split. */
#include "train/state/state_description.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"

static float memory[24];

static void expect(const struct state_description *state, int code, const char *words) {
    status_clear();
    assert_int_equal(state_description_check(state), code);
    assert_non_null(strstr(muster_detail(), words));
}

static void what_cannot_be_kept_is_refused_by_name(void **test) {
    (void)test;
    struct muster_tensor tensors[] = {
        {.name = "cut", .type = MUSTER_FLOAT32, .dim_count = 2, .shape = {4, 6}},
        {.name = "whole", .type = MUSTER_FLOAT32, .dim_count = 1, .shape = {4}, .data = memory},
    };
    struct state_chunk chunk = {.tensor = 0, .first = 20, .count = 4, .data = memory};
    const struct state_description state = {.tensors = tensors, .tensor_count = 2, .chunks = &chunk, .chunk_count = 1};
    expect(&state, 0, "");
    chunk.count = 5;
    expect(&state, MUSTER_EINVAL, "tensor cut has 5 elements from number 20 on; it has 24");
    chunk = (struct state_chunk){.tensor = 0, .first = UINT64_MAX, .count = 2, .data = memory};
    expect(&state, MUSTER_EINVAL, "from number 18446744073709551615");
    chunk = (struct state_chunk){.tensor = 0, .first = 24, .count = 0};
    expect(&state, 0, "");
    chunk = (struct state_chunk){.tensor = 0, .first = 0, .count = 1};
    expect(&state, MUSTER_EINVAL, "a chunk of tensor cut has no data");
    chunk = (struct state_chunk){.tensor = 1, .first = 0, .count = 1, .data = memory};
    expect(&state, MUSTER_EINVAL, "tensor whole has data, and a chunk");
    chunk.tensor = 2;
    expect(&state, MUSTER_EINVAL, "chunk 0 is of tensor 2 of 2");
    chunk.tensor = 0;
    tensors[1].name = "cut";
    expect(&state, MUSTER_EINVAL, "two tensors are named cut");
    tensors[1].name = "";
    expect(&state, MUSTER_EINVAL, "tensor 1 has no name");
    tensors[1] = (struct muster_tensor){.name = "w", .type = MUSTER_TYPE_COUNT, .data = memory};
    expect(&state, MUSTER_EINVAL, "tensor w is of no known type");
}

/* Of what is equal everywhere: chunks and addresses are each rank's own. */
static void the_hash_is_of_what_all_agree_upon(void **test) {
    (void)test;
    struct muster_tensor tensor = {.name = "w", .type = MUSTER_FLOAT32, .dim_count = 1, .shape = {6}};
    struct state_chunk chunk = {.tensor = 0, .first = 0, .count = 6, .data = memory};
    int64_t number = 0;
    struct muster_value value = muster_value_integer("n", &number);
    struct state_description state = {.tensors = &tensor, .tensor_count = 1, .values = &value, .value_count = 1};
    uint64_t hash = state_description_hash(&state);
    state.chunks = &chunk;
    state.chunk_count = 1;
    assert_true(state_description_hash(&state) == hash);
    tensor.data = memory;
    assert_false(state_description_hash(&state) == hash);
    tensor.data = NULL;
    tensor.shape[0] = 7;
    assert_false(state_description_hash(&state) == hash);
    tensor.shape[0] = 6;
    value.name = "m";
    assert_false(state_description_hash(&state) == hash);
    value.name = "n";
    assert_true(state_description_hash(&state) == hash);
}

static void an_even_split_has_parts_that_differ_by_one_at_most(void **test) {
    (void)test;
    static const uint64_t counts[] = {0, 1, 2, 63, 64, 65, UINT64_C(1) << 60};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        for (uint32_t parts = 1; parts < 70; parts++) {
            assert_int_equal(state_even_first(counts[i], 0, parts), 0);
            assert_int_equal(state_even_first(counts[i], parts, parts), counts[i]);
            for (uint32_t part = 0; part < parts; part++) {
                uint64_t count =
                    state_even_first(counts[i], part + 1, parts) - state_even_first(counts[i], part, parts);
                assert_true(count == counts[i] / parts || count == counts[i] / parts + 1);
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_cannot_be_kept_is_refused_by_name),
        cmocka_unit_test(the_hash_is_of_what_all_agree_upon),
        cmocka_unit_test(an_even_split_has_parts_that_differ_by_one_at_most),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
