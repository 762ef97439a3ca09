/* See frozen_state.h. */
#include "train/background/frozen_state.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/device/device_stage.h"
#include "train/state/state_description.h"

enum { ALIGNMENT = 64 };

/* ---- sizes ---- */

static size_t element_bytes(const struct muster_tensor *tensor) {
    return muster_type_bytes(tensor->type);
}

static size_t value_bytes(const struct muster_value *value) {
    return value->kind == MUSTER_VALUE_TEXT ? value->room : sizeof(int64_t);
}

static bool is_committed(const struct frozen_state *frozen, const struct muster_tensor *tensor) {
    uintptr_t at = (uintptr_t)tensor->data, begin = (uintptr_t)frozen->memory;
    return tensor->data && at >= begin && at - begin < frozen->memory_bytes;
}

/* ---- copies ---- */

/* A run of bytes that is measured first, and filled then: without memory, only its length grows. */
struct arena {
    char *bytes;
    size_t length;
    struct device_stage stage;
    int code; /* of the first copy that has failed */
};

static void arena_init(struct arena *arena, void *bytes, void *stream, size_t length) {
    *arena = (struct arena){.bytes = bytes};
    device_stage_init(&arena->stage, stream, length);
}

static int arena_done(struct arena *arena) {
    device_stage_done(&arena->stage);
    return arena->code;
}

