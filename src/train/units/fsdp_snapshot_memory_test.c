/* Saving and loading need no memory for the state: on one host none at all, between hosts that of two pieces. Every
 * allocation and mapping of a rank is counted while it saves and loads. */
#include <malloc.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/folder_test_support.h"
#include "base/str.h"
#include "comm/group/ranks_test_support.h"

#include <muster/fsdp.h>

enum {
    PATH_BYTES = 256,
    UNITS = 2,
    UNIT_COUNT = 2304 * 1024, /* elements: 9 MiB; a piece of 4 MiB is less than half of it */
    KIB = 1024,
    /* What reading a file takes, 256 KiB at a time, lists of names, buffers of connections. */
    OVERHEAD_BYTES = 768 * KIB,
    PIECE_BYTES = 4096 * KIB
};

/* ---- counting ---- */

static struct {
    _Atomic(bool) counts;
    _Atomic(int64_t) now, most;
} memory;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t many, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void **out, size_t alignment, size_t bytes);
void __real_free(void *old);
void *__real_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
int __real_munmap(void *at, size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t many, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes);
void __wrap_free(void *old);
void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset);
int __wrap_munmap(void *at, size_t bytes);

static void count(int64_t bytes) {
    if (!atomic_load(&memory.counts)) {
        return;
    }
    int64_t now = atomic_fetch_add(&memory.now, bytes) + bytes, most = atomic_load(&memory.most);
    while (now > most && !atomic_compare_exchange_weak(&memory.most, &most, now)) {
    }
}

static void *counted(void *got) {
    count((int64_t)malloc_usable_size(got));
    return got;
}

void *__wrap_malloc(size_t bytes) {
    return counted(__real_malloc(bytes));
}

void *__wrap_calloc(size_t many, size_t bytes) {
    return counted(__real_calloc(many, bytes));
}

void *__wrap_realloc(void *old, size_t bytes) {
    count(-(int64_t)malloc_usable_size(old));
    return counted(__real_realloc(old, bytes));
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
    return counted(__real_aligned_alloc(alignment, bytes));
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes) {
    int code = __real_posix_memalign(out, alignment, bytes);
    count(code == 0 ? (int64_t)malloc_usable_size(*out) : 0);
    return code;
}

void __wrap_free(void *old) {
    count(-(int64_t)malloc_usable_size(old));
    __real_free(old);
}

void *__wrap_mmap(void *at, size_t bytes, int protection, int flags, int fd, off_t offset) {
    void *got = __real_mmap(at, bytes, protection, flags, fd, offset);
    count(got == MAP_FAILED ? 0 : (int64_t)bytes);
    return got;
}

int __wrap_munmap(void *at, size_t bytes) {
    count(-(int64_t)bytes);
    return __real_munmap(at, bytes);
}

static void begin_count(void) {
    atomic_store(&memory.now, 0);
    atomic_store(&memory.most, 0);
    atomic_store(&memory.counts, true);
}

static int64_t end_count(void) {
    atomic_store(&memory.counts, false);
    return atomic_load(&memory.most);
}

/* ---- a job ---- */

struct job {
    struct ranks_options ranks;
    enum muster_fsdp_sharding sharding;
    bool one_sees; /* rank 0 alone sees the folder */
    int64_t bound;
};

static char folder[PATH_BYTES];

static int fill(void *context, size_t unit, size_t parameter, float *values) {
    (void)context;
    (void)unit;
    for (size_t i = 0; i < UNIT_COUNT; i++) {
        values[i] = (float)(i + parameter);
    }
    return 0;
}

