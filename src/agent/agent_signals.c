/* Which signals the agent handles (--signals-to-handle), and that the machine is told of each. One that cannot be
 * handled is a warning: the job is worth more. A service that waits for its signals (sigwait()) starts the agent with
 * them blocked: they are unblocked, and so is SIGCONT, by which a debugger or a shell lets the agent go on. SIGHUP that
 * the agent was started with ignored (nohup) stays ignored. */
#include <signal.h>
#include <string.h>

#include "agent/agent_impl.h"
#include "agent/report/signal_name.h"
#include "base/log.h"

static void on_signal(uv_signal_t *handle, int signal_number) {
    struct agent *a = handle->data;
    agent_feed(a, AGENT_EVENT_SIGNAL, signal_number);
    logs_hurry(a->logs);
    if (a->starts == 0) {
        log_warning("Received %d death signal; no worker has been started here", signal_number);
        return;
    }
    if (a->machine.state != AGENT_STATE_STOPPING) {
        log_warning("Received %d death signal, shutting down workers", signal_number);
        return;
    }
    log_warning(
        "Received %d death signal, shutting down workers: they have %llu s to end; a second signal (Ctrl-C) ends "
        "them at once",
        signal_number, (unsigned long long)(a->config->shutdown_timeout_ms / 1000));
}

static bool signal_is_handled(const struct agent *a, int number) {
    for (size_t i = 0; i < a->signal_count; i++) {
        if (a->signals[i].signum == number) {
            return true;
        }
    }
    return false;
}

/* Only SIGHUP: shells ignore SIGINT and SIGQUIT for every job that a script starts in the background, and there, as
 * under torchrun, Ctrl-C is to end the launchers together with the script. */
static bool stays_ignored(const struct agent *a, int number) {
    struct sigaction now;
    return number == SIGHUP && !a->config->signals_given && sigaction(number, NULL, &now) == 0 &&
           now.sa_handler == SIG_IGN;
}

static void unblock(int number) {
    sigset_t set;
    (void)sigemptyset(&set);
    (void)sigaddset(&set, number);
    (void)sigprocmask(SIG_UNBLOCK, &set, NULL);
}

static void watch_signal(struct agent *a, const char *name, size_t len) {
    int number = signal_from_name(name, len);
    if (number == 0) {
        log_warning("--signals-to-handle: there is no signal '%.*s' here; it is ignored", (int)len, name);
        return;
    }
    if (stays_ignored(a, number)) {
        log_info("SIGHUP was ignored when the launcher was started (nohup), and stays ignored");
        return;
    }
    if (number == a->config->preempt_signal || signal_is_handled(a, number) || a->signal_count == AGENT_SIGNALS_MAX) {
        return;
    }
    uv_signal_t *handle = &a->signals[a->signal_count];
    int rc = uv_signal_init(&a->loop, handle);
    if (rc == 0) {
        a->signal_count++;
        handle->data = a;
        rc = uv_signal_start(handle, on_signal, number);
    }
    if (rc == 0) {
        unblock(number);
    } else {
        log_warning("--signals-to-handle: %s cannot be handled: %s", signal_name(number), uv_strerror(rc));
    }
}

void agent_signals_watch(struct agent *a) {
    /* A reader that has gone, a file at its size limit: errors of write(), not our end. */
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN);
    unblock(SIGCONT);
    const char *p = a->config->signals_to_handle;
    while (*p != '\0') {
        p += strspn(p, ", \t");
        size_t len = strcspn(p, ",");
        size_t name_len = len;
        while (name_len > 0 && (p[name_len - 1] == ' ' || p[name_len - 1] == '\t')) {
            name_len--;
        }
        if (name_len > 0) {
            watch_signal(a, p, name_len);
        }
        p += len;
    }
}
