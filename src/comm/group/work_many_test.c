/* Waiting for several handles: messages and collectives together, with and without a timeout; on one host, over TCP,
 * and where ranks die. */
#include <muster/collective.h>
#include <muster/group.h>
#include <muster/work.h>

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "comm/group/group_impl.h"
#include "comm/group/ranks_test_support.h"

enum { SIZE = 4, TAG = 5, SHORT_MS = 20 };

/* One host, every rank a host, two hosts of two, one host without shared memory. */
static const struct layout {
    struct ranks_options options;
    bool without_memory;
} layouts[] = {{{0}, false}, {{.ranks_per_host = 1}, false}, {{.ranks_per_host = 2}, false}, {{0}, true}};
enum { LAYOUT_COUNT = sizeof layouts / sizeof *layouts };

static struct muster_group *make_group(struct rank *rank, const struct layout *layout) {
    if (layout->without_memory) {
        rank_check(rank, setenv("MUSTER_SHM", "0", 1) == 0);
    }
    return rank_group(rank, NULL);
}

static void run_everywhere(rank_function *function) {
    for (int i = 0; i < LAYOUT_COUNT; i++) {
        struct layout layout = layouts[i];
        ranks_run_with(SIZE, function, &layout, &layout.options);
    }
}

/* ---- which is done first ---- */

static const uint32_t order[] = {2, 3, 1};
enum { SENDER_COUNT = 3 };

static void receive_in_order(struct rank *rank, struct muster_group *group) {
    struct muster_work *works[SIZE] = {NULL};
    int64_t values[SIZE] = {0};
    size_t index = SIZE;
    for (uint32_t from = 1; from < SIZE; from++) {
        rank_check_code(rank, muster_receive(group, &values[from], 1, MUSTER_INT64, from, TAG, NULL, &works[from]), 0);
    }
    rank_check_code(rank, muster_work_wait_any(works, SIZE, 0, &index), MUSTER_ETIMEOUT);
    rank_check(rank,
               strstr(muster_detail(), "3 of 3 calls are not done") && strstr(muster_detail(), "receive of 1 int64"));
    for (uint32_t i = 0; i < SENDER_COUNT; i++) {
        rank_mark(rank, i + 1); /* the next sends */
        rank_check_code(rank, muster_work_wait_any(works, SIZE, -1, &index), 0);
        rank_check(rank, index == order[i] && works[index]);
        rank_check_code(rank, muster_work_wait(&works[index]), 0);
        rank_check(rank, values[index] == 100 + (int64_t)index);
    }
    rank_check_code(rank, muster_work_wait_any(works, SIZE, -1, &index), 0);
    rank_check(rank, index == SIZE); /* nothing is left */
}

static int messages_one_after_the_other(struct rank *rank, void *argument) {
    struct muster_group *group = make_group(rank, argument);
    if (rank->rank == 0) {
        receive_in_order(rank, group);
    } else {
        int64_t value = 100 + (int64_t)rank->rank;
        uint32_t turn = 0;
        while (turn + 1 < SENDER_COUNT && order[turn] != rank->rank) {
            turn++;
        }
        rank_await(rank, 0, turn + 1);
        rank_check_code(rank, muster_send(group, &value, 1, MUSTER_INT64, 0, TAG, NULL), 0);
    }
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    muster_group_free(group);
    return 0;
}

static void the_one_that_is_done_is_named(void **state) {
    (void)state;
    run_everywhere(messages_one_after_the_other);
}

/* ---- collectives and messages together ---- */

/* Rank 0 has begun an all_reduce in which the last rank is missing, and waits for a message besides. */
static int a_message_before_a_collective(struct rank *rank, void *argument) {
    struct muster_group *group = make_group(rank, argument);
    struct muster_work *works[2] = {NULL, NULL};
    int64_t sum = 1, value = 7;
    size_t index = 2;
    if (rank->rank == SIZE - 1) {
        rank_await(rank, 0, 1);
        rank_check_code(rank, muster_send(group, &value, 1, MUSTER_INT64, 0, TAG, NULL), 0);
        rank_await(rank, 0, 2);
    }
    rank_check_code(rank, muster_all_reduce(group, &sum, &sum, 1, MUSTER_INT64, MUSTER_OP_SUM, &works[0]), 0);
    if (rank->rank == 0) {
        value = 0;
        rank_check_code(rank, muster_receive(group, &value, 1, MUSTER_INT64, SIZE - 1, TAG, NULL, &works[1]), 0);
        rank_check_code(rank, muster_work_wait_all(works, 2, SHORT_MS), MUSTER_ETIMEOUT);
        rank_check(rank, works[0] && works[1] && strstr(muster_detail(), "all_reduce of 1 int64, sum (group 'world')"));
        rank_mark(rank, 1);
        rank_check_code(rank, muster_work_wait_any(works, 2, -1, &index), 0);
        rank_check(rank, index == 1 && value == 7);
        rank_check_code(rank, muster_work_wait(&works[1]), 0);
        rank_check_code(rank, muster_work_wait_any(works, 2, SHORT_MS, &index), MUSTER_ETIMEOUT);
        rank_mark(rank, 2);
        rank_check_code(rank, muster_work_wait_any(works, 2, -1, &index), 0);
        rank_check(rank, index == 0);
    }
    rank_check_code(rank, muster_work_wait_all(works, 2, RANKS_PATIENCE_MS), 0);
    rank_check(rank, !works[0] && !works[1] && sum == SIZE);
    muster_group_free(group);
    return 0;
}

