/* Sends and receives that nobody waits for any more, though nothing has failed; see p2p_impl.h.
 *
 * A receive is taken back. A send is adopted: p2p goes on with a copy of its own, and frees that when the message has
 * been sent. So the caller's memory may go at once, a message whose first bytes are on their way becomes whole, and
 * one whose receiver comes later is not lost.
 *
 * Before this process leaves, adopted sends that a receiver has asked for are sent to their end; whoever has not asked
 * gets a moment to do so. What is left is taken back: its receiver hears that this process has left. */
#include <assert.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "comm/p2p/p2p_impl.h"

enum { LOOK_MS = 1, LATE_LOOK_MS = 20, TELL_MS = 5000 };

/* ---- adopting ---- */

struct adopted {
    struct p2p_request request; /* first: request_finish() frees it by that */
    uint8_t bytes[];
};

/* What a stream has begun of it goes on out of the copy. */
static void move_streams(struct p2p_link *link, const struct p2p_request *from, struct p2p_request *to) {
    for (size_t i = 0; i < P2P_STREAMS_MAX; i++) {
        struct p2p_stream *stream = link->streams[i];
        if (stream && stream->out_request == from) {
            stream->out_request = to;
            stream->payload = (const uint8_t *)to->buffer + (stream->payload - (const uint8_t *)from->buffer);
        }
    }
}

static int no_room(const struct p2p *p2p, const struct p2p_request *request) {
    if (request->held_count > 0) {
        return status_fail(MUSTER_ELIMIT, "the kernel still sends out of its buffer (MUSTER_TCP_ZERO_COPY)");
    }
    if (request->bytes > P2P_ADOPTED_BYTES_MAX - p2p->adopted_bytes) {
        return status_fail(MUSTER_ELIMIT, "it has %zu bytes, and %zu bytes of such sends are kept already, of %zu",
                           request->bytes, p2p->adopted_bytes, P2P_ADOPTED_BYTES_MAX);
    }
    return 0;
}

static int adopt(struct p2p *p2p, struct p2p_link *link, struct p2p_request *request) {
    int code = no_room(p2p, request);
    struct adopted *adopted = code ? NULL : malloc(sizeof *adopted + request->bytes);
    if (!adopted) {
        return code ? code : status_fail(MUSTER_ENOMEM, "no memory for a copy of its %zu bytes", request->bytes);
    }
    if (request->bytes > 0) { /* the buffer of an empty message may be NULL */
        memcpy(adopted->bytes, request->buffer, request->bytes);
    }
    adopted->request = *request;
    adopted->request.buffer = adopted->bytes;
    adopted->request.is_adopted = true;
    list_replace(request_list(link, request), request, &adopted->request);
    move_streams(link, request, &adopted->request);
    if (link->is_ring && request->state == REQUEST_OFFERED && link->streams[0]) {
        link_ring_withdraw(link->streams[0]->io); /* from its old place; whoever reads there asks for the rest */
    }
    p2p->adopted_count++;
    p2p->adopted_bytes += request->bytes;
    return 0;
}

/* ---- letting go ---- */

static void take_back(struct p2p *p2p, struct p2p_request *request) {
    bool is_reading = request->state == REQUEST_READING;
    struct p2p_link *link = is_reading ? p2p->links[request->envelope.peer] : NULL;
    request_withdraw(p2p, request);
    if (link && link->streams[0]) { /* its sender would wait for that word */
        link_send_finished(p2p, link, request->envelope.lane, request->peer_id);
    }
    request_finish(p2p, request, MUSTER_ECANCELED, NULL);
}

/* With the lock; the request is not done. */
static int let_go(struct p2p *p2p, struct p2p_request *request) {
    if (!request->is_send) {
        take_back(p2p, request);
        return 0;
    }
    int code = adopt(p2p, p2p->links[request->envelope.peer], request);
    if (code) {
        request_withdraw(p2p, request);
    }
    request_finish(p2p, request, MUSTER_ECANCELED, NULL);
    return code;
}

int p2p_let_go(struct p2p *p2p, struct p2p_request *request) {
    p2p_lock(p2p);
    if (request->is_send && request->state != REQUEST_DONE) {
        (void)p2p_move(p2p); /* perhaps it is done now */
    }
    int code = request->state == REQUEST_DONE ? 0 : let_go(p2p, request);
    p2p_unlock(p2p);
    p2p_forget(request);
    return code;
}

