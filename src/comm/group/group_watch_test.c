/* A failure that is found while another thread is looking for one. Looking lowers the alarm; the failure may not be
 * lost with it. */
#include <muster/group.h>

#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/status.h"
#include "comm/group/group_impl.h"
#include "comm/group/ranks_test_support.h"
#include "comm/host/bell.h"

/* As many as fit into LAST_MS: on a busy machine each takes turns of the scheduler. */
enum { TRIALS = 100000, LAST_MS = 20000, SPINS_MAX = 1000 };

struct match {
    struct muster_group *group;
    _Atomic int begun, ended; /* trials */
};

/* The two threads are to meet: whoever waits spins, but not while the other has no processor. */
static void await(const _Atomic int *count, int value) {
    for (int i = 0; atomic_load(count) < value; i++) {
        if (i < SPINS_MAX) {
            comm_pause();
        } else {
            (void)sched_yield();
        }
    }
}

static void *fail_it(void *argument) {
    struct match *match = argument;
    for (int trial = 1; trial <= TRIALS; trial++) {
        await(&match->begun, trial);
        if (atomic_load(&match->begun) > TRIALS) {
            break;
        }
        (void)group_fail(match->group, MUSTER_EABORTED, "the test says so", NULL);
        atomic_store(&match->ended, trial);
    }
    return NULL;
}

static int look_while_it_fails(struct rank *rank, void *argument) {
    struct match match = {.group = rank_group(rank, NULL)};
    pthread_t thread;
    (void)argument;
    rank_check_code(rank, pthread_create(&thread, NULL, fail_it, &match), 0);
    int64_t last_ns = clock_monotonic_ns() + LAST_MS * CLOCK_NS_PER_MS;
    for (int trial = 1; trial <= TRIALS && clock_monotonic_ns() < last_ns; trial++) {
        failure_done(&match.group->failure); /* as if nothing had happened */
        failure_init(&match.group->failure);
        group_alarm(match.group);
        atomic_store(&match.begun, trial);
        (void)muster_group_status(match.group); /* either is right at this moment */
        await(&match.ended, trial);
        rank_check_code(rank, muster_group_status(match.group), MUSTER_EABORTED);
    }
    atomic_store(&match.begun, TRIALS + 1);
    rank_check_code(rank, pthread_join(thread, NULL), 0);
    muster_group_free(match.group);
    return 0;
}

static void a_failure_is_not_lost_while_somebody_looks(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(1, look_while_it_fails, NULL, NULL);
    assert_int_equal(ranks_wait(ranks, 0), 0);
    ranks_free(ranks);
}

/* As seen from a call that ends with a failure that another thread has noted and not told about yet. */
static int look_before_the_alarm(struct rank *rank, void *argument) {
    struct muster_group *group = rank_group(rank, NULL);
    const struct muster_failure record = status_no_failure();
    (void)argument;
    rank_check_code(rank, muster_group_status(group), 0); /* lowers the alarm of its making */
    rank_check(rank, failure_set(&group->failure, MUSTER_EABORTED, "another thread says so", &record, NULL, NULL));
    rank_check_code(rank, muster_group_status(group), MUSTER_EABORTED);
    rank_check_code(rank, muster_barrier(group, NULL), MUSTER_EGROUP);
    muster_group_free(group);
    return 0;
}

static void a_failure_counts_before_its_alarm(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(1, look_before_the_alarm, NULL, NULL);
    assert_int_equal(ranks_wait(ranks, 0), 0);
    ranks_free(ranks);
}

static _Atomic int looked;

/* The thread that notes a failure gets no further for now. */
static void await_looked(struct engine *engine, int code) {
    (void)engine;
    (void)code;
    await(&looked, 1);
}

static void *fail_once(void *group) {
    (void)group_fail(group, MUSTER_EABORTED, "the test says so", NULL);
    return NULL;
}

/* Who sees a failure may free the group at once: neighbours know its cause by then. */
static int look_while_it_is_noted(struct rank *rank, void *argument) {
    struct muster_group *group = rank_group(rank, NULL);
    const struct engine_table *table = group->engine->table;
    struct engine_table slow = *table;
    pthread_t thread;
    (void)argument;
    slow.group_failed = await_looked;
    group->engine->table = &slow;
    rank_check_code(rank, pthread_create(&thread, NULL, fail_once, group), 0);
    while (!failure_is_set(&group->failure)) {
        (void)sched_yield();
    }
    rank_check(rank, atomic_load(&group->line->failed) == MUSTER_EABORTED);
    atomic_store(&looked, 1);
    rank_check_code(rank, pthread_join(thread, NULL), 0);
    group->engine->table = table;
    muster_group_free(group);
    return 0;
}

static void neighbours_know_a_failure_before_it_is_seen(void **state) {
    (void)state;
    ranks_run(1, look_while_it_is_noted, NULL);
}

/* Another host tells that a deadline has passed; before the thread that is in the call looks, another one asks how the
 * group does. */
static int ask_before_the_call_looks(struct rank *rank, void *argument) {
    struct muster_group *group = rank_group(rank, NULL);
    const struct p2p_notice notice = {
        .kind = P2P_NOTICE_GROUP_FAILED, .subject = group->id, .code = MUSTER_ETIMEOUT, .sentence = "the test says so"};
    (void)argument;
    rank_check_code(rank, muster_group_status(group), 0); /* lowers the alarm of its making */
    call_line_begin(&group->line->calls, 1, 1, clock_monotonic_ns());
    group_context_hooks.group_notice(group->context, &notice);
    rank_check_code(rank, muster_group_status(group), 0);
    rank_check_code(rank, group_check_message(group), 0);
    rank_check(rank, atomic_load(&group->waiter.alarm) != 0);
    rank_check_code(rank, group_call_stopped(group), MUSTER_ETIMEOUT);
    call_line_finish(&group->line->calls, 1);
    muster_group_free(group);
    return 0;
}

static void a_told_deadline_is_left_for_the_call(void **state) {
    (void)state;
    ranks_run(1, ask_before_the_call_looks, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_failure_is_not_lost_while_somebody_looks),
        cmocka_unit_test(a_failure_counts_before_its_alarm),
        cmocka_unit_test(neighbours_know_a_failure_before_it_is_seen),
        cmocka_unit_test(a_told_deadline_is_left_for_the_call),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
