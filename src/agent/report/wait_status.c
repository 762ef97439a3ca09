/* Exit codes and signals in torchelastic's words; see wait_status.h. */
#include "agent/report/wait_status.h"

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/wait.h>

const char *report_signal_name(int signal_number) {
    static const char *const names[] = {
        [SIGHUP] = "SIGHUP",     [SIGINT] = "SIGINT",   [SIGQUIT] = "SIGQUIT",     [SIGILL] = "SIGILL",
        [SIGTRAP] = "SIGTRAP",   [SIGABRT] = "SIGABRT", [SIGBUS] = "SIGBUS",       [SIGFPE] = "SIGFPE",
        [SIGKILL] = "SIGKILL",   [SIGUSR1] = "SIGUSR1", [SIGSEGV] = "SIGSEGV",     [SIGUSR2] = "SIGUSR2",
        [SIGPIPE] = "SIGPIPE",   [SIGALRM] = "SIGALRM", [SIGTERM] = "SIGTERM",     [SIGSTKFLT] = "SIGSTKFLT",
        [SIGCHLD] = "SIGCHLD",   [SIGCONT] = "SIGCONT", [SIGSTOP] = "SIGSTOP",     [SIGTSTP] = "SIGTSTP",
        [SIGTTIN] = "SIGTTIN",   [SIGTTOU] = "SIGTTOU", [SIGURG] = "SIGURG",       [SIGXCPU] = "SIGXCPU",
        [SIGXFSZ] = "SIGXFSZ",   [SIGPROF] = "SIGPROF", [SIGVTALRM] = "SIGVTALRM", [SIGIO] = "SIGIO",
        [SIGWINCH] = "SIGWINCH", [SIGPWR] = "SIGPWR",   [SIGSYS] = "SIGSYS",
    };
    if (signal_number == SIGRTMIN) {
        return "SIGRTMIN";
    }
    if (signal_number == SIGRTMAX) {
        return "SIGRTMAX";
    }
    bool listed = signal_number > 0 && (size_t)signal_number < sizeof names / sizeof *names;
    return listed ? names[signal_number] : NULL;
}

int report_exit_code(int wait_status) {
    return WIFSIGNALED(wait_status) ? -WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}
