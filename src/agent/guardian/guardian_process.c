/* The guardian process: one epoll over the agent's socket, a pidfd for each worker and SIGCHLD. See guardian.h.
 *
 * Deaths are seen through pidfds because epoll's ready list keeps the order in which they became ready, which
 * waitpid(-1) does not; SIGCHLD covers orphans, and workers where pidfds are not to be had. All signals stay blocked:
 * nothing short of SIGKILL and SIGSTOP touches this process. It must not use the agent's loop or print. */
#include "agent/guardian/guardian_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/guardian/empty_folders.h"
#include "agent/guardian/guardian_channel.h"
#include "agent/guardian/guardian_dismiss.h"
#include "agent/guardian/guardian_inherit.h"
#include "agent/guardian/guardian_oom.h"
#include "agent/guardian/guardian_outcome.h"
#include "agent/guardian/guardian_preload.h"
#include "agent/guardian/guardian_wire.h"
#include "agent/guardian/reaper.h"
#include "agent/guardian/spawn.h"
#include "base/clock.h"
#include "base/status.h"

enum {
    EVENTS_MAX = 256,
    KILL_WAIT_MS = 5,      /* for SIGCHLD, between two passes of killing */
    KILL_DEEP_MS = 20,     /* after which passes look below children that do not die */
    KILL_CROWD_COUNT = 64, /* more children than this and deaths are gathered before the next pass */
    KILL_CROWD_MS = 1,
};

/* What an epoll event is about: in the upper half of its data; the lower half is a worker's pid, or the descriptor of a
 * fork that is under way. */
enum tag { TAG_CHANNEL, TAG_SIGNAL, TAG_AGENT, TAG_WORKER, TAG_PRELOAD, TAG_FORK };

struct worker {
    uint32_t id;
    pid_t pid;
    int pidfd; /* -1: found by SIGCHLD */
};

struct guardian_process {
    struct guardian_channel channel;
    int epoll_fd;
    int signal_fd;
    bool channel_writes;  /* EPOLLOUT is asked for */
    bool agent_gone;      /* the end has come */
    bool sweep_due;       /* SIGCHLD came; children without a pidfd may be dead */
    bool killing;         /* deaths are our own doing */
    uint64_t death_count; /* the order of the next death */
    int schedstat_fd;     /* -1: the kernel does not say how long this process waits for a processor */
    int64_t woke_ns;      /* when it was woken for this turn, which is before it ran */
    struct guardian_oom oom;
    struct guardian_dismissal dismissal;
    struct guardian_outcome outcome;
    struct guardian_preload preload;
    size_t leftover_count;
    size_t worker_count;
    size_t exit_count;
    struct guardian_leftover leftovers[GUARDIAN_LEFTOVERS_MAX];
    struct worker workers[GUARDIAN_WORKERS_MAX];
    struct guardian_exit exits[GUARDIAN_WORKERS_MAX]; /* reaped, not reported yet */
};

static void tell(struct guardian_process *p, enum guardian_kind kind, const void *body, size_t length) {
    if (!p->agent_gone && guardian_channel_send(&p->channel, kind, body, length, NULL, 0) != MUSTER_OK) {
        p->agent_gone = true; /* gone, or not reading for so long that the queue is full: the same to us */
    }
}

static bool watch(struct guardian_process *p, int fd, uint32_t events, enum tag tag, pid_t pid) {
    struct epoll_event event = {.events = events, .data.u64 = (uint64_t)tag << 32 | (uint32_t)pid};
    return epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

static int pidfd_watched(struct guardian_process *p, pid_t pid, enum tag tag) {
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0U);
    if (pidfd >= 0 && !watch(p, pidfd, EPOLLIN, tag, pid)) {
        (void)close(pidfd);
        return -1;
    }
    return pidfd;
}

/* --- deaths --- */

static void worker_died(struct guardian_process *p, size_t index, int wait_status) {
    struct worker *worker = &p->workers[index];
    struct guardian_exit *exit = &p->exits[p->exit_count++];
    memset(exit, 0, sizeof *exit); /* padding travels too */
    exit->id = worker->id;
    exit->pid = worker->pid;
    exit->wait_status = wait_status;
    exit->at_ns = p->woke_ns;
    exit->order = p->death_count++;
    bool by_kill = WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL;
    exit->oom_killed = by_kill && !p->killing && guardian_oom_claim(&p->oom);
    exit->core_dumped = WIFSIGNALED(wait_status) && WCOREDUMP(wait_status);
    guardian_outcome_ended(&p->outcome, exit, p->killing);
    if (worker->pidfd >= 0) {
        (void)close(worker->pidfd); /* leaves the epoll set with it */
    }
    *worker = p->workers[--p->worker_count];
}

