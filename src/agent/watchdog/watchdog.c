/* FIFO, wall-clock timer and loop handles of the watchdog; see watchdog.h. What the messages do is in
 * watchdog_table.c. */
#include "agent/watchdog/watchdog.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "agent/watchdog/watchdog_table.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "base/system/random.h"

enum {
    LINE_BYTES_MAX = PIPE_BUF, /* longer ones could be mixed up with others on the way */
    READ_BYTES = 4096,
    READS_PER_TURN = 16,
    COMPLAINTS_MAX = 20, /* a worker that sends rubbish must not fill the log */
    HANDLE_COUNT = 2,
};

/* Beyond this, a time is never. */
#define EXPIRES_MAX_S 1e15

struct watchdog {
    struct watchdog_callbacks callbacks;
    void *ctx;
    char path[PATH_MAX];
    int fifo_fd;        /* both ends: never at its end, and clients always find a reader */
    int timer_fd;       /* absolute, on the wall clock */
    struct buf line;    /* what came of a line that is not complete */
    bool line_too_long; /* skipping to its end */
    unsigned complaint_count;
    struct watchdog_table table;
    uv_poll_t fifo_poll;
    uv_poll_t timer_poll;
    unsigned handles_open;
    bool closing;
};

static double wall_now_s(void) {
    return (double)clock_realtime_us() / (double)CLOCK_US_PER_S;
}

/* Sets the timer to the next expiry, or off. */
static void timer_arm(struct watchdog *w) {
    struct itimerspec when = {0};
    double next_s;
    if (watchdog_table_next(&w->table, &next_s) && next_s < EXPIRES_MAX_S) {
        double whole_s = floor(next_s);
        when.it_value.tv_sec = (time_t)whole_s;
        when.it_value.tv_nsec = (long)((next_s - whole_s) * 1e9);
        if (when.it_value.tv_sec == 0 && when.it_value.tv_nsec == 0) {
            when.it_value.tv_nsec = 1; /* zero would mean off */
        }
    }
    (void)timerfd_settime(w->timer_fd, TFD_TIMER_ABSTIME, &when, NULL);
}

static void complain(struct watchdog *w, const char *what) {
    if (w->complaint_count < COMPLAINTS_MAX) {
        w->complaint_count++;
        log_warning("watchdog: ignored a message: %s%s", what,
                    w->complaint_count == COMPLAINTS_MAX ? "; no more of this is reported" : "");
    }
}

static void line_handle(struct watchdog *w, const char *line, size_t length) {
    struct watchdog_message message;
    if (length == 0) {
        return;
    }
    if (watchdog_message_parse(line, length, &message) != MUSTER_OK) {
        complain(w, muster_detail());
    } else if (!w->callbacks.is_worker(w->ctx, (pid_t)message.pid)) {
        char text[96];
        (void)str_format(text, sizeof text, "process %lld is no worker of this agent", (long long)message.pid);
        complain(w, text);
    } else if (watchdog_table_apply(&w->table, &message) != MUSTER_OK) {
        complain(w, muster_detail());
    }
}

static void line_append(struct watchdog *w, const char *bytes, size_t length) {
    if (w->line_too_long || w->line.len + length > LINE_BYTES_MAX || buf_append(&w->line, bytes, length) != MUSTER_OK) {
        w->line_too_long = true;
        buf_clear(&w->line);
    }
}

static void line_end(struct watchdog *w) {
    if (w->line_too_long) {
        complain(w, "a line longer than a pipe carries in one piece");
    } else {
        line_handle(w, (const char *)buf_bytes(&w->line), w->line.len);
    }
    w->line_too_long = false;
    buf_clear(&w->line);
}

static void bytes_handle(struct watchdog *w, const char *bytes, size_t length) {
    const char *end = bytes + length;
    for (;;) {
        const char *newline = memchr(bytes, '\n', (size_t)(end - bytes));
        if (!newline) {
            line_append(w, bytes, (size_t)(end - bytes));
            return;
        }
        line_append(w, bytes, (size_t)(newline - bytes));
        line_end(w);
        bytes = newline + 1;
    }
}

static void fifo_cb(uv_poll_t *handle, int status, int events) {
    struct watchdog *w = handle->data;
    char bytes[READ_BYTES];
    (void)status;
    (void)events;
    for (int i = 0; i < READS_PER_TURN; i++) {
        ssize_t n = read(w->fifo_fd, bytes, sizeof bytes);
        if (n <= 0) {
            break;
        }
        bytes_handle(w, bytes, (size_t)n);
    }
    timer_arm(w);
}

static void timer_cb(uv_poll_t *handle, int status, int events) {
    struct watchdog *w = handle->data;
    uint64_t times;
    struct watchdog_timer timer;
    (void)status;
    (void)events;
    (void)!read(w->timer_fd, &times, sizeof times);
    double now_s = wall_now_s();
    while (watchdog_table_expire(&w->table, now_s, &timer)) {
        struct watchdog_expiry expiry = {timer.pid, timer.scope, timer.expires_s, timer.signal_number};
        log_warning("watchdog: timer '%s' of process %d ran out %.3f s ago; %s %d", timer.scope, (int)timer.pid,
                    now_s - timer.expires_s,
                    timer.signal_number > 0 ? "sending signal" : "no signal:", timer.signal_number);
        w->callbacks.on_expired(w->ctx, &expiry);
        free(timer.scope);
    }
    timer_arm(w);
}