static struct muster_fsdp *make(struct rank *rank, const struct job *job, struct muster_group *group, bool filled,
                                struct muster_optimizer **out_optimizer) {
    static const char *const names[UNITS] = {"first", "second"};
    struct muster_fsdp_parameter parameters[UNITS];
    struct muster_fsdp_unit units[UNITS];
    struct muster_fsdp_options options = MUSTER_FSDP_OPTIONS_INIT;
    struct muster_sgd_options sgd = MUSTER_SGD_OPTIONS_INIT;
    const struct muster_optimizer_group settings = {.sgd = &sgd};
    struct muster_fsdp *fsdp = NULL;
    for (size_t i = 0; i < UNITS; i++) {
        parameters[i] = (struct muster_fsdp_parameter){.name = names[i], .count = UNIT_COUNT};
        units[i] = (struct muster_fsdp_unit){names[i], &parameters[i], 1};
    }
    options.sharding = job->sharding;
    options.fill = filled ? fill : NULL;
    sgd.momentum = 0.9;
    rank_check_code(rank, muster_fsdp_create(group, units, UNITS, &options, &fsdp), 0);
    rank_check_code(rank, muster_fsdp_optimizer(fsdp, NULL, &settings, 1, out_optimizer), 0);
    return fsdp;
}

static void report(struct rank *rank, const char *what, int64_t most, int64_t bound) {
    (void)printf("rank %u: %s took %lld KiB of %lld allowed\n", rank->rank, what, (long long)most / KIB,
                 (long long)bound / KIB);
    (void)fflush(stdout);
    rank_check(rank, most <= bound);
}

static int save_and_load(struct rank *rank, void *argument) {
    const struct job *job = argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_optimizer *optimizer = NULL;
    struct muster_fsdp *fsdp = make(rank, job, group, true, &optimizer);
    begin_count();
    rank_check_code(rank, muster_fsdp_save(fsdp, optimizer, rank->rank == 0, folder, 1, NULL, NULL), 0);
    report(rank, "saving", end_count(), job->bound);
    muster_optimizer_free(optimizer);
    muster_fsdp_free(fsdp);
    fsdp = make(rank, job, group, false, &optimizer);
    const char *seen = job->one_sees && rank->rank != 0 ? "/nowhere" : folder;
    begin_count();
    rank_check_code(rank, muster_fsdp_load_newest(fsdp, optimizer, seen, NULL, NULL), 0);
    report(rank, "loading", end_count(), job->bound);
    for (size_t i = 0; i < UNITS; i++) {
        struct muster_fsdp_range range;
        rank_check_code(rank, muster_fsdp_range(fsdp, i, &range), 0);
        for (size_t j = 0; j < range.count; j++) {
            rank_check(rank, range.data[j] == (float)(range.offset + j + i));
        }
    }
    muster_optimizer_free(optimizer);
    muster_fsdp_free(fsdp);
    muster_group_free(group);
    return 0;
}

static void check(const struct job *given) {
    struct job job = *given;
    const char *base = getenv("TMPDIR");
    assert_true(str_format(folder, sizeof folder, "%s/muster-fsdp-XXXXXX", base ? base : "/tmp"));
    assert_non_null(mkdtemp(folder));
    ranks_run_with(3, save_and_load, &job, &job.ranks);
    assert_int_equal(folder_remove(folder), 2);
}

static void on_one_host_nothing_is_copied(void **state) {
    (void)state;
    check(&(const struct job){.bound = OVERHEAD_BYTES});
}

static void hybrid_sharding_needs_nothing_either(void **state) {
    (void)state;
    check(&(const struct job){.ranks = {.ranks_per_host = 1}, .sharding = MUSTER_FSDP_HYBRID, .bound = OVERHEAD_BYTES});
}

static void between_hosts_two_pieces_are_held(void **state) {
    (void)state;
    struct job job = {.ranks = {.ranks_per_host = 1}, .bound = 2 * PIECE_BYTES + OVERHEAD_BYTES};
    assert_true(job.bound < UNIT_COUNT * (int64_t)sizeof(float) + OVERHEAD_BYTES);
    check(&job);
    job.one_sees = true;
    check(&job);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_one_host_nothing_is_copied),
        cmocka_unit_test(hybrid_sharding_needs_nothing_either),
        cmocka_unit_test(between_hosts_two_pieces_are_held),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
