/* Groups made from a group with the engine NCCL, on doubles of several versions: their communicators come from the
 * parent's, by ncclCommSplit() and ncclCommShrink(), and where that fails, or NCCL is too old, they connect anew.
 *
 * Which way it was is seen by rules of the doubles: a rank dies in the call that is not to be made. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/testing/parts_test_support.h"
#include "comm/device/cuda_double_test_support.h"
#include "comm/nccl/device_matrix_test_support.h"
#include "comm/nccl/device_ranks_test_support.h"
#include "comm/nccl/nccl_double_test_support.h"

#define ONE_CONNECTS "die:ncclCommInitRankConfig:2" /* the root group alone makes its communicator of an id */

enum { COUNT = 100, NOBODY = 1000 };

/* ---- groups that work ---- */

static void set(const char *variable, const char *value) {
    (void)setenv(variable, value ? value : "", 1);
}

/* A function of the double that this process has opened. */
static void *symbol_of(struct rank *rank, const char *name) {
    void *library = dlopen(getenv("MUSTER_NCCL_LIBRARY"), RTLD_NOW | RTLD_NOLOAD);
    void *symbol = library ? dlsym(library, name) : NULL;
    rank_check(rank, symbol);
    (void)dlclose(library);
    return symbol;
}

static unsigned live(struct rank *rank) {
    unsigned (*ask)(void) = NULL;
    void *symbol = symbol_of(rank, "nccl_double_live");
    memcpy(&ask, &symbol, sizeof ask);
    return ask();
}

static void await_others(struct rank *rank) {
    void (*await)(void) = NULL;
    void *symbol = symbol_of(rank, "nccl_double_await_others");
    memcpy(&await, &symbol, sizeof await);
    await();
}

static void end(struct device_rank *d) {
    device_rank_end(d);
    rank_check(d->rank, live(d->rank) == 0);
    rank_check(d->rank, cuda_double_live() == 0);
}

/* Do calls of the group go through its GPUs, and in the order of `roots`, its ranks' numbers in the root group? */
static void expect_works(const struct device_rank *d, struct muster_group *group, const uint32_t *roots,
                         uint32_t count) {
    struct device_rank in = {d->rank, group, d->stream};
    int64_t sent[COUNT], came[COUNT];
    rank_check(d->rank, strcmp(muster_group_engine(group), "nccl") == 0);
    rank_check(d->rank, muster_group_size(group) == count);
    int64_t *own = device_rank_allocate(&in, sizeof sent, 0), *all = device_rank_allocate(&in, sizeof came, 1);
    for (size_t i = 0; i < COUNT; i++) {
        sent[i] = d->rank->rank;
    }
    device_rank_put(&in, own, sent, sizeof sent);
    rank_check_code(d->rank, muster_all_gather(group, own, all, 1, MUSTER_INT64, NULL), 0);
    device_rank_get(&in, came, all, count * sizeof *came);
    int64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        rank_check(d->rank, came[i] == roots[i]);
        sum += roots[i];
    }
    rank_check_code(d->rank, muster_all_reduce(group, own, all, COUNT, MUSTER_INT64, MUSTER_OP_SUM, NULL), 0);
    device_rank_get(&in, came, all, sizeof came);
    rank_check(d->rank, came[0] == sum && came[COUNT - 1] == sum);
    rank_check_code(d->rank, muster_barrier(group, NULL), 0); /* and those of the host */
    device_rank_release(&in, own, 0);
    device_rank_release(&in, all, 1);
}

static uint32_t list_all(const struct rank *rank, uint32_t *out, uint32_t without) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < rank->size; i++) {
        if (i != without) {
            out[count++] = i;
        }
    }
    return count;
}

