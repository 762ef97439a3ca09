/* Groups of more ranks on one host than watch each other one by one: a death becomes known to all of them, whoever was
 * to see it. See comm/context/roster.h. */
#include <fcntl.h>
#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/collective.h>

#include "comm/context/roster.h"
#include "comm/group/group_impl.h"
#include "comm/group/ranks_test_support.h"

enum { SIZE = 40, READY = 1, KNOWN = 2 };
_Static_assert((int)SIZE > (int)ROSTER_SMALL, "else everybody watches everybody");

/* The ranks that a test kills: first, and how many. */
struct block {
    uint32_t first, count;
};

static bool is_in(const struct block *block, uint32_t rank) {
    return rank - block->first < block->count;
}

static int open_descriptors(void) {
    int count = 0;
    for (int fd = 0; fd < 256; fd++) {
        count += fcntl(fd, F_GETFD) >= 0 ? 1 : 0;
    }
    return count;
}

/* Waits for ranks that never come. */
static int wait_in_a_barrier(struct rank *rank, void *argument) {
    int before = open_descriptors();
    struct muster_group *group = rank_group(rank, NULL);
    rank_check(rank, open_descriptors() - before < (int)ROSTER_SMALL); /* no watch for each of the others */
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    rank_mark(rank, READY);
    while (is_in(argument, rank->rank)) {
        (void)pause();
    }
    rank_check_code(rank, muster_barrier(group, NULL), MUSTER_EPEER);
    rank_report(rank, muster_detail());
    muster_group_free(group);
    return 0;
}

static bool names_one_of(const char *sentence, const struct block *block) {
    for (const char *at = sentence; (at = strstr(at, "rank ")); at++) {
        char *end = NULL;
        unsigned long rank = strtoul(at + 5, &end, 10);
        if (end != at + 5 && is_in(block, (uint32_t)rank)) {
            return true;
        }
    }
    return false;
}

static struct ranks *start(struct block *block) {
    struct ranks *ranks = ranks_start(SIZE, wait_in_a_barrier, block, NULL);
    ranks_await_all(ranks, READY);
    return ranks;
}

static void all_are_told(struct ranks *ranks, const struct block *block) {
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        assert_int_equal(ranks_wait(ranks, rank), is_in(block, rank) ? RANKS_KILLED - SIGKILL : 0);
        if (!is_in(block, rank) && !names_one_of(ranks_report(ranks, rank), block)) {
            fail_msg("rank %u: '%s'", rank, ranks_report(ranks, rank));
        }
    }
}

static void kill_block(struct block block) {
    struct ranks *ranks = start(&block);
    for (uint32_t i = 0; i < block.count; i++) {
        ranks_kill(ranks, block.first + i);
    }
    all_are_told(ranks, &block);
    ranks_free(ranks);
}

static void one_death_is_told_to_all(void **state) {
    (void)state;
    kill_block((struct block){17, 1});
}

static void the_first_rank_may_die(void **state) {
    (void)state;
    kill_block((struct block){0, 1});
}

/* All that watch the last of them, too. */
static void a_stretch_of_neighbours_may_die(void **state) {
    (void)state;
    kill_block((struct block){8, 20});
}

static void all_but_two_may_die(void **state) {
    (void)state;
    kill_block((struct block){1, SIZE - 2});
}

/* The rank before the one that dies is stopped: another one watches it as well. */
static void who_watches_may_be_stopped(void **state) {
    (void)state;
    struct block block = {12, 1};
    struct ranks *ranks = start(&block);
    ranks_stop(ranks, 11);
    ranks_kill(ranks, 12);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        if (rank != 11 && rank != 12) {
            assert_int_equal(ranks_wait(ranks, rank), 0);
        }
    }
    ranks_continue(ranks, 11);
    all_are_told(ranks, &block);
    ranks_free(ranks);
}

static void await_death_of(const struct context *context, uint32_t rank) {
    while (atomic_load(&context->peers[rank].state) != CONTEXT_PEER_DEAD) {
        (void)poll(NULL, 0, 1);
    }
}

static int outlive_three(struct rank *rank, void *argument) {
    struct muster_group *group = rank_group(rank, NULL);
    rank_mark(rank, READY);
    while (is_in(argument, rank->rank)) {
        (void)pause();
    }
    rank_await_signal(rank, 1);
    await_death_of(group->context, 9);
    await_death_of(group->context, 10);
    rank_mark(rank, KNOWN);
    rank_await_signal(rank, 2);
    await_death_of(group->context, 11);
    muster_group_free(group);
    return 0;
}

/* Rank 11 is watched by ranks 10 and 3. One is dead, the other stopped: but rank 8, whose next one is 11 since 9 and 10
 * have died, watches it. */
static void the_next_that_lives_is_watched(void **state) {
    (void)state;
    struct block block = {9, 3};
    struct ranks *ranks = ranks_start(SIZE, outlive_three, &block, NULL);
    ranks_await_all(ranks, READY);
    ranks_stop(ranks, 3);
    ranks_kill(ranks, 9);
    ranks_kill(ranks, 10);
    ranks_signal(ranks, 1);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        if (rank != 3 && !is_in(&block, rank)) {
            ranks_await(ranks, rank, KNOWN);
        }
    }
    ranks_kill(ranks, 11);
    ranks_signal(ranks, 2);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        assert_true(rank == 3 || ranks_wait(ranks, rank) == (is_in(&block, rank) ? RANKS_KILLED - SIGKILL : 0));
    }
    ranks_continue(ranks, 3);
    assert_int_equal(ranks_wait(ranks, 3), 0);
    ranks_free(ranks);
}

/* Rank 20 has told who it is, and dies before it shares memory: nobody has watched it yet. */
static int die_while_meeting(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = NULL;
    if (rank->rank == 20) {
        rank_die_while_meeting(rank, 3);
    }
    rank_check_code(rank, muster_group_create_store(rank_store(rank), rank->rank, rank->size, NULL, &group),
                    MUSTER_EPEER);
    rank_report(rank, muster_detail());
    return 0;
}

static void a_death_while_meeting_is_noticed(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(SIZE, die_while_meeting, NULL, NULL);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        assert_int_equal(ranks_wait(ranks, rank), rank == 20 ? 3 : 0);
        assert_true(rank == 20 || strstr(ranks_report(ranks, rank), "rank 20"));
    }
    ranks_free(ranks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_death_is_told_to_all),         cmocka_unit_test(the_first_rank_may_die),
        cmocka_unit_test(a_stretch_of_neighbours_may_die),  cmocka_unit_test(all_but_two_may_die),
        cmocka_unit_test(who_watches_may_be_stopped),       cmocka_unit_test(the_next_that_lives_is_watched),
        cmocka_unit_test(a_death_while_meeting_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
