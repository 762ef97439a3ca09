/* Frames going out: a message's first, its pieces when the receiver is ready, and what goes between them; writing them
 * to the streams; see p2p_impl.h and docs/formats/wire.md. What this process says as a receiver is in p2p_flow.c. */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "comm/p2p/p2p_impl.h"

/* Of one stream; then reading has its turn, and what was written is still in the cache when it is read. */
enum { FRAMES_PER_FLUSH = 16, BYTES_PER_FLUSH = 256 << 10 };

static void mark_blocked(struct p2p *p2p, struct p2p_stream *stream) {
    if (!stream->is_blocked) {
        stream->is_blocked = true;
        stream->next_blocked = p2p->blocked;
        p2p->blocked = stream;
    }
}

/* ---- frames without message data ---- */

void stream_control(struct p2p *p2p, struct p2p_stream *stream, const struct wire_frame *frame, const void *payload) {
    uint8_t header[WIRE_HEADER_BYTES];
    if (stream->is_broken || stream->doom != 0) {
        return;
    }
    wire_frame_encode(frame, header);
    stream->doom = buf_append(&stream->control, header, sizeof header);
    if (stream->doom == 0 && frame->payload > 0) {
        stream->doom = buf_append(&stream->control, payload, frame->payload);
    }
    mark_blocked(p2p, stream); /* written in the next round, or with the next message */
}

/* Not where it happened: requests end in there that the callers have in hand. */
static void fail_doomed(struct p2p *p2p, const struct p2p_stream *stream) {
    unsigned peer = stream->link->peer;
    if (stream->doom == MUSTER_ELIMIT) {
        link_fail(p2p, stream->link, stream->doom, "rank %u takes nothing in: over %d bytes wait for it", peer,
                  P2P_CONTROL_BYTES_MAX);
    } else {
        link_fail(p2p, stream->link, stream->doom, "no memory for what goes to rank %u", peer);
    }
}

/* ---- the next frame of a stream ---- */

/* Two cores that pass a message through the ring, one copying in while the other copies out of its cache, are twice as
 * fast as the kernel's copy. But that takes a sender who is there, and a core for each. An adopted send ends with its
 * process, which is to see how far the receiver is. */
static bool may_be_read_there(const struct p2p *p2p, const struct p2p_link *link, const struct p2p_request *request) {
    bool passes_on = request->envelope.is_blocking && !p2p->is_crowded;
    return link->is_ring && link->may_read_memory && request->bytes >= P2P_READ_MEMORY_BYTES && !passes_on &&
           !request->is_adopted;
}

static bool is_shared(const struct p2p *p2p, const struct p2p_link *link, const struct p2p_request *request,
                      struct memory_place *out) {
    return link->is_ring && p2p->config.memory && request->bytes >= P2P_READ_SHARED_BYTES &&
           memory_find(p2p->config.memory, request->buffer, request->bytes, out);
}

/* How much of a message goes out with its first frame. Of a message of the program to another host, so much that by the
 * time it is written the receiver's word has come that the rest may follow: one of 256 KiB never waits for that. What a
 * collective sends is mostly awaited by somebody who reduces it as it comes, and is not to be stored before; and a ring
 * holds less. */
static size_t eager_bytes(const struct p2p_link *link, const struct p2p_request *request) {
    bool is_far_message = !link->is_ring && request->envelope.lane == P2P_MESSAGES;
    size_t most = is_far_message ? P2P_EAGER_FAR_BYTES : P2P_EAGER_BYTES;
    return request->bytes < most ? request->bytes : most;
}

/* The first frame of a message. false: no credit. */
static bool begin(struct p2p *p2p, struct p2p_stream *stream, struct p2p_request *request) {
    struct p2p_link *link = stream->link;
    struct p2p_credit *credit = &link->credit[request->envelope.lane];
    uint32_t left = credit_left(credit);
    if (left < P2P_HEADER_COST) {
        return false;
    }
    struct memory_place place;
    bool shared = is_shared(p2p, link, request, &place), readable = shared || may_be_read_there(p2p, link, request);
    size_t eager = readable ? 0 : eager_bytes(link, request);
    if (eager > left - P2P_HEADER_COST) {
        eager = 0;
    }
    struct wire_frame frame = {.kind = WIRE_BEGIN,
                               .lane = request->envelope.lane,
                               .flags = shared     ? WIRE_READABLE | WIRE_SHARED
                                        : readable ? WIRE_READABLE
                                                   : 0,
                               .payload = shared     ? WIRE_SHARED_BYTES
                                          : readable ? WIRE_READABLE_BYTES
                                                     : (uint32_t)eager,
                               .group = request->envelope.group,
                               .credit = credit->taken,
                               .tag = request->envelope.tag,
                               .fingerprint = request->envelope.fingerprint,
                               .bytes = request->bytes,
                               .number = request->id | (uint64_t)link->short_sent << 32};
    wire_frame_encode(&frame, stream->header);
    stream->header_bytes = WIRE_HEADER_BYTES;
    if (readable) {
        uint8_t *where = stream->header + WIRE_HEADER_BYTES;
        wire_put_u64(where, shared ? place.offset : (uint64_t)(uintptr_t)request->buffer);
        wire_put_u64(where + 8, link_ring_withdrawn(stream->io));
        stream->header_bytes += frame.payload;
        if (shared) {
            wire_put_u32(where + 16, place.id);
            wire_put_u32(where + 20, place.generation);
        }
    }
    credit->told = credit->taken;
    assert(P2P_HEADER_COST + eager <= left);
    credit->sent += P2P_HEADER_COST + (uint32_t)eager;
    stream->header_at = 0;
    stream->payload = request->buffer;
    stream->payload_left = eager;
    stream->out_request = request;
    stream->may_be_held = false;
    request->allotted = eager;
    link_take(p2p, link, &link->queue[request->envelope.lane], request);
    link_put(p2p, link, &link->offered, request);
    request->state = eager == request->bytes && !readable ? REQUEST_FLOWING : REQUEST_OFFERED;
    return true;
}

