/* Two copies of a state, from life to life. A life ends when its memory is unmapped, wherever it is in a step: what the
 * next one finds is what it would find after a death there. This process holds the memory (train/memory/holder.h). */
#include "train/commit/copies.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/collective.h>

#include "comm/group/ranks_test_support.h"

enum { PART = 1000, EXTRA = 24, RANKS = 4 };

/* A host's ranks write a part each, and the first one what there is besides. */
struct life {
    struct muster_group *group, *row, *replicas;
    struct copies *copies;
    uint32_t column, columns;
};

/* Each host has parts that nobody else has. */
static struct commit_place place_of(const struct life *life) {
    struct muster_group *group = life->group;
    uint32_t rank = muster_group_rank(group), hosts = muster_group_host_count(group);
    bool is_whole = life->replicas || hosts == 1;
    return is_whole ? (struct commit_place){0, 1, 1}
                    : (struct commit_place){muster_group_host_of(group, rank), hosts, RANKS};
}

static struct copies_options options_of(const struct life *life, size_t parts) {
    return (struct copies_options){.name = "test",
                                   .group = life->group,
                                   .row = life->row,
                                   .replicas = life->replicas,
                                   .kind = {parts * PART, EXTRA, 7},
                                   .place = place_of(life),
                                   .attempts = 3};
}

/* As if this process's launcher had been lost. */
static void forget(struct rank *rank) {
    static const char *const names[] = {"test/rank 0", "test/host ", "test/host host-0", "test/host host-1"};
    struct holder *holder = NULL;
    rank_check_code(rank, holder_open(&holder), 0);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        rank_check_code(rank, holder_drop(holder, names[i]), 0);
    }
    holder_close(holder);
}

static void begin_life(struct rank *rank, struct life *life, struct muster_group *group, int64_t expected) {
    uint32_t host = muster_group_host_of(group, muster_group_rank(group));
    life->group = group;
    if (!life->replicas) {
        rank_check_code(rank, muster_group_split(group, (int32_t)host, 0, NULL, &life->row), 0);
    }
    life->column = life->row ? muster_group_rank(life->row) : 0;
    life->columns = life->row ? muster_group_size(life->row) : 1;
    struct copies_options options = options_of(life, life->row ? RANKS : 1);
    rank_check_code(rank, copies_open(&options, &life->copies), 0);
    rank_check(rank, copies_step(life->copies) == expected);
}

static void end_life(struct rank *rank, struct life *life) {
    rank_check_code(rank, muster_barrier(life->group, NULL), 0);
    copies_close(life->copies);
    muster_group_free(life->row);
    *life = (struct life){.replicas = life->replicas};
}

static unsigned char value_of(int64_t step, size_t at) {
    return (unsigned char)(step * 31 + (int64_t)at % 97 + 1);
}

/* Elements of the parts that this rank writes: with fewer ranks than parts each writes several. */
static void write_parts(const struct life *life, int64_t step, size_t most) {
    unsigned char *copy = copies_current(life->copies);
    copy += copies_is_begun(life->copies) ? copies_delta(life->copies) : 0;
    size_t parts = life->row ? RANKS : 1;
    for (size_t part = life->column; part < parts; part += life->columns) {
        for (size_t i = part * PART; i < part * PART + most; i++) {
            copy[i] = value_of(step, i);
        }
    }
    if (life->column == 0) {
        memset(copies_extra(life->copies), (int)step, EXTRA);
    }
}

static void commit_step(const struct life *life, int64_t step) {
    if (copies_step(life->copies) >= 0) {
        copies_begin(life->copies);
    }
    write_parts(life, step, PART);
    copies_commit(life->copies, step);
}

static void check_step(struct rank *rank, const struct life *life, int64_t step) {
    const unsigned char *copy = copies_current(life->copies), *extra = copies_extra(life->copies);
    rank_check(rank, copies_step(life->copies) == step);
    for (size_t i = 0; i < (life->row ? RANKS : 1) * PART; i++) {
        rank_check(rank, copy[i] == value_of(step, i));
    }
    for (size_t i = 0; i < EXTRA; i++) {
        rank_check(rank, extra[i] == (unsigned char)step);
    }
}

