/* Ranks that have begun a call and then get stuck in it: stopped by a signal, or hung in the program's own code. At the
 * deadline the others name them, though all ranks have begun the call. */
#include <muster/collective.h>
#include <muster/group.h>

#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/group/group_impl.h"
#include "comm/group/ranks_test_support.h"

enum { MARK_ALL_THERE = 2, SIZE = 3, VICTIM = 1, LARGE_COUNT = 1 << 20 };

static int stuck[2]; /* a pipe into which the victim writes when it hangs */

static void hang(int number) {
    ssize_t ignored = write(stuck[1], "!", 1);
    (void)ignored;
    (void)number;
    for (;;) {
        (void)pause();
    }
}

/* The victim comes first; the others when it is stuck. They need it for more than its coming: a buffer of this size
 * takes many steps. */
static int call_after_the_victim(struct rank *rank, void *argument) {
    static float numbers[LARGE_COUNT];
    int code;
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    rank_hurry(group, rank->rank == VICTIM ? RANKS_PATIENCE_MS : 500);
    const struct group_line *line = group_line_of(group, VICTIM);
    if (rank->rank == VICTIM) {
        (void)signal(SIGUSR1, hang);
        (void)muster_all_reduce(group, numbers, numbers, LARGE_COUNT, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL);
        return 0; /* not before the test is over */
    }
    while (call_line_begun(&line->calls) < 2) { /* the first has brought them together */
        (void)sched_yield();
    }
    rank_mark(rank, MARK_ALL_THERE);
    rank_await_signal(rank, 1);
    code = muster_all_reduce(group, numbers, numbers, LARGE_COUNT, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL);
    rank_report(rank, muster_detail());
    rank_check_code(rank, code, MUSTER_ETIMEOUT);
    muster_group_free(group);
    return 0;
}

static void expect(struct ranks *ranks, const char *words) {
    char expected[256];
    (void)snprintf(expected, sizeof expected, "all ranks have begun it; rank %d (pid %d on host ", VICTIM,
                   (int)ranks_pid(ranks, VICTIM));
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        if (rank != VICTIM) {
            assert_int_equal(ranks_wait(ranks, rank), 0);
            if (!strstr(ranks_report(ranks, rank), expected) || !strstr(ranks_report(ranks, rank), words)) {
                fail_msg("rank %u: '%s'", rank, ranks_report(ranks, rank));
            }
        }
    }
}

static struct ranks *begin(void) {
    struct ranks *ranks = ranks_start(SIZE, call_after_the_victim, NULL, NULL);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        if (rank != VICTIM) {
            ranks_await(ranks, rank, MARK_ALL_THERE);
        }
    }
    return ranks;
}

static void a_rank_stopped_in_a_call_is_named(void **state) {
    (void)state;
    struct ranks *ranks = begin();
    ranks_stop(ranks, VICTIM);
    ranks_signal(ranks, 1);
    expect(ranks, " is stopped by a signal");
    ranks_free(ranks);
}

static void a_rank_hung_in_a_call_is_named(void **state) {
    (void)state;
    char byte = 0;
    assert_int_equal(pipe(stuck), 0);
    struct ranks *ranks = begin();
    assert_int_equal(kill(ranks_pid(ranks, VICTIM), SIGUSR1), 0);
    assert_int_equal(read(stuck[0], &byte, 1), 1);
    ranks_signal(ranks, 1);
    expect(ranks, " is behind, by ");
    ranks_free(ranks);
    (void)close(stuck[0]);
    (void)close(stuck[1]);
}

/* A receive from a rank that is stopped says so, too. */
static int receive_from_the_victim(struct rank *rank, void *argument) {
    int number = 0;
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    rank_hurry(group, 300);
    rank_mark(rank, MARK_ALL_THERE);
    rank_await_signal(rank, 1);
    if (rank->rank != VICTIM) {
        int code = muster_receive(group, &number, 1, MUSTER_INT32, MUSTER_ANY_RANK, 0, NULL, NULL);
        rank_report(rank, muster_detail());
        rank_check_code(rank, code, MUSTER_ETIMEOUT);
    }
    muster_group_free(group);
    return 0;
}

static void a_stopped_sender_is_named(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(2, receive_from_the_victim, NULL, NULL);
    ranks_await(ranks, 0, MARK_ALL_THERE);
    ranks_await(ranks, VICTIM, MARK_ALL_THERE);
    ranks_stop(ranks, VICTIM);
    ranks_signal(ranks, 1);
    assert_int_equal(ranks_wait(ranks, 0), 0);
    if (!strstr(ranks_report(ranks, 0), "no message with tag 0 has come; rank 1 (pid ") ||
        !strstr(ranks_report(ranks, 0), " is stopped by a signal")) {
        fail_msg("'%s'", ranks_report(ranks, 0));
    }
    ranks_free(ranks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_stopped_in_a_call_is_named),
        cmocka_unit_test(a_rank_hung_in_a_call_is_named),
        cmocka_unit_test(a_stopped_sender_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
