/* The agent's side of the guardian: forking it, talking to it, and cleaning up after it when it dies. See guardian.h;
 * what the guardian does is in guardian_process.c. */
#include "agent/guardian/guardian.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/guardian/guardian_birth.h"
#include "agent/guardian/guardian_channel.h"
#include "agent/guardian/guardian_wire.h"
#include "agent/guardian/reaper.h"
#include "agent/report/signal_name.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"

enum {
    /* A guardian that does not answer for so long is taken for stuck. */
    STUCK_MS = GUARDIAN_KILL_PATIENCE_MS + GUARDIAN_COMPANION_MS + 2000,
    ORPHAN_PATIENCE_MS = 5000, /* for killing what a lost guardian left behind */
    ORPHAN_WAIT_MS = 5,
    HANDLE_COUNT = 3,
};

enum guardian_state { GUARDIAN_RUNNING, GUARDIAN_ORPHANS /* lost; its orphans are being killed */, GUARDIAN_LOST };

struct guardian {
    struct guardian_callbacks callbacks;
    void *ctx;
    pid_t pid; /* 0 once reaped */
    enum guardian_state state;
    struct guardian_birth birth;
    bool subreaper; /* orphans fall to this process, and it has no children of its own */
    bool closing;
    bool leaves_detached; /* what is left when the guardian has ended in good order is not ours to kill */
    uint64_t stuck_ms;
    unsigned leftover_count;
    uint32_t kills_pending; /* kill_all calls without an answer */
    int64_t orphans_since_ns;
    struct guardian_channel channel;
    uv_poll_t poll;
    uv_signal_t child_signal; /* SIGCHLD, while orphans are being killed */
    uv_timer_t timer;         /* a guardian that does not answer; orphans that do not die */
    unsigned handles_open;
};

/* --- the end of the guardian --- */

static void orphan_died(void *ctx, pid_t pid, int wait_status) {
    const struct guardian *g = ctx;
    if (g->callbacks.on_orphan && !g->closing) {
        g->callbacks.on_orphan(g->ctx, pid, wait_status);
    }
}

/* Our child until waitpid says otherwise, so the number is its own. Returns how it ended; one that was ending anyway
 * ends in its own way. */
static int guardian_reap(struct guardian *g) {
    int wait_status = 0;
    if (g->pid > 0) {
        (void)kill(g->pid, SIGKILL);
        while (waitpid(g->pid, &wait_status, 0) < 0 && errno == EINTR) {
        }
        g->pid = 0;
    }
    return wait_status;
}

/* One pass over the orphans; true when there is nothing left to do. */
static bool orphans_pass(struct guardian *g) {
    if (!g->subreaper) {
        return true; /* some children may be somebody else's: parent-death signals have to do */
    }
    (void)reaper_kill_children();
    if (reaper_collect(orphan_died, g)) {
        return true;
    }
    if (clock_monotonic_ns() - g->orphans_since_ns < ORPHAN_PATIENCE_MS * CLOCK_NS_PER_MS) {
        return false;
    }
    log_error("process %d cannot be killed and is left behind", (int)reaper_any_child());
    return true;
}

static void orphans_step(struct guardian *g) {
    if (g->state != GUARDIAN_ORPHANS || !orphans_pass(g)) {
        return;
    }
    g->state = GUARDIAN_LOST;
    (void)uv_timer_stop(&g->timer);
    (void)uv_signal_stop(&g->child_signal);
    g->callbacks.on_lost(g->ctx);
}

static void child_signal_cb(uv_signal_t *handle, int signal_number) {
    (void)signal_number;
    orphans_step(handle->data);
}

static void orphans_timer_cb(uv_timer_t *timer) {
    orphans_step(timer->data);
}

/* The socket ended, or the guardian was found stuck: what it had started is ours to end. on_lost follows from the
 * loop when that is done. */
static void guardian_lose(struct guardian *g) {
    pid_t pid = g->pid;
    g->state = GUARDIAN_ORPHANS;
    g->orphans_since_ns = clock_monotonic_ns();
    (void)uv_poll_stop(&g->poll);
    int wait_status = guardian_reap(g);
    const char *name = WIFSIGNALED(wait_status) ? signal_name(WTERMSIG(wait_status)) : NULL;
    log_error("the guardian process %d, which holds the workers, %s%s; killing what it had started", (int)pid,
              name ? "was killed by " : "has ended", name ? name : "");
    (void)uv_signal_start(&g->child_signal, child_signal_cb, SIGCHLD);
    /* The repeat only serves the deadline and children in the kernel's hands; SIGCHLD drives the passes. */
    (void)uv_timer_start(&g->timer, orphans_timer_cb, 0, ORPHAN_WAIT_MS);
}