/* Even and odd ranks in reverse order, each of these groups again, and all but the last rank. */
static void expect_splits(struct device_rank *d) {
    struct rank *rank = d->rank;
    struct muster_group *half = NULL, *quarter = NULL, *most = NULL;
    uint32_t roots[RANKS_MAX] = {0}, quarters[RANKS_MAX] = {0}, all[RANKS_MAX] = {0}, count = 0, quarter_count = 0;
    rank_check_code(rank, muster_group_split(d->group, (int32_t)rank->rank % 2, -(int32_t)rank->rank, NULL, &half), 0);
    for (uint32_t i = rank->size; i-- > 0;) {
        if (i % 2 == rank->rank % 2) {
            roots[count++] = i;
        }
    }
    expect_works(d, half, roots, count);
    uint32_t place = muster_group_rank(half);
    rank_check_code(rank, muster_group_split(half, (int32_t)(place / 2), 0, NULL, &quarter), 0);
    for (uint32_t i = place / 2 * 2; i < count && i < place / 2 * 2 + 2; i++) {
        quarters[quarter_count++] = roots[i];
    }
    expect_works(d, quarter, quarters, quarter_count);
    uint32_t all_count = list_all(rank, all, rank->size - 1);
    if (all_count > 0) {
        rank_check_code(rank, muster_group_subset(d->group, all, all_count, NULL, &most), 0);
        rank_check(rank, (most == NULL) == (rank->rank == rank->size - 1));
    }
    if (most) {
        expect_works(d, most, all, all_count);
    }
    (void)list_all(rank, all, NOBODY);
    expect_works(d, d->group, all, rank->size);
    muster_group_free(most);
    muster_group_free(quarter);
    muster_group_free(half);
}

static int splits_body(struct rank *rank, void *argument) {
    const char *const *library = argument;
    struct device_rank d;
    set("MUSTER_NCCL_LIBRARY", *library);
    set("MUSTER_DOUBLE_NCCL", ONE_CONNECTS);
    device_rank_start(rank, &d);
    expect_splits(&d);
    end(&d);
    return 0;
}

static void their_communicators_come_from_the_parents(void **state) {
    (void)state;
    const char *libraries[] = {NCCL_DOUBLE, NCCL_DOUBLE_2_18};
    struct ranks_options hosts = {.ranks_per_host = 2};
    for (uint32_t size = 1; size <= 8; size *= 2) {
        ranks_run(size, splits_body, &libraries[0]);
        ranks_run(size, splits_body, &libraries[1]);
    }
    ranks_run_with(4, splits_body, &libraries[0], &hosts);
    ranks_run_with(8, splits_body, &libraries[0], &hosts);
}

/* Where somebody's new group has another engine, or nobody is in any. */
static int others_body(struct rank *rank, void *argument) {
    struct device_rank d;
    struct muster_group *group = NULL;
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    uint32_t odd[RANKS_MAX] = {0}, count = 0;
    (void)argument;
    set("MUSTER_DOUBLE_NCCL", ONE_CONNECTS ",die:ncclCommSplit:2");
    device_rank_start(rank, &d);
    options.engine = rank->rank % 2 == 0 ? "muster" : NULL;
    rank_check_code(rank, muster_group_split(d.group, (int32_t)rank->rank % 2, 0, &options, &group), 0);
    for (uint32_t i = 1; i < rank->size; i += 2) {
        odd[count++] = i;
    }
    if (rank->rank % 2 == 1) {
        expect_works(&d, group, odd, count);
    } else {
        rank_check(rank, strcmp(muster_group_engine(group), count + rank->size % 2 > 1 ? "muster" : "solo") == 0);
    }
    muster_group_free(group);
    rank_check_code(rank, muster_group_split(d.group, -1, 0, NULL, &group), 0);
    rank_check(rank, !group);
    options.engine = "muster";
    rank_check_code(rank, muster_group_split(d.group, 0, 0, &options, &group), 0);
    muster_group_free(group);
    end(&d);
    return 0;
}

static void nothing_is_split_for_other_engines(void **state) {
    (void)state;
    ranks_run(2, others_body, NULL);
    ranks_run(4, others_body, NULL);
}

/* ---- splits that fail ---- */

/* Rules of one rank; the others have `rules`. */
struct failing {
    const char *faults, *rules;
    int64_t timeout_ms;
};

