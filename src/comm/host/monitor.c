/* The monitor's thread: one epoll over pidfds, the links' descriptor and an eventfd that ends it. See monitor.h. */
#include "comm/host/monitor.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/status.h"
#include "base/system/thread.h"

enum { EVENTS_AT_ONCE = 64, STAT_BYTES = 1024, STAT_START_TIME = 22, STAT_MEMORY_BYTES = 23, STAT_EXIT_CODE = 52 };

/* What an epoll event is about, beside a number, in its 64 bits. */
#define KIND_STOP (UINT64_C(1) << 32)
#define KIND_PROCESS (UINT64_C(2) << 32)
#define KIND_DESCRIPTOR (UINT64_C(3) << 32)
#define KIND_ALARM (UINT64_C(4) << 32)

struct watched {
    uint32_t peer;
    int32_t pid;
    uint64_t start_time;
    int pidfd; /* -1: looked at in /proc */
    bool is_over;
};

struct monitor {
    struct monitor_handlers handlers;
    int epoll_fd, stop_fd;
    pid_t owner;
    pthread_t thread;
    pthread_mutex_t mutex; /* over the table; never held while a handler runs */
    struct watched *table;
    size_t count, capacity;
    size_t looked_at_count; /* alive entries without a pidfd */
    _Atomic bool is_stopping;
};

/* ---- /proc ---- */

/* The state and one numeric field (counted from 1 as in proc(5)) of the process, or of its first thread; false: there
 * is none. The two have the same state, start time and memory. qemu's emulation answers for /proc/PID/stat itself where
 * a program asks for its own, with another start time than everybody else sees: ranks would wait for one another in
 * vain. */
static bool read_stat(int32_t pid, bool of_thread, int field, char *out_state, uint64_t *out_start_time,
                      int64_t *out_value) {
    char path[64], text[STAT_BYTES];
    (void)(of_thread ? snprintf(path, sizeof path, "/proc/%d/task/%d/stat", (int)pid, (int)pid)
                     : snprintf(path, sizeof path, "/proc/%d/stat", (int)pid));
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    ssize_t n = read(fd, text, sizeof text - 1);
    (void)close(fd);
    if (n <= 0) {
        return false;
    }
    text[n] = '\0';
    char *at = strrchr(text, ')'); /* the name before it may hold anything */
    if (!at || at[1] != ' ') {
        return false;
    }
    at += 2;
    *out_state = *at;
    for (int i = 3; i <= field && at; i++) {
        if (i == STAT_START_TIME) {
            *out_start_time = strtoull(at, NULL, 10);
        }
        if (i == field) {
            *out_value = strtoll(at, NULL, 10);
            return true;
        }
        at = strchr(at, ' ');
        at = at ? at + 1 : NULL;
    }
    return false;
}

uint64_t monitor_start_time(int32_t pid) {
    char state = 0;
    uint64_t start_time = 0;
    int64_t value = 0;
    return read_stat(pid, true, STAT_START_TIME, &state, &start_time, &value) ? start_time : 0;
}

/* Linux 6.15's answer about a process that has been reaped already; older headers do not know it. */
struct exit_info {
    uint64_t mask, cgroup;
    uint32_t ids[11];
    int32_t exit_code;
};
#define EXIT_INFO_WANTED (UINT64_C(1) << 3)
#define EXIT_INFO_REQUEST _IOWR(0xFF, 11, struct exit_info)

int monitor_exit_status(int32_t pid, uint64_t wanted_start_time) {
    char state = 0;
    uint64_t start_time = 0;
    int64_t value = 0;
    bool is_zombie = read_stat(pid, false, STAT_EXIT_CODE, &state, &start_time, &value) && state == 'Z' &&
                     (wanted_start_time == 0 || start_time == wanted_start_time);
    return is_zombie ? (int)value : -1;
}

static int exit_status_of(const struct watched *watched) {
    int status = monitor_exit_status(watched->pid, watched->start_time);
    if (status >= 0) {
        return status;
    }
    struct exit_info info = {.mask = EXIT_INFO_WANTED};
    if (watched->pidfd >= 0 && ioctl(watched->pidfd, EXIT_INFO_REQUEST, &info) == 0 && (info.mask & EXIT_INFO_WANTED)) {
        return info.exit_code;
    }
    return -1;
}

