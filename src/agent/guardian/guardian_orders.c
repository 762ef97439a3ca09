/* What the agent asks of the guardian. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/guardian/empty_folders.h"
#include "agent/guardian/guardian_process_impl.h"
#include "agent/guardian/reaper.h"
#include "agent/guardian/spawn.h"
#include "base/status.h"

/* --- workers --- */

static void spawn_refuse(struct guardian_process *p, uint32_t id, int error_number, const char *why) {
    struct guardian_spawn_failed failed = {.id = id, .error_number = error_number};
    (void)snprintf(failed.why, sizeof failed.why, "%s", why);
    guardian_tell(p, GUARDIAN_KIND_SPAWN_FAILED, &failed, sizeof failed);
}

static bool has_room(const struct guardian_process *p) {
    return p->worker_count + p->exit_count < GUARDIAN_WORKERS_MAX;
}

static void worker_add(struct guardian_process *p, uint32_t id, pid_t pid) {
    struct guardian_worker *worker = &p->workers[p->worker_count++];
    *worker = (struct guardian_worker){id, pid, guardian_pidfd_watched(p, pid, TAG_WORKER)};
    guardian_dismissal_note(&p->dismissal, pid);
    guardian_outcome_spawned(&p->outcome, id, pid);
    p->sweep_due = p->sweep_due || worker->pidfd < 0;
    struct guardian_spawned spawned = {id, pid};
    guardian_tell(p, GUARDIAN_KIND_SPAWNED, &spawned, sizeof spawned);
}

static struct spawn_fds fds_take(struct guardian_process *p, const struct guardian_spawn_head *head) {
    struct spawn_fds fds = {-1, -1, 0};
    fds.out = head->has_stdout ? guardian_channel_take_fd(&p->channel) : -1;
    fds.err = head->has_stderr ? guardian_channel_take_fd(&p->channel) : -1;
    fds.given = head->has_given ? guardian_channel_take_fd(&p->channel) : 0;
    return fds;
}

static void fds_close(const struct spawn_fds *fds) {
    if (fds->out >= 0) {
        (void)close(fds->out);
    }
    if (fds->err >= 0) {
        (void)close(fds->err);
    }
    if (fds->given > 0) {
        (void)close(fds->given);
    }
}

/* Its pid, or -1 and the agent is told why not. */
static pid_t spawn_try(struct guardian_process *p, const struct guardian_order *order, const struct spawn_fds *fds) {
    struct spawn_request request = {order->argv, order->envp, fds->out, fds->err, order->cpus, order->head.cpus_bytes,
                                    fds->given};
    struct spawn_failure failure;
    pid_t pid = spawn_process(&request, &failure);
    if (pid < 0) {
        char why[GUARDIAN_WHY_BYTES];
        spawn_explain(&request, &failure, why, sizeof why);
        spawn_refuse(p, order->head.id, failure.error_number, why);
    }
    return pid;
}

static void spawn_do(struct guardian_process *p, const struct guardian_order *order, const struct spawn_fds *fds) {
    if (!has_room(p)) {
        spawn_refuse(p, order->head.id, EAGAIN, "cannot start a worker: too many are running");
        return;
    }
    pid_t pid = spawn_try(p, order, fds);
    if (pid > 0) {
        worker_add(p, order->head.id, pid);
    }
}

typedef void spawn_fn(struct guardian_process *p, const struct guardian_order *order, const struct spawn_fds *fds);

static void spawn_decoded(struct guardian_process *p, const uint8_t *body, size_t length, const struct spawn_fds *fds,
                          spawn_fn *spawn) {
    struct guardian_order order;
    if (guardian_wire_decode(body, length, &order) != MUSTER_OK) {
        p->agent_gone = true; /* no memory: the agent sees our end and cleans up */
        return;
    }
    spawn(p, &order, fds);
    guardian_order_done(&order);
}

static void spawn_as_usual(void *ctx, const uint8_t *body, size_t length, const struct spawn_fds *fds) {
    spawn_decoded(ctx, body, length, fds, spawn_do);
}

static void skip(void *ctx, uint32_t id) {
    spawn_refuse(ctx, id, ECANCELED, "it was told to end before it was started");
}

static void spawn_order(struct guardian_process *p, const uint8_t *body, size_t length) {
    struct guardian_spawn_head head;
    if (length < sizeof head) {
        p->agent_gone = true; /* not our agent's language */
        return;
    }
    memcpy(&head, body, sizeof head);
    const struct spawn_fds fds = fds_take(p, &head);
    if (head.is_preloaded && has_room(p) && guardian_preload_take(&p->preload, body, length, &fds)) {
        return;
    }
    spawn_as_usual(p, body, length, &fds);
    fds_close(&fds);
}

/* --- the companion --- */

static void companion_do(struct guardian_process *p, const struct guardian_order *order, const struct spawn_fds *fds) {
    if (p->dismissal.companion != 0) {
        spawn_refuse(p, order->head.id, EAGAIN, "cannot start what serves the workers: the one before is still there");
        return;
    }
    pid_t pid = spawn_try(p, order, fds);
    if (pid > 0) {
        struct guardian_spawned spawned = {order->head.id, pid};
        p->dismissal.companion = pid;
        p->companion_id = order->head.id;
        guardian_tell(p, GUARDIAN_KIND_SPAWNED, &spawned, sizeof spawned);
    }
}

static void companion_order(struct guardian_process *p, const uint8_t *body, size_t length) {
    struct guardian_spawn_head head;
    if (length < sizeof head) {
        p->agent_gone = true; /* not our agent's language */
        return;
    }
    memcpy(&head, body, sizeof head);
    const struct spawn_fds fds = fds_take(p, &head);
    spawn_decoded(p, body, length, &fds, companion_do);
    fds_close(&fds);
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
    if (!has_room(p) || pid <= 0 || pid == p->preload.pid || guardian_worker_find(p, pid) < p->worker_count ||
        !reaper_is_child(pid)) {
        return false;
    }
    worker_add(p, id, pid);
    return true;
}

static void preload_tell(void *ctx, const struct guardian_preload_news *news) {
    guardian_tell(ctx, GUARDIAN_KIND_PRELOAD_NEWS, news, sizeof *news);
}

/* --- other orders --- */

static void signal_order(struct guardian_process *p, const uint8_t *body) {
    struct guardian_signal_order order;
    memcpy(&order, body, sizeof order);
    if (!order.only_one) {
        guardian_groups_signal(p, order.signal_number);
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

void guardian_leftovers_clear(const struct guardian_process *p) {
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

void guardian_order_handle(struct guardian_process *p, const struct guardian_frame *frame, const uint8_t *body) {
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
    case GUARDIAN_KIND_COMPANION:
        companion_order(p, body, frame->length);
        return;
    case GUARDIAN_KIND_SIGNAL:
        signal_order(p, body);
        return;
    case GUARDIAN_KIND_KILL_ALL:
        guardian_everything_kill(p, &survivors);
        guardian_tell(p, GUARDIAN_KIND_GONE, &survivors, sizeof survivors);
        return;
    case GUARDIAN_KIND_DISMISS:
        guardian_dismiss_order(p, body);
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

void guardian_orders_init(struct guardian_process *p) {
    guardian_preload_init(&p->preload, &(struct guardian_preload_host){p, preload_watch, spawn_as_usual, skip,
                                                                       preload_adopt, preload_tell});
}
