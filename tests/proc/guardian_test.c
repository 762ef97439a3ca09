/* The guardian with well- and ill-behaved workers: starting, ending, killing. */
#include "proc_harness.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <muster/status.h>

/* Run as with an old kernel: pidfd_open, pidfd_send_signal and close_range answer ENOSYS. */
static bool old_kernel;

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
    kill_all(*state, "storm", 150, 1);
}

static void kill_all_twice_then_spawn(void **state) {
    struct harness *h = *state;
    assert_int_equal(guardian_kill_all(h->guardian), 0);
    assert_int_equal(guardian_kill_all(h->guardian), 0);
    harness_spawn(h, 0, "exit", 0);
    harness_until_exits(h, 1);
    assert_int_equal(h->gone_count, 2);
}

/* A worker that ends well and leaves two processes behind, one of them in a session of its own. */
static void leave_two_behind(struct harness *h) {
    static const char *const argv[] = {"sh", "-c", "sleep 1111 & setsid sh -c 'echo ready; exec sleep 2222' & exit 0",
                                       NULL};
    harness_spawn_argv(h, 0, argv);
    harness_until_exits(h, 1);
    harness_ready(h, 1);
}

static void dismiss_of_nobody_is_answered(void **state) {
    struct harness *h = *state;
    harness_spawn(h, 0, "exit", 0);
    harness_until_exits(h, 1);
    assert_int_equal(guardian_dismiss(h->guardian, false), 0);
    harness_until(h, &h->gone_count, 1);
    assert_int_equal(h->lingering_count, 0);
}

static void dismiss_ends_what_workers_left_behind(void **state) {
    struct harness *h = *state;
    leave_two_behind(h);
    assert_int_equal(guardian_dismiss(h->guardian, false), 0);
    harness_until(h, &h->gone_count, 1);
    assert_int_equal(h->lingering_count, 1);
    assert_int_equal(h->lingering.count, 2);
    assert_int_equal(h->lingering.named_count, 2);
    assert_non_null(strstr(h->lingering.named[0].command, "sleep "));
    assert_int_equal(survivors_count(h->mark), 0);
}

/* What ignores SIGTERM stays until it is killed. */
static void dismiss_can_be_hurried(void **state) {
    struct harness *h = *state;
    harness_spawn(h, 0, "abandon", 3);
    harness_ready(h, 3);
    harness_until_exits(h, 1);
    assert_int_equal(guardian_dismiss(h->guardian, false), 0);
    harness_until(h, &h->lingering_count, 1);
    assert_int_equal(h->gone_count, 0);
    assert_int_equal(h->lingering.count, 3);
    (void)harness_kill_all(h);
    assert_int_equal(survivors_count(h->mark), 0);
}

/* It outlives an order to kill, the guardian and its agent. */
static void dismiss_can_spare_what_has_a_session_of_its_own(void **state) {
    struct harness *h = *state;
    leave_two_behind(h);
    assert_int_equal(guardian_dismiss(h->guardian, true), 0);
    harness_until(h, &h->gone_count, 1);
    assert_int_equal(h->lingering_count, 2);
    assert_int_equal(h->lingering.count, 0);
    assert_int_equal(h->lingering.spared_count, 1);
    assert_string_equal(h->lingering.named[0].command, "sleep 2222");
    (void)harness_kill_all(h);
    assert_int_equal(survivors_count(h->mark), 1);
    harness_close(h);
    assert_int_equal(survivors_count(h->mark), 1);
    survivors_kill(h->mark);
    while (waitpid(-1, NULL, 0) > 0) { /* this process is a subreaper */
    }
    harness_open(h);
}

enum { COMPANION = HARNESS_EXITS_MAX - 1 };