char monitor_process_state(int32_t pid, uint64_t wanted_start_time) {
    char state = 0;
    uint64_t start_time = 0;
    int64_t value = 0;
    bool is_there = read_stat(pid, true, STAT_START_TIME, &state, &start_time, &value) &&
                    (wanted_start_time == 0 || start_time == wanted_start_time);
    return is_there ? state : '\0';
}

bool monitor_is_ending(int32_t pid, uint64_t wanted_start_time) {
    char state = 0;
    uint64_t start_time = 0;
    int64_t memory_bytes = 0;
    return !read_stat(pid, true, STAT_MEMORY_BYTES, &state, &start_time, &memory_bytes) || memory_bytes == 0 ||
           state == 'Z' || state == 'X' || (wanted_start_time != 0 && start_time != wanted_start_time);
}

bool monitor_is_alive(int32_t pid, uint64_t start_time) {
    char state = monitor_process_state(pid, start_time);
    return state != '\0' && state != 'Z' && state != 'X';
}

/* ---- the thread ---- */

/* Takes entry `index` out if its process has ended, and tells. */
static void finish_process(struct monitor *monitor, size_t index) {
    pthread_mutex_lock(&monitor->mutex);
    struct watched watched = monitor->table[index];
    bool ends = !watched.is_over;
    monitor->table[index].is_over = true;
    monitor->table[index].pidfd = -1;
    monitor->looked_at_count -= ends && watched.pidfd < 0 ? 1 : 0;
    pthread_mutex_unlock(&monitor->mutex);
    if (!ends) {
        return;
    }
    int wait_status = exit_status_of(&watched);
    if (watched.pidfd >= 0) {
        (void)close(watched.pidfd); /* leaves the epoll set, too */
    }
    monitor->handlers.died(monitor->handlers.context, watched.peer, watched.pid, wait_status);
}

/* Those without a pidfd. */
static void look_at_processes(struct monitor *monitor) {
    for (size_t i = 0;; i++) {
        pthread_mutex_lock(&monitor->mutex);
        bool exists = i < monitor->count;
        struct watched watched = exists ? monitor->table[i] : (struct watched){0};
        pthread_mutex_unlock(&monitor->mutex);
        if (!exists) {
            return;
        }
        if (!watched.is_over && watched.pidfd < 0 && !monitor_is_alive(watched.pid, watched.start_time)) {
            finish_process(monitor, i);
        }
    }
}

static void *run(void *argument) {
    struct monitor *monitor = argument;
    struct epoll_event events[EVENTS_AT_ONCE];
    while (!atomic_load_explicit(&monitor->is_stopping, memory_order_acquire)) {
        pthread_mutex_lock(&monitor->mutex);
        int pause_ms = monitor->looked_at_count > 0 ? MONITOR_LOOK_MS : -1;
        pthread_mutex_unlock(&monitor->mutex);
        int n = epoll_wait(monitor->epoll_fd, events, EVENTS_AT_ONCE, pause_ms);
        for (int i = 0; i < n; i++) {
            uint64_t kind = events[i].data.u64 & ~(uint64_t)UINT32_MAX;
            if (kind == KIND_PROCESS) {
                finish_process(monitor, (uint32_t)events[i].data.u64);
            } else if (kind == KIND_STOP) {
                uint64_t count;
                ssize_t ignored = read(monitor->stop_fd, &count, sizeof count);
                (void)ignored;
            } else if (kind == KIND_ALARM) {
                monitor->handlers.alarmed(monitor->handlers.context);
            } else {
                monitor->handlers.attend(monitor->handlers.context);
            }
        }
        if (pause_ms >= 0) {
            look_at_processes(monitor);
        }
    }
    return NULL;
}

static void wake(struct monitor *monitor) {
    uint64_t one = 1;
    ssize_t ignored = write(monitor->stop_fd, &one, sizeof one);
    (void)ignored; /* only fails when it is raised already */
}

static int start(struct monitor *monitor) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = KIND_STOP};
    if (monitor->epoll_fd < 0 || monitor->stop_fd < 0 ||
        epoll_ctl(monitor->epoll_fd, EPOLL_CTL_ADD, monitor->stop_fd, &event) < 0) {
        return status_fail_errno(errno, "make the monitor's descriptors");
    }
    int error_number = thread_start(&monitor->thread, NULL, run, monitor);
    if (error_number) {
        return status_fail_errno(error_number, "start the monitor's thread");
    }
    (void)pthread_setname_np(monitor->thread, "muster-monitor");
    return 0;
}