static void *keep_bytes(struct arena *arena, const void *from, size_t count) {
    char *to = arena->bytes ? arena->bytes + arena->length : NULL;
    if (to && from && arena->code == 0) {
        arena->code = device_stage_copy_out(&arena->stage, to, from, count);
    }
    arena->length += (count + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return to;
}

static void keep_tensors(const struct frozen_state *frozen, struct arena *arena) {
    for (size_t i = 0; i < frozen->state.tensor_count; i++) {
        struct muster_tensor *tensor = &frozen->tensors[i];
        const char *name = keep_bytes(arena, tensor->name, strlen(tensor->name) + 1);
        bool is_copied = tensor->data && !is_committed(frozen, tensor);
        void *data = tensor->data;
        if (is_copied) {
            data = keep_bytes(arena, tensor->data, (size_t)state_element_count(tensor) * element_bytes(tensor));
        }
        if (arena->bytes) {
            tensor->name = name;
            tensor->data = data;
        }
    }
}

static void keep_values(const struct frozen_state *frozen, struct arena *arena) {
    for (size_t i = 0; i < frozen->state.value_count; i++) {
        struct muster_value *value = &frozen->values[i];
        const char *name = keep_bytes(arena, value->name, strlen(value->name) + 1);
        void *data = keep_bytes(arena, value->data, value_bytes(value));
        if (arena->bytes) {
            value->name = name;
            value->data = data;
        }
    }
}

static void *copy_list(const void *list, size_t count, size_t bytes) {
    void *copy = calloc(count + 1, bytes);
    if (copy && count > 0) {
        memcpy(copy, list, count * bytes);
    }
    return copy;
}

static int copy_lists(struct frozen_state *frozen, const struct muster_checkpoint_state *state) {
    frozen->tensors = copy_list(state->tensors, state->tensor_count, sizeof *frozen->tensors);
    frozen->chunks = copy_list(state->chunks, state->chunk_count, sizeof *frozen->chunks);
    frozen->values = copy_list(state->values, state->value_count, sizeof *frozen->values);
    frozen->state = (struct muster_checkpoint_state)MUSTER_CHECKPOINT_STATE(
        frozen->tensors, state->tensor_count, frozen->chunks, state->chunk_count, frozen->values, state->value_count);
    return frozen->tensors && frozen->chunks && frozen->values
               ? MUSTER_OK
               : status_fail(MUSTER_ENOMEM, "no memory for a list of %zu tensors", state->tensor_count);
}

static int copy_bytes(struct frozen_state *frozen, void *stream) {
    struct arena arena = {.bytes = NULL};
    keep_tensors(frozen, &arena);
    keep_values(frozen, &arena);
    frozen->bytes = aligned_alloc(ALIGNMENT, arena.length + ALIGNMENT);
    if (!frozen->bytes) {
        return status_fail(MUSTER_ENOMEM, "no memory for %zu bytes of a state", arena.length);
    }
    arena_init(&arena, frozen->bytes, stream, arena.length);
    keep_tensors(frozen, &arena);
    keep_values(frozen, &arena);
    return arena_done(&arena);
}

int frozen_state_init(struct frozen_state *out, const struct muster_checkpoint_state *state,
                      const struct frozen_place *place) {
    assert(state->tensor_bytes == sizeof *state->tensors && state->chunk_bytes == sizeof *state->chunks);
    *out = (struct frozen_state){
        .memory = place->memory, .memory_bytes = place->bytes, .rank = place->rank, .size = place->size};
    int status = copy_lists(out, state);
    status = status ? status : copy_bytes(out, place->stream);
    if (status != MUSTER_OK) {
        frozen_state_done(out);
    }
    return status;
}

void frozen_state_done(struct frozen_state *frozen) {
    free(frozen->tensors);
    free(frozen->chunks);
    free(frozen->values);
    free(frozen->bytes);
    *frozen = (struct frozen_state){.bytes = NULL};
}

/* ---- what is read in place ---- */

/* This rank's share of a tensor that every rank has. */
struct share {
    size_t offset, bytes; /* from the beginning of the tensor */
};

static struct share share_of(const struct frozen_state *frozen, const struct muster_tensor *tensor) {
    uint64_t count = state_element_count(tensor);
    uint64_t first = state_even_first(count, frozen->rank, frozen->size);
    uint64_t end = state_even_first(count, frozen->rank + 1, frozen->size);
    return (struct share){(size_t)first * element_bytes(tensor), (size_t)(end - first) * element_bytes(tensor)};
}

static size_t chunk_bytes(const struct frozen_state *frozen, const struct muster_checkpoint_chunk *chunk) {
    return (size_t)chunk->count * element_bytes(&frozen->tensors[chunk->tensor]);
}

size_t frozen_state_committed_bytes(const struct frozen_state *frozen) {
    struct arena arena = {.bytes = NULL};
    for (size_t i = 0; i < frozen->state.chunk_count; i++) {
        (void)keep_bytes(&arena, NULL, chunk_bytes(frozen, &frozen->chunks[i]));
    }
    for (size_t i = 0; i < frozen->state.tensor_count; i++) {
        if (is_committed(frozen, &frozen->tensors[i])) {
            (void)keep_bytes(&arena, NULL, share_of(frozen, &frozen->tensors[i]).bytes);
        }
    }
    return arena.length;
}

void frozen_state_move(struct frozen_state *frozen, void *room) {
    struct arena arena;
    arena_init(&arena, room, NULL, 0); /* committed memory is the host's: no copy can fail */
    for (size_t i = 0; i < frozen->state.chunk_count; i++) {
        struct muster_checkpoint_chunk *chunk = &frozen->chunks[i];
        chunk->data = keep_bytes(&arena, chunk->data, chunk_bytes(frozen, chunk));
    }
    for (size_t i = 0; i < frozen->state.tensor_count; i++) {
        struct muster_tensor *tensor = &frozen->tensors[i];
        if (is_committed(frozen, tensor)) {
            struct share share = share_of(frozen, tensor);
            uintptr_t to = (uintptr_t)keep_bytes(&arena, (char *)tensor->data + share.offset, share.bytes);
            /* Where the tensor would begin if all of it were there: the share alone is read. */
            tensor->data = (void *)(to - share.offset); /* NOLINT(performance-no-int-to-ptr) */
        }
    }
    frozen->memory_bytes = 0;
    (void)arena_done(&arena);
}