static size_t worker_find(const struct guardian_process *p, pid_t pid) {
    size_t i = 0;
    while (i < p->worker_count && p->workers[i].pid != pid) {
        i++;
    }
    return i;
}

static void child_died(void *ctx, pid_t pid, int wait_status) {
    struct guardian_process *p = ctx;
    size_t index = worker_find(p, pid);
    if (index < p->worker_count) {
        worker_died(p, index, wait_status);
    } else {
        (void)guardian_preload_ended(&p->preload, pid, wait_status); /* or an orphan that fell to us */
    }
}

static void worker_reap(struct guardian_process *p, pid_t pid) {
    int wait_status = 0;
    if (waitpid(pid, &wait_status, WNOHANG) == pid) {
        child_died(p, pid, wait_status);
    }
}

/* Called when all that is dead has been reaped, so that a slow reader does not blur the order of deaths. */
static void exits_report(struct guardian_process *p) {
    for (size_t i = 0; i < p->exit_count; i++) {
        tell(p, GUARDIAN_KIND_EXIT, &p->exits[i], sizeof p->exits[i]);
    }
    p->exit_count = 0;
}

/* --- killing --- */

static void groups_signal(const struct guardian_process *p, int signal_number) {
    for (size_t i = 0; i < p->worker_count; i++) {
        (void)killpg(p->workers[i].pid, signal_number); /* not reaped, so the group's number is still its own */
        (void)killpg(p->workers[i].pid, SIGCONT);       /* who is stopped would not notice before SIGKILL */
    }
}

static void signals_drain(const struct guardian_process *p) {
    struct signalfd_siginfo info[16];
    while (read(p->signal_fd, info, sizeof info) > 0) {
    }
}

static void child_wait(const struct guardian_process *p, size_t child_count) {
    struct pollfd wait = {.fd = p->signal_fd, .events = POLLIN};
    if (child_count > KILL_CROWD_COUNT) {
        (void)poll(NULL, 0, KILL_CROWD_MS);
    }
    (void)poll(&wait, 1, KILL_WAIT_MS);
    signals_drain(p);
}

static bool is_spared(void *ctx, pid_t pid) {
    return guardian_dismissal_spares(ctx, pid);
}

/* Returns how many children there are to kill. */
static size_t children_kill(struct guardian_process *p) {
    bool spares = p->dismissal.leaves_detached || p->dismissal.server != 0;
    return spares ? reaper_kill_children_but(is_spared, &p->dismissal) : reaper_kill_children();
}

/* True when nobody is left but those to be left alone. */
static bool children_collect(struct guardian_process *p) {
    return reaper_collect(child_died, p) || !guardian_dismissal_has_children(&p->dismissal);
}

static void lingering_tell(struct guardian_process *p, bool signals) {
    struct guardian_lingering lingering;
    guardian_dismissal_survey(&p->dismissal, signals, &lingering);
    if (lingering.count > 0 || (!signals && lingering.spared_count > 0)) {
        tell(p, GUARDIAN_KIND_LINGERING, &lingering, sizeof lingering);
    }
}

/* Returns when no child is left, or when patience has run out: the survivors are counted in `out`. */
static void everything_kill(struct guardian_process *p, struct guardian_survivors *out) {
    int64_t start_ns = clock_monotonic_ns();
    *out = (struct guardian_survivors){0};
    p->killing = true;
    p->dismissal.server = p->preload.pid;
    for (;;) {
        groups_signal(p, SIGKILL);
        size_t child_count = children_kill(p);
        p->woke_ns = clock_monotonic_ns();
        if (children_collect(p)) {
            break;
        }
        exits_report(p);
        int64_t elapsed_ms = (clock_monotonic_ns() - start_ns) / CLOCK_NS_PER_MS;
        if (elapsed_ms > GUARDIAN_KILL_PATIENCE_MS) {
            *out = (struct guardian_survivors){(uint32_t)child_count, reaper_any_child()};
            break;
        }
        if (elapsed_ms > KILL_DEEP_MS && !p->dismissal.leaves_detached) {
            (void)reaper_kill_descendants(p->dismissal.server);
        }
        child_wait(p, child_count);
    }
    p->killing = false;
    if (p->dismissal.is_due && p->dismissal.leaves_detached && !p->dismissal.has_told && out->count == 0) {
        lingering_tell(p, false);
    }
    p->dismissal.is_due = false;
    p->dismissal.session_count = p->dismissal.leaves_detached ? p->dismissal.session_count : 0;
    exits_report(p);
}

