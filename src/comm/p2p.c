/* Messages between processes: life, posting, moving, waiting; see p2p.h, and p2p_impl.h for the other files. */
#include "comm/p2p.h"

#include <assert.h>
#include <errno.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "comm/p2p_impl.h"

enum {
    ALL_EVERY = 32, /* looks after which sockets are looked at of which nothing is expected */
    EVENTS_MAX = 64,
    SLEEP_MS_MAX = 3600 * 1000,
    SOCKET_LOOK = 16, /* looks at memory that take as long as one at a socket */
    GOODBYE_LOOK_MS = 1
};

/* ---- the lock ---- */

void p2p_lock(struct p2p *p2p) {
    (void)pthread_mutex_lock(&p2p->lock);
}

static void free_closed(struct p2p *p2p) {
    while (p2p->closed) {
        struct p2p_stream *stream = p2p->closed;
        p2p->closed = stream->next_open;
        buf_done(&stream->control);
        free(stream->payload_copy);
        free(stream->staging);
        free(stream);
    }
}

void p2p_unlock(struct p2p *p2p) {
    bool completed = p2p->completed > 0;
    p2p->completed = 0;
    struct pending_notice *notices = p2p->notices;
    p2p->notices = NULL;
    p2p->notices_end = &p2p->notices;
    free_closed(p2p);
    (void)pthread_mutex_unlock(&p2p->lock);
    if (completed) {
        comm_bell_ring(p2p->config.bell); /* another thread may wait for what this one moved */
    }
    while (notices) {
        struct pending_notice *next = notices->next;
        p2p->config.notice(p2p->config.context, &notices->notice);
        free(notices);
        notices = next;
    }
}

/* ---- life ---- */

static int copy_config(struct p2p *p2p, const struct p2p_config *config) {
    p2p->config = *config;
    p2p->config.neighbours = NULL;
    if (config->neighbour_count > 0) {
        struct p2p_neighbour *neighbours = malloc(config->neighbour_count * sizeof *neighbours);
        if (!neighbours) {
            return MUSTER_ENOMEM;
        }
        memcpy(neighbours, config->neighbours, config->neighbour_count * sizeof *neighbours);
        p2p->config.neighbours = neighbours;
    }
    p2p->links = calloc(config->size, sizeof(struct p2p_link *));
    p2p->is_dead = calloc(config->size, 1);
    return p2p->links && p2p->is_dead ? 0 : MUSTER_ENOMEM;
}

static void destroy(struct p2p *p2p) {
    for (uint32_t peer = 0; p2p->links && peer < p2p->config.size; peer++) {
        link_free(p2p, p2p->links[peer]);
    }
    free_closed(p2p);
    attend_destroy(p2p);
    rings_destroy(p2p);
    for (uint32_t i = 0; i < p2p->group_count; i++) {
        free(p2p->groups[i].sentence);
    }
    free(p2p->groups);
    free(p2p->bounce);
    free(p2p->links);
    free(p2p->is_dead);
    free((void *)(uintptr_t)p2p->config.neighbours);
    (void)pthread_mutex_destroy(&p2p->lock);
    free(p2p);
}

int p2p_create(const struct p2p_config *config, struct p2p **out) {
    assert(config->rank < config->size && config->bell);
    struct p2p *p2p = calloc(1, sizeof *p2p);
    if (!p2p) {
        return status_fail(MUSTER_ENOMEM, "no memory for the links of a group");
    }
    (void)pthread_mutex_init(&p2p->lock, NULL);
    ticks_init(&p2p->clock);
    p2p->bell_event = p2p->listener = p2p->timer = p2p->attend_epoll = p2p->data_epoll = -1;
    p2p->notices_end = &p2p->notices;
    int code = copy_config(p2p, config);
    if (code != 0) {
        code = status_fail(code, "no memory for the links of a group of %u ranks", (unsigned)config->size);
    }
    code = code != 0 ? code : rings_create(p2p);
    code = code != 0 ? code : attend_create(p2p);
    if (code != 0) {
        destroy(p2p);
        return code;
    }
    *out = p2p;
    return 0;
}

/* Did the peer close first, so that our last bytes were answered by a reset? They stay counted as unacknowledged. */
static bool has_ended(int fd) {
    struct tcp_info info;
    socklen_t len = sizeof info;
    return getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) == 0 && info.tcpi_state == TCP_CLOSE;
}

