/* What workers left behind when they ended well; see guardian_dismiss.h. */
#include "agent/guardian/guardian_dismiss.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "agent/guardian/reaper.h"
#include "agent/guardian/reaper_proc.h"
#include "base/clock.h"

void guardian_dismissal_note(struct guardian_dismissal *d, pid_t worker) {
    if (d->session_count < GUARDIAN_WORKERS_MAX) {
        d->sessions[d->session_count++] = worker;
    }
}

void guardian_dismissal_begin(struct guardian_dismissal *d, bool leaves_detached, int64_t now_ns) {
    d->is_due = true;
    d->has_told = false;
    d->leaves_detached = leaves_detached;
    d->quiet_until_ns = now_ns + GUARDIAN_QUIET_MS * CLOCK_NS_PER_MS;
}

int guardian_dismissal_wait_ms(const struct guardian_dismissal *d, int64_t now_ns) {
    if (!d->is_due || d->has_told) {
        return -1;
    }
    int64_t left_ns = d->quiet_until_ns - now_ns;
    return left_ns > 0 ? (int)(left_ns / CLOCK_NS_PER_MS) + 1 : 0;
}

/* A session has the number of its leader, and keeps it as long as anybody is in it: no other process gets it. */
static bool spares_session(const struct guardian_dismissal *d, pid_t session) {
    for (size_t i = 0; i < d->session_count; i++) {
        if (d->sessions[i] == session) {
            return false;
        }
    }
    return d->leaves_detached && session > 0;
}

static bool is_ours(const struct guardian_dismissal *d, pid_t pid) {
    return pid > 0 && (pid == d->server || pid == d->companion);
}

bool guardian_dismissal_spares(const struct guardian_dismissal *d, pid_t pid) {
    return is_ours(d, pid) || spares_session(d, getsid(pid));
}

struct search {
    const struct guardian_dismissal *dismissal;
    bool counts_detached;
    bool found;
};

static bool visit_child(void *ctx, pid_t pid, pid_t parent) {
    struct search *search = ctx;
    const struct guardian_dismissal *d = search->dismissal;
    (void)parent;
    search->found = search->counts_detached ? !is_ours(d, pid) : !guardian_dismissal_spares(d, pid);
    return !search->found;
}

bool guardian_dismissal_has_children(const struct guardian_dismissal *d, bool counts_detached) {
    struct search search = {.dismissal = d, .counts_detached = counts_detached};
    if (!d->leaves_detached && d->server == 0 && d->companion == 0) {
        return reaper_has_children();
    }
    return reaper_proc_children(visit_child, &search) ? search.found : reaper_has_children();
}

struct survey {
    const struct guardian_dismissal *dismissal;
    struct guardian_lingering *out;
    bool signals;
};

static void visit_descendant(void *ctx, pid_t pid, int pidfd) {
    struct survey *survey = ctx;
    struct guardian_lingering *out = survey->out;
    pid_t session = getsid(pid);
    if (session < 0 || reaper_proc_state(pid) == 'Z') { /* it has ended since it was seen */
        return;
    }
    if (pid == survey->dismissal->companion) {
        return;
    }
    bool spared = spares_session(survey->dismissal, session), is_top = reaper_proc_parent(pid) == getpid();
    out->count += !spared;
    out->spared_count += spared && is_top;
    if (out->named_count < GUARDIAN_LINGERING_MAX && (is_top || !spared)) {
        struct guardian_lingerer *named = &out->named[out->named_count++];
        named->pid = pid;
        named->spared = spared;
        named->rank = reaper_proc_rank(pid);
        reaper_proc_command(pid, named->command, sizeof named->command);
    }
    if (survey->signals && !spared) {
        reaper_signal(pid, pidfd, SIGTERM);
        reaper_signal(pid, pidfd, SIGCONT); /* one that is stopped would not notice */
    }
}

void guardian_dismissal_survey(const struct guardian_dismissal *d, bool signals, struct guardian_lingering *out) {
    struct survey survey = {d, out, signals};
    memset(out, 0, sizeof *out);
    reaper_visit_descendants(visit_descendant, &survey);
}