/* ---- a group is freed ---- */

static void let_go_list(struct p2p *p2p, struct p2p_list *list, uint32_t id) {
    struct p2p_request *next;
    for (struct p2p_request *request = list->first; request; request = next) {
        next = request->next;
        if (request->envelope.group == id && request->envelope.lane == P2P_MESSAGES && !request->is_adopted) {
            (void)let_go(p2p, request);
        }
    }
}

static void let_go_link(struct p2p *p2p, struct p2p_link *link, uint32_t id) {
    struct p2p_list *lists[] = {
        &link->queue[P2P_MESSAGES], &link->offered, &link->cleared, &link->posted, &link->filling, &link->reading};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        let_go_list(p2p, lists[i], id);
    }
}

/* Would the word that this process has left the group overtake the beginning of a message? */
static bool has_unbegun(const struct p2p_link *link, uint32_t id) {
    const struct p2p_request *request = link->queue[P2P_MESSAGES].first;
    while (request && request->envelope.group != id) {
        request = request->next;
    }
    const struct p2p_request *out = link->streams[0] ? link->streams[0]->out_request : NULL;
    return request || (out && out->envelope.group == id && out->state != REQUEST_CLEARED);
}

static bool any_has_unbegun(const struct p2p *p2p, uint32_t id) {
    const struct p2p_link *link = p2p->adopted_count > 0 ? p2p->active : NULL;
    while (link && !has_unbegun(link, id)) {
        link = link->next_active;
    }
    return link != NULL;
}

/* group: NULL: of any. */
static void drop(struct p2p *p2p, struct p2p_list *list, const uint32_t *group) {
    struct p2p_request *next;
    for (struct p2p_request *request = list->first; request; request = next) {
        next = request->next;
        if (request->is_adopted && (!group || request->envelope.group == *group)) {
            request_withdraw(p2p, request);
            request_finish(p2p, request, MUSTER_ECANCELED, NULL);
        }
    }
}

void p2p_let_go_group(struct p2p *p2p, uint32_t id) {
    int64_t until_ns = clock_monotonic_ns() + P2P_GOODBYE_MS * CLOCK_NS_PER_MS;
    struct p2p_link *next;
    p2p_lock(p2p);
    for (struct p2p_link *link = p2p->active; link; link = next) {
        next = link->next_active;
        let_go_link(p2p, link, id);
    }
    let_go_list(p2p, &p2p->any, id);
    while (any_has_unbegun(p2p, id) && clock_monotonic_ns() < until_ns) {
        bool moved = p2p_move(p2p);
        p2p_unlock(p2p); /* the monitor finishes connections */
        (void)poll(NULL, 0, moved ? 0 : LOOK_MS);
        p2p_lock(p2p);
    }
    for (struct p2p_link *link = p2p->adopted_count > 0 ? p2p->active : NULL; link; link = next) {
        next = link->next_active;
        drop(p2p, &link->queue[P2P_MESSAGES], &id);
    }
    p2p_unlock(p2p);
}

/* ---- this process leaves ---- */

/* How far adopted sends have come: another number than before, if any has moved. */
static uint64_t progress_of(struct p2p *p2p) {
    uint64_t sum = 0;
    for (struct p2p_link *link = p2p->active; link; link = link->next_active) {
        const struct p2p_list *lists[] = {&link->queue[P2P_MESSAGES], &link->offered, &link->cleared};
        for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
            for (const struct p2p_request *request = lists[i]->first; request; request = request->next) {
                sum += request->is_adopted ? request->moved + request->state : 0;
            }
        }
    }
    return sum;
}

/* Has the receiver asked for a send, of which some is still to go? The last piece of it is no longer in `cleared`. */
static bool has_asked(const struct p2p_link *link) {
    size_t unasked = link->is_ring ? P2P_EAGER_BYTES : P2P_EAGER_FAR_BYTES;
    const struct p2p_request *request = link->offered.first;
    while (request && !(request->state == REQUEST_FLOWING && request->bytes > unasked)) {
        request = request->next;
    }
    return link->cleared.first || request;
}

