/* How links are made; see p2p_impl.h, and p2p_end.c for how they end. */
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
#include "comm/p2p/p2p_impl.h"

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
    if (attend_add(p2p, stream) != 0) {
        int code = status_fail_errno(errno, "watch the connection to rank %u", (unsigned)link->peer);
        attend_remove(p2p, stream);
        io->kind->close(io);
        free(staging);
        free(stream);
        return code;
    }
    if (is_watch) {
        link->watches[is_mine ? 0 : 1] = stream;
        *(is_mine ? &link->is_watching : &link->is_watched) = true;
        p2p->completed++; /* p2p_await_watches() may wait for it */
    } else {
        link->streams[index] = stream;
        zero_copy_open(p2p, stream);
        path_note(link, stream);
        link->streams_open++;
        link->state = LINK_OPEN;
        stream->next_open = p2p->open;
        if (p2p->open) {
            p2p->open->previous_open = stream;
        }
        p2p->open = stream;
        p2p->open_count++;
    }
    if (index == 0 && p2p->has_failures) {
        notice_tell_all(p2p, stream);
    }
    if (index == 0 && !is_watch && p2p->untold_count > 0 && stream->io) {
        left_tell_new(p2p, stream);
    }
    if (p2p->is_leaving && stream->io) {
        stream_say_goodbye(p2p, stream);
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
    link_close_streams(p2p, link);
    for (struct p2p_arrival *arrival = link->arrivals, *next; arrival; arrival = next) {
        next = arrival->next;
        free(arrival);
    }
    free(link->sentence);
    free(link->left);
    free(link);
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
            paths_choose(p2p, link);
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
    if (link->state == LINK_NEW && link->said_goodbye) {
        link->state = LINK_LEFT;
    }
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

struct ring_wait {
    struct p2p *p2p;
    uint32_t next, before;
};

static bool ring_is_whole(void *argument) {
    const struct ring_wait *wait = argument;
    p2p_lock(wait->p2p);
    const struct p2p_link *next = wait->p2p->links[wait->next], *before = wait->p2p->links[wait->before];
    bool has_next = next && (next->is_watching || next->said_goodbye || next->state == LINK_FAILED);
    bool has_before = before && (before->is_watched || before->said_goodbye || before->state == LINK_FAILED);
    p2p_unlock(wait->p2p);
    return has_next && has_before;
}

int p2p_await_watches(struct p2p *p2p, struct comm_waiter *waiter, uint32_t next, uint32_t before,
                      int64_t deadline_ns) {
    struct ring_wait wait = {p2p, next, before};
    return p2p_wait_until(p2p, waiter, ring_is_whole, &wait, deadline_ns);
}
