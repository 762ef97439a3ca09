/* The guardian with well- and ill-behaved workers: starting, ending, killing. */
#include "proc_harness.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>

static void one_worker_exits(void **state) {
    struct harness *h = *state;
    harness_spawn(h, 7, "exit", 3);
    harness_until_exits(h, 1);
    assert_int_equal(h->spawned_count, 1);
    assert_int_equal(h->exits[0].id, 7);
    assert_int_equal(h->exits[0].pid, h->pids[7]);
    assert_true(WIFEXITED(h->exits[0].wait_status));
    assert_int_equal(WEXITSTATUS(h->exits[0].wait_status), 3);
    assert_true(h->exits[0].at_ns > 0);
    assert_false(h->exits[0].oom_killed);
}

static void every_exit_code(void **state) {
    struct harness *h = *state;
    for (int code = 0; code < 256; code++) {
        harness_spawn(h, (uint32_t)code, "exit", code);
    }
    harness_until_exits(h, 256);
    for (size_t i = 0; i < 256; i++) {
        assert_true(WIFEXITED(h->exits[i].wait_status));
        assert_int_equal(WEXITSTATUS(h->exits[i].wait_status), h->exits[i].id);
        assert_int_equal(h->exits[i].order, i);
    }
    assert_true(harness_kill_all(h) >= 0);
}

static void every_deadly_signal(void **state) {
    const int numbers[] = {SIGHUP,  SIGINT,  SIGQUIT, SIGILL,  SIGTRAP, SIGABRT, SIGBUS,  SIGFPE, SIGKILL,  SIGUSR1,
                           SIGSEGV, SIGUSR2, SIGPIPE, SIGALRM, SIGTERM, SIGXCPU, SIGXFSZ, SIGSYS, SIGRTMIN, SIGRTMAX};
    struct harness *h = *state;
    size_t count = sizeof numbers / sizeof *numbers;
    for (size_t i = 0; i < count; i++) {
        harness_spawn(h, (uint32_t)i, "signal", numbers[i]);
    }
    harness_until_exits(h, count);
    for (size_t i = 0; i < count; i++) {
        assert_true(WIFSIGNALED(h->exits[i].wait_status));
        assert_int_equal(WTERMSIG(h->exits[i].wait_status), numbers[h->exits[i].id]);
    }
}

static void signal_reaches_the_group(void **state) {
    struct harness *h = *state;
    harness_spawn(h, 0, "sleep", 0);
    harness_spawn(h, 1, "sleep", 0);
    harness_ready(h, 2);
    assert_int_equal(guardian_signal(h->guardian, SIGTERM), 0);
    harness_until_exits(h, 2);
    assert_int_equal(WTERMSIG(h->exits[0].wait_status), SIGTERM);
    assert_int_equal(WTERMSIG(h->exits[1].wait_status), SIGTERM);
}

static void kill_all(struct harness *h, const char *mode, int number, unsigned ready_count) {
    for (uint32_t id = 0; id < 4; id++) {
        harness_spawn(h, id, mode, number);
    }
    harness_ready(h, 4 * ready_count);
    double took_ms = harness_kill_all(h);
    print_message("%s: gone after %.1f ms\n", mode, took_ms);
    assert_int_equal(survivors_count(h->mark), 0);
    assert_int_equal(h->exit_count, 4);
}

static void kill_all_deaf(void **state) {
    kill_all(*state, "ignore", 0, 1);
}

static void kill_all_daemons(void **state) {
    kill_all(*state, "daemon", 5, 6);
}

static void kill_all_abandoned_daemons(void **state) {
    struct harness *h = *state;
    harness_spawn(h, 0, "abandon", 5);
    harness_ready(h, 5);
    harness_until_exits(h, 1);
    assert_int_equal(survivors_count(h->mark), 5);
    (void)harness_kill_all(h);
    assert_int_equal(survivors_count(h->mark), 0);
}

static void kill_all_stopped(void **state) {
    kill_all(*state, "stop", 0, 2);
}

static void kill_all_chain(void **state) {
    kill_all(*state, "chain", 40, 41);
}

static void kill_all_subreaper(void **state) {
    kill_all(*state, "subreaper", 3, 4);
}

static void kill_all_relay(void **state) {
    kill_all(*state, "relay", 2, 1);
}

static void kill_all_storm(void **state) {
    kill_all(*state, "storm", 500, 1);
}

static void kill_all_twice_then_spawn(void **state) {
    struct harness *h = *state;
    assert_int_equal(guardian_kill_all(h->guardian), 0);
    assert_int_equal(guardian_kill_all(h->guardian), 0);
    harness_spawn(h, 0, "exit", 0);
    harness_until_exits(h, 1);
    assert_int_equal(h->gone_count, 2);
}

static void close_kills_what_is_left(void **state) {
    struct harness *h = *state;
    harness_spawn(h, 0, "daemon", 3);
    harness_ready(h, 4);
    /* The teardown closes and looks for survivors. */
}

#define PROC_TEST(name) cmocka_unit_test_setup_teardown(name, harness_setup, harness_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        PROC_TEST(one_worker_exits),
        PROC_TEST(every_exit_code),
        PROC_TEST(every_deadly_signal),
        PROC_TEST(signal_reaches_the_group),
        PROC_TEST(kill_all_deaf),
        PROC_TEST(kill_all_daemons),
        PROC_TEST(kill_all_abandoned_daemons),
        PROC_TEST(kill_all_stopped),
        PROC_TEST(kill_all_chain),
        PROC_TEST(kill_all_subreaper),
        PROC_TEST(kill_all_relay),
        PROC_TEST(kill_all_storm),
        PROC_TEST(kill_all_twice_then_spawn),
        PROC_TEST(close_kills_what_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
