/* One rank comes late to every operation, far later than a silent peer is given up, and all must end well.
 *
 *   late [--seconds S] [--bytes N] [--at-once N] [--stopped yes|no]
 *
 * Three ranks of three "hosts". The late one computes for S seconds (45), or is stopped for so long; then it makes the
 * call, in which the others wait. N bytes (400,000) from each rank for each other one: more than a socket takes that
 * nobody reads. As many cases at once as told (all): they only wait. */
#include <muster/collective.h>
#include <muster/group.h>

#include <getopt.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/group/ranks_test_support.h"
#include "operations.h"

enum { SIZE = 3, ARRIVED = 1, LATE_CASES = 2 * OPERATION_COUNT, MS_PER_S = 1000 };

struct late_case {
    const struct operation *operation;
    uint32_t late;
    bool is_stopped;
    struct ranks *ranks;
};

static struct {
    int seconds;
    size_t bytes;
    uint32_t at_once;
    bool is_stopped, is_working; /* the kinds of cases that are wished */
    struct late_case cases[LATE_CASES];
    uint32_t count;
} run = {.seconds = 45, .bytes = 400000, .at_once = LATE_CASES, .is_stopped = true, .is_working = true};

static int body(struct rank *rank, void *argument) {
    const struct late_case *late = argument;
    struct operands operands = {.group = rank_group(rank, NULL),
                                .count = run.bytes / sizeof(float),
                                .root = (late->late + 1) % SIZE,
                                .with_handle = late->late % 2 != 0,
                                .timeout_ms = RANKS_PATIENCE_MS};
    rank_check_code(rank, operands_allocate(&operands, false), 0);
    rank_check_code(rank, muster_barrier(operands.group, NULL), 0);
    rank_mark(rank, ARRIVED);
    if (rank->rank == late->late) {
        rank_await_signal(rank, ARRIVED); /* it may be stopped meanwhile */
    }
    rank_check_code(rank, late->operation->run(&operands), 0);
    rank_check_code(rank, muster_barrier(operands.group, NULL), 0);
    operands_free(&operands, false);
    muster_group_free(operands.group);
    return 0;
}

static void begin(struct late_case *late) {
    const struct ranks_options hosts = {.ranks_per_host = 1};
    late->ranks = ranks_start(SIZE, body, late, &hosts);
    ranks_await_all(late->ranks, ARRIVED);
    if (late->is_stopped) {
        ranks_stop(late->ranks, late->late);
    }
}

static void end(struct late_case *late) {
    if (late->is_stopped) {
        ranks_continue(late->ranks, late->late);
    }
    ranks_signal(late->ranks, ARRIVED);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        int result = ranks_wait(late->ranks, rank);
        if (result != 0) {
            fail_msg("%s: rank %u of %d ended with %d after rank %u was %s for %d s", late->operation->name, rank, SIZE,
                     result, late->late, late->is_stopped ? "stopped" : "late", run.seconds);
        }
    }
    ranks_free(late->ranks);
}

static void all_wait_for_a_late_rank(void **state) {
    (void)state;
    for (uint32_t first = 0; first < run.count; first += run.at_once) {
        uint32_t last = first + run.at_once < run.count ? first + run.at_once : run.count;
        for (uint32_t i = first; i < last; i++) {
            begin(&run.cases[i]);
        }
        (void)poll(NULL, 0, run.seconds * MS_PER_S);
        for (uint32_t i = first; i < last; i++) {
            end(&run.cases[i]);
        }
    }
}

static void list_cases(void) {
    for (uint32_t i = 0; i < LATE_CASES; i++) {
        struct late_case one = {&operations[i / 2], i / 2 % SIZE, i % 2 != 0, NULL};
        if (one.is_stopped ? run.is_stopped : run.is_working) {
            run.cases[run.count++] = one;
        }
    }
}

int main(int argc, char **argv) {
    static const struct option options[] = {{"seconds", required_argument, NULL, 's'},
                                            {"bytes", required_argument, NULL, 'b'},
                                            {"at-once", required_argument, NULL, 'a'},
                                            {"stopped", required_argument, NULL, 't'},
                                            {NULL, 0, NULL, 0}};
    for (int option; (option = getopt_long(argc, argv, "", options, NULL)) != -1;) {
        if (option == 's') {
            run.seconds = (int)strtol(optarg, NULL, 10);
        } else if (option == 'b') {
            run.bytes = strtoull(optarg, NULL, 10);
        } else if (option == 'a') {
            run.at_once = (uint32_t)strtoul(optarg, NULL, 10);
        } else if (option == 't') {
            run.is_stopped = strcmp(optarg, "yes") == 0;
            run.is_working = !run.is_stopped;
        } else {
            return 2;
        }
    }
    if (run.at_once == 0 || run.seconds < 0) {
        (void)fprintf(stderr, "late: --at-once needs a number from 1 on, --seconds one from 0 on\n");
        return 2;
    }
    list_cases();
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_wait_for_a_late_rank)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