/* All groups are there all the same, and the parent works on, with the memory that it has given out. */
static int failing_split_body(struct rank *rank, void *argument) {
    const struct failing *f = argument;
    struct device_rank d;
    set("MUSTER_DOUBLE_NCCL", rank->rank == 1 ? f->faults : f->rules);
    device_rank_start(rank, &d);
    int64_t *memory = device_rank_allocate(&d, sizeof *memory, 0);
    rank_check_code(rank, muster_barrier(d.group, NULL), 0);
    rank_hurry(d.group, f->timeout_ms);
    expect_splits(&d);
    rank_check_code(rank, muster_all_reduce(d.group, memory, memory, 1, MUSTER_INT64, MUSTER_OP_SUM, NULL), 0);
    device_rank_release(&d, memory, 0);
    end(&d);
    return 0;
}

static void a_split_that_fails_lets_all_connect_anew(void **state) {
    (void)state;
    const struct failing cases[] = {
        {"error:ncclCommSplit:1:3,die:ncclCommSplit:2", "die:ncclCommSplit:2", RANKS_PATIENCE_MS},
        {"fail:ncclCommSplit:1:2,die:ncclCommSplit:2", "die:ncclCommSplit:2", RANKS_PATIENCE_MS},
        {"stick:ncclCommSplit:1,die:ncclCommSplit:2", "die:ncclCommSplit:2", 2000}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct failing f = cases[i];
        for (uint32_t size = 2; size <= 8; size *= 2) {
            if (f.timeout_ms == RANKS_PATIENCE_MS || size == 4) {
                ranks_run(size, failing_split_body, &f);
            }
        }
    }
}

static int hopeless_split_body(struct rank *rank, void *argument) {
    struct device_rank d;
    struct muster_group *half = NULL;
    (void)argument;
    set("MUSTER_DOUBLE_NCCL", rank->rank == 1 ? "fail:ncclCommSplit:1:2,error:ncclCommInitRankConfig:2:3" : NULL);
    device_rank_start(rank, &d);
    int code = muster_group_split(d.group, (int32_t)rank->rank % 2, 0, NULL, &half);
    rank_check(rank, code == MUSTER_ESYSTEM && !half);
    if (!strstr(muster_detail(), "rank 1")) {
        rank_failed(rank, __FILE__, __LINE__, muster_detail());
    }
    rank_check_code(rank, muster_barrier(d.group, NULL), MUSTER_EGROUP);
    end(&d);
    return 0;
}

static void a_parent_that_cannot_connect_again_has_failed(void **state) {
    (void)state;
    ranks_run(2, hopeless_split_body, NULL);
    ranks_run(4, hopeless_split_body, NULL);
}

/* ---- deaths ---- */

struct dying {
    const char *library;
    const char *faults, *rules; /* of rank 1, which dies; of the others */
    bool on_host;               /* it is missed in a call of the host, so that no GPU is in one */
    bool notices;               /* NCCL itself misses it */
    uint32_t second;            /* another one with faults of its own; NOBODY: none */
    const char *second_faults;
    int64_t timeout_ms; /* of the shrink */
};

static void begin(struct rank *rank, const struct dying *dying, struct device_rank *out) {
    set("MUSTER_NCCL_LIBRARY", dying->library);
    set("MUSTER_DOUBLE_NCCL", rank->rank == 1               ? dying->faults
                              : rank->rank == dying->second ? dying->second_faults
                                                            : dying->rules);
    set("MUSTER_DOUBLE_NCCL_NOTICE", dying->notices ? "1" : "0");
    device_rank_start(rank, out);
}

static void run_dying(uint32_t size, rank_function *body, struct dying *dying, uint32_t also) {
    struct ranks *ranks = ranks_start(size, body, dying, NULL);
    for (uint32_t rank = 0; rank < size; rank++) {
        assert_int_equal(ranks_wait(ranks, rank), rank == 1 || rank == also ? RANKS_KILLED - SIGKILL : 0);
    }
    ranks_free(ranks);
}

