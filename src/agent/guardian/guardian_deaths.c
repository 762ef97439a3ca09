/* Deaths in the order in which they happen, and what tells of them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/guardian/guardian_process_impl.h"
#include "base/status.h"

void guardian_tell(struct guardian_process *p, enum guardian_kind kind, const void *body, size_t length) {
    if (!p->agent_gone && guardian_channel_send(&p->channel, kind, body, length, NULL, 0) != MUSTER_OK) {
        p->agent_gone = true; /* gone, or not reading for so long that the queue is full: the same to us */
    }
}

bool guardian_watch(struct guardian_process *p, int fd, uint32_t events, enum guardian_tag tag, pid_t pid) {
    struct epoll_event event = {.events = events, .data.u64 = (uint64_t)tag << 32 | (uint32_t)pid};
    return epoll_ctl(p->epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0;
}

int guardian_pidfd_watched(struct guardian_process *p, pid_t pid, enum guardian_tag tag) {
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0U);
    if (pidfd >= 0 && !guardian_watch(p, pidfd, EPOLLIN, tag, pid)) {
        (void)close(pidfd);
        return -1;
    }
    return pidfd;
}

static int64_t micros(struct timeval time) {
    return (int64_t)time.tv_sec * 1000000 + time.tv_usec;
}

/* Of the child that was waited for last. */
static int64_t spent_us(struct guardian_process *p) {
    struct rusage usage;
    int64_t before_us = p->children_us;
    if (getrusage(RUSAGE_CHILDREN, &usage) == 0) {
        p->children_us = micros(usage.ru_utime) + micros(usage.ru_stime);
    }
    return p->children_us - before_us;
}

/* Beyond the hard limit of processor time the kernel sends SIGKILL. Workers inherit this process's. The kernel counts
 * ticks for the limit and measures for the usage: on a busy machine the two differ. */
static uint32_t used_up_s(int64_t spent_us) {
    enum { UNSURE_US = 500000, UNSURE_DIVISOR = 20 };
    struct rlimit limit;
    if (getrlimit(RLIMIT_CPU, &limit) != 0 || limit.rlim_max >= UINT32_MAX) {
        return 0;
    }
    int64_t limit_us = (int64_t)limit.rlim_max * 1000000;
    return spent_us >= limit_us - limit_us / UNSURE_DIVISOR - UNSURE_US ? (uint32_t)limit.rlim_max : 0;
}

static void worker_died(struct guardian_process *p, size_t index, int wait_status, int64_t spent_us) {
    struct guardian_worker *worker = &p->workers[index];
    struct guardian_exit *exit = &p->exits[p->exit_count++];
    memset(exit, 0, sizeof *exit); /* padding travels too */
    exit->id = worker->id;
    exit->pid = worker->pid;
    exit->wait_status = wait_status;
    exit->at_ns = p->woke_ns;
    exit->order = p->death_count++;
    bool by_kill = WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL;
    exit->oom_killed = by_kill && !p->killing && guardian_oom_claim(&p->oom, exit->pid);
    exit->cpu_limit_s = by_kill && !p->killing ? used_up_s(spent_us) : 0;
    exit->core_dumped = WIFSIGNALED(wait_status) && WCOREDUMP(wait_status);
    guardian_outcome_ended(&p->outcome, exit, p->killing);
    if (worker->pidfd >= 0) {
        (void)close(worker->pidfd); /* leaves the epoll set with it */
    }
    *worker = p->workers[--p->worker_count];
}

size_t guardian_worker_find(const struct guardian_process *p, pid_t pid) {
    size_t i = 0;
    while (i < p->worker_count && p->workers[i].pid != pid) {
        i++;
    }
    return i;
}

/* Told at once: nobody asks in which order it died. */
static void companion_died(struct guardian_process *p, int wait_status) {
    struct guardian_exit exit;
    memset(&exit, 0, sizeof exit);
    exit.id = p->companion_id;
    exit.pid = p->dismissal.companion;
    exit.wait_status = wait_status;
    exit.at_ns = p->woke_ns;
    p->dismissal.companion = 0;
    guardian_tell(p, GUARDIAN_KIND_EXIT, &exit, sizeof exit);
}

void guardian_child_died(void *ctx, pid_t pid, int wait_status) {
    struct guardian_process *p = ctx;
    int64_t its_us = spent_us(p);
    size_t index = guardian_worker_find(p, pid);
    if (index < p->worker_count) {
        worker_died(p, index, wait_status, its_us);
    } else if (pid == p->dismissal.companion) {
        companion_died(p, wait_status);
    } else {
        (void)guardian_preload_ended(&p->preload, pid, wait_status); /* or an orphan that fell to us */
    }
}

void guardian_worker_reap(struct guardian_process *p, pid_t pid) {
    int wait_status = 0;
    if (waitpid(pid, &wait_status, WNOHANG) == pid) {
        guardian_child_died(p, pid, wait_status);
    }
}

void guardian_exits_report(struct guardian_process *p) {
    for (size_t i = 0; i < p->exit_count; i++) {
        guardian_tell(p, GUARDIAN_KIND_EXIT, &p->exits[i], sizeof p->exits[i]);
    }
    p->exit_count = 0;
}

void guardian_signals_drain(const struct guardian_process *p) {
    struct signalfd_siginfo info[16];
    while (read(p->signal_fd, info, sizeof info) > 0) {
    }
}
