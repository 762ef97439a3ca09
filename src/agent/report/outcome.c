/* The outcome of a launcher as JSON; see outcome.h. */
#include "agent/report/outcome.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/report/json_text.h"
#include "agent/report/signal_name.h"
#include "agent/report/wait_status.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/status.h"
#include "base/str.h"

static int add_name(struct buf *out, const char *name) {
    return buf_printf(out, ", \"%s\": ", name);
}

static int add_string(struct buf *out, const char *name, const char *text) {
    int code = add_name(out, name);
    return code == 0 ? json_text_string(out, text) : code;
}

static int add_number(struct buf *out, const char *name, bool given, long long value) {
    int code = add_name(out, name);
    return code == 0 ? json_text_number(out, given, value) : code;
}

static int add_flag(struct buf *out, const char *name, bool value) {
    return buf_printf(out, ", \"%s\": %s", name, value ? "true" : "false");
}

/* Seconds since 1970, or null for 0. */
static int add_time(struct buf *out, const char *name, int64_t time_us) {
    int code = add_name(out, name);
    if (code != 0 || time_us == 0) {
        return code == 0 ? buf_printf(out, "null") : code;
    }
    return buf_printf(out, "%lld.%06lld", (long long)(time_us / CLOCK_US_PER_S), (long long)(time_us % CLOCK_US_PER_S));
}

#define KIND "\"kind\": \"muster outcome\"" /* behind a brace: how every file begins */

int outcome_format_job(const struct outcome_job *job, struct buf *out) {
    int code = buf_printf(out, KIND ", \"version\": %d", OUTCOME_VERSION);
    code = code == 0 ? add_string(out, "run_id", job->run_id) : code;
    code = code == 0 ? add_string(out, "name", job->name) : code;
    code = code == 0 ? add_string(out, "entry_point", job->entry_point) : code;
    code = code == 0 ? add_string(out, "role", job->role) : code;
    code = code == 0 ? add_string(out, "backend", job->backend) : code;
    code = code == 0 ? add_string(out, "host", job->host) : code;
    code = code == 0 ? add_number(out, "launcher_pid", true, job->launcher_pid) : code;
    code = code == 0 ? add_time(out, "started", job->started_us) : code;
    code = code == 0 ? add_number(out, "group_rank", job->has_world, job->group_rank) : code;
    code = code == 0 ? add_number(out, "group_world_size", job->has_world, job->group_world_size) : code;
    code = code == 0 ? add_number(out, "world_size", job->has_world, job->world_size) : code;
    code = code == 0 ? add_number(out, "round", job->has_world, (long long)job->round) : code;
    code = code == 0 ? add_number(out, "restarts", true, job->restarts) : code;
    return code == 0 ? add_number(out, "max_restarts", true, job->max_restarts) : code;
}

/* ---- a worker ---- */

static const char *state_of(const struct outcome_worker *w) {
    if (w->pid == 0) {
        return "not_started";
    }
    if (!w->has_ended) {
        return "running";
    }
    return w->wait_status == 0 ? "succeeded" : w->stopped_by_launcher && !w->failed_first ? "stopped" : "failed";
}

static bool ended_badly(const struct outcome_worker *w) {
    return w->has_ended && w->wait_status != 0;
}

/* torchelastic's words where the worker left none. */
static int add_message(struct buf *out, const struct outcome_worker *w) {
    char text[160];
    if (w->message || !ended_badly(w)) {
        return add_string(out, "message", w->message);
    }
    if (!WIFSIGNALED(w->wait_status)) {
        return add_string(out, "message",
                          "To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html");
    }
    const char *name = signal_name(WTERMSIG(w->wait_status));
    (void)str_format(text, sizeof text, "Signal %d (%s) received by PID %lld", WTERMSIG(w->wait_status),
                     name ? name : "<N/A>", (long long)w->pid);
    return add_string(out, "message", text);
}

