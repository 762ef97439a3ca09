/* An agent that dies in the middle of anything leaves nothing behind. Each round starts a small agent with hostile
 * workers, kills it at a moment drawn by chance within a phase, and looks for survivors: as orphans, which fall to this
 * process, and by the mark in their environment.
 *
 * agent_killed_test [ROUNDS [SEED]]; tools run it with many rounds, ctest with few. Prints the seed and how long the
 * last survivor took. */
#include "proc_harness.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "killing.h"

enum { PHASE_LIMIT_MS = 20000, DELAY_MAX_US = 4000, ARGV_MAX = 24 };

static const char *const crowd[] = {"ignore", "0", "daemon", "2", "chain", "4", "stop", "0", NULL};
static const char *const stormy[] = {"storm", "40", "relay", "1", "subreaper", "1", "abandon", "2", NULL};

struct agent {
    pid_t pid;
    int phase_fd;
    char mark[96];
};

static void child_exec(int phase_fd, char *mark, const char *phase, const char *const *workers) {
    const char *argv[ARGV_MAX] = {STUB_PATH, phase, HOSTILE_PATH};
    char *envp[] = {mark, NULL};
    for (size_t i = 0; workers[i]; i++) {
        argv[3 + i] = workers[i];
    }
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (setpgid(0, 0) == 0 && dup2(phase_fd, 3) == 3 && dup2(null_fd, STDOUT_FILENO) >= 0) {
        (void)execve(STUB_PATH, (char *const *)(uintptr_t)argv, envp);
    }
    _exit(127);
}

static void agent_start(struct agent *a, const char *phase, const char *const *workers) {
    int pair[2];
    mark_make(a->mark, sizeof a->mark);
    assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
    int high = fcntl(pair[1], F_DUPFD_CLOEXEC, 10); /* so that dup2 to 3 always makes a new descriptor */
    assert_true(high >= 0);
    (void)close(pair[1]);
    a->pid = fork();
    assert_true(a->pid >= 0);
    if (a->pid == 0) {
        child_exec(high, a->mark, phase, workers);
    }
    (void)close(high);
    a->phase_fd = pair[0];
}

static void phase_wait(const struct agent *a, void *out, size_t bytes) {
    struct pollfd wait = {.fd = a->phase_fd, .events = POLLIN};
    assert_int_equal(poll(&wait, 1, PHASE_LIMIT_MS), 1);
    assert_int_equal(read(a->phase_fd, out, bytes), (ssize_t)bytes);
}

/* Reaps the agent and waits until nothing of it is left, which is measured. */
static void agent_done(struct agent *a, int *wait_status) {
    int64_t start_ns = clock_monotonic_ns();
    assert_int_equal(waitpid(a->pid, wait_status, 0), a->pid);
    (void)close(a->phase_fd);
    bool gone = killing_reap_orphans();
    double took_ms = (double)(clock_monotonic_ns() - start_ns) / 1e6;
    unsigned left = survivors_count(a->mark);
    survivors_kill(a->mark);
    assert_true(gone);
    assert_int_equal(left, 0);
    killing_note(took_ms);
}

/* Kills in a phase, again and again. `whole_group`: as a shell or a batch system does it. */
static void killed_in(const char *phase, const char *const *workers, bool whole_group) {
    for (unsigned i = 0; i < killing_rounds(); i++) {
        struct agent a;
        char what;
        int wait_status;
        agent_start(&a, phase, workers);
        phase_wait(&a, &what, 1);
        killing_pause(DELAY_MAX_US);
        assert_int_equal(kill(whole_group ? -a.pid : a.pid, SIGKILL), 0);
        agent_done(&a, &wait_status);
    }
    killing_report(phase);
}

static void killed_while_spawning(void **state) {
    (void)state;
    killed_in("spawn", crowd, false);
}

static void killed_while_running(void **state) {
    (void)state;
    killed_in("run", crowd, true);
}

static void killed_while_running_storms(void **state) {
    (void)state;
    killed_in("run", stormy, false);
}

static void killed_after_signal(void **state) {
    (void)state;
    killed_in("signal", crowd, false);
}

static void killed_while_stopping(void **state) {
    (void)state;
    killed_in("stop", stormy, false);
}

static void aborts(void **state) {
    struct agent a;
    int wait_status = 0;
    (void)state;
    agent_start(&a, "abort", crowd);
    agent_done(&a, &wait_status);
    assert_true(WIFSIGNALED(wait_status));
    assert_int_equal(WTERMSIG(wait_status), SIGABRT);
}

static void ends_properly(void **state) {
    struct agent a;
    int wait_status = 0;
    (void)state;
    agent_start(&a, "end", stormy);
    assert_int_equal(waitpid(a.pid, &wait_status, 0), a.pid);
    assert_int_equal(wait_status, 0);
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1); /* by the time the agent is gone, not a moment later */
    assert_int_equal(survivors_count(a.mark), 0);
    (void)close(a.phase_fd);
}

static void guardian_killed(void **state) {
    (void)state;
    for (unsigned i = 0; i < killing_rounds(); i++) {
        struct agent a;
        pid_t guardian;
        int wait_status = 0;
        agent_start(&a, "lost", crowd);
        phase_wait(&a, &guardian, sizeof guardian);
        killing_pause(DELAY_MAX_US);
        assert_int_equal(kill(guardian, SIGKILL), 0);
        agent_done(&a, &wait_status);
        assert_true(WIFEXITED(wait_status));
        assert_int_equal(WEXITSTATUS(wait_status), 7);
    }
    killing_report("the guardian");
}

/* Both at once: what the parent-death signal can reach is gone. Its like for grandchildren does not exist. */
static void agent_and_guardian_killed(void **state) {
    static const char *const plain[] = {"ignore", "0", "ignore", "0", NULL};
    (void)state;
    for (unsigned i = 0; i < killing_rounds(); i++) {
        struct agent a;
        pid_t guardian;
        int wait_status = 0;
        agent_start(&a, "lost", plain);
        phase_wait(&a, &guardian, sizeof guardian);
        assert_int_equal(kill(a.pid, SIGSTOP), 0);
        assert_int_equal(kill(guardian, SIGKILL), 0);
        assert_int_equal(kill(a.pid, SIGKILL), 0);
        agent_done(&a, &wait_status);
    }
    killing_report("agent and guardian");
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_while_spawning),
        cmocka_unit_test(killed_while_running),
        cmocka_unit_test(killed_while_running_storms),
        cmocka_unit_test(killed_after_signal),
        cmocka_unit_test(killed_while_stopping),
        cmocka_unit_test(aborts),
        cmocka_unit_test(ends_properly),
        cmocka_unit_test(guardian_killed),
        cmocka_unit_test(agent_and_guardian_killed),
    };
    killing_start(argc, argv);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    killing_end();
    return failed;
}
