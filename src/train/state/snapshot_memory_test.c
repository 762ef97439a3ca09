/* Memory runs out in the middle of saving, finding and loading: at the n-th allocation, for every n. Each call says so,
 * gives everything back, and what was saved before stays. (The n-th system call: snapshot_crash_test.c.) */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "train/state/disk_model.h"
#include "train/state/snapshot_impl.h"

enum { ALLOCATIONS_MAX = 2000 };

static struct {
    bool counting;
    unsigned count, fail_at; /* 0: none fails */
    bool forever;
    long live; /* allocations not given back */
} heap;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void __real_free(void *memory);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void __wrap_free(void *memory);

static bool fails(void) {
    if (!heap.counting) {
        return false;
    }
    heap.count++;
    return heap.fail_at && (heap.count == heap.fail_at || (heap.forever && heap.count > heap.fail_at));
}

static void *counted(void *memory) {
    heap.live += heap.counting && memory;
    return memory;
}

void *__wrap_malloc(size_t bytes) {
    return fails() ? NULL : counted(__real_malloc(bytes));
}

void *__wrap_calloc(size_t count, size_t bytes) {
    return fails() ? NULL : counted(__real_calloc(count, bytes));
}

void *__wrap_realloc(void *memory, size_t bytes) {
    if (fails()) {
        return NULL;
    }
    return memory ? __real_realloc(memory, bytes) : counted(__real_realloc(memory, bytes));
}

void __wrap_free(void *memory) {
    heap.live -= heap.counting && memory;
    __real_free(memory);
}

/* ---- */

struct world {
    struct disk disk;
    struct snapshot_io io;
    float weights[3];
    int64_t epoch;
    char note[8];
    struct muster_tensor tensors[2];
    struct muster_value values[2];
    struct muster_snapshot_state state;
};

static void world_init(struct world *w) {
    disk_init(&w->disk, 1);
    w->io = disk_io(&w->disk);
    w->epoch = 1;
    w->weights[2] = 7;
    (void)snprintf(w->note, sizeof w->note, "fine");
    w->tensors[0] =
        (struct muster_tensor){.name = "w", .type = MUSTER_FLOAT32, .dim_count = 1, .shape = {3}, .data = w->weights};
    w->tensors[1] = (struct muster_tensor){.name = "none", .type = MUSTER_INT8, .dim_count = 1, .shape = {0}};
    w->values[0] = muster_value_integer("epoch", &w->epoch);
    w->values[1] = muster_value_text("note", w->note, sizeof w->note);
    w->state = (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(w->tensors, 2, w->values, 2);
    assert_int_equal(snapshot_save(&w->io, "d", 1, &w->state, NULL), 0);
}

typedef int call_fn(struct world *w);

static int call_save(struct world *w) {
    return snapshot_save(&w->io, "d", 2, &w->state, NULL);
}

static int call_find(struct world *w) {
    struct muster_snapshot_found found;
    return snapshot_find(&w->io, "d", INT64_MAX, &found);
}

static int call_load(struct world *w) {
    return snapshot_load(&w->io, "d", &(struct snapshot_wanted){1, 0, false, NULL}, &w->state);
}

static void survives(call_fn *call, bool forever) {
    static struct world w;
    unsigned n = 1;
    for (; n < ALLOCATIONS_MAX; n++) {
        world_init(&w);
        status_clear();
        heap.counting = true, heap.count = 0, heap.fail_at = n, heap.forever = forever, heap.live = 0;
        int code = call(&w);
        heap.counting = false;
        assert_int_equal(heap.live, 0);
        assert_int_equal(disk_open_handles(&w.disk), 0);
        assert_int_equal(disk_count(&w.disk, ".tmp"), 0);
        if (heap.count < n) {
            assert_int_equal(code, 0);
            break;
        }
        /* jansson does not always know that memory was lacking, but it must never look as if there was nothing to
         * find, or only damage: that would be a reason to take an older snapshot. */
        bool lack = call == call_find && (code == MUSTER_ENOENT || code == MUSTER_ECORRUPT);
        if (code != 0 && (lack || muster_detail()[0] == '\0')) {
            fail_msg("allocation %u: code %d, %s", n, code, muster_detail());
        }
        if (call == call_save && code == 0) { /* the lack was met in removing old ones */
            assert_int_equal(snapshot_load(&w.io, "d", &(struct snapshot_wanted){2, 0, false, NULL}, &w.state), 0);
        }
        w.epoch = 0;
        assert_int_equal(call_load(&w), 0);
        assert_true(w.epoch == 1 && w.weights[2] == 7);
    }
    assert_true(n > 10 && n < ALLOCATIONS_MAX);
}

static void saving_survives_each_lack_of_memory(void **state) {
    (void)state;
    survives(call_save, false);
    survives(call_save, true);
}

static void finding_survives_each_lack_of_memory(void **state) {
    (void)state;
    survives(call_find, false);
    survives(call_find, true);
}

static void loading_survives_each_lack_of_memory(void **state) {
    (void)state;
    survives(call_load, false);
    survives(call_load, true);
}

int main(void) {
    json_set_alloc_funcs(__wrap_malloc, __wrap_free); /* jansson's own calls are not wrapped: it is a shared library */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saving_survives_each_lack_of_memory),
        cmocka_unit_test(finding_survives_each_lack_of_memory),
        cmocka_unit_test(loading_survives_each_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
