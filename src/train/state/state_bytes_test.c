/* A state as bytes: what is written comes back, in the same places, and damage is seen. */
#include "train/state/state_bytes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { ROOM = 13, FLOATS = 5 };

struct sample {
    float floats[FLOATS];
    int8_t byte;
    int64_t step;
    double rate;
    char text[ROOM];
};

static const struct sample full = {{1, 2, 3, 4, 5}, -7, 12, 0.5, "twelve bytes"};

struct description {
    struct muster_tensor tensors[3];
    struct muster_value values[3];
    struct muster_snapshot_state state;
};

static void describe(struct sample *sample, struct description *out) {
    out->tensors[0] = (struct muster_tensor){
        .name = "byte", .type = MUSTER_INT8, .dim_count = 1, .shape = {1}, .data = &sample->byte};
    out->tensors[1] = (struct muster_tensor){.name = "none", .type = MUSTER_FLOAT64, .dim_count = 1, .shape = {0}};
    out->tensors[2] = (struct muster_tensor){
        .name = "floats", .type = MUSTER_FLOAT32, .dim_count = 2, .shape = {1, FLOATS}, .data = sample->floats};
    out->values[0] = muster_value_integer("step", &sample->step);
    out->values[1] = muster_value_text("text", sample->text, sizeof sample->text);
    out->values[2] = muster_value_real("rate", &sample->rate);
    out->state = (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(out->tensors, 3, out->values, 3);
}

static void what_is_written_comes_back(void **state) {
    (void)state;
    struct sample from = full, to = {.byte = 0};
    struct description description;
    describe(&from, &description);
    size_t bytes = state_bytes(&description.state);
    assert_int_equal(bytes, 8 + 8 + 0 + 24 + 8 + 16 + 8);
    unsigned char *memory = malloc(bytes + 8);
    assert_non_null(memory);
    memset(memory, 0xa5, bytes + 8);
    assert_int_equal(state_bytes_write(&description.state, NULL, memory), 0);
    for (size_t i = 0; i < 8; i++) {
        assert_int_equal(memory[bytes + i], 0xa5);
    }
    describe(&to, &description);
    assert_int_equal(state_bytes_read(&description.state, NULL, memory), 0);
    assert_memory_equal(to.floats, full.floats, sizeof full.floats);
    assert_int_equal(to.byte, full.byte);
    assert_int_equal(to.step, full.step);
    assert_true(to.rate == full.rate);
    assert_string_equal(to.text, full.text);
    free(memory);
}

static void any_flipped_bit_is_seen(void **state) {
    (void)state;
    struct sample from = full, to = {.byte = 0};
    struct description description;
    describe(&from, &description);
    size_t bytes = state_bytes(&description.state);
    unsigned char *memory = calloc(1, bytes);
    assert_non_null(memory);
    assert_int_equal(state_bytes_write(&description.state, NULL, memory), 0);
    describe(&to, &description);
    for (size_t bit = 0; bit < 8 * bytes; bit++) {
        memory[bit / 8] ^= (unsigned char)(1u << bit % 8);
        assert_int_equal(state_bytes_read(&description.state, NULL, memory), MUSTER_ECORRUPT);
        assert_int_equal(to.step, 0);
        memory[bit / 8] ^= (unsigned char)(1u << bit % 8);
    }
    assert_int_equal(state_bytes_read(&description.state, NULL, memory), 0);
    free(memory);
}

static void the_hash_tells_descriptions_apart(void **state) {
    (void)state;
    struct sample sample = full;
    struct description description;
    describe(&sample, &description);
    uint64_t hash = state_hash(&description.state);
    description.tensors[2].shape[0] = FLOATS;
    description.tensors[2].shape[1] = 1;
    assert_true(state_hash(&description.state) != hash);
    describe(&sample, &description);
    description.values[2].name = "Rate";
    assert_true(state_hash(&description.state) != hash);
    describe(&sample, &description);
    assert_true(state_hash(&description.state) == hash);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_comes_back),
        cmocka_unit_test(any_flipped_bit_is_seen),
        cmocka_unit_test(the_hash_tells_descriptions_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