/* Has the peer's kernel everything that was written, or no use for it? */
static bool is_delivered(const struct p2p_stream *stream) {
    int waiting = 0;
    if (stream->said_goodbye || stream->is_broken) {
        return true;
    }
    if (stream->control.len > 0 || stream->header_bytes > 0) {
        return false;
    }
    if (stream->io->kind->flush && stream->io->kind->flush(stream->io) == LINK_AGAIN) {
        return false;
    }
    return stream->io->fd < 0 || ioctl(stream->io->fd, SIOCOUTQ, &waiting) != 0 || waiting == 0 ||
           has_ended(stream->io->fd);
}

/* Flushes all streams. Returns how many have not delivered everything. */
static size_t deliver_all(struct p2p *p2p) {
    size_t waiting = 0;
    for (uint32_t peer = 0; peer < p2p->config.size; peer++) {
        struct p2p_link *link = p2p->links[peer];
        for (size_t i = 0; link && i < P2P_STREAMS_MAX + 2; i++) {
            struct p2p_stream *stream = i < P2P_STREAMS_MAX ? link->streams[i] : link->watches[i - P2P_STREAMS_MAX];
            if (stream && !is_delivered(stream)) {
                (void)stream_flush(p2p, stream);
                while (stream->io && stream_read(p2p, stream)) { /* the peer's own goodbye, or its end */
                }
                waiting++;
            }
        }
    }
    return waiting;
}

void p2p_free(struct p2p *p2p) {
    if (!p2p) {
        return;
    }
    p2p_lock(p2p);
    p2p->config.notice = NULL;
    p2p->is_leaving = true; /* connections that are opened from now on end with a goodbye at once */
    for (uint32_t peer = 0; peer < p2p->config.size; peer++) {
        struct p2p_link *link = p2p->links[peer];
        for (size_t i = 0; link && i < P2P_STREAMS_MAX + 2; i++) {
            struct p2p_stream *stream = i < P2P_STREAMS_MAX ? link->streams[i] : link->watches[i - P2P_STREAMS_MAX];
            if (stream) {
                stream_say_goodbye(p2p, stream);
            }
        }
    }
    int64_t deadline = clock_monotonic_ns() + P2P_GOODBYE_MS * CLOCK_NS_PER_MS;
    for (;;) {
        attend_turn(p2p); /* who is calling us, or was called, hears a goodbye, too */
        if ((deliver_all(p2p) == 0 && !dial_is_under_way(p2p)) || clock_monotonic_ns() >= deadline) {
            break;
        }
        (void)poll(NULL, 0, GOODBYE_LOOK_MS); /* nothing tells of an acknowledgement: look again soon */
    }
    p2p_unlock(p2p);
    destroy(p2p);
}

bool p2p_flush_blocked(struct p2p *p2p) {
    struct p2p_stream *stream = p2p->blocked;
    bool moved = false;
    p2p->blocked = NULL;
    while (stream) {
        struct p2p_stream *next = stream->next_blocked;
        stream->is_blocked = false;
        if (stream->io) {
            moved = stream_flush(p2p, stream) || moved;
        }
        stream = next;
    }
    return moved;
}

/* ---- posting ---- */

static void request_init(struct p2p *p2p, struct p2p_request *request, const struct p2p_envelope *envelope,
                         bool is_send, size_t bytes) {
    memset(request, 0, sizeof *request);
    request->envelope = *envelope;
    request->is_send = is_send;
    request->bytes = bytes;
    request->id = p2p->next_id++;
}

/* May the group be used at all? */
static int check_group(struct p2p *p2p, const struct p2p_envelope *envelope) {
    const struct p2p_group *group = p2p_group_find(p2p, envelope->group);
    if (group && p2p_group_refuses(group, envelope->lane, envelope->tag)) {
        return status_fail(group->code, "%s", group->sentence ? group->sentence : muster_strerror(group->code));
    }
    return 0;
}

static int check_left(const struct p2p_link *link) {
    return link->state != LINK_LEFT
               ? 0
               : status_fail(MUSTER_EPEER, "rank %u has left: it has freed its group", (unsigned)link->peer);
}

