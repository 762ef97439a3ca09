/* A world of one: what a rank sends is what it receives; the sum and the average of one value are that value. */
#include "comm/engine/engine_solo.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/host/memory.h"

struct solo {
    struct engine base;
    struct memory *memory;
};

static struct memory *memory_of(struct engine *engine) {
    return ((struct solo *)(void *)engine)->memory;
}

/* Elements that this rank sends, which are those that it receives. */
static size_t count_of(const struct comm_call *call) {
    const size_t *counts = call->send_counts ? call->send_counts : call->receive_counts;
    return counts ? counts[0] : call->count;
}

static int start(struct engine *engine, const struct comm_call *call, uint64_t number, int64_t deadline_ns) {
    (void)engine, (void)number, (void)deadline_ns;
    size_t bytes = count_of(call) * call->type_bytes;
    bool has_result = call->operation != COMM_EXSCAN; /* there is nobody before this rank */
    if (has_result && bytes > 0 && call->send != call->receive) {
        memmove(call->receive, call->send, bytes);
    }
    return ENGINE_DONE;
}

static int allocate(struct engine *engine, size_t bytes, void **out) {
    return memory_allocate(memory_of(engine), bytes, out);
}

static void release(struct engine *engine, void *memory) {
    memory_release(memory_of(engine), memory);
}

static void free_solo(struct engine *engine) {
    free(engine);
}

static const struct engine_table solo_table = {
    .name = "solo",
    .start = start,
    .allocate = allocate,
    .release = release,
    .free = free_solo,
};

int engine_solo_create(struct memory *memory, struct engine **out) {
    struct solo *solo = malloc(sizeof *solo);
    if (!solo) {
        return status_fail(MUSTER_ENOMEM, "no memory for a group");
    }
    *solo = (struct solo){.base = {.table = &solo_table}, .memory = memory};
    *out = &solo->base;
    return 0;
}