/* --- messages --- */

static void gone_handle(struct guardian *g, const struct guardian_survivors *survivors) {
    if (survivors->count > 0) {
        log_error("%u process%s could not be killed within %d s and %s left behind, among them %d", survivors->count,
                  survivors->count == 1 ? "" : "es", GUARDIAN_KILL_PATIENCE_MS / 1000,
                  survivors->count == 1 ? "is" : "are", (int)survivors->pid);
    }
    if (g->kills_pending > 0 && --g->kills_pending == 0) {
        (void)uv_timer_stop(&g->timer);
    }
    g->callbacks.on_gone(g->ctx);
}

/* Copies a body of a fixed size; false when the frame has another. */
static bool body_copy(const struct guardian_frame *frame, const uint8_t *body, void *out, size_t size) {
    if (frame->length != size) {
        return false;
    }
    memcpy(out, body, size);
    return true;
}

/* False: not a message of our guardian. */
static bool message_handle(struct guardian *g, const struct guardian_frame *frame, const uint8_t *body) {
    union {
        struct guardian_spawned spawned;
        struct guardian_spawn_failed failed;
        struct guardian_exit exit;
        struct guardian_survivors survivors;
        struct guardian_lingering lingering;
        struct guardian_preload_news preload;
    } u;
    switch (frame->kind) {
    case GUARDIAN_KIND_SPAWNED:
        if (!body_copy(frame, body, &u.spawned, sizeof u.spawned)) {
            return false;
        }
        g->callbacks.on_spawned(g->ctx, u.spawned.id, u.spawned.pid);
        return true;
    case GUARDIAN_KIND_SPAWN_FAILED:
        if (!body_copy(frame, body, &u.failed, sizeof u.failed)) {
            return false;
        }
        u.failed.why[sizeof u.failed.why - 1] = '\0';
        g->callbacks.on_spawn_failed(g->ctx, u.failed.id, u.failed.error_number, u.failed.why);
        return true;
    case GUARDIAN_KIND_EXIT:
        if (!body_copy(frame, body, &u.exit, sizeof u.exit)) {
            return false;
        }
        g->callbacks.on_exit(g->ctx, &u.exit);
        return true;
    case GUARDIAN_KIND_GONE:
        if (!body_copy(frame, body, &u.survivors, sizeof u.survivors)) {
            return false;
        }
        gone_handle(g, &u.survivors);
        return true;
    case GUARDIAN_KIND_LINGERING:
        if (!body_copy(frame, body, &u.lingering, sizeof u.lingering)) {
            return false;
        }
        if (g->callbacks.on_lingering) {
            g->callbacks.on_lingering(g->ctx, &u.lingering);
        }
        return true;
    case GUARDIAN_KIND_DISMISSED:
        g->callbacks.on_gone(g->ctx);
        return true;
    case GUARDIAN_KIND_PRELOAD_NEWS:
        if (!body_copy(frame, body, &u.preload, sizeof u.preload)) {
            return false;
        }
        u.preload.text[sizeof u.preload.text - 1] = '\0';
        if (g->callbacks.on_preload) {
            g->callbacks.on_preload(g->ctx, &u.preload);
        }
        return true;
    default:
        return false;
    }
}

static void poll_cb(uv_poll_t *handle, int status, int events);

static int poll_update(struct guardian *g) {
    int events = UV_READABLE | (guardian_channel_waits(&g->channel) ? UV_WRITABLE : 0);
    int status = uv_poll_start(&g->poll, events, poll_cb);
    return status == 0 ? MUSTER_OK
                       : status_fail(MUSTER_ESYSTEM, "watch the guardian's socket: %s", uv_strerror(status));
}

/* Everything received is handed over, also what a dying guardian had still said; false when it is lost. */
static bool messages_read(struct guardian *g) {
    bool open = guardian_channel_receive(&g->channel) == MUSTER_OK;
    struct guardian_frame frame;
    for (const uint8_t *body; !g->closing && guardian_channel_next(&g->channel, &frame, &body);) {
        if (!message_handle(g, &frame, body)) {
            return false;
        }
    }
    return open;
}

