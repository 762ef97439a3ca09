/* A worker that behaves as badly as it is told to: the process tests' opponent.
 *
 * Usage: hostile MODE [NUMBER]. Every mode that goes on living writes one line "ready PID" to stdout for each process
 * that it has brought into its final state, so that tests wait for events. Fork storms are bounded. */
#include <dirent.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RELAY_FORKS_MAX = 20000 }; /* what a relay that nobody kills comes to */

static void ready(void) {
    char line[64];
    int length = snprintf(line, sizeof line, "ready %d\n", (int)getpid());
    if (write(STDOUT_FILENO, line, (size_t)length) < 0) {
        _exit(99); /* the test is gone */
    }
}

static void signals_ignore(void) {
    for (int number = 1; number < NSIG; number++) {
        (void)signal(number, SIG_IGN);
    }
    (void)signal(SIGCHLD, SIG_DFL);
}

static void wait_forever(void) {
    for (;;) {
        (void)pause();
    }
}

static int mode_sleep(int number) {
    (void)number;
    ready();
    wait_forever();
    return 0;
}

static int mode_ignore(int number) {
    (void)number;
    signals_ignore();
    ready();
    wait_forever();
    return 0;
}

static int mode_exit(int number) {
    return number;
}

static int mode_signal(int number) {
    (void)raise(number);
    return 99;
}

static bool descriptors_are_standard(void) {
    int count = 0;
    DIR *folder = opendir("/proc/self/fd");
    int own = folder ? dirfd(folder) : -1;
    for (struct dirent *entry; folder && (entry = readdir(folder)) != NULL;) {
        long fd = strtol(entry->d_name, NULL, 10);
        count += entry->d_name[0] != '.' && fd != own;
        if (entry->d_name[0] != '.' && fd != own && fd > STDERR_FILENO) {
            return false;
        }
    }
    return folder && closedir(folder) == 0 && count == 3;
}

/* Nothing blocked, nothing ignored but `ignored` (0: nothing), and that is. */
static bool signals_are_default_but(int ignored) {
    sigset_t blocked;
    if (sigprocmask(SIG_SETMASK, NULL, &blocked) != 0) {
        return false;
    }
    for (int number = 1; number < NSIG; number++) {
        struct sigaction action;
        if (sigaction(number, NULL, &action) == 0 &&
            (action.sa_handler != (number == ignored ? SIG_IGN : SIG_DFL) || sigismember(&blocked, number) == 1)) {
            return false;
        }
    }
    return true;
}

/* Exits 0 when this process was set up as a worker must be, with signal `number` ignored if it is not 0; else with the
 * number of what is wrong. */
static int mode_inspect(int number) {
    int deathsig = 0;
    if (getsid(0) != getpid() || getpgrp() != getpid()) {
        return 1;
    }
    if (prctl(PR_GET_PDEATHSIG, &deathsig) != 0 || deathsig != SIGKILL) {
        return 2;
    }
    if (!descriptors_are_standard()) {
        return 3;
    }
    return signals_are_default_but(number) ? 0 : 4;
}

/* Exits 0 when it may run on CPU `number` only. */
static int mode_cpu(int number) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) != 0 || CPU_COUNT(&set) != 1 || !CPU_ISSET((size_t)number, &set);
}

/* Exits with `number` at SIGUSR1, so that a test chooses the moment. */
static int mode_on_usr1(int number) {
    sigset_t usr1;
    int got = 0;
    (void)sigemptyset(&usr1);
    (void)sigaddset(&usr1, SIGUSR1);
    (void)sigprocmask(SIG_BLOCK, &usr1, NULL);
    ready();
    (void)sigwait(&usr1, &got);
    return number;
}

/* A daemon by the book: double fork, session of its own, deaf. `number` of them. */
static void daemons_start(int number) {
    for (int i = 0; i < number; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            (void)setsid();
            if (fork() != 0) {
                _exit(0);
            }
            (void)setsid();
            signals_ignore();
            ready();
            wait_forever();
        }
        (void)waitpid(pid, NULL, 0);
    }
}

static int mode_daemon(int number) {
    daemons_start(number);
    signals_ignore();
    ready();
    wait_forever();
    return 0;
}