/* `sh -c script` with one end of a socket as its descriptor 3, and the other end as the result. */
static int companion_start(struct harness *h, const char *script) {
    const char *argv[] = {"sh", "-c", script, NULL};
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    struct guardian_spawn spawn = {
        .argv = argv, .envp = h->envp, .stdout_fd = h->out_write, .stderr_fd = -1, .given_fd = pair[1]};
    unsigned before = h->spawned_count;
    assert_int_equal(guardian_companion(h->guardian, COMPANION, &spawn), 0);
    (void)close(pair[1]);
    harness_until(h, &h->spawned_count, before + 1);
    assert_true(h->pids[COMPANION] > 0);
    return pair[0];
}

static void expect_word(int fd, const char *expected) {
    char word[16] = "";
    for (size_t used = 0; used < strlen(expected); used++) {
        assert_int_equal(read(fd, word + used, 1), 1);
    }
    assert_string_equal(word, expected);
}

/* It goes on after SIGTERM for the workers, and gets its own when they are gone: its last word proves it. */
#define FAITHFUL "trap 'echo end >&3; exit 5' TERM; echo begin >&3; while :; do sleep 0.01; done"

static void companion_outlives_the_workers(void **state) {
    struct harness *h = *state;
    int fd = companion_start(h, FAITHFUL);
    expect_word(fd, "begin\n");
    harness_spawn(h, 0, "sleep", 0);
    harness_ready(h, 1);
    assert_int_equal(guardian_signal(h->guardian, SIGTERM), 0);
    harness_until_exits(h, 1);
    assert_int_equal(h->exits[0].id, 0);
    assert_int_equal(survivors_count(h->mark) > 0, 1);
    (void)harness_kill_all(h);
    expect_word(fd, "end\n");
    assert_int_equal(h->exit_count, 2); /* told before all were gone */
    assert_int_equal(h->exits[1].id, COMPANION);
    assert_int_equal(WEXITSTATUS(h->exits[1].wait_status), 5);
    assert_int_equal(survivors_count(h->mark), 0);
    (void)close(fd);
}

static void companion_is_not_left_behind(void **state) {
    struct harness *h = *state;
    int fd = companion_start(h, FAITHFUL);
    expect_word(fd, "begin\n");
    harness_spawn(h, 0, "exit", 0);
    harness_until_exits(h, 1);
    assert_int_equal(guardian_dismiss(h->guardian, false), 0);
    harness_until(h, &h->gone_count, 1);
    expect_word(fd, "end\n");
    assert_int_equal(h->lingering_count, 0);
    assert_int_equal(h->exit_count, 2);
    (void)close(fd);
}

/* The next attempt has its own; one that ends by itself is told of; the guardian's end is its end. */
static void companion_has_successors(void **state) {
    struct harness *h = *state;
    int first = companion_start(h, "exit 3");
    harness_until_exits(h, 1);
    assert_int_equal(WEXITSTATUS(h->exits[0].wait_status), 3);
    int second = companion_start(h, FAITHFUL);
    expect_word(second, "begin\n");
    const char *argv[] = {"true", NULL};
    struct guardian_spawn spawn = {.argv = argv, .envp = h->envp, .stdout_fd = -1, .stderr_fd = -1};
    assert_int_equal(guardian_companion(h->guardian, COMPANION, &spawn), 0);
    harness_until(h, &h->failed_count, 1);
    assert_non_null(strstr(h->failed_why, "is still there"));
    harness_close(h);
    expect_word(second, "end\n");
    assert_int_equal(survivors_count(h->mark), 0);
    (void)close(first);
    (void)close(second);
    harness_open(h);
}

static void companion_that_stays_is_killed(void **state) {
    struct harness *h = *state;
    int fd = companion_start(h, "trap '' TERM; echo begin >&3; while :; do sleep 0.01; done");
    expect_word(fd, "begin\n");
    double ms = harness_kill_all(h);
    assert_true(ms >= GUARDIAN_COMPANION_MS && ms < GUARDIAN_KILL_PATIENCE_MS);
    assert_int_equal(WTERMSIG(h->exits[0].wait_status), SIGKILL);
    (void)close(fd);
}

