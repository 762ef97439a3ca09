/* Ranks that the kernel has put on one core, though there are others: a rank that waits gives the core to the one that
 * it waits for, and does not look in vain first. */
#include <muster/collective.h>
#include <muster/group.h>

#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>

#include <cmocka.h>

#include "comm/group/ranks_test_support.h"
#include "comm/host/bell.h"

enum { CALLS = 200, SERIES = 5 };

/* Of this thread: what others do on the machine does not count. */
static double seconds_used(void) {
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

/* What the looks of one wait cost, before the core is given away. */
static double seconds_of_looking(void) {
    struct comm_bell bell = {0};
    struct comm_waiter waiter = {.bell = &bell};
    comm_waiter_tune(&waiter, NULL, 0);
    double begun = seconds_used();
    for (uint32_t look = 0; look < waiter.spin_count; look++) {
        comm_pause();
    }
    return seconds_used() - begun;
}

static int share_a_core(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    cpu_set_t all, one;
    size_t core = 0;
    rank_check(rank, sched_getaffinity(0, sizeof all, &all) == 0);
    while (!CPU_ISSET(core, &all)) {
        core++;
    }
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    rank_check(rank, sched_setaffinity(0, sizeof one, &one) == 0); /* the group has been made for cores of their own */
    double least = 1e9, looking = 0;
    for (int series = 0; series < SERIES; series++) { /* the other rank may be kept away in some */
        double begun = seconds_used();
        for (int call = 0; call < CALLS; call++) {
            rank_check_code(rank, muster_barrier(group, NULL), 0);
        }
        double used = seconds_used() - begun;
        least = used < least ? used : least;
        double looked = seconds_of_looking();
        looking = looked > looking ? looked : looking;
    }
    rank_check(rank, least / CALLS < looking / 2);
    muster_group_free(group);
    return 0;
}

static void who_waits_gives_the_core_away(void **state) {
    (void)state;
    ranks_run(2, share_a_core, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(who_waits_gives_the_core_away)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
