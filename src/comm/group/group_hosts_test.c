/* Failures in groups that span hosts: what one host finds out, all learn. Hosts are told apart by MUSTER_HOST_ID here;
 * between them everything goes over TCP. */
#include <muster/collective.h>
#include <muster/group.h>

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/status.h"
#include "comm/group/group_impl.h"
#include "comm/group/group_test_support.h"
#include "comm/group/ranks_test_support.h"

enum { MARK_READY = 1, MARK_IN_CALL = 2, MARK_OVER = 3, SIZE = 4, VICTIM = 1 };
enum { NOTICE_MS_MAX = 20000 }; /* a peer that is only silent is given up after 30 s: that is another way to notice */

/* The victim is alone on its host; has a neighbour before it; is a neighbour of the last. */
static const uint32_t separate[] = {0, 1, 2, 3}, pairs[] = {0, 0, 1, 1}, crossed[] = {0, 1, 0, 1};
static const struct ranks_options layouts[] = {{.host_of = separate}, {.host_of = pairs}, {.host_of = crossed}};
enum { LAYOUT_COUNT = sizeof layouts / sizeof *layouts };

struct plan {
    int which;
    int64_t timeout_ms;
    int expected;
};

/* The call, and where its rank's part may be done without the victim, barriers until one tells. */
static int call_until_it_fails(struct muster_group *group, int which) {
    int code = test_collectives[which].call(group, NULL);
    return code ? code : test_barrier(group, NULL);
}

static int lose_the_victim(struct rank *rank, void *argument) {
    const struct plan *plan = argument;
    struct muster_group *group = rank_group(rank, NULL);
    rank_check_code(rank, test_all_reduce(group, NULL), 0);
    rank_hurry(group, plan->timeout_ms); /* now that all are here */
    rank_mark(rank, MARK_READY);
    if (rank->rank == VICTIM) {
        rank_await_signal(rank, 1);
        return 0;
    }
    rank_await_signal(rank, 1);
    rank_mark(rank, MARK_IN_CALL);
    int code = call_until_it_fails(group, plan->which);
    rank_mark(rank, MARK_OVER);
    rank_report(rank, muster_detail());
    rank_check_code(rank, code, plan->expected);
    rank_check_code(rank, test_barrier(group, NULL), MUSTER_EGROUP);
    muster_group_free(group);
    return 0;
}

/* Have all but the victim, which may be stopped, ended with a sentence that names the culprit? */
static bool have_ended(struct ranks *ranks, const char *culprit) {
    bool are_right = true;
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        are_right = are_right &&
                    (rank == VICTIM || (ranks_wait(ranks, rank) == 0 && strstr(ranks_report(ranks, rank), culprit)));
    }
    return are_right;
}

static void check_ends(struct ranks *ranks, const char *name, int layout, const char *culprit) {
    if (have_ended(ranks, culprit)) {
        return;
    }
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        int result = rank == VICTIM ? 0 : ranks_wait(ranks, rank);
        print_error("rank %u ended with %d: '%s'\n", rank, result, ranks_report(ranks, rank));
    }
    ranks_free(ranks);
    fail_msg("%s, layout %d", name, layout);
}

static void a_killed_rank_ends_every_collective(void **state) {
    (void)state;
    for (int which = 0; which < TEST_COLLECTIVE_COUNT; which++) {
        int layout = which % LAYOUT_COUNT;
        struct plan plan = {which, RANKS_PATIENCE_MS, MUSTER_EPEER};
        struct ranks *ranks = ranks_start(SIZE, lose_the_victim, &plan, &layouts[layout]);
        ranks_await_all(ranks, MARK_READY);
        ranks_stop(ranks, VICTIM); /* so that it does not see the signal */
        ranks_signal(ranks, 1);
        for (uint32_t rank = 0; rank < SIZE; rank++) {
            if (rank != VICTIM) {
                ranks_await(ranks, rank, MARK_IN_CALL);
            }
        }
        int64_t killed_ns = clock_monotonic_ns();
        ranks_kill(ranks, VICTIM);
        check_ends(ranks, test_collectives[which].name, layout, "rank 1 ");
        for (uint32_t rank = 0; rank < SIZE; rank++) {
            int64_t over_ns = ranks_mark_time_ns(ranks, rank, MARK_OVER);
            assert_true(rank == VICTIM || over_ns - killed_ns < NOTICE_MS_MAX * CLOCK_NS_PER_MS);
        }
        ranks_free(ranks);
    }
}