static void a_worker_is_given_a_descriptor(void **state) {
    struct harness *h = *state;
    const char *argv[] = {"sh", "-c", "echo here >&3; test ! -e /proc/self/fd/4", NULL};
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
    struct guardian_spawn spawn = {
        .argv = argv, .envp = h->envp, .stdout_fd = h->out_write, .stderr_fd = -1, .given_fd = pair[1]};
    assert_int_equal(guardian_spawn(h->guardian, 0, &spawn), 0);
    expect_word(pair[0], "here\n");
    harness_until_exits(h, 1);
    assert_int_equal(h->exits[0].wait_status, 0);
    (void)close(pair[0]);
    (void)close(pair[1]);
}

static void close_kills_what_is_left(void **state) {
    struct harness *h = *state;
    harness_spawn(h, 0, "daemon", 3);
    harness_ready(h, 4);
    /* The teardown closes and looks for survivors. */
}

static void worker_is_set_up(void **state) {
    struct harness *h = *state;
    harness_close(h);
    /* A guardian forked now meets an agent with odd signals and descriptors that would leak. */
    sigset_t usr2;
    sigset_t before;
    (void)sigemptyset(&usr2);
    (void)sigaddset(&usr2, SIGUSR2);
    assert_int_equal(sigprocmask(SIG_BLOCK, &usr2, &before), 0);
    (void)signal(SIGHUP, SIG_IGN);
    (void)signal(SIGPIPE, SIG_IGN);
    int leak = open("/dev/null", O_RDONLY); /* NOLINT: not close-on-exec on purpose */
    harness_open(h);
    int late_leak = open("/dev/null", O_RDONLY); /* NOLINT */
    harness_spawn(h, 0, "inspect", SIGHUP);      /* as under nohup; SIGPIPE is the agent's own */
    harness_until_exits(h, 1);
    assert_int_equal(h->exits[0].wait_status, 0);
    (void)close(leak);
    (void)close(late_leak);
    (void)signal(SIGHUP, SIG_DFL);
    (void)signal(SIGPIPE, SIG_DFL);
    assert_int_equal(sigprocmask(SIG_SETMASK, &before, NULL), 0);
}

static size_t first_cpu(void) {
    cpu_set_t set;
    assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
    size_t cpu = 0;
    while (!CPU_ISSET(cpu, &set)) {
        cpu++;
    }
    return cpu;
}

static void worker_is_bound(void **state) {
    struct harness *h = *state;
    size_t cpu = first_cpu();
    char text[16];
    (void)snprintf(text, sizeof text, "%zu", cpu);
    const char *argv[] = {HOSTILE_PATH, "cpu", text, NULL};
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    struct guardian_spawn spawn = {argv, h->envp, -1, -1, &set, sizeof set, false, 0};
    assert_int_equal(guardian_spawn(h->guardian, 0, &spawn), 0);
    harness_until_exits(h, 1);
    assert_int_equal(h->exits[0].wait_status, 0);
    CPU_ZERO(&set); /* no CPU at all */
    assert_int_equal(guardian_spawn(h->guardian, 1, &spawn), 0);
    harness_until(h, &h->failed_count, 1);
    assert_int_equal(h->failed_errno, EINVAL);
    assert_non_null(strstr(h->failed_why, "cannot bind"));
}

static void start_fails(struct harness *h, const char *program, int error_number, const char *words) {
    const char *argv[] = {program, NULL};
    unsigned before = h->failed_count;
    harness_spawn_argv(h, 9, argv);
    harness_until(h, &h->failed_count, before + 1);
    assert_int_equal(h->failed_id, 9);
    assert_int_equal(h->failed_errno, error_number);
    if (!strstr(h->failed_why, words)) {
        fail_msg("'%s' does not say '%s'", h->failed_why, words);
    }
}

