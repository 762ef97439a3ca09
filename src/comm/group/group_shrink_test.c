/* Survivors go on: after deaths, after a stop, again and again, whoever decides. */
#include <muster/collective.h>
#include <muster/group.h>

#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/group/ranks_test_support.h"

enum { MARK_READY = 1, MARK_OVER = 2, PATIENCE_MS = 20000 };
enum { ROOM_CALLS = 5000 }; /* of 8000 short messages that a peer takes unasked; it tells of room in quarters */

static int64_t sum_of(struct rank *rank, struct muster_group *group, int64_t value) {
    rank_check_code(rank, muster_all_reduce(group, &value, &value, 1, MUSTER_INT64, MUSTER_OP_SUM, NULL), 0);
    return value;
}

/* Calls until it fails, then goes on with the survivors. */
static struct muster_group *survive(struct rank *rank, struct muster_group *group, int64_t timeout_ms) {
    struct muster_group *next = NULL;
    int code = 0;
    while (code == 0) {
        code = muster_barrier(group, NULL);
    }
    rank_check(rank,
               code == MUSTER_EPEER || code == MUSTER_ETIMEOUT || code == MUSTER_EABORTED || code == MUSTER_EGROUP);
    rank_check_code(rank, muster_group_shrink(group, timeout_ms, &next), 0);
    muster_group_free(group);
    return next;
}

/* Rank `victim` of 4 kills itself. */
static int lose_one(struct rank *rank, void *argument) {
    uint32_t victim = *(uint32_t *)argument;
    struct muster_group *group = rank_group(rank, NULL);
    rank_check(rank, sum_of(rank, group, 1) == 4);
    if (rank->rank == victim) {
        (void)raise(SIGKILL);
    }
    group = survive(rank, group, PATIENCE_MS);
    rank_check(rank, muster_group_size(group) == 3);
    rank_check(rank, muster_group_rank(group) == rank->rank - (rank->rank > victim ? 1 : 0));
    rank_check(rank, muster_group_root_rank(group, muster_group_rank(group)) == rank->rank);
    for (int i = 0; i < 10; i++) {
        rank_check(rank, sum_of(rank, group, rank->rank) == 6 - (int64_t)victim);
    }
    rank_check(rank, strcmp(muster_group_name(group), "world") == 0);
    muster_group_free(group);
    return 0;
}

static void survivors_of_a_death_go_on(void **state) {
    (void)state;
    for (uint32_t victim = 0; victim < 4; victim++) {
        struct ranks_options options = {.use_tcp = victim % 2 == 0};
        struct ranks *ranks = ranks_start(4, lose_one, &victim, &options);
        for (uint32_t rank = 0; rank < 4; rank++) {
            assert_int_equal(ranks_wait(ranks, rank), rank == victim ? RANKS_KILLED - SIGKILL : 0);
        }
        ranks_free(ranks);
    }
}

/* Rank after rank dies, until one is left. */
static int lose_all_but_one(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    for (uint32_t size = rank->size; size > 1; size--) {
        rank_check(rank, muster_group_size(group) == size);
        rank_check(rank, sum_of(rank, group, 1) == size);
        if (rank->rank == rank->size - size) {
            (void)raise(SIGKILL);
        }
        group = survive(rank, group, PATIENCE_MS);
    }
    rank_check(rank, sum_of(rank, group, 5) == 5);
    muster_group_free(group);
    return 0;
}

static void again_and_again(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(5, lose_all_but_one, NULL, NULL);
    assert_int_equal(ranks_wait(ranks, 4), 0);
    ranks_free(ranks);
}

/* Several die at any moments, also while the others shrink. */
static int lose_some(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    rank_check(rank, sum_of(rank, group, 1) == rank->size);
    rank_mark(rank, MARK_READY);
    while (muster_group_size(group) > 3) {
        group = survive(rank, group, PATIENCE_MS);
    }
    rank_check(rank, sum_of(rank, group, 1) == 3);
    muster_group_free(group);
    return 0;
}

