/* Ranks that free a group in good order while others still wait for their messages: what was sent before arrives, what
 * cannot come any more is an error at once, on one host and between hosts. The time-out is one that no test reaches. */
#include <muster/collective.h>
#include <muster/failure.h>
#include <muster/group.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "comm/group/ranks_test_support.h"

enum { LONG = 300000, TAGS = 3, READY = 1, TAKEN, SENT, LEFT, OVER };

static const struct ranks_options layouts[] = {{.ranks_per_host = 0}, {.ranks_per_host = 1}, {.ranks_per_host = 2}};
enum { LAYOUT_COUNT = sizeof layouts / sizeof *layouts };

/* With MPI ranks of other hosts do not hear that one has left: tests/engines/mpi_failures.c. */
static void run_everywhere(uint32_t size, rank_function *function) {
    int count = ranks_use_engine("mpi") ? 1 : LAYOUT_COUNT;
    for (int i = 0; i < count; i++) {
        ranks_run_with(size, function, NULL, &layouts[i]);
    }
}

/* A group of all ranks beside the root group. */
static struct muster_group *make_part(struct rank *rank, struct muster_group *group) {
    uint32_t ranks[RANKS_MAX];
    struct muster_group *part = NULL;
    for (uint32_t i = 0; i < rank->size; i++) {
        ranks[i] = i;
    }
    rank_check_code(rank, muster_group_subset(group, ranks, rank->size, NULL, &part), 0);
    return part;
}

static int take(struct muster_group *group, uint32_t from, uint32_t tag, int32_t *value) {
    return muster_receive(group, value, 1, MUSTER_INT32, from, tag, NULL, NULL);
}

static void check_left(struct rank *rank, const char *what, const char *who) {
    rank_check(rank, strstr(muster_detail(), what));
    rank_check(rank, strstr(muster_detail(), who));
    rank_check(rank, strstr(muster_detail(), "it has freed its group"));
}

/* ---- one rank leaves ---- */

/* Rank 0 waits for what rank 1, which frees the part, has never sent: asked for before or after that. */
static void wait_in_vain(struct rank *rank, bool before, bool polls) {
    struct muster_group *group = rank_group(rank, NULL), *part = make_part(rank, group);
    struct muster_work *work = NULL;
    int32_t value = 0;
    if (rank->rank == 1) {
        rank_await(rank, 0, READY);
        muster_group_free(part);
        rank_mark(rank, LEFT);
        rank_await(rank, 0, OVER);
    } else {
        if (before) {
            rank_check_code(rank, muster_receive(part, &value, 1, MUSTER_INT32, 1, 5, NULL, &work), 0);
        }
        rank_mark(rank, READY);
        if (!before) {
            rank_await(rank, 1, LEFT);
        }
        while (polls && !muster_work_done(work)) {
        }
        rank_check_code(rank, before ? muster_work_wait(&work) : take(part, 1, 5, &value), MUSTER_EPEER);
        check_left(rank, "receive of 1 int32 from rank 1, tag 5", "rank 1 on host ");
        muster_group_free(part);
        rank_mark(rank, OVER);
    }
    rank_check_code(rank, muster_barrier(group, NULL), 0); /* the other group is none the worse */
    muster_group_free(group);
}

static int wait_before(struct rank *rank, void *argument) {
    (void)argument;
    wait_in_vain(rank, true, false);
    return 0;
}

static int wait_after(struct rank *rank, void *argument) {
    (void)argument;
    wait_in_vain(rank, false, false);
    return 0;
}

static int look_again_and_again(struct rank *rank, void *argument) {
    (void)argument;
    wait_in_vain(rank, true, true);
    return 0;
}

static void who_waits_for_one_that_leaves_is_told(void **state) {
    (void)state;
    run_everywhere(2, wait_before);
    run_everywhere(2, wait_after);
    run_everywhere(2, look_again_and_again);
}

/* A call that takes all ranks, begun when one has left. */
static int call_in_vain(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL), *part = make_part(rank, group);
    rank_check_code(rank, muster_barrier(part, NULL), 0);
    if (rank->rank == 1) {
        muster_group_free(part);
        rank_mark(rank, LEFT);
    } else {
        rank_await(rank, 1, LEFT);
        rank_check_code(rank, muster_barrier(part, NULL), MUSTER_EPEER);
        rank_check(rank, strstr(muster_detail(), "group 'world.1'"));
        rank_check(rank, strstr(muster_detail(), "rank 1 on host ") && strstr(muster_detail(), " has left"));
        muster_group_free(part);
    }
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    muster_group_free(group);
    return 0;
}