static void file_make(const char *path, const char *text, mode_t mode) {
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
    assert_int_equal(fchmod(fd, mode), 0);
    assert_int_equal(close(fd), 0);
}

static void programs_that_cannot_start(void **state) {
    struct harness *h = *state;
    char folder[] = "/tmp/guardian_test.XXXXXX";
    char path[64];
    assert_non_null(mkdtemp(folder));
    start_fails(h, "/nowhere/foo", ENOENT, "cannot start '/nowhere/foo': No such file or directory");
    start_fails(h, "no-such-program-anywhere", ENOENT, "'no-such-program-anywhere': No such file or directory in PATH");
    start_fails(h, folder, EACCES, "Permission denied");
    (void)snprintf(path, sizeof path, "%s/file", folder);
    file_make(path, "#!/bin/sh\n", 0644);
    start_fails(h, path, EACCES, "chmod +x");
    assert_int_equal(unlink(path), 0);
    file_make(path, "#!/nowhere/sh\n", 0755);
    start_fails(h, path, ENOENT, "the interpreter that it names is missing");
    assert_int_equal(unlink(path), 0);
    file_make(path, "echo\n", 0755);
    start_fails(h, path, ENOEXEC, "#!/bin/sh");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
    assert_int_equal(h->exit_count, 0);
    assert_int_equal(h->spawned_count, 0);
}

static void path_of_the_worker_is_searched(void **state) {
    struct harness *h = *state;
    char folder[] = "/tmp/guardian_test.XXXXXX";
    char path[64];
    char search[128];
    const char *argv[] = {"only-here", NULL};
    assert_non_null(mkdtemp(folder));
    (void)snprintf(path, sizeof path, "%s/only-here", folder);
    (void)snprintf(search, sizeof search, "PATH=/nowhere:%s", folder);
    file_make(path, "#!/bin/sh\nexit 5\n", 0755);
    h->envp[1] = search;
    harness_spawn_argv(h, 0, argv);
    harness_until_exits(h, 1);
    assert_int_equal(WEXITSTATUS(h->exits[0].wait_status), 5);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

static void folder_that_is_gone(void **state) {
    struct harness *h = *state;
    char folder[] = "/tmp/guardian_test.XXXXXX";
    int here = open(".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(here >= 0);
    harness_close(h);
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chdir(folder), 0);
    assert_int_equal(rmdir(folder), 0);
    harness_open(h);
    start_fails(h, "./worker", ENOENT, "cannot start './worker': No such file or directory");
    harness_spawn(h, 0, "exit", 0); /* by its full name it can live without a folder */
    harness_until_exits(h, 1);
    assert_int_equal(fchdir(here), 0);
    assert_int_equal(close(here), 0);
}

static void large_environments(void **state) {
    struct harness *h = *state;
    enum { ITEM_BYTES = 100 * 1024, ITEMS_FIT = 10, ITEMS_TOO_MANY = 70, ITEMS_BEYOND = 90 };
    const char *argv[] = {HOSTILE_PATH, "exit", "4", NULL};
    const char *envp[ITEMS_BEYOND + 2] = {h->mark};
    char *item = malloc(ITEM_BYTES);
    assert_non_null(item);
    memset(item, 'x', ITEM_BYTES);
    memcpy(item, "BIG=", 4);
    item[ITEM_BYTES - 1] = '\0';
    struct guardian_spawn spawn = {.argv = argv, .envp = envp, .stdout_fd = -1, .stderr_fd = -1};
    for (int i = 1; i <= ITEMS_BEYOND; i++) {
        envp[i] = item;
        envp[i + 1] = NULL;
        if (i == ITEMS_FIT || i == ITEMS_TOO_MANY) {
            assert_int_equal(guardian_spawn(h->guardian, (uint32_t)i, &spawn), 0);
        }
    }
    assert_int_equal(guardian_spawn(h->guardian, 0, &spawn), MUSTER_ELIMIT);
    harness_until_exits(h, 1);
    assert_int_equal(WEXITSTATUS(h->exits[0].wait_status), 4);
    harness_until(h, &h->failed_count, 1);
    assert_int_equal(h->failed_errno, E2BIG);
    free(item);
}

/* Returns when it has stopped: its threads may go on for a while, and answer. */
static void stop_guardian(const struct harness *h) {
    siginfo_t info;
    pid_t guardian = guardian_pid(h->guardian);
    assert_int_equal(kill(guardian, SIGSTOP), 0);
    assert_int_equal(waitid(P_PID, (id_t)guardian, &info, WSTOPPED | WNOWAIT), 0);
}

/* The agent's calls return although the guardian reads nothing; everything is done when it wakes. */
static void slow_guardian_does_not_block(void **state) {
    struct harness *h = *state;
    enum { WORKERS = 64, ITEM_BYTES = 60 * 1024 };
    const char *argv[] = {HOSTILE_PATH, "exit", "0", NULL};
    char *item = malloc(ITEM_BYTES);
    assert_non_null(item);
    memset(item, 'x', ITEM_BYTES);
    item[1] = '=';
    item[ITEM_BYTES - 1] = '\0';
    const char *envp[] = {h->mark, item, NULL};
    struct guardian_spawn spawn = {.argv = argv, .envp = envp, .stdout_fd = h->out_write, .stderr_fd = h->out_write};
    stop_guardian(h);
    for (uint32_t id = 0; id < WORKERS; id++) {
        assert_int_equal(guardian_spawn(h->guardian, id, &spawn), 0);
    }
    assert_int_equal(guardian_signal(h->guardian, SIGCONT), 0);
    (void)uv_run(&h->loop, UV_RUN_NOWAIT);
    assert_int_equal(kill(guardian_pid(h->guardian), SIGCONT), 0);
    harness_until_exits(h, WORKERS);
    assert_int_equal(h->spawned_count, WORKERS);
    free(item);
}

/* Waits for the kernel to say that the process is dead but not reaped. */
static void zombie_wait(pid_t pid) {
    char path[64];
    char text[512];
    (void)snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    for (;;) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        assert_true(fd >= 0);
        ssize_t n = read(fd, text, sizeof text - 1);
        assert_true(n > 0);
        text[n] = '\0';
        (void)close(fd);
        if (strstr(text, ") Z ")) {
            return;
        }
        (void)poll(NULL, 0, 1);
    }
}

