/* The guardian process's private state, shared by these files and nobody else.
 *
 * guardian_process.c  the loop, the beginning and the end
 * guardian_orders.c   what the agent asks for
 * guardian_kill.c     ends everything, or what workers left behind
 * guardian_deaths.c   deaths in their order, and what tells of them */
#ifndef AGENT_GUARDIAN_PROCESS_IMPL_H
#define AGENT_GUARDIAN_PROCESS_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/guardian/guardian_channel.h"
#include "agent/guardian/guardian_dismiss.h"
#include "agent/guardian/guardian_oom.h"
#include "agent/guardian/guardian_outcome.h"
#include "agent/guardian/guardian_preload.h"
#include "agent/guardian/guardian_wire.h"

/* What an epoll event is about: in the upper half of its data; the lower half is a worker's pid, or the descriptor of a
 * fork that is under way. */
enum guardian_tag { TAG_CHANNEL, TAG_SIGNAL, TAG_AGENT, TAG_WORKER, TAG_PRELOAD, TAG_FORK };

struct guardian_worker {
    uint32_t id;
    pid_t pid;
    int pidfd; /* -1: found by SIGCHLD */
};

struct guardian_process {
    struct guardian_channel channel;
    int epoll_fd;
    int signal_fd;
    bool channel_writes;  /* EPOLLOUT is asked for */
    bool agent_gone;      /* the end has come */
    bool sweep_due;       /* SIGCHLD came; children without a pidfd may be dead */
    bool killing;         /* deaths are our own doing */
    uint64_t death_count; /* the order of the next death */
    int schedstat_fd;     /* -1: the kernel does not say how long this process waits for a processor */
    int64_t woke_ns;      /* when it was woken for this turn, which is before it ran */
    struct guardian_oom oom;
    int64_t children_us; /* processor time of all children that have been waited for */
    struct guardian_dismissal dismissal;
    struct guardian_outcome outcome;
    struct guardian_preload preload;
    uint32_t companion_id; /* of dismissal.companion */
    size_t leftover_count;
    size_t worker_count;
    size_t exit_count;
    struct guardian_leftover leftovers[GUARDIAN_LEFTOVERS_MAX];
    struct guardian_worker workers[GUARDIAN_WORKERS_MAX];
    struct guardian_exit exits[GUARDIAN_WORKERS_MAX]; /* reaped, not reported yet */
};

/* guardian_deaths.c */
void guardian_tell(struct guardian_process *p, enum guardian_kind kind, const void *body, size_t length);
bool guardian_watch(struct guardian_process *p, int fd, uint32_t events, enum guardian_tag tag, pid_t pid);
/* -1: there are no pidfds here. */
int guardian_pidfd_watched(struct guardian_process *p, pid_t pid, enum guardian_tag tag);
/* Its index, or worker_count. */
size_t guardian_worker_find(const struct guardian_process *p, pid_t pid);
void guardian_worker_reap(struct guardian_process *p, pid_t pid);
void guardian_child_died(void *ctx, pid_t pid, int wait_status);
/* Called when all that is dead has been reaped, so that a slow reader does not blur the order of deaths. */
void guardian_exits_report(struct guardian_process *p);
void guardian_signals_drain(const struct guardian_process *p);

/* guardian_orders.c */
void guardian_orders_init(struct guardian_process *p);
void guardian_order_handle(struct guardian_process *p, const struct guardian_frame *frame, const uint8_t *body);
/* After the last process that could have put something there. The agent has been here when it ended in good order. */
void guardian_leftovers_clear(const struct guardian_process *p);

/* guardian_kill.c */
void guardian_groups_signal(const struct guardian_process *p, int signal_number);
/* Returns when no child is left, or when patience has run out: the survivors are counted in `out`. */
void guardian_everything_kill(struct guardian_process *p, struct guardian_survivors *out);
void guardian_dismiss_order(struct guardian_process *p, const uint8_t *body);
/* Called when all that is dead has been reaped. */
void guardian_dismissal_go_on(struct guardian_process *p);

#endif
