/* The guardian process: one epoll over the agent's socket, a pidfd for each worker and SIGCHLD. See guardian.h.
 *
 * Deaths are seen through pidfds because epoll's ready list keeps the order in which they became ready, which
 * waitpid(-1) does not; SIGCHLD covers orphans, and workers where pidfds are not to be had. All signals stay blocked:
 * nothing short of SIGKILL and SIGSTOP touches this process. It must not use the agent's loop, nor print once
 * it has started. */
#include "agent/guardian/guardian_process.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/guardian/guardian_inherit.h"
#include "agent/guardian/guardian_process_impl.h"
#include "agent/guardian/reaper.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"

enum { EVENTS_MAX = 256 };

/* --- the agent --- */

static void channel_event(struct guardian_process *p, uint32_t events) {
    /* The agent's end comes first, whatever it had still asked for. */
    if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) || guardian_channel_flush(&p->channel) != MUSTER_OK) {
        p->agent_gone = true;
        return;
    }
    if (!(events & EPOLLIN)) {
        return;
    }
    if (guardian_channel_receive(&p->channel) != MUSTER_OK) {
        p->agent_gone = true;
        return;
    }
    struct guardian_frame frame;
    for (const uint8_t *body; !p->agent_gone && guardian_channel_next(&p->channel, &frame, &body);) {
        guardian_order_handle(p, &frame, body);
    }
}

/* The agent's last word may be that it has written the outcome; nothing else that it still asked for counts. */
static void last_word_read(struct guardian_process *p) {
    struct guardian_frame frame;
    (void)guardian_channel_receive(&p->channel);
    for (const uint8_t *body; guardian_channel_next(&p->channel, &frame, &body);) {
        if (frame.kind == GUARDIAN_KIND_OUTCOME) {
            guardian_outcome_take(&p->outcome, body, frame.length);
        }
    }
}

/* --- the loop --- */

static void channel_watch_update(struct guardian_process *p) {
    bool writes = guardian_channel_waits(&p->channel);
    if (writes != p->channel_writes) {
        struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | (writes ? EPOLLOUT : 0U),
                                    .data.u64 = (uint64_t)TAG_CHANNEL << 32};
        (void)epoll_ctl(p->epoll_fd, EPOLL_CTL_MOD, p->channel.fd, &event);
        p->channel_writes = writes;
    }
}

/* How long this process has been ready to run in all without a processor. */
static int64_t waited_ns(const struct guardian_process *p) {
    char text[96] = "", *at = text;
    if (p->schedstat_fd < 0 || pread(p->schedstat_fd, text, sizeof text - 1, 0) <= 0) {
        return 0;
    }
    (void)strtoll(text, &at, 10); /* the time that it ran */
    return strtoll(at, NULL, 10);
}

/* On a busy machine this process may get its turn long after a worker has died: that death is as old as the wake-up. */
static int wait_for_events(struct guardian_process *p, struct epoll_event *events, int wait_ms) {
    int64_t before_ns = waited_ns(p);
    int count = epoll_wait(p->epoll_fd, events, EVENTS_MAX, wait_ms);
    int64_t late_ns = waited_ns(p) - before_ns;
    p->woke_ns = clock_monotonic_ns() - (late_ns > 0 ? late_ns : 0);
    return count;
}

/* -1: without end. */
static int sooner(int ms, int other_ms) {
    return ms < 0 || (other_ms >= 0 && other_ms < ms) ? other_ms : ms;
}

static int turn_wait_ms(const struct guardian_process *p) {
    int64_t now_ns = clock_monotonic_ns();
    int wait_ms =
        sooner(guardian_dismissal_wait_ms(&p->dismissal, now_ns), guardian_preload_wait_ms(&p->preload, now_ns));
    return p->sweep_due ? 0 : wait_ms;
}

