/* Warm processes of a spare node: each worker's interpreter is started, and has imported what takes long, before the
 * node is needed (warm_worker.py runs in it). Taking over is then handing it what only a world decides: environment and
 * streams. For other programs than Python only the file is read ahead.
 *
 * A warm process is a child of the guardian like any worker, under the local rank it will have: it ends with the agent,
 * whatever ends that. One that dies is replaced, a few times; a worker without one is started as usual. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "agent/agent_impl.h"
#include "agent/launch/environment.h"
#include "agent/launch/warm_worker.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"

enum { DEATHS_MAX = 3, HEAD_ITEMS = 2 /* of the command: interpreter, -u */, STREAMS = 3 };

enum warm_state {
    WARM_NONE,
    WARM_STARTING, /* asked for */
    WARM_WAITING,
    WARM_DROPPING, /* asked for, and of no use any more */
    WARM_DROPPED,  /* it will end by itself */
};

/* The agent's end of a warm process's stdout. Lives until its handle is closed. */
struct warm_line {
    uv_poll_t poll;
    struct agent *agent;
    uint32_t local_rank;
    int fd;
};

struct agent_warm {
    enum warm_state state;
    pid_t pid; /* WAITING, DROPPED */
    struct warm_line *line;
    bool has_imported;
    unsigned death_count;
};

/* ---- its line ---- */

static void on_line_closed(uv_handle_t *handle) {
    struct warm_line *line = handle->data;
    (void)close(line->fd);
    free(line);
}

static void line_close(struct agent_warm *warm) {
    if (warm->line) {
        uv_close((uv_handle_t *)&warm->line->poll, on_line_closed);
        warm->line = NULL;
    }
}

/* Of which a part may be shared with others; 0 when it is not known. */
static unsigned long long memory_mb(pid_t pid) {
    char path[64], text[128];
    unsigned long long kib = 0;
    (void)str_format(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    FILE *file = fopen(path, "re");
    while (file && fgets(text, sizeof text, file) && sscanf(text, "Pss: %llu kB", &kib) != 1) {
    }
    if (file) {
        (void)fclose(file);
    }
    return kib / 1024;
}

static void tell_memory(const struct agent *a) {
    unsigned long long most = 0;
    for (uint32_t i = 0; i < a->config->nproc; i++) {
        const struct agent_warm *warm = &a->warm[i];
        if (warm->state != WARM_WAITING || !warm->has_imported) {
            return;
        }
        unsigned long long mb = memory_mb(warm->pid);
        most = mb > most ? mb : most;
    }
    log_info("this spare holds %u warm %s, %llu MB each", a->config->nproc,
             a->config->nproc == 1 ? "process" : "processes", most);
}

/* It has imported, or has ended; of the latter the guardian tells. */
static void on_line(uv_poll_t *poll, int status, int events) {
    struct warm_line *line = poll->data;
    struct agent_warm *warm = &line->agent->warm[line->local_rank];
    char byte;
    (void)events;
    (void)uv_poll_stop(poll);
    if (status == 0 && recv(line->fd, &byte, 1, MSG_DONTWAIT) == 1) {
        warm->has_imported = true;
        tell_memory(line->agent);
    }
}

static int line_open(struct agent *a, uint32_t local_rank, int fd) {
    struct warm_line *line = calloc(1, sizeof *line);
    if (!line || uv_poll_init(&a->loop, &line->poll, fd) != 0) {
        free(line);
        (void)close(fd);
        return status_fail(MUSTER_ENOMEM, "its socket cannot be watched");
    }
    line->agent = a;
    line->local_rank = local_rank;
    line->fd = fd;
    line->poll.data = line;
    (void)uv_poll_start(&line->poll, UV_READABLE, on_line);
    a->warm[local_rank].line = line;
    return MUSTER_OK;
}

/* ---- starting ---- */

/* The interpreter with our program in the place of the worker's, whose name and arguments follow. */
static int build_command(const struct agent *a, uint32_t local_rank, struct launch_strings *out) {
    struct launch_strings own = {0};
    int rc = environment_command(a->config, local_rank, &own);
    for (size_t i = 0; rc == MUSTER_OK && i < own.count; i++) {
        if (i == HEAD_ITEMS) {
            rc = launch_strings_append(out, "-c");
            rc = rc == MUSTER_OK ? launch_strings_append(out, warm_worker_program) : rc;
        }
        rc = rc == MUSTER_OK ? launch_strings_append(out, own.items[i]) : rc;
    }
    launch_strings_done(&own);
    return rc;
}

static int spawn_with(struct agent *a, uint32_t local_rank, int stdout_fd) {
    struct launch_strings argv = {0}, envp = {0};
    struct environment_worker worker = agent_worker_environment(a, local_rank);
    int rc = build_command(a, local_rank, &argv);
    if (rc == MUSTER_OK) {
        rc = environment_build_early(a->config, &worker, (const char *const *)environ, &envp);
    }
    if (rc == MUSTER_OK) {
        rc = agent_worker_spawn(a, local_rank, &argv, &envp, stdout_fd, -1);
    }
    launch_strings_done(&argv);
    launch_strings_done(&envp);
    return rc;
}

static int start_one(struct agent *a, uint32_t local_rank) {
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
        return status_fail_errno(errno, "no socket");
    }
    int rc = line_open(a, local_rank, ends[0]);
    rc = rc == MUSTER_OK ? spawn_with(a, local_rank, ends[1]) : rc;
    (void)close(ends[1]);
    return rc;
}

