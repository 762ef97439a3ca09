/* See own_failure.h. */
#include "agent/report/own_failure.h"

#include <inttypes.h>
#include <signal.h>
#include <sys/wait.h>

#include "base/str.h"

enum { SHELL_SIGNAL_BASE = 128 }; /* a shell exits with this and the signal that its command died of */

static bool is_from_outside(int signal_number) {
    return signal_number == SIGKILL || signal_number == SIGTERM || signal_number == SIGINT;
}

static bool is_crash(int signal_number) {
    return signal_number == SIGSEGV || signal_number == SIGBUS || signal_number == SIGFPE || signal_number == SIGILL ||
           signal_number == SIGABRT;
}

void own_failure_describe(const struct report_entry *entry, uint32_t start, char out[OWN_FAILURE_SIZE]) {
    int status = entry->wait_status;
    bool was_ended = entry->stopped_by_us || entry->is_victim || entry->oom_killed || entry->cpu_limit_s > 0 ||
                     entry->stuck || entry->timer_expired || entry->guardian_lost;
    out[0] = '\0';
    if (!was_ended && WIFEXITED(status) && WEXITSTATUS(status) != 0 &&
        !is_from_outside(WEXITSTATUS(status) - SHELL_SIGNAL_BASE)) {
        (void)str_format(out, OWN_FAILURE_SIZE, "exit %d in start %" PRIu32, WEXITSTATUS(status), start);
    } else if (!was_ended && WIFSIGNALED(status) && is_crash(WTERMSIG(status))) {
        (void)str_format(out, OWN_FAILURE_SIZE, "signal %d in start %" PRIu32, WTERMSIG(status), start);
    }
}
