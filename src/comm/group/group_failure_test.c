/* What becomes of a group when a rank is killed, stopped, leaves, aborts, or makes another call: the right error in all
 * others, in every collective, with a sentence that names the culprit. */
#include <muster/collective.h>
#include <muster/group.h>

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "comm/group/group_impl.h"
#include "comm/group/group_test_support.h"
#include "comm/group/ranks_test_support.h"

enum { MARK_READY = 1, MARK_IN_CALL = 2, MARK_OVER = 3 };
/* A death is to be noticed within 10 ms on an idle machine; this one is shared, and a test asserts no tight times. */
enum { NOTICE_MS_MAX = 20000 }; /* a peer that is only silent is given up after 30 s: that is another way to notice */

struct plan {
    int which;
    bool with_handle;
    int64_t timeout_ms;
    int expected;
};

/* ---- killed ---- */

/* Rank 1 waits for its end; the others are in the call, and fail. */
static int lose_rank_1(struct rank *rank, void *argument) {
    const struct plan *plan = argument;
    struct muster_work *work = NULL;
    struct muster_group *group = rank_group(rank, NULL);
    rank_check_code(rank, test_all_reduce(group, NULL), 0);
    rank_hurry(group, plan->timeout_ms); /* now that all are here */
    rank_mark(rank, MARK_READY);
    if (rank->rank == 1) {
        rank_await_signal(rank, 1);
        return 0;
    }
    rank_mark(rank, MARK_IN_CALL);
    int code = test_collectives[plan->which].call(group, plan->with_handle ? &work : NULL);
    code = code ? code : muster_work_wait(&work);
    if (code == 0 && !test_collectives[plan->which].needs_all) {
        code = test_barrier(group, NULL); /* its own part was done: the next call tells */
    }
    rank_mark(rank, MARK_OVER);
    rank_report(rank, muster_detail());
    rank_check_code(rank, code, plan->expected);
    rank_check_code(rank, muster_group_status(group), plan->expected);
    rank_check_code(rank, test_barrier(group, NULL), MUSTER_EGROUP);
    muster_group_free(group);
    return 0;
}

static void lose_in(int which, bool with_handle, bool stopped) {
    struct plan plan = {which, with_handle, stopped ? 300 : RANKS_PATIENCE_MS,
                        stopped ? MUSTER_ETIMEOUT : MUSTER_EPEER};
    struct ranks *ranks = ranks_start(3, lose_rank_1, &plan, NULL);
    ranks_await(ranks, 1, MARK_READY);
    if (stopped) {
        ranks_stop(ranks, 1);
    }
    ranks_await(ranks, 0, MARK_IN_CALL);
    ranks_await(ranks, 2, MARK_IN_CALL);
    int64_t killed_ns = clock_monotonic_ns();
    if (!stopped) {
        ranks_kill(ranks, 1);
    }
    for (uint32_t rank = 0; rank < 3; rank += 2) {
        if (ranks_wait(ranks, rank) != 0) {
            fail_msg("%s: rank %u ended with %d: %s", test_collectives[which].name, rank, ranks_wait(ranks, rank),
                     ranks_report(ranks, rank));
        }
        const char *report = ranks_report(ranks, rank);
        if (stopped && !test_collectives[which].needs_all) { /* rank 2 waits for rank 0, which waits for rank 1 */
            assert_non_null(strstr(report, "did not come: "));
            continue;
        }
        if (!strstr(report, stopped ? "did not come: 1" : "rank 1 (pid ") ||
            !strstr(report, "its last call was 1, all_reduce of 4096 float32, sum, which it had finished")) {
            fail_msg("%s: '%s'", test_collectives[which].name, report);
        }
        if (!stopped) {
            assert_non_null(strstr(report, "was killed by signal 9"));
            assert_true(ranks_mark_time_ns(ranks, rank, MARK_OVER) - killed_ns < NOTICE_MS_MAX * CLOCK_NS_PER_MS);
        }
    }
    ranks_free(ranks);
}