static void start(struct agent *a, uint32_t local_rank) {
    struct agent_warm *warm = &a->warm[local_rank];
    warm->has_imported = false;
    warm->state = WARM_STARTING;
    if (start_one(a, local_rank) != MUSTER_OK) {
        log_warning("no warm process for local_rank %u: %s", local_rank, muster_detail());
        warm->state = WARM_NONE;
        line_close(warm);
    }
}

/* The kernel reads it in the background. */
static void read_ahead(const char *path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        (void)posix_fadvise(fd, 0, 0, POSIX_FADV_WILLNEED);
        (void)close(fd);
    }
}

void agent_warm_begin(struct agent *a) {
    if (!a->config->has_spares) {
        return;
    }
    if (!a->config->is_python) {
        if (a->config->program_path) {
            read_ahead(a->config->program_path);
        }
        return;
    }
    if (!a->warm) {
        a->warm = calloc(a->config->nproc, sizeof *a->warm);
    }
    for (uint32_t i = 0; a->warm && i < a->config->nproc; i++) {
        if (a->warm[i].state == WARM_NONE) {
            start(a, i);
        }
    }
}

/* ---- what the guardian says ---- */

bool agent_warm_spawned(struct agent *a, uint32_t local_rank, pid_t pid) {
    struct agent_warm *warm = a->warm ? &a->warm[local_rank] : NULL;
    if (!warm || (warm->state != WARM_STARTING && warm->state != WARM_DROPPING)) {
        return false;
    }
    warm->state = warm->state == WARM_STARTING ? WARM_WAITING : WARM_DROPPED;
    warm->pid = pid;
    return true;
}

bool agent_warm_not_started(struct agent *a, uint32_t local_rank, const char *why) {
    struct agent_warm *warm = a->warm ? &a->warm[local_rank] : NULL;
    if (!warm || (warm->state != WARM_STARTING && warm->state != WARM_DROPPING)) {
        return false;
    }
    log_warning("no warm process for local_rank %u: %s", local_rank, why);
    warm->state = WARM_NONE;
    line_close(warm);
    return true;
}

bool agent_warm_ended(struct agent *a, const struct guardian_exit *exit) {
    struct agent_warm *warm = a->warm ? &a->warm[exit->id] : NULL;
    if (!warm || (warm->state != WARM_WAITING && warm->state != WARM_DROPPED) || warm->pid != exit->pid) {
        return false;
    }
    bool was_wanted = warm->state == WARM_WAITING && a->machine.state == AGENT_STATE_JOINING;
    warm->state = WARM_NONE;
    line_close(warm);
    if (was_wanted && ++warm->death_count <= DEATHS_MAX) {
        log_warning("the warm process of local_rank %u (pid %d) has died: starting another one", exit->id, exit->pid);
        start(a, exit->id);
    } else if (was_wanted) {
        log_warning("the warm process of local_rank %u (pid %d) has died, as %d before it: this worker will be started "
                    "when it is needed",
                    exit->id, exit->pid, DEATHS_MAX);
    }
    return true;
}

