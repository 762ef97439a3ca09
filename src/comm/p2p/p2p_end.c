/* How links end: a peer that leaves in good order says goodbye, one that dies does not; see p2p_impl.h.
 *
 * Ranks that learn of a failure leave soon, and so their connections end, too. A rank that left because of a failure
 * must not be blamed for it:
 *
 * 1. A rank that leaves sends what it knows (notices) on every connection, then a goodbye. It waits, at most
 *    P2P_GOODBYE_MS, until the kernels of the peers have it; longer where nothing has failed and a peer is only late.
 *    On a connection that it is still making, both follow the greeting at once, without waiting for the answer: the
 *    peer may be stopped. On a connection without any greeting yet, it waits P2P_INTRODUCE_MS.
 * 2. Everything that came before an end is read before the end is judged, on all connections of the link. A failed
 *    write is not an end: what is left to read says why.
 * 3. An end after a goodbye, on any connection of the link, is not a death. An end without one is a death: all others
 *    are told at once.
 * 4. A connection that cannot be made says that the peer is gone, but not why. The others have P2P_EXPLAIN_MS to tell.
 * 5. A peer that is reported dead counts as dead here when all that it sent has been read: at the end of its
 *    connections, or P2P_LAST_BYTES_MS after the report if no end comes (its machine is gone).
 *
 * So a rank that fails because a peer left has heard before why that peer left. On every path the first cause is known
 * before its consequences. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/p2p/p2p_impl.h"

enum { READS_MAX = 1 << 16 /* of one stream at its end; a peer that is gone has sent less */ };

/* ---- requests and streams ---- */

/* Withdrawn first: connections of a peer that has left are still open, perhaps within a frame. */
static void finish_all(struct p2p *p2p, struct p2p_list *list, int code, const char *sentence) {
    while (list->first) {
        struct p2p_request *request = list->first;
        request_withdraw(p2p, request);
        request_finish(p2p, request, code, sentence);
    }
}

static void finish_requests(struct p2p *p2p, struct p2p_link *link, int code, const char *sentence) {
    struct p2p_list *lists[] = {&link->queue[0], &link->queue[1], &link->offered, &link->cleared,
                                &link->posted,   &link->filling,  &link->reading};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        finish_all(p2p, lists[i], code, sentence);
    }
}

void link_close_streams(struct p2p *p2p, struct p2p_link *link) {
    for (size_t i = 0; i < P2P_CONNECTIONS_MAX; i++) {
        struct p2p_stream *stream = link_connection(link, i);
        if (stream) {
            stream_close(p2p, stream);
        }
    }
}

/* ---- failing ---- */

/* Messages that will never be whole, or that lie in memory which is gone. */
static void drop_parts(struct p2p_link *link) {
    struct p2p_arrival *next;
    for (struct p2p_arrival *arrival = link->arrivals; arrival; arrival = next) {
        const struct wire_frame *frame = &arrival->frame;
        next = arrival->next;
        if (arrival->have < frame->payload || frame->payload < frame->bytes || (frame->flags & WIRE_READABLE)) {
            arrival_remove(link, arrival);
            free(arrival);
        }
    }
}

static void pay_notice(struct p2p *p2p, struct p2p_link *link, int code, const char *sentence) {
    struct p2p_notice notice = {
        .kind = P2P_NOTICE_PEER_DEAD, .subject = link->peer, .origin = link->told_by, .code = code};
    notice.blamed = link->blamed;
    (void)str_format(notice.sentence, sizeof notice.sentence, "%s", sentence);
    link->owes_notice = false;
    notice_report(p2p, &notice);
}

void link_fail(struct p2p *p2p, struct p2p_link *link, int code, const char *format, ...) {
    if (link->state == LINK_FAILED) {
        return;
    }
    char sentence[P2P_SENTENCE_MAX];
    va_list arguments;
    va_start(arguments, format);
    (void)vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    p2p->dying_count -= link->is_dying ? 1 : 0;
    link->is_dying = false;
    link->state = LINK_FAILED;
    link->code = code;
    free(link->sentence);
    link->sentence = strdup(sentence);
    link_close_streams(p2p, link);
    dial_cancel(p2p, link);
    drop_parts(link);
    finish_requests(p2p, link, code, sentence);
    if (link->owes_notice) {
        pay_notice(p2p, link, code, sentence);
    }
    /* Whatever the reason: without a link the two cannot be in one job any more. */
    peer_found_dead(p2p, link->peer, code, sentence);
}

char *link_peer_name(const struct p2p *p2p, const struct p2p_link *link, char out[P2P_PEER_NAME_MAX]) {
    const struct p2p_config *config = &p2p->config;
    const char *host = config->host_name ? config->host_name(config->context, link->peer) : NULL;
    (void)str_format(out, P2P_PEER_NAME_MAX, "rank %u%s%s", (unsigned)link->peer, host ? " on host " : "",
                     host ? host : "");
    return out;
}

void link_lost(struct p2p *p2p, struct p2p_link *link, int error_number, const char *reason, const char *address) {
    char peer[P2P_PEER_NAME_MAX], sentence[P2P_SENTENCE_MAX];
    (void)link_peer_name(p2p, link, peer);
    if (!reason && (error_number == 0 || error_number == ECONNRESET || error_number == EPIPE)) {
        (void)str_format(sentence, sizeof sentence, "%s has died: its connection to rank %u was closed", peer,
                         (unsigned)p2p->config.rank);
    } else {
        (void)str_format(sentence, sizeof sentence, "%s cannot be reached any more from rank %u%s%s: %s", peer,
                         (unsigned)p2p->config.rank, *address ? " at " : "", address,
                         reason ? reason : strerror(error_number));
    }
    if (p2p->is_leaving) {
        link_fail(p2p, link, MUSTER_EPEER, "%s", sentence);
    } else {
        peer_found_dead(p2p, link->peer, MUSTER_EPEER, sentence);
        link_bury(p2p, link, sentence); /* if it was called dead before */
    }
}

