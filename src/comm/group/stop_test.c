/* The request to stop: every rank gets the same answer, whichever rank's launcher has asked. */
#include <muster/stop.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <unistd.h>

#include <cmocka.h>

#include "comm/group/ranks_test_support.h"

enum { RANKS = 4, STEPS = 20, ASKED_AFTER = 7 };

/* Rank 2's launcher asks in the middle; the path is another one for each rank, as on four nodes. */
static int stop_together(struct rank *rank, void *argument) {
    struct muster_group *group = rank_group(rank, NULL);
    bool stop = false, alone = true;
    int steps = 0;
    (void)argument;
    rank_check(rank, setenv("MUSTER_STOP_PATH", rank->rank == 2 ? "/nonexistent/yet" : "", 1) == 0);
    while (!stop && steps < STEPS) {
        steps++;
        if (rank->rank == 2 && steps == ASKED_AFTER) {
            rank_check(rank, setenv("MUSTER_STOP_PATH", "/", 1) == 0); /* it has come into being */
        }
        rank_check_code(rank, muster_stop_requested(group, &stop), 0);
    }
    rank_check(rank, stop && steps == ASKED_AFTER);
    rank_check_code(rank, muster_stop_requested(NULL, &alone), 0);
    rank_check(rank, alone == (rank->rank == 2));
    muster_group_free(group);
    return 0;
}

static void all_ranks_stop_after_the_same_step(void **state) {
    (void)state;
    ranks_run(RANKS, stop_together, NULL);
}

static void nobody_asks_without_a_launcher(void **state) {
    (void)state;
    bool stop = true;
    assert_int_equal(unsetenv("MUSTER_STOP_PATH"), 0);
    assert_int_equal(muster_stop_requested(NULL, &stop), 0);
    assert_false(stop);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_ranks_stop_after_the_same_step),
        cmocka_unit_test(nobody_asks_without_a_launcher),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
