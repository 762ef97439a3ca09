/* `muster run` with hostile workers, killed at any moment, leaves no process behind. Each round starts the launcher
 * with four workers (deaf ones, daemons of daemons, chains in sessions of their own, a subreaper of its own), kills it,
 * its guardian or both at a moment drawn by chance within a phase, and looks for survivors: as orphans, which fall to
 * this process, and by the mark in their environment.
 *
 * launcher_killed_test [ROUNDS [SEED]]; the program is MUSTER_BINARY. kill-agents runs it with many rounds. */
#include "proc_harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "killing.h"

enum {
    LIMIT_MS = 20000,
    START_MAX_US = 20000,    /* about the time from exec to running workers, and as much again */
    MOMENT_MAX_US = 4000,    /* within a phase */
    ATTEMPTS_MAX_US = 60000, /* several attempts of a group that fails again and again */
    CROWD_READY = 13,        /* lines that four of hostile's crowd print */
    ARGV_MAX = 16,
};

static const char *program;
static char temporary[] = "/tmp/muster-killed-XXXXXX";

struct launcher {
    pid_t pid;
    int out_fd; /* the workers' stdout */
    char mark[96];
};

static void child_exec(int out_fd, char *mark, const char *mode) {
    char folder[64], timer[] = "TORCHELASTIC_ENABLE_FILE_TIMER=1"; /* a FIFO to clear away, too */
    char path[] = "PATH=/usr/bin:/bin", level[] = "LOGLEVEL=CRITICAL", omp[] = "OMP_NUM_THREADS=1";
    const char *argv[ARGV_MAX] = {program,
                                  "run",
                                  "--standalone",
                                  "--nproc-per-node=4",
                                  "--max-restarts=1000000",
                                  "--restart-backoff=0",
                                  "--shutdown-timeout=1",
                                  "--no-python",
                                  HOSTILE_PATH,
                                  mode,
                                  "${local_rank}",
                                  NULL};
    (void)snprintf(folder, sizeof folder, "TMPDIR=%s", temporary);
    char *envp[] = {mark, folder, timer, path, level, omp, NULL};
    int null_fd = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (setpgid(0, 0) == 0 && dup2(out_fd, STDOUT_FILENO) >= 0 && dup2(null_fd, STDERR_FILENO) >= 0) {
        (void)execve(program, (char *const *)(uintptr_t)argv, envp);
    }
    _exit(127);
}

static void launcher_start(struct launcher *l, const char *mode) {
    int pair[2];
    mark_make(l->mark, sizeof l->mark);
    assert_int_equal(pipe2(pair, O_CLOEXEC), 0);
    l->out_fd = pair[0];
    l->pid = fork();
    assert_true(l->pid >= 0);
    if (l->pid == 0) {
        child_exec(pair[1], l->mark, mode);
    }
    (void)close(pair[1]);
}

/* Waits until the workers have printed so many lines. */
static void ready_wait(const struct launcher *l, unsigned lines) {
    char text[1024];
    while (lines > 0) {
        struct pollfd wait = {.fd = l->out_fd, .events = POLLIN};
        assert_int_equal(poll(&wait, 1, LIMIT_MS), 1);
        ssize_t n = read(l->out_fd, text, sizeof text);
        assert_true(n > 0);
        for (ssize_t i = 0; i < n; i++) {
            lines -= text[i] == '\n' && lines > 0;
        }
    }
}

/* The launcher's one child. */
static pid_t guardian_of(const struct launcher *l) {
    char path[64];
    int pid = 0;
    (void)snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)l->pid, (int)l->pid);
    FILE *list = fopen(path, "r");
    assert_non_null(list);
    assert_int_equal(fscanf(list, "%d", &pid), 1); /* NOLINT(cert-err34-c): the kernel's own text */
    (void)fclose(list);
    return pid;
}

/* Empties a folder; returns how many things were in it. */
static unsigned folder_empty(const char *path) {
    DIR *folder = opendir(path);
    unsigned count = 0;
    for (const struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        char inner[512];
        bool own = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
        if (own || snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name) >= (int)sizeof inner) {
            continue;
        }
        count++;
        if (unlink(inner) != 0) {
            (void)folder_empty(inner);
            (void)rmdir(inner);
        }
    }
    if (folder) {
        (void)closedir(folder);
    }
    return count;
}

enum traces {
    TRACES_NONE,    /* log folders and the like have been cleared away by whoever was left */
    TRACES_POSSIBLE /* nobody was left, or nobody knew yet */
};

