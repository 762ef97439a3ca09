/* Groups made from groups: by list, by colour, nested, at the same time, and what their failures touch. */
#include <muster/collective.h>
#include <muster/group.h>

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "comm/group/ranks_test_support.h"

static int64_t sum_of(struct rank *rank, struct muster_group *group, int64_t value) {
    rank_check_code(rank, muster_all_reduce(group, &value, &value, 1, MUSTER_INT64, MUSTER_OP_SUM, NULL), 0);
    return value;
}

static int make_subsets(struct rank *rank, void *argument) {
    (void)argument;
    static const uint32_t evens[] = {0, 2, 4}, odds[] = {1, 3}, last[] = {4};
    struct muster_group *world = rank_group(rank, NULL), *even = NULL, *odd = world, *single = NULL, *nested = NULL;
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.name = "odds";
    rank_check_code(rank, muster_group_subset(world, evens, 3, NULL, &even), 0);
    rank_check_code(rank, muster_group_subset(world, odds, 2, &options, &odd), 0);
    rank_check_code(rank, muster_group_subset(world, last, 1, NULL, &single), 0);
    rank_check(rank, (even != NULL) == (rank->rank % 2 == 0));
    rank_check(rank, (odd != NULL) == (rank->rank % 2 == 1));
    rank_check(rank, (single != NULL) == (rank->rank == 4));
    if (even) {
        rank_check(rank, strcmp(muster_group_name(even), "world.1") == 0);
        rank_check(rank, muster_group_rank(even) == rank->rank / 2 && muster_group_size(even) == 3);
        rank_check(rank, muster_group_root_rank(even, 1) == 2);
        rank_check(rank, sum_of(rank, even, rank->rank) == 6);
        static const uint32_t both_ends[] = {0, 2};
        rank_check_code(rank, muster_group_subset(even, both_ends, 2, NULL, &nested), 0);
        rank_check(rank, (nested != NULL) == (rank->rank != 2));
    }
    if (odd) {
        rank_check(rank, strcmp(muster_group_name(odd), "odds") == 0);
        rank_check(rank, sum_of(rank, odd, rank->rank) == 4);
    }
    if (single) {
        rank_check(rank, sum_of(rank, single, 17) == 17);
    }
    if (nested) {
        rank_check(rank, muster_group_root_rank(nested, 1) == 4);
        rank_check(rank, sum_of(rank, nested, rank->rank) == 4);
    }
    rank_check(rank, sum_of(rank, world, 1) == 5);
    muster_group_free(world); /* before those made from it */
    if (nested) {
        rank_check(rank, sum_of(rank, nested, 1) == 2);
    }
    muster_group_free(nested);
    muster_group_free(single);
    muster_group_free(odd);
    muster_group_free(even);
    return 0;
}

static void subsets_by_list(void **state) {
    (void)state;
    ranks_run(5, make_subsets, NULL);
}

static int refuse_lists(struct rank *rank, void *argument) {
    (void)argument;
    static const uint32_t falling[] = {1, 0}, twice[] = {1, 1}, outside[] = {1, 3};
    uint32_t own[] = {rank->rank == 2 ? 1 : 0};
    struct muster_group *world = rank_group(rank, NULL), *group = NULL;
    rank_check_code(rank, muster_group_subset(world, falling, 2, NULL, &group), MUSTER_EINVAL);
    rank_check_code(rank, muster_group_subset(world, twice, 2, NULL, &group), MUSTER_EINVAL);
    rank_check_code(rank, muster_group_subset(world, outside, 2, NULL, &group), MUSTER_EINVAL);
    rank_check_code(rank, muster_group_subset(world, falling, 0, NULL, &group), MUSTER_EINVAL);
    rank_check_code(rank, muster_group_status(world), 0);
    rank_check_code(rank, muster_group_subset(world, own, 1, NULL, &group), MUSTER_EMISMATCH);
    rank_check(rank, group == NULL && strstr(muster_detail(), "different lists"));
    muster_group_free(world);
    return 0;
}

static void wrong_and_different_lists_are_refused(void **state) {
    (void)state;
    ranks_run(3, refuse_lists, NULL);
}

/* Colours 0, 1, 0, 1, -1; keys fall. */
static int split_by_color(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *world = rank_group(rank, NULL), *group = NULL;
    int32_t color = rank->rank == 4 ? -1 : (int32_t)(rank->rank % 2);
    rank_check_code(rank, muster_group_split(world, color, -(int32_t)rank->rank, NULL, &group), 0);
    if (rank->rank == 4) {
        rank_check(rank, group == NULL);
    } else {
        rank_check(rank, muster_group_size(group) == 2);
        rank_check(rank, muster_group_rank(group) == (rank->rank < 2 ? 1 : 0));
        rank_check(rank, muster_group_root_rank(group, 0) == 2 + rank->rank % 2);
        rank_check(rank, strcmp(muster_group_name(group), rank->rank % 2 ? "world.1:1" : "world.1:0") == 0);
        float values[2], own = (float)rank->rank;
        rank_check_code(rank, muster_all_gather(group, &own, values, 1, MUSTER_FLOAT32, NULL), 0);
        rank_check(rank, values[0] == (float)(2 + rank->rank % 2) && values[1] == (float)(rank->rank % 2));
    }
    muster_group_free(group);
    muster_group_free(world);
    return 0;
}

