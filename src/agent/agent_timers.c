/* The file timer in the agent: on when TORCHELASTIC_ENABLE_FILE_TIMER=1, as in torchrun's agent. */
#include <stdlib.h>
#include <string.h>

#include "agent/agent_impl.h"
#include "base/log.h"
#include "base/status.h"

static uint32_t worker_of(const struct agent *a, pid_t pid) {
    uint32_t i = 0;
    while (i < a->config->nproc && (a->workers[i].pid != pid || a->workers[i].ended)) {
        i++;
    }
    return i;
}

static bool is_worker(void *ctx, pid_t pid) {
    const struct agent *a = ctx;
    return worker_of(a, pid) < a->config->nproc;
}

static void on_expired(void *ctx, const struct watchdog_expiry *expiry) {
    struct agent *a = ctx;
    uint32_t local_rank = worker_of(a, expiry->pid);
    if (local_rank == a->config->nproc) {
        return;
    }
    a->workers[local_rank].timer_expired = expiry->signal_number > 0;
    if (expiry->signal_number > 0 &&
        guardian_signal_worker(a->guardian, local_rank, expiry->signal_number) != MUSTER_OK) {
        log_error("the worker whose timer ran out cannot be signalled: %s", muster_detail());
    }
}

/* PyTorch's public build has no such server either, and says so. */
static void warn_of_health_check(void) {
    const char *port = getenv("TORCHELASTIC_HEALTH_CHECK_PORT");
    if (port != NULL) {
        log_warning("No health check server started (TORCHELASTIC_HEALTH_CHECK_PORT is '%.20s')", port);
    }
}

int agent_timers_create(struct agent *a) {
    warn_of_health_check();
    const char *enabled = getenv("TORCHELASTIC_ENABLE_FILE_TIMER");
    const char *path = getenv("TORCHELASTIC_TIMER_FILE");
    if (enabled == NULL || strcmp(enabled, "1") != 0) {
        return MUSTER_OK;
    }
    static const struct watchdog_callbacks callbacks = {.is_worker = is_worker, .on_expired = on_expired};
    return watchdog_create(&a->loop, path != NULL && path[0] != '\0' ? path : NULL, &callbacks, a, &a->watchdog);
}