/* All die, one after the other, while the guardian cannot look; it reports them in that order. */
static void assert_order_of_deaths(struct harness *h, const uint32_t *dying, uint32_t count) {
    for (uint32_t id = 0; id < count; id++) {
        harness_spawn(h, id, "usr1", (int)id);
    }
    harness_until(h, &h->spawned_count, count);
    harness_ready(h, count);
    stop_guardian(h);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(kill(h->pids[dying[i]], SIGUSR1), 0);
        zombie_wait(h->pids[dying[i]]);
    }
    assert_int_equal(kill(guardian_pid(h->guardian), SIGCONT), 0);
    harness_until_exits(h, count);
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(h->exits[i].id, dying[i]);
        assert_int_equal(h->exits[i].order, i);
    }
}

static void order_of_deaths(void **state) {
    static const uint32_t dying[] = {5, 1, 7, 0, 6, 2, 4, 3};
    if (old_kernel) {
        print_message("SKIP: without pidfds the order is only that of noticing\n");
        skip();
    }
    assert_order_of_deaths(*state, dying, sizeof dying / sizeof *dying);
}

/* More than one turn of the guardian takes, the youngest first: it must not ask waitpid(-1), which begins with the
 * oldest, before all that its pidfds have to say has been read. */
static void order_of_more_deaths_than_a_turn_takes(void **state) {
    enum { COUNT = 300 };
    uint32_t dying[COUNT];
    if (old_kernel) {
        print_message("SKIP: without pidfds the order is only that of noticing\n");
        skip();
    }
    for (uint32_t i = 0; i < COUNT; i++) {
        dying[i] = COUNT - 1 - i;
    }
    assert_order_of_deaths(*state, dying, COUNT);
}

