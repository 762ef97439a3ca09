/* Messages between processes: making, the lock, and freeing in good order; see p2p.h, and p2p_impl.h for the other
 * files. */
#include <assert.h>
#include <linux/sockios.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "comm/p2p/p2p_impl.h"

enum { GOODBYE_LOOK_MS = 1, LATE_LOOK_MS = 20, TELL_MS = 5000 };

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
        free(stream->held);
        free(stream->staging);
        free(stream);
    }
}

void p2p_unlock(struct p2p *p2p) {
    notices_write(p2p);
    if (p2p->has_written && p2p->silence_ns == 0) {
        silence_watch(p2p);
        notices_write(p2p); /* without a timer it has ended links */
    }
    p2p->has_written = false;
    bool has_news = p2p->completed > 0 || p2p->leaves_more;
    p2p->completed = 0;
    p2p->leaves_more = false;
    struct pending_notice *notices = p2p->notices;
    p2p->notices = NULL;
    p2p->notices_end = &p2p->notices;
    bool hands_out = notices != NULL;
    p2p->handing_out += hands_out ? 1 : 0;
    free_closed(p2p);
    (void)pthread_mutex_unlock(&p2p->lock);
    if (has_news) {
        comm_bell_ring(p2p->config.bell); /* another thread may wait for what this one moved, or is to go on with it */
    }
    while (notices) {
        struct pending_notice *next = notices->next;
        p2p->config.notice(p2p->config.context, &notices->notice);
        free(notices);
        notices = next;
    }
    if (hands_out) {
        (void)pthread_mutex_lock(&p2p->lock);
        p2p->handing_out--;
        (void)pthread_mutex_unlock(&p2p->lock);
    }
}

void p2p_await_notices(struct p2p *p2p) {
    enum { PAUSE_MS = 1 };
    for (bool is_busy = true; is_busy;) {
        p2p_lock(p2p);
        is_busy = p2p->handing_out > 0;
        p2p_unlock(p2p);
        if (is_busy) {
            (void)poll(NULL, 0, PAUSE_MS);
        }
    }
}

/* ---- making ---- */

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
        free(p2p->groups[i].untold);
        free(p2p->groups[i].kept_name);
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

/* ---- freeing ---- */

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

/* Flushes all streams. Returns how many have not delivered everything. *out_late: the peer of one of them that is not
 * given up; or MUSTER_NO_RANK. */
static size_t deliver_all(struct p2p *p2p, int64_t now_ns, uint32_t *out_late) {
    size_t waiting = 0;
    *out_late = MUSTER_NO_RANK;
    for (uint32_t peer = 0; peer < p2p->config.size; peer++) {
        struct p2p_link *link = p2p->links[peer];
        for (size_t i = 0; link && i < P2P_CONNECTIONS_MAX; i++) {
            struct p2p_stream *stream = link_connection(link, i);
            if (stream && !is_delivered(stream)) {
                (void)stream_flush(p2p, stream);
                while (stream->io && stream_read(p2p, stream)) { /* the peer's own goodbye, or its end */
                }
                waiting++;
                bool is_alive =
                    stream->io && stream->io->fd >= 0 && !p2p->is_dead[peer] && !silence_is_lost(p2p, stream, now_ns);
                *out_late = is_alive ? peer : *out_late;
            }
        }
    }
    return waiting;
}

void p2p_tell_late(const struct p2p *p2p, uint32_t peer) {
    log_warning("rank %u has ended its calls, and waits until rank %u has taken what was sent to it",
                (unsigned)p2p->config.rank, (unsigned)peer);
}

/* What a peer has not taken yet would be lost: its next word would be answered by a reset. So a rank that leaves in
 * good order waits for one that is late, as long as that one is not given up. */
static void deliver(struct p2p *p2p) {
    int64_t begin_ns = clock_monotonic_ns();
    bool is_told = false;
    for (;;) {
        uint32_t late;
        attend_turn(p2p); /* who is calling us, or was called, hears a goodbye, too */
        int64_t now_ns = clock_monotonic_ns(), waited_ms = (now_ns - begin_ns) / CLOCK_NS_PER_MS;
        bool is_delivered = deliver_all(p2p, now_ns, &late) == 0;
        bool is_introduced = !greet_is_under_way(p2p) || waited_ms >= P2P_INTRODUCE_MS;
        int64_t most_ms = late != MUSTER_NO_RANK && !p2p->has_failures ? P2P_DELIVER_MS : P2P_GOODBYE_MS;
        if ((is_delivered && is_introduced) || waited_ms >= most_ms) {
            return;
        }
        if (!is_told && waited_ms >= TELL_MS) {
            p2p_tell_late(p2p, late);
            is_told = true;
        }
        /* Nothing tells of an acknowledgement: look again soon. */
        (void)poll(NULL, 0, waited_ms < P2P_GOODBYE_MS ? GOODBYE_LOOK_MS : LATE_LOOK_MS);
    }
}

void p2p_free(struct p2p *p2p) {
    if (!p2p) {
        return;
    }
    p2p_lock(p2p);
    assert(p2p->adopted_count == 0);
    p2p->config.notice = NULL;
    p2p->is_ending = p2p->is_leaving = true; /* connections that are opened from now on end with a goodbye at once */
    for (uint32_t peer = 0; peer < p2p->config.size; peer++) {
        struct p2p_link *link = p2p->links[peer];
        for (size_t i = 0; link && i < P2P_CONNECTIONS_MAX; i++) {
            struct p2p_stream *stream = link_connection(link, i);
            if (stream) {
                stream_say_goodbye(p2p, stream);
            }
        }
    }
    dial_leave(p2p);
    deliver(p2p);
    p2p_unlock(p2p);
    destroy(p2p);
}