/* For workers that were told nothing else. */
static bool path_fresh(char *out, size_t size) {
    uint64_t random[2] = {0};
    if (random_fill(random, sizeof random) != 0) {
        return false;
    }
    return str_format(out, size, "%s/watchdog_timer_%016llx%016llx", file_temporary_folder(),
                      (unsigned long long)random[0], (unsigned long long)random[1]);
}

static int path_set(struct watchdog *w, const char *path) {
    if (path ? !str_copy(w->path, sizeof w->path, path) : !path_fresh(w->path, sizeof w->path)) {
        w->path[0] = '\0';
        return status_fail(MUSTER_ELIMIT, "the path of the watchdog's FIFO is too long");
    }
    return MUSTER_OK;
}

static int fifo_make(struct watchdog *w) {
    struct stat seen;
    if (lstat(w->path, &seen) == 0) {
        if (!S_ISFIFO(seen.st_mode)) {
            int status = status_fail(MUSTER_EINVAL,
                                     "%s exists and is not a FIFO; remove it or set "
                                     "TORCHELASTIC_TIMER_FILE to another path",
                                     w->path);
            w->path[0] = '\0'; /* not ours to remove */
            return status;
        }
        (void)unlink(w->path);
    }
    if (mkfifo(w->path, S_IRUSR | S_IWUSR) != 0) {
        int status = status_fail_errno(errno, "cannot make the watchdog's FIFO %s", w->path);
        w->path[0] = '\0';
        return status;
    }
    w->fifo_fd = open(w->path, O_RDWR | O_NONBLOCK | O_CLOEXEC | O_NOFOLLOW);
    return w->fifo_fd >= 0 ? MUSTER_OK : status_fail_errno(errno, "cannot open the watchdog's FIFO %s", w->path);
}

static int timer_make(struct watchdog *w) {
    w->timer_fd = timerfd_create(CLOCK_REALTIME, TFD_NONBLOCK | TFD_CLOEXEC);
    return w->timer_fd >= 0 ? MUSTER_OK : status_fail_errno(errno, "cannot make a timer for the watchdog");
}

static void handle_closed(uv_handle_t *handle) {
    struct watchdog *w = handle->data;
    if (--w->handles_open == 0) {
        free(w);
    }
}

/* Everything but the handles and the memory. */
static void parts_done(struct watchdog *w) {
    if (w->path[0] != '\0') {
        (void)unlink(w->path);
    }
    if (w->fifo_fd >= 0) {
        (void)close(w->fifo_fd);
    }
    if (w->timer_fd >= 0) {
        (void)close(w->timer_fd);
    }
    buf_done(&w->line);
    watchdog_table_done(&w->table);
}

/* `handles_open` says how far it came. */
static int handles_start(struct watchdog *w, uv_loop_t *loop) {
    w->fifo_poll.data = w;
    w->timer_poll.data = w;
    int status = uv_poll_init(loop, &w->fifo_poll, w->fifo_fd);
    w->handles_open += status == 0;
    if (status == 0) {
        status = uv_poll_init(loop, &w->timer_poll, w->timer_fd);
        w->handles_open += status == 0;
    }
    if (status == 0) {
        status = uv_poll_start(&w->fifo_poll, UV_READABLE, fifo_cb);
    }
    if (status == 0) {
        status = uv_poll_start(&w->timer_poll, UV_READABLE, timer_cb);
    }
    return status == 0 ? MUSTER_OK : status_fail(MUSTER_ESYSTEM, "watch the watchdog's FIFO: %s", uv_strerror(status));
}

int watchdog_create(uv_loop_t *loop, const char *path, const struct watchdog_callbacks *callbacks, void *ctx,
                    struct watchdog **out) {
    assert(callbacks->is_worker && callbacks->on_expired);
    struct watchdog *w = calloc(1, sizeof *w);
    if (!w) {
        return status_fail(MUSTER_ENOMEM, "no memory for the watchdog");
    }
    w->callbacks = *callbacks;
    w->ctx = ctx;
    w->fifo_fd = -1;
    w->timer_fd = -1;
    buf_init(&w->line, LINE_BYTES_MAX);
    watchdog_table_init(&w->table);
    int status = path_set(w, path);
    if (status == MUSTER_OK) {
        status = fifo_make(w);
    }
    if (status == MUSTER_OK) {
        status = timer_make(w);
    }
    if (status != MUSTER_OK) {
        parts_done(w);
        free(w);
        return status;
    }
    status = handles_start(w, loop);
    if (status != MUSTER_OK) {
        watchdog_close(w);
        return status;
    }
    *out = w;
    return MUSTER_OK;
}

const char *watchdog_path(const struct watchdog *w) {
    return w->path;
}

void watchdog_forget(struct watchdog *w, pid_t pid) {
    watchdog_table_forget(&w->table, pid);
    timer_arm(w);
}

void watchdog_reset(struct watchdog *w) {
    char bytes[READ_BYTES];
    while (read(w->fifo_fd, bytes, sizeof bytes) > 0) {
    }
    buf_clear(&w->line);
    w->line_too_long = false;
    watchdog_table_clear(&w->table);
    timer_arm(w);
}

void watchdog_close(struct watchdog *w) {
    if (!w || w->closing) {
        return;
    }
    w->closing = true;
    unsigned open_count = w->handles_open;
    if (open_count > 0) {
        uv_close((uv_handle_t *)&w->fifo_poll, handle_closed);
    }
    if (open_count == HANDLE_COUNT) {
        uv_close((uv_handle_t *)&w->timer_poll, handle_closed);
    }
    parts_done(w);
    if (open_count == 0) {
        free(w);
    }
}