/* Reaps the launcher and waits until nothing of it is left, which is measured from here. */
static int launcher_done(struct launcher *l, enum traces traces) {
    int wait_status = 0;
    int64_t start_ns = clock_monotonic_ns();
    assert_int_equal(waitpid(l->pid, &wait_status, 0), l->pid);
    bool gone = killing_reap_orphans();
    double took_ms = (double)(clock_monotonic_ns() - start_ns) / 1e6;
    unsigned left = survivors_count(l->mark);
    survivors_kill(l->mark);
    (void)close(l->out_fd);
    unsigned trace_count = folder_empty(temporary);
    assert_true(gone);
    assert_int_equal(left, 0);
    assert_true(traces == TRACES_POSSIBLE || trace_count == 0);
    killing_note(took_ms);
    return wait_status;
}

/* From the first instruction on, so also before there is a guardian, and while it starts workers. */
static void killed_while_starting(void **state) {
    (void)state;
    for (unsigned i = 0; i < killing_rounds(); i++) {
        struct launcher l;
        launcher_start(&l, "crowd");
        killing_pause(START_MAX_US);
        assert_int_equal(kill(l.pid, SIGKILL), 0);
        (void)launcher_done(&l, TRACES_POSSIBLE);
    }
    killing_report("while starting");
}

static void killed_while_running(void **state) {
    (void)state;
    for (unsigned i = 0; i < killing_rounds(); i++) {
        struct launcher l;
        launcher_start(&l, "crowd");
        ready_wait(&l, CROWD_READY);
        killing_pause(MOMENT_MAX_US);
        assert_int_equal(kill(i % 2 ? -l.pid : l.pid, SIGKILL),
                         0); /* every other time as a shell or a batch system does */
        (void)launcher_done(&l, TRACES_NONE);
    }
    killing_report("while running");
}

static void killed_while_restarting(void **state) {
    (void)state;
    for (unsigned i = 0; i < killing_rounds(); i++) {
        struct launcher l;
        launcher_start(&l, "failing-crowd");
        ready_wait(&l, 1);
        killing_pause(ATTEMPTS_MAX_US);
        assert_int_equal(kill(l.pid, SIGKILL), 0);
        (void)launcher_done(&l, TRACES_NONE);
    }
    killing_report("while restarting");
}

static void killed_while_stopping(void **state) {
    (void)state;
    for (unsigned i = 0; i < killing_rounds(); i++) {
        struct launcher l;
        launcher_start(&l, "crowd");
        ready_wait(&l, CROWD_READY);
        assert_int_equal(kill(l.pid, SIGTERM), 0);
        killing_pause(MOMENT_MAX_US);
        assert_int_equal(kill(l.pid, SIGKILL), 0);
        (void)launcher_done(&l, TRACES_NONE);
    }
    killing_report("while stopping");
}

/* The launcher kills what the guardian leaves, and another one takes its place, below which the workers run again; it
 * does what the first one would when the launcher is killed. */
static void guardian_killed(void **state) {
    (void)state;
    for (unsigned i = 0; i < killing_rounds(); i++) {
        struct launcher l;
        launcher_start(&l, "crowd");
        ready_wait(&l, CROWD_READY);
        killing_pause(MOMENT_MAX_US);
        assert_int_equal(kill(guardian_of(&l), SIGKILL), 0);
        ready_wait(&l, CROWD_READY);
        killing_pause(MOMENT_MAX_US);
        assert_int_equal(kill(l.pid, SIGKILL), 0);
        (void)launcher_done(&l, TRACES_NONE);
    }
    killing_report("the guardian");
}

/* Both in one instant. Parent-death signals reach the workers; nothing reaches daemons of theirs then. */
static void launcher_and_guardian_killed(void **state) {
    (void)state;
    for (unsigned i = 0; i < killing_rounds(); i++) {
        struct launcher l;
        launcher_start(&l, "ignore");
        ready_wait(&l, 4);
        pid_t guardian = guardian_of(&l);
        killing_pause(MOMENT_MAX_US);
        assert_int_equal(kill(guardian, SIGSTOP), 0);
        assert_int_equal(kill(l.pid, SIGKILL), 0);
        assert_int_equal(kill(guardian, SIGKILL), 0);
        (void)launcher_done(&l, TRACES_POSSIBLE);
    }
    killing_report("launcher and guardian");
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_while_starting),   cmocka_unit_test(killed_while_running),
        cmocka_unit_test(killed_while_restarting), cmocka_unit_test(killed_while_stopping),
        cmocka_unit_test(guardian_killed),         cmocka_unit_test(launcher_and_guardian_killed),
    };
    program = getenv("MUSTER_BINARY");
    if (!program || access(program, X_OK) != 0) {
        print_message("SKIP: MUSTER_BINARY does not name the program\n");
        return 77;
    }
    if (!mkdtemp(temporary)) {
        perror(temporary);
        return 2;
    }
    killing_start(argc, argv);
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    killing_end();
    (void)folder_empty(temporary);
    (void)rmdir(temporary);
    return failed;
}
