/* Handles that are given away: the callback comes once, with the call's result, whether it was done before or not. */
#include <muster/collective.h>
#include <muster/group.h>
#include <muster/work.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "comm/group/group_impl.h"
#include "comm/group/ranks_test_support.h"

enum { CALLS = 200, MARK_GIVEN = 1, MARK_OVER = 2 };

struct told {
    _Atomic int count;
    int code;
    char detail[MUSTER_DETAIL_MAX];
};

static void note(void *context, int code, const char *detail) {
    struct told *told = context;
    told->code = code;
    (void)snprintf(told->detail, sizeof told->detail, "%s", detail);
    atomic_fetch_add(&told->count, 1);
}

static void await(struct rank *rank, struct told *told) {
    int64_t until_ns = clock_monotonic_ns() + RANKS_PATIENCE_MS * CLOCK_NS_PER_MS;
    while (atomic_load(&told->count) == 0) {
        rank_check(rank, clock_monotonic_ns() < until_ns);
    }
    rank_check(rank, atomic_load(&told->count) == 1);
}

/* Some are done when they are given away, most are not; a blocking call comes after all of them. */
static int give_many_away(struct rank *rank, void *argument) {
    (void)argument;
    static struct told told[CALLS];
    static int64_t values[CALLS];
    struct muster_group *group = rank_group(rank, NULL);
    for (int i = 0; i < CALLS; i++) {
        struct muster_work *work = NULL;
        values[i] = i + (int64_t)rank->rank;
        rank_check_code(rank, muster_all_reduce(group, &values[i], &values[i], 1, MUSTER_INT64, MUSTER_OP_SUM, &work),
                        0);
        while (i % 5 == 0 && !muster_work_done(work)) {
        }
        rank_check_code(rank, muster_work_then(&work, note, &told[i]), 0);
        rank_check(rank, work == NULL);
    }
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    for (int i = 0; i < CALLS; i++) {
        await(rank, &told[i]);
        rank_check(rank, told[i].code == 0 && told[i].detail[0] == '\0');
        rank_check(rank, values[i] == 2 * i + 1);
    }
    muster_group_free(group);
    return 0;
}

static void each_is_told_once(void **state) {
    (void)state;
    ranks_run(2, give_many_away, NULL);
}

/* Rank 1 never comes: the callback has the code and the sentence. */
static int give_away_in_vain(struct rank *rank, void *argument) {
    (void)argument;
    static struct told told;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_work *work = NULL;
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    if (rank->rank == 0) {
        rank_hurry(group, 50);
        rank_check_code(rank, muster_barrier(group, &work), 0);
        rank_check_code(rank, muster_work_then(&work, note, &told), 0);
        await(rank, &told);
        rank_check(rank, told.code == MUSTER_ETIMEOUT && strstr(told.detail, "these ranks did not come: 1"));
        rank_mark(rank, MARK_OVER);
    } else {
        rank_await(rank, 0, MARK_OVER);
    }
    muster_group_free(group);
    return 0;
}

static void a_failure_is_told_with_its_sentence(void **state) {
    (void)state;
    ranks_run(2, give_away_in_vain, NULL);
}

static int be_refused(struct rank *rank, void *argument) {
    (void)argument;
    struct told told = {0};
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_work *work = NULL;
    int32_t value = 7;
    rank_check_code(rank, muster_work_then(NULL, note, &told), 0);
    rank_check_code(rank, muster_work_then(&work, note, &told), 0);
    rank_check_code(rank, muster_barrier(group, &work), 0);
    rank_check_code(rank, muster_work_then(&work, NULL, &told), MUSTER_EINVAL);
    rank_check_code(rank, muster_work_wait(&work), 0);
    if (rank->rank == 0) {
        rank_check_code(rank, muster_send(group, &value, 1, MUSTER_INT32, 1, 0, &work), 0);
    } else {
        rank_check_code(rank, muster_receive(group, &value, 1, MUSTER_INT32, 0, 0, NULL, &work), 0);
    }
    rank_check_code(rank, muster_work_then(&work, note, &told), MUSTER_EINVAL);
    rank_check(rank, work != NULL);
    rank_check_code(rank, muster_work_wait(&work), 0);
    rank_check(rank, atomic_load(&told.count) == 0);
    muster_group_free(group);
    return 0;
}

static void messages_and_nothing_are_refused(void **state) {
    (void)state;
    ranks_run(2, be_refused, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_is_told_once),
        cmocka_unit_test(a_failure_is_told_with_its_sentence),
        cmocka_unit_test(messages_and_nothing_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
