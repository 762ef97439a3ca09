/* Long messages of a neighbour that are read out of its memory, or out of an allocation that both have mapped, instead
 * of going through the ring; see p2p_impl.h. Which messages are offered so, the sender decides (p2p_send.c). */
#include <errno.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "comm/copy.h"
#include "comm/p2p_impl.h"

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
    if (link_ring_peer_withdrawn(link->streams[0]->io) != request->source_withdrawn) {
        /* Some message was taken back while this one was read: it may have been this one. */
        request_finish(p2p, request, MUSTER_EGROUP, "the sender gave up before its message was read");
        return;
    }
    request_finish(p2p, request, 0, NULL); /* its memory may be gone from here on */
    link_send_finished(p2p, link, lane, id);
}

/* The kernel does not allow it: from now on through the ring. */
static void fall_back(struct p2p *p2p, struct p2p_link *link, struct p2p_request *request) {
    struct wire_frame frame = {.lane = request->envelope.lane, .number = request->peer_id};
    link_take(p2p, link, &link->reading, request);
    link_put(p2p, link, &link->filling, request);
    request->state = REQUEST_FILLING;
    link_send_clear(p2p, link, &frame, request->id);
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