static void deaths_while_shrinking(void **state) {
    (void)state;
    for (int round = 0; round < 10; round++) {
        struct ranks *ranks = ranks_start(6, lose_some, NULL, NULL);
        ranks_await_all(ranks, MARK_READY);
        ranks_kill(ranks, (uint32_t)(round % 3));
        if (round % 2) {
            assert_int_equal(ranks_wait(ranks, (uint32_t)(round % 3)), RANKS_KILLED - SIGKILL); /* a pause */
        }
        ranks_kill(ranks, 4);
        ranks_kill(ranks, 5);
        for (uint32_t rank = 0; rank < 4; rank++) {
            if (rank != (uint32_t)(round % 3)) {
                assert_int_equal(ranks_wait(ranks, rank), 0);
            }
        }
        ranks_free(ranks);
    }
}

/* Two hosts of two ranks. Rank 3 dies while rank 0 is in no call: what rank 2 tells it of that lies in a connection
 * that nobody reads just then. */
static int lose_one_elsewhere(struct rank *rank, void *argument) {
    enum { VICTIM = 3, TELLER = 2 };
    struct muster_group *group = rank_group(rank, NULL), *next = NULL;
    (void)argument;
    rank_check(rank, sum_of(rank, group, 1) == 4); /* the leaders are connected */
    rank_mark(rank, MARK_READY);
    if (rank->rank == VICTIM) {
        for (uint32_t other = 0; other < rank->size; other++) {
            rank_await(rank, other, MARK_READY);
        }
        (void)raise(SIGKILL);
    }
    while (rank->rank == TELLER && muster_group_status(group) == 0) {
        (void)sched_yield();
    }
    rank_mark(rank, MARK_OVER);
    rank_await(rank, TELLER, MARK_OVER);
    rank_check_code(rank, muster_group_shrink(group, INT64_C(10) * RANKS_PATIENCE_MS, &next), 0);
    rank_check(rank, sum_of(rank, next, 1) == 3);
    muster_group_free(group);
    muster_group_free(next);
    return 0;
}

static void a_death_that_nobody_was_listening_for(void **state) {
    (void)state;
    struct ranks_options options = {.ranks_per_host = 2, .use_tcp = true};
    struct ranks *ranks = ranks_start(4, lose_one_elsewhere, NULL, &options);
    for (uint32_t rank = 0; rank < 3; rank++) {
        assert_int_equal(ranks_wait(ranks, rank), 0);
    }
    ranks_free(ranks);
}

/* The victim is stopped, left out, and continues. */
static int leave_out(struct rank *rank, void *argument) {
    uint32_t victim = *(uint32_t *)argument;
    struct muster_group *next = NULL;
    struct muster_group *group = rank_group(rank, NULL);
    rank_check(rank, sum_of(rank, group, 1) == 3);
    rank_hurry(group, rank->rank == victim ? PATIENCE_MS : 500);
    rank_mark(rank, MARK_READY);
    rank_await_signal(rank, 1);
    if (rank->rank == victim) {
        rank_check(rank, muster_barrier(group, NULL) < 0);
        rank_check_code(rank, muster_group_shrink(group, PATIENCE_MS, &next), MUSTER_EGROUP);
        rank_check(rank, next == NULL && strstr(muster_detail(), "came too late"));
        muster_group_free(group);
        return 0;
    }
    rank_check_code(rank, muster_barrier(group, NULL), MUSTER_ETIMEOUT);
    rank_check_code(rank, muster_group_shrink(group, 1500, &next), 0);
    rank_check(rank, muster_group_size(next) == 2 && sum_of(rank, next, 1) == 2);
    rank_mark(rank, MARK_OVER);
    muster_group_free(group);
    muster_group_free(next);
    return 0;
}

