/* What muster_last_failure() and muster_group_failure() say of a group's failures: to all ranks, on one host and on
 * two. */
#include <muster/collective.h>
#include <muster/failure.h>

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/status.h"
#include "comm/group/ranks_test_support.h"

enum { SIZE = 4, VICTIM = 2, MARK_READY = 1, MARK_WHOLE = 2, MARK_LATE = 3, GO = 1, END = 2, SHORT_MS = 500 };

static struct muster_failure last(void) {
    struct muster_failure failure;
    memset(&failure, 0xEE, sizeof failure);
    (void)muster_last_failure(&failure);
    return failure;
}

static bool is_same(const struct muster_failure *a, const struct muster_failure *b) {
    return a->cause == b->cause && strcmp(a->group, b->group) == 0 && strcmp(a->operation, b->operation) == 0 &&
           a->call == b->call && a->rank == b->rank && a->root_rank == b->root_rank && a->pid == b->pid &&
           a->signal == b->signal && strcmp(a->host, b->host) == 0 && a->missing_count == b->missing_count;
}

static int add_up(struct muster_group *group, struct muster_work **work) {
    static float number;
    return muster_all_reduce(group, &number, &number, 1, MUSTER_FLOAT32, MUSTER_OP_SUM, work);
}

static const struct ranks_options two_hosts = {.ranks_per_host = 2};

/* ---- a death ---- */

/* ---- news that come late ---- */

struct p2p;
struct p2p_request;

static int late_ms; /* how long the death is known to the call alone: then the link tells of it */

/* The linker puts it before that of comm/p2p. */
void __real_request_finish(struct p2p *p2p, struct p2p_request *request, int status, const char *detail);
void __wrap_request_finish(struct p2p *p2p, struct p2p_request *request, int status, const char *detail);
void __wrap_request_finish(struct p2p *p2p, struct p2p_request *request, int status, const char *detail) {
    __real_request_finish(p2p, request, status, detail);
    if (status == MUSTER_EPEER && late_ms > 0) {
        (void)poll(NULL, 0, late_ms);
    }
}

/* A group whose ranks have all done with its first call. */
static struct muster_group *begin(struct rank *rank, int32_t *pids) {
    struct muster_group *group = rank_group(rank, NULL);
    int32_t own = (int32_t)getpid();
    rank_check_code(rank, muster_all_gather(group, &own, pids, 1, MUSTER_INT32, NULL), 0);
    rank_mark(rank, MARK_READY);
    for (uint32_t other = 0; other < SIZE; other++) { /* what comes must not end the call of who is behind */
        rank_await(rank, other, MARK_READY);
    }
    return group;
}

static int lose_the_victim(struct rank *rank, void *argument) {
    (void)argument;
    int32_t pids[SIZE];
    struct muster_group *group = begin(rank, pids);
    struct muster_failure failure;
    rank_check_code(rank, muster_group_failure(group, &failure), 0);
    rank_check(rank, failure.cause == 0 && failure.rank == MUSTER_NO_RANK && failure.missing_count == 0);
    rank_mark(rank, MARK_WHOLE);
    if (rank->rank == VICTIM) {
        rank_await_signal(rank, END); /* that never comes */
    }
    rank_check_code(rank, add_up(group, NULL), MUSTER_EPEER);
    failure = last();
    rank_check(rank, failure.cause == MUSTER_EPEER && failure.rank == VICTIM && failure.root_rank == VICTIM);
    bool may_be_unknown = muster_group_host_count(group) > 1; /* its links may tell of its end first */
    rank_check(rank, failure.pid == pids[VICTIM] || (may_be_unknown && failure.pid == 0));
    rank_check(rank, failure.host[0] != '\0');
    rank_check(rank, strcmp(failure.group, "world") == 0);
    rank_check(rank, failure.call == 0 || (failure.call == 2 && strcmp(failure.operation, "all_reduce") == 0));
    struct muster_failure again;
    rank_check_code(rank, muster_barrier(group, NULL), MUSTER_EGROUP);
    again = last();
    rank_check(rank, is_same(&again, &failure));
    rank_check_code(rank, muster_group_failure(group, &again), MUSTER_EPEER);
    rank_check(rank, is_same(&again, &failure));
    muster_group_free(group);
    return 0;
}

static void expect_all_but_the_victim(struct ranks *ranks) {
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        if (rank != VICTIM) {
            assert_int_equal(ranks_wait(ranks, rank), 0);
        }
    }
}

