/* Messages coming in: a message begins, meets its receive, or waits as an arrival until one is posted; see p2p_impl.h.
 *
 * Which receive it is for is found in p2p_match.c; p2p_place.c puts its bytes there, or p2p_read_memory.c fetches them.
 * The frames that it comes in are taken apart in p2p_read.c. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "comm/p2p/p2p_impl.h"

void message_finish_if_whole(struct p2p *p2p, struct p2p_link *link, struct p2p_request *request) {
    if (request->moved == request->bytes) {
        link_take(p2p, link, &link->filling, request);
        request_finish(p2p, request, 0, NULL);
    }
}

/* The receive has its message: from now on it waits for bytes. false: they do not fit, it is done. */
static bool start_filling(struct p2p *p2p, struct p2p_link *link, struct p2p_request *request,
                          const struct wire_frame *frame) {
    if (!match_fits(p2p, request, frame, link->peer)) {
        return false;
    }
    request->bytes = (size_t)frame->bytes;
    request->moved = 0;
    request->state = REQUEST_FILLING;
    return true;
}

/* ---- a message begins ---- */

static struct p2p_arrival *arrival_create(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame) {
    struct p2p_arrival *arrival = malloc(sizeof *arrival + frame->payload);
    if (!arrival) {
        return NULL;
    }
    memset(arrival, 0, sizeof *arrival);
    arrival->link = link;
    arrival->frame = *frame;
    arrival->ticket = p2p->tickets++;
    arrival_append(link, arrival);
    return arrival;
}

static void no_memory(struct p2p *p2p, struct p2p_link *link) {
    link_fail(p2p, link, MUSTER_ENOMEM, "no memory for a message of rank %u", (unsigned)link->peer);
}

void message_take(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame, const void *data) {
    if (!credit_count(p2p, link, frame)) {
        return;
    }
    bool is_wanted = !p2p_group_is_over(p2p, frame);
    struct p2p_request *request = is_wanted ? match_message(p2p, link, frame) : NULL;
    if (is_wanted && !request) {
        struct p2p_arrival *arrival = arrival_create(p2p, link, frame);
        if (!arrival) {
            no_memory(p2p, link);
            return;
        }
        memcpy(arrival->data, data, frame->payload);
        arrival->have = frame->payload;
        return;
    }
    credit_give_back(p2p, link, frame);
    if (request && start_filling(p2p, link, request, frame)) {
        if (request->bytes > 0 && request->consume) {
            payload_hand_out(request, 0, data, request->bytes);
        } else if (request->bytes > 0) { /* the place of an empty message may be NULL */
            memcpy(request->buffer, data, request->bytes);
        }
        request->moved = request->bytes;
        request_finish(p2p, request, 0, NULL);
    }
}

void message_begins(struct p2p *p2p, struct p2p_stream *stream) {
    struct p2p_link *link = stream->link;
    const struct wire_frame *frame = &stream->in;
    bool readable = frame->flags & WIRE_READABLE;
    (void)short_take_until(p2p, link, (uint32_t)(frame->number >> 32)); /* they were sent before */
    if (!stream->io || !credit_count(p2p, link, frame)) {
        return;
    }
    stream->in_offset = 0;
    stream->carry_count = 0;
    if (frame->lane == P2P_COLLECTIVES && p2p_group_contradicts(p2p, link, frame)) {
        credit_give_back(p2p, link, frame);
        return;
    }
    if (p2p_group_is_over(p2p, frame)) {
        credit_give_back(p2p, link, frame);
        return;
    }
    struct p2p_request *request = readable ? NULL : match_message(p2p, link, frame);
    if (!request) {
        stream->in_arrival = arrival_create(p2p, link, frame);
        stream->target = PAYLOAD_ARRIVAL;
        if (!stream->in_arrival) {
            no_memory(p2p, link);
        }
        return;
    }
    credit_give_back(p2p, link, frame);
    if (!start_filling(p2p, link, request, frame)) {
        return;
    }
    link_put(p2p, link, &link->filling, request);
    stream->in_request = request;
    stream->target = PAYLOAD_REQUEST;
    if (frame->payload < frame->bytes) {
        link_send_clear(p2p, link, frame, request->id, 0);
    }
}

