/* Frames coming in: reading a stream, and taking its bytes apart into frames; see p2p_impl.h and docs/formats/wire.md.
 *
 * Short frames are read together into the stream's staging area. Of a long payload everything that is not staged
 * already goes from the socket straight into the user's buffer; what is to be consumed (reduced) passes through one
 * bounce buffer, small enough to stay in the cache. What a frame means for messages is left to p2p_message.c, bringing
 * its payload there to p2p_place.c. */
#include <errno.h>
#include <string.h>

#include "base/status.h"
#include "comm/p2p/p2p_impl.h"

enum { READS_PER_ROUND = 8 /* of one stream; then others have their turn */ };

/* ---- frames ---- */

static void take_notice(struct p2p *p2p, struct p2p_stream *stream) {
    struct p2p_notice notice = {.kind = (enum p2p_notice_kind)stream->in.bytes,
                                .subject = stream->in.group,
                                .origin = (uint32_t)stream->in.tag,
                                .spared = stream->in.number,
                                .blamed = {(uint32_t)stream->in.fingerprint, (int32_t)(stream->in.fingerprint >> 32)},
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
    bool carries_credit = is_main && stream->in.kind != WIRE_NOTICE && stream->in.kind != WIRE_GOODBYE &&
                          stream->in.kind != WIRE_DATA && stream->in.kind != WIRE_LEFT;
    if (carries_credit) {
        credit_hear(&link->credit[stream->in.lane], stream->in.credit);
    }
    switch (stream->in.kind) {
    case WIRE_BEGIN:
        if (is_main) {
            message_begins(p2p, stream);
        }
        break;
    case WIRE_DATA:
        message_continues(stream);
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
        left_check_any(p2p);
        break;
    case WIRE_LEFT:
        (void)short_take(p2p, link);
        link_leaves_group(p2p, link, stream->in.group);
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
    if (stream->in.flags & WIRE_AWAITED) {
        zero_copy_acknowledge(stream);
    }
    if (target == PAYLOAD_REQUEST) {
        message_finish_if_whole(p2p, stream->link, stream->in_request);
    } else if (target == PAYLOAD_SMALL && stream->in.kind == WIRE_NOTICE) {
        take_notice(p2p, stream);
    } else if (target == PAYLOAD_ARRIVAL && stream->in.flags & WIRE_READABLE) {
        arrival_offered(p2p, stream->link, stream->in_arrival);
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
            payload_deliver(stream, stream->staging + stream->staged_at, n);
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
        size_t room = payload_has_bounce(p2p) ? P2P_BOUNCE_BYTES : 0; /* none: by way of the staging area */
        place.iov_base = p2p->bounce;
        place.iov_len = stream->in_left < room ? stream->in_left : room;
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
        payload_deliver(stream, parts[0].iov_base, placed);
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

bool stream_take_back(struct p2p *p2p, struct p2p_stream *stream) {
    bool has_freed = false, moved = stream->held_count > 0 && zero_copy_reap(p2p, stream, &has_freed);
    if (has_freed && stream->link->cleared.first) {
        (void)link_flush(p2p, stream->link);
    }
    return moved;
}

bool stream_read(struct p2p *p2p, struct p2p_stream *stream) {
    if (stream->is_being_read) { /* a notice on it has led here: the rest is read when that is done */
        return false;
    }
    stream->is_being_read = true;
    bool moved = stream_take_back(p2p, stream);
    moved = read_some(p2p, stream) || moved;
    stream->is_being_read = false;
    return moved;
}