/* The leader ends at once; its daemons stay. */
static int mode_abandon(int number) {
    daemons_start(number);
    return 0;
}

/* Two processes, both stopped. */
static int mode_stop(int number) {
    (void)number;
    if (fork() < 0) {
        return 97;
    }
    ready();
    (void)raise(SIGSTOP);
    wait_forever();
    return 0;
}

/* Each process of the chain bears the next and sleeps; every other one takes a session of its own. */
static int mode_chain(int number) {
    for (int depth = 0; depth < number; depth++) {
        pid_t pid = fork();
        if (pid != 0) {
            break;
        }
        if (depth % 2 == 0) {
            (void)setsid();
        }
    }
    signals_ignore();
    ready();
    wait_forever();
    return 0;
}

/* Orphans below it fall to itself rather than to the guardian. */
static int mode_subreaper(int number) {
    (void)prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
    return mode_daemon(number);
}

/* A process that is never there: each one forks its successor, in a new session, and ends. */
static void relay_run(int forks) {
    signals_ignore();
    for (int i = 0; i < forks; i++) {
        if (fork() != 0) {
            _exit(0);
        }
        (void)setsid();
    }
    _exit(0);
}

static int mode_relay(int number) {
    ready();
    for (int i = 0; i < number; i++) {
        if (fork() == 0) {
            relay_run(RELAY_FORKS_MAX);
        }
    }
    signals_ignore();
    wait_forever();
    return 0;
}

/* Every process forks as fast as it can, in sessions of their own, until `number` have been born in all. */
static int mode_storm(int number) {
    int *born = mmap(NULL, sizeof *born, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (born == MAP_FAILED) {
        return 97;
    }
    signals_ignore();
    ready();
    while (__atomic_fetch_add(born, 1, __ATOMIC_RELAXED) < number) {
        if (fork() == 0) {
            (void)setsid();
        }
    }
    wait_forever();
    return 0;
}

/* Bears daemons and fails. */
static int mode_quit(int number) {
    daemons_start(number);
    ready();
    return 1;
}

/* One of a crowd: what each local rank of a launcher does. */
static int mode_crowd(int number) {
    switch (number % 4) {
    case 0:
        return mode_ignore(0);
    case 1:
        return mode_daemon(3);
    case 2:
        return mode_chain(4);
    default:
        return mode_subreaper(2);
    }
}

/* The same, but the last of four fails. */
static int mode_failing_crowd(int number) {
    return number % 4 == 3 ? mode_quit(2) : mode_crowd(number);
}

/* The first local rank hangs in the kernel: who has called vfork() sleeps uninterruptibly until its child has ended. */
static int mode_stuck(int number) {
    ready();
    if (number == 0 && vfork() == 0) { /* NOLINT(clang-analyzer-security.insecureAPI.vfork) */
        (void)pause();                 /* NOLINT(clang-analyzer-unix.Vfork): a system call, and nothing after it */
        _exit(0);
    }
    wait_forever();
    return 0;
}

struct mode {
    const char *name;
    int (*run)(int number);
};

static const struct mode modes[] = {
    {"sleep", mode_sleep},     {"ignore", mode_ignore}, {"exit", mode_exit},
    {"signal", mode_signal},   {"usr1", mode_on_usr1},  {"daemon", mode_daemon},
    {"abandon", mode_abandon}, {"stop", mode_stop},     {"chain", mode_chain},
    {"relay", mode_relay},     {"storm", mode_storm},   {"subreaper", mode_subreaper},
    {"inspect", mode_inspect}, {"cpu", mode_cpu},       {"quit", mode_quit},
    {"crowd", mode_crowd},     {"stuck", mode_stuck},   {"failing-crowd", mode_failing_crowd},
};

int main(int argc, char **argv) {
    int number = argc > 2 ? (int)strtol(argv[2], NULL, 10) : 0;
    for (size_t i = 0; argc > 1 && i < sizeof modes / sizeof *modes; i++) {
        if (strcmp(argv[1], modes[i].name) == 0) {
            return modes[i].run(number);
        }
    }
    (void)fprintf(stderr, "usage: hostile MODE [NUMBER]\n");
    return 98;
}
