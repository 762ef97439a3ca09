/* See checkpoint_test_support.h. */
#include "train/checkpoint/checkpoint_test_support.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct muster_tensor test_small[TEST_SMALL_COUNT] = {
    {.name = "weight", .type = MUSTER_FLOAT32, .dim_count = 2, .shape = {9, 7}},
    {.name = "whole", .type = MUSTER_FLOAT32, .dim_count = 2, .shape = {3, 5}},
    {.name = "bytes[0:2]", .type = MUSTER_UINT8, .dim_count = 1, .shape = {31}},
    {.name = "scalar", .type = MUSTER_FLOAT64, .dim_count = 0},
    {.name = "few", .type = MUSTER_INT64, .dim_count = 1, .shape = {2}},
    {.name = "none", .type = MUSTER_INT16, .dim_count = 2, .shape = {4, 0}},
    {.name = "half", .type = MUSTER_BFLOAT16, .dim_count = 3, .shape = {2, 3, 4}},
};

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t z) {
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

uint32_t test_random(uint64_t *state, uint32_t limit) {
    *state += UINT64_C(0x9e3779b97f4a7c15);
    return (uint32_t)(mix(*state) >> 33) % limit;
}

static void *zeroed(size_t bytes) {
    void *memory = calloc(bytes + 1, 1); /* never NULL for want of bytes */
    assert(memory);
    return memory;
}

/* ---- cutting ---- */

/* Ranges of any length, some of none, each of any rank. */
static void cut_tensor(struct test_state *t, size_t index, uint64_t *random, const struct test_cut *cut) {
    uint64_t count = state_element_count(&t->tensors[index]);
    for (uint64_t first = 0; first < count;) {
        uint64_t left = count - first, most = left < 16 || test_random(random, 4) > 0 ? left : left / 4;
        uint64_t length = test_random(random, 8) == 0 ? 0 : 1 + test_random(random, (uint32_t)most);
        uint32_t owner = test_random(random, cut->size);
        if (owner == cut->rank && (length > 0 || t->chunk_count < TEST_CHUNKS_MAX / 2)) {
            assert(t->chunk_count < TEST_CHUNKS_MAX);
            t->own_chunks[t->chunk_count++] = (struct state_chunk){
                index, first, length, zeroed((size_t)length * muster_type_bytes(t->tensors[index].type))};
        }
        first += length;
    }
}

static void shuffle(struct test_state *t) {
    uint64_t random = t->chunk_count;
    for (size_t i = t->chunk_count; i > 1; i--) {
        size_t other = test_random(&random, (uint32_t)i);
        struct state_chunk chunk = t->own_chunks[i - 1];
        t->own_chunks[i - 1] = t->own_chunks[other];
        t->own_chunks[other] = chunk;
    }
    for (size_t i = 0; i < t->chunk_count; i++) {
        const struct state_chunk *chunk = &t->own_chunks[i];
        t->chunks[i] = (struct muster_checkpoint_chunk){chunk->tensor, chunk->first, chunk->count, chunk->data};
    }
}

void test_state_init(struct test_state *t, const struct muster_tensor *tensors, size_t tensor_count,
                     const struct test_cut *cut) {
    uint64_t random = cut->seed;
    assert(tensor_count <= TEST_TENSORS_MAX);
    memset(t, 0, sizeof *t);
    for (size_t i = 0; i < tensor_count; i++) {
        t->tensors[i] = tensors[i];
        if (cut->whole || i % 2 == 1) {
            t->tensors[i].data = zeroed((size_t)state_element_count(&tensors[i]) * muster_type_bytes(tensors[i].type));
        } else {
            cut_tensor(t, i, &random, cut);
        }
    }
    shuffle(t);
    t->values[0] = muster_value_integer("tag", &t->tag);
    t->values[1] = muster_value_real("half", &t->half);
    t->values[2] = muster_value_text("text", t->text, sizeof t->text);
    t->description = (struct state_description){t->tensors, tensor_count, t->own_chunks, t->chunk_count, t->values, 3};
    t->state = (struct muster_checkpoint_state)MUSTER_CHECKPOINT_STATE(t->tensors, tensor_count, t->chunks,
                                                                       t->chunk_count, t->values, 3);
}

void test_state_done(struct test_state *t) {
    for (size_t i = 0; i < t->description.tensor_count; i++) {
        free(t->tensors[i].data);
    }
    for (size_t i = 0; i < t->chunk_count; i++) {
        free(t->own_chunks[i].data);
    }
}

/* ---- contents ---- */

/* Bytes [first, first + count) of a tensor. */
static void fill_bytes(uint8_t *out, size_t tensor, uint64_t first, size_t count, int64_t tag) {
    for (size_t i = 0; i < count; i++) {
        out[i] = (uint8_t)mix((uint64_t)tag << 40 ^ (uint64_t)tensor << 32 ^ (first + i));
    }
}

static bool are_bytes(const uint8_t *bytes, size_t tensor, uint64_t first, size_t count, int64_t tag) {
    bool same = true;
    for (size_t i = 0; i < count && same; i++) {
        uint8_t wanted = 0;
        fill_bytes(&wanted, tensor, first + i, 1, tag);
        same = bytes[i] == wanted;
    }
    return same;
}

void test_state_fill(struct test_state *t, int64_t tag) {
    for (size_t i = 0; i < t->description.tensor_count; i++) {
        size_t bytes = muster_type_bytes(t->tensors[i].type);
        if (t->tensors[i].data) {
            fill_bytes(t->tensors[i].data, i, 0, (size_t)state_element_count(&t->tensors[i]) * bytes, tag);
        }
    }
    for (size_t i = 0; i < t->chunk_count; i++) {
        const struct state_chunk *chunk = &t->own_chunks[i];
        size_t bytes = muster_type_bytes(t->tensors[chunk->tensor].type);
        fill_bytes(chunk->data, chunk->tensor, chunk->first * bytes, (size_t)chunk->count * bytes, tag);
    }
    t->tag = tag;
    t->half = (double)tag / 2;
    (void)snprintf(t->text, sizeof t->text, "number %" PRId64, tag);
}

int64_t test_state_tag(const struct test_state *t) {
    char text[TEST_TEXT_BYTES];
    bool same = t->half == (double)t->tag / 2;
    (void)snprintf(text, sizeof text, "number %" PRId64, t->tag);
    same = same && strcmp(text, t->text) == 0;
    for (size_t i = 0; i < t->description.tensor_count && same; i++) {
        size_t bytes = muster_type_bytes(t->tensors[i].type);
        same = !t->tensors[i].data ||
               are_bytes(t->tensors[i].data, i, 0, (size_t)state_element_count(&t->tensors[i]) * bytes, t->tag);
    }
    for (size_t i = 0; i < t->chunk_count && same; i++) {
        const struct state_chunk *chunk = &t->own_chunks[i];
        size_t bytes = muster_type_bytes(t->tensors[chunk->tensor].type);
        same = are_bytes(chunk->data, chunk->tensor, chunk->first * bytes, (size_t)chunk->count * bytes, t->tag);
    }
    return same ? t->tag : 0;
}
