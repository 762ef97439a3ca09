/* Posting sends and receives, and taking them back; see p2p.h. What was posted is moved elsewhere: p2p_progress.c says
 * when, p2p_send.c and p2p_read.c how. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/p2p/p2p_impl.h"

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

static int fail_left(const struct p2p *p2p, const struct p2p_link *link) {
    char sentence[P2P_SENTENCE_MAX];
    return status_fail(MUSTER_EPEER, "%s", left_describe(p2p, link, sentence));
}

int p2p_send(struct p2p *p2p, struct p2p_request *request, const struct p2p_envelope *envelope, const void *buffer,
             size_t bytes, int64_t deadline_ns) {
    assert(envelope->peer < p2p->config.size && envelope->peer != p2p->config.rank);
    struct p2p_link *link = NULL;
    p2p_lock(p2p);
    int code = check_group(p2p, envelope);
    code = code != 0 ? code : link_open(p2p, envelope->peer, deadline_ns, &link);
    code = code == 0 && link_takes_no_more(link, envelope) ? fail_left(p2p, link) : code;
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
    p2p->leaves_more = p2p_has_more(p2p);
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
    char sentence[P2P_SENTENCE_MAX];
    if (!link && left_by_all(p2p, &request->envelope, sentence)) {
        return status_fail(MUSTER_EPEER, "%s", sentence);
    }
    if (!link) {
        list_append(&p2p->any, request);
        return 0;
    }
    code = code == 0 && link_has_left(link, request->envelope.group) ? fail_left(p2p, link) : code;
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
    p2p->leaves_more = p2p_has_more(p2p);
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

struct p2p_list *request_list(struct p2p_link *link, const struct p2p_request *request) {
    switch (request->state) {
    case REQUEST_QUEUED:
        return &link->queue[request->envelope.lane];
    case REQUEST_CLEARED:
        return &link->cleared;
    case REQUEST_POSTED:
        return &link->posted;
    case REQUEST_FILLING:
        return &link->filling;
    case REQUEST_READING:
        return &link->reading;
    default:
        assert(request->state == REQUEST_OFFERED || request->state == REQUEST_FLOWING);
        return &link->offered;
    }
}

static void withdraw_send(struct p2p *p2p, struct p2p_link *link, struct p2p_request *request) {
    link_take(p2p, link, request_list(link, request), request);
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
    link_take(p2p, link, request_list(link, request), request);
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

/* ---- how they ended ---- */

void p2p_forget(struct p2p_request *request) {
    free(request->detail);
    request->detail = NULL;
}

int p2p_request_done(struct p2p_request *request) {
    int status = request->status;
    if (status != 0) {
        (void)status_fail(status, "%s", request->detail ? request->detail : muster_strerror(status));
    }
    p2p_forget(request);
    return status;
}

int p2p_collect(struct p2p_request *const *requests, size_t request_count, int code) {
    for (size_t i = 0; i < request_count; i++) {
        if (code == 0 && requests[i]->status != 0 && requests[i]->status != MUSTER_ECANCELED) {
            code = p2p_request_done(requests[i]);
        }
        p2p_forget(requests[i]);
    }
    return code;
}