int p2p_send(struct p2p *p2p, struct p2p_request *request, const struct p2p_envelope *envelope, const void *buffer,
             size_t bytes, int64_t deadline_ns) {
    assert(envelope->peer < p2p->config.size && envelope->peer != p2p->config.rank);
    struct p2p_link *link = NULL;
    p2p_lock(p2p);
    int code = check_group(p2p, envelope);
    code = code != 0 ? code : link_open(p2p, envelope->peer, deadline_ns, &link);
    code = code != 0 ? code : check_left(link);
    if (code == 0) {
        request_init(p2p, request, envelope, true, bytes);
        request->buffer = (void *)(uintptr_t)buffer;
    }
    if (code == 0 && short_put(link, envelope, buffer, bytes)) {
        request_finish(p2p, request, 0, NULL);
        comm_bell_ring(link->short_bell);
    } else if (code == 0) {
        request->state = REQUEST_QUEUED;
        link_put(p2p, link, &link->queue[envelope->lane], request);
        if (link->state == LINK_OPEN) {
            (void)link_flush(p2p, link);
        }
    }
    p2p_unlock(p2p);
    return code;
}

/* With the lock. link: NULL for anybody. code: why it cannot be waited for; what a peer that is gone has sent counts
 * all the same. */
static int post_receive(struct p2p *p2p, struct p2p_request *request, struct p2p_link *link, int code) {
    struct p2p_arrival *arrival = match_receive(p2p, link, request);
    if (arrival) {
        request->envelope.peer = arrival->link->peer;
        arrival_deliver(p2p, arrival->link, request, arrival);
        return 0;
    }
    request->state = REQUEST_POSTED;
    if (!link) {
        list_append(&p2p->any, request);
        return 0;
    }
    code = code != 0 ? code : check_left(link);
    if (code == 0) {
        link_put(p2p, link, &link->posted, request);
    }
    return code;
}

static int receive(struct p2p *p2p, struct p2p_request *request, const struct p2p_envelope *envelope, void *buffer,
                   p2p_consume *consume, void *context, size_t bytes, int64_t deadline_ns) {
    struct p2p_link *link = NULL;
    p2p_lock(p2p);
    int code = check_group(p2p, envelope);
    if (code == 0 && envelope->peer != P2P_ANY_PEER) {
        code = link_open(p2p, envelope->peer, deadline_ns, &link);
    }
    if (code == 0 || (link && link->state == LINK_FAILED)) {
        request_init(p2p, request, envelope, false, bytes);
        request->buffer = buffer;
        request->consume = consume;
        request->consume_context = context;
        code = post_receive(p2p, request, link, code);
        if (p2p->blocked) {
            (void)p2p_flush_blocked(p2p); /* credit, or that the rest may come: perhaps nobody waits */
        }
    }
    p2p_unlock(p2p);
    return code;
}

int p2p_receive(struct p2p *p2p, struct p2p_request *request, const struct p2p_envelope *envelope, void *buffer,
                size_t bytes, int64_t deadline_ns) {
    return receive(p2p, request, envelope, buffer, NULL, NULL, bytes, deadline_ns);
}

int p2p_receive_consume(struct p2p *p2p, struct p2p_request *request, const struct p2p_envelope *envelope,
                        p2p_consume *consume, void *context, size_t bytes, int64_t deadline_ns) {
    return receive(p2p, request, envelope, NULL, consume, context, bytes, deadline_ns);
}

/* ---- taking back ---- */

static void withdraw_send(struct p2p *p2p, struct p2p_link *link, struct p2p_request *request) {
    struct p2p_list *list = request->state == REQUEST_QUEUED    ? &link->queue[request->envelope.lane]
                            : request->state == REQUEST_CLEARED ? &link->cleared
                                                                : &link->offered;
    link_take(p2p, link, list, request);
    for (size_t i = 0; i < P2P_STREAMS_MAX; i++) {
        if (link->streams[i]) {
            stream_disown(link->streams[i], request);
        }
    }
    if (link->is_ring && request->state == REQUEST_OFFERED && link->streams[0]) {
        link_ring_withdraw(link->streams[0]->io);
    }
}

static void withdraw_receive(struct p2p *p2p, struct p2p_link *link, struct p2p_request *request) {
    struct p2p_list *list = request->state == REQUEST_POSTED    ? &link->posted
                            : request->state == REQUEST_READING ? &link->reading
                                                                : &link->filling;
    link_take(p2p, link, list, request);
    for (size_t i = 0; i < P2P_STREAMS_MAX; i++) {
        struct p2p_stream *stream = link->streams[i];
        if (stream && stream->in_request == request) {
            stream->in_request = NULL;
            stream->target = PAYLOAD_DISCARD;
        }
    }
}