static void order_of_two_deaths_apart(void **state) {
    struct harness *h = *state;
    harness_spawn(h, 0, "usr1", 0);
    harness_spawn(h, 1, "usr1", 1);
    harness_until(h, &h->spawned_count, 2);
    harness_ready(h, 2);
    assert_int_equal(kill(h->pids[1], SIGUSR1), 0);
    harness_until_exits(h, 1);
    assert_int_equal(kill(h->pids[0], SIGUSR1), 0);
    harness_until_exits(h, 2);
    assert_int_equal(h->exits[0].id, 1);
    assert_int_equal(h->exits[1].id, 0);
    assert_true(h->exits[0].order < h->exits[1].order);
    assert_true(h->exits[0].at_ns <= h->exits[1].at_ns);
}

static void guardian_killed(void **state) {
    struct harness *h = *state;
    harness_spawn(h, 0, "daemon", 5);
    harness_spawn(h, 1, "chain", 20);
    harness_spawn(h, 2, "stop", 0);
    harness_ready(h, 6 + 21 + 2);
    assert_int_equal(kill(guardian_pid(h->guardian), SIGKILL), 0);
    harness_until(h, &h->lost_count, 1);
    assert_int_equal(survivors_count(h->mark), 0);
    assert_int_equal(guardian_pid(h->guardian), 0);
    assert_int_equal(guardian_signal(h->guardian, SIGTERM), MUSTER_ECLOSED);
    assert_int_equal(guardian_kill_all(h->guardian), MUSTER_ECLOSED);
}

static void guardian_killed_before_close(void **state) {
    struct harness *h = *state;
    harness_spawn(h, 0, "daemon", 5);
    harness_ready(h, 6);
    assert_int_equal(kill(guardian_pid(h->guardian), SIGKILL), 0);
    /* The teardown closes without the loop having noticed. */
}

/* ---- after a loss ---- */

static void lose(struct harness *h) {
    unsigned before = h->lost_count;
    assert_int_equal(kill(guardian_pid(h->guardian), SIGKILL), 0);
    harness_until(h, &h->lost_count, before + 1);
}

static void another_guardian_takes_its_place(void **state) {
    struct harness *h = *state;
    for (uint32_t round = 0; round < 3; round++) {
        harness_spawn(h, 0, "ignore", 0);
        harness_spawn(h, 1, "daemon", 3);
        harness_ready(h, 1 + 4);
        harness_until(h, &h->spawned_count, 2 * round + 2);
        pid_t lost = guardian_pid(h->guardian);
        lose(h);
        assert_int_equal(survivors_count(h->mark), 0);
        assert_int_equal(h->orphan_count, 2 * round + 2);
        assert_int_equal(WTERMSIG(h->orphan_status), SIGKILL);
        assert_int_equal(guardian_replace(&h->guardian), 0);
        assert_true(guardian_pid(h->guardian) > 0 && guardian_pid(h->guardian) != lost);
    }
    harness_spawn(h, 2, "inspect", 0);
    harness_until_exits(h, 1);
    assert_int_equal(h->exits[0].wait_status, 0);
    harness_spawn(h, 3, "chain", 5);
    harness_ready(h, 6);
    (void)harness_kill_all(h);
    assert_int_equal(survivors_count(h->mark), 0);
    harness_spawn(h, 4, "daemon", 5); /* for the teardown */
    harness_ready(h, 6);
}

