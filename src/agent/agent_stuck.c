/* Workers that hang in the kernel: on when TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT names a number of seconds, as in
 * torchrun's agent. A worker that is found in uninterruptible sleep (state D) at every look for so long will not come
 * back: the group is stopped and not restarted, since a new worker would want what the old one still holds.
 *
 * No event tells of that state, so this alone looks at intervals, and only when it is asked for. */
#include <stdlib.h>

#include "agent/agent_impl.h"
#include "agent/guardian/reaper_proc.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/str.h"

#define LOOKS_MIN_MS 20
#define LOOKS_MAX_MS 500
#define TIMEOUT_MAX_S 1e6

static bool is_uninterruptible(const struct agent_worker *worker) {
    return worker->pid != 0 && !worker->ended && reaper_proc_state(worker->pid) == 'D';
}

/* How long it has been seen in that state, in seconds; negative: it is not. */
static double dwell_s(struct agent *a, uint32_t local_rank, int64_t now_ns) {
    struct agent_worker *worker = &a->workers[local_rank];
    if (!is_uninterruptible(worker)) {
        worker->uninterruptible_since_ns = 0;
        return -1;
    }
    if (worker->uninterruptible_since_ns == 0) {
        worker->uninterruptible_since_ns = now_ns;
        log_info("worker of local_rank %u (pid %d) is in uninterruptible sleep (D state)", local_rank, worker->pid);
    }
    return (double)(now_ns - worker->uninterruptible_since_ns) / 1e9;
}

static void on_look(uv_timer_t *timer) {
    struct agent *a = timer->data;
    int64_t now_ns = clock_monotonic_ns();
    for (uint32_t i = 0; a->machine.state == AGENT_STATE_RUNNING && i < a->config->nproc; i++) {
        double dwell = dwell_s(a, i, now_ns);
        if (dwell < a->stuck_timeout_s) {
            continue;
        }
        log_error(
            "worker of local_rank %u (pid %d) has been in uninterruptible sleep (D state) for %.1f s, longer than "
            "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT (%.1f s): it hangs in the kernel, in a driver or a network "
            "file system; the group is stopped and not restarted",
            i, a->workers[i].pid, dwell, a->stuck_timeout_s);
        a->workers[i].stuck = true;
        agent_feed(a, AGENT_EVENT_WORKER_STUCK, (int)i);
    }
}

void agent_stuck_create(struct agent *a) {
    const char *text = getenv("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT");
    double seconds = 0;
    if (text == NULL || text[0] == '\0') {
        return;
    }
    if (!str_parse_double(text, &seconds) || seconds > TIMEOUT_MAX_S) {
        log_warning(
            "TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT is '%.50s', which is not a number of seconds: workers that "
            "hang in the kernel are not noticed",
            text);
        return;
    }
    if (seconds <= 0) {
        return;
    }
    double look_ms = seconds * 1000 / 4;
    look_ms = look_ms < LOOKS_MIN_MS ? LOOKS_MIN_MS : look_ms > LOOKS_MAX_MS ? LOOKS_MAX_MS : look_ms;
    a->stuck_timeout_s = seconds;
    a->stuck_timer.data = a;
    (void)uv_timer_start(&a->stuck_timer, on_look, (uint64_t)look_ms, (uint64_t)look_ms);
}
