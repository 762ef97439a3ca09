/* Writing to consoles without ever blocking, and to log files; see relay_sink.h. */
#include "agent/logs/relay_sink.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/kcmp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"

enum {
    STAGE_BYTES = 48 * 1024, /* queued lines are written when so much has come together, or at the turn's end */
    DIRECT_BYTES = 8 * 1024, /* a piece at least this long is not copied before it is written */
    CAREFUL_BYTES = PIPE_BUF /* a pipe that polls writable takes this much without blocking */
};
/* One piece that the console would not take, its prefix and what was staged. */
#define OUT_BYTES_MAX (LINE_PIECE_MAX + (size_t)1024 * 1024)

int relay_file_open(struct relay_file *file, const char *path) {
    *file = (struct relay_file){.fd = -1};
    file->path = strdup(path);
    if (!file->path) {
        return status_fail(MUSTER_ENOMEM, "no memory to open log file %s", path);
    }
    file->fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file->fd < 0) {
        int code = status_fail_errno(errno, "cannot create log file %s", path);
        relay_file_close(file);
        return code;
    }
    return MUSTER_OK;
}

void relay_file_close(struct relay_file *file) {
    if (file->fd > 0) {
        close(file->fd);
    }
    free(file->path);
    *file = (struct relay_file){.fd = -1};
}

/* Moves past `done` bytes of the parts. */
static void advance(struct iovec **parts, int *count, size_t done) {
    while (*count > 0 && done >= (*parts)->iov_len) {
        done -= (*parts)->iov_len;
        (*parts)++;
        (*count)--;
    }
    if (*count > 0) {
        (*parts)->iov_base = (uint8_t *)(*parts)->iov_base + done;
        (*parts)->iov_len -= done;
    }
}

void relay_file_write(struct relay_file *file, const struct iovec *parts, int count) {
    enum { PARTS_MAX = 4 };
    assert(count <= PARTS_MAX);
    struct iovec copy[PARTS_MAX];
    memcpy(copy, parts, (size_t)count * sizeof *copy);
    struct iovec *left = copy;
    advance(&left, &count, 0);
    while (file->fd > 0 && count > 0) {
        ssize_t n = writev(file->fd, left, count);
        if (n >= 0) {
            advance(&left, &count, (size_t)n);
        } else if (errno != EINTR) {
            log_error("cannot write log file %s: %s. What the worker prints from here on is missing from it; the job "
                      "goes on. Make room or choose another --log-dir.",
                      file->path, strerror(errno));
            close(file->fd);
            file->fd = -1;
        }
    }
}

/* Of two descriptors of one file. Containers often refuse kcmp(); two descriptions of one file then pass for one only
 * if they stand at one place, where they would overwrite each other. */
static bool has_one_end(int fd_a, int fd_b) {
    int flags_a = fcntl(fd_a, F_GETFL), flags_b = fcntl(fd_b, F_GETFL);
    if (flags_a & flags_b & O_APPEND) {
        return true;
    }
    long order = syscall(SYS_kcmp, getpid(), getpid(), KCMP_FILE, (unsigned long)fd_a, (unsigned long)fd_b);
    bool may_be = flags_a == flags_b && lseek(fd_a, 0, SEEK_CUR) == lseek(fd_b, 0, SEEK_CUR);
    return order < 0 ? may_be : order == 0;
}

bool relay_sink_is_same(int fd_a, int fd_b) {
    struct stat a, b;
    if (fstat(fd_a, &a) != 0 || fstat(fd_b, &b) != 0 || a.st_dev != b.st_dev || a.st_ino != b.st_ino) {
        return false;
    }
    return !S_ISREG(a.st_mode) || has_one_end(fd_a, fd_b);
}

