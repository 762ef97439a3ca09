/* Payload to its place: into a receive's buffer, through its consumer, or into memory of our own; see p2p_impl.h.
 *
 * What is to be consumed (reduced) is handed out in whole elements: the beginning of one whose end has not come is
 * carried over. Which place a frame's payload has, p2p_message.c decides; where the bytes are read to, p2p_read.c. */
#include <stdlib.h>
#include <string.h>

#include "comm/p2p/p2p_impl.h"

bool payload_has_bounce(struct p2p *p2p) {
    if (!p2p->bounce && posix_memalign((void **)&p2p->bounce, 64, P2P_BOUNCE_BYTES) != 0) {
        p2p->bounce = NULL;
    }
    return p2p->bounce;
}

void payload_hand_out(const struct p2p_request *request, size_t offset, const uint8_t *data, size_t n) {
    if (((uintptr_t)data & (P2P_ELEMENT_BYTES - 1)) == 0) {
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
        size_t part = P2P_ELEMENT_BYTES - stream->carry_count;
        part = n < part ? n : part;
        memcpy(stream->carry + stream->carry_count, data, part);
        stream->carry_count += part;
        stream->in_offset += part;
        data += part;
        n -= part;
        bool is_end = stream->in_offset == request->bytes;
        if (stream->carry_count < P2P_ELEMENT_BYTES && !is_end) {
            return;
        }
        payload_hand_out(request, stream->in_offset - stream->carry_count, stream->carry, stream->carry_count);
        stream->carry_count = 0;
    }
    size_t whole = stream->in_offset + n == request->bytes ? n : n / P2P_ELEMENT_BYTES * P2P_ELEMENT_BYTES;
    if (whole > 0) {
        payload_hand_out(request, stream->in_offset, data, whole);
    }
    stream->carry_count = n - whole;
    memcpy(stream->carry, data + whole, n - whole);
    stream->in_offset += n;
}

void payload_deliver(struct p2p_stream *stream, const uint8_t *data, size_t n) {
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