static void collectives_and_messages_are_waited_for_together(void **state) {
    (void)state;
    run_everywhere(a_message_before_a_collective);
}

/* Handles of several groups, many of them. */
static int exchange_with_all(struct rank *rank, void *argument) {
    struct muster_group *group = make_group(rank, argument), *part = NULL;
    struct muster_work *works[2 * SIZE + 1] = {NULL};
    int64_t sent[SIZE], got[SIZE] = {0}, sum = 1;
    rank_check_code(rank, muster_group_split(group, (int32_t)(rank->rank % 2), 0, NULL, &part), 0);
    for (uint32_t peer = 0; peer < SIZE; peer++) {
        sent[peer] = 10 * (int64_t)rank->rank + peer;
        if (peer != rank->rank) {
            rank_check_code(rank, muster_receive(group, &got[peer], 1, MUSTER_INT64, peer, TAG, NULL, &works[peer]), 0);
            rank_check_code(rank, muster_send(group, &sent[peer], 1, MUSTER_INT64, peer, TAG, &works[SIZE + peer]), 0);
        }
    }
    rank_check_code(rank, muster_all_reduce(part, &sum, &sum, 1, MUSTER_INT64, MUSTER_OP_SUM, &works[2 * SIZE]), 0);
    rank_check_code(rank, muster_work_wait_all(works, 2 * SIZE + 1, -1), 0);
    for (uint32_t peer = 0; peer < SIZE; peer++) {
        rank_check(rank, peer == rank->rank || got[peer] == 10 * (int64_t)peer + rank->rank);
    }
    rank_check(rank, sum == SIZE / 2);
    muster_group_free(part);
    muster_group_free(group);
    return 0;
}

static void handles_of_several_groups(void **state) {
    (void)state;
    run_everywhere(exchange_with_all);
}

/* ---- failures ---- */

/* A message that never comes ends with the group's time-out, whatever the wait's own timeout; its code is not that of a
 * wait that was too short. */
static int wait_in_vain(struct rank *rank, void *argument) {
    struct muster_group *group = make_group(rank, argument);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    if (rank->rank == 0) {
        rank_hurry(group, 200); /* now that all are here, however busy the machine is */
    }
    struct muster_work *works[1] = {NULL};
    int64_t value;
    size_t index = 1;
    rank_check_code(rank, muster_receive(group, &value, 1, MUSTER_INT64, rank->rank == 0 ? 1 : 0, TAG, NULL, &works[0]),
                    0);
    rank_check_code(rank, muster_work_wait_any(works, 1, -1, &index), 0);
    rank_check(rank, index == 0);
    rank_check_code(rank, muster_work_wait_all(works, 1, 0), MUSTER_EGROUP);
    rank_check(rank, !works[0] && strstr(muster_detail(), "receive of 1 int64 from rank 1, tag 5 (group 'world'"));
    muster_group_free(group);
    return 0;
}

static void the_groups_deadline_bounds_the_wait(void **state) {
    (void)state;
    run_everywhere(wait_in_vain);
}

/* Rank 1 dies while the others wait for it, for ever as far as they are concerned. */
static int lose_rank_1(struct rank *rank, void *argument) {
    struct muster_group *group = make_group(rank, argument);
    struct muster_work *works[2] = {NULL, NULL};
    int64_t value = 0, sum = 1;
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    rank_mark(rank, 1);
    if (rank->rank == 1) {
        rank_await_signal(rank, 1); /* it does not come */
        return 0;
    }
    rank_check_code(rank, muster_receive(group, &value, 1, MUSTER_INT64, 1, TAG, NULL, &works[0]), 0);
    rank_check_code(rank, muster_all_reduce(group, &sum, &sum, 1, MUSTER_INT64, MUSTER_OP_SUM, &works[1]), 0);
    rank_mark(rank, 2);
    rank_check_code(rank, muster_work_wait_all(works, 2, -1), MUSTER_EPEER);
    rank_check(rank, !works[0] && !works[1] && strstr(muster_detail(), "rank 1 "));
    muster_group_free(group);
    return 0;
}

static void a_death_ends_the_wait(void **state) {
    (void)state;
    for (int i = 0; i < LAYOUT_COUNT; i++) {
        struct layout layout = layouts[i];
        struct ranks *ranks = ranks_start(SIZE, lose_rank_1, &layout, &layout.options);
        for (uint32_t rank = 0; rank < SIZE; rank++) {
            ranks_await(ranks, rank, rank == 1 ? 1 : 2);
        }
        ranks_kill(ranks, 1);
        for (uint32_t rank = 0; rank < SIZE; rank++) {
            assert_int_equal(ranks_wait(ranks, rank), rank == 1 ? RANKS_KILLED - SIGKILL : 0);
        }
        ranks_free(ranks);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_one_that_is_done_is_named),
        cmocka_unit_test(collectives_and_messages_are_waited_for_together),
        cmocka_unit_test(handles_of_several_groups),
        cmocka_unit_test(the_groups_deadline_bounds_the_wait),
        cmocka_unit_test(a_death_ends_the_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