static int add_error(struct buf *out, const struct outcome_worker *w) {
    int code = add_string(out, "error_file", w->error_file);
    code = code == 0 ? add_name(out, "error") : code;
    code = code == 0 ? buf_printf(out, "%s", w->error_json ? w->error_json : "null") : code;
    code = code == 0 ? add_message(out, w) : code;
    int64_t ended_s = w->ended_us / CLOCK_US_PER_S;
    return code == 0 ? add_number(out, "timestamp", ended_badly(w), w->timestamp_s > 0 ? w->timestamp_s : ended_s)
                     : code;
}

static int add_worker(struct buf *out, const struct outcome_worker *w) {
    bool signalled = w->has_ended && WIFSIGNALED(w->wait_status);
    int code =
        buf_printf(out, "{\"local_rank\": %u, \"rank\": %u, \"role_rank\": %u", w->local_rank, w->rank, w->role_rank);
    code = code == 0 ? add_number(out, "pid", w->pid != 0, w->pid) : code;
    code = code == 0 ? add_string(out, "state", state_of(w)) : code;
    code =
        code == 0 ? add_number(out, "exitcode", w->pid != 0 && w->has_ended, report_exit_code(w->wait_status)) : code;
    code = code == 0 ? add_string(out, "signal", signalled ? signal_name(WTERMSIG(w->wait_status)) : NULL) : code;
    code = code == 0 ? add_time(out, "started", w->started_us) : code;
    code = code == 0 ? add_time(out, "ended", w->ended_us) : code;
    code = code == 0 ? add_flag(out, "stopped_by_launcher", w->stopped_by_launcher) : code;
    code = code == 0 ? add_flag(out, "oom_killed", w->oom_killed) : code;
    code = code == 0 ? add_flag(out, "timer_expired", w->timer_expired) : code;
    code = code == 0 ? add_flag(out, "stuck", w->stuck) : code;
    code = code == 0 ? add_flag(out, "core_dumped", w->core_dumped) : code;
    code = code == 0 ? add_string(out, "status", w->status) : code;
    code = code == 0 ? add_error(out, w) : code;
    return code == 0 ? buf_printf(out, "}") : code;
}

/* ---- the whole ---- */

static int add_root(struct buf *out, const struct outcome_worker *root, const char *host) {
    int code = add_name(out, "root_cause");
    if (code != 0 || !root) {
        return code == 0 ? buf_printf(out, "null") : code;
    }
    int64_t time_s = root->timestamp_s > 0 ? root->timestamp_s : root->ended_us / CLOCK_US_PER_S;
    code = buf_printf(out, "{\"local_rank\": %u, \"rank\": %u", root->local_rank, root->rank);
    code = code == 0 ? add_string(out, "host", host) : code;
    code = code == 0 ? add_number(out, "pid", root->pid != 0, root->pid) : code;
    code = code == 0 ? add_number(out, "exitcode", true, report_exit_code(root->wait_status)) : code;
    code = code == 0 ? add_number(out, "timestamp", true, time_s) : code;
    code = code == 0 ? add_string(out, "status", root->status) : code;
    return code == 0 ? buf_printf(out, "}") : code;
}

int outcome_format(const char *job, const struct outcome_end *end, const struct outcome_worker *workers, size_t count,
                   struct buf *out) {
    const char *by = end->signal_number != 0 ? signal_name(end->signal_number) : NULL;
    int code = buf_printf(out, "{");
    code = code == 0 ? buf_append(out, job, strlen(job)) : code;
    code = code == 0 ? add_time(out, "ended", end->ended_us) : code;
    code = code == 0 ? add_string(out, "result", end->result) : code;
    code = code == 0 ? add_number(out, "exit_code", end->has_exit_code, end->exit_code) : code;
    code = code == 0 ? add_string(out, "signal", by) : code;
    code = code == 0 ? add_string(out, "message", end->message) : code;
    code = code == 0 ? add_root(out, end->root, end->root_host) : code;
    code = code == 0 ? buf_printf(out, ", \"workers\": [") : code;
    for (size_t i = 0; code == 0 && i < count; i++) {
        code = i > 0 ? buf_printf(out, ",") : 0;
        code = code == 0 ? buf_printf(out, "\n") : code;
        code = code == 0 ? add_worker(out, &workers[i]) : code;
    }
    return code == 0 ? buf_printf(out, "]}\n") : code;
}

/* ---- the file ---- */