static size_t next_piece(const struct p2p_stream *stream, const struct p2p_request *request) {
    size_t rest = zero_copy_end(request) - request->allotted,
           most = stream->link->has_paths ? path_piece(stream) : P2P_PIECE_BYTES;
    return rest < most ? rest : most;
}

/* A piece of a message whose receiver is ready. */
static void continue_message(struct p2p *p2p, struct p2p_stream *stream, struct p2p_request *request) {
    assert(request->state == REQUEST_CLEARED && request->allotted < request->bytes);
    size_t piece = next_piece(stream, request);
    stream->may_be_held = stream->may_hold && request->has_tail && zero_copy_end(request) < request->bytes;
    struct wire_frame frame = {.kind = WIRE_DATA,
                               .lane = request->envelope.lane,
                               .flags = stream->may_be_held ? WIRE_AWAITED : 0,
                               .payload = (uint32_t)piece,
                               .credit = stream->link->credit[request->envelope.lane].taken,
                               .tag = request->allotted,
                               .number = request->peer_id};
    wire_frame_encode(&frame, stream->header);
    stream->header_at = 0;
    stream->header_bytes = WIRE_HEADER_BYTES;
    stream->payload = (const uint8_t *)request->buffer + request->allotted;
    stream->payload_left = piece;
    stream->out_request = request;
    request->allotted += piece;
    if (request->allotted == request->bytes) {
        request->state = REQUEST_FLOWING;
        link_take(p2p, stream->link, &stream->link->cleared, request);
        link_put(p2p, stream->link, &stream->link->offered, request);
    }
}

/* Takes up the next frame with message data. false: there is none. */
static bool next_frame(struct p2p *p2p, struct p2p_stream *stream) {
    struct p2p_link *link = stream->link;
    if (stream->is_watch || stream->said_goodbye) {
        return false;
    }
    for (int lane = P2P_LANE_COUNT - 1; stream->index == 0 && lane >= 0; lane--) {
        if (link->queue[lane].first && begin(p2p, stream, link->queue[lane].first)) {
            return true;
        }
    }
    struct p2p_request *request = link->cleared.first;
    while (request && zero_copy_awaits(request)) {
        request = request->next;
    }
    if (!request) {
        return false;
    }
    struct p2p_stream *taker = link->has_paths ? path_for_piece(link, stream) : stream;
    if (taker != stream) {
        mark_blocked(p2p, taker); /* its turn comes in the next round */
        return false;
    }
    continue_message(p2p, stream, request);
    return true;
}

/* The frame under way has gone out. */
static void frame_done(struct p2p *p2p, struct p2p_stream *stream) {
    struct p2p_request *request = stream->out_request;
    stream->header_bytes = stream->header_at = 0;
    stream->out_request = NULL;
    free(stream->payload_copy);
    stream->payload_copy = NULL;
    if (request && request->state == REQUEST_FLOWING && request->moved == request->bytes) {
        link_take(p2p, stream->link, &stream->link->offered, request);
        request_finish(p2p, request, 0, NULL);
    }
}

/* ---- writing ---- */

/* Counts `n` written bytes off what was given. */
static void advance(struct p2p *p2p, struct p2p_stream *stream, size_t n) {
    stream->sent += n;
    if (stream->header_at == 0 && stream->control.len > 0) {
        size_t part = n < stream->control.len ? n : stream->control.len;
        buf_consume(&stream->control, part);
        n -= part;
    }
    if (stream->header_bytes == 0) {
        return;
    }
    size_t part = stream->header_bytes - stream->header_at;
    part = n < part ? n : part;
    stream->header_at += part;
    n -= part;
    assert(n <= stream->payload_left);
    stream->payload += n;
    stream->payload_left -= n;
    if (stream->out_request) {
        stream->out_request->moved += n;
    }
    if (stream->payload_left == 0 && stream->header_at == stream->header_bytes) {
        frame_done(p2p, stream);
    }
}

