/* A worker that stamps its first instruction and every signal it gets, and does what the harness tells it.
 *
 *     stamp_worker CHANNEL [--ignore] [--hostile] [--exit CODE]
 *
 * It stamps `start` with its ranks, then waits. SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 are stamped
 * (`signal`) and then kill it as they would by default, unless --ignore; SIGRTMIN+n makes it exit with code n.
 * --hostile leaves two descendants behind, one in a session of its own and one forked twice, which ignore
 * everything that can be ignored. --exit ends it at once. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "stamp.h"

static const int told_signals[] = {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};
#define TOLD_SIGNALS_COUNT (sizeof told_signals / sizeof told_signals[0])

static char identity[512]; /* ` rank=.. attempt=..`, the tail of every stamp */

static const char *environment_or(const char *name, const char *fallback) {
    const char *value = getenv(name);
    return value ? value : fallback;
}

static void identity_fill(void) {
    snprintf(identity, sizeof identity, " rank=%.16s attempt=%.16s", environment_or("RANK", "-"),
             environment_or("TORCHELASTIC_RESTART_COUNT", "-"));
}

static void start_stamp(int channel, int64_t start_ns) {
    char more[900];
    snprintf(more, sizeof more, "%s ppid=%d world=%.16s local=%.16s group=%.16s nodes=%.16s addr=%.200s port=%.16s",
             identity, (int)getppid(), environment_or("WORLD_SIZE", "-"), environment_or("LOCAL_RANK", "-"),
             environment_or("GROUP_RANK", "-"), environment_or("GROUP_WORLD_SIZE", "-"),
             environment_or("MASTER_ADDR", "-"), environment_or("MASTER_PORT", "-"));
    stamp_write(channel, "start", start_ns, more);
}

static _Noreturn void outlast_everything(int channel) {
    sigset_t all;
    sigfillset(&all);
    sigprocmask(SIG_SETMASK, &all, NULL);
    stamp_write(channel, "descendant", stamp_now_ns(), identity);
    for (;;) {
        pause();
    }
}

/* One child in a new session, and one whose parent has already exited. */
static void leave_descendants(int channel) {
    if (fork() == 0) {
        setsid();
        outlast_everything(channel);
    }
    pid_t middle = fork();
    if (middle == 0) {
        if (fork() == 0) {
            setsid();
            outlast_everything(channel);
        }
        _exit(0);
    }
    while (middle > 0 && waitpid(middle, NULL, 0) < 0 && errno == EINTR) {
    }
}

static void watched_signals(sigset_t *out) {
    sigemptyset(out);
    for (size_t i = 0; i < TOLD_SIGNALS_COUNT; i++) {
        sigaddset(out, told_signals[i]);
    }
    for (int number = SIGRTMIN; number <= SIGRTMAX; number++) {
        sigaddset(out, number);
    }
}

static _Noreturn void die_of(int number) {
    signal(number, SIG_DFL);
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, number);
    raise(number);
    sigprocmask(SIG_UNBLOCK, &one, NULL);
    _exit(128 + number); /* not reached: all of them are fatal */
}

static _Noreturn void obey(int channel, const sigset_t *watched, bool ignore) {
    for (;;) {
        siginfo_t info;
        int number = sigwaitinfo(watched, &info);
        int64_t when_ns = stamp_now_ns();
        if (number < 0) {
            continue;
        }
        if (number >= SIGRTMIN) {
            stamp_write(channel, "exit", when_ns, identity);
            _exit(number - SIGRTMIN);
        }
        char more[600];
        snprintf(more, sizeof more, "%s signo=%d sender=%d", identity, number, (int)info.si_pid);
        stamp_write(channel, "signal", when_ns, more);
        if (!ignore) {
            die_of(number);
        }
    }
}

int main(int argc, char **argv) {
    int64_t start_ns = stamp_now_ns();
    if (argc < 2) {
        fputs("usage: stamp_worker CHANNEL [--ignore] [--hostile] [--exit CODE]\n", stderr);
        return 2;
    }
    sigset_t watched;
    watched_signals(&watched);
    sigprocmask(SIG_BLOCK, &watched, NULL);
    int channel = stamp_open(argv[1]);
    if (channel < 0) {
        perror(argv[1]);
        return 2;
    }
    identity_fill();
    bool ignore = false;
    bool hostile = false;
    int exit_code = -1;
    for (int i = 2; i < argc; i++) {
        if (strcmp(argv[i], "--ignore") == 0) {
            ignore = true;
        } else if (strcmp(argv[i], "--hostile") == 0) {
            hostile = true;
        } else if (strcmp(argv[i], "--exit") == 0 && i + 1 < argc) {
            exit_code = (int)strtol(argv[++i], NULL, 10);
        }
    }
    if (hostile) {
        leave_descendants(channel);
    }
    start_stamp(channel, start_ns);
    if (exit_code >= 0) {
        _exit(exit_code);
    }
    obey(channel, &watched, ignore);
}