static void splits_by_color_in_the_order_of_keys(void **state) {
    (void)state;
    ranks_run(5, split_by_color, NULL);
}

/* ---- at the same time ---- */

struct busy {
    struct rank *rank;
    struct muster_group *group;
    int rounds;
};

static void *be_busy(void *argument) {
    struct busy *busy = argument;
    for (int i = 0; i < busy->rounds; i++) {
        rank_check(busy->rank, sum_of(busy->rank, busy->group, i) == (int64_t)i * muster_group_size(busy->group));
    }
    return NULL;
}

static int use_two_groups_from_two_threads(struct rank *rank, void *argument) {
    (void)argument;
    static const uint32_t all[] = {0, 1, 2};
    struct muster_group *world = rank_group(rank, NULL), *twin = NULL;
    rank_check_code(rank, muster_group_subset(world, all, 3, NULL, &twin), 0);
    struct busy first = {rank, world, 300}, second = {rank, twin, 300};
    pthread_t thread;
    rank_check(rank, pthread_create(&thread, NULL, be_busy, &second) == 0);
    (void)be_busy(&first);
    rank_check(rank, pthread_join(thread, NULL) == 0);
    muster_group_free(twin);
    muster_group_free(world);
    return 0;
}

static void groups_are_used_from_different_threads(void **state) {
    (void)state;
    ranks_run(3, use_two_groups_from_two_threads, NULL);
}

struct leaver {
    struct muster_group *group;
    pthread_barrier_t *start;
};

static void *leave_with_others(void *argument) {
    struct leaver *leaver = argument;
    (void)pthread_barrier_wait(leaver->start);
    muster_group_free(leaver->group);
    return NULL;
}

/* Whoever is the last takes along what they share, and nobody else does. */
static int free_all_at_once(struct rank *rank, void *argument) {
    (void)argument;
    enum { GROUPS = 4 };
    static const uint32_t own[] = {0};
    struct leaver leavers[GROUPS];
    pthread_t threads[GROUPS];
    pthread_barrier_t start;
    rank_check(rank, pthread_barrier_init(&start, NULL, GROUPS) == 0);
    leavers[0].group = rank_group(rank, NULL);
    for (int i = 0; i < GROUPS; i++) {
        leavers[i].start = &start;
        if (i > 0) {
            rank_check_code(rank, muster_group_subset(leavers[0].group, own, 1, NULL, &leavers[i].group), 0);
        }
    }
    for (int i = 0; i < GROUPS; i++) {
        rank_check(rank, pthread_create(&threads[i], NULL, leave_with_others, &leavers[i]) == 0);
    }
    for (int i = 0; i < GROUPS; i++) {
        rank_check(rank, pthread_join(threads[i], NULL) == 0);
    }
    (void)pthread_barrier_destroy(&start);
    return 0;
}

static void groups_may_be_freed_from_different_threads(void **state) {
    (void)state;
    enum { ROUNDS = 20 };
    for (int i = 0; i < ROUNDS; i++) {
        ranks_run(1, free_all_at_once, NULL);
    }
}

/* ---- engines ---- */

static int wish_differently(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *world = rank_group(rank, NULL), *group = NULL;
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.engine = rank->rank == 1 ? "muster" : "auto";
    rank_check_code(rank, muster_group_split(world, 0, 0, &options, &group), MUSTER_EINVAL);
    rank_check(rank, group == NULL && strstr(muster_detail(), "asks for the engine"));
    rank_check_code(rank, muster_group_split(world, (int32_t)rank->rank % 2, 0, &options, &group), 0);
    rank_check(rank, strcmp(muster_group_engine(group), rank->rank == 1 ? "solo" : "muster") == 0);
    muster_group_free(group);
    muster_group_free(world);
    return 0;
}

/* Of one group they must wish the same; and the parent can be used on. */
static void members_must_wish_the_same_engine(void **state) {
    (void)state;
    ranks_run(3, wish_differently, NULL);
}

/* ---- a rank without memory ---- */

/* The linker has the library call this one. */
static _Thread_local size_t refused_bytes;
static _Thread_local int refused_after;
void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes) {
    if (refused_bytes == 0 || bytes != refused_bytes || refused_after-- > 0) {
        return __real_malloc(bytes);
    }
    refused_bytes = 0;
    return NULL;
}

struct refusal {
    size_t bytes;
    int after;       /* so many of that size that succeed */
    bool is_subset;  /* else by colour */
    bool is_parents; /* the parent fails, too */
};