/* Is the stopped rank the one that did not come? With the longest deadline it must be. */
static bool is_missed(int which, int64_t timeout_ms, bool is_longest) {
    int layout = which % LAYOUT_COUNT;
    struct plan plan = {which, timeout_ms, MUSTER_ETIMEOUT};
    const char *missing = test_collectives[which].needs_all ? "did not come: 1" : "did not come: ";
    struct ranks *ranks = ranks_start(SIZE, lose_the_victim, &plan, &layouts[layout]);
    ranks_await_all(ranks, MARK_READY);
    ranks_stop(ranks, VICTIM);
    ranks_signal(ranks, 1);
    bool is_so = true;
    if (is_longest) {
        check_ends(ranks, test_collectives[which].name, layout, missing);
    } else {
        is_so = have_ended(ranks, missing);
    }
    ranks_free(ranks);
    return is_so;
}

/* On a busy machine a healthy rank may get no processor before the deadline. It has not come either then, and all try
 * again with a longer one. */
static void a_stopped_rank_ends_every_collective_at_the_deadline(void **state) {
    (void)state;
    enum { SHORTEST_MS = 500, LONGEST_MS = 32000 };
    for (int which = 0; which < TEST_COLLECTIVE_COUNT; which++) {
        int64_t timeout_ms = SHORTEST_MS;
        if (strcmp(test_collectives[which].name, "monitored_barrier") == 0) {
            continue; /* it has a deadline of its own */
        }
        while (!is_missed(which, timeout_ms, timeout_ms == LONGEST_MS)) {
            timeout_ms *= 4;
        }
    }
}

static void a_rank_may_be_killed_at_any_moment(void **state) {
    (void)state;
    for (int which = 0; which < TEST_COLLECTIVE_COUNT; which++) {
        int layout = (which + 1) % LAYOUT_COUNT;
        struct test_collective collective = test_collectives[which];
        struct ranks *ranks = ranks_start(SIZE, test_call_for_ever, &collective, &layouts[layout]);
        ranks_await_all(ranks, TEST_MARK_READY);
        ranks_kill(ranks, VICTIM);
        check_ends(ranks, collective.name, layout, "rank 1 ");
        ranks_free(ranks);
    }
}

/* ---- an error of a library before the news of the death ---- */

static int fail_at_once(struct engine *engine, const struct comm_call *call, uint64_t number, int64_t deadline_ns) {
    (void)engine;
    (void)call;
    (void)number;
    (void)deadline_ns;
    return status_fail(MUSTER_ESYSTEM, "a library says: other error");
}

static int meet_the_error_first(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    rank_check_code(rank, test_all_reduce(group, NULL), 0);
    struct engine_table table = *group->engine->table;
    if (rank->rank == SIZE - 1) {
        table.start = fail_at_once;
        group->engine->table = &table;
    }
    rank_mark(rank, MARK_READY);
    rank_await_signal(rank, 1);
    rank_mark(rank, MARK_IN_CALL);
    rank_check_code(rank, test_barrier(group, NULL), MUSTER_EPEER);
    rank_report(rank, muster_detail());
    muster_group_free(group);
    return 0;
}