static void a_killed_rank_ends_every_collective(void **state) {
    (void)state;
    for (int which = 0; which < TEST_COLLECTIVE_COUNT; which++) {
        lose_in(which, false, false);
        lose_in(which, true, false);
    }
}

static void a_stopped_rank_ends_every_collective_at_the_deadline(void **state) {
    (void)state;
    for (int which = 0; which < TEST_COLLECTIVE_COUNT; which++) {
        if (strcmp(test_collectives[which].name, "monitored_barrier") != 0) { /* it has a deadline of its own */
            lose_in(which, which % 2, true);
        }
    }
}

/* ---- killed in the middle: any instruction ---- */

static void a_rank_may_be_killed_at_any_moment(void **state) {
    (void)state;
    for (int which = 0; which < TEST_COLLECTIVE_COUNT; which++) {
        struct test_collective collective = test_collectives[which];
        struct ranks *ranks = ranks_start(3, test_call_for_ever, &collective, NULL);
        ranks_await_all(ranks, TEST_MARK_READY);
        ranks_kill(ranks, 1);
        for (uint32_t rank = 0; rank < 3; rank += 2) {
            if (ranks_wait(ranks, rank) != 0 || !strstr(ranks_report(ranks, rank), "rank 1 (pid ")) {
                fail_msg("%s: rank %u ended with %d: '%s'", collective.name, rank, ranks_wait(ranks, rank),
                         ranks_report(ranks, rank));
            }
        }
        ranks_free(ranks);
    }
}

/* ---- exits ---- */

static int exit_without_freeing(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    rank_check_code(rank, test_barrier(group, NULL), 0);
    if (rank->rank == 1) {
        return 7;
    }
    rank_check_code(rank, test_barrier(group, NULL), MUSTER_EPEER);
    rank_report(rank, muster_detail());
    muster_group_free(group);
    return 0;
}

static void an_exit_without_free_is_a_death(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(3, exit_without_freeing, NULL, NULL);
    assert_int_equal(ranks_wait(ranks, 1), 7);
    assert_int_equal(ranks_wait(ranks, 0), 0);
    assert_int_equal(ranks_wait(ranks, 2), 0);
    assert_non_null(strstr(ranks_report(ranks, 0), "exited with code 7"));
    ranks_free(ranks);
}

/* Rank 1 leaves in good order and lives on: an error, at once, for those who go on calling; none for the others. */
static int leave_early(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    rank_check_code(rank, test_barrier(group, NULL), 0);
    if (rank->rank == 1) {
        rank_await(rank, 0, MARK_IN_CALL);
        muster_group_free(group);
        rank_await_signal(rank, 1);
        return 0;
    }
    if (rank->rank == 0) {
        rank_mark(rank, MARK_IN_CALL);
        rank_check_code(rank, test_barrier(group, NULL), MUSTER_EPEER);
        rank_report(rank, muster_detail());
    } else {
        rank_await(rank, 0, MARK_IN_CALL);
    }
    muster_group_free(group);
    return 0;
}

static void who_has_left_is_missed_at_once(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(3, leave_early, NULL, NULL);
    assert_int_equal(ranks_wait(ranks, 0), 0);
    assert_int_equal(ranks_wait(ranks, 2), 0);
    assert_non_null(strstr(ranks_report(ranks, 0), "has left the group"));
    ranks_signal(ranks, 1);
    assert_int_equal(ranks_wait(ranks, 1), 0);
    ranks_free(ranks);
}

static int call_alone(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    if (rank->rank == 1) {
        muster_group_free(group);
        rank_mark(rank, MARK_IN_CALL);
        return 0;
    }
    rank_await(rank, 1, MARK_IN_CALL);
    rank_check_code(rank, test_barrier(group, NULL), MUSTER_EPEER);
    rank_report(rank, muster_detail());
    muster_group_free(group);
    return 0;
}