/* ---- dying ---- */

void link_read_out(struct p2p *p2p, struct p2p_link *link) {
    for (size_t i = 0; i < P2P_CONNECTIONS_MAX; i++) {
        struct p2p_stream *stream = link_connection(link, i);
        for (int reads = 0; stream && stream->io && reads < READS_MAX && stream_read(p2p, stream); reads++) {
        }
    }
    if (link->state == LINK_OPEN) {
        (void)short_take(p2p, link);
    }
}

static bool has_socket(const struct p2p_link *link) {
    bool has = link->watches[0] || link->watches[1];
    for (size_t i = 0; i < P2P_STREAMS_MAX; i++) {
        has = has || (link->streams[i] && link->streams[i]->io->fd >= 0);
    }
    return has;
}

static void bury(struct p2p *p2p, struct p2p_link *link) {
    link_fail(p2p, link, MUSTER_EPEER, "%s", link->sentence ? link->sentence : "a peer has died");
}

void link_bury(struct p2p *p2p, struct p2p_link *link, const char *sentence) {
    if (link->is_dying || link->state == LINK_FAILED) {
        return;
    }
    link->is_dying = true;
    link->dying_until_ns = clock_monotonic_ns() + P2P_LAST_BYTES_MS * CLOCK_NS_PER_MS;
    p2p->dying_count++;
    free(link->sentence);
    link->sentence = strdup(sentence);
    dial_cancel(p2p, link);
    link_read_out(p2p, link);
    if (link->is_dying && !has_socket(link)) {
        bury(p2p, link);
    }
    attend_set_timer(p2p);
}

void links_bury_late(struct p2p *p2p, int64_t now_ns) {
    for (uint32_t peer = 0; p2p->dying_count > 0 && peer < p2p->config.size; peer++) {
        struct p2p_link *link = p2p->links[peer];
        if (link && link->is_dying && now_ns >= link->dying_until_ns) {
            link_read_out(p2p, link);
            bury(p2p, link);
        }
    }
}

/* ---- leaving ---- */

void link_depart(struct p2p *p2p, struct p2p_link *link) {
    link->state = LINK_LEFT;
    char sentence[P2P_SENTENCE_MAX];
    finish_requests(p2p, link, MUSTER_EPEER, left_describe(p2p, link, sentence));
    left_check_any(p2p);
}

void link_left(struct p2p *p2p, struct p2p_link *link) {
    for (size_t i = 0; i < P2P_STREAMS_MAX; i++) {
        if (link->streams[i] && !link->streams[i]->said_goodbye) {
            return;
        }
    }
    link_depart(p2p, link);
}

void stream_say_goodbye(struct p2p *p2p, struct p2p_stream *stream) {
    struct wire_frame frame = {.kind = WIRE_GOODBYE};
    stream_control(p2p, stream, &frame, NULL);
    if (stream->io) {
        (void)stream_flush(p2p, stream);
    }
}

/* ---- ends of streams ---- */

void stream_break(struct p2p *p2p, struct p2p_stream *stream, int error_number) {
    if (stream->io->fd < 0) { /* a ring: its memory is damaged */
        link_lost(p2p, stream->link, error_number, NULL, "");
        return;
    }
    stream->is_broken = true;
    stream->error_number = error_number;
    (void)shutdown(stream->io->fd, SHUT_RDWR); /* so that reading comes to an end, whatever the error was */
}

/* Of a connection whose end is the network's: what was sent last may be lost. */
static bool tells_of_loss(int error_number) {
    return error_number != 0 && error_number != ECONNRESET && error_number != EPIPE;
}

void stream_ended(struct p2p *p2p, struct p2p_stream *stream, int error_number) {
    struct p2p_link *link = stream->link;
    bool is_main = stream->index == 0 && !stream->is_watch;
    error_number = error_number != 0 ? error_number : stream->error_number;
    /* A further connection may end while it is being made, when the peer leaves: without data under way that is no
     * loss, and the first connection tells why. */
    bool is_spare = stream->index > 0 && stream->in_left == 0 && stream->staged == 0 && stream->header_bytes == 0 &&
                    !link->filling.first && !link->cleared.first && !tells_of_loss(error_number);
    char reason[P2P_REASON_MAX], address[NET_ADDRESS_TEXT_MAX];
    (void)str_format(address, sizeof address, "%s", link->has_paths ? stream->peer_address : "");
    const char *told = link_reason(stream->io);
    (void)str_format(reason, sizeof reason, "%s", told ? told : "");
    if (!told && (error_number == ETIMEDOUT || error_number == EHOSTUNREACH || error_number == ENETUNREACH)) {
        silence_describe(p2p, stream, error_number, reason);
        told = reason;
    }
    stream_close(p2p, stream);
    if (!is_spare && !link->said_goodbye) {
        link_read_out(p2p, link); /* the goodbye may be on another connection; and what was sent counts in any case */
    }
    if (link->state == LINK_FAILED) {
        return;
    }
    if (link->is_dying) {
        if (!has_socket(link)) {
            bury(p2p, link);
        }
    } else if (!is_spare && !link->said_goodbye) {
        link_lost(p2p, link, error_number, told ? reason : NULL, address);
    } else {
        link->is_leaving = link->is_leaving || (is_main && link->said_goodbye);
        if (link->is_leaving && link->state == LINK_OPEN) {
            link_left(p2p, link);
        }
    }
}