/* --- dismissing --- */

/* Called when all that is dead has been reaped. */
static void dismissal_go_on(struct guardian_process *p) {
    struct guardian_dismissal *d = &p->dismissal;
    if (!d->is_due) {
        return;
    }
    if (!guardian_dismissal_has_children(d)) {
        d->is_due = false;
        if (d->leaves_detached) {
            lingering_tell(p, false);
        }
        tell(p, GUARDIAN_KIND_DISMISSED, NULL, 0);
    } else if (!d->has_told && guardian_dismissal_wait_ms(d, clock_monotonic_ns()) == 0) {
        d->has_told = true;
        lingering_tell(p, true);
    }
}

static void dismiss_order(struct guardian_process *p, const uint8_t *body) {
    struct guardian_dismiss_order order;
    memcpy(&order, body, sizeof order);
    guardian_preload_stop(&p->preload); /* no worker is started after this */
    p->dismissal.server = 0;
    p->woke_ns = clock_monotonic_ns();
    (void)reaper_collect(child_died, p);
    exits_report(p);
    guardian_dismissal_begin(&p->dismissal, order.leaves_detached != 0, clock_monotonic_ns());
    dismissal_go_on(p);
}

/* --- orders --- */

static void spawn_refuse(struct guardian_process *p, uint32_t id, int error_number, const char *why) {
    struct guardian_spawn_failed failed = {.id = id, .error_number = error_number};
    (void)snprintf(failed.why, sizeof failed.why, "%s", why);
    tell(p, GUARDIAN_KIND_SPAWN_FAILED, &failed, sizeof failed);
}

static bool has_room(const struct guardian_process *p) {
    return p->worker_count + p->exit_count < GUARDIAN_WORKERS_MAX;
}

static void worker_add(struct guardian_process *p, uint32_t id, pid_t pid) {
    struct worker *worker = &p->workers[p->worker_count++];
    *worker = (struct worker){id, pid, pidfd_watched(p, pid, TAG_WORKER)};
    guardian_dismissal_note(&p->dismissal, pid);
    guardian_outcome_spawned(&p->outcome, id, pid);
    p->sweep_due = p->sweep_due || worker->pidfd < 0;
    struct guardian_spawned spawned = {id, pid};
    tell(p, GUARDIAN_KIND_SPAWNED, &spawned, sizeof spawned);
}

static void spawn_do(struct guardian_process *p, const struct guardian_order *order, int stdout_fd, int stderr_fd) {
    struct spawn_request request = {order->argv, order->envp, stdout_fd,
                                    stderr_fd,   order->cpus, order->head.cpus_bytes};
    struct spawn_failure failure;
    if (!has_room(p)) {
        spawn_refuse(p, order->head.id, EAGAIN, "cannot start a worker: too many are running");
        return;
    }
    pid_t pid = spawn_process(&request, &failure);
    if (pid < 0) {
        char why[GUARDIAN_WHY_BYTES];
        spawn_explain(&request, &failure, why, sizeof why);
        spawn_refuse(p, order->head.id, failure.error_number, why);
        return;
    }
    worker_add(p, order->head.id, pid);
}

static void spawn_as_usual(void *ctx, const uint8_t *body, size_t length, int stdout_fd, int stderr_fd) {
    struct guardian_process *p = ctx;
    struct guardian_order order;
    if (guardian_wire_decode(body, length, &order) != MUSTER_OK) {
        p->agent_gone = true; /* no memory: the agent sees our end and cleans up */
        return;
    }
    spawn_do(p, &order, stdout_fd, stderr_fd);
    guardian_order_done(&order);
}

