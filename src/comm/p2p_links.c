/* The life of links: how they are made, end well, and fail; see p2p_impl.h. */
#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/p2p_impl.h"

enum { STREAMS_NEAR = 1, STREAMS_FAR = 4 }; /* one process feeds loopback's whole bandwidth with one connection */

/* ---- streams ---- */

int stream_open(struct p2p *p2p, struct p2p_link *link, struct link *io, uint8_t index, bool is_watch, bool is_mine) {
    struct p2p_stream *stream = io ? calloc(1, sizeof *stream) : NULL;
    uint8_t *staging = stream ? malloc(P2P_STAGING_BYTES) : NULL;
    if (!staging) {
        free(stream);
        if (io) {
            io->kind->close(io);
        }
        return status_fail(MUSTER_ENOMEM, "no memory for a connection to rank %u", (unsigned)link->peer);
    }
    stream->io = io;
    stream->link = link;
    stream->index = index;
    stream->is_watch = is_watch;
    stream->staging = staging;
    buf_init(&stream->control, P2P_CONTROL_BYTES_MAX);
    if (is_watch) {
        link->watches[is_mine ? 0 : 1] = stream;
    } else {
        link->streams[index] = stream;
        link->streams_open++;
        link->state = LINK_OPEN;
        stream->next_open = p2p->open;
        if (p2p->open) {
            p2p->open->previous_open = stream;
        }
        p2p->open = stream;
        p2p->open_count++;
    }
    attend_add(p2p, stream);
    if (index == 0 && p2p->has_failures) {
        notice_tell_all(p2p, stream);
    }
    return 0;
}

static void forget(struct p2p *p2p, struct p2p_stream *stream) {
    struct p2p_link *link = stream->link;
    if (stream->is_watch) {
        link->watches[link->watches[0] == stream ? 0 : 1] = NULL;
        return;
    }
    link->streams[stream->index] = NULL;
    link->streams_open--;
    if (stream->previous_open) {
        stream->previous_open->next_open = stream->next_open;
    } else {
        p2p->open = stream->next_open;
    }
    if (stream->next_open) {
        stream->next_open->previous_open = stream->previous_open;
    }
    p2p->open_count--;
}

static void unblock(struct p2p *p2p, struct p2p_stream *stream) {
    for (struct p2p_stream **at = &p2p->blocked; *at; at = &(*at)->next_blocked) {
        if (*at == stream) {
            *at = stream->next_blocked;
            break;
        }
    }
    stream->is_blocked = false;
}

void stream_close(struct p2p *p2p, struct p2p_stream *stream) {
    attend_remove(p2p, stream);
    if (stream->is_blocked) {
        unblock(p2p, stream);
    }
    forget(p2p, stream);
    stream->io->kind->close(stream->io);
    stream->io = NULL;
    stream->next_open = p2p->closed; /* freed when the lock is released */
    p2p->closed = stream;
}

/* ---- the end of a link ---- */

static void finish_all(struct p2p *p2p, struct p2p_link *link, struct p2p_list *list, int code, const char *sentence) {
    while (list->first) {
        struct p2p_request *request = list->first;
        link_take(p2p, link, list, request);
        request_finish(p2p, request, code, sentence);
    }
}

static void finish_requests(struct p2p *p2p, struct p2p_link *link, int code, const char *sentence) {
    struct p2p_list *lists[] = {&link->queue[0], &link->queue[1], &link->offered, &link->cleared,
                                &link->posted,   &link->filling,  &link->reading};
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        finish_all(p2p, link, lists[i], code, sentence);
    }
}

