/* Opening, following and closing the output of one attempt's workers; see logs.h. Which way a stream takes and where
 * the folders are is decided in logs_layout.c, the bytes are moved by relay.c. */
#include "agent/logs/logs.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "agent/logs/logs_layout.h"
#include "agent/logs/read_on.h"
#include "agent/logs/relay.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"

struct logs_worker {
    int given_fd[2]; /* handed out and not yet closed, or -1 */
    struct relay_file file[2];
    struct line_tail tail;
    char *redirected_stderr; /* path, when the worker writes the file itself */
    char *error_file;
};

struct logs {
    const struct launch_config *config;
    struct relay *relay;
    char *made_base;
    char *run_directory; /* NULL: no files */
    char *attempt_directory;
    bool begun;
    uint32_t restart_count;
    uint64_t round;
    struct logs_worker *workers; /* config->nproc */
    struct relay_file matches[2];
    struct logs_consoles consoles;
    const char *prefix_template;
    uv_thread_t thread; /* the loop's */
    bool writers_live;  /* processes of the workers may write on */
    void (*done)(void *ctx);
    void *ctx;
};

static bool print_in_turn(void *ctx, const char *text, size_t bytes) {
    struct logs *logs = ctx;
    uv_thread_t self = uv_thread_self();
    return uv_thread_equal(&self, &logs->thread) && relay_print(logs->relay, text, bytes);
}

static const char *const stream_names[2] = {"stdout", "stderr"};

static struct logs_consoles own_consoles(void) {
    return (struct logs_consoles){.stderr_is_terminal = isatty(STDERR_FILENO) == 1,
                                  .are_one = relay_sink_is_same(STDOUT_FILENO, STDERR_FILENO)};
}

int logs_create(uv_loop_t *loop, const struct launch_config *config, struct logs **out) {
    struct logs *logs = calloc(1, sizeof *logs);
    struct logs_worker *workers = calloc(config->nproc, sizeof *workers);
    if (!logs || !workers) {
        free(logs);
        free(workers);
        return status_fail(MUSTER_ENOMEM, "no memory for the logs of %u workers", config->nproc);
    }
    logs->config = config;
    logs->workers = workers;
    for (uint32_t i = 0; i < config->nproc; i++) {
        workers[i] = (struct logs_worker){.given_fd = {-1, -1}};
    }
    logs->consoles = own_consoles();
    bool is_given = config->log_prefix && config->log_prefix[0] != '\0';
    logs->prefix_template = is_given ? config->log_prefix : getenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
    int code =
        logs_without_files(config) ? MUSTER_OK : logs_layout_create_run(config, &logs->run_directory, &logs->made_base);
    code = code == 0 ? relay_create(loop, STDOUT_FILENO, STDERR_FILENO, &logs->relay) : code;
    if (code != 0) {
        logs_close(logs);
        return code;
    }
    logs->thread = uv_thread_self();
    log_set_divert(print_in_turn, logs);
    if (logs->run_directory) {
        log_info("log directory set to: %s", logs->run_directory);
    }
    *out = logs;
    return MUSTER_OK;
}

size_t logs_descriptor_count(const struct launch_config *config) {
    enum { PASSING = 4, MATCHES = 2 }; /* the ends handed to one worker at a time; filtered_*.log */
    struct logs_consoles consoles = own_consoles();
    size_t count = PASSING + MATCHES;
    for (uint32_t rank = 0; rank < config->nproc; rank++) {
        for (int stream = LOGS_STDOUT; stream <= LOGS_STDERR; stream++) {
            struct logs_route route = logs_route_of(config, (enum logs_stream)stream, rank, &consoles);
            count += (route.into_pipe ? 1U : 0U) + (route.pipe_to_file ? 1U : 0U);
        }
    }
    return count;
}

static void close_files(struct logs *logs) {
    for (uint32_t i = 0; i < logs->config->nproc; i++) {
        relay_file_close(&logs->workers[i].file[LOGS_STDOUT]);
        relay_file_close(&logs->workers[i].file[LOGS_STDERR]);
    }
    relay_file_close(&logs->matches[LOGS_STDOUT]);
    relay_file_close(&logs->matches[LOGS_STDERR]);
}

static void forget_attempt(struct logs *logs) {
    close_files(logs);
    for (uint32_t i = 0; i < logs->config->nproc; i++) {
        struct logs_worker *worker = &logs->workers[i];
        logs_worker_opened(logs, i);
        line_tail_done(&worker->tail);
        free(worker->redirected_stderr);
        free(worker->error_file);
        worker->redirected_stderr = NULL;
        worker->error_file = NULL;
    }
    free(logs->attempt_directory);
    logs->attempt_directory = NULL;
}