/* A descriptor of our own for the same pipe or terminal: O_NONBLOCK then concerns nobody else. */
static int open_anew(int fd) {
    char path[32];
    (void)str_format(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

void relay_sink_init(struct relay_sink *sink, uv_loop_t *loop, int fd, const char *name, void (*on_ready)(void *owner),
                     void *owner) {
    *sink = (struct relay_sink){
        .fd = fd, .opened_fd = -1, .epoll_fd = -1, .name = name, .loop = loop, .on_ready = on_ready, .owner = owner};
    buf_init(&sink->out, OUT_BYTES_MAX);
    struct stat st;
    bool known = fstat(fd, &st) == 0;
    sink->is_socket = known && S_ISSOCK(st.st_mode);
    if (known && (S_ISFIFO(st.st_mode) || (S_ISCHR(st.st_mode) && isatty(fd)))) {
        sink->opened_fd = open_anew(fd);
        sink->careful = sink->opened_fd < 0;
        sink->fd = sink->careful ? fd : sink->opened_fd;
    }
}

static ssize_t write_carefully(int fd, const struct iovec *parts) {
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    if (poll(&p, 1, 0) == 0) {
        errno = EAGAIN;
        return -1;
    }
    return write(fd, parts->iov_base, parts->iov_len < CAREFUL_BYTES ? parts->iov_len : CAREFUL_BYTES);
}

static ssize_t write_some(const struct relay_sink *sink, struct iovec *parts, int count) {
    if (sink->careful) {
        return write_carefully(sink->fd, parts);
    }
    if (sink->is_socket) {
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = (size_t)count};
        return sendmsg(sink->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    return writev(sink->fd, parts, count);
}

void relay_sink_give_up(struct relay_sink *sink, const char *why) {
    if (sink->dead) {
        return;
    }
    sink->dead = true;
    sink->joint = (struct line_joint){0};
    buf_done(&sink->out);
    if (sink->blocked) {
        sink->blocked = false;
        (void)uv_poll_stop(&sink->watch);
    }
    log_error("the launcher's %s: %s. What the workers print is no longer shown there; they run on, and log files are "
              "still written.",
              sink->name, why);
}

static void give_up_errno(struct relay_sink *sink, int error_number) {
    relay_sink_give_up(sink, error_number == EPIPE ? "its reader has gone" : strerror(error_number));
}

static void on_watch(uv_poll_t *watch, int status, int events) {
    (void)status; /* whatever happened, the next write tells */
    (void)events;
    struct relay_sink *sink = watch->data;
    relay_sink_flush(sink);
    if (!sink->blocked) {
        (void)uv_poll_stop(watch);
        sink->on_ready(sink->owner);
    }
}

static int watch_create(struct relay_sink *sink) {
    struct epoll_event event = {.events = EPOLLOUT};
    sink->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (sink->epoll_fd < 0 || epoll_ctl(sink->epoll_fd, EPOLL_CTL_ADD, sink->fd, &event) != 0 ||
        uv_poll_init(sink->loop, &sink->watch, sink->epoll_fd) != 0) {
        return MUSTER_ESYSTEM;
    }
    sink->watch.data = sink;
    sink->has_watch = true;
    return MUSTER_OK;
}

static void block(struct relay_sink *sink) {
    if (sink->blocked) {
        return;
    }
    if ((!sink->has_watch && watch_create(sink) != 0) || uv_poll_start(&sink->watch, UV_READABLE, on_watch) != 0) {
        relay_sink_give_up(sink, "it cannot be waited for");
        return;
    }
    sink->blocked = true;
}

/* Writes `out` and then `piece` (which may be empty), keeping in `out` what the console does not take now. */
static void write_through(struct relay_sink *sink, const uint8_t *piece, size_t piece_bytes) {
    while (!sink->dead && sink->out.len + piece_bytes > 0) {
        struct iovec both[2] = {{buf_bytes(&sink->out), sink->out.len}, {(void *)(uintptr_t)piece, piece_bytes}};
        struct iovec *parts = both;
        int count = 2;
        advance(&parts, &count, 0);
        ssize_t n = write_some(sink, parts, piece_bytes > 0 ? count : 1);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0 && errno != EAGAIN) {
            give_up_errno(sink, errno);
            return;
        }
        if (n < 0) {
            break;
        }
        size_t taken = (size_t)n, queued = taken < sink->out.len ? taken : sink->out.len;
        sink->written_bytes += taken;
        buf_consume(&sink->out, queued);
        piece += taken - queued;
        piece_bytes -= taken - queued;
    }
    if (!sink->dead && buf_append(&sink->out, piece, piece_bytes) != 0) {
        relay_sink_give_up(sink, muster_detail());
    } else if (sink->out.len > 0) {
        block(sink);
    }
}

void relay_sink_flush(struct relay_sink *sink) {
    bool was_blocked = sink->blocked;
    if (sink->dead || sink->out.len == 0) {
        return;
    }
    write_through(sink, NULL, 0);
    if (was_blocked && sink->out.len == 0) {
        sink->blocked = false;
    }
}

/* Queues bytes. Without memory for that they are written at once, behind what is queued, and only what the console does
 * not take is lost. False when the console was given up. */
static bool stage(struct relay_sink *sink, const void *bytes, size_t count) {
    if (buf_append(&sink->out, bytes, count) == 0) {
        return true;
    }
    if (sink->blocked) {
        relay_sink_give_up(sink, muster_detail());
    } else {
        write_through(sink, bytes, count);
    }
    return !sink->dead;
}

void relay_sink_put(struct relay_sink *sink, const void *from, const char *prefix, size_t prefix_bytes,
                    const uint8_t *piece, size_t piece_bytes) {
    assert(!sink->blocked);
    if (sink->dead || piece_bytes == 0) {
        return;
    }
    unsigned need = line_joint_before(&sink->joint, from);
    if (((need & LINE_JOINT_NEWLINE) && !stage(sink, "\n", 1)) ||
        ((need & LINE_JOINT_PREFIX) && !stage(sink, prefix, prefix_bytes)) ||
        (piece_bytes < DIRECT_BYTES && !stage(sink, piece, piece_bytes))) {
        return;
    }
    line_joint_after(&sink->joint, from, piece, piece_bytes);
    sink->last_had_prefix = prefix_bytes > 0;
    if (piece_bytes >= DIRECT_BYTES) {
        write_through(sink, piece, piece_bytes);
    } else if (sink->out.len >= STAGE_BYTES) {
        write_through(sink, NULL, 0);
    }
}

void relay_sink_finish_line(struct relay_sink *sink) {
    if (sink->dead || !sink->joint.open) {
        return;
    }
    sink->joint.open = false;
    if (stage(sink, "\n", 1) && !sink->blocked) {
        relay_sink_flush(sink);
    }
}

void relay_sink_add(struct relay_sink *sink, const char *text, size_t bytes) {
    struct iovec part = {(void *)(uintptr_t)text, bytes};
    if (sink->dead) {
        (void)write_some(sink, &part, 1); /* why it ends may be the launcher's last word */
    } else if (stage(sink, text, bytes) && !sink->blocked) {
        relay_sink_flush(sink);
    }
}

void relay_sink_wait(struct relay_sink *sink, int patience_ms) {
    struct pollfd p = {.fd = sink->fd, .events = POLLOUT};
    while (!sink->dead && sink->out.len > 0) {
        uint64_t before = sink->written_bytes;
        int ready = poll(&p, 1, patience_ms);
        relay_sink_flush(sink);
        if ((ready == 0 || (ready < 0 && errno != EINTR)) && sink->written_bytes == before) {
            return;
        }
    }
}

void relay_sink_move(struct relay_sink *sink, uv_loop_t *loop, bool goes_on) {
    sink->loop = loop;
    sink->has_watch = sink->blocked = false;
    sink->epoll_fd = -1;
    sink->dead = sink->dead || !goes_on;
    if (sink->dead) {
        buf_clear(&sink->out);
    }
    relay_sink_flush(sink);
}

static void on_watch_closed(uv_handle_t *handle) {
    struct relay_sink *sink = handle->data;
    sink->on_ready(sink->owner);
}

void relay_sink_close(struct relay_sink *sink, void (*on_closed)(void *owner)) {
    buf_done(&sink->out);
    sink->dead = true;
    sink->blocked = false;
    sink->on_ready = on_closed; /* from here on the only event */
    if (sink->has_watch) {
        uv_close((uv_handle_t *)&sink->watch, on_watch_closed);
    }
    if (sink->epoll_fd >= 0) {
        close(sink->epoll_fd);
    }
    if (sink->opened_fd >= 0) {
        close(sink->opened_fd);
    }
    if (!sink->has_watch) {
        on_closed(sink->owner);
    }
}