/* Frames without data go between others: before the frame under way if nothing of that has been written. */
static int gather_parts(struct p2p_stream *stream, struct iovec parts[3], size_t *out_total) {
    int count = 0;
    if (stream->header_at == 0 && stream->control.len > 0) {
        parts[count++] = (struct iovec){.iov_base = buf_bytes(&stream->control), .iov_len = stream->control.len};
    }
    if (stream->header_at < stream->header_bytes) {
        parts[count++] = (struct iovec){.iov_base = stream->header + stream->header_at,
                                        .iov_len = stream->header_bytes - stream->header_at};
    }
    if (stream->header_bytes > 0 && stream->payload_left > 0) {
        parts[count++] =
            (struct iovec){.iov_base = (void *)(uintptr_t)stream->payload, .iov_len = stream->payload_left};
    }
    *out_total = 0;
    for (int i = 0; i < count; i++) {
        *out_total += parts[i].iov_len;
    }
    return count;
}

bool stream_flush(struct p2p *p2p, struct p2p_stream *stream) {
    bool moved = false;
    if (stream->doom != 0) {
        fail_doomed(p2p, stream);
        return true;
    }
    if (stream->is_broken) {
        return false;
    }
    size_t written = 0;
    for (int frames = 0; frames < FRAMES_PER_FLUSH && written < BYTES_PER_FLUSH && stream->io; frames++) {
        if (stream->header_bytes == 0) {
            (void)next_frame(p2p, stream);
        }
        struct iovec parts[3];
        size_t total;
        int count = gather_parts(stream, parts, &total);
        const struct link_kind *kind = stream->io->kind;
        if (count == 0 && !(kind->flush && kind->flush(stream->io) == LINK_AGAIN)) {
            return moved;
        }
        ssize_t n = count > 0 ? zero_copy_write(p2p, stream, parts, count) : LINK_AGAIN;
        if (n == LINK_BROKEN) {
            stream_break(p2p, stream, errno);
            return true;
        }
        advance(p2p, stream, (size_t)n);
        p2p->has_written = p2p->has_written || (n > 0 && stream->io && stream->io->fd >= 0);
        moved = moved || n > 0;
        written += (size_t)n;
        if ((size_t)n < total || total == 0) {
            break;
        }
    }
    if (stream->io) {
        mark_blocked(p2p, stream);
    }
    return moved;
}

bool link_flush(struct p2p *p2p, struct p2p_link *link) {
    bool moved = false;
    for (uint8_t i = 0; i < link->stream_count && link->state == LINK_OPEN; i++) {
        if (link->streams[i] && !link->streams[i]->is_blocked) {
            moved = stream_flush(p2p, link->streams[i]) || moved;
        }
    }
    return moved;
}

/* ---- what the receiver says ---- */

void link_cleared(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame) {
    struct p2p_request *request = list_find(&link->offered, (uint32_t)frame->number);
    if (!request || request->state != REQUEST_OFFERED) {
        return; /* withdrawn meanwhile */
    }
    request->peer_id = (uint32_t)frame->fingerprint;
    request->state = REQUEST_CLEARED;
    if (frame->tag > request->allotted && frame->tag < request->bytes) { /* so much has been read here */
        request->allotted = request->moved = (size_t)frame->tag;
    }
    if (link->has_paths && !link->cleared.first) {
        paths_begin(link);
    }
    request->has_tail = zero_copy_suits(p2p, link, request);
    link_take(p2p, link, &link->offered, request);
    link_put(p2p, link, &link->cleared, request);
    (void)link_flush(p2p, link);
}

void link_finished(struct p2p *p2p, struct p2p_link *link, const struct wire_frame *frame) {
    struct p2p_request *request = list_find(&link->offered, (uint32_t)frame->number);
    if (request && request->state == REQUEST_OFFERED) {
        request->moved = request->bytes;
        link_take(p2p, link, &link->offered, request);
        request_finish(p2p, request, 0, NULL);
    }
}

void stream_disown(struct p2p_stream *stream, struct p2p_request *request) {
    zero_copy_disown(stream, request);
    if (stream->out_request != request) {
        return;
    }
    stream->out_request = NULL;
    if (stream->payload_left == 0) {
        return;
    }
    stream->payload_copy = malloc(stream->payload_left);
    if (!stream->payload_copy) {
        stream->doom = MUSTER_ENOMEM;
        return;
    }
    memcpy(stream->payload_copy, stream->payload, stream->payload_left);
    stream->payload = stream->payload_copy;
}
