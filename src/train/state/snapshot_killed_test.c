/* A real process that saves in a loop, killed by SIGKILL at any moment: what it had saved loads, and is what it saved.
 *
 *   snapshot_killed_test            a few dozen kills
 *   snapshot_killed_test COUNT      so many */
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/folder_test_support.h"
#include "base/str.h"
#include "train/state/snapshot_impl.h"

enum { WORDS = 40000, PATH_BYTES = 256, FUSE_MAX_US = 3000 /* a save takes about 1000 */ };

static char folder[PATH_BYTES];
static uint64_t words[WORDS];
static int64_t step_value;
static unsigned long kills, cut_off, acknowledged;

static struct muster_snapshot_state state_of(struct muster_tensor *tensor, struct muster_value *value) {
    *tensor =
        (struct muster_tensor){.name = "words", .type = MUSTER_INT64, .dim_count = 1, .shape = {WORDS}, .data = words};
    *value = muster_value_integer("step", &step_value);
    return (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(tensor, 1, value, 1);
}

static void fill(int64_t step) {
    step_value = step;
    for (size_t i = 0; i < WORDS; i++) {
        words[i] = (uint64_t)step * 1000003 + i;
    }
}

/* SIGKILL to this process, so many microseconds from now. */
static void set_fuse(uint64_t delay_us) {
    struct sigevent kill_me = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGKILL};
    struct itimerspec when = {.it_value = {.tv_nsec = (long)(delay_us + 1) * 1000}};
    timer_t timer;
    if (timer_create(CLOCK_MONOTONIC, &kill_me, &timer) != 0 || timer_settime(timer, 0, &when, NULL) != 0) {
        _exit(4);
    }
}

/* The child: saves until it dies, and tells of each save that is done. `random` says when it is killed. */
static void save_until_killed(int64_t step, uint64_t random, int report) {
    struct muster_tensor tensor;
    struct muster_value value;
    struct muster_snapshot_state state = state_of(&tensor, &value);
    for (uint64_t saves = 0;; saves++, step++) {
        if (saves == random % 3) {
            set_fuse((random >> 8) % FUSE_MAX_US);
        }
        fill(step);
        if (muster_snapshot_save(folder, step, &state, NULL) != 0 ||
            write(report, &step, sizeof step) != (ssize_t)sizeof step) {
            (void)fprintf(stderr, "the child failed: %s\n", muster_detail());
            _exit(3);
        }
    }
}

/* Runs a child that goes on after `step` until it is killed. Gives the last step it told of. */
static int64_t run_and_kill(int64_t step, uint64_t random) {
    int ends[2], status = 0;
    int64_t told = step;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)close(ends[0]);
        save_until_killed(step + 1, random, ends[1]);
    }
    (void)close(ends[1]);
    while (read(ends[0], &told, sizeof told) == (ssize_t)sizeof told) {
    }
    (void)close(ends[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    return told;
}

static void load_and_check(int64_t told, struct muster_snapshot_found *found) {
    struct muster_tensor tensor;
    struct muster_value value;
    struct muster_snapshot_state state = state_of(&tensor, &value);
    memset(words, 0, sizeof words);
    step_value = -1;
    int code = muster_snapshot_load_newest(folder, &state, found);
    if (code == MUSTER_ENOENT && told == 0) {
        found->step = 0; /* killed in its very first save */
        return;
    }
    assert_int_equal(code, 0);
    assert_true(found->step >= told && found->step <= told + 1);
    assert_int_equal(step_value, found->step);
    for (size_t i = 0; i < WORDS; i++) {
        assert_int_equal(words[i], (uint64_t)found->step * 1000003 + i);
    }
    if (told > 0 && found->step == told) { /* the one before is whole, too */
        struct muster_snapshot_found older;
        code = muster_snapshot_find(folder, told - 1, &older);
        assert_true(told == 1 ? code == MUSTER_ENOENT : code == 0 && older.step == told - 1);
    }
}

static void kill_many(unsigned long count) {
    uint64_t random = 88172645463325252;
    int64_t step = 0;
    for (unsigned long i = 0; i < count; i++) {
        struct muster_snapshot_found found = {.step = 0};
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        int64_t told = run_and_kill(step, random);
        load_and_check(told, &found);
        kills++;
        cut_off += found.passed_over > 0;
        acknowledged += (unsigned long)(told - step);
        step = found.step;
    }
}

static void killed(unsigned long count) {
    const char *base = getenv("TMPDIR");
    assert_true(str_format(folder, sizeof folder, "%s/muster-killed-XXXXXX", base ? base : "/tmp"));
    assert_non_null(mkdtemp(folder));
    kill_many(count);
    int files = folder_remove(folder);
    /* Three snapshots when the kill came before the removal, and leftovers of one save. */
    assert_true(files >= 0 && files <= 2 * 3 + 2);
    (void)printf("%lu kills, %lu of them in the middle of a save that left something; %lu saves had returned\n", kills,
                 cut_off, acknowledged);
}

static void what_was_saved_survives_sigkill(void **state) {
    (void)state;
    killed(40);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        killed(strtoul(argv[1], NULL, 10));
        return 0;
    }
    const struct CMUnitTest tests[] = {cmocka_unit_test(what_was_saved_survives_sigkill)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