void request_withdraw(struct p2p *p2p, struct p2p_request *request) {
    if (request->state == REQUEST_POSTED && request->envelope.peer == P2P_ANY_PEER) {
        list_remove(&p2p->any, request);
        return;
    }
    struct p2p_link *link = p2p->links[request->envelope.peer];
    if (request->is_send) {
        withdraw_send(p2p, link, request);
    } else {
        withdraw_receive(p2p, link, request);
    }
}

void p2p_withdraw(struct p2p *p2p, struct p2p_request *const *requests, size_t request_count) {
    p2p_lock(p2p);
    for (size_t i = 0; i < request_count; i++) {
        if (!atomic_load_explicit(&requests[i]->done, memory_order_relaxed)) {
            request_withdraw(p2p, requests[i]);
            request_finish(p2p, requests[i], MUSTER_ECANCELED, NULL);
        }
    }
    p2p_unlock(p2p);
}

int p2p_request_done(struct p2p_request *request) {
    int status = request->status;
    if (status != 0) {
        (void)status_fail(status, "%s", request->detail ? request->detail : muster_strerror(status));
    }
    free(request->detail);
    request->detail = NULL;
    return status;
}

/* ---- moving ---- */

static bool read_link(struct p2p *p2p, struct p2p_link *link) {
    bool moved = false;
    for (uint8_t i = 0; i < link->stream_count; i++) {
        if (link->streams[i] && link->streams[i]->io->fd >= 0) {
            moved = stream_read(p2p, link->streams[i]) || moved;
        }
    }
    return moved;
}

/* Of many sockets, those that have something. */
static bool read_ready(struct p2p *p2p) {
    struct epoll_event events[EVENTS_MAX];
    int count = epoll_wait(p2p->data_epoll, events, EVENTS_MAX, 0);
    bool moved = false;
    for (int i = 0; i < count; i++) {
        struct p2p_stream *stream = events[i].data.ptr;
        if (stream && stream->io) { /* NULL: the bell; closed streams are kept until the lock is released */
            moved = stream_read(p2p, stream) || moved;
        }
    }
    return moved;
}

static bool read_sockets(struct p2p *p2p) {
    bool all = p2p->any.first || p2p->active_count > P2P_DIRECT_LINKS || ++p2p->looks % ALL_EVERY == 0;
    if (all) {
        return read_ready(p2p);
    }
    bool moved = false;
    struct p2p_link *next;
    for (struct p2p_link *link = p2p->active; link; link = next) {
        next = link->next_active;
        moved = read_link(p2p, link) || moved;
    }
    return moved;
}

bool p2p_progress(struct p2p *p2p) {
    if (atomic_load_explicit(&p2p->visitors, memory_order_relaxed) > 0) {
        return false; /* the monitor waits for the lock */
    }
    p2p_lock(p2p);
    bool moved = p2p->blocked && p2p_flush_blocked(p2p);
    if (p2p->rings) {
        moved = rings_progress(p2p) || moved;
    }
    if (p2p->open_count > 0) {
        moved = read_sockets(p2p) || moved;
    }
    if (p2p->blocked) {
        moved = p2p_flush_blocked(p2p) || moved;
    }
    p2p_unlock(p2p);
    return moved;
}

/* ---- waiting ---- */

struct wait {
    struct p2p *p2p;
    struct comm_waiter *outer, inner;
    bool (*ready)(void *argument);
    void *argument;
};

static bool is_ready(void *argument) {
    struct wait *wait = argument;
    if (atomic_load_explicit(&wait->outer->alarm, memory_order_relaxed)) {
        atomic_store_explicit(&wait->inner.alarm, 1, memory_order_relaxed);
    }
    /* Asked also when nothing moved here: another thread may have moved it. */
    if (p2p_progress(wait->p2p)) {
        wait->inner.has_moved = true;
    }
    return wait->ready(wait->argument);
}

static int has_stopped(void *argument) {
    struct wait *wait = argument;
    return wait->outer->stopped ? wait->outer->stopped(wait->outer->context) : 0;
}

