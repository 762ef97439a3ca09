/* Frames coming in: parsing, and bringing message data to where it belongs; see p2p_impl.h.
 *
 * Short frames are read together into the stream's staging area. Of a long payload everything that is not staged
 * already goes from the socket straight into the user's buffer; what is to be consumed (reduced) passes through one
 * bounce buffer, small enough to stay in the cache. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "comm/copy.h"
#include "comm/p2p_impl.h"

enum {
    READS_PER_ROUND = 8,              /* of one stream; then others have their turn */
    MEMORY_READ_BYTES = 4 << 20,      /* of a neighbour's memory, in one round */
    MEMORY_CONSUME_BYTES = 128 << 10, /* the same through the bounce buffer, in one call */
    SHARED_STRETCH_BYTES = 256 << 10, /* of shared memory: so long others wait for the list of allocations */
    ELEMENT_BYTES = 8                 /* what is consumed begins and ends at multiples */
};

/* ---- payload to its place ---- */

/* Hands out data that lies anywhere: what consumes elements may expect them where elements lie. */
static void hand_out(const struct p2p_request *request, size_t offset, const uint8_t *data, size_t n) {
    if (((uintptr_t)data & (ELEMENT_BYTES - 1)) == 0) {
        request->consume(request->consume_context, offset, data, n);
        return;
    }
    _Alignas(64) uint8_t aligned[4096];
    while (n > 0) {
        size_t part = n < sizeof aligned ? n : sizeof aligned;
        memcpy(aligned, data, part);
        request->consume(request->consume_context, offset, aligned, part);
        offset += part;
        data += part;
        n -= part;
    }
}

static void consume(struct p2p_stream *stream, struct p2p_request *request, const uint8_t *data, size_t n) {
    /* The end of the element whose beginning was carried over. */
    if (stream->carry_count > 0) {
        size_t part = ELEMENT_BYTES - stream->carry_count;
        part = n < part ? n : part;
        memcpy(stream->carry + stream->carry_count, data, part);
        stream->carry_count += part;
        stream->in_offset += part;
        data += part;
        n -= part;
        bool is_end = stream->in_offset == request->bytes;
        if (stream->carry_count < ELEMENT_BYTES && !is_end) {
            return;
        }
        hand_out(request, stream->in_offset - stream->carry_count, stream->carry, stream->carry_count);
        stream->carry_count = 0;
    }
    size_t whole = stream->in_offset + n == request->bytes ? n : n / ELEMENT_BYTES * ELEMENT_BYTES;
    if (whole > 0) {
        hand_out(request, stream->in_offset, data, whole);
    }
    stream->carry_count = n - whole;
    memcpy(stream->carry, data + whole, n - whole);
    stream->in_offset += n;
}

/* `n` bytes of the payload that lie at `data` (which may be their place already). */
static void deliver(struct p2p_stream *stream, const uint8_t *data, size_t n) {
    if (n == 0) { /* the places of an empty message may be NULL */
        return;
    }
    switch (stream->target) {
    case PAYLOAD_REQUEST: {
        struct p2p_request *request = stream->in_request;
        request->moved += n;
        if (request->consume) {
            consume(stream, request, data, n);
        } else {
            uint8_t *place = (uint8_t *)request->buffer + stream->in_offset;
            if (place != data) {
                memcpy(place, data, n);
            }
            stream->in_offset += n;
        }
        break;
    }
    case PAYLOAD_ARRIVAL:
        if (stream->in_arrival->data + stream->in_arrival->have != data) {
            memcpy(stream->in_arrival->data + stream->in_arrival->have, data, n);
        }
        stream->in_arrival->have += n;
        break;
    case PAYLOAD_SMALL:
        memcpy(stream->small + stream->small_count, data, n);
        stream->small_count += n;
        break;
    case PAYLOAD_DISCARD:
        break;
    }
    stream->in_left -= n;
}

static void finish_if_whole(struct p2p *p2p, struct p2p_link *link, struct p2p_request *request) {
    if (request->moved == request->bytes) {
        link_take(p2p, link, &link->filling, request);
        request_finish(p2p, request, 0, NULL);
    }
}

/* ---- a message begins ---- */

static void give_back_credit(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame) {
    bool readable = frame->flags & WIRE_READABLE;
    link->credit[frame->lane].taken += P2P_HEADER_COST + (readable ? 0 : frame->payload);
    link_tell_credit(p2p, link, frame->lane);
}