/* As MPI and NCCL give one. The victim's neighbour, which knows of the death, is stopped meanwhile. */
static void an_error_that_follows_from_a_death_names_the_dead(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(SIZE, meet_the_error_first, NULL, &layouts[1]);
    ranks_await_all(ranks, MARK_READY);
    ranks_stop(ranks, 0);
    ranks_kill(ranks, VICTIM);
    ranks_signal(ranks, 1);
    ranks_await(ranks, SIZE - 1, MARK_IN_CALL);
    ranks_continue(ranks, 0);
    check_ends(ranks, "an error", 1, "rank 1 ");
    ranks_free(ranks);
}

static float long_buffer[(5 << 20) / sizeof(float)];

/* So long that it goes in parts, several of which are under way (comm/hierarchy/hierarchy_rails.c). */
static int long_all_reduce(struct muster_group *group, struct muster_work **work) {
    return muster_all_reduce(group, long_buffer, long_buffer, sizeof long_buffer / sizeof *long_buffer, MUSTER_FLOAT32,
                             MUSTER_OP_SUM, work);
}

static void a_rank_may_be_killed_between_the_parts_of_a_call(void **state) {
    (void)state;
    static const uint32_t alone[] = {0, 1, 0, 0};
    static const struct ranks_options uneven = {.host_of = alone};
    const struct ranks_options *const all[] = {&layouts[1], &layouts[2], &uneven};
    for (int layout = 0; layout < 3; layout++) {
        struct test_collective collective = {"all_reduce", long_all_reduce, true};
        struct ranks *ranks = ranks_start(SIZE, test_call_for_ever, &collective, all[layout]);
        ranks_await_all(ranks, TEST_MARK_READY);
        ranks_kill(ranks, VICTIM);
        check_ends(ranks, "long all_reduce", layout, "rank 1 ");
        ranks_free(ranks);
    }
}

static int make_different_calls(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    int code = test_barrier(group, NULL); /* the others' failure may come while this rank is in it */
    code = code ? code
                : muster_all_reduce(group, test_send, test_receive, rank->rank == VICTIM ? 5 : 4, MUSTER_FLOAT32,
                                    MUSTER_OP_SUM, NULL);
    code = code ? code : test_barrier(group, NULL);
    rank_report(rank, muster_detail());
    rank_check_code(rank, code, MUSTER_EMISMATCH);
    muster_group_free(group);
    return 0;
}

static void different_calls_are_an_error_at_once(void **state) {
    (void)state;
    for (int layout = 0; layout < LAYOUT_COUNT; layout++) {
        struct ranks *ranks = ranks_start(SIZE, make_different_calls, NULL, &layouts[layout]);
        check_ends(ranks, "mismatch", layout, "all_reduce of 5 float32, sum");
        assert_int_equal(ranks_wait(ranks, VICTIM), 0);
        ranks_free(ranks);
    }
}

/* Nobody sends: rank 0 collects from the others, who wait for it. */
static int wait_for_each_other(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    rank_check_code(rank, test_barrier(group, NULL), 0);
    int code = rank->rank == 0 ? muster_gather(group, test_send, test_receive, 4, MUSTER_FLOAT32, 0, NULL)
                               : muster_broadcast(group, test_receive, 4, MUSTER_FLOAT32, 0, NULL);
    rank_report(rank, muster_detail());
    rank_check_code(rank, code, MUSTER_EMISMATCH);
    muster_group_free(group);
    return 0;
}

static void calls_that_wait_for_each_other_are_found_out(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(SIZE, wait_for_each_other, NULL, &layouts[0]);
    check_ends(ranks, "waiting", 0, "gather of 4 float32, root 0");
    assert_int_equal(ranks_wait(ranks, VICTIM), 0);
    ranks_free(ranks);
}

static int be_aborted(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    rank_check_code(rank, test_barrier(group, NULL), 0);
    rank_mark(rank, MARK_IN_CALL);
    if (rank->rank == VICTIM) {
        rank_await_signal(rank, 1);
        muster_group_abort(group, "enough for today");
        rank_check_code(rank, test_barrier(group, NULL), MUSTER_EABORTED);
        rank_check_code(rank, test_barrier(group, NULL), MUSTER_EGROUP);
    } else {
        rank_check_code(rank, test_barrier(group, NULL), MUSTER_EABORTED);
    }
    rank_report(rank, muster_detail());
    muster_group_free(group);
    return 0;
}