static int run_out_of_memory(struct rank *rank, void *argument) {
    static const uint32_t all[] = {0, 1, 2};
    const struct refusal *refusal = argument;
    struct muster_group *world = rank_group(rank, NULL), *group = NULL;
    if (rank->rank == 1) {
        refused_bytes = refusal->bytes;
        refused_after = refusal->after;
    }
    rank_check_code(rank,
                    refusal->is_subset ? muster_group_subset(world, all, 3, NULL, &group)
                                       : muster_group_split(world, 0, 0, NULL, &group),
                    MUSTER_ENOMEM);
    rank_check(rank, refused_bytes == 0 && group == NULL);
    rank_check(rank, rank->rank == 1 || strstr(muster_detail(), "rank 1"));
    rank_check(rank, rank->rank != 1 || strstr(muster_detail(), "no memory"));
    if (!refusal->is_parents) { /* and it can be tried again */
        rank_check_code(rank, muster_group_split(world, 0, 0, NULL, &group), 0);
        rank_check(rank, sum_of(rank, group, 1) == 3);
        muster_group_free(group);
    }
    muster_group_free(world);
    return 0;
}

static void a_rank_without_memory_keeps_nobody_waiting(void **state) {
    (void)state;
    enum { CHOICE = 8, OFFER = 41, RANK = 4 };
    struct refusal refusals[] = {{3 * CHOICE, 0, false, true}, {3 * CHOICE, 1, false, false},
                                 {3 * RANK, 0, false, false},  {3 * RANK, 1, false, false},
                                 {3 * OFFER, 0, false, true},  {3 * RANK, 0, true, false},
                                 {3 * OFFER, 0, true, true}};
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        print_message("%zu bytes\n", refusals[i].bytes);
        ranks_run(3, run_out_of_memory, &refusals[i]);
    }
}

/* Rank 1 cannot open the segment that another rank of its host has made: it has no descriptor left for it. */
static int run_out_of_descriptors(struct rank *rank, void *argument) {
    const bool *is_subset = argument;
    static const uint32_t all[] = {0, 1, 2, 3};
    struct muster_group *world = rank_group(rank, NULL), *group = NULL;
    struct rlimit limit, none;
    rank_check(rank, getrlimit(RLIMIT_NOFILE, &limit) == 0);
    none = (struct rlimit){0, limit.rlim_max};
    rank_check(rank, rank->rank != 1 || setrlimit(RLIMIT_NOFILE, &none) == 0);
    int code =
        *is_subset ? muster_group_subset(world, all, 4, NULL, &group) : muster_group_split(world, 0, 0, NULL, &group);
    rank_check(rank, setrlimit(RLIMIT_NOFILE, &limit) == 0);
    rank_check(rank, code != 0 && code != MUSTER_ETIMEOUT && group == NULL);
    rank_check(rank, rank->rank == 1 || strstr(muster_detail(), "rank 1 could not make its part of a new group"));
    rank_check_code(rank, muster_group_split(world, 0, 0, NULL, &group), 0); /* and it can be tried again */
    rank_check(rank, sum_of(rank, group, 1) == 4);
    muster_group_free(group);
    muster_group_free(world);
    return 0;
}

static void a_rank_that_cannot_attach_keeps_nobody_waiting(void **state) {
    (void)state;
    for (int turn = 0; turn < 4; turn++) {
        bool is_subset = turn % 2;
        struct ranks_options options = {.ranks_per_host = turn < 2 ? 0 : 2};
        ranks_run_with(4, run_out_of_descriptors, &is_subset, &options);
    }
}

static int abort_a_part(struct rank *rank, void *argument) {
    (void)argument;
    static const uint32_t pair[] = {0, 1};
    struct muster_group *world = rank_group(rank, NULL), *part = NULL;
    rank_check_code(rank, muster_group_subset(world, pair, 2, NULL, &part), 0);
    if (rank->rank == 0) {
        muster_group_abort(part, "enough");
    }
    if (part) {
        rank_check_code(rank, muster_barrier(part, NULL), MUSTER_EABORTED);
        rank_check_code(rank, muster_barrier(part, NULL), MUSTER_EGROUP);
    }
    rank_check(rank, sum_of(rank, world, 1) == 3);
    muster_group_free(part);
    rank_check(rank, sum_of(rank, world, 2) == 6);
    muster_group_free(world);
    return 0;
}

static void the_end_of_a_part_is_not_that_of_the_whole(void **state) {
    (void)state;
    ranks_run(3, abort_a_part, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(subsets_by_list),
        cmocka_unit_test(wrong_and_different_lists_are_refused),
        cmocka_unit_test(splits_by_color_in_the_order_of_keys),
        cmocka_unit_test(groups_are_used_from_different_threads),
        cmocka_unit_test(groups_may_be_freed_from_different_threads),
        cmocka_unit_test(the_end_of_a_part_is_not_that_of_the_whole),
        cmocka_unit_test(members_must_wish_the_same_engine),
        cmocka_unit_test(a_rank_without_memory_keeps_nobody_waiting),
        cmocka_unit_test(a_rank_that_cannot_attach_keeps_nobody_waiting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
