/* Real ranks that save in a loop, one of them killed by SIGKILL at any moment: the next job, of another size, loads
 * what was saved last, or what was just being saved, and never a mixture.
 *
 *   checkpoint_killed_test            a few dozen kills
 *   checkpoint_killed_test COUNT      so many */
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/clock.h"
#include "base/folder_test_support.h"
#include "base/str.h"
#include "comm/group/ranks_test_support.h"
#include "train/checkpoint/checkpoint_test_support.h"

enum { PATH_BYTES = 256, FEW_KILLS = 24, MORE = 5, SAVES_MAX = 1000, TELLS_RANKS_MAX = 5 };

static char top[PATH_BYTES];
static unsigned long kills, cut_off, acknowledged;

static const struct muster_tensor large[] = {
    {.name = "weight", .type = MUSTER_FLOAT32, .dim_count = 2, .shape = {300, 400}},
    {.name = "whole", .type = MUSTER_UINT16, .dim_count = 1, .shape = {50001}},
};

/* What the ranks of one job do. */
struct plan {
    uint64_t random; /* when and who is killed */
    uint32_t victim;
    int64_t step; /* of the newest checkpoint, before */
};

/* SIGKILL to this process, so long from now. */
static void set_fuse(int64_t delay_ns) {
    struct sigevent kill_me = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    struct itimerspec when = {
        .it_value = {.tv_sec = (time_t)(delay_ns / CLOCK_NS_PER_S), .tv_nsec = (long)(delay_ns % CLOCK_NS_PER_S) + 1}};
    timer_t timer;
    if (timer_create(CLOCK_MONOTONIC, &kill_me, &timer) != 0 || timer_settime(timer, 0, &when, NULL) != 0) {
        _exit(4);
    }
}

/* Saves until the group fails, and tells of the last save that was done. The fuse burns for up to two saves. */
static int save_until_one_is_killed(struct rank *rank, void *argument) {
    const struct plan *plan = argument;
    struct test_state t;
    char text[32];
    struct muster_group *group = rank_group(rank, NULL);
    int code = 0;
    for (int64_t step = plan->step + 1; code == 0; step++) {
        struct test_cut cut = {.seed = (uint64_t)step, .rank = rank->rank, .size = rank->size};
        rank_check(rank, step < plan->step + SAVES_MAX);
        test_state_init(&t, large, 2, &cut);
        test_state_fill(&t, step);
        int64_t begin_ns = clock_monotonic_ns();
        code = muster_checkpoint_save(group, top, step, &t.state, NULL);
        int64_t took_ns = clock_monotonic_ns() - begin_ns;
        test_state_done(&t);
        if (code == 0) {
            rank_check(rank, str_format(text, sizeof text, "%" PRId64, step));
            rank_report(rank, text);
        }
        if (step == plan->step + 1 && rank->rank == plan->victim) {
            set_fuse((int64_t)(plan->random >> 8) % (2 * took_ns + 1));
        }
    }
    rank_check_code(rank, code == MUSTER_EPEER || code == MUSTER_EGROUP ? 0 : code, 0);
    muster_group_free(group);
    return 0;
}

static int load_newest(struct rank *rank, void *argument) {
    struct plan *plan = argument;
    struct test_state t;
    struct muster_checkpoint_found found;
    char text[32];
    struct test_cut cut = {.seed = plan->random, .rank = rank->rank, .size = rank->size};
    struct muster_group *group = rank_group(rank, NULL);
    test_state_init(&t, large, 2, &cut);
    rank_check_code(rank, muster_checkpoint_load_newest(group, top, &t.state, NULL, &found), 0);
    rank_check(rank, test_state_tag(&t) == found.step);
    rank_check(rank, str_format(text, sizeof text, "%" PRId64 " %" PRIu32, found.step, found.passed_over));
    rank_report(rank, text);
    test_state_done(&t);
    muster_group_free(group);
    return 0;
}

/* The number that rank 0 reports after it has loaded; *out_passed: what was passed over. */
static int64_t load_and_check(struct plan *plan, uint32_t size, uint32_t *out_passed) {
    int64_t step = 0;
    struct ranks *ranks = ranks_start(size, load_newest, plan, NULL);
    for (uint32_t rank = 0; rank < size; rank++) {
        assert_int_equal(ranks_wait(ranks, rank), 0);
    }
    assert_int_equal(sscanf(ranks_report(ranks, 0), "%" SCNd64 " %" SCNu32, &step, out_passed), 2);
    ranks_free(ranks);
    return step;
}

static void kill_one(struct plan *plan) {
    uint32_t size = 2 + test_random(&plan->random, TELLS_RANKS_MAX - 1), passed = 0;
    int64_t told = plan->step;
    plan->victim = test_random(&plan->random, size);
    struct ranks *ranks = ranks_start(size, save_until_one_is_killed, plan, NULL);
    for (uint32_t rank = 0; rank < size; rank++) {
        assert_int_equal(ranks_wait(ranks, rank), rank == plan->victim ? RANKS_KILLED - SIGKILL : 0);
        int64_t step = strtoll(ranks_report(ranks, rank), NULL, 10);
        told = step > told ? step : told;
    }
    ranks_free(ranks);
    int64_t step = load_and_check(plan, 1 + test_random(&plan->random, TELLS_RANKS_MAX), &passed);
    assert_in_range(step, told, told + 1);
    assert_true(passed <= 1);
    kills++;
    cut_off += passed;
    acknowledged += (unsigned long)(told - plan->step);
    plan->step = step;
}

static void run_kills(unsigned long count, uint64_t seed) {
    struct plan plan = {.random = seed};
    const char *base = getenv("TMPDIR");
    assert_true(str_format(top, sizeof top, "%s/muster-killed-XXXXXX", base ? base : "/tmp"));
    assert_non_null(mkdtemp(top));
    /* Files are left behind where rank 0 is the one that is killed, in the middle of a save. */
    while (kills < count || (cut_off == 0 && kills < MORE * count)) {
        kill_one(&plan);
    }
    assert_true(folder_remove(top) > 0);
    (void)printf("%lu kills, %lu saves done, %lu saves that left files behind\n", kills, acknowledged, cut_off);
}

static void a_killed_rank_costs_no_checkpoint(void **state) {
    (void)state;
    run_kills(FEW_KILLS, 1);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        run_kills(strtoul(argv[1], NULL, 10), 2);
        return 0;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_killed_rank_costs_no_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