/* The others hear of it, and can go on without it. */
static int dying_split_body(struct rank *rank, void *argument) {
    struct device_rank d;
    struct muster_group *half = NULL, *rest = NULL;
    uint32_t roots[RANKS_MAX] = {0}, count = list_all(rank, roots, 1);
    begin(rank, argument, &d);
    int code = muster_group_split(d.group, rank->rank == 1 ? -1 : (int32_t)rank->rank % 2, 0, NULL, &half);
    rank_check(rank, code == MUSTER_EPEER && !half);
    if (!strstr(muster_detail(), "rank 1")) {
        rank_failed(rank, __FILE__, __LINE__, muster_detail());
    }
    rank_check_code(rank, muster_group_shrink(d.group, RANKS_PATIENCE_MS, &rest), 0);
    expect_works(&d, rest, roots, count);
    muster_group_free(rest);
    end(&d);
    return 0;
}

static void a_death_in_a_split_is_noticed(void **state) {
    (void)state;
    struct dying dying = {.library = NCCL_DOUBLE, .faults = "die:ncclCommSplit:1", .second = NOBODY};
    for (uint32_t size = 2; size <= 8; size *= 2) {
        run_dying(size, dying_split_body, &dying, NOBODY);
    }
}

/* A rank dies between two calls; the others miss it in the next one. On the GPU they have begun that: a rank that hears
 * of the death before has nothing to stop, and its communicator can be shrunk at once. */
static void die_or_miss(struct device_rank *d, struct muster_group *group, uint32_t victim, bool on_host) {
    struct device_rank in = {d->rank, group, d->stream};
    int64_t *values = device_rank_allocate(&in, COUNT * sizeof *values, 0);
    rank_check_code(d->rank, muster_all_reduce(group, values, values, COUNT, MUSTER_INT64, MUSTER_OP_SUM, NULL), 0);
    rank_check_code(d->rank, muster_barrier(group, NULL), 0);
    if (d->rank->rank == victim) {
        if (!on_host) {
            await_others(d->rank);
        }
        (void)raise(SIGKILL);
    }
    int code = on_host ? muster_barrier(group, NULL)
                       : muster_all_reduce(group, values, values, COUNT, MUSTER_INT64, MUSTER_OP_SUM, NULL);
    rank_check_code(d->rank, code, MUSTER_EPEER);
    device_rank_release(&in, values, 0);
}

static int shrink_body(struct rank *rank, void *argument) {
    const struct dying *dying = argument;
    struct device_rank d;
    struct muster_group *rest = NULL;
    uint32_t roots[RANKS_MAX] = {0}, count = list_all(rank, roots, 1);
    begin(rank, dying, &d);
    die_or_miss(&d, d.group, 1, dying->on_host);
    int64_t timeout_ms = dying->timeout_ms ? dying->timeout_ms : RANKS_PATIENCE_MS;
    rank_check_code(rank, muster_group_shrink(d.group, timeout_ms, &rest), 0);
    expect_works(&d, rest, roots, count);
    muster_group_free(rest);
    end(&d);
    return 0;
}

#define NO_SHRINK "die:ncclCommShrink:1"

static void survivors_shrink_the_communicator(void **state) {
    (void)state;
    /* 2.29 stops a call that hangs on the GPU, and forgets an error that NCCL has met; before that the communicator
     * has been aborted by then. */
    struct dying ways[] = {{NCCL_DOUBLE, NULL, ONE_CONNECTS, .second = NOBODY},
                           {NCCL_DOUBLE, NULL, ONE_CONNECTS, .notices = true, .second = NOBODY},
                           {NCCL_DOUBLE, NULL, ONE_CONNECTS, .on_host = true, .second = NOBODY},
                           {NCCL_DOUBLE_2_27, NULL, ONE_CONNECTS, .on_host = true, .second = NOBODY},
                           {NCCL_DOUBLE_2_27, NULL, NO_SHRINK, .second = NOBODY},
                           {NCCL_DOUBLE_2_27, NULL, NO_SHRINK, .notices = true, .second = NOBODY},
                           {NCCL_DOUBLE_2_18, NULL, NULL, .second = NOBODY},
                           {NCCL_DOUBLE_2_18, NULL, NULL, .on_host = true, .second = NOBODY}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        for (uint32_t size = 2; size <= 8; size *= 2) {
            print_message("way %zu, %u ranks\n", i, size);
            run_dying(size, shrink_body, &ways[i], NOBODY);
        }
    }
}

