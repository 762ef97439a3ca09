/* How the guardian ends what is below it. */
#include <poll.h>
#include <signal.h>
#include <string.h>

#include "agent/guardian/guardian_process_impl.h"
#include "agent/guardian/reaper.h"
#include "base/clock.h"

enum {
    KILL_WAIT_MS = 5,      /* for SIGCHLD, between two passes of killing */
    KILL_DEEP_MS = 20,     /* after which passes look below children that do not die */
    KILL_CROWD_COUNT = 64, /* more children than this and deaths are gathered before the next pass */
    KILL_CROWD_MS = 1,
};

/* --- killing --- */

void guardian_groups_signal(const struct guardian_process *p, int signal_number) {
    for (size_t i = 0; i < p->worker_count; i++) {
        (void)killpg(p->workers[i].pid, signal_number); /* not reaped, so the group's number is still its own */
        (void)killpg(p->workers[i].pid, SIGCONT);       /* who is stopped would not notice before SIGKILL */
    }
}

static void child_wait(const struct guardian_process *p, size_t child_count) {
    struct pollfd wait = {.fd = p->signal_fd, .events = POLLIN};
    if (child_count > KILL_CROWD_COUNT) {
        (void)poll(NULL, 0, KILL_CROWD_MS);
    }
    (void)poll(&wait, 1, KILL_WAIT_MS);
    guardian_signals_drain(p);
}

static bool is_spared(void *ctx, pid_t pid) {
    return guardian_dismissal_spares(ctx, pid);
}

/* Returns how many children there are to kill. */
static size_t children_kill(struct guardian_process *p) {
    bool spares = p->dismissal.leaves_detached || p->dismissal.server != 0 || p->dismissal.companion != 0;
    return spares ? reaper_kill_children_but(is_spared, &p->dismissal) : reaper_kill_children();
}

/* True when nobody is left but those to be left alone. */
static bool children_collect(struct guardian_process *p) {
    return reaper_collect(guardian_child_died, p) || !guardian_dismissal_has_children(&p->dismissal, false);
}

static void lingering_tell(struct guardian_process *p, bool signals) {
    struct guardian_lingering lingering;
    guardian_dismissal_survey(&p->dismissal, signals, &lingering);
    if (lingering.count > 0 || (!signals && lingering.spared_count > 0)) {
        guardian_tell(p, GUARDIAN_KIND_LINGERING, &lingering, sizeof lingering);
    }
}

/* The workers are gone, so nobody is left to be served. */
static void companion_end(struct guardian_process *p) {
    int64_t deadline_ns = clock_monotonic_ns() + GUARDIAN_COMPANION_MS * CLOCK_NS_PER_MS;
    int signal_number = SIGTERM;
    while (p->dismissal.companion != 0) { /* not reaped, so the number is its own */
        (void)kill(p->dismissal.companion, signal_number);
        child_wait(p, 0);
        p->woke_ns = clock_monotonic_ns();
        (void)reaper_collect(guardian_child_died, p);
        signal_number = clock_monotonic_ns() < deadline_ns ? SIGTERM : SIGKILL;
    }
}

void guardian_everything_kill(struct guardian_process *p, struct guardian_survivors *out) {
    int64_t start_ns = clock_monotonic_ns();
    *out = (struct guardian_survivors){0};
    p->killing = true;
    p->dismissal.server = p->preload.pid;
    for (;;) {
        guardian_groups_signal(p, SIGKILL);
        size_t child_count = children_kill(p);
        p->woke_ns = clock_monotonic_ns();
        if (children_collect(p)) {
            break;
        }
        guardian_exits_report(p);
        int64_t elapsed_ms = (clock_monotonic_ns() - start_ns) / CLOCK_NS_PER_MS;
        if (elapsed_ms > GUARDIAN_KILL_PATIENCE_MS) {
            *out = (struct guardian_survivors){(uint32_t)child_count, reaper_any_child()};
            break;
        }
        if (elapsed_ms > KILL_DEEP_MS && !p->dismissal.leaves_detached) {
            (void)reaper_kill_descendants(p->dismissal.server, p->dismissal.companion);
        }
        child_wait(p, child_count);
    }
    companion_end(p);
    p->killing = false;
    if (p->dismissal.is_due && p->dismissal.leaves_detached && out->count == 0) {
        lingering_tell(p, false);
    }
    p->dismissal.is_due = false;
    p->dismissal.session_count = p->dismissal.leaves_detached ? p->dismissal.session_count : 0;
    guardian_exits_report(p);
}

/* --- dismissing --- */

void guardian_dismissal_go_on(struct guardian_process *p) {
    struct guardian_dismissal *d = &p->dismissal;
    if (!d->is_due) {
        return;
    }
    bool is_quiet = d->has_told || guardian_dismissal_wait_ms(d, clock_monotonic_ns()) == 0;
    if (!guardian_dismissal_has_children(d, !is_quiet)) {
        d->is_due = false;
        companion_end(p);
        if (d->leaves_detached) {
            lingering_tell(p, false);
        }
        guardian_tell(p, GUARDIAN_KIND_DISMISSED, NULL, 0);
    } else if (!d->has_told && is_quiet) {
        d->has_told = true;
        lingering_tell(p, true);
    }
}

void guardian_dismiss_order(struct guardian_process *p, const uint8_t *body) {
    struct guardian_dismiss_order order;
    memcpy(&order, body, sizeof order);
    guardian_preload_stop(&p->preload); /* no worker is started after this */
    p->dismissal.server = 0;
    p->woke_ns = clock_monotonic_ns();
    (void)reaper_collect(guardian_child_died, p);
    guardian_exits_report(p);
    guardian_dismissal_begin(&p->dismissal, order.leaves_detached != 0, clock_monotonic_ns());
    guardian_dismissal_go_on(p);
}