/* A standard stream of this process that is this file (/dev/stdout with a redirection): who reads the stream would not
 * see another file in its place. -1: none. */
static int stream_of(const struct stat *file) {
    struct stat stream;
    for (int fd = STDOUT_FILENO; fd <= STDERR_FILENO; fd++) {
        if (fstat(fd, &stream) == 0 && stream.st_dev == file->st_dev && stream.st_ino == file->st_ino) {
            return fd;
        }
    }
    return -1;
}

static bool is_written_to_directly(const struct stat *file) {
    return !S_ISREG(file->st_mode) || stream_of(file) >= 0;
}

/* 0, or a number of errno.h, as below. */
static int write_directly(const char *path, const struct stat *file, const struct buf *text) {
    int stream = S_ISREG(file->st_mode) ? stream_of(file) : -1;
    int fd = stream >= 0 ? stream : open(path, O_WRONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    int error_number = fd < 0 ? errno : file_write_all(fd, buf_bytes(text), text->len, OUTCOME_PATIENCE_MS);
    if (fd >= 0 && fd != stream && close(fd) != 0 && error_number == 0) {
        error_number = errno;
    }
    return error_number;
}

/* A file of somebody's that was named by mistake is not removed; a link to nothing is nobody's. */
static int check_earlier(const char *path) {
    static const char head[] = "{" KIND;
    char text[sizeof head] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
    ssize_t count = fd >= 0 ? read(fd, text, sizeof head - 1) : -1;
    int error_number = errno;
    if (fd >= 0) {
        (void)close(fd);
    }
    if (fd < 0 && error_number == ENOENT) {
        return MUSTER_OK;
    }
    if (count < 0) {
        return status_fail_errno(error_number, "--outcome: is %s the file of an earlier job? It cannot be read", path);
    }
    if (count > 0 && strcmp(text, head) != 0) {
        return status_fail(MUSTER_EINVAL,
                           "--outcome=%s is a file already, and not one that --outcome wrote: remove it, or give "
                           "another path",
                           path);
    }
    return MUSTER_OK;
}

int outcome_write(const char *path, const struct buf *text) {
    struct stat seen;
    bool directly = stat(path, &seen) == 0 && is_written_to_directly(&seen);
    int error_number = directly ? write_directly(path, &seen, text)
                                : file_publish(path, buf_bytes(text), text->len, FILE_IS_NEW, true);
    if (error_number == EEXIST && check_earlier(path) == MUSTER_OK) {
        error_number = file_publish(path, buf_bytes(text), text->len, FILE_TAKES_NAME, true);
    }
    return error_number == 0 ? MUSTER_OK : status_fail_errno(error_number, "the outcome cannot be written to %s", path);
}

static int check_folder(const char *path) {
    char *copy = strdup(path);
    const char *folder = copy ? dirname(copy) : NULL;
    int code = MUSTER_OK;
    if (!folder) {
        code = status_fail(MUSTER_ENOMEM, "no memory for the path of the outcome");
    } else if (access(folder, W_OK | X_OK) != 0) {
        code = status_fail_errno(errno, "--outcome=%s cannot be written: folder %s", path, folder);
    }
    free(copy);
    return code;
}

int outcome_prepare(const char *path) {
    struct stat seen;
    if (strlen(path) >= OUTCOME_PATH_MAX - 32) {
        return status_fail(MUSTER_EINVAL, "--outcome: the path is too long");
    }
    bool exists = stat(path, &seen) == 0;
    if (exists && S_ISDIR(seen.st_mode)) {
        return status_fail(MUSTER_EINVAL, "--outcome=%s is a folder; it takes a file", path);
    }
    if (exists && is_written_to_directly(&seen)) {
        return access(path, W_OK) == 0 ? MUSTER_OK : status_fail_errno(errno, "--outcome=%s cannot be written", path);
    }
    int code = check_folder(path);
    if (code == MUSTER_OK && exists) {
        code = check_earlier(path);
        if (code == MUSTER_OK && unlink(path) != 0) { /* a symlink goes, not what is behind it */
            code = status_fail_errno(errno, "--outcome: the file %s of an earlier job cannot be removed", path);
        }
    }
    return code;
}
