/* A call that is interrupted by a signal: the program is asked, and the group ends on all ranks. In every way to wait,
 * on one host and over TCP. */
#include <muster/collective.h>
#include <muster/group.h>

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <string.h>

#include <cmocka.h>

#include "comm/group/group_impl.h"
#include "comm/group/ranks_test_support.h"

enum { MARK_IN_CALL = 1, SIGNAL_OVER = 1 };

static _Atomic int has_come; /* the progress thread may ask, too */
static _Atomic int answers;  /* how often the program was asked */

static void note(int number) {
    (void)number;
    atomic_store(&has_come, 1);
}

static int was_interrupted(void *context) {
    atomic_fetch_add((_Atomic int *)context, 1);
    return atomic_load(&has_come);
}

/* ---- ways to wait ---- */

static int in_barrier(struct muster_group *group) {
    return muster_barrier(group, NULL);
}

static int in_receive(struct muster_group *group) {
    int32_t value;
    return muster_receive(group, &value, 1, MUSTER_INT32, 1, 0, NULL, NULL);
}

static int in_wait(struct muster_group *group) {
    struct muster_work *work = NULL;
    int code = muster_barrier(group, &work);
    return code ? code : muster_work_wait(&work);
}

static int in_wait_any(struct muster_group *group) {
    struct muster_work *work = NULL;
    size_t index = 1;
    int32_t value;
    int code = muster_receive(group, &value, 1, MUSTER_INT32, 1, 0, NULL, &work);
    code = code ? code : muster_work_wait_any(&work, 1, -1, &index);
    return code ? code : muster_work_wait(&work);
}

struct way {
    const char *name;
    int (*wait)(struct muster_group *group);
};

static const struct way ways[] = {
    {"barrier", in_barrier}, {"receive", in_receive}, {"wait", in_wait}, {"wait_any", in_wait_any}};

static int be_interrupted(struct rank *rank, void *argument) {
    const struct way *way = argument;
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.interrupted = was_interrupted;
    options.interrupted_context = (void *)&answers;
    struct muster_group *group = rank_group(rank, &options);
    struct sigaction action = {.sa_handler = note};
    rank_check(rank, sigaction(SIGUSR1, &action, NULL) == 0);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    rank_mark(rank, MARK_IN_CALL);
    if (rank->rank == 0) {
        rank_check_code(rank, way->wait(group), MUSTER_EABORTED);
        rank_report(rank, muster_detail());
        rank_check(rank, atomic_load(&answers) > 0);
        rank_check_code(rank, muster_barrier(group, NULL), MUSTER_EGROUP);
    } else {
        rank_await_signal(rank, SIGNAL_OVER);
        rank_check_code(rank, muster_group_status(group), MUSTER_EABORTED);
        rank_report(rank, muster_detail());
    }
    muster_group_free(group);
    return 0;
}

static void interrupt(const struct way *way, const struct ranks_options *options) {
    struct way given = *way;
    struct ranks *ranks = ranks_start(2, be_interrupted, &given, options);
    ranks_await(ranks, 0, MARK_IN_CALL);
    ranks_await(ranks, 1, MARK_IN_CALL);
    assert_int_equal(kill(ranks_pid(ranks, 0), SIGUSR1), 0);
    if (ranks_wait(ranks, 0) != 0) {
        fail_msg("%s: rank 0 ended with %d", way->name, ranks_wait(ranks, 0));
    }
    ranks_signal(ranks, SIGNAL_OVER);
    assert_int_equal(ranks_wait(ranks, 1), 0);
    for (uint32_t rank = 0; rank < 2; rank++) {
        assert_non_null(strstr(ranks_report(ranks, rank), "rank 0 aborted group 'world': interrupted"));
    }
    ranks_free(ranks);
}

static void on_one_host(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        interrupt(&ways[i], NULL);
    }
}

/* ---- a call that has waited for long ---- */

/* MPI is asked again and again at first; a thread that waits for long sleeps with every engine. */
static int answers_until_long(const struct muster_group *group) {
    return strcmp(muster_group_engine(group), "mpi") == 0 ? 25 : 2;
}

struct long_wait {
    struct rank *rank;
    _Atomic int answers_left; /* the progress thread may ask, too */
};

static int count_answers(void *context) {
    struct long_wait *wait = context;
    if (atomic_fetch_sub(&wait->answers_left, 1) == 1) {
        rank_mark(wait->rank, MARK_IN_CALL);
    }
    return atomic_load(&has_come);
}

static int be_interrupted_late(struct rank *rank, void *argument) {
    (void)argument;
    struct long_wait wait = {rank, -1};
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    options.interrupted = count_answers;
    options.interrupted_context = &wait;
    struct muster_group *group = rank_group(rank, &options);
    struct sigaction action = {.sa_handler = note};
    rank_check(rank, sigaction(SIGUSR1, &action, NULL) == 0);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    if (rank->rank == 0) {
        atomic_store(&wait.answers_left, answers_until_long(group));
        rank_check_code(rank, in_receive(group), MUSTER_EABORTED);
        rank_report(rank, muster_detail());
    } else {
        rank_await_signal(rank, SIGNAL_OVER);
    }
    muster_group_free(group);
    return 0;
}

static void in_a_receive_that_has_waited_for_long(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(2, be_interrupted_late, NULL, NULL);
    ranks_await(ranks, 0, MARK_IN_CALL);
    assert_int_equal(kill(ranks_pid(ranks, 0), SIGUSR1), 0);
    assert_int_equal(ranks_wait(ranks, 0), 0);
    ranks_signal(ranks, SIGNAL_OVER);
    assert_int_equal(ranks_wait(ranks, 1), 0);
    assert_non_null(strstr(ranks_report(ranks, 0), "rank 0 aborted group 'world': interrupted"));
    ranks_free(ranks);
}

static void over_tcp(void **state) {
    (void)state;
    const struct ranks_options options = {.ranks_per_host = 1};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        interrupt(&ways[i], &options);
    }
}

/* ---- a time-out that changes ---- */

static int hurry(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    rank_check_code(rank, muster_group_set_timeout(group, 0), MUSTER_EINVAL);
    rank_check_code(rank, muster_group_set_timeout(NULL, 1), MUSTER_EINVAL);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    if (rank->rank == 0) {
        rank_check_code(rank, muster_group_set_timeout(group, 50), 0);
        rank_check_code(rank, muster_barrier(group, NULL), MUSTER_ETIMEOUT);
        rank_check(rank, strstr(muster_detail(), "not done within 0.050 s") != NULL);
        rank_mark(rank, MARK_IN_CALL);
    } else {
        rank_await(rank, 0, MARK_IN_CALL);
    }
    muster_group_free(group);
    return 0;
}

static void a_time_out_holds_from_the_next_call_on(void **state) {
    (void)state;
    ranks_run(2, hurry, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_one_host),
        cmocka_unit_test(over_tcp),
        cmocka_unit_test(in_a_receive_that_has_waited_for_long),
        cmocka_unit_test(a_time_out_holds_from_the_next_call_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
