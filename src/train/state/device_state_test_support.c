/* See device_state_test_support.h. */
#include "train/state/device_state_test_support.h"

#include <semaphore.h>
#include <stdlib.h>
#include <string.h>

#include "comm/device/cuda_double_test_support.h"
#include "comm/device/device.h"

enum { MIB = 1 << 20, SHIFT = 8 };

static const struct muster_tensor shapes[DEVICE_STATE_TENSORS] = {
    {.name = "bytes", .type = MUSTER_INT8, .dim_count = 1, .shape = {3}},
    {.name = "nothing", .type = MUSTER_FLOAT32, .dim_count = 2, .shape = {4, 0}},
    {.name = "weight", .type = MUSTER_FLOAT32, .dim_count = 2, .shape = {2, MIB + 137}},
    {.name = "half", .type = MUSTER_BFLOAT16, .dim_count = 1, .shape = {100003}},
    {.name = "scalar", .type = MUSTER_FLOAT64},
    {.name = "bias", .type = MUSTER_FLOAT32, .dim_count = 1, .shape = {1001}},
};

static size_t bytes_of(const struct muster_tensor *tensor) {
    size_t bytes = muster_type_bytes(tensor->type);
    for (uint32_t i = 0; i < tensor->dim_count; i++) {
        bytes *= (size_t)tensor->shape[i];
    }
    return bytes;
}

void device_state_begin(struct rank *rank) {
    struct device device = {0};
    struct CUctx_st *previous = NULL;
    rank_check_code(rank, device_open(rank->rank, &device), 0);
    rank_check_code(rank, device_enter(&device, &previous), 0);
}

static char *allocate(struct rank *rank, size_t bytes, bool on_device) {
    unsigned long long address = 0;
    if (!on_device) {
        char *memory = malloc(bytes);
        rank_check(rank, memory);
        return memory;
    }
    rank_check(rank, cuda_library_if_open()->memory_allocate(&address, bytes) == CUDA_OK);
    return (char *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
}

void device_state_init(struct rank *rank, struct device_state *s, bool on_device) {
    *s = (struct device_state){.on_device = on_device};
    memcpy(s->tensors, shapes, sizeof shapes);
    for (size_t i = 0; i < DEVICE_STATE_TENSORS; i++) {
        size_t shift = i * SHIFT;
        s->memory[i] = allocate(rank, bytes_of(&shapes[i]) + shift + 1, on_device);
        s->tensors[i].data = s->memory[i] + shift;
    }
    s->value = muster_value_integer("tag", &s->tag);
    s->state = (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(s->tensors, DEVICE_STATE_TENSORS, &s->value, 1);
}

void device_state_done(struct rank *rank, struct device_state *s) {
    for (size_t i = 0; i < DEVICE_STATE_TENSORS; i++) {
        if (s->on_device) {
            rank_check(rank, cuda_library_if_open()->memory_free(device_address(s->memory[i])) == CUDA_OK);
        } else {
            free(s->memory[i]);
        }
    }
}

/* Where the CPU finds a tensor's bytes. */
static unsigned char *contents_of(const struct device_state *s, size_t tensor) {
    void *data = s->tensors[tensor].data;
    return s->on_device ? cuda_double_contents(device_address(data), bytes_of(&s->tensors[tensor])) : data;
}

static unsigned char byte_of(int64_t tag, size_t tensor, size_t i) {
    return (unsigned char)((uint64_t)tag * 31 + tensor * 17 + i * 7 + (i >> 8) + (i >> 16));
}

static void fill_tensors(const struct device_state *s, int64_t tag) {
    for (size_t tensor = 0; tensor < DEVICE_STATE_TENSORS; tensor++) {
        unsigned char *contents = contents_of(s, tensor);
        size_t bytes = bytes_of(&s->tensors[tensor]);
        for (size_t i = 0; i < bytes; i++) {
            contents[i] = byte_of(tag, tensor, i);
        }
    }
}

void device_state_fill(struct device_state *s, int64_t tag) {
    s->tag = tag;
    fill_tensors(s, tag);
}

struct device_gate {
    sem_t open;
};

struct device_gate *device_gate_new(void) {
    struct device_gate *gate = malloc(sizeof *gate);
    if (!gate || sem_init(&gate->open, 0, 0) != 0) {
        abort();
    }
    return gate;
}

void device_gate_open(void *gate) {
    (void)sem_post(&((struct device_gate *)gate)->open);
}

struct late_fill {
    const struct device_state *state;
    int64_t tag;
    struct device_gate *gate;
};

static void fill_late(void *argument) {
    struct late_fill *fill = argument;
    while (fill->gate && sem_wait(&fill->gate->open) != 0) {
    }
    free(fill->gate);
    fill_tensors(fill->state, fill->tag);
    free(fill);
}

void device_state_fill_late(struct device_state *s, int64_t tag, struct CUstream_st *stream, struct device_gate *gate) {
    struct late_fill *fill = malloc(sizeof *fill);
    if (!fill) {
        abort();
    }
    s->tag = tag;
    *fill = (struct late_fill){s, tag, gate};
    cuda_double_enqueue(stream, fill_late, fill);
}

bool device_state_is(const struct device_state *s, int64_t tag) {
    bool is = s->tag == tag;
    for (size_t tensor = 0; tensor < DEVICE_STATE_TENSORS && is; tensor++) {
        const unsigned char *contents = contents_of(s, tensor);
        size_t bytes = bytes_of(&s->tensors[tensor]);
        for (size_t i = 0; i < bytes && is; i++) {
            is = contents[i] == byte_of(tag, tensor, i);
        }
    }
    return is;
}