/* The others have left before the call has begun. */
static void a_call_that_one_rank_alone_makes_is_named(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(2, call_alone, NULL, NULL);
    assert_int_equal(ranks_wait(ranks, 0), 0);
    assert_int_equal(ranks_wait(ranks, 1), 0);
    assert_non_null(strstr(ranks_report(ranks, 0), "barrier (call 1): "));
    assert_non_null(strstr(ranks_report(ranks, 0), "has left the group; it had made no call"));
    ranks_free(ranks);
}

/* Ranks leave after the last call, in any order: nobody sees an error. */
static void leaving_in_good_order_is_no_failure(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) {
        ranks_run(4, test_leave_in_good_order, NULL);
    }
}

/* ---- mismatches ---- */

static int make_different_calls(struct rank *rank, void *argument) {
    int which = *(int *)argument;
    struct muster_group *group = rank_group(rank, NULL);
    bool odd = rank->rank == 1;
    rank_check_code(rank, test_barrier(group, NULL), 0);
    int code = 0;
    switch (which) {
    case 0: /* operation */
        code = odd ? test_barrier(group, NULL) : test_all_reduce(group, NULL);
        break;
    case 1: /* count */
        code = muster_all_reduce(group, test_send, test_receive, odd ? 5 : 4, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL);
        break;
    case 2: /* type */
        code = muster_all_reduce(group, test_send, test_receive, 4, odd ? MUSTER_INT32 : MUSTER_FLOAT32, MUSTER_OP_SUM,
                                 NULL);
        break;
    case 3: /* reduction */
        code = muster_all_reduce(group, test_send, test_receive, 4, MUSTER_FLOAT32, odd ? MUSTER_OP_MAX : MUSTER_OP_SUM,
                                 NULL);
        break;
    default: /* root: the two roots have given all they have, and notice in the next call */
        code = muster_broadcast(group, test_send, 4, MUSTER_FLOAT32, odd, NULL);
        code = code ? code : test_barrier(group, NULL);
    }
    rank_report(rank, muster_detail());
    rank_check_code(rank, code, MUSTER_EMISMATCH);
    muster_group_free(group);
    return 0;
}

static void different_calls_are_an_error_at_once(void **state) {
    (void)state;
    static const char *const words[][2] = {
        {"barrier", "all_reduce of 4096 float32, sum"},
        {"all_reduce of 5 float32, sum", "all_reduce of 4 float32, sum"},
        {"all_reduce of 4 int32, sum", "all_reduce of 4 float32, sum"},
        {"all_reduce of 4 float32, max", "all_reduce of 4 float32, sum"},
        {"broadcast of 4 float32, root 1", "broadcast of 4 float32, root 0"},
    };
    for (int which = 0; which < 5; which++) {
        struct ranks *ranks = ranks_start(3, make_different_calls, &which, NULL);
        for (uint32_t rank = 0; rank < 3; rank++) {
            assert_int_equal(ranks_wait(ranks, rank), 0);
            const char *report = ranks_report(ranks, rank);
            if (!strstr(report, words[which][0]) || !strstr(report, words[which][1]) || !strstr(report, "rank 1") ||
                !strstr(report, "call 2 ")) {
                fail_msg("case %d: '%s'", which, report);
            }
        }
        ranks_free(ranks);
    }
}

/* ---- abort ---- */

struct aborter {
    struct rank *rank;
    struct muster_group *group;
};

static void *abort_on_signal(void *argument) {
    struct aborter *aborter = argument;
    rank_await_signal(aborter->rank, 1);
    muster_group_abort(aborter->group, "the user pressed a key");
    return NULL;
}

