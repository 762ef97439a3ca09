/* The outcome of a job whose agent did not live to write it; see guardian_outcome.h. */
#include "agent/guardian/guardian_outcome.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "agent/guardian/guardian_wire.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"

static void set_error_file(struct outcome_worker *worker, char *path) {
    free((char *)(uintptr_t)worker->error_file);
    worker->error_file = path;
}

static void forget(struct guardian_outcome *o) {
    for (size_t i = 0; i < o->count; i++) {
        set_error_file(&o->workers[i], NULL);
    }
    free(o->workers);
    free(o->path);
    free(o->job);
    *o = (struct guardian_outcome){.agent = o->agent};
}

static struct outcome_worker *workers_create(const struct guardian_outcome_order *order) {
    struct outcome_worker *workers = calloc(order->worker_count, sizeof *workers);
    for (uint32_t i = 0; workers && i < order->worker_count; i++) {
        workers[i].local_rank = i;
        workers[i].rank = order->base_global_rank + i;
        workers[i].role_rank = order->base_role_rank + i;
    }
    return workers;
}

void guardian_outcome_take(struct guardian_outcome *o, const uint8_t *body, size_t length) {
    struct guardian_outcome_order order;
    forget(o);
    if (length < sizeof order) {
        return;
    }
    memcpy(&order, body, sizeof order);
    const size_t text_bytes = length - sizeof order;
    if (order.path_bytes == 0 || order.path_bytes >= text_bytes || order.worker_count > GUARDIAN_WORKERS_MAX) {
        return;
    }
    const char *path = (const char *)body + sizeof order;
    o->path = strndup(path, order.path_bytes);
    o->job = strndup(path + order.path_bytes, text_bytes - order.path_bytes);
    o->workers = order.worker_count > 0 ? workers_create(&order) : NULL;
    o->count = o->workers ? order.worker_count : 0;
    if (!o->path || !o->job) {
        forget(o);
    }
}

static struct outcome_worker *worker_of(struct guardian_outcome *o, uint32_t id) {
    return id < o->count ? &o->workers[id] : NULL;
}

void guardian_outcome_error_file(struct guardian_outcome *o, const uint8_t *body, size_t length) {
    uint32_t id = UINT32_MAX;
    if (length > sizeof id) {
        memcpy(&id, body, sizeof id);
    }
    struct outcome_worker *worker = worker_of(o, id);
    if (worker) {
        set_error_file(worker, strndup((const char *)body + sizeof id, length - sizeof id));
    }
}

void guardian_outcome_spawned(struct guardian_outcome *o, uint32_t id, pid_t pid) {
    struct outcome_worker *worker = worker_of(o, id);
    if (worker) {
        worker->pid = pid;
        worker->started_us = clock_realtime_us();
    }
}

void guardian_outcome_told(struct guardian_outcome *o) {
    o->were_told = true;
}

void guardian_outcome_ended(struct guardian_outcome *o, const struct guardian_exit *exit, bool by_us) {
    struct outcome_worker *worker = worker_of(o, exit->id);
    if (worker && worker->pid == exit->pid) {
        worker->has_ended = true;
        worker->ended_us = clock_realtime_us();
        worker->wait_status = exit->wait_status;
        worker->stopped_by_launcher = (by_us || o->were_told) && exit->wait_status != 0;
        worker->oom_killed = exit->oom_killed;
        worker->core_dumped = exit->core_dumped;
        bool failed = exit->wait_status != 0 && !worker->stopped_by_launcher;
        o->root = failed && !o->root ? worker : o->root;
    }
}

static bool was_written(const char *path) {
    struct stat seen;
    return path && stat(path, &seen) == 0 && S_ISREG(seen.st_mode) && seen.st_size > 0;
}

void guardian_outcome_write(struct guardian_outcome *o) {
    char message[128], host[256] = "";
    struct buf text;
    if (!o->path) {
        return;
    }
    for (size_t i = 0; i < o->count; i++) {
        if (!was_written(o->workers[i].error_file)) {
            set_error_file(&o->workers[i], NULL);
        }
    }
    (void)str_format(message, sizeof message,
                     "the launcher (pid %d) was killed or died; its guardian process has ended the workers",
                     (int)o->agent);
    struct outcome_end end = {
        .result = "launcher_killed", .message = message, .ended_us = clock_realtime_us(), .root = o->root};
    buf_init(&text, OUTCOME_BYTES_MAX);
    (void)gethostname(host, sizeof host - 1);
    end.root_host = host;
    if (outcome_format(o->job, &end, o->workers, o->count, &text) == MUSTER_OK) {
        (void)outcome_write(o->path, &text); /* nobody is left to be told of a failure */
    }
    buf_done(&text);
    forget(o);
}
