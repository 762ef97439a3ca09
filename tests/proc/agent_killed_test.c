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
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

enum { GONE_LIMIT_MS = 20000, DELAY_MAX_US = 4000, ARGV_MAX = 24 };

static unsigned rounds = 10;
static uint64_t seed;

static uint64_t draw(uint64_t below) { /* xorshift64 */
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed % below;
}

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
    assert_int_equal(poll(&wait, 1, GONE_LIMIT_MS), 1);
    assert_int_equal(read(a->phase_fd, out, bytes), (ssize_t)bytes);
}

/* Whatever loses its parent falls to this process, the guardian first, so the kernel itself says when nothing is
 * left, also of processes too short-lived for a look at /proc. False at the limit. */
static bool orphans_reap(void) {
    int64_t end_ns = clock_monotonic_ns() + GONE_LIMIT_MS * CLOCK_NS_PER_MS;
    for (;;) {
        pid_t pid = waitpid(-1, NULL, WNOHANG);
        if (pid < 0 && errno == ECHILD) {
            return true;
        }
        if (pid == 0 && clock_monotonic_ns() > end_ns) {
            return false;
        }
        if (pid == 0) {
            (void)poll(NULL, 0, 1);
        }
    }
}

/* Reaps the agent and waits until nothing of it is left; returns the milliseconds that took. */
static double agent_done(struct agent *a, int *wait_status) {
    int64_t start_ns = clock_monotonic_ns();
    assert_int_equal(waitpid(a->pid, wait_status, 0), a->pid);
    (void)close(a->phase_fd);
    bool gone = orphans_reap();
    double took_ms = (double)(clock_monotonic_ns() - start_ns) / 1e6;
    unsigned left = survivors_count(a->mark);
    survivors_kill(a->mark);
    assert_true(gone);
    assert_int_equal(left, 0);
    return took_ms;
}

/* Kills in a phase, again and again. `whole_group`: as a shell or a batch system does it. */
static void killed_in(const char *phase, const char *const *workers, bool whole_group) {
    double worst_ms = 0;
    for (unsigned i = 0; i < rounds; i++) {
        struct agent a;
        char what;
        int wait_status;
        agent_start(&a, phase, workers);
        phase_wait(&a, &what, 1);
        struct timespec delay = {0, (long)draw(DELAY_MAX_US) * 1000};
        (void)nanosleep(&delay, NULL); /* the moment of the kill: chance is what is tested */
        assert_int_equal(kill(whole_group ? -a.pid : a.pid, SIGKILL), 0);
        double took_ms = agent_done(&a, &wait_status);
        worst_ms = took_ms > worst_ms ? took_ms : worst_ms;
    }
    print_message("%s: %u rounds, the slowest clean-up took %.1f ms\n", phase, rounds, worst_ms);
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
    (void)agent_done(&a, &wait_status);
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
    for (unsigned i = 0; i < rounds; i++) {
        struct agent a;
        pid_t guardian;
        int wait_status = 0;
        agent_start(&a, "lost", crowd);
        phase_wait(&a, &guardian, sizeof guardian);
        struct timespec delay = {0, (long)draw(DELAY_MAX_US) * 1000};
        (void)nanosleep(&delay, NULL);
        assert_int_equal(kill(guardian, SIGKILL), 0);
        (void)agent_done(&a, &wait_status);
        assert_true(WIFEXITED(wait_status));
        assert_int_equal(WEXITSTATUS(wait_status), 7);
    }
}

/* Both at once: what the parent-death signal can reach is gone. Its like for grandchildren does not exist. */
static void agent_and_guardian_killed(void **state) {
    static const char *const plain[] = {"ignore", "0", "ignore", "0", NULL};
    (void)state;
    for (unsigned i = 0; i < rounds; i++) {
        struct agent a;
        pid_t guardian;
        int wait_status = 0;
        agent_start(&a, "lost", plain);
        phase_wait(&a, &guardian, sizeof guardian);
        assert_int_equal(kill(a.pid, SIGSTOP), 0);
        assert_int_equal(kill(guardian, SIGKILL), 0);
        assert_int_equal(kill(a.pid, SIGKILL), 0);
        (void)agent_done(&a, &wait_status);
    }
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
    if (argc > 1) {
        rounds = (unsigned)strtoul(argv[1], NULL, 10);
    }
    if (prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0) {
        return 1;
    }
    seed = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)clock_monotonic_ns() | 1U;
    print_message("%u rounds, seed %llu\n", rounds, (unsigned long long)seed);
    return cmocka_run_group_tests(tests, NULL, NULL);
}