static void who_calls_one_that_has_left_is_told(void **state) {
    (void)state;
    run_everywhere(2, call_in_vain);
}

/* The same with the last group: the process leaves altogether. */
static int lose_the_world(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    int32_t value = 0;
    if (rank->rank == 1) {
        rank_await(rank, 0, READY);
        muster_group_free(group);
        rank_mark(rank, LEFT);
        rank_await(rank, 0, OVER);
        return 0;
    }
    rank_mark(rank, READY);
    rank_check_code(rank, take(group, 1, 5, &value), MUSTER_EPEER);
    check_left(rank, "receive of 1 int32 from rank 1, tag 5", "rank 1 on host ");
    muster_group_free(group);
    rank_mark(rank, OVER);
    return 0;
}

static void who_waits_for_one_that_ends_is_told(void **state) {
    (void)state;
    run_everywhere(2, lose_the_world);
}

/* ---- who sends to one that has left ---- */

/* Rank 0 sends to rank 1, which frees the part before that, or meanwhile. */
static int send_in_vain(struct rank *rank, void *argument) {
    static int32_t data[LONG];
    size_t count = *(size_t *)argument % LONG;
    bool meanwhile = *(size_t *)argument > LONG;
    struct muster_group *group = rank_group(rank, NULL), *part = make_part(rank, group);
    struct muster_work *work = NULL;
    if (rank->rank == 1) {
        rank_check_code(rank, muster_send(part, data, 1, MUSTER_INT32, 0, 0, NULL), 0); /* so that there is a link */
        rank_await(rank, 0, READY);
        muster_group_free(part);
        rank_mark(rank, LEFT);
    } else {
        rank_check_code(rank, take(part, 1, 0, data), 0);
        if (meanwhile) {
            rank_check_code(rank, muster_send(part, data, count, MUSTER_INT32, 1, 5, &work), 0);
        }
        rank_mark(rank, READY);
        if (!meanwhile) {
            rank_await(rank, 1, LEFT);
        }
        rank_check_code(rank,
                        meanwhile ? muster_work_wait(&work) : muster_send(part, data, count, MUSTER_INT32, 1, 5, NULL),
                        MUSTER_EPEER);
        check_left(rank, "int32 to rank 1, tag 5", "rank 1 on host ");
        struct muster_failure failure;
        rank_check_code(rank, muster_last_failure(&failure), 0);
        rank_check(rank, failure.rank == 1 && failure.root_rank == 1);
        muster_group_free(part);
    }
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    muster_group_free(group);
    return 0;
}

static void who_sends_to_one_that_leaves_is_told(void **state) {
    (void)state;
    size_t few = 1, many = LONG - 1, many_meanwhile = 2 * LONG - 1;
    ranks_run_with(2, send_in_vain, &few, &layouts[0]); /* between hosts the kernel takes it first */
    for (int i = 0; i < (ranks_use_engine("mpi") ? 1 : 2); i++) {
        ranks_run_with(2, send_in_vain, &many, &layouts[i]);
        ranks_run_with(2, send_in_vain, &many_meanwhile, &layouts[i]);
    }
}

/* ---- what was sent before ---- */

static int send_and_leave(struct rank *rank, void *argument) {
    (void)argument;
    static int32_t data[LONG];
    struct muster_group *group = rank_group(rank, NULL), *part = make_part(rank, group);
    int32_t value = 0;
    if (rank->rank == 1) {
        for (int32_t tag = 0; tag < TAGS; tag++) {
            value = 10 + tag;
            rank_check_code(rank, muster_send(part, &value, 1, MUSTER_INT32, 0, (uint32_t)tag, NULL), 0);
        }
        data[LONG - 1] = 77;
        rank_check_code(rank, muster_send(part, data, LONG, MUSTER_INT32, 0, TAGS, NULL), 0);
        muster_group_free(part);
        rank_mark(rank, LEFT);
    } else {
        rank_check_code(rank, muster_receive(part, data, LONG, MUSTER_INT32, 1, TAGS, NULL, NULL), 0);
        rank_check(rank, data[LONG - 1] == 77);
        rank_await(rank, 1, LEFT);
        for (int32_t tag = TAGS - 1; tag >= 0; tag--) {
            rank_check_code(rank, take(part, tag == 1 ? MUSTER_ANY_RANK : 1, (uint32_t)tag, &value), 0);
            rank_check(rank, value == 10 + tag);
        }
        rank_check_code(rank, take(part, 1, 0, &value), MUSTER_EPEER);
        muster_group_free(part);
    }
    muster_group_free(group);
    return 0;
}

