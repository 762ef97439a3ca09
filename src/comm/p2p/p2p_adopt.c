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

/* ---- patience ---- */

/* Of a wait for adopted sends. What counts is what the pauses asked for: where the processors are so busy that they
 * last longer, the others have longer, too. */
struct patience {
    int64_t begin_ns, now_ns, moved_ns, idle_ms;
    uint64_t progress;
};

/* How far adopted sends have come: another number than before, if any has moved. */
static uint64_t progress_of(struct p2p *p2p) {
    uint64_t sum = 0;
    for (struct p2p_link *link = p2p->adopted_count > 0 ? p2p->active : NULL; link; link = link->next_active) {
        const struct p2p_list *lists[] = {&link->queue[P2P_MESSAGES], &link->offered, &link->cleared};
        for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
            for (const struct p2p_request *request = lists[i]->first; request; request = request->next) {
                sum += request->is_adopted ? request->moved + request->state : 0;
            }
        }
    }
    return sum;
}

static struct patience patience_begin(struct p2p *p2p) {
    int64_t now_ns = clock_monotonic_ns();
    return (struct patience){.begin_ns = now_ns, .now_ns = now_ns, .moved_ns = now_ns, .progress = progress_of(p2p)};
}

static void patience_look(struct patience *patience, struct p2p *p2p) {
    uint64_t progress = progress_of(p2p);
    patience->now_ns = clock_monotonic_ns();
    if (progress != patience->progress) {
        patience->progress = progress;
        patience->moved_ns = patience->now_ns;
        patience->idle_ms = 0;
    }
}

static bool patience_is_over(const struct patience *patience, int64_t most_ms) {
    return patience->idle_ms >= most_ms || patience->now_ns - patience->moved_ns >= P2P_NEIGHBOUR_MS * CLOCK_NS_PER_MS;
}

/* Lets the monitor in meanwhile. A ring that is full has room again at once while its reader reads: asleep, a large
 * message would take seconds. */
static void patience_pause(struct patience *patience, struct p2p *p2p, bool moved) {
    p2p_unlock(p2p);
    if (moved || patience->now_ns - patience->moved_ns < LOOK_MS * CLOCK_NS_PER_MS) {
        (void)sched_yield();
    } else {
        bool is_late = patience->now_ns - patience->begin_ns >= P2P_GOODBYE_MS * CLOCK_NS_PER_MS;
        int ms = is_late ? LATE_LOOK_MS : LOOK_MS;
        (void)poll(NULL, 0, ms);
        patience->idle_ms += ms;
    }
    p2p_lock(p2p);
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
    struct p2p_link *next;
    p2p_lock(p2p);
    for (struct p2p_link *link = p2p->active; link; link = next) {
        next = link->next_active;
        let_go_link(p2p, link, id);
    }
    let_go_list(p2p, &p2p->any, id);
    struct patience patience = patience_begin(p2p); /* to copy them takes its time, too */
    while (any_has_unbegun(p2p, id) && !patience_is_over(&patience, P2P_GOODBYE_MS)) {
        bool moved = p2p_move(p2p);
        patience_look(&patience, p2p);
        patience_pause(&patience, p2p, moved); /* the monitor finishes connections */
    }
    for (struct p2p_link *link = p2p->adopted_count > 0 ? p2p->active : NULL; link; link = next) {
        next = link->next_active;
        drop(p2p, &link->queue[P2P_MESSAGES], &id);
    }
    p2p_unlock(p2p);
}

/* ---- this process leaves ---- */

/* Has the receiver asked for a send, of which some is still to go? The last piece of it is no longer in `cleared`. */
static bool has_asked(const struct p2p_link *link) {
    size_t unasked = link->is_ring ? P2P_EAGER_BYTES : P2P_EAGER_FAR_BYTES;
    const struct p2p_request *request = link->offered.first;
    while (request && !(request->state == REQUEST_FLOWING && request->bytes > unasked)) {
        request = request->next;
    }
    return link->cleared.first || request;
}

/* A peer on another host that has asked for an adopted send, and is not given up; or MUSTER_NO_RANK. */
static uint32_t find_late(const struct p2p *p2p, int64_t now_ns) {
    for (const struct p2p_link *link = p2p->active; link; link = link->next_active) {
        struct p2p_stream *main = link->streams[0];
        if (has_asked(link) && main && main->io && main->io->fd >= 0 && !p2p->is_dead[link->peer] &&
            !silence_is_lost(p2p, main, now_ns)) {
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

static void deliver(struct p2p *p2p) {
    struct patience patience = patience_begin(p2p);
    bool is_told = false;
    while (p2p->adopted_count > 0) {
        attend_turn(p2p);
        bool moved = p2p_move(p2p);
        patience_look(&patience, p2p);
        int64_t waited_ns = patience.now_ns - patience.begin_ns;
        uint32_t late = p2p->has_failures ? MUSTER_NO_RANK : find_late(p2p, patience.now_ns);
        int64_t idle_most_ms = neighbour_has_asked(p2p) ? P2P_NEIGHBOUR_MS : P2P_GOODBYE_MS;
        if (late != MUSTER_NO_RANK ? waited_ns >= P2P_DELIVER_MS * CLOCK_NS_PER_MS
                                   : patience_is_over(&patience, idle_most_ms)) {
            break;
        }
        if (!is_told && late != MUSTER_NO_RANK && waited_ns >= TELL_MS * CLOCK_NS_PER_MS) {
            p2p_tell_late(p2p, late);
            is_told = true;
        }
        patience_pause(&patience, p2p, moved);
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