/* Sleeps on the sockets themselves: where no neighbour rings the bell, nobody else need be woken to wake this thread.
 * The bell's own descriptor is among them. It stays readable until the last sleeper has seen it. */
static void sleep_on_sockets(void *argument, uint32_t seen, int64_t deadline_ns) {
    struct p2p *p2p = ((struct wait *)argument)->p2p;
    struct comm_bell *bell = p2p->config.bell;
    int64_t left_ms = (deadline_ns - clock_monotonic_ns()) / CLOCK_NS_PER_MS + 1;
    struct epoll_event event;
    if (atomic_load_explicit(&bell->rings, memory_order_acquire) != seen || left_ms <= 0) {
        return;
    }
    (void)epoll_wait(p2p->data_epoll, &event, 1, left_ms < SLEEP_MS_MAX ? (int)left_ms : SLEEP_MS_MAX);
    uint64_t rings;
    if (atomic_load_explicit(&bell->sleepers, memory_order_relaxed) == 1) {
        (void)!read(p2p->bell_event, &rings, sizeof rings);
    }
    p2p_lock(p2p);
    p2p->looks = ALL_EVERY - 1; /* whoever has news is looked at next, even if nothing is expected of it */
    p2p_unlock(p2p);
}

/* Before sleeping (somebody of this process does, or is about to: the bell says so). What the outer waiter looks at,
 * such as a neighbour's failure, may have happened when nobody slept yet whom a bell could wake. */
static bool is_idle(void *argument) {
    struct wait *wait = argument;
    struct p2p *p2p = wait->p2p;
    if (atomic_load_explicit(&p2p->config.bell->sleepers, memory_order_relaxed) == 0) {
        return false;
    }
    p2p_lock(p2p);
    attend_arm(p2p);
    p2p_unlock(p2p);
    bool moved = p2p_progress(p2p);
    return (wait->outer->idle && wait->outer->idle(wait->outer->context)) || moved;
}

int p2p_wait_until(struct p2p *p2p, struct comm_waiter *waiter, bool (*ready)(void *argument), void *argument,
                   int64_t deadline_ns) {
    struct wait wait = {.p2p = p2p, .outer = waiter, .ready = ready, .argument = argument};
    if (ready(argument)) {
        return 0;
    }
    wait.inner.bell = waiter->bell;
    wait.inner.spin_count =
        p2p->bell_event < 0 ? waiter->spin_count : (waiter->spin_count + SOCKET_LOOK - 1) / SOCKET_LOOK;
    wait.inner.yield_count = waiter->yield_count;
    wait.inner.stopped = has_stopped;
    wait.inner.idle = is_idle;
    wait.inner.sleep_on = p2p->bell_event >= 0 ? sleep_on_sockets : NULL;
    wait.inner.context = &wait;
    return comm_wait(&wait.inner, is_ready, &wait, deadline_ns);
}

struct wait_all {
    struct p2p_request *const *requests;
    size_t request_count, first_open;
};

/* All done, or one that failed: then there is no use in waiting for the others. */
static bool are_done(void *argument) {
    struct wait_all *all = argument;
    for (; all->first_open < all->request_count; all->first_open++) {
        struct p2p_request *request = all->requests[all->first_open];
        if (!atomic_load_explicit(&request->done, memory_order_acquire)) {
            return false;
        }
        if (request->status != 0) {
            return true;
        }
    }
    return true;
}

int p2p_wait(struct p2p *p2p, struct comm_waiter *waiter, struct p2p_request *const *requests, size_t request_count,
             int64_t deadline_ns) {
    struct wait_all all = {.requests = requests, .request_count = request_count};
    int code = p2p_wait_until(p2p, waiter, are_done, &all, deadline_ns);
    if (code == 0 && all.first_open == request_count) {
        return 0;
    }
    p2p_withdraw(p2p, requests, request_count);
    return p2p_collect(requests, request_count, code);
}

int p2p_collect(struct p2p_request *const *requests, size_t request_count, int code) {
    for (size_t i = 0; i < request_count; i++) {
        if (code == 0 && requests[i]->status != 0 && requests[i]->status != MUSTER_ECANCELED) {
            code = p2p_request_done(requests[i]);
        }
        free(requests[i]->detail);
        requests[i]->detail = NULL;
    }
    return code;
}