static void a_shrink_that_fails_lets_all_connect_anew(void **state) {
    (void)state;
    struct dying ways[] = {
        {NCCL_DOUBLE, .second = 2, .second_faults = "error:ncclCommShrink:1:4"},
        {NCCL_DOUBLE, .second = 2, .second_faults = "fail:ncclCommShrink:1:6"},
        {NCCL_DOUBLE, .second = 2, .second_faults = "stick:ncclCommShrink:1", .timeout_ms = 10000},
        {NCCL_DOUBLE, .rules = NO_SHRINK, .second = 2, .second_faults = "error:ncclCommRevoke:1:3," NO_SHRINK}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        run_dying(4, shrink_body, &ways[i], NOBODY);
    }
}

/* Rank 2 dies while the others shrink. */
static int dying_shrink_body(struct rank *rank, void *argument) {
    const struct dying *dying = argument;
    struct device_rank d;
    struct muster_group *rest = NULL;
    uint32_t roots[RANKS_MAX] = {0}, count = 0;
    for (uint32_t i = 0; i < rank->size; i++) {
        if (i != 1 && i != 2) {
            roots[count++] = i;
        }
    }
    begin(rank, dying, &d);
    die_or_miss(&d, d.group, 1, dying->on_host);
    rank_check_code(rank, muster_group_shrink(d.group, RANKS_PATIENCE_MS, &rest), 0);
    expect_works(&d, rest, roots, count);
    muster_group_free(rest);
    end(&d);
    return 0;
}

static void a_death_in_a_shrink_is_survived(void **state) {
    (void)state;
    struct dying dying = {NCCL_DOUBLE, .second = 2, .second_faults = "die:ncclCommShrink:1"};
    run_dying(4, dying_shrink_body, &dying, 2);
    run_dying(8, dying_shrink_body, &dying, 2);
    dying.on_host = true;
    run_dying(4, dying_shrink_body, &dying, 2);
}

/* Two deaths, one after the other; the communicator that was shrunk is shrunk again, and one that was split, too. */
static int twice_body(struct rank *rank, void *argument) {
    const struct dying *dying = argument;
    struct device_rank d;
    struct muster_group *pair = NULL, *first = NULL, *second = NULL;
    uint32_t roots[RANKS_MAX] = {0}, count = list_all(rank, roots, 1);
    begin(rank, dying, &d);
    die_or_miss(&d, d.group, 1, dying->on_host);
    rank_check_code(rank, muster_group_shrink(d.group, RANKS_PATIENCE_MS, &first), 0);
    rank_check_code(rank, muster_group_split(first, 0, 0, NULL, &pair), 0);
    expect_works(&d, pair, roots, count);
    die_or_miss(&d, pair, 2, dying->on_host);
    uint32_t fewer = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (roots[i] != 2) {
            roots[fewer++] = roots[i];
        }
    }
    rank_check_code(rank, muster_group_shrink(pair, RANKS_PATIENCE_MS, &second), 0);
    expect_works(&d, second, roots, fewer);
    muster_group_free(second);
    rank_check_code(rank, muster_group_shrink(first, RANKS_PATIENCE_MS, &second), 0);
    expect_works(&d, second, roots, fewer);
    muster_group_free(second);
    muster_group_free(pair);
    muster_group_free(first);
    end(&d);
    return 0;
}

static void a_group_may_be_shrunk_twice(void **state) {
    (void)state;
    struct dying ways[] = {{NCCL_DOUBLE, .rules = ONE_CONNECTS, .second = NOBODY},
                           {NCCL_DOUBLE_2_27, .rules = ONE_CONNECTS, .on_host = true, .second = NOBODY},
                           {NCCL_DOUBLE_2_18, .second = NOBODY}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        run_dying(4, twice_body, &ways[i], 2);
        run_dying(8, twice_body, &ways[i], 2);
    }
}

/* The group is shrunk while its progress thread may still be giving up a call on the GPU: that comes first, or all
 * connect anew. */