static void release(struct monitor *monitor) {
    for (size_t i = 0; i < monitor->count; i++) {
        if (monitor->table[i].pidfd >= 0) {
            (void)close(monitor->table[i].pidfd);
        }
    }
    if (monitor->stop_fd >= 0) {
        (void)close(monitor->stop_fd);
    }
    if (monitor->epoll_fd >= 0) {
        (void)close(monitor->epoll_fd);
    }
    free(monitor->table);
    free(monitor);
}

int monitor_create(const struct monitor_handlers *handlers, struct monitor **out) {
    struct monitor *monitor = calloc(1, sizeof *monitor);
    if (!monitor) {
        return status_fail(MUSTER_ENOMEM, "no memory for the monitor");
    }
    monitor->handlers = *handlers;
    monitor->owner = getpid();
    monitor->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    monitor->stop_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    (void)pthread_mutex_init(&monitor->mutex, NULL);
    int code = start(monitor);
    if (code) {
        pthread_mutex_destroy(&monitor->mutex);
        release(monitor);
        return code;
    }
    *out = monitor;
    return 0;
}

void monitor_free(struct monitor *monitor) {
    if (!monitor) {
        return;
    }
    if (monitor->owner == getpid()) { /* a forked child has no such thread */
        atomic_store_explicit(&monitor->is_stopping, true, memory_order_release);
        wake(monitor);
        (void)pthread_join(monitor->thread, NULL);
        pthread_mutex_destroy(&monitor->mutex);
    }
    release(monitor);
}

/* ---- processes ---- */

static int add_entry(struct monitor *monitor, const struct watched *watched, size_t *out_index) {
    pthread_mutex_lock(&monitor->mutex);
    if (monitor->count == monitor->capacity) {
        size_t capacity = monitor->capacity ? 2 * monitor->capacity : 8;
        struct watched *grown = realloc(monitor->table, capacity * sizeof *grown);
        if (!grown) {
            pthread_mutex_unlock(&monitor->mutex);
            return status_fail(MUSTER_ENOMEM, "no memory to watch %zu processes", capacity);
        }
        monitor->table = grown;
        monitor->capacity = capacity;
    }
    *out_index = monitor->count;
    monitor->table[monitor->count++] = *watched;
    monitor->looked_at_count += watched->pidfd < 0 ? 1 : 0;
    pthread_mutex_unlock(&monitor->mutex);
    return 0;
}

int monitor_watch_process(struct monitor *monitor, uint32_t peer, int32_t pid, uint64_t start_time) {
    struct watched watched = {.peer = peer, .pid = pid, .start_time = start_time};
    size_t index = 0;
    watched.pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    /* Compared after opening: from then on the pid cannot become another process's unnoticed. */
    if ((watched.pidfd < 0 && errno == ESRCH) || !monitor_is_alive(pid, start_time)) {
        if (watched.pidfd >= 0) {
            (void)close(watched.pidfd);
        }
        return status_fail(MUSTER_EPEER, "process %d is gone", (int)pid);
    }
    int code = add_entry(monitor, &watched, &index);
    if (code) {
        if (watched.pidfd >= 0) {
            (void)close(watched.pidfd);
        }
        return code;
    }
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = KIND_PROCESS | index};
    if (watched.pidfd < 0) {
        wake(monitor); /* it now looks every few milliseconds */
    } else if (epoll_ctl(monitor->epoll_fd, EPOLL_CTL_ADD, watched.pidfd, &event) < 0) {
        return status_fail_errno(errno, "watch process %d", (int)pid);
    }
    return 0;
}

/* ---- the descriptors ---- */

int monitor_watch_descriptor(struct monitor *monitor, int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = KIND_DESCRIPTOR};
    assert(monitor->handlers.attend);
    if (epoll_ctl(monitor->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0) {
        return status_fail_errno(errno, "watch the links' descriptor");
    }
    return 0;
}

int monitor_watch_alarm(struct monitor *monitor, int fd) {
    struct epoll_event event = {.events = EPOLLIN | EPOLLET, .data.u64 = KIND_ALARM};
    assert(monitor->handlers.alarmed);
    if (epoll_ctl(monitor->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0) {
        return status_fail_errno(errno, "watch the alarm of this host's ranks");
    }
    return 0;
}