/* One turn: deaths in their order, then orphans, then reports, then what the agent wants. */
static void turn(struct guardian_process *p) {
    struct epoll_event events[EVENTS_MAX];
    uint32_t channel_events = 0;
    bool worker_seen = false;
    int count = wait_for_events(p, events, turn_wait_ms(p));
    for (int i = 0; i < count; i++) {
        switch ((enum guardian_tag)(events[i].data.u64 >> 32)) {
        case TAG_WORKER:
            guardian_worker_reap(p, (pid_t)(uint32_t)events[i].data.u64);
            worker_seen = true;
            break;
        case TAG_SIGNAL:
            guardian_signals_drain(p);
            p->sweep_due = true;
            break;
        case TAG_AGENT:
            p->agent_gone = true;
            break;
        case TAG_CHANNEL:
            channel_events = events[i].events;
            break;
        case TAG_PRELOAD:
            guardian_preload_heard(&p->preload, events[i].events);
            break;
        case TAG_FORK:
            guardian_preload_child_heard(&p->preload, (int)(uint32_t)events[i].data.u64);
            break;
        }
    }
    guardian_preload_expire(&p->preload, clock_monotonic_ns());
    if (p->sweep_due && !worker_seen) { /* not before every pidfd that is ready has had its turn */
        p->sweep_due = false;
        (void)reaper_collect(guardian_child_died, p);
    }
    guardian_exits_report(p);
    guardian_dismissal_go_on(p);
    if (channel_events && !p->agent_gone) {
        channel_event(p, channel_events);
    }
    channel_watch_update(p);
}

/* A call that a container's seccomp profile forbids: only this process knows which. */
static bool fail_start(const char *call) {
    log_error("the guardian process cannot start: %s: %s", call, strerror(errno));
    return false;
}

static bool process_init(struct guardian_process *p, int socket_fd, pid_t agent) {
    guardian_shut_signals();
    (void)setsid();
    (void)prctl(PR_SET_NAME, "muster-guardian");
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
        return fail_start("prctl(PR_SET_CHILD_SUBREAPER)");
    }
    if (socket_fd != GUARDIAN_CHANNEL_FD && dup3(socket_fd, GUARDIAN_CHANNEL_FD, O_CLOEXEC) < 0) {
        return fail_start("dup3");
    }
    guardian_shut_descriptors(GUARDIAN_CHANNEL_FD + 1);
    guardian_fill_streams();
    p->schedstat_fd = open("/proc/self/schedstat", O_RDONLY | O_CLOEXEC);
    guardian_channel_init(&p->channel, GUARDIAN_CHANNEL_FD, GUARDIAN_QUEUE_BYTES_MAX);
    sigset_t children;
    (void)sigemptyset(&children);
    (void)sigaddset(&children, SIGCHLD);
    p->signal_fd = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
    if (p->signal_fd < 0) {
        return fail_start("signalfd4");
    }
    p->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (p->epoll_fd < 0) {
        return fail_start("epoll_create1");
    }
    if (!guardian_watch(p, GUARDIAN_CHANNEL_FD, EPOLLIN | EPOLLRDHUP, TAG_CHANNEL, 0) ||
        !guardian_watch(p, p->signal_fd, EPOLLIN, TAG_SIGNAL, 0)) {
        return fail_start("epoll_ctl");
    }
    (void)guardian_pidfd_watched(p, agent, TAG_AGENT); /* besides the socket, should someone else hold its other end */
    return getppid() == agent;
}

void guardian_process_run(int socket_fd, pid_t agent) {
    struct guardian_process *p = calloc(1, sizeof *p);
    if (!p || !process_init(p, socket_fd, agent)) {
        _exit(1);
    }
    guardian_oom_init(&p->oom);
    p->outcome.agent = agent;
    guardian_orders_init(p);
    while (!p->agent_gone) {
        turn(p);
    }
    last_word_read(p);
    guardian_preload_stop(&p->preload);
    struct guardian_survivors survivors;
    guardian_everything_kill(p, &survivors);
    guardian_outcome_write(&p->outcome);
    guardian_leftovers_clear(p);
    _exit(survivors.count > 0);
}
