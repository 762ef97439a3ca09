/* Pre-emption in the agent: the signal that announces it (--preempt-signal), and the request to this node's workers.
 *
 * The request is a path that comes into being: workers know it from MUSTER_STOP_PATH, look now and then, and agree
 * among themselves after which step they stop (muster_stop_requested(), or an all_reduce of their own). It is an empty
 * folder, since that is made at once or not at all, cannot be waited upon by mistake, and is what the guardian clears
 * away should this process be killed. */
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/agent_impl.h"
#include "agent/report/signal_name.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "base/system/random.h"

static void on_signal(uv_signal_t *handle, int signal_number) {
    struct agent *a = handle->data;
    log_warning("received %s: this node will be taken away in %llu s; the job stops, and can be started again",
                signal_name(signal_number), (unsigned long long)(a->config->preempt_grace_ms / 1000));
    agent_feed(a, AGENT_EVENT_PREEMPT, (int)a->config->preempt_grace_ms);
}

int agent_preempt_prepare(struct agent *a) {
    const int number = a->config->preempt_signal;
    uint64_t random[2];
    if (number == 0 && !rdzv_has_coordinator(a->config->rdzv.backend)) {
        return MUSTER_OK; /* nobody can ask */
    }
    if (random_fill(random, sizeof random) != 0) {
        return status_fail_errno(errno, "no random numbers for a name");
    }
    a->stop_path =
        str_format_new("%s/muster_stop_%016" PRIx64 "%016" PRIx64, file_temporary_folder(), random[0], random[1]);
    if (a->stop_path == NULL) {
        return status_fail(MUSTER_ENOMEM, "no memory for an agent");
    }
    if (number != 0) {
        sigset_t notice;
        (void)sigemptyset(&notice);
        (void)sigaddset(&notice, number);
        (void)sigprocmask(SIG_BLOCK, &notice, NULL); /* until somebody listens */
        if (number != SIGTERM) {
            (void)signal(number, SIG_IGN);
        }
    }
    return MUSTER_OK;
}

int agent_preempt_watch(struct agent *a) {
    const int number = a->config->preempt_signal;
    if (number == 0) {
        return MUSTER_OK;
    }
    int rc = uv_signal_init(&a->loop, &a->preempt_signal);
    if (rc == 0) {
        a->preempt_signal.data = a;
        a->watches_preempt_signal = true;
        rc = uv_signal_start(&a->preempt_signal, on_signal, number);
    }
    sigset_t notice;
    (void)sigemptyset(&notice);
    (void)sigaddset(&notice, number);
    (void)sigprocmask(SIG_UNBLOCK, &notice, NULL);
    return rc == 0 ? MUSTER_OK
                   : status_fail(MUSTER_EINVAL, "--preempt-signal: %s cannot be handled: %s", signal_name(number),
                                 uv_strerror(rc));
}

void agent_preempt_tell(struct agent *a, uint64_t grace_ms) {
    char why[64];
    (void)str_format(why, sizeof why, "%s",
                     a->config->preempt_signal != 0 ? signal_name(a->config->preempt_signal) : "SIG?");
    if (!rdzv_preempt(a->rdzv, grace_ms, why) && a->config->rdzv.max_nodes > 1) {
        log_warning("the other nodes cannot be told: they stop if they are asked by their own schedulers, or if the "
                    "workers agree on it (--rdzv-backend=muster tells them)");
    }
}

void agent_preempt_request(struct agent *a, uint64_t grace_ms) {
    if (a->stop_path != NULL && mkdir(a->stop_path, 0700) == 0) {
        log_warning("asking this node's workers to stop; SIGTERM follows in %llu ms, SIGKILL in %llu ms",
                    (unsigned long long)(a->config->preempt_term_now ? 0 : grace_ms / 2), (unsigned long long)grace_ms);
        return;
    }
    /* They can still save what they have on SIGTERM. */
    log_error("workers cannot be asked to stop (%s: %s): SIGTERM instead", a->stop_path ? a->stop_path : "no path",
              strerror(errno));
    agent_workers_signal(a, SIGTERM);
}

void agent_preempt_close(struct agent *a) {
    if (a->stop_path != NULL) {
        (void)rmdir(a->stop_path);
        free(a->stop_path);
    }
    if (a->watches_preempt_signal) {
        uv_close((uv_handle_t *)&a->preempt_signal, NULL);
    }
}