static void send_clear(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame, uint32_t id) {
    struct wire_frame clear = {.kind = WIRE_CLEAR,
                               .lane = frame->lane,
                               .credit = link->credit[frame->lane].taken,
                               .fingerprint = id,
                               .number = frame->number};
    link->credit[frame->lane].told = clear.credit;
    if (link->streams[0]) {
        stream_control(p2p, link->streams[0], &clear, NULL);
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

static void start_reading(struct p2p *p2p, struct p2p_link *link, struct p2p_request *request,
                          const struct p2p_arrival *arrival) {
    request->source = arrival->address;
    request->source_withdrawn = arrival->withdrawn;
    request->source_place = arrival->place;
    request->is_shared = arrival->frame.flags & WIRE_SHARED;
    request->peer_id = (uint32_t)arrival->frame.number;
    request->state = REQUEST_READING;
    link_put(p2p, link, &link->reading, request);
}

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

/* false: more has come than there is room for; the link has failed. */
static bool count_coming(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame) {
    struct p2p_credit *credit = &link->credit[frame->lane];
    credit->came += P2P_HEADER_COST + (frame->flags & WIRE_READABLE ? 0 : frame->payload);
    if (credit->came - credit->taken > P2P_UNEXPECTED_BYTES_MAX) {
        link_fail(p2p, link, MUSTER_EPROTOCOL, "rank %u sends more than it has been given room for",
                  (unsigned)link->peer);
        return false;
    }
    return true;
}

static void no_memory(struct p2p *p2p, struct p2p_link *link) {
    link_fail(p2p, link, MUSTER_ENOMEM, "no memory for a message of rank %u", (unsigned)link->peer);
}

void message_take(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame, const void *data) {
    if (!count_coming(p2p, link, frame)) {
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
    give_back_credit(p2p, link, frame);
    if (request && start_filling(p2p, link, request, frame)) {
        if (request->bytes > 0 && request->consume) {
            hand_out(request, 0, data, request->bytes);
        } else if (request->bytes > 0) { /* the place of an empty message may be NULL */
            memcpy(request->buffer, data, request->bytes);
        }
        request->moved = request->bytes;
        request_finish(p2p, request, 0, NULL);
    }
}

/* Chooses where the payload of a message's first frame goes. */
static void message_begins(struct p2p *p2p, struct p2p_stream *stream) {
    struct p2p_link *link = stream->link;
    const struct wire_frame *frame = &stream->in;
    bool readable = frame->flags & WIRE_READABLE;
    (void)short_take_until(p2p, link, (uint32_t)(frame->number >> 32)); /* they were sent before */
    if (!stream->io || !count_coming(p2p, link, frame)) {
        return;
    }
    stream->in_offset = 0;
    stream->carry_count = 0;
    if (frame->lane == P2P_COLLECTIVES && p2p_group_contradicts(p2p, link, frame)) {
        give_back_credit(p2p, link, frame);
        return;
    }
    if (p2p_group_is_over(p2p, frame)) {
        give_back_credit(p2p, link, frame);
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
    give_back_credit(p2p, link, frame);
    if (!start_filling(p2p, link, request, frame)) {
        return;
    }
    link_put(p2p, link, &link->filling, request);
    stream->in_request = request;
    stream->target = PAYLOAD_REQUEST;
    if (frame->payload < frame->bytes) {
        send_clear(p2p, link, frame, request->id);
    }
}

static void piece_begins(struct p2p_stream *stream) {
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

/* ---- frames ---- */

static void take_notice(struct p2p *p2p, struct p2p_stream *stream) {
    struct p2p_notice notice = {.kind = (enum p2p_notice_kind)stream->in.bytes,
                                .subject = stream->in.group,
                                .origin = (uint32_t)stream->in.tag,
                                .spared = stream->in.number,
                                .code = (int32_t)(uint32_t)(stream->in.tag >> 32)};
    size_t length = stream->small_count < P2P_SENTENCE_MAX ? stream->small_count : P2P_SENTENCE_MAX - 1;
    memcpy(notice.sentence, stream->small, length);
    notice.sentence[length] = '\0';
    notice_take(p2p, stream->link, &notice);
}

/* A header has come. */
static void frame_begins(struct p2p *p2p, struct p2p_stream *stream) {
    struct p2p_link *link = stream->link;
    stream->in_left = stream->in.payload;
    stream->target = PAYLOAD_DISCARD;
    stream->in_request = NULL;
    stream->in_arrival = NULL;
    stream->small_count = 0;
    bool is_main = stream->index == 0 && !stream->is_watch;
    bool carries_credit =
        is_main && stream->in.kind != WIRE_NOTICE && stream->in.kind != WIRE_GOODBYE && stream->in.kind != WIRE_DATA;
    if (carries_credit) {
        link->credit[stream->in.lane].returned = stream->in.credit;
    }
    switch (stream->in.kind) {
    case WIRE_BEGIN:
        if (is_main) {
            message_begins(p2p, stream);
        }
        break;
    case WIRE_DATA:
        piece_begins(stream);
        break;
    case WIRE_NOTICE:
        stream->target = PAYLOAD_SMALL;
        break;
    case WIRE_CLEAR:
        link_cleared(p2p, link, &stream->in);
        break;
    case WIRE_FINISHED:
        link_finished(p2p, link, &stream->in);
        break;
    case WIRE_CALL:
        p2p_group_hears(p2p, link, &stream->in);
        break;
    case WIRE_GOODBYE:
        (void)short_take(p2p, link);
        stream->said_goodbye = link->said_goodbye = true;
        link->is_leaving = link->is_leaving || is_main;
        dial_explain(p2p, link);
        if (link->is_leaving && link->state == LINK_OPEN) {
            link_left(p2p, link);
        }
        break;
    default: /* credit: taken above */
        break;
    }
    if (carries_credit && (link->queue[0].first || link->queue[1].first)) {
        (void)link_flush(p2p, link);
    }
}

/* The frame's payload is complete. */
static void frame_ends(struct p2p *p2p, struct p2p_stream *stream) {
    enum payload_target target = stream->target;
    stream->target = PAYLOAD_DISCARD;
    if (target == PAYLOAD_REQUEST) {
        finish_if_whole(p2p, stream->link, stream->in_request);
    } else if (target == PAYLOAD_SMALL && stream->in.kind == WIRE_NOTICE) {
        take_notice(p2p, stream);
    } else if (target == PAYLOAD_ARRIVAL && stream->in.flags & WIRE_READABLE) {
        struct p2p_arrival *arrival = stream->in_arrival;
        arrival->address = wire_get_u64(arrival->data);
        arrival->withdrawn = wire_get_u64(arrival->data + 8);
        if (stream->in.flags & WIRE_SHARED) {
            arrival->place = (struct memory_place){.id = wire_get_u32(arrival->data + 16),
                                                   .generation = wire_get_u32(arrival->data + 20),
                                                   .offset = arrival->address};
        }
        struct p2p_request *request = match_message(p2p, stream->link, &arrival->frame);
        if (request) {
            arrival_remove(stream->link, arrival);
            arrival_deliver(p2p, stream->link, request, arrival);
        }
    }
    stream->in_request = NULL;
    stream->in_arrival = NULL;
}

/* Works off what lies in the staging area. false: the stream is gone. */
static bool parse(struct p2p *p2p, struct p2p_stream *stream) {
    struct p2p_link *link = stream->link;
    while (stream->io) {
        if (stream->in_left > 0) {
            size_t n = stream->staged < stream->in_left ? stream->staged : stream->in_left;
            if (n == 0) {
                return true;
            }
            deliver(stream, stream->staging + stream->staged_at, n);
            stream->staged_at += n;
            stream->staged -= n;
        } else {
            if (stream->staged < WIRE_HEADER_BYTES) {
                return true;
            }
            if (wire_frame_decode(stream->staging + stream->staged_at, &stream->in) != 0) {
                link_fail(p2p, link, MUSTER_EPROTOCOL, "rank %u: %s", (unsigned)link->peer, muster_detail());
                return false;
            }
            stream->staged_at += WIRE_HEADER_BYTES;
            stream->staged -= WIRE_HEADER_BYTES;
            frame_begins(p2p, stream);
        }
        if (stream->in_left == 0 && stream->io) {
            frame_ends(p2p, stream);
        }
    }
    return false;
}

/* ---- reading ---- */

/* Where the next bytes of the payload should go directly; bytes 0: into the staging area, with whatever follows. */
static struct iovec direct_place(struct p2p *p2p, struct p2p_stream *stream) {
    struct iovec place = {.iov_base = NULL, .iov_len = 0};
    if (stream->in_left <= P2P_STAGING_BYTES / 4) {
        return place;
    }
    place.iov_len = stream->in_left;
    if (stream->target == PAYLOAD_REQUEST && !stream->in_request->consume) {
        place.iov_base = (uint8_t *)stream->in_request->buffer + stream->in_offset;
    } else if (stream->target == PAYLOAD_ARRIVAL) {
        place.iov_base = stream->in_arrival->data + stream->in_arrival->have;
    } else {
        if (!p2p->bounce && posix_memalign((void **)&p2p->bounce, 64, P2P_BOUNCE_BYTES) != 0) {
            p2p->bounce = NULL; /* then by way of the staging area */
            place.iov_len = 0;
            return place;
        }
        place.iov_base = p2p->bounce;
        place.iov_len = stream->in_left < P2P_BOUNCE_BYTES ? stream->in_left : P2P_BOUNCE_BYTES;
    }
    return place;
}

/* One read. Gives what link_kind.read() gave; *out_short: there was less than there was room for. */
static ssize_t read_once(struct p2p *p2p, struct p2p_stream *stream, bool *out_short) {
    if (stream->staged > 0 && stream->staged_at > 0) {
        memmove(stream->staging, stream->staging + stream->staged_at, stream->staged);
    }
    stream->staged_at = 0;
    struct iovec parts[2] = {{.iov_len = 0}};
    int count = 0;
    if (stream->in_left > 0 && stream->staged == 0) {
        parts[0] = direct_place(p2p, stream);
        count = parts[0].iov_len > 0;
    }
    /* Behind the whole payload, the next frames. */
    size_t direct = parts[0].iov_len;
    if (count == 0 || direct == stream->in_left) {
        parts[count++] =
            (struct iovec){.iov_base = stream->staging + stream->staged, .iov_len = P2P_STAGING_BYTES - stream->staged};
    }
    size_t room = parts[0].iov_len + (count == 2 ? parts[1].iov_len : 0);
    ssize_t n = stream->io->kind->read(stream->io, parts, count);
    if (n <= 0) {
        return n;
    }
    *out_short = (size_t)n < room;
    size_t placed = (size_t)n < direct ? (size_t)n : direct;
    if (placed > 0) {
        deliver(stream, parts[0].iov_base, placed);
        if (stream->in_left == 0) {
            frame_ends(p2p, stream);
        }
    }
    stream->staged += (size_t)n - placed;
    return n;
}

/* Of the record that TLS has taken off the socket: no event tells of that. */
static bool is_pending(const struct link *io) {
    return io->kind->pending && io->kind->pending(io);
}

static bool read_some(struct p2p *p2p, struct p2p_stream *stream) {
    bool moved = false;
    for (int i = 0; stream->io && (i < READS_PER_ROUND || is_pending(stream->io)); i++) {
        bool is_short = false;
        ssize_t n = read_once(p2p, stream, &is_short);
        if (n == LINK_AGAIN) {
            return moved;
        }
        if (n < 0) {
            stream_ended(p2p, stream, n == LINK_END ? 0 : errno);
            return true;
        }
        moved = true;
        if (!parse(p2p, stream) || (is_short && !is_pending(stream->io))) {
            return true;
        }
    }
    return moved;
}

bool stream_read(struct p2p *p2p, struct p2p_stream *stream) {
    if (stream->is_being_read) { /* a notice on it has led here: the rest is read when that is done */
        return false;
    }
    stream->is_being_read = true;
    bool moved = read_some(p2p, stream);
    stream->is_being_read = false;
    return moved;
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
        give_back_credit(p2p, link, &arrival->frame);
        free(arrival);
    }
}

void arrival_deliver(struct p2p *p2p, struct p2p_link *link, struct p2p_request *request, struct p2p_arrival *arrival) {
    const struct wire_frame *frame = &arrival->frame;
    struct p2p_stream *stream = stream_of(link, arrival);
    give_back_credit(p2p, link, frame);
    if (!start_filling(p2p, link, request, frame)) {
        if (stream) {
            stream->target = PAYLOAD_DISCARD;
            stream->in_arrival = NULL;
        }
    } else if (frame->flags & WIRE_READABLE) {
        assert(!stream);
        start_reading(p2p, link, request, arrival);
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
        deliver(to, arrival->data, arrival->have);
        to->in_left = stream ? left : 0; /* what was staged here had been counted before */
        if (frame->payload < frame->bytes) {
            send_clear(p2p, link, frame, request->id);
        }
        finish_if_whole(p2p, link, request);
    }
    free(arrival);
}

/* ---- out of a neighbour's memory ---- */

/* Out of an allocation that both have mapped. */
static ssize_t read_shared(struct p2p *p2p, const struct p2p_link *link, const struct p2p_request *request, void *to,
                           size_t n) {
    struct memory_place place = request->source_place;
    place.offset += request->moved;
    n = n < SHARED_STRETCH_BYTES ? n : SHARED_STRETCH_BYTES;
    bool is_large = request->bytes >= COMM_LARGE_BYTES_MIN && !request->consume;
    if (!p2p->config.memory ||
        memory_copy(p2p->config.memory, rings_local(p2p, link->peer), &place, to, n, is_large) != 0) {
        errno = request->moved == 0 ? EPERM : EFAULT; /* then through the ring, or it has been taken back */
        return LINK_BROKEN;
    }
    return (ssize_t)n;
}

/* One stretch. Returns bytes, LINK_BROKEN with errno. */
static ssize_t read_stretch(struct p2p *p2p, struct p2p_stream *stream, struct p2p_request *request, size_t room) {
    size_t n = request->bytes - request->moved;
    n = n < room ? n : room;
    uint8_t *to = request->consume ? p2p->bounce : (uint8_t *)request->buffer + request->moved;
    if (request->consume) {
        n = n < MEMORY_CONSUME_BYTES ? n : MEMORY_CONSUME_BYTES;
    }
    ssize_t got = request->is_shared
                      ? read_shared(p2p, stream->link, request, to, n)
                      : stream->io->kind->read_memory(stream->io, to, request->source + request->moved, n);
    if (got > 0 && request->consume) {
        got = request->moved + (size_t)got == request->bytes ? got : got / ELEMENT_BYTES * ELEMENT_BYTES;
        if (got == 0) {
            errno = EFAULT;
            return LINK_BROKEN;
        }
        request->consume(request->consume_context, request->moved, to, (size_t)got);
    }
    return got;
}

static void finish_reading(struct p2p *p2p, struct p2p_link *link, struct p2p_request *request) {
    struct p2p_stream *stream = link->streams[0];
    struct wire_frame frame = {.kind = WIRE_FINISHED,
                               .lane = request->envelope.lane,
                               .credit = link->credit[request->envelope.lane].taken,
                               .number = request->peer_id};
    link->credit[request->envelope.lane].told = frame.credit;
    link_take(p2p, link, &link->reading, request);
    if (link_ring_peer_withdrawn(stream->io) != request->source_withdrawn) {
        /* Some message was taken back while this one was read: it may have been this one. */
        request_finish(p2p, request, MUSTER_EGROUP, "the sender gave up before its message was read");
        return;
    }
    request_finish(p2p, request, 0, NULL);
    stream_control(p2p, stream, &frame, NULL);
}

/* The kernel does not allow it: from now on through the ring. */
static void fall_back(struct p2p *p2p, struct p2p_link *link, struct p2p_request *request) {
    struct wire_frame frame = {.lane = request->envelope.lane, .number = request->peer_id};
    link_take(p2p, link, &link->reading, request);
    link_put(p2p, link, &link->filling, request);
    request->state = REQUEST_FILLING;
    send_clear(p2p, link, &frame, request->id);
}

bool link_read_memory(struct p2p *p2p, struct p2p_link *link) {
    struct p2p_request *request = link->reading.first;
    if (!request || !link->streams[0]) {
        return false;
    }
    if (!p2p->bounce && posix_memalign((void **)&p2p->bounce, 64, P2P_BOUNCE_BYTES) != 0) {
        p2p->bounce = NULL;
        fall_back(p2p, link, request);
        return true;
    }
    for (size_t done = 0; done < MEMORY_READ_BYTES;) {
        ssize_t n = request->moved < request->bytes
                        ? read_stretch(p2p, link->streams[0], request, MEMORY_READ_BYTES - done)
                        : 0;
        if (n < 0 && link_ring_peer_withdrawn(link->streams[0]->io) != request->source_withdrawn) {
            finish_reading(p2p, link, request); /* taken back: it says so */
            return true;
        }
        if (n < 0 && request->moved == 0 && (errno == EPERM || errno == ENOSYS)) {
            fall_back(p2p, link, request);
            return true;
        }
        if (n < 0) {
            char sentence[P2P_SENTENCE_MAX], peer[P2P_PEER_NAME_MAX];
            int error_number = errno;
            (void)str_format(sentence, sizeof sentence, "read a message out of the memory of %s: %s",
                             link_peer_name(p2p, link, peer), strerror(error_number));
            link_take(p2p, link, &link->reading, request);
            request_finish(p2p, request, error_number == ESRCH ? MUSTER_EPEER : MUSTER_ESYSTEM, sentence);
            return true;
        }
        request->moved += (size_t)n;
        done += (size_t)n;
        if (request->moved == request->bytes) {
            finish_reading(p2p, link, request);
            return true;
        }
    }
    return true;
}
