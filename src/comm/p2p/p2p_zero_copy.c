/* Long messages that the kernel sends out of their buffers (MSG_ZEROCOPY), instead of out of a copy; see p2p_impl.h.
 *
 * The kernel reads a buffer until the peer's kernel has acknowledged the bytes, and tells when it has given them back.
 * But a message may be taken back before (a time-out, a failed group), and then its buffer is its owner's again at
 * once, to be written to or freed. So its last bytes (the tail) are always copied, and go out only when the kernel has
 * given back all others. That has two effects:
 *
 * 1. A send that is done has nothing left in the kernel: whoever waits for it need not know how it went.
 * 2. A message that was taken back meanwhile never becomes whole at its receiver, whatever is in the buffer by then.
 *    What the kernel still sends of it is read there and passed over, or fills a receive that ends with the failure.
 *
 * Each write that the kernel holds memory of has a number. A stream keeps, by number, whose memory it is, until it is
 * given back; of a message that was taken back, nobody's. */
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/p2p/p2p_impl.h"

enum {
    TAIL_BYTES = 1 << 10,           /* goes with its header in one write */
    HELD_MAX = 256,                 /* writes of one stream at a time, a power of 2 */
    HELD_BYTES_LEAST = 8 << 10,     /* of one write: below, to hold memory costs more than to copy it */
    MESSAGE_BYTES_LEAST = 64 << 10, /* of one message */
    SETTING_BYTES_MAX = 40
};

/* ---- the setting ---- */

static bool suffix_read(const char *text, bool *out_always) {
    *out_always = strcmp(text, ",always") == 0;
    return *text == '\0' || *out_always;
}

int p2p_zero_copy_parse(const char *text, struct p2p_zero_copy *out) {
    uint64_t value = 0;
    const char *rest = str_read_bytes(text, &value);
    *out = (struct p2p_zero_copy){0};
    if (!rest || value > SIZE_MAX >> 1 || !suffix_read(rest, &out->always)) {
        return status_fail(MUSTER_EINVAL,
                           "MUSTER_TCP_ZERO_COPY: '%.*s' is no number of bytes, such as 1M: messages of that size and "
                           "longer ones are sent without a copy (0: none)",
                           SETTING_BYTES_MAX, text);
    }
    out->bytes_min = value == 0 || value >= MESSAGE_BYTES_LEAST ? (size_t)value : MESSAGE_BYTES_LEAST;
    return 0;
}

int p2p_zero_copy_from_env(struct p2p_zero_copy *out) {
    const char *text = getenv("MUSTER_TCP_ZERO_COPY");
    *out = (struct p2p_zero_copy){0};
    return text && *text ? p2p_zero_copy_parse(text, out) : 0;
}

/* ---- which messages ---- */

void zero_copy_open(const struct p2p *p2p, struct p2p_stream *stream) {
    const struct link_kind *kind = stream->io->kind;
    stream->may_hold = p2p->config.zero_copy.bytes_min > 0 && !stream->is_watch && kind->allow_zero_copy &&
                       kind->allow_zero_copy(stream->io);
}

bool zero_copy_suits(const struct p2p *p2p, const struct p2p_link *link, const struct p2p_request *request) {
    size_t least = p2p->config.zero_copy.bytes_min;
    return least > 0 && !link->copies_all && link->streams[0] && link->streams[0]->may_hold &&
           request->bytes - request->allotted >= least;
}

/* Where the tail begins. */
static size_t tail_of(const struct p2p_request *request) {
    return (request->bytes - TAIL_BYTES) / WIRE_ALIGNMENT * WIRE_ALIGNMENT;
}

size_t zero_copy_end(const struct p2p_request *request) {
    return request->has_tail && request->allotted < tail_of(request) ? tail_of(request) : request->bytes;
}

bool zero_copy_awaits(const struct p2p_request *request) {
    return request->has_tail && request->allotted == tail_of(request) &&
           (request->held_count > 0 || request->moved < request->allotted);
}

/* ---- writing ---- */