static void an_abort_ends_all_calls(void **state) {
    (void)state;
    for (int layout = 0; layout < LAYOUT_COUNT; layout++) {
        struct ranks *ranks = ranks_start(SIZE, be_aborted, NULL, &layouts[layout]);
        ranks_await_all(ranks, MARK_IN_CALL);
        ranks_signal(ranks, 1);
        check_ends(ranks, "abort", layout, "rank 1 aborted group 'world': enough for today");
        assert_int_equal(ranks_wait(ranks, VICTIM), 0);
        ranks_free(ranks);
    }
}

/* The victim dies, the others go on; also in parts of the group. */
static int go_on(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL), *next = NULL, *part = NULL;
    int64_t sum = 1;
    int code = test_barrier(group, NULL);
    if (rank->rank == VICTIM) {
        (void)raise(SIGKILL);
    }
    rank_check_code(rank, code, 0); /* it had finished it, and so can everybody */
    rank_check_code(rank, test_all_reduce(group, NULL), MUSTER_EPEER);
    rank_check_code(rank, muster_group_shrink(group, 20000, &next), 0);
    rank_check(rank, muster_group_size(next) == SIZE - 1);
    rank_check_code(rank, muster_all_reduce(next, &sum, &sum, 1, MUSTER_INT64, MUSTER_OP_SUM, NULL), 0);
    rank_check(rank, sum == SIZE - 1);
    rank_check_code(rank, muster_group_split(next, (int32_t)(rank->rank / 2), 0, NULL, &part), 0);
    sum = 1;
    rank_check_code(rank, muster_all_reduce(part, &sum, &sum, 1, MUSTER_INT64, MUSTER_OP_SUM, NULL), 0);
    rank_check(rank, sum == (rank->rank < 2 ? 1 : 2));
    muster_group_free(part);
    muster_group_free(next);
    muster_group_free(group);
    return 0;
}

static void survivors_go_on(void **state) {
    (void)state;
    for (int i = 0; i < 4 * LAYOUT_COUNT; i++) {
        int layout = i % LAYOUT_COUNT;
        struct ranks *ranks = ranks_start(SIZE, go_on, NULL, &layouts[layout]);
        check_ends(ranks, "shrink", layout, "");
        ranks_free(ranks);
    }
}

/* Nobody sees an error when ranks leave after the last call, whoever is first. */
static void leaving_in_good_order_is_no_failure(void **state) {
    (void)state;
    for (int i = 0; i < 5 * LAYOUT_COUNT; i++) {
        ranks_run_with(SIZE, test_leave_in_good_order, NULL, &layouts[i % LAYOUT_COUNT]);
    }
}

/* Rank 0 is killed while it waits for the last rank. That one comes when it is over, and waits for a new rank 0: it
 * cannot know whether the old one was of an earlier attempt. */
static int come_when_rank_0_is_dead(struct rank *rank) {
    static const char *const keys[] = {"rank/0", "rank/1", "rank/2"};
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    struct muster_store_value values[SIZE - 1] = {{0}};
    struct muster_store *all = rank_store(rank), *store = NULL;
    struct muster_group *group = NULL;
    rank_check_code(rank, muster_store_prefix(all, "muster/world/4-ranks/1", &store), 0);
    rank_check_code(rank, muster_store_multi_get(store, keys, SIZE - 1, RANKS_PATIENCE_MS, values), 0);
    for (int i = 0; i < SIZE - 1; i++) {
        muster_store_value_free(&values[i]);
    }
    muster_store_close(store);
    rank_mark(rank, MARK_READY);
    rank_await_signal(rank, 1);
    options.timeout_ms = 1;
    rank_check_code(rank, muster_group_create_store(all, rank->rank, rank->size, &options, &group), MUSTER_ETIMEOUT);
    rank_check(rank, strstr(muster_detail(), "rank 0 did not come in time; an earlier rank 0 (pid ") != NULL);
    return 0;
}