/* As the first one gave them: how many files, which signals. */
static void another_guardian_gives_workers_the_same(void **state) {
    struct harness *h = *state;
    struct rlimit limit, raised;
    const char *argv[] = {"sh", "-c", "kill -USR2 $$; test $(ulimit -Sn) = 64 && exit 7", NULL};
    harness_close(h);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    raised = limit;
    limit.rlim_cur = 64;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    (void)signal(SIGUSR2, SIG_IGN);
    harness_open(h);
    (void)signal(SIGUSR2, SIG_DFL);
    (void)signal(SIGUSR1, SIG_IGN); /* the agent's own affair, as the limit that it raises for itself */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &raised), 0);
    lose(h);
    assert_int_equal(guardian_replace(&h->guardian), 0);
    harness_spawn_argv(h, 0, argv);
    harness_until_exits(h, 1);
    assert_int_equal(h->exits[0].wait_status, 7 << 8);
    argv[2] = "kill -USR1 $$; exit 7";
    harness_spawn_argv(h, 1, argv);
    harness_until_exits(h, 2);
    assert_int_equal(WTERMSIG(h->exits[1].wait_status), SIGUSR1);
    (void)signal(SIGUSR1, SIG_DFL);
}

static void another_guardian_ends_with_its_agent(void **state) {
    struct harness *h = *state;
    lose(h);
    assert_int_equal(guardian_replace(&h->guardian), 0);
    pid_t guardian = guardian_pid(h->guardian);
    harness_spawn(h, 0, "chain", 10);
    harness_ready(h, 11);
    harness_close(h);
    assert_int_equal(survivors_count(h->mark), 0);
    assert_int_equal(kill(guardian, 0), -1);
    harness_open(h);
}

static void where_orphans_may_live_no_other_guardian_is_made(void **state) {
    struct harness *h = *state;
    harness_close(h);
    pid_t mine = fork();
    if (mine == 0) {
        for (;;) {
            (void)pause();
        }
    }
    harness_open(h);
    lose(h);
    const struct guardian *lost = h->guardian;
    assert_int_equal(guardian_replace(&h->guardian), MUSTER_EUNSUPPORTED);
    assert_ptr_equal(h->guardian, lost);
    assert_int_equal(kill(mine, SIGKILL), 0);
    assert_int_equal(waitpid(mine, NULL, 0), mine);
}

#if defined(__SANITIZE_THREAD__)
enum { HAS_THREAD_SANITIZER = 1 };
#else
enum { HAS_THREAD_SANITIZER = 0 };
#endif

/* Signals that no process can be deaf to. The thread sanitizer's own thread leaves in what the C library keeps for
 * itself (32 and 33), as no other thread of the guardian's does. */
static bool is_heard_by_all(int number) {
    return number == SIGKILL || number == SIGSTOP || (HAS_THREAD_SANITIZER && number > SIGSYS && number < SIGRTMIN);
}

/* Nothing that a group or a terminal sends ends the guardian. */
static void guardian_is_deaf(void **state) {
    struct harness *h = *state;
    pid_t pid = guardian_pid(h->guardian);
    harness_spawn(h, 0, "sleep", 0);
    harness_ready(h, 1);
    harness_until(h, &h->spawned_count, 1);
    assert_int_equal(getsid(pid), pid);
    for (int number = 1; number < NSIG; number++) {
        if (!is_heard_by_all(number)) {
            (void)kill(pid, number);
        }
    }
    (void)harness_kill_all(h);
    assert_int_equal(h->exit_count, 1);
    assert_int_equal(h->lost_count, 0);
}

static void guardian_stuck(void **state) {
    struct harness *h = *state;
    harness_spawn(h, 0, "ignore", 0);
    harness_ready(h, 1);
    guardian_set_stuck_ms(h->guardian, 100);
    stop_guardian(h);
    assert_int_equal(guardian_kill_all(h->guardian), 0);
    harness_until(h, &h->lost_count, 1);
    assert_int_equal(h->gone_count, 0);
    assert_int_equal(survivors_count(h->mark), 0);
}