static const struct launch_strings *filters_of(const struct launch_config *config, enum logs_stream stream) {
    return stream == LOGS_STDOUT ? &config->duplicate_stdout_filters : &config->duplicate_stderr_filters;
}

static int open_matches(struct logs *logs, enum logs_stream stream) {
    if (filters_of(logs->config, stream)->count == 0) {
        return MUSTER_OK;
    }
    char *path = str_format_new("%s/filtered_%s.log", logs->attempt_directory, stream_names[stream]);
    int code = path ? relay_file_open(&logs->matches[stream], path)
                    : status_fail(MUSTER_ENOMEM, "no memory for the name of a log file");
    free(path);
    return code;
}

int logs_attempt_begin(struct logs *logs, uint32_t restart_count, uint64_t round) {
    forget_attempt(logs);
    int code = MUSTER_OK;
    if (logs->run_directory) {
        code = logs_layout_create_attempt(logs->run_directory, restart_count, logs->begun ? logs->round : 0,
                                          logs->config->nproc, &logs->attempt_directory);
        code = code == 0 ? open_matches(logs, LOGS_STDOUT) : code;
        code = code == 0 ? open_matches(logs, LOGS_STDERR) : code;
    }
    logs->begun = true;
    logs->restart_count = restart_count;
    logs->round = round;
    return code;
}

/* ---- opening ---- */

static int open_redirect(struct logs *logs, uint32_t local_rank, enum logs_stream stream, const char *path) {
    struct logs_worker *worker = &logs->workers[local_rank];
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (fd < 0) {
        return status_fail_errno(errno, "cannot create log file %s", path);
    }
    worker->given_fd[stream] = fd;
    if (stream == LOGS_STDERR) {
        worker->redirected_stderr = strdup(path);
    }
    return MUSTER_OK;
}

static int open_null(struct logs_worker *worker, enum logs_stream stream) {
    int fd = open("/dev/null", O_WRONLY | O_CLOEXEC);
    if (fd < 0) {
        return status_fail_errno(errno, "cannot open /dev/null");
    }
    worker->given_fd[stream] = fd;
    return MUSTER_OK;
}

static int open_pipe(struct logs *logs, uint32_t local_rank, uint32_t global_rank, enum logs_stream stream,
                     const struct logs_route *route) {
    struct logs_worker *worker = &logs->workers[local_rank];
    char prefix[LOGS_PREFIX_SIZE] = "";
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return status_fail_errno(errno, "cannot make a pipe for the %s of local rank %u%s", stream_names[stream],
                                 local_rank, errno == EMFILE ? " (raise the limit: ulimit -n)" : "");
    }
    if (route->pipe_prefixed) {
        logs_prefix(logs->prefix_template, logs->config->role, global_rank, local_rank, prefix);
    }
    const struct launch_strings *filters = filters_of(logs->config, stream);
    struct relay_source_options options = {
        .fd = ends[0],
        .console = !route->pipe_to_console ? RELAY_CONSOLE_NONE
                   : stream == LOGS_STDOUT ? RELAY_CONSOLE_STDOUT
                                           : RELAY_CONSOLE_STDERR,
        .prefix = prefix,
        .file = route->pipe_to_file ? &worker->file[stream] : NULL,
        .matches = route->pipe_to_file && filters->count > 0 ? &logs->matches[stream] : NULL,
        .filters = (const char *const *)filters->items,
        .filter_count = filters->count,
        .tail = route->pipe_keeps_tail ? &worker->tail : NULL,
    };
    int code = relay_source_open(logs->relay, &options);
    if (code != 0) {
        close(ends[1]);
        return code;
    }
    worker->given_fd[stream] = ends[1];
    return MUSTER_OK;
}

static int open_stream(struct logs *logs, uint32_t local_rank, uint32_t global_rank, enum logs_stream stream) {
    struct logs_route route = logs_route_of(logs->config, stream, local_rank, &logs->consoles);
    struct logs_worker *worker = &logs->workers[local_rank];
    char *path = NULL;
    if (route.into_file || route.pipe_to_file) {
        path = str_format_new("%s/%u/%s.log", logs->attempt_directory, local_rank, stream_names[stream]);
        if (!path) {
            return status_fail(MUSTER_ENOMEM, "no memory for the name of a log file");
        }
    }
    int code = MUSTER_OK;
    if (route.into_file) {
        code = open_redirect(logs, local_rank, stream, path);
    } else if (route.into_null) {
        code = open_null(worker, stream);
    } else if (route.into_pipe) {
        code = route.pipe_to_file ? relay_file_open(&worker->file[stream], path) : MUSTER_OK;
        code = code == 0 ? open_pipe(logs, local_rank, global_rank, stream, &route) : code;
    }
    free(path);
    return code;
}