static void kill_the_victim(rank_function *body, const struct ranks_options *options) {
    struct ranks *ranks = ranks_start(SIZE, body, NULL, options);
    ranks_await_all(ranks, MARK_WHOLE);
    ranks_kill(ranks, VICTIM);
    expect_all_but_the_victim(ranks);
    ranks_free(ranks);
}

static void a_death_is_put_down_to_its_rank(void **state) {
    (void)state;
    kill_the_victim(lose_the_victim, NULL);
    kill_the_victim(lose_the_victim, &two_hosts);
}

static int lose_with_late_news(struct rank *rank, void *argument) {
    late_ms = 20;
    return lose_the_victim(rank, argument);
}

static void a_death_whose_news_come_late_is_put_down_to_its_rank(void **state) {
    (void)state;
    for (int turn = 0; turn < 10; turn++) { /* the thread that waits for the link may have ended the call itself */
        kill_the_victim(lose_with_late_news, &two_hosts);
    }
}

/* ---- a rank that is late ---- */

static bool lists_the_victim(const struct muster_failure *failure) {
    bool lists = false;
    for (uint32_t i = 0; i < failure->run_count; i++) {
        lists |= failure->missing[i].first <= VICTIM && VICTIM < failure->missing[i].first + failure->missing[i].count;
    }
    return lists;
}

static int call_without_the_victim(struct rank *rank, void *argument) {
    (void)argument;
    int32_t pids[SIZE];
    struct muster_group *group = begin(rank, pids);
    rank_hurry(group, SHORT_MS);
    if (rank->rank == VICTIM) {
        rank_await_signal(rank, GO);
        int code = add_up(group, NULL);
        const struct muster_failure failure = last();
        rank_check(rank, code != 0 && failure.cause == MUSTER_ETIMEOUT && lists_the_victim(&failure));
        muster_group_free(group);
        return 0;
    }
    struct muster_work *work = NULL;
    rank_check_code(rank, add_up(group, &work), 0);
    rank_check_code(rank, muster_work_wait(&work), MUSTER_ETIMEOUT);
    const struct muster_failure failure = last();
    rank_check(rank, failure.cause == MUSTER_ETIMEOUT && strcmp(failure.operation, "all_reduce") == 0);
    rank_check(rank, failure.call == 2 && lists_the_victim(&failure));
    /* A rank of another host may not have answered in time on a busy machine, and count as missing, too. */
    rank_check(rank, muster_group_host_count(group) > 1 || failure.missing_count == 1);
    rank_check(rank, failure.rank == (failure.missing_count == 1 ? VICTIM : MUSTER_NO_RANK));
    rank_mark(rank, MARK_LATE);
    rank_await_signal(rank, END);
    muster_group_free(group);
    return 0;
}

static void be_late(const struct ranks_options *options) {
    struct ranks *ranks = ranks_start(SIZE, call_without_the_victim, NULL, options);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        if (rank != VICTIM) {
            ranks_await(ranks, rank, MARK_LATE);
        }
    }
    ranks_signal(ranks, GO);
    assert_int_equal(ranks_wait(ranks, VICTIM), 0);
    ranks_signal(ranks, END);
    expect_all_but_the_victim(ranks);
    ranks_free(ranks);
}

static void who_is_late_is_missing(void **state) {
    (void)state;
    be_late(NULL);
    be_late(&two_hosts);
}

/* ---- another call, and an end at a rank's wish ---- */

static int make_another_call(struct rank *rank, void *argument) {
    (void)argument;
    int32_t pids[SIZE];
    struct muster_group *group = begin(rank, pids);
    int code = rank->rank == VICTIM ? muster_barrier(group, NULL) : add_up(group, NULL);
    const struct muster_failure failure = last();
    rank_check_code(rank, code, MUSTER_EMISMATCH);
    rank_check(rank, failure.cause == MUSTER_EMISMATCH && failure.rank != MUSTER_NO_RANK);
    const char *operation = rank->rank == VICTIM ? "barrier" : "all_reduce";
    rank_check(rank, failure.call == 0 || strcmp(failure.operation, operation) == 0); /* 0: it heard before it began */
    rank_mark(rank, MARK_LATE);
    rank_await_signal(rank, END);
    muster_group_free(group);
    return 0;
}

static int abort_by_the_victim(struct rank *rank, void *argument) {
    (void)argument;
    int32_t pids[SIZE];
    struct muster_group *group = begin(rank, pids);
    if (rank->rank == VICTIM) {
        muster_group_abort(group, "enough");
    }
    rank_check_code(rank, add_up(group, NULL), MUSTER_EABORTED);
    const struct muster_failure failure = last();
    rank_check(rank, failure.cause == MUSTER_EABORTED && failure.rank == VICTIM);
    rank_check(rank, failure.pid == pids[VICTIM] || failure.pid == 0);
    rank_mark(rank, MARK_LATE);
    rank_await_signal(rank, END);
    muster_group_free(group);
    return 0;
}