/* Children that the agent had before are nobody's business. */
static void children_of_the_agent_are_spared(void **state) {
    struct harness *h = *state;
    harness_close(h);
    assert_int_equal(prctl(PR_SET_CHILD_SUBREAPER, 0), 0);
    pid_t mine = fork();
    if (mine == 0) {
        for (;;) {
            (void)pause();
        }
    }
    harness_open(h);
    harness_spawn(h, 0, "ignore", 0);
    harness_ready(h, 1);
    assert_int_equal(kill(guardian_pid(h->guardian), SIGKILL), 0);
    harness_until(h, &h->lost_count, 1);
    assert_int_equal(survivors_wait(h->mark, 60000), 0); /* the parent-death signal's doing */
    assert_int_equal(waitpid(mine, NULL, WNOHANG), 0);
    assert_int_equal(kill(mine, SIGKILL), 0);
    assert_int_equal(waitpid(mine, NULL, 0), mine);
}

/* An agent whose standard streams are closed must not hand its socket to workers in their place. */
static void closed_streams(void **state) {
    struct harness *h = *state;
    harness_close(h);
    int in = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 100);
    assert_int_equal(close(STDIN_FILENO), 0);
    harness_open(h);
    harness_spawn(h, 0, "inspect", 0);
    harness_until_exits(h, 1);
    int wait_status = h->exits[0].wait_status;
    harness_close(h);
    assert_int_equal(dup2(in, STDIN_FILENO), STDIN_FILENO);
    assert_int_equal(close(in), 0);
    harness_open(h);
    assert_int_equal(wait_status, 0);
}

static void new_calls_forbid(void) {
    static struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 2, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_send_signal, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_close_range, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {sizeof program / sizeof *program, program};
    assert_int_equal(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
    assert_int_equal(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter), 0);
    assert_int_equal(syscall(SYS_pidfd_open, getpid(), 0), -1);
    old_kernel = true;
}

#define PROC_TEST(name) cmocka_unit_test_setup_teardown(name, harness_setup, harness_teardown)

int main(int argc, char **argv) {
    guardian_main(argc, argv);
    for (int number = 1; number < NSIG; number++) {
        (void)signal(number, SIG_DFL); /* a shell that started the tests in the background ignores some */
    }
    if (argc > 1 && strcmp(argv[1], "--old-kernel") == 0) {
        new_calls_forbid();
    }
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
        PROC_TEST(dismiss_of_nobody_is_answered),
        PROC_TEST(dismiss_ends_what_workers_left_behind),
        PROC_TEST(dismiss_can_be_hurried),
        PROC_TEST(dismiss_can_spare_what_has_a_session_of_its_own),
        PROC_TEST(companion_outlives_the_workers),
        PROC_TEST(companion_is_not_left_behind),
        PROC_TEST(companion_has_successors),
        PROC_TEST(companion_that_stays_is_killed),
        PROC_TEST(a_worker_is_given_a_descriptor),
        PROC_TEST(close_kills_what_is_left),
        PROC_TEST(worker_is_set_up),
        PROC_TEST(worker_is_bound),
        PROC_TEST(programs_that_cannot_start),
        PROC_TEST(path_of_the_worker_is_searched),
        PROC_TEST(folder_that_is_gone),
        PROC_TEST(large_environments),
        PROC_TEST(slow_guardian_does_not_block),
        PROC_TEST(order_of_deaths),
        PROC_TEST(order_of_more_deaths_than_a_turn_takes),
        PROC_TEST(order_of_two_deaths_apart),
        PROC_TEST(guardian_killed),
        PROC_TEST(guardian_killed_before_close),
        PROC_TEST(another_guardian_takes_its_place),
        PROC_TEST(another_guardian_gives_workers_the_same),
        PROC_TEST(another_guardian_ends_with_its_agent),
        PROC_TEST(where_orphans_may_live_no_other_guardian_is_made),
        PROC_TEST(guardian_is_deaf),
        PROC_TEST(guardian_stuck),
        PROC_TEST(children_of_the_agent_are_spared),
        PROC_TEST(closed_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