static void a_stopped_rank_is_left_out(void **state) {
    (void)state;
    for (uint32_t victim = 0; victim < 3; victim += 2) {
        struct ranks *ranks = ranks_start(3, leave_out, &victim, NULL);
        ranks_await_all(ranks, MARK_READY);
        ranks_stop(ranks, victim);
        ranks_signal(ranks, 1);
        for (uint32_t rank = 0; rank < 3; rank++) {
            if (rank != victim) {
                ranks_await(ranks, rank, MARK_OVER);
            }
        }
        ranks_continue(ranks, victim);
        for (uint32_t rank = 0; rank < 3; rank++) {
            assert_int_equal(ranks_wait(ranks, rank), 0);
        }
        ranks_free(ranks);
    }
}

/* Nobody has died: the call itself ends the group. Then a part of it. */
static int shrink_what_works(struct rank *rank, void *argument) {
    (void)argument;
    static const uint32_t ends[] = {0, 2};
    struct muster_group *group = rank_group(rank, NULL), *next = NULL, *part = NULL, *rest = NULL;
    rank_check_code(rank, muster_group_shrink(group, 0, &next), MUSTER_EINVAL);
    rank_check_code(rank, muster_group_shrink(group, PATIENCE_MS, &next), 0);
    rank_check_code(rank, muster_barrier(group, NULL), MUSTER_EABORTED);
    rank_check_code(rank, muster_barrier(group, NULL), MUSTER_EGROUP);
    rank_check(rank, sum_of(rank, next, 1) == 3);
    rank_check_code(rank, muster_group_subset(next, ends, 2, NULL, &part), 0);
    if (part) {
        rank_check_code(rank, muster_group_shrink(part, PATIENCE_MS, &rest), 0);
        rank_check(rank, sum_of(rank, rest, rank->rank) == 2);
    }
    rank_check(rank, sum_of(rank, next, 2) == 6);
    muster_group_free(rest);
    muster_group_free(part);
    muster_group_free(next);
    muster_group_free(group);
    return 0;
}

static void a_working_group_and_a_part_can_be_shrunk(void **state) {
    (void)state;
    ranks_run(3, shrink_what_works, NULL);
}

/* In each group, rank 0 sends most of the messages that rank 1 has room for, and rank 1 asks for none of them. */
static int leave_messages_behind(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL), *next = NULL;
    float value = 1;
    for (uint32_t round = 1; round <= 3; round++) {
        int code = 0;
        rank_check(rank, sum_of(rank, group, 1) == 2);
        for (int i = 0; i < ROOM_CALLS && rank->rank == 0; i++) {
            rank_check_code(rank, muster_reduce(group, &value, &value, 1, MUSTER_FLOAT32, MUSTER_OP_SUM, 1, NULL), 0);
        }
        rank_mark(rank, round);
        rank_await(rank, 0, round);
        if (rank->rank == 1) {
            muster_group_abort(group, "enough");
        }
        while (code == 0) {
            code = muster_barrier(group, NULL);
        }
        rank_check_code(rank, code == MUSTER_EGROUP ? MUSTER_EABORTED : code, MUSTER_EABORTED);
        rank_check_code(rank, muster_group_shrink(group, PATIENCE_MS, &next), 0);
        muster_group_free(group);
        group = next;
    }
    muster_group_free(group);
    return 0;
}

static void what_a_failed_group_left_is_in_nobodys_way(void **state) {
    (void)state;
    struct ranks_options options = {.ranks_per_host = 1};
    ranks_run_with(2, leave_messages_behind, NULL, &options);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(survivors_of_a_death_go_on),
        cmocka_unit_test(again_and_again),
        cmocka_unit_test(deaths_while_shrinking),
        cmocka_unit_test(a_death_that_nobody_was_listening_for),
        cmocka_unit_test(a_stopped_rank_is_left_out),
        cmocka_unit_test(a_working_group_and_a_part_can_be_shrunk),
        cmocka_unit_test(what_a_failed_group_left_is_in_nobodys_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