/* A peer on another host that has asked for an adopted send, and is alive as far as its kernel tells; or
 * MUSTER_NO_RANK. */
static uint32_t find_late(const struct p2p *p2p, int64_t now_ns) {
    for (const struct p2p_link *link = p2p->active; link; link = link->next_active) {
        struct p2p_stream *main = link->streams[0];
        if (has_asked(link) && main && main->io && main->io->fd >= 0 && !p2p->is_dead[link->peer] &&
            !silence_lasts(main, now_ns, P2P_SILENT_MS * CLOCK_NS_PER_MS)) {
            return link->peer;
        }
    }
    return MUSTER_NO_RANK;
}

static bool neighbour_has_asked(const struct p2p *p2p) {
    const struct p2p_link *link = p2p->active;
    while (link && !(link->is_ring && has_asked(link) && !p2p->is_dead[link->peer])) {
        link = link->next_active;
    }
    return link != NULL;
}

static void drop_all(struct p2p *p2p) {
    struct p2p_link *next;
    for (struct p2p_link *link = p2p->active; link; link = next) {
        struct p2p_list *lists[] = {&link->queue[P2P_MESSAGES], &link->offered, &link->cleared};
        next = link->next_active;
        for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
            drop(p2p, lists[i], NULL);
        }
    }
    assert(p2p->adopted_count == 0);
}

/* A ring that is full has room again at once while its reader reads: asleep, a large message would take seconds.
 * Returns the milliseconds that were asked for. */
static int pause_between_looks(bool moved, int64_t since_moved_ns, int64_t since_begin_ns) {
    if (moved || since_moved_ns < LOOK_MS * CLOCK_NS_PER_MS) {
        (void)sched_yield();
        return 0;
    }
    int ms = since_begin_ns < P2P_GOODBYE_MS * CLOCK_NS_PER_MS ? LOOK_MS : LATE_LOOK_MS;
    (void)poll(NULL, 0, ms);
    return ms;
}

/* For a neighbour, or for anybody to ask. Where the processors are so busy that pauses last longer than asked for, the
 * others have longer, too. */
static bool has_waited(const struct p2p *p2p, int64_t idle_ms, int64_t since_moved_ns) {
    int64_t most_ms = neighbour_has_asked(p2p) ? P2P_NEIGHBOUR_MS : P2P_GOODBYE_MS;
    return idle_ms >= most_ms || since_moved_ns >= P2P_NEIGHBOUR_MS * CLOCK_NS_PER_MS;
}

static void deliver(struct p2p *p2p) {
    int64_t begin_ns = clock_monotonic_ns(), moved_ns = begin_ns, idle_ms = 0;
    bool is_told = false;
    for (uint64_t before = progress_of(p2p); p2p->adopted_count > 0;) {
        attend_turn(p2p);
        bool moved = p2p_move(p2p);
        uint64_t progress = progress_of(p2p);
        int64_t now_ns = clock_monotonic_ns();
        moved_ns = progress != before ? now_ns : moved_ns;
        idle_ms = progress != before ? 0 : idle_ms;
        before = progress;
        uint32_t late = p2p->has_failures ? MUSTER_NO_RANK : find_late(p2p, now_ns);
        if (late != MUSTER_NO_RANK ? now_ns - begin_ns >= P2P_DELIVER_MS * CLOCK_NS_PER_MS
                                   : has_waited(p2p, idle_ms, now_ns - moved_ns)) {
            break;
        }
        if (!is_told && late != MUSTER_NO_RANK && now_ns - begin_ns >= TELL_MS * CLOCK_NS_PER_MS) {
            p2p_tell_late(p2p, late);
            is_told = true;
        }
        p2p_unlock(p2p); /* for the monitor */
        idle_ms += pause_between_looks(moved, now_ns - moved_ns, now_ns - begin_ns);
        p2p_lock(p2p);
    }
    if (p2p->adopted_count > 0) {
        drop_all(p2p);
    }
}

void p2p_deliver(struct p2p *p2p) {
    if (p2p) {
        p2p_lock(p2p);
        p2p->is_ending = true;
        deliver(p2p);
        p2p_unlock(p2p);
    }
}