static int be_aborted(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct aborter aborter = {rank, group};
    pthread_t thread = pthread_self();
    rank_check_code(rank, test_barrier(group, NULL), 0);
    if (rank->rank == 0) { /* it is blocked itself while its other thread aborts */
        rank_check(rank, pthread_create(&thread, NULL, abort_on_signal, &aborter) == 0);
    }
    rank_mark(rank, MARK_IN_CALL);
    if (rank->rank == 2) {
        rank_await_signal(rank, 2); /* comes when all is over */
        rank_check_code(rank, muster_group_status(group), MUSTER_EABORTED);
        rank_check_code(rank, test_barrier(group, NULL), MUSTER_EGROUP);
    } else {
        rank_check_code(rank, test_barrier(group, NULL), MUSTER_EABORTED);
    }
    rank_report(rank, muster_detail());
    if (rank->rank == 0) {
        rank_check(rank, pthread_join(thread, NULL) == 0);
    }
    muster_group_free(group);
    return 0;
}

static void an_abort_ends_all_calls(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(3, be_aborted, NULL, NULL);
    ranks_await_all(ranks, MARK_IN_CALL);
    ranks_signal(ranks, 1);
    assert_int_equal(ranks_wait(ranks, 0), 0);
    assert_int_equal(ranks_wait(ranks, 1), 0);
    ranks_signal(ranks, 2);
    assert_int_equal(ranks_wait(ranks, 2), 0);
    for (uint32_t rank = 0; rank < 3; rank++) {
        assert_non_null(strstr(ranks_report(ranks, rank), "rank 0 aborted group 'world': the user pressed a key"));
    }
    ranks_free(ranks);
}

/* A root need not wait for those it sends to: it may leave while they have calls to begin that it has finished. */
static int leave_ahead(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    if (rank->rank != 0) {
        rank_await(rank, 0, MARK_IN_CALL);
    }
    for (int i = 0; i < 5; i++) {
        int value = rank->rank == 0 ? i : -1;
        rank_check_code(rank, muster_broadcast(group, &value, 1, MUSTER_INT32, 0, NULL), 0);
        rank_check(rank, value == i);
    }
    if (rank->rank == 1) {
        rank_check_code(rank, test_barrier(group, NULL), MUSTER_EPEER); /* this one it has not */
        rank_report(rank, muster_detail());
    }
    muster_group_free(group);
    if (rank->rank == 0) {
        rank_mark(rank, MARK_IN_CALL);
    }
    return 0;
}

static void a_root_may_leave_ahead(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(2, leave_ahead, NULL, NULL);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(ranks_wait(ranks, rank), 0);
    }
    assert_non_null(strstr(ranks_report(ranks, 1), "has left the group"));
    ranks_free(ranks);
}

/* ---- at the start ---- */

static bool is_absent(uint32_t rank) {
    return rank == 2 || rank == 4 || rank == 5;
}

static int come_or_stay_away(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = NULL;
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.timeout_ms = 1000;
    if (is_absent(rank->rank)) {
        return 0;
    }
    rank_mark(rank, MARK_READY);
    for (uint32_t other = 0; other < 8; other++) {
        if (!is_absent(other)) {
            rank_await(rank, other, MARK_READY); /* the time begins when those that come are there */
        }
    }
    rank_check_code(rank, muster_group_create_store(rank_store(rank), rank->rank, 8, &options, &group),
                    MUSTER_ETIMEOUT);
    rank_report(rank, muster_detail());
    rank_check(rank, group == NULL);
    return 0;
}

static void ranks_that_do_not_come_are_named(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(8, come_or_stay_away, NULL, NULL);
    for (uint32_t rank = 0; rank < 8; rank++) {
        assert_int_equal(ranks_wait(ranks, rank), 0);
        const char *report = ranks_report(ranks, rank);
        if (report[0] && !strstr(report, "3 of 8 ranks did not come in time: ranks 2, 4-5")) {
            fail_msg("rank %u: '%s'", rank, report);
        }
    }
    assert_true(ranks_report(ranks, 0)[0] != '\0' && ranks_report(ranks, 7)[0] != '\0');
    ranks_free(ranks);
}

/* Rank 2 has told who it is, and dies before it shares memory. */
static int die_while_meeting(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = NULL;
    if (rank->rank == 2) {
        rank_die_while_meeting(rank, 3);
    }
    rank_check_code(rank, muster_group_create_store(rank_store(rank), rank->rank, rank->size, NULL, &group),
                    MUSTER_EPEER);
    rank_report(rank, muster_detail());
    return 0;
}