static void poll_cb(uv_poll_t *handle, int status, int events) {
    struct guardian *g = handle->data;
    bool healthy = status == 0;
    if (healthy && (events & UV_WRITABLE)) {
        healthy = guardian_channel_flush(&g->channel) == MUSTER_OK;
    }
    if (healthy && (events & UV_READABLE)) {
        healthy = messages_read(g);
    }
    if (g->closing) {
        return;
    }
    if (!healthy || poll_update(g) != MUSTER_OK) {
        guardian_lose(g);
    }
}

static void stuck_cb(uv_timer_t *timer) {
    struct guardian *g = timer->data;
    log_error("the guardian process %d does not answer", (int)g->pid);
    guardian_lose(g);
}

static int message_send(struct guardian *g, enum guardian_kind kind, const void *body, size_t length, const int *fds,
                        size_t fd_count) {
    assert(!g->closing);
    if (g->state != GUARDIAN_RUNNING) {
        return status_fail(MUSTER_ECLOSED, "the guardian process has ended");
    }
    int status = guardian_channel_send(&g->channel, kind, body, length, fds, fd_count);
    if (status == MUSTER_ECLOSED) {
        (void)shutdown(g->channel.fd,
                       SHUT_RDWR); /* whatever the send met: the loop is to hear that the guardian is lost */
    }
    return status == MUSTER_OK ? poll_update(g) : status;
}

static int order_send(struct guardian *g, enum guardian_kind kind, uint32_t id, const struct guardian_spawn *spawn) {
    int fds[GUARDIAN_FRAME_FDS_MAX];
    size_t fd_count = 0;
    if (spawn->stdout_fd >= 0) {
        fds[fd_count++] = spawn->stdout_fd;
    }
    if (spawn->stderr_fd >= 0) {
        fds[fd_count++] = spawn->stderr_fd;
    }
    if (spawn->given_fd > 0) {
        fds[fd_count++] = spawn->given_fd;
    }
    struct buf body;
    buf_init(&body, GUARDIAN_SPAWN_BYTES_MAX);
    int status = guardian_wire_encode(id, spawn, &body);
    if (status == MUSTER_OK) {
        status = message_send(g, kind, buf_bytes(&body), body.len, fds, fd_count);
    }
    buf_done(&body);
    return status;
}

int guardian_spawn(struct guardian *g, uint32_t id, const struct guardian_spawn *spawn) {
    return order_send(g, GUARDIAN_KIND_SPAWN, id, spawn);
}

int guardian_preload(struct guardian *g, const struct guardian_spawn *server) {
    return order_send(g, GUARDIAN_KIND_PRELOAD, 0, server);
}

int guardian_companion(struct guardian *g, uint32_t id, const struct guardian_spawn *companion) {
    return order_send(g, GUARDIAN_KIND_COMPANION, id, companion);
}

int guardian_signal(struct guardian *g, int signal_number) {
    struct guardian_signal_order body = {.signal_number = signal_number};
    return message_send(g, GUARDIAN_KIND_SIGNAL, &body, sizeof body, NULL, 0);
}

int guardian_signal_worker(struct guardian *g, uint32_t id, int signal_number) {
    struct guardian_signal_order body = {.signal_number = signal_number, .only_one = 1, .id = id};
    return message_send(g, GUARDIAN_KIND_SIGNAL, &body, sizeof body, NULL, 0);
}

int guardian_keep_outcome(struct guardian *g, const char *path, const char *job, uint32_t worker_count,
                          uint32_t base_global_rank, uint32_t base_role_rank) {
    struct guardian_outcome_order order = {worker_count, base_global_rank, base_role_rank, (uint32_t)strlen(path)};
    struct buf body;
    buf_init(&body, GUARDIAN_SPAWN_BYTES_MAX);
    int status = buf_append(&body, &order, sizeof order);
    status = status == MUSTER_OK ? buf_append(&body, path, strlen(path)) : status;
    status = status == MUSTER_OK ? buf_append(&body, job, strlen(job)) : status;
    if (status == MUSTER_OK) {
        status = message_send(g, GUARDIAN_KIND_OUTCOME, buf_bytes(&body), body.len, NULL, 0);
    }
    buf_done(&body);
    return status;
}