static void spawn_order(struct guardian_process *p, const uint8_t *body, size_t length) {
    struct guardian_order order;
    if (guardian_wire_decode(body, length, &order) != MUSTER_OK) {
        p->agent_gone = true;
        return;
    }
    int stdout_fd = order.head.has_stdout ? guardian_channel_take_fd(&p->channel) : -1;
    int stderr_fd = order.head.has_stderr ? guardian_channel_take_fd(&p->channel) : -1;
    bool is_taken = order.head.is_preloaded && has_room(p) &&
                    guardian_preload_take(&p->preload, body, length, stdout_fd, stderr_fd);
    if (!is_taken) {
        spawn_do(p, &order, stdout_fd, stderr_fd);
    }
    if (!is_taken && stdout_fd >= 0) {
        (void)close(stdout_fd);
    }
    if (!is_taken && stderr_fd >= 0) {
        (void)close(stderr_fd);
    }
    guardian_order_done(&order);
}

/* --- the preload server --- */

static void preload_order(struct guardian_process *p, const uint8_t *body, size_t length) {
    struct guardian_order order;
    if (guardian_wire_decode(body, length, &order) != MUSTER_OK) {
        p->agent_gone = true;
        return;
    }
    guardian_preload_start(&p->preload, &order);
    guardian_order_done(&order);
}

static bool preload_watch(void *ctx, int fd, uint32_t events, bool is_server, bool is_new) {
    struct guardian_process *p = ctx;
    struct epoll_event event = {.events = events,
                                .data.u64 = (uint64_t)(is_server ? TAG_PRELOAD : TAG_FORK) << 32 | (uint32_t)fd};
    return epoll_ctl(p->epoll_fd, is_new ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event) == 0;
}

static bool preload_adopt(void *ctx, uint32_t id, pid_t pid) {
    struct guardian_process *p = ctx;
    if (!has_room(p) || pid <= 0 || pid == p->preload.pid || worker_find(p, pid) < p->worker_count ||
        !reaper_is_child(pid)) {
        return false;
    }
    worker_add(p, id, pid);
    return true;
}

static void preload_tell(void *ctx, const struct guardian_preload_news *news) {
    tell(ctx, GUARDIAN_KIND_PRELOAD_NEWS, news, sizeof *news);
}

/* --- other orders --- */

static void signal_order(struct guardian_process *p, const uint8_t *body) {
    struct guardian_signal_order order;
    memcpy(&order, body, sizeof order);
    if (!order.only_one) {
        groups_signal(p, order.signal_number);
        guardian_outcome_told(&p->outcome);
        return;
    }
    for (size_t i = 0; i < p->worker_count; i++) {
        if (p->workers[i].id == order.id) {
            (void)kill(p->workers[i].pid, order.signal_number);
        }
    }
}

/* Warm processes run before the world in which they become workers. */
static void outcome_order(struct guardian_process *p, const uint8_t *body, size_t length) {
    guardian_outcome_take(&p->outcome, body, length);
    for (size_t i = 0; i < p->worker_count; i++) {
        guardian_outcome_spawned(&p->outcome, p->workers[i].id, p->workers[i].pid);
    }
}

static void leftover_order(struct guardian_process *p, const uint8_t *body, size_t length) {
    struct guardian_leftover *leftover = &p->leftovers[p->leftover_count];
    if (p->leftover_count < GUARDIAN_LEFTOVERS_MAX && length == sizeof *leftover) {
        memcpy(leftover, body, length);
        leftover->path[sizeof leftover->path - 1] = '\0';
        p->leftover_count++;
    }
}

/* After the last process that could have put something there. The agent has been here when it ended in good order. */
static void leftovers_clear(const struct guardian_process *p) {
    for (size_t i = 0; i < p->leftover_count; i++) {
        const struct guardian_leftover *leftover = &p->leftovers[i];
        struct stat seen;
        if (leftover->folder_levels > 0) {
            (void)empty_folders_remove(leftover->path, leftover->folder_levels);
        } else if (lstat(leftover->path, &seen) == 0 && S_ISFIFO(seen.st_mode)) {
            (void)unlink(leftover->path);
        }
    }
}

/* An order about all workers is about those that are on their way, too. */
static bool is_about_all(uint32_t kind) {
    return kind == GUARDIAN_KIND_SIGNAL || kind == GUARDIAN_KIND_KILL_ALL || kind == GUARDIAN_KIND_DISMISS;
}