void message_continues(struct p2p_stream *stream) {
    struct p2p_request *request = list_find(&stream->link->filling, (uint32_t)stream->in.number);
    stream->carry_count = 0;
    stream->in_offset = (size_t)stream->in.tag;
    /* A request that is not there was withdrawn; one that the piece goes beyond, the peer has mistaken. */
    if (request && stream->in.tag <= request->bytes && stream->in.payload <= request->bytes - stream->in.tag &&
        stream->in.payload <= request->bytes - request->moved) {
        stream->in_request = request;
        stream->target = PAYLOAD_REQUEST;
    }
}

/* ---- messages that were there first ---- */

/* The stream that is still bringing the arrival's first frame. */
static struct p2p_stream *stream_of(const struct p2p_link *link, const struct p2p_arrival *arrival) {
    struct p2p_stream *main = link->streams[0];
    return main && main->in_arrival == arrival && main->in_left > 0 ? main : NULL;
}

void arrivals_drop(struct p2p *p2p, struct p2p_link *link, uint32_t group) {
    struct p2p_stream *main = link->streams[0];
    struct p2p_arrival *next;
    for (struct p2p_arrival *arrival = link->arrivals; arrival; arrival = next) {
        next = arrival->next;
        if (arrival->frame.group != group || !p2p_group_is_over(p2p, &arrival->frame)) {
            continue;
        }
        if (main && main->in_arrival == arrival) {
            main->target = PAYLOAD_DISCARD;
            main->in_arrival = NULL;
        }
        arrival_remove(link, arrival);
        credit_give_back(p2p, link, &arrival->frame);
        free(arrival);
    }
}

void arrival_deliver(struct p2p *p2p, struct p2p_link *link, struct p2p_request *request, struct p2p_arrival *arrival) {
    const struct wire_frame *frame = &arrival->frame;
    struct p2p_stream *stream = stream_of(link, arrival);
    credit_give_back(p2p, link, frame);
    if (!start_filling(p2p, link, request, frame)) {
        if (stream) {
            stream->target = PAYLOAD_DISCARD;
            stream->in_arrival = NULL;
        }
    } else if (frame->flags & WIRE_READABLE) {
        assert(!stream);
        link_start_reading(p2p, link, request, arrival);
    } else {
        struct p2p_stream stand_in = {.link = link, .in_left = arrival->have};
        struct p2p_stream *to = stream ? stream : &stand_in;
        link_put(p2p, link, &link->filling, request);
        to->target = PAYLOAD_REQUEST;
        to->in_request = request;
        to->in_arrival = NULL;
        to->in_offset = 0;
        to->carry_count = 0;
        size_t left = to->in_left;
        payload_deliver(to, arrival->data, arrival->have);
        to->in_left = stream ? left : 0; /* what was staged here had been counted before */
        if (frame->payload < frame->bytes) {
            link_send_clear(p2p, link, frame, request->id, 0);
        }
        message_finish_if_whole(p2p, link, request);
    }
    free(arrival);
}

void arrival_offered(struct p2p *p2p, struct p2p_link *link, struct p2p_arrival *arrival) {
    arrival->address = wire_get_u64(arrival->data);
    arrival->withdrawn = wire_get_u64(arrival->data + 8);
    if (arrival->frame.flags & WIRE_SHARED) {
        arrival->place = (struct memory_place){.id = wire_get_u32(arrival->data + 16),
                                               .generation = wire_get_u32(arrival->data + 20),
                                               .offset = arrival->address};
    }
    struct p2p_request *request = match_message(p2p, link, &arrival->frame);
    if (request) {
        arrival_remove(link, arrival);
        arrival_deliver(p2p, link, request, arrival);
    }
}