static void a_death_while_meeting_is_noticed(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(4, die_while_meeting, NULL, NULL);
    for (uint32_t rank = 0; rank < 4; rank++) {
        assert_int_equal(ranks_wait(ranks, rank), rank == 2 ? 3 : 0);
        assert_true(rank == 2 || strstr(ranks_report(ranks, rank), "rank 2"));
    }
    ranks_free(ranks);
}

/* ---- two threads ---- */

static void *sum_in_a_thread(void *argument) {
    int32_t one = 1;
    int *code = malloc(sizeof *code);
    if (code) {
        *code = muster_all_reduce(argument, &one, &one, 1, MUSTER_INT32, MUSTER_OP_SUM, NULL);
    }
    return code;
}

static int end_of(pthread_t thread) {
    void *result = NULL;
    int code = pthread_join(thread, &result) == 0 && result ? *(int *)result : MUSTER_ESYSTEM;
    free(result);
    return code;
}

/* Rank 0 has a thread in a call, which rank 1 joins when another one has been refused; then once more, when another one
 * has slipped in. */
static int use_two_threads(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    int32_t one = 1;
    pthread_t thread;
    for (int turn = 0; turn < 2; turn++) {
        if (rank->rank == 1) {
            rank_await_signal(rank, (uint32_t)turn + 1);
            int code = muster_all_reduce(group, &one, &one, 1, MUSTER_INT32, MUSTER_OP_SUM, NULL);
            rank_check(rank, turn == 1 || code == 0);
            continue;
        }
        rank_check(rank, pthread_create(&thread, NULL, sum_in_a_thread, group) == 0);
        while (atomic_load(&group->caller) == 0) {
            (void)sched_yield();
        }
        rank_check_code(rank, muster_barrier(group, NULL), MUSTER_EINVAL);
        rank_check(rank, strstr(muster_detail(), "barrier: another thread is in a call on group 'world'") != NULL);
        rank_check_code(rank, muster_group_status(group), 0);
        atomic_store(&group->caller, turn == 0 ? atomic_load(&group->caller) : 1);
        rank_mark(rank, (uint32_t)turn + 1);
        rank_check_code(rank, end_of(thread), turn == 0 ? 0 : MUSTER_EINVAL);
    }
    if (rank->rank == 0) {
        rank_check_code(rank, muster_group_status(group), MUSTER_EINVAL);
        rank_check(rank,
                   strstr(muster_detail(), "two threads were in calls on group 'world' at the same time") != NULL);
    }
    muster_group_free(group);
    return 0;
}

static void two_threads_are_told_so(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(2, use_two_threads, NULL, NULL);
    for (uint32_t turn = 1; turn <= 2; turn++) {
        ranks_await(ranks, 0, turn);
        ranks_signal(ranks, turn);
    }
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_int_equal(ranks_wait(ranks, rank), 0);
    }
    ranks_free(ranks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_ends_every_collective),
        cmocka_unit_test(a_stopped_rank_ends_every_collective_at_the_deadline),
        cmocka_unit_test(a_rank_may_be_killed_at_any_moment),
        cmocka_unit_test(an_exit_without_free_is_a_death),
        cmocka_unit_test(who_has_left_is_missed_at_once),
        cmocka_unit_test(a_call_that_one_rank_alone_makes_is_named),
        cmocka_unit_test(a_root_may_leave_ahead),
        cmocka_unit_test(leaving_in_good_order_is_no_failure),
        cmocka_unit_test(different_calls_are_an_error_at_once),
        cmocka_unit_test(an_abort_ends_all_calls),
        cmocka_unit_test(ranks_that_do_not_come_are_named),
        cmocka_unit_test(a_death_while_meeting_is_noticed),
        cmocka_unit_test(two_threads_are_told_so),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