static void what_was_sent_before_arrives(void **state) {
    (void)state;
    run_everywhere(2, send_and_leave);
}

/* ---- from anybody ---- */

/* Rank 1 leaves, and rank 2 may still send; then rank 2 leaves, too. */
static int ask_anybody(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL), *part = make_part(rank, group);
    struct muster_work *work = NULL;
    int32_t value = 0;
    uint32_t tag = 0;
    if (rank->rank != 0) { /* so that there are connections: nobody asks for one to receive from anybody */
        rank_check_code(rank, muster_send(part, &value, 1, MUSTER_INT32, 0, tag, NULL), 0);
        rank_await(rank, 0, READY);
    }
    if (rank->rank == 2) {
        rank_await(rank, 1, LEFT);
        rank_await(rank, 0, TAKEN);
        value = 99;
        rank_check_code(rank, muster_send(part, &value, 1, MUSTER_INT32, 0, 1, NULL), 0);
        rank_await(rank, 0, SENT);
    }
    if (rank->rank == 0) {
        rank_check_code(rank, take(part, 1, tag, &value), 0);
        rank_check_code(rank, take(part, 2, tag, &value), 0);
        rank_check_code(rank, muster_receive(part, &value, 1, MUSTER_INT32, MUSTER_ANY_RANK, 1, NULL, &work), 0);
        rank_mark(rank, READY);
        rank_await(rank, 1, LEFT);
        for (int i = 0; i < 1000; i++) {
            rank_check(rank, !muster_work_done(work));
        }
        rank_mark(rank, TAKEN);
        rank_check_code(rank, muster_work_wait(&work), 0);
        rank_check(rank, value == 99);
        rank_check_code(rank, muster_receive(part, &value, 1, MUSTER_INT32, MUSTER_ANY_RANK, 1, NULL, &work), 0);
        rank_mark(rank, SENT);
        rank_check_code(rank, muster_work_wait(&work), MUSTER_EPEER);
        check_left(rank, "receive of 1 int32 from any rank, tag 1", "rank 2 on host ");
    }
    muster_group_free(part);
    rank_mark(rank, rank->rank == 0 ? OVER : LEFT);
    rank_await(rank, 0, OVER);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    muster_group_free(group);
    return 0;
}

static void anybody_is_waited_for_while_somebody_is_left(void **state) {
    (void)state;
    run_everywhere(3, ask_anybody);
}

/* ---- a last call that differed ---- */

static char warning[1024];

static void keep_warning(enum log_level level, const char *file, int line, const char *text) {
    (void)level, (void)file, (void)line;
    (void)snprintf(warning, sizeof warning, "%s", text);
}

/* Each takes itself for the root, and so waits for nobody. */
static int both_be_roots(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    int32_t value = 0;
    int code = muster_broadcast(group, &value, 1, MUSTER_INT32, rank->rank, NULL);
    bool is_told = ranks_use_engine("mpi") && code == MUSTER_EMISMATCH; /* by who comes last: at once */
    rank_check_code(rank, code, is_told ? MUSTER_EMISMATCH : 0);
    rank_mark(rank, READY);
    rank_await(rank, 1 - rank->rank, READY);
    if (ranks_use_engine("mpi")) {
        is_told = muster_group_status(group) != 0;
        rank_check(rank, !is_told || muster_group_status(group) == MUSTER_EMISMATCH);
    }
    log_set_sink(keep_warning);
    muster_group_free(group);
    if (!is_told) {
        rank_check(rank, strstr(warning, "broadcast of 1 int32, root 0") != NULL);
        rank_check(rank, strstr(warning, "broadcast of 1 int32, root 1") != NULL);
        rank_check(rank, strstr(warning, "; the results are wrong") != NULL);
    }
    return 0;
}

static void a_last_call_that_differed_is_told(void **state) {
    (void)state;
    ranks_run(2, both_be_roots, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(who_waits_for_one_that_leaves_is_told),
        cmocka_unit_test(who_calls_one_that_has_left_is_told),
        cmocka_unit_test(who_waits_for_one_that_ends_is_told),
        cmocka_unit_test(who_sends_to_one_that_leaves_is_told),
        cmocka_unit_test(what_was_sent_before_arrives),
        cmocka_unit_test(anybody_is_waited_for_while_somebody_is_left),
        cmocka_unit_test(a_last_call_that_differed_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