static void make_steps(struct rank *rank, const struct life *life, int64_t first, int64_t last) {
    for (int64_t step = first; step <= last; step++) {
        rank_check_code(rank, muster_barrier(life->group, NULL), 0);
        commit_step(life, step);
    }
}

/* ---- lives ---- */

static int live_again(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct life life = {.copies = NULL};
    begin_life(rank, &life, group, COMMIT_NOTHING);
    for (size_t i = 0; i < RANKS * PART; i++) {
        rank_check(rank, ((unsigned char *)copies_current(life.copies))[i] == 0);
    }
    make_steps(rank, &life, 0, 6);
    end_life(rank, &life);
    begin_life(rank, &life, group, 6);
    check_step(rank, &life, 6);
    make_steps(rank, &life, 7, 7);
    end_life(rank, &life);
    begin_life(rank, &life, group, 7);
    check_step(rank, &life, 7);
    end_life(rank, &life);
    muster_group_free(group);
    return 0;
}

/* How far each rank comes in step 4. */
enum progress { NOT_BEGUN, BEGUN, HALF_WRITTEN, WRITTEN, COMMITTED, PROGRESSES };

static void come_to(const struct life *life, enum progress progress) {
    if (progress >= BEGUN) {
        copies_begin(life->copies);
    }
    if (progress >= HALF_WRITTEN) {
        write_parts(life, 4, progress >= WRITTEN ? PART : PART / 2);
    }
    if (progress == COMMITTED) {
        copies_commit(life->copies, 4);
    }
}

/* Whatever each of them has done: unless all have committed step 4, all go back to step 3, which is whole. */
static int die_anywhere(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    for (uint32_t one = 0; one < PROGRESSES; one++) {
        for (uint32_t others = 0; others < PROGRESSES; others++) {
            struct life life = {.copies = NULL};
            begin_life(rank, &life, group, COMMIT_NOTHING);
            make_steps(rank, &life, 0, 3);
            rank_check_code(rank, muster_barrier(group, NULL), 0);
            come_to(&life, (rank->rank == 1 ? one : others));
            end_life(rank, &life);
            int64_t expected = one == COMMITTED && others == COMMITTED ? 4 : 3;
            begin_life(rank, &life, group, expected);
            check_step(rank, &life, expected);
            make_steps(rank, &life, expected + 1, expected + 2);
            rank_check_code(rank, muster_barrier(group, NULL), 0);
            check_step(rank, &life, expected + 2);
            end_life(rank, &life);
            forget(rank);
        }
    }
    muster_group_free(group);
    return 0;
}

/* On one host the memory does not depend on the number of ranks. */
static int change_their_number(struct rank *rank, void *argument) {
    (void)argument;
    static const uint32_t sizes[] = {RANKS, 2, 3, 1, RANKS};
    struct muster_group *group = rank_group(rank, NULL);
    struct life life = {.copies = NULL};
    int64_t step = COMMIT_NOTHING;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct muster_group *some = NULL;
        bool takes_part = rank->rank < sizes[i];
        rank_check_code(rank, muster_group_split(group, takes_part ? 0 : -1, 0, NULL, &some), 0);
        if (takes_part) {
            begin_life(rank, &life, some, step);
            if (step >= 0) {
                check_step(rank, &life, step);
            }
            make_steps(rank, &life, step + 1, step + 3);
            end_life(rank, &life);
            muster_group_free(some);
        }
        step += 3;
    }
    muster_group_free(group);
    return 0;
}

/* Each has all of it. One that has lost its memory gets another's. */
static int lose_one(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct life life = {.replicas = group};
    begin_life(rank, &life, group, COMMIT_NOTHING);
    make_steps(rank, &life, 0, 5);
    if (rank->rank != 2) { /* who is one ahead stays so: the newcomer needs a copy in any case */
        rank_check(rank, copies_step(life.copies) == 5);
    }
    end_life(rank, &life);
    if (rank->rank == 2) {
        forget(rank);
    }
    begin_life(rank, &life, group, 5);
    check_step(rank, &life, 5);
    make_steps(rank, &life, 6, 7);
    check_step(rank, &life, 7);
    end_life(rank, &life);
    muster_group_free(group);
    return 0;
}