static void order_handle(struct guardian_process *p, const struct guardian_frame *frame, const uint8_t *body) {
    struct guardian_survivors survivors;
    if (is_about_all(frame->kind)) {
        guardian_preload_settle(&p->preload);
    }
    switch (frame->kind) {
    case GUARDIAN_KIND_SPAWN:
        spawn_order(p, body, frame->length);
        return;
    case GUARDIAN_KIND_PRELOAD:
        preload_order(p, body, frame->length);
        return;
    case GUARDIAN_KIND_SIGNAL:
        signal_order(p, body);
        return;
    case GUARDIAN_KIND_KILL_ALL:
        everything_kill(p, &survivors);
        tell(p, GUARDIAN_KIND_GONE, &survivors, sizeof survivors);
        return;
    case GUARDIAN_KIND_DISMISS:
        dismiss_order(p, body);
        return;
    case GUARDIAN_KIND_OUTCOME:
        outcome_order(p, body, frame->length);
        return;
    case GUARDIAN_KIND_ERROR_FILE:
        guardian_outcome_error_file(&p->outcome, body, frame->length);
        return;
    case GUARDIAN_KIND_LEFTOVER:
        leftover_order(p, body, frame->length);
        return;
    default:
        p->agent_gone = true; /* not our agent's language */
        return;
    }
}

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
        order_handle(p, &frame, body);
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
        switch ((enum tag)(events[i].data.u64 >> 32)) {
        case TAG_WORKER:
            worker_reap(p, (pid_t)(uint32_t)events[i].data.u64);
            worker_seen = true;
            break;
        case TAG_SIGNAL:
            signals_drain(p);
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
        (void)reaper_collect(child_died, p);
    }
    exits_report(p);
    dismissal_go_on(p);
    if (channel_events && !p->agent_gone) {
        channel_event(p, channel_events);
    }
    channel_watch_update(p);
}

static bool process_init(struct guardian_process *p, int socket_fd, pid_t agent) {
    guardian_shut_signals();
    (void)setsid();
    (void)prctl(PR_SET_NAME, "muster-guardian");
    if (prctl(PR_SET_CHILD_SUBREAPER, 1) != 0 ||
        (socket_fd != GUARDIAN_CHANNEL_FD && dup3(socket_fd, GUARDIAN_CHANNEL_FD, O_CLOEXEC) < 0)) {
        return false;
    }
    guardian_shut_descriptors(GUARDIAN_CHANNEL_FD + 1);
    guardian_fill_streams();
    p->schedstat_fd = open("/proc/self/schedstat", O_RDONLY | O_CLOEXEC);
    guardian_channel_init(&p->channel, GUARDIAN_CHANNEL_FD, GUARDIAN_QUEUE_BYTES_MAX);
    sigset_t children;
    (void)sigemptyset(&children);
    (void)sigaddset(&children, SIGCHLD);
    p->signal_fd = signalfd(-1, &children, SFD_CLOEXEC | SFD_NONBLOCK);
    p->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (p->signal_fd < 0 || p->epoll_fd < 0 || !watch(p, GUARDIAN_CHANNEL_FD, EPOLLIN | EPOLLRDHUP, TAG_CHANNEL, 0) ||
        !watch(p, p->signal_fd, EPOLLIN, TAG_SIGNAL, 0)) {
        return false;
    }
    (void)pidfd_watched(p, agent, TAG_AGENT); /* besides the socket, should someone else hold its other end */
    return getppid() == agent;
}

void guardian_process_run(int socket_fd, pid_t agent) {
    struct guardian_process *p = calloc(1, sizeof *p);
    if (!p || !process_init(p, socket_fd, agent)) {
        _exit(1);
    }
    guardian_oom_init(&p->oom);
    p->outcome.agent = agent;
    guardian_preload_init(
        &p->preload, &(struct guardian_preload_host){p, preload_watch, spawn_as_usual, preload_adopt, preload_tell});
    while (!p->agent_gone) {
        turn(p);
    }
    last_word_read(p);
    guardian_preload_stop(&p->preload);
    struct guardian_survivors survivors;
    everything_kill(p, &survivors);
    guardian_outcome_write(&p->outcome);
    leftovers_clear(p);
    _exit(survivors.count > 0);
}