int guardian_keep_error_file(struct guardian *g, uint32_t id, const char *path) {
    struct buf body;
    buf_init(&body, GUARDIAN_SPAWN_BYTES_MAX);
    int status = buf_append(&body, &id, sizeof id);
    status = status == MUSTER_OK ? buf_append(&body, path, strlen(path)) : status;
    if (status == MUSTER_OK) {
        status = message_send(g, GUARDIAN_KIND_ERROR_FILE, buf_bytes(&body), body.len, NULL, 0);
    }
    buf_done(&body);
    return status;
}

int guardian_dismiss(struct guardian *g, bool leaves_detached) {
    struct guardian_dismiss_order body = {.leaves_detached = leaves_detached};
    int status = message_send(g, GUARDIAN_KIND_DISMISS, &body, sizeof body, NULL, 0);
    g->leaves_detached = leaves_detached && status == MUSTER_OK;
    return status;
}

int guardian_kill_all(struct guardian *g) {
    int status = message_send(g, GUARDIAN_KIND_KILL_ALL, NULL, 0, NULL, 0);
    if (status == MUSTER_OK) {
        g->kills_pending++;
        (void)uv_timer_start(&g->timer, stuck_cb, g->stuck_ms, 0);
    }
    return status;
}

int guardian_clear_leftover(struct guardian *g, const char *path, int folder_levels) {
    struct guardian_leftover body;
    memset(&body, 0, sizeof body); /* padding travels too */
    body.folder_levels = folder_levels;
    if (g->leftover_count == GUARDIAN_LEFTOVERS_MAX || !str_copy(body.path, sizeof body.path, path)) {
        return status_fail(MUSTER_ELIMIT, "the guardian cannot look after %.200s", path);
    }
    g->leftover_count++;
    return message_send(g, GUARDIAN_KIND_LEFTOVER, &body, sizeof body, NULL, 0);
}

void guardian_set_stuck_ms(struct guardian *g, uint64_t stuck_ms) {
    g->stuck_ms = stuck_ms;
}

pid_t guardian_pid(const struct guardian *g) {
    return g->pid;
}

/* --- birth --- */

/* is_first: this process is young. */
static int guardian_start(struct guardian *g, bool is_first) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
        return status_fail_errno(errno, "cannot make a socket for the guardian process");
    }
    g->pid = is_first ? guardian_birth_fork(pair[0], pair[1]) : guardian_birth_exec(&g->birth, pair[1]);
    int error_number = errno;
    (void)close(pair[1]);
    guardian_channel_init(&g->channel, pair[0], GUARDIAN_QUEUE_BYTES_MAX);
    if (g->pid < 0) {
        g->pid = 0;
        guardian_channel_done(&g->channel);
        return error_number == EAGAIN
                   ? status_fail(MUSTER_ESYSTEM, "cannot start the guardian process: as many processes as allowed are "
                                                 "running already; see ulimit -u and the cgroup's pids.max")
                   : status_fail_errno(error_number, "cannot start the guardian process");
    }
    return MUSTER_OK;
}

static void handle_closed(uv_handle_t *handle) {
    struct guardian *g = handle->data;
    if (--g->handles_open == 0) {
        free(g);
    }
}

/* Those that handles_init() got to, in its order. */
static void handles_close(struct guardian *g) {
    uv_handle_t *handles[HANDLE_COUNT] = {(uv_handle_t *)&g->child_signal, (uv_handle_t *)&g->poll,
                                          (uv_handle_t *)&g->timer};
    unsigned count = g->handles_open;
    assert(count <= HANDLE_COUNT);
    g->closing = true;
    for (unsigned i = 0; i < count; i++) {
        uv_close(handles[i], handle_closed);
    }
}

/* The signal first: it may need a pipe. What has been done by a failure is for handles_close(). */
static int handles_init(struct guardian *g, uv_loop_t *loop) {
    g->child_signal.data = g;
    g->poll.data = g;
    g->timer.data = g;
    int status = uv_signal_init(loop, &g->child_signal);
    g->handles_open += status == 0;
    if (status == 0) {
        status = uv_poll_init(loop, &g->poll, g->channel.fd);
        g->handles_open += status == 0;
    }
    if (status != 0) {
        return status_fail(MUSTER_ESYSTEM, "cannot watch the guardian process: %s", uv_strerror(status));
    }
    (void)uv_timer_init(loop, &g->timer); /* cannot fail */
    g->handles_open++;
    return MUSTER_OK;
}