static void run_to_the_end(rank_function *function, const struct ranks_options *options) {
    struct ranks *ranks = ranks_start(SIZE, function, NULL, options);
    ranks_await_all(ranks, MARK_LATE);
    ranks_signal(ranks, END);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        assert_int_equal(ranks_wait(ranks, rank), 0);
    }
    ranks_free(ranks);
}

static void the_call_that_differs_is_told(void **state) {
    (void)state;
    run_to_the_end(make_another_call, NULL);
}

static void who_aborts_is_told(void **state) {
    (void)state;
    run_to_the_end(abort_by_the_victim, NULL);
    run_to_the_end(abort_by_the_victim, &two_hosts);
}

/* ---- in a function that is called then, of a subset, and without a group ---- */

static void look(void *context, int code, const char *detail) {
    struct muster_failure *out = context;
    (void)code, (void)detail;
    *out = last();
}

static int abort_a_subset(struct rank *rank, void *argument) {
    (void)argument;
    static const uint32_t ranks[] = {1, 2};
    int32_t pids[SIZE];
    struct muster_group *group = begin(rank, pids), *subset = NULL;
    rank_check_code(rank, muster_group_subset(group, ranks, 2, NULL, &subset), 0);
    if (subset && rank->rank == VICTIM) {
        muster_group_abort(subset, "enough");
    } else if (subset) {
        struct muster_failure failure = status_no_failure();
        struct muster_work *work = NULL;
        int code = add_up(subset, &work);
        rank_check(rank, code == 0 || code == MUSTER_EABORTED); /* it may have heard already */
        rank_check_code(rank, muster_work_then(&work, look, &failure), 0);
        while (muster_group_status(subset) == 0) {
        }
        muster_group_free(subset); /* waits for the progress thread */
        subset = NULL;
        rank_check(rank,
                   code != 0 || (failure.cause == MUSTER_EABORTED && failure.rank == 1 && failure.root_rank == 2));
    }
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    muster_group_free(subset);
    muster_group_free(group);
    return 0;
}

static void a_subset_has_numbers_of_its_own(void **state) {
    (void)state;
    ranks_run(SIZE, abort_a_subset, NULL);
}

static void a_group_that_was_not_made_has_missing_ranks(void **state) {
    (void)state;
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    struct muster_group *group = NULL;
    struct ranks_store store;
    options.timeout_ms = 50;
    options.name = "lonely";
    ranks_store_start(&store);
    struct muster_store_options to_open = MUSTER_STORE_OPTIONS_INIT;
    struct muster_store *opened = NULL;
    to_open.host = "127.0.0.1";
    to_open.port = store.port;
    assert_int_equal(muster_store_open_tcp(&to_open, &opened), 0);
    assert_int_equal(muster_group_create_store(opened, 0, 3, &options, &group), MUSTER_ETIMEOUT);
    struct muster_failure failure = last();
    assert_int_equal(failure.cause, MUSTER_ETIMEOUT);
    assert_string_equal(failure.group, "lonely");
    assert_true(failure.missing_count == 2 && failure.run_count == 1);
    assert_true(failure.missing[0].first == 1 && failure.missing[0].count == 2);
    options.name = "other";
    assert_int_equal(muster_group_create_store(opened, 1, 3, &options, &group), MUSTER_ETIMEOUT);
    failure = last();
    assert_true(failure.rank == 0 && failure.missing_count == 1 && failure.missing[0].first == 0);
    muster_store_close(opened);
    ranks_store_stop(&store);
    assert_int_equal(muster_last_failure(NULL), MUSTER_EINVAL);
    assert_int_equal(muster_group_failure(NULL, NULL), MUSTER_EINVAL);
    assert_int_equal(muster_group_failure(NULL, &failure), MUSTER_EINVAL);
    assert_int_equal(failure.cause, MUSTER_EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_death_is_put_down_to_its_rank),
        cmocka_unit_test(a_death_whose_news_come_late_is_put_down_to_its_rank),
        cmocka_unit_test(who_is_late_is_missing),
        cmocka_unit_test(the_call_that_differs_is_told),
        cmocka_unit_test(who_aborts_is_told),
        cmocka_unit_test(a_subset_has_numbers_of_its_own),
        cmocka_unit_test(a_group_that_was_not_made_has_missing_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
