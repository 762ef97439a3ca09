/* See fsdp_parts.h. */
#include "train/units/fsdp_parts.h"

#include <string.h>

#include "base/status.h"
#include "train/state/safetensors.h"

enum { ALIGNMENT = 64 };

bool fsdp_parts_are_saved_by(const struct mesh *mesh) {
    return mesh->row == 0 || mesh->part_count == mesh->rows * mesh->columns;
}

int fsdp_parts_init(struct fsdp_parts *parts, const struct fsdp_table *table, bool lists) {
    const struct mesh *mesh = &table->fsdp->mesh;
    const struct muster_snapshot_state *all = &table->all;
    size_t sharded = table->sharded.tensor_count, chunk_count = 0;
    struct fsdp_walk walk = {0};
    struct fsdp_extent extent, own;
    parts->tensors = calloc(all->tensor_count + 1, sizeof *parts->tensors);
    parts->chunks = calloc(sharded + 1, sizeof *parts->chunks);
    if (!parts->tensors || !parts->chunks) {
        return status_fail(MUSTER_ENOMEM, "no memory for a list of %zu tensors", all->tensor_count);
    }
    memcpy(parts->tensors, all->tensors, all->tensor_count * sizeof *parts->tensors);
    for (size_t i = 0; i < sharded; i++) {
        parts->tensors[i].data = NULL;
    }
    while (lists && fsdp_walk_next(table, &walk, SIZE_MAX, &extent)) {
        if (fsdp_table_overlap(table, &extent, mesh->part, &own)) {
            parts->chunks[chunk_count++] = (struct muster_checkpoint_chunk){own.tensor, own.begin, own.count,
                                                                            fsdp_table_at(table, &own, mesh->column)};
        }
    }
    parts->state = (struct muster_checkpoint_state)MUSTER_CHECKPOINT_STATE(
        parts->tensors, all->tensor_count, parts->chunks, chunk_count, all->values, all->value_count);
    return MUSTER_OK;
}

/* ---- frozen ---- */

/* A run of bytes that is measured first, and filled then: without memory, only its length grows. */
struct arena {
    char *bytes;
    size_t length;
};

static void *keep_bytes(struct arena *arena, const void *from, size_t count) {
    char *to = arena->bytes ? arena->bytes + arena->length : NULL;
    if (to && count > 0) {
        memcpy(to, from, count);
    }
    arena->length += (count + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return to;
}

static size_t tensor_bytes(const struct muster_tensor *tensor) {
    uint64_t bytes = 0;
    (void)safetensors_bytes(tensor->type, tensor->shape, tensor->dim_count, &bytes); /* checked: it can be counted */
    return (size_t)bytes;
}

static size_t value_bytes(const struct muster_value *value) {
    return value->kind == MUSTER_VALUE_TEXT ? value->room : sizeof(int64_t);
}

/* to: where the copies are noted, or NULL to measure. */
static void keep_tensors(struct arena *arena, const struct muster_checkpoint_state *state, struct muster_tensor *to) {
    for (size_t i = 0; i < state->tensor_count; i++) {
        const struct muster_tensor *tensor = &state->tensors[i];
        const char *name = keep_bytes(arena, tensor->name, strlen(tensor->name) + 1);
        void *data = tensor->data ? keep_bytes(arena, tensor->data, tensor_bytes(tensor)) : NULL;
        if (to) {
            to[i].name = name;
            to[i].data = data;
        }
    }
}

static void keep_values(struct arena *arena, const struct muster_checkpoint_state *state, struct muster_value *to) {
    for (size_t i = 0; i < state->value_count; i++) {
        const struct muster_value *value = &state->values[i];
        const char *name = keep_bytes(arena, value->name, strlen(value->name) + 1);
        void *data = keep_bytes(arena, value->data, value_bytes(value));
        if (to) {
            to[i] = *value;
            to[i].name = name;
            to[i].data = data;
        }
    }
}

int fsdp_frozen_parts_freeze(struct fsdp_frozen_parts *frozen) {
    struct muster_checkpoint_state *state = &frozen->parts.state;
    struct arena arena = {.bytes = NULL};
    keep_tensors(&arena, state, NULL);
    keep_values(&arena, state, NULL);
    frozen->values = calloc(state->value_count + 1, sizeof *frozen->values);
    frozen->bytes = aligned_alloc(ALIGNMENT, arena.length + ALIGNMENT);
    if (!frozen->values || !frozen->bytes) {
        return status_fail(MUSTER_ENOMEM, "no memory for %zu bytes of a state", arena.length);
    }
    arena = (struct arena){.bytes = frozen->bytes};
    keep_tensors(&arena, state, frozen->parts.tensors);
    keep_values(&arena, state, frozen->values);
    state->values = frozen->values;
    return MUSTER_OK;
}

size_t fsdp_frozen_parts_chunk_bytes(const struct fsdp_frozen_parts *frozen) {
    size_t bytes = 0;
    for (size_t i = 0; i < frozen->parts.state.chunk_count; i++) {
        bytes += (size_t)frozen->parts.chunks[i].count * sizeof(float); /* what is sharded is float32 */
    }
    return bytes;
}

void fsdp_frozen_parts_move(struct fsdp_frozen_parts *frozen, void *memory) {
    char *to = memory;
    for (size_t i = 0; i < frozen->parts.state.chunk_count; i++) {
        struct muster_checkpoint_chunk *chunk = &frozen->parts.chunks[i];
        size_t bytes = (size_t)chunk->count * sizeof(float);
        memcpy(to, chunk->data, bytes);
        chunk->data = to;
        to += bytes;
    }
}