/* Hosts have parts that nobody else has: without one of them there is nothing to go on from. */
static int lose_a_part(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct life life = {.copies = NULL};
    begin_life(rank, &life, group, COMMIT_NOTHING);
    make_steps(rank, &life, 0, 5);
    end_life(rank, &life);
    if (rank->rank == 2) { /* the first of its host */
        forget(rank);
    }
    begin_life(rank, &life, group, COMMIT_NOTHING);
    make_steps(rank, &life, 0, 1);
    end_life(rank, &life);
    begin_life(rank, &life, group, 1);
    check_step(rank, &life, 1);
    end_life(rank, &life);
    muster_group_free(group);
    return 0;
}

/* Memory of another model is no failure. */
static int change_the_model(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct life life = {.copies = NULL};
    begin_life(rank, &life, group, COMMIT_NOTHING);
    make_steps(rank, &life, 0, 5);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    struct copies_options options = options_of(&life, RANKS + 1);
    struct copies *other = NULL;
    rank_check_code(rank, copies_open(&options, &other), 0);
    rank_check(rank, copies_step(other) == COMMIT_NOTHING);
    copies_close(other);
    end_life(rank, &life);
    muster_group_free(group);
    return 0;
}

/* Can this process write there? The kernel says so without a signal. */
static bool is_writable(struct rank *rank, void *at) {
    int ends[2];
    rank_check(rank, pipe(ends) == 0);
    rank_check(rank, write(ends[1], at, 1) == 1);
    bool is = read(ends[0], at, 1) == 1;
    rank_check(rank, is || errno == EFAULT);
    (void)close(ends[0]);
    (void)close(ends[1]);
    return is;
}

static int try_to_write(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct life life = {.copies = NULL};
    begin_life(rank, &life, group, COMMIT_NOTHING);
    char *first = copies_current(life.copies), *second;
    rank_check(rank, is_writable(rank, first));
    make_steps(rank, &life, 0, 0);
    rank_check(rank, (first = copies_current(life.copies)) != NULL && !is_writable(rank, first));
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    copies_begin(life.copies);
    second = first + copies_delta(life.copies);
    rank_check(rank, !is_writable(rank, first) && is_writable(rank, second));
    rank_check(rank, is_writable(rank, copies_extra(life.copies)));
    ptrdiff_t distance = copies_commit(life.copies, 1);
    rank_check(rank, first + distance == copies_current(life.copies) && !is_writable(rank, first + distance));
    rank_check(rank, !is_writable(rank, first) && !is_writable(rank, copies_extra(life.copies)));
    end_life(rank, &life);
    begin_life(rank, &life, group, 1);
    rank_check(rank, !is_writable(rank, copies_current(life.copies)));
    end_life(rank, &life);
    muster_group_free(group);
    return 0;
}

/* ---- a step that makes the program fail ---- */

/* The launcher starts new processes. Before, the program has failed on the node of this rank, or not. */
static void begin_attempt(struct rank *rank, const char *failed_by, bool has_failed) {
    rank_check(rank, (has_failed ? setenv("MUSTER_FAILED_BY", failed_by, 1) : unsetenv("MUSTER_FAILED_BY")) == 0);
}

static void live_and_fail(struct rank *rank, struct muster_group *group, bool replicates, int64_t from, int64_t to) {
    struct life life = {.replicas = replicates ? group : NULL};
    begin_life(rank, &life, group, from);
    if (from >= 0) {
        check_step(rank, &life, from);
    }
    make_steps(rank, &life, from + 1, to);
    end_life(rank, &life);
}

/* Attempts fail after step 5, on the node of one rank. What is not the program's failure does not count, and who has
 * made a step begins at nought again. */