static void stop(struct p2p_link *link, const char *why) {
    if (!link->copies_all) {
        link->copies_all = true;
        log_info("no more zero-copy sends to rank %u: %s", (unsigned)link->peer, why);
    }
}

static uint32_t held_by_link(const struct p2p_link *link) {
    uint32_t count = 0;
    for (size_t i = 0; i < P2P_STREAMS_MAX; i++) {
        count += link->streams[i] ? link->streams[i]->held_count : 0;
    }
    return count;
}

static bool has_place(struct p2p_stream *stream) {
    if (!stream->held) {
        stream->held = calloc(HELD_MAX, sizeof *stream->held);
    }
    return stream->held && stream->held_next - stream->held_first < HELD_MAX;
}

ssize_t zero_copy_write(struct p2p *p2p, struct p2p_stream *stream, const struct iovec *parts, int part_count) {
    const struct link_kind *kind = stream->io->kind;
    struct p2p_request *request = stream->out_request;
    bool may = stream->may_be_held && request && stream->payload_left >= HELD_BYTES_LEAST &&
               !stream->link->copies_all && has_place(stream);
    if (!may) {
        return kind->write(stream->io, parts, part_count);
    }
    enum link_hold hold;
    ssize_t n = kind->write_zero_copy(stream->io, parts, part_count, &hold);
    if (hold == LINK_HELD) {
        stream->held[stream->held_next++ % HELD_MAX] = (struct p2p_held){request, true};
        stream->held_count++;
        request->held_count++;
        p2p->zero_copy_writes++;
    } else if (hold == LINK_NO_ROOM && held_by_link(stream->link) == 0) {
        stop(stream->link, "the kernel may not hold its memory (RLIMIT_MEMLOCK, or net.core.optmem_max)");
    }
    return n;
}

/* ---- given back ---- */

/* true: it was the last write that its message had in the kernel. */
static bool give_back(struct p2p_stream *stream, uint32_t number) {
    struct p2p_held *held = &stream->held[number % HELD_MAX];
    if (!held->is_out) {
        return false;
    }
    held->is_out = false;
    stream->held_count--;
    return held->request && --held->request->held_count == 0;
}

/* They come in order, but for connections that lose packets: a place is free again when all before it are. */
static bool take_release(struct p2p_stream *stream, const struct link_release *release) {
    bool has_freed = false;
    for (uint32_t number = stream->held_first; number != stream->held_next; number++) {
        if (number - release->first <= release->last - release->first) {
            has_freed = give_back(stream, number) || has_freed;
        }
    }
    while (stream->held_first != stream->held_next && !stream->held[stream->held_first % HELD_MAX].is_out) {
        stream->held_first++;
    }
    return has_freed;
}

bool zero_copy_reap(const struct p2p *p2p, struct p2p_stream *stream, bool *out_has_freed) {
    struct p2p_link *link = stream->link;
    struct link_release release;
    bool has_moved = false;
    *out_has_freed = false;
    while (stream->held_count > 0 && stream->io->kind->released(stream->io, &release)) {
        has_moved = true;
        *out_has_freed = take_release(stream, &release) || *out_has_freed;
        if (release.was_copied && !p2p->config.zero_copy.always) {
            stop(link, "the kernel copies what they give it, as it does within a machine");
        }
    }
    return has_moved;
}

/* By itself the kernel may wait for 40 ms, for data that goes the other way. */
void zero_copy_acknowledge(const struct p2p_stream *stream) {
    const int now = 1;
    if (stream->io->fd >= 0) {
        (void)setsockopt(stream->io->fd, IPPROTO_TCP, TCP_QUICKACK, &now, sizeof now);
    }
}

void zero_copy_disown(struct p2p_stream *stream, struct p2p_request *request) {
    for (uint32_t number = stream->held_first; request->held_count > 0 && number != stream->held_next; number++) {
        struct p2p_held *held = &stream->held[number % HELD_MAX];
        if (held->request == request && held->is_out) {
            held->request = NULL;
            request->held_count--;
        }
    }
}