int logs_worker_open(struct logs *logs, uint32_t local_rank, uint32_t global_rank, int *stdout_fd, int *stderr_fd) {
    assert(local_rank < logs->config->nproc && logs->begun);
    struct logs_worker *worker = &logs->workers[local_rank];
    if (logs->attempt_directory) {
        worker->error_file = str_format_new("%s/%u/error.json", logs->attempt_directory, local_rank);
        if (!worker->error_file) {
            return status_fail(MUSTER_ENOMEM, "no memory for the name of an error file");
        }
    }
    int code = open_stream(logs, local_rank, global_rank, LOGS_STDOUT);
    code = code == 0 ? open_stream(logs, local_rank, global_rank, LOGS_STDERR) : code;
    if (code != 0) {
        logs_worker_opened(logs, local_rank);
        return code;
    }
    *stdout_fd = worker->given_fd[logs_tail_has_stdout(logs, local_rank) ? LOGS_STDERR : LOGS_STDOUT];
    *stderr_fd = worker->given_fd[LOGS_STDERR];
    return MUSTER_OK;
}

void logs_worker_opened(struct logs *logs, uint32_t local_rank) {
    struct logs_worker *worker = &logs->workers[local_rank];
    for (int i = 0; i < 2; i++) {
        if (worker->given_fd[i] >= 0) {
            close(worker->given_fd[i]);
        }
        worker->given_fd[i] = -1;
    }
}

const char *logs_error_file(const struct logs *logs, uint32_t local_rank) {
    assert(local_rank < logs->config->nproc);
    const char *path = logs->workers[local_rank].error_file;
    return path ? path : "";
}

const char *logs_run_directory(const struct logs *logs) {
    return logs->run_directory ? logs->run_directory : "";
}

const char *logs_made_directory(const struct logs *logs) {
    return logs->made_base;
}

/* ---- the end of an attempt ---- */

static void on_drained(void *ctx) {
    struct logs *logs = ctx;
    if (!logs->writers_live) {
        close_files(logs);
    }
    void (*done)(void *ctx) = logs->done;
    logs->done = NULL;
    done(logs->ctx);
}

void logs_drain(struct logs *logs, bool writers_live, void (*done)(void *ctx), void *ctx) {
    assert(!logs->done && done);
    for (uint32_t i = 0; i < logs->config->nproc; i++) {
        logs_worker_opened(logs, i);
    }
    logs->writers_live = writers_live;
    logs->done = done;
    logs->ctx = ctx;
    relay_drain(logs->relay, writers_live, on_drained, logs);
}

void logs_hurry(struct logs *logs) {
    relay_hurry(logs->relay);
}

void logs_finish_lines(struct logs *logs) {
    relay_finish_lines(logs->relay);
}

static size_t read_file_tail(const char *path, size_t lines, char *out, size_t size) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) {
        return 0;
    }
    uint8_t bytes[LINE_TAIL_BYTES_MAX];
    off_t length = lseek(fd, 0, SEEK_END);
    off_t from = length > (off_t)sizeof bytes ? length - (off_t)sizeof bytes : 0;
    ssize_t n = length > 0 ? pread(fd, bytes, sizeof bytes, from) : 0;
    close(fd);
    return n > 0 ? line_tail_of_bytes(bytes, (size_t)n, lines, out, size) : 0;
}

size_t logs_stderr_tail(const struct logs *logs, uint32_t local_rank, char *out, size_t size) {
    assert(local_rank < logs->config->nproc && size > 0);
    const struct logs_worker *worker = &logs->workers[local_rank];
    uint32_t lines = logs->config->stderr_tail_lines;
    out[0] = '\0';
    if (lines == 0) {
        return 0;
    }
    return worker->redirected_stderr ? read_file_tail(worker->redirected_stderr, lines, out, size)
                                     : line_tail_read(&worker->tail, lines, out, size);
}

bool logs_tail_has_stdout(const struct logs *logs, uint32_t local_rank) {
    assert(local_rank < logs->config->nproc);
    return logs_route_of(logs->config, LOGS_STDOUT, local_rank, &logs->consoles).with_stderr;
}

void logs_close(struct logs *logs) {
    if (!logs) {
        return;
    }
    log_set_divert(NULL, NULL);
    if (logs->writers_live) {
        read_on_begin(logs->relay);
    }
    relay_close(logs->relay);
    forget_attempt(logs);
    if (logs->made_base) {
        logs_layout_remove_empty(logs->made_base, logs->run_directory, logs->restart_count + 1, logs->config->nproc);
    }
    free(logs->made_base);
    free(logs->run_directory);
    free(logs->workers);
    free(logs);
}