/* Takes `g`, which has all that the process and the handles do not need. */
static int guardian_begin(struct guardian *g, uv_loop_t *loop, bool is_first, struct guardian **out) {
    int status = guardian_start(g, is_first);
    if (status != MUSTER_OK) {
        free(g);
        return status;
    }
    status = handles_init(g, loop);
    if (status == MUSTER_OK) {
        status = poll_update(g);
    }
    if (status != MUSTER_OK) {
        bool handles = g->handles_open > 0;
        guardian_close(g);
        if (!handles) {
            free(g);
        }
        return status;
    }
    *out = g;
    return MUSTER_OK;
}

int guardian_create(uv_loop_t *loop, const struct guardian_callbacks *callbacks, void *ctx, struct guardian **out) {
    assert(callbacks->on_spawned && callbacks->on_spawn_failed && callbacks->on_exit && callbacks->on_gone &&
           callbacks->on_lost);
    struct guardian *g = calloc(1, sizeof *g);
    if (!g) {
        return status_fail(MUSTER_ENOMEM, "no memory for the guardian");
    }
    g->callbacks = *callbacks;
    g->ctx = ctx;
    g->stuck_ms = STUCK_MS;
    /* A program started by `exec` may have children from before it; their orphans must not fall to us. */
    g->subreaper = !reaper_has_children() && prctl(PR_SET_CHILD_SUBREAPER, 1) == 0;
    guardian_birth_note(&g->birth);
    return guardian_begin(g, loop, true, out);
}

int guardian_replace(struct guardian **g) {
    struct guardian *lost = *g;
    assert(lost->state == GUARDIAN_LOST && !lost->closing);
    if (!lost->subreaper) {
        return status_fail(MUSTER_EUNSUPPORTED,
                           "this process had children of its own, so what the guardian had started "
                           "may still run");
    }
    struct guardian *next = calloc(1, sizeof *next);
    if (!next) {
        return status_fail(MUSTER_ENOMEM, "no memory for the guardian");
    }
    next->callbacks = lost->callbacks;
    next->ctx = lost->ctx;
    next->stuck_ms = lost->stuck_ms;
    next->birth = lost->birth;
    next->subreaper = true;
    int status = guardian_begin(next, lost->timer.loop, false, g);
    if (status == MUSTER_OK) {
        guardian_close(lost);
    }
    return status;
}

/* --- death --- */

/* The guardian ends when it sees our end of the socket shut, and its end closes when it ends. */
static void guardian_end_wait(struct guardian *g) {
    char scrap[4096];
    int64_t deadline_ns = clock_monotonic_ns() + (int64_t)g->stuck_ms * CLOCK_NS_PER_MS;
    (void)shutdown(g->channel.fd, SHUT_WR);
    for (;;) {
        ssize_t n = read(g->channel.fd, scrap, sizeof scrap);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) {
            break;
        }
        int64_t left_ms = (deadline_ns - clock_monotonic_ns()) / CLOCK_NS_PER_MS;
        struct pollfd wait = {.fd = g->channel.fd, .events = POLLIN};
        if (left_ms <= 0 || (n < 0 && poll(&wait, 1, (int)left_ms) == 0)) {
            log_error("the guardian process %d does not end", (int)g->pid);
            break;
        }
    }
}

/* Orphans of a guardian that was lost and not cleaned up after before the close. */
static void orphans_end(struct guardian *g) {
    g->orphans_since_ns = clock_monotonic_ns();
    while (!orphans_pass(g)) {
        (void)poll(NULL, 0, 1);
    }
}

void guardian_close(struct guardian *g) {
    if (!g || g->closing) {
        return;
    }
    handles_close(g);
    if (g->state == GUARDIAN_RUNNING) {
        guardian_end_wait(g);
    }
    (void)guardian_reap(g);
    /* After a loss they have been seen to, and a child of this process is the next guardian. */
    if (g->state == GUARDIAN_ORPHANS || (g->state == GUARDIAN_RUNNING && !g->leaves_detached)) {
        orphans_end(g);
    }
    guardian_channel_done(&g->channel);
}