static void close_streams(struct p2p *p2p, struct p2p_link *link) {
    for (size_t i = 0; i < P2P_STREAMS_MAX; i++) {
        if (link->streams[i]) {
            stream_close(p2p, link->streams[i]);
        }
    }
    for (size_t i = 0; i < 2; i++) {
        if (link->watches[i]) {
            stream_close(p2p, link->watches[i]);
        }
    }
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
    link->state = LINK_FAILED;
    link->code = code;
    link->sentence = strdup(sentence);
    close_streams(p2p, link);
    dial_cancel(p2p, link);
    finish_requests(p2p, link, code, sentence);
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

void link_lost(struct p2p *p2p, struct p2p_link *link, int error_number) {
    char peer[P2P_PEER_NAME_MAX];
    (void)link_peer_name(p2p, link, peer);
    if (error_number == 0 || error_number == ECONNRESET || error_number == EPIPE) {
        link_fail(p2p, link, MUSTER_EPEER, "%s has died: its connection to rank %u was closed", peer,
                  (unsigned)p2p->config.rank);
    } else {
        link_fail(p2p, link, MUSTER_EPEER, "%s cannot be reached any more from rank %u: %s", peer,
                  (unsigned)p2p->config.rank, strerror(error_number));
    }
}

void link_left(struct p2p *p2p, struct p2p_link *link) {
    for (size_t i = 0; i < P2P_STREAMS_MAX; i++) {
        if (link->streams[i] && !link->streams[i]->said_goodbye) {
            return;
        }
    }
    link->state = LINK_LEFT;
    char sentence[P2P_SENTENCE_MAX];
    (void)str_format(sentence, sizeof sentence, "rank %u has left: it has freed its group", (unsigned)link->peer);
    finish_requests(p2p, link, MUSTER_EPEER, sentence);
}

/* ---- the making of a link ---- */

struct p2p_link *link_entry(struct p2p *p2p, uint32_t peer) {
    assert(peer < p2p->config.size);
    if (!p2p->links[peer]) {
        struct p2p_link *link = calloc(1, sizeof *link);
        if (link) {
            link->peer = peer;
            link->state = LINK_NEW;
            link->stream_count = 1;
        }
        p2p->links[peer] = link;
    }
    return p2p->links[peer];
}

void link_free(struct p2p *p2p, struct p2p_link *link) {
    if (!link) {
        return;
    }
    close_streams(p2p, link);
    for (struct p2p_arrival *arrival = link->arrivals, *next; arrival; arrival = next) {
        next = arrival->next;
        free(arrival);
    }
    free(link->sentence);
    free(link);
}

static int stream_count(const struct p2p *p2p, const struct p2p_link *link) {
    uint32_t count = p2p->config.stream_count;
    if (count == 0) {
        count = link->contact.host == p2p->contact.host ? STREAMS_NEAR : STREAMS_FAR;
    }
    return (int)(count < P2P_STREAMS_MAX ? count : P2P_STREAMS_MAX);
}

/* Fetches the peer's contact, without the lock: other threads go on meanwhile, and may do the same. */
static int look_up(struct p2p *p2p, struct p2p_link *link, int64_t deadline_ns) {
    uint8_t bytes[P2P_CONTACT_BYTES_MAX];
    size_t len = 0;
    struct wire_contact contact;
    p2p_unlock(p2p);
    int code = p2p->config.contact ? p2p->config.contact(p2p->config.context, link->peer, deadline_ns, bytes, &len)
                                   : status_fail(MUSTER_ENOENT, "there are no contacts");
    if (code == 0) {
        code = wire_contact_decode(bytes, len, &contact);
    }
    if (code == 0 && contact.speaks_tls != (p2p->config.tls != NULL)) {
        code = status_fail(
            MUSTER_EINVAL, "%s: set MUSTER_TLS_CERT, MUSTER_TLS_KEY and MUSTER_TLS_CA for all, or for none",
            contact.speaks_tls ? "it speaks TLS, and this rank does not" : "this rank speaks TLS, and it does not");
    }
    p2p_lock(p2p);
    if (code != 0) {
        return status_prefix(code, "connect to rank %u", (unsigned)link->peer);
    }
    if (!link->has_contact) {
        link->contact = contact;
        link->has_contact = true;
        if (link->state == LINK_NEW) {
            link->stream_count = (uint8_t)stream_count(p2p, link);
        }
    }
    return 0;
}

static int failed_before(const struct p2p_link *link) {
    return status_fail(link->code, "%s", link->sentence ? link->sentence : muster_strerror(link->code));
}

int link_open(struct p2p *p2p, uint32_t peer, int64_t deadline_ns, struct p2p_link **out) {
    struct p2p_link *link = link_entry(p2p, peer);
    if (!link) {
        return status_fail(MUSTER_ENOMEM, "no memory for a link to rank %u", (unsigned)peer);
    }
    int code = 0;
    if (link->state == LINK_NEW) {
        if (rings_local(p2p, peer) != UINT32_MAX) {
            code = rings_open(p2p, link);
        } else if (link->has_contact || (code = look_up(p2p, link, deadline_ns)) == 0) {
            code = link->state == LINK_NEW ? dial_start(p2p, link, WIRE_PURPOSE_STREAM, 0) : 0;
        }
    }
    if (code == 0 && link->state == LINK_FAILED) {
        code = failed_before(link);
    }
    *out = link;
    return code;
}

int p2p_watch(struct p2p *p2p, uint32_t peer, int64_t deadline_ns) {
    p2p_lock(p2p);
    struct p2p_link *link = link_entry(p2p, peer);
    int code = link ? 0 : status_fail(MUSTER_ENOMEM, "no memory for a link to rank %u", (unsigned)peer);
    if (code == 0 && !link->has_contact) {
        code = look_up(p2p, link, deadline_ns);
    }
    if (code == 0 && link->state == LINK_FAILED) {
        code = failed_before(link);
    } else if (code == 0 && !link->watches[0]) {
        code = dial_start(p2p, link, WIRE_PURPOSE_WATCH, 0);
    }
    p2p_unlock(p2p);
    return code;
}
