/* Memory runs out in the middle of saving and loading a checkpoint: at the n-th allocation, for every n. Each call says
 * so, gives everything back, and what was saved before stays. (The n-th system call: checkpoint_crash_test.c.) */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "base/testing/parts_test_support.h"
#include "train/checkpoint/checkpoint_job_test_support.h"

enum { ALLOCATIONS_MAX = 5000 };

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

static void count_from(unsigned fail_at, bool forever) {
    status_clear();
    heap.counting = true;
    heap.count = 0;
    heap.fail_at = fail_at;
    heap.forever = forever;
    heap.live = 0;
}

/* ---- */

static struct disk disk;
static struct snapshot_io io;
static const struct test_cut cut = {.seed = 3, .size = 3};

enum savers { RANKS, ALONE };

/* ALONE: one process saves all parts. */
static int save(int64_t step, int64_t tag, enum savers savers, unsigned fail_at, bool forever) {
    struct job job;
    struct job_trouble none = {.at = 0};
    const struct test_cut whole = {.size = cut.size, .whole = true};
    job_init(&job, savers == ALONE ? &whole : &cut);
    job.alone_parts = savers == ALONE ? whole.size : 0;
    job_fill(&job, tag);
    count_from(fail_at, forever);
    int code = job_save(&job, &disk, &io, step, 2, &none);
    heap.counting = false;
    job_done(&job);
    return code;
}

/* As a load does it: finding, reading the map, reading ranges. *out_tag: what was loaded. */
static int load(unsigned fail_at, bool forever, int64_t *out_tag) {
    struct job job;
    struct snapshot_folder folder;
    struct checkpoint_search search = {.next = 0};
    struct checkpoint_record record;
    job_init(&job, &cut);
    count_from(fail_at, forever);
    int code = snapshot_folder_open(&folder, &io, "d", false);
    code = code ? code : checkpoint_search_begin(&search, &folder);
    code = code ? code : checkpoint_search_next(&search, &folder, INT64_MAX, &record);
    code = code ? code : job_load(&job, &folder, &record);
    checkpoint_search_done(&search);
    snapshot_folder_close(&folder);
    heap.counting = false;
    *out_tag = code ? 0 : job_tag(&job);
    job_done(&job);
    return code;
}

static void begin(void) {
    disk_init(&disk, 1);
    io = disk_io(&disk);
    assert_int_equal(save(1, 7, RANKS, 0, false), 0);
}

static void check_after(void) {
    assert_int_equal(heap.live, 0);
    assert_int_equal(disk_open_handles(&disk), 0);
}

static void check_saving(enum savers savers) {
    unsigned stride = part_stride("each_allocation", 5);
    for (int forever = 0; forever < 2; forever++) {
        bool done = false;
        for (unsigned n = 1; !done; n += stride) {
            int64_t tag = 0;
            begin();
            int code = save(2, 8, savers, n, forever);
            done = heap.count < n;
            check_after();
            assert_true(n < ALLOCATIONS_MAX && (code == 0 || (!done && muster_detail()[0] != '\0')));
            assert_int_equal(load(0, false, &tag), 0);
            assert_int_equal(tag, code ? 7 : 8); /* 8 also where the lack was met in removing what is not wanted */
            if (code) {
                assert_int_equal(save(2, 9, savers, 0, false), 0); /* leftovers do no harm, and go */
                assert_int_equal(disk_count(&disk, ".safetensors"), 6);
                assert_int_equal(disk_count(&disk, ".tmp"), 0);
            }
        }
    }
}

static void saving_survives_each_lack_of_memory(void **state) {
    (void)state;
    check_saving(RANKS);
}

static void saving_by_one_process_survives_each_lack_of_memory(void **state) {
    (void)state;
    check_saving(ALONE);
}

static void loading_survives_each_lack_of_memory(void **state) {
    (void)state;
    begin();
    for (int forever = 0; forever < 2; forever++) {
        bool done = false;
        for (unsigned n = 1; !done; n++) {
            int64_t tag = 0;
            int code = load(n, forever, &tag);
            done = heap.count < n;
            check_after();
            /* It must never look as if there was nothing to find, or only damage: that would be a reason to take an
             * older one. (jansson does not always know that memory was lacking.) */
            bool lack = code == MUSTER_ENOENT || code == MUSTER_ECORRUPT;
            if (n == ALLOCATIONS_MAX || lack || (code != 0 && (done || muster_detail()[0] == '\0'))) {
                fail_msg("allocation %u: code %d, %s", n, code, muster_detail());
            }
            assert_int_equal(tag, code ? 0 : 7);
        }
    }
}

int main(void) {
    json_set_alloc_funcs(__wrap_malloc, __wrap_free); /* jansson's own calls are not wrapped: it is a shared library */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(saving_survives_each_lack_of_memory),
        cmocka_unit_test(saving_by_one_process_survives_each_lack_of_memory),
        cmocka_unit_test(loading_survives_each_lack_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