void agent_warm_lost(struct agent *a) {
    bool were_wanted = false;
    for (uint32_t i = 0; a->warm && i < a->config->nproc; i++) {
        were_wanted = were_wanted || a->warm[i].state == WARM_STARTING || a->warm[i].state == WARM_WAITING;
        a->warm[i].state = WARM_NONE;
        line_close(&a->warm[i]);
    }
    if (were_wanted && a->machine.state == AGENT_STATE_JOINING) {
        agent_warm_begin(a);
    }
}

/* ---- taking over ---- */

/* A file in memory with a zero byte after each variable, as /proc/PID/environ has them. */
static int write_environment(const struct launch_strings *envp) {
    int fd = memfd_create("muster-environment", MFD_CLOEXEC);
    bool written = fd >= 0;
    for (size_t i = 0; written && i < envp->count; i++) {
        size_t size = strlen(envp->items[i]) + 1;
        errno = 0;
        written = write(fd, envp->items[i], size) == (ssize_t)size;
    }
    if (written && lseek(fd, 0, SEEK_SET) == 0) {
        return fd;
    }
    if (fd >= 0) {
        (void)close(fd);
    }
    return -1;
}

/* `fd`, or where that is -1 the agent's own stream, as the guardian hands it on. */
static int copy_stream(int fd, int own) {
    int flags = fcntl(own, F_GETFD);
    if (fd < 0 && (flags < 0 || (flags & FD_CLOEXEC))) {
        return open("/dev/null", O_RDWR | O_CLOEXEC);
    }
    return fcntl(fd < 0 ? own : fd, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
}

static int send_streams(int socket_fd, const int fds[STREAMS]) {
    char byte = 'S';
    union {
        char bytes[CMSG_SPACE(STREAMS * sizeof(int))];
        struct cmsghdr align;
    } control = {{0}};
    struct iovec body = {.iov_base = &byte, .iov_len = 1};
    struct msghdr message = {
        .msg_iov = &body, .msg_iovlen = 1, .msg_control = control.bytes, .msg_controllen = sizeof control.bytes};
    struct cmsghdr *head = CMSG_FIRSTHDR(&message);
    head->cmsg_level = SOL_SOCKET;
    head->cmsg_type = SCM_RIGHTS;
    head->cmsg_len = CMSG_LEN(STREAMS * sizeof(int));
    memcpy(CMSG_DATA(head), fds, STREAMS * sizeof(int));
    return sendmsg(socket_fd, &message, MSG_NOSIGNAL | MSG_DONTWAIT) == 1 ? 0 : errno;
}

/* 0 or an errno. */
static int hand_over(const struct warm_line *line, const struct launch_strings *envp, int stdout_fd, int stderr_fd) {
    int fds[STREAMS] = {copy_stream(stdout_fd, STDOUT_FILENO), copy_stream(stderr_fd, STDERR_FILENO),
                        write_environment(envp)};
    bool complete = fds[0] >= 0 && fds[1] >= 0 && fds[2] >= 0;
    int error_number = complete ? send_streams(line->fd, fds) : errno != 0 ? errno : EIO; /* a short write has none */
    for (size_t i = 0; i < STREAMS; i++) {
        if (fds[i] >= 0) {
            (void)close(fds[i]);
        }
    }
    return error_number;
}

static bool is_there(const struct agent_warm *warm) {
    return warm && (warm->state == WARM_STARTING || warm->state == WARM_WAITING);
}

bool agent_warm_take(struct agent *a, uint32_t local_rank, const struct launch_strings *envp, int stdout_fd,
                     int stderr_fd) {
    struct agent_warm *warm = a->warm ? &a->warm[local_rank] : NULL;
    if (!is_there(warm)) {
        return false;
    }
    bool is_starting = warm->state == WARM_STARTING;
    int error_number = hand_over(warm->line, envp, stdout_fd, stderr_fd);
    line_close(warm);
    if (error_number != 0) {
        log_warning("the warm process of local_rank %u cannot take over: %s; the worker is started as usual",
                    local_rank, strerror(error_number));
        warm->state = is_starting ? WARM_DROPPING : WARM_DROPPED;
        return false;
    }
    warm->state = WARM_NONE;
    log_info("local_rank %u is taken over by a warm process", local_rank);
    if (!is_starting) { /* else the guardian's answer is still to come, and is the worker's now */
        agent_worker_spawned(a, local_rank, warm->pid);
    }
    return true;
}

void agent_warm_close(struct agent *a) {
    for (uint32_t i = 0; a->warm && i < a->config->nproc; i++) {
        line_close(&a->warm[i]);
    }
}