static int fail_again(struct rank *rank, void *argument) {
    bool replicates = *(const bool *)argument;
    struct muster_group *group = rank_group(rank, NULL);
    bool is_there = muster_group_host_of(group, rank->rank) == muster_group_host_of(group, rank->size - 1);
    begin_attempt(rank, "exit 1 in start 0", false);
    live_and_fail(rank, group, replicates, COMMIT_NOTHING, 4);
    begin_attempt(rank, "exit 1 in start 1", is_there); /* once, after step 4 */
    live_and_fail(rank, group, replicates, 4, 5);
    begin_attempt(rank, "exit 1 in start 2", is_there); /* once, after step 5 */
    live_and_fail(rank, group, replicates, 5, 5);
    live_and_fail(rank, group, replicates, 5, 5); /* survivors: they have heard it */
    live_and_fail(rank, group, replicates, 5, 5);
    begin_attempt(rank, "exit 1 in start 3", is_there);
    live_and_fail(rank, group, replicates, 5, 5);
    for (int i = 0; i < 5; i++) { /* killed from outside */
        begin_attempt(rank, "exit 1 in start 4", false);
        live_and_fail(rank, group, replicates, 5, 5);
    }
    begin_attempt(rank, "exit 1 in start 5", is_there);
    struct life life = {.replicas = replicates ? group : NULL};
    begin_life(rank, &life, group, COMMIT_NOTHING);
    rank_check(rank,
               strcmp(copies_note(life.copies), "the program has failed 3 times in a row after step 5: the state of "
                                                "that step in memory is given up") == 0);
    make_steps(rank, &life, 2, 2);
    end_life(rank, &life);
    begin_attempt(rank, "exit 1 in start 6", is_there);
    live_and_fail(rank, group, replicates, 2, 2);
    muster_group_free(group);
    return 0;
}

/* ---- on one host, and on two ---- */

static const struct ranks_options one_host = {.ranks_per_host = 0}, two_hosts = {.ranks_per_host = 2};

static void what_was_committed_is_found_again(void **state) {
    (void)state;
    ranks_run_with(RANKS, live_again, NULL, &one_host);
    ranks_run_with(1, live_again, NULL, NULL);
}

static void any_progress_leaves_a_whole_step(void **state) {
    (void)state;
    ranks_run_with(RANKS, die_anywhere, NULL, &one_host);
    ranks_run_with(3, die_anywhere, NULL, &two_hosts);
}

static void other_numbers_of_ranks_find_it(void **state) {
    (void)state;
    ranks_run_with(RANKS, change_their_number, NULL, &one_host);
}

static void a_newcomer_gets_a_copy(void **state) {
    (void)state;
    ranks_run_with(RANKS, lose_one, NULL, &one_host);
    ranks_run_with(RANKS, lose_one, NULL, &two_hosts);
}

static void a_lost_part_is_not_made_up(void **state) {
    (void)state;
    ranks_run_with(RANKS, lose_a_part, NULL, &two_hosts);
}

static void another_models_memory_is_not_taken(void **state) {
    (void)state;
    ranks_run_with(2, change_the_model, NULL, &one_host);
}

static void a_step_that_fails_again_and_again_is_given_up(void **state) {
    (void)state;
    static const bool replicates[] = {false, true};
    for (size_t i = 0; i < 2; i++) {
        ranks_run_with(RANKS, fail_again, (void *)&replicates[i], &one_host);
        ranks_run_with(RANKS, fail_again, (void *)&replicates[i], &two_hosts);
    }
}

static void what_is_committed_cannot_be_written(void **state) {
    (void)state;
    ranks_run_with(2, try_to_write, NULL, &one_host);
}

int main(void) {
    (void)unsetenv("MUSTER_HELD_SOCKET");
    (void)unsetenv("LOCAL_RANK");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_committed_is_found_again),
        cmocka_unit_test(any_progress_leaves_a_whole_step),
        cmocka_unit_test(other_numbers_of_ranks_find_it),
        cmocka_unit_test(a_newcomer_gets_a_copy),
        cmocka_unit_test(a_lost_part_is_not_made_up),
        cmocka_unit_test(another_models_memory_is_not_taken),
        cmocka_unit_test(a_step_that_fails_again_and_again_is_given_up),
        cmocka_unit_test(what_is_committed_cannot_be_written),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
