/* One table of signals; see signal_name.h. */
#include "agent/report/signal_name.h"

#include <signal.h>
#include <stdbool.h>
#include <string.h>

#define SIGNAL_TABLE(X)                                                                                                \
    X(SIGHUP, "Hangup")                                                                                                \
    X(SIGINT, "Interrupt")                                                                                             \
    X(SIGQUIT, "Quit")                                                                                                 \
    X(SIGILL, "Illegal instruction")                                                                                   \
    X(SIGTRAP, "Trace/breakpoint trap")                                                                                \
    X(SIGABRT, "Aborted")                                                                                              \
    X(SIGBUS, "Bus error")                                                                                             \
    X(SIGFPE, "Floating point exception")                                                                              \
    X(SIGKILL, "Killed")                                                                                               \
    X(SIGUSR1, "User defined signal 1")                                                                                \
    X(SIGSEGV, "Segmentation fault")                                                                                   \
    X(SIGUSR2, "User defined signal 2")                                                                                \
    X(SIGPIPE, "Broken pipe")                                                                                          \
    X(SIGALRM, "Alarm clock")                                                                                          \
    X(SIGTERM, "Terminated")                                                                                           \
    X(SIGSTKFLT, "Stack fault")                                                                                        \
    X(SIGCHLD, "Child exited")                                                                                         \
    X(SIGCONT, "Continued")                                                                                            \
    X(SIGSTOP, "Stopped (signal)")                                                                                     \
    X(SIGTSTP, "Stopped")                                                                                              \
    X(SIGTTIN, "Stopped (tty input)")                                                                                  \
    X(SIGTTOU, "Stopped (tty output)")                                                                                 \
    X(SIGURG, "Urgent I/O condition")                                                                                  \
    X(SIGXCPU, "CPU time limit exceeded")                                                                              \
    X(SIGXFSZ, "File size limit exceeded")                                                                             \
    X(SIGVTALRM, "Virtual timer expired")                                                                              \
    X(SIGPROF, "Profiling timer expired")                                                                              \
    X(SIGWINCH, "Window changed")                                                                                      \
    X(SIGIO, "I/O possible")                                                                                           \
    X(SIGPWR, "Power failure")                                                                                         \
    X(SIGSYS, "Bad system call")

struct entry {
    const char *name, *words;
};

static const struct entry entries[] = {
#define SIGNAL_ENTRY(number, words) [number] = {#number, words},
    SIGNAL_TABLE(SIGNAL_ENTRY)
#undef SIGNAL_ENTRY
};
enum { ENTRY_COUNT = sizeof entries / sizeof *entries };

static bool is_listed(int number) {
    return number > 0 && number < ENTRY_COUNT;
}

const char *signal_name(int number) {
    if (number == SIGRTMIN) {
        return "SIGRTMIN";
    }
    if (number == SIGRTMAX) {
        return "SIGRTMAX";
    }
    return is_listed(number) ? entries[number].name : NULL;
}

const char *signal_words(int number) {
    return is_listed(number) ? entries[number].words : NULL;
}

static bool is_named(const char *name, size_t len, const char *wanted) {
    return len == strlen(wanted) && memcmp(name, wanted, len) == 0;
}

int signal_from_name(const char *name, size_t len) {
    for (int number = 1; number < ENTRY_COUNT; number++) {
        if (entries[number].name && is_named(name, len, entries[number].name)) {
            return number;
        }
    }
    return is_named(name, len, "SIGPOLL") ? SIGPOLL : 0;
}
