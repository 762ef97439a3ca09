/* Long messages of a neighbour that are read out of its memory, or out of an allocation that both have mapped, instead
 * of going through the ring; see p2p_impl.h. Which messages are offered so, the sender decides (p2p_send.c).
 *
 * A sender that takes a message back first raises a count in the ring. So what was read before the count was seen
 * unchanged is the message; if it has changed, this message was taken back or another one, and the sender is asked for
 * the rest through the ring. It sends that if it has the message still. If not, whatever made it give up fails the
 * receive, too: the news is behind it in the ring, or in the segment, or it is the deadline. */
#include <errno.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "comm/p2p/p2p_impl.h"
#include "comm/reduce/copy.h"

enum {
    MEMORY_READ_BYTES = 4 << 20,      /* of a neighbour's memory, in one round */
    MEMORY_CONSUME_BYTES = 128 << 10, /* the same through the bounce buffer, in one call */
    SHARED_STRETCH_BYTES = 256 << 10  /* of shared memory: so long others wait for the list of allocations */
};

void link_start_reading(struct p2p *p2p, struct p2p_link *link, struct p2p_request *request,
                        const struct p2p_arrival *arrival) {
    request->source = arrival->address;
    request->source_withdrawn = arrival->withdrawn;
    request->source_place = arrival->place;
    request->is_shared = arrival->frame.flags & WIRE_SHARED;
    request->peer_id = (uint32_t)arrival->frame.number;
    request->state = REQUEST_READING;
    link_put(p2p, link, &link->reading, request);
    p2p->is_reading = true;
}

/* Out of an allocation that both have mapped. */
static ssize_t read_shared(struct p2p *p2p, const struct p2p_link *link, const struct p2p_request *request, void *to,
                           size_t n) {
    struct memory_place place = request->source_place;
    place.offset += request->moved;
    n = n < SHARED_STRETCH_BYTES ? n : SHARED_STRETCH_BYTES;
    bool is_large = request->bytes >= COMM_LARGE_BYTES_MIN && !request->consume;
    if (!p2p->config.memory ||
        memory_copy(p2p->config.memory, rings_local(p2p, link->peer), &place, to, n, is_large) != 0) {
        errno = request->moved == 0 ? EPERM : EFAULT; /* then through the ring; or its owner has freed it */
        return LINK_BROKEN;
    }
    return (ssize_t)n;
}

static bool may_be_gone(const struct p2p_stream *stream, const struct p2p_request *request) {
    return link_ring_peer_withdrawn(stream->io) != request->source_withdrawn;
}

/* One stretch. Returns bytes, LINK_BROKEN with errno: ECANCELED if a message was taken back meanwhile. */
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
    if (may_be_gone(stream, request)) {
        errno = ECANCELED;
        return LINK_BROKEN;
    }
    if (got > 0 && request->consume) {
        got = request->moved + (size_t)got == request->bytes ? got : got / P2P_ELEMENT_BYTES * P2P_ELEMENT_BYTES;
        if (got == 0) {
            errno = EFAULT;
            return LINK_BROKEN;
        }
        request->consume(request->consume_context, request->moved, to, (size_t)got);
    }
    return got;
}

static void finish_reading(struct p2p *p2p, struct p2p_link *link, struct p2p_request *request) {
    uint8_t lane = request->envelope.lane;
    uint32_t id = request->peer_id;
    link_take(p2p, link, &link->reading, request);
    request_finish(p2p, request, 0, NULL); /* its memory may be gone from here on */
    link_send_finished(p2p, link, lane, id);
}

/* The kernel does not allow it, or it may have been taken back: what is missing comes through the ring, unless its
 * sender has left, which it has not done with a message that it meant to send. */
static void fall_back(struct p2p *p2p, struct p2p_link *link, struct p2p_request *request) {
    link_take(p2p, link, &link->reading, request);
    if (link->state == LINK_LEFT) {
        char sentence[P2P_SENTENCE_MAX];
        request_finish(p2p, request, MUSTER_EPEER, left_describe(p2p, link, sentence));
        return;
    }
    struct wire_frame frame = {.lane = request->envelope.lane, .number = request->peer_id};
    request->moved -= request->moved % WIRE_ALIGNMENT;
    link_put(p2p, link, &link->filling, request);
    request->state = REQUEST_FILLING;
    link_send_clear(p2p, link, &frame, request->id, request->moved);
}

bool link_read_memory(struct p2p *p2p, struct p2p_link *link) {
    struct p2p_request *request = link->reading.first;
    if (!request || !link->streams[0]) {
        return false;
    }
    if (!payload_has_bounce(p2p)) {
        fall_back(p2p, link, request);
        return true;
    }
    for (size_t done = 0; done < MEMORY_READ_BYTES;) {
        ssize_t n = request->moved < request->bytes
                        ? read_stretch(p2p, link->streams[0], request, MEMORY_READ_BYTES - done)
                        : 0;
        if (n < 0 && (errno == ECANCELED || (request->moved == 0 && (errno == EPERM || errno == ENOSYS)))) {
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