static int meet_without_rank_0(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = NULL;
    if (rank->rank == SIZE - 1) {
        return come_when_rank_0_is_dead(rank);
    }
    rank_check_code(rank, muster_group_create_store(rank_store(rank), rank->rank, rank->size, NULL, &group),
                    MUSTER_EPEER);
    rank_report(rank, muster_detail());
    return 0;
}

static void a_death_of_rank_0_while_meeting_is_noticed(void **state) {
    (void)state;
    for (int layout = 0; layout < 2; layout++) {
        struct ranks *ranks = ranks_start(SIZE, meet_without_rank_0, NULL, &layouts[layout]);
        ranks_await(ranks, SIZE - 1, MARK_READY);
        ranks_kill(ranks, 0);
        (void)ranks_wait(ranks, 0);
        ranks_signal(ranks, 1);
        for (uint32_t rank = 1; rank < SIZE; rank++) {
            assert_int_equal(ranks_wait(ranks, rank), 0);
            assert_true(rank == SIZE - 1 || strstr(ranks_report(ranks, rank), "rank 0: its process (pid "));
        }
        ranks_free(ranks);
    }
}

/* ---- asking who is late ---- */

static struct {
    int (*multi_get)(void *context, const char *const *keys, size_t key_count, int64_t timeout_ms,
                     struct muster_store_value *out);
    int64_t longest_ms, total_ms;
} asked;

static int note_wait(void *context, const char *const *keys, size_t key_count, int64_t timeout_ms,
                     struct muster_store_value *out) {
    asked.longest_ms = timeout_ms > asked.longest_ms ? timeout_ms : asked.longest_ms;
    asked.total_ms += timeout_ms;
    return asked.multi_get(context, keys, key_count, timeout_ms, out);
}

/* A call that waits in the store keeps all other threads from it. */
static int be_late_beside_others(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    rank_check_code(rank, test_barrier(group, NULL), 0);
    rank_hurry(group, 500);
    asked.multi_get = group->context->kv.multi_get;
    group->context->kv.multi_get = note_wait;
    rank_mark(rank, MARK_READY);
    rank_await_signal(rank, 1);
    rank_check_code(rank, test_barrier(group, NULL), MUSTER_ETIMEOUT);
    rank_check(rank, asked.total_ms > 0);
    rank_check(rank, asked.longest_ms <= 100);
    muster_group_free(group);
    return 0;
}

static void who_asks_leaves_the_store_to_others(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(SIZE, be_late_beside_others, NULL, &layouts[1]);
    ranks_await_all(ranks, MARK_READY);
    ranks_stop(ranks, VICTIM);
    ranks_signal(ranks, 1);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        if (rank != VICTIM) {
            assert_int_equal(ranks_wait(ranks, rank), 0);
        }
    }
    ranks_free(ranks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_ends_every_collective),
        cmocka_unit_test(a_stopped_rank_ends_every_collective_at_the_deadline),
        cmocka_unit_test(a_rank_may_be_killed_at_any_moment),
        cmocka_unit_test(an_error_that_follows_from_a_death_names_the_dead),
        cmocka_unit_test(a_rank_may_be_killed_between_the_parts_of_a_call),
        cmocka_unit_test(different_calls_are_an_error_at_once),
        cmocka_unit_test(calls_that_wait_for_each_other_are_found_out),
        cmocka_unit_test(an_abort_ends_all_calls),
        cmocka_unit_test(survivors_go_on),
        cmocka_unit_test(who_asks_leaves_the_store_to_others),
        cmocka_unit_test(a_death_of_rank_0_while_meeting_is_noticed),
        cmocka_unit_test(leaving_in_good_order_is_no_failure),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