static int handle_body(struct rank *rank, void *argument) {
    const struct dying *dying = argument;
    struct device_rank d;
    struct muster_group *rest = NULL;
    struct muster_work *work = NULL;
    uint32_t roots[RANKS_MAX] = {0}, count = list_all(rank, roots, 1);
    begin(rank, dying, &d);
    int64_t *values = device_rank_allocate(&d, COUNT * sizeof *values, 0);
    rank_check_code(rank, muster_barrier(d.group, NULL), 0);
    if (rank->rank == 1) {
        (void)raise(SIGKILL);
    }
    rank_check_code(rank, muster_all_reduce(d.group, values, values, COUNT, MUSTER_INT64, MUSTER_OP_SUM, &work), 0);
    rank_check_code(rank, muster_group_shrink(d.group, RANKS_PATIENCE_MS, &rest), 0);
    expect_works(&d, rest, roots, count);
    rank_check(rank, muster_work_wait(&work) != 0);
    device_rank_release(&d, values, 0);
    muster_group_free(rest);
    end(&d);
    return 0;
}

static void a_group_may_be_shrunk_beside_a_call(void **state) {
    (void)state;
    struct dying ways[] = {{NCCL_DOUBLE, .second = NOBODY}, {NCCL_DOUBLE_2_27, .second = NOBODY}};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        run_dying(2, handle_body, &ways[i], NOBODY);
        run_dying(4, handle_body, &ways[i], NOBODY);
    }
}

/* Nobody is gone: NCCL shrinks no communicator that is to lose nobody. */
static int aborted_body(struct rank *rank, void *argument) {
    struct device_rank d;
    struct muster_group *again = NULL;
    uint32_t roots[RANKS_MAX] = {0}, count = list_all(rank, roots, NOBODY);
    (void)argument;
    set("MUSTER_DOUBLE_NCCL", NO_SHRINK);
    device_rank_start(rank, &d);
    rank_check_code(rank, muster_barrier(d.group, NULL), 0);
    muster_group_abort(d.group, "once more");
    rank_check_code(rank, muster_group_shrink(d.group, RANKS_PATIENCE_MS, &again), 0);
    expect_works(&d, again, roots, count);
    muster_group_free(again);
    end(&d);
    return 0;
}

static void without_a_loss_all_connect_anew(void **state) {
    (void)state;
    ranks_run(1, aborted_body, NULL);
    ranks_run(4, aborted_body, NULL);
}

/* ---- older versions ---- */

static int matrix_body(struct rank *rank, void *argument) {
    const char *const *library = argument;
    struct device_rank d;
    set("MUSTER_NCCL_LIBRARY", *library);
    device_rank_start(rank, &d);
    device_matrix_run(&d, 20261128, 1);
    end(&d);
    return 0;
}

static void every_call_goes_with_older_versions(void **state) {
    (void)state;
    const char *libraries[] = {NCCL_DOUBLE_2_18, NCCL_DOUBLE_2_27};
    ranks_run(2, matrix_body, &libraries[0]);
    if (part_is_wanted("whole_matrix")) {
        ranks_run(4, matrix_body, &libraries[0]);
        ranks_run(3, matrix_body, &libraries[1]);
    } else {
        ranks_run(2, matrix_body, &libraries[1]);
    }
}

int main(void) {
    device_ranks_use_doubles(CUDA_DOUBLE, NCCL_DOUBLE);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(their_communicators_come_from_the_parents),
        cmocka_unit_test(nothing_is_split_for_other_engines),
        cmocka_unit_test(a_split_that_fails_lets_all_connect_anew),
        cmocka_unit_test(a_parent_that_cannot_connect_again_has_failed),
        cmocka_unit_test(a_death_in_a_split_is_noticed),
        cmocka_unit_test(survivors_shrink_the_communicator),
        cmocka_unit_test(a_shrink_that_fails_lets_all_connect_anew),
        cmocka_unit_test(a_death_in_a_shrink_is_survived),
        cmocka_unit_test(a_group_may_be_shrunk_twice),
        cmocka_unit_test(a_group_may_be_shrunk_beside_a_call),
        cmocka_unit_test(without_a_loss_all_connect_anew),
        cmocka_unit_test(every_call_goes_with_older_versions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
