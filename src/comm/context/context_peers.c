/* The other processes: where they are, and what becomes of the groups when one is gone: the monitor and the links tell,
 * groups are woken, everybody else is told. See context.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "base/status.h"
#include "base/str.h"
#include "comm/context/context.h"

enum { PEER_SENTENCE_BYTES = 256 };

/* ---- where they are ---- */

uint32_t context_local_of(const struct context *context, uint32_t root_rank) {
    uint32_t low = 0, high = context->bootstrap.local_count;
    while (low < high) { /* the list rises */
        uint32_t middle = (low + high) / 2;
        if (context->bootstrap.locals[middle].rank < root_rank) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    bool found = low < context->bootstrap.local_count && context->bootstrap.locals[low].rank == root_rank;
    return found ? low : UINT32_MAX;
}

const char *context_host_name(const struct context *context, uint32_t root_rank) {
    const struct topology *topology = &context->bootstrap.topology;
    return topology->host_names[topology->host_of[root_rank]];
}

/* ---- who is gone ---- */

/* How a peer ended, as far as it is known. */
struct end {
    int32_t pid, signal;
    const char *sentence; /* NULL: it has left */
};

/* Marks a peer, and wakes the groups that it is in. The first mark stays. */
static void mark_peer(struct context *context, uint32_t rank, enum context_peer_state state, struct end end) {
    struct context_peer *peer = &context->peers[rank];
    pthread_mutex_lock(&context->mutex);
    bool is_news = atomic_load_explicit(&peer->state, memory_order_relaxed) == CONTEXT_PEER_HERE;
    if (is_news) {
        peer->sentence = end.sentence ? strdup(end.sentence) : NULL;
        peer->pid = end.pid;
        peer->signal = end.signal;
        peer->order = atomic_load_explicit(&context->gone_count, memory_order_relaxed);
        atomic_store_explicit(&peer->state, state, memory_order_release);
        atomic_fetch_add_explicit(&context->gone_count, 1, memory_order_release);
    }
    if (is_news) {
        context->hooks->peer_gone(context, rank);
    }
    pthread_mutex_unlock(&context->mutex);
}

static void describe_end(const struct context *context, uint32_t rank, int32_t pid, int wait_status, char *out,
                         size_t max) {
    int used = snprintf(out, max, "rank %u (pid %d on host %s) ", rank, (int)pid, context_host_name(context, rank));
    size_t at = used > 0 && (size_t)used < max ? (size_t)used : 0;
    if (wait_status >= 0 && WIFSIGNALED(wait_status)) {
        (void)snprintf(out + at, max - at, "was killed by signal %d (%s)", WTERMSIG(wait_status),
                       strsignal(WTERMSIG(wait_status)));
    } else if (wait_status >= 0) {
        (void)snprintf(out + at, max - at, "exited with code %d", WEXITSTATUS(wait_status));
    } else {
        (void)snprintf(out + at, max - at, "is gone");
    }
}

/* A process of this host has ended. */
static void take_end(struct context *context, uint32_t local, int wait_status) {
    char sentence[PEER_SENTENCE_BYTES];
    uint32_t rank = context->bootstrap.locals[local].rank;
    int32_t pid = context->bootstrap.locals[local].pid;
    if (atomic_load_explicit(&context->lines[local].has_left, memory_order_acquire)) {
        mark_peer(context, rank, CONTEXT_PEER_LEFT, (struct end){.pid = pid});
        return;
    }
    describe_end(context, rank, pid, wait_status, sentence, sizeof sentence);
    int32_t signal = wait_status >= 0 && WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0;
    mark_peer(context, rank, CONTEXT_PEER_DEAD, (struct end){pid, signal, sentence});
    struct p2p_notice notice = {
        .kind = P2P_NOTICE_PEER_DEAD, .subject = rank, .origin = context->rank, .code = MUSTER_EPEER};
    notice.blamed = (struct p2p_blamed){rank + 1, pid};
    (void)str_format(notice.sentence, sizeof notice.sentence, "%s", sentence);
    p2p_spread(context->p2p, &notice);
}

/* ---- watching each other ---- */

static bool is_here(const struct context *context, uint32_t local) {
    const struct context_peer *peer = &context->peers[context->bootstrap.locals[local].rank];
    return atomic_load_explicit(&peer->state, memory_order_acquire) == CONTEXT_PEER_HERE;
}

/* An end that this process has seen. Who left in good order has told the groups that it was in: nobody need be woken.
 */
static void see_end(struct context *context, uint32_t local, int wait_status) {
    bool has_left = atomic_load_explicit(&context->lines[local].has_left, memory_order_acquire);
    if (context->alarm.fd >= 0 && !has_left) {
        roster_note_end(context->roster, local, wait_status);
        roster_alarm_raise(&context->alarm);
    }
    take_end(context, local, wait_status);
}

/* MUSTER_EPEER: it has ended before. */
static int watch(struct context *context, uint32_t local) {
    const struct bootstrap_local *process = &context->bootstrap.locals[local];
    int code = monitor_watch_process(context->monitor, process->rank, process->pid, process->start_time);
    return code ? status_prefix(code, "rank %u", process->rank) : 0;
}

/* Whoever of the others dies, whom it was watched by may have died as well: but the next one before it that lives
 * watches it, or is about to. */
static void watch_next(struct context *context) {
    uint32_t count = context->bootstrap.local_count;
    while (context->alarm.fd >= 0 && context->next != context->bootstrap.local && !is_here(context, context->next)) {
        context->next = context->next + 1 < count ? context->next + 1 : 0;
        const struct bootstrap_local *process = &context->bootstrap.locals[context->next];
        if (context->next != context->bootstrap.local && is_here(context, context->next) &&
            watch(context, context->next) == MUSTER_EPEER) {
            see_end(context, context->next, monitor_exit_status(process->pid, process->start_time));
        }
    }
}

int context_watch_neighbours(struct context *context) {
    uint32_t watched[ROSTER_SMALL];
    uint32_t own = context->bootstrap.local, count = roster_watched(own, context->bootstrap.local_count, watched);
    context->next = own + 1 < context->bootstrap.local_count ? own + 1 : 0;
    int code = 0;
    for (uint32_t i = 0; code == 0 && i < count; i++) {
        code = watch(context, watched[i]);
        if (code == MUSTER_EPEER && context->alarm.fd >= 0) { /* its other neighbours wait for it, and need to know */
            roster_note_end(context->roster, watched[i], -1);
            roster_alarm_raise(&context->alarm);
        }
    }
    return code || context->alarm.fd < 0 ? code : monitor_watch_alarm(context->monitor, context->alarm.fd);
}

/* The monitor: a process that this one watches has ended. */
void context_neighbour_died(void *argument, uint32_t rank, int32_t pid, int wait_status) {
    struct context *context = argument;
    (void)pid;
    see_end(context, context_local_of(context, rank), wait_status);
    watch_next(context);
}

/* The monitor: somebody has seen one end. */
void context_hear_alarm(void *argument) {
    struct context *context = argument;
    for (uint32_t local = 0; local < context->bootstrap.local_count; local++) {
        int wait_status;
        if (roster_has_ended(context->roster, local, &wait_status) && is_here(context, local) &&
            local != context->bootstrap.local) {
            take_end(context, local, wait_status);
        }
    }
    watch_next(context);
}

/* The links: they have found out, or have been told. */
void context_take_notice(void *argument, const struct p2p_notice *notice) {
    struct context *context = argument;
    if (notice->kind == P2P_NOTICE_PEER_DEAD) {
        uint32_t local = context_local_of(context, notice->subject);
        if (local == UINT32_MAX || !atomic_load_explicit(&context->lines[local].has_left, memory_order_acquire)) {
            struct end end = {.pid = notice->blamed.pid, .sentence = notice->sentence};
            mark_peer(context, notice->subject, CONTEXT_PEER_DEAD, end);
        }
        return;
    }
    pthread_mutex_lock(&context->mutex);
    context->hooks->group_notice(context, notice);
    pthread_mutex_unlock(&context->mutex);
}
