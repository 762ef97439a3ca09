/* How connections begin: those that this process makes, and strangers at its listener; see p2p_impl.h.
 *
 * Nobody is trusted before the secret from the store has been shown: a stranger gets 48 bytes of memory (with TLS, what
 * a handshake takes), a bounded time, and one of a bounded number of places.
 *
 * Nobody answers: the network may be silent for a while. The addresses are tried again and again, as long as a silent
 * peer is waited for. Who refuses is gone. A peer that may have seen the greeting is not called a second time, where
 * there is no other address: it would take the end of the first connection for this process's. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/p2p/p2p_impl.h"
#include "net/socket.h"

enum { LISTENER_PAUSE_MS = 100, REJECTION_MS = 1000 /* what comes as soon as that is a firewall's word */ };

/* ---- dialling ---- */

static void dial_close(struct p2p *p2p, struct p2p_dial *dial) {
    if (dial->fd >= 0) {
        (void)attend_forget(p2p, dial->fd);
    }
    if (dial->io) {
        dial->io->kind->close(dial->io);
        dial->io = NULL;
    } else if (dial->fd >= 0) {
        (void)close(dial->fd);
    }
    dial->fd = -1;
}

void dial_cancel(struct p2p *p2p, const struct p2p_link *link) {
    for (struct p2p_dial *dial = p2p->dials; dial; dial = dial->next) {
        if (dial->link == link) {
            dial_close(p2p, dial);
            dial->is_cancelled = true; /* freed by dial_sweep() */
        }
    }
}

void dial_sweep(struct p2p *p2p) {
    for (struct p2p_dial **at = &p2p->dials; *at;) {
        struct p2p_dial *dial = *at;
        if (dial->is_cancelled) {
            *at = dial->next;
            free(dial);
        } else {
            at = &dial->next;
        }
    }
}

void dial_explain(struct p2p *p2p, struct p2p_link *link) {
    bool was_refused = false;
    for (struct p2p_dial *dial = p2p->dials; dial; dial = dial->next) {
        if (dial->link == link && dial->is_refused && !dial->is_cancelled) {
            dial->is_cancelled = was_refused = true;
        }
    }
    if (was_refused && link->state == LINK_DIALLING) {
        link_depart(p2p, link);
    }
}

bool greet_is_under_way(const struct p2p *p2p) {
    const struct p2p_dial *dial = p2p->dials;
    while (dial && (dial->is_cancelled || dial->is_refused)) {
        dial = dial->next;
    }
    bool is = dial != NULL;
    for (size_t i = 0; i < P2P_STRANGERS_MAX; i++) {
        is = is || p2p->strangers[i].io;
    }
    return is;
}

static bool dial_is_refused(const struct p2p *p2p, const struct p2p_link *link) {
    const struct p2p_dial *dial = p2p->dials;
    while (dial && (dial->link != link || dial->is_cancelled || !dial->is_refused)) {
        dial = dial->next;
    }
    return dial != NULL;
}

static bool dial_has_time(const struct p2p *p2p, const struct p2p_dial *dial) {
    return clock_monotonic_ns() - dial->began_ns < silence_lost_after_ns(p2p);
}

/* Has nobody said anything, not even no? Then the same may succeed later. */
static bool dial_is_unanswered(const struct p2p_dial *dial) {
    return !dial->last_reason[0] && (dial->last_error == ETIMEDOUT || dial->last_error == EHOSTDOWN ||
                                     (dial->last_error == EHOSTUNREACH &&
                                      clock_monotonic_ns() - dial->tried_ns >= REJECTION_MS * CLOCK_NS_PER_MS));
}

/* Nobody has answered at `text` so far: tries again from the first address on, a little later. */
static void dial_pause(struct p2p *p2p, struct p2p_dial *dial, const char *text) {
    char what[NET_ADDRESS_TEXT_MAX + 32];
    (void)str_format(what, sizeof what, "has not answered at %s", text);
    silence_tell_wait(p2p, dial->link, what, dial->began_ns, clock_monotonic_ns(), &dial->told);
    dial->is_paused = true;
    dial->deadline_ns = attend_deadline_ns(P2P_REDIAL_MS);
}

static void dial_give_up(struct p2p *p2p, struct p2p_dial *dial) {
    struct p2p_link *link = dial->link;
    dial_close(p2p, dial);
    if (dial->stream > 0 || p2p->is_leaving) {
        dial->is_cancelled = true; /* one stream less, or nobody needs it any more */
        return;
    }
    char text[NET_ADDRESS_TEXT_MAX] = "no address";
    if (link->contact.address_count > 0) {
        const struct net_address *last = &link->contact.addresses[link->contact.address_count - 1];
        (void)net_address_format((const struct sockaddr *)&last->sockaddr, text);
    }
    if (dial_is_unanswered(dial) && dial_has_time(p2p, dial) && !link->said_goodbye) {
        dial_pause(p2p, dial, text);
        return;
    }
    bool is_gone = !dial->last_reason[0] && (dial->last_error == ECONNREFUSED || dial->last_error == ECONNRESET);
    if (is_gone && !dial->is_refused) {
        /* It may have died, or left because of another's death: others may know. */
        dial->is_refused = true;
        dial->deadline_ns = attend_deadline_ns(P2P_EXPLAIN_MS);
        if (link->said_goodbye) {
            dial_explain(p2p, link);
        }
        return;
    }
    dial->is_cancelled = true;
    char peer[P2P_PEER_NAME_MAX], unanswered[48];
    (void)str_format(unanswered, sizeof unanswered, "no answer for %.3g s",
                     (double)(clock_monotonic_ns() - dial->began_ns) / 1e9);
    const char *reason = dial->last_reason[0]       ? dial->last_reason
                         : dial_is_unanswered(dial) ? unanswered
                                                    : strerror(dial->last_error);
    link_fail(p2p, link, is_gone ? MUSTER_EPEER : MUSTER_ECONNECT, "rank %u cannot connect to %s at %s: %s%s",
              (unsigned)p2p->config.rank, link_peer_name(p2p, link, peer), text, reason,
              is_gone ? " (it has ended?)" : "");
}

/* The first connection tries one address after the other. A further one has its own, and then that of the first, which
 * is known to work: an interface that leads nowhere costs no connection. */
static void next_address(struct p2p_dial *dial) {
    const struct p2p_link *link = dial->link;
    if (dial->stream == 0) {
        dial->address++;
    } else {
        dial->address = dial->address == link->first_address ? link->contact.address_count : link->first_address;
    }
}

/* Tries the contact's addresses from dial->address on, until one is under way. */
static void dial_try(struct p2p *p2p, struct p2p_dial *dial) {
    dial->hello_sent = dial->answer_have = 0;
    dial->tried_ns = clock_monotonic_ns();
    for (; dial->address < dial->link->contact.address_count; next_address(dial)) {
        const struct net_address *address = &dial->link->contact.addresses[dial->address];
        if (net_socket_connect((const struct sockaddr *)&address->sockaddr, &dial->fd) != 0) {
            dial->last_error = errno;
            dial->fd = -1;
            continue;
        }
        dial->deadline_ns = attend_deadline_ns(P2P_DIAL_MS);
        if (attend_watch(p2p, EPOLL_CTL_ADD, dial->fd, EPOLLOUT, ON_DIAL, dial) == 0) {
            return;
        }
        dial->last_error = errno;
        dial_close(p2p, dial);
    }
    dial_give_up(p2p, dial);
}

static void dial_next(struct p2p *p2p, struct p2p_dial *dial, int error_number) {
    const char *reason = dial->io ? link_reason(dial->io) : NULL;
    if (reason) { /* a later address may say less */
        (void)str_format(dial->last_reason, sizeof dial->last_reason, "%s", reason);
    }
    /* It was cut off from us for so long that it takes no greeting any more; or it has died, and will refuse. */
    bool was_late = dial->io && error_number == ECONNRESET &&
                    clock_monotonic_ns() - dial->tried_ns >= P2P_GREETING_MS * CLOCK_NS_PER_MS;
    dial->last_error = was_late ? ETIMEDOUT : error_number;
    dial_close(p2p, dial);
    next_address(dial);
    dial_try(p2p, dial);
}

/* Its time is up, or the pause. */
static void dial_is_late(struct p2p *p2p, struct p2p_dial *dial, int error_number) {
    struct p2p_dial next = *dial;
    next_address(&next);
    bool is_last = next.address >= dial->link->contact.address_count;
    if (dial->is_refused) {
        dial_give_up(p2p, dial);
    } else if (dial->is_paused) {
        dial->is_paused = false;
        dial->address = 0;
        dial_try(p2p, dial);
    } else if (is_last && dial->io && error_number == ETIMEDOUT && !p2p->is_leaving && dial_has_time(p2p, dial)) {
        silence_tell_wait(p2p, dial->link, "has not answered the greeting", dial->began_ns, clock_monotonic_ns(),
                          &dial->told);
        dial->deadline_ns = attend_deadline_ns(P2P_REDIAL_MS);
    } else {
        dial_next(p2p, dial, error_number);
    }
}

int dial_start(struct p2p *p2p, struct p2p_link *link, enum wire_purpose purpose, uint8_t stream) {
    struct p2p_dial *dial = calloc(1, sizeof *dial);
    if (!dial) {
        return status_fail(MUSTER_ENOMEM, "no memory for a connection to rank %u", (unsigned)link->peer);
    }
    dial->link = link;
    dial->purpose = purpose;
    dial->stream = stream;
    dial->address = stream > 0 ? path_address(link, stream) : 0;
    dial->fd = -1;
    dial->last_error = EDESTADDRREQ;
    dial->began_ns = clock_monotonic_ns();
    dial->next = p2p->dials;
    p2p->dials = dial;
    if (purpose == WIRE_PURPOSE_STREAM && stream == 0) {
        link->state = LINK_DIALLING;
    }
    dial_try(p2p, dial);
    attend_set_timer(p2p);
    return 0;
}

/* What is to be waited for until the peer has answered. */
static uint32_t greeting_events(struct link *io, bool is_sent) {
    bool is_flushed = !io->kind->flush || io->kind->flush(io) != LINK_AGAIN;
    /* TLS waits for the peer's part of the handshake before it sends; TCP, for room. */
    return is_flushed && (is_sent || io->kind->flush) ? EPOLLIN : EPOLLIN | EPOLLOUT;
}

static struct link *make_io(const struct p2p *p2p, int fd, bool is_caller) {
    return p2p->config.tls ? link_tls_create(p2p->config.tls, fd, is_caller) : link_tcp_create(fd);
}

static void dial_talk(struct p2p *p2p, struct p2p_dial *dial);

/* Connected: says who calls. */
static void dial_greet(struct p2p *p2p, struct p2p_dial *dial) {
    struct wire_hello hello = {.from = p2p->config.rank,
                               .to = dial->link->peer,
                               .purpose = (uint8_t)dial->purpose,
                               .stream = dial->stream,
                               .stream_count = dial->link->stream_count};
    memcpy(hello.secret, dial->link->contact.secret, WIRE_SECRET_BYTES);
    wire_hello_encode(&hello, dial->hello);
    attend_tune(p2p, dial->fd);
    dial->io = make_io(p2p, dial->fd, true);
    if (!dial->io) {
        dial->fd = -1; /* closed */
        dial_next(p2p, dial, ENOMEM);
        return;
    }
    dial_talk(p2p, dial);
}

/* The connection, whose events were the greeting's, becomes a stream. Closes it if that fails. */
static int make_stream(struct p2p *p2p, struct p2p_link *link, struct link *io, uint8_t stream, bool is_watch,
                       bool is_mine) {
    if (attend_forget(p2p, io->fd) == 0) {
        return stream_open(p2p, link, io, stream, is_watch, is_mine);
    }
    int code = status_fail_errno(errno, "the connection to rank %u", (unsigned)link->peer);
    io->kind->close(io);
    return code;
}

/* Welcome, or leaving: the socket becomes a stream. What is missing of the answer is passed over. */
static void dial_done(struct p2p *p2p, struct p2p_dial *dial) {
    struct p2p_link *link = dial->link;
    struct link *io = dial->io;
    size_t unread = sizeof dial->answer - dial->answer_have;
    bool is_watch = dial->purpose == WIRE_PURPOSE_WATCH;
    dial->io = NULL;
    dial->fd = -1;
    dial->is_cancelled = true;
    if (link->state == LINK_FAILED || (is_watch ? link->watches[0] != NULL : link->streams[dial->stream] != NULL)) {
        (void)attend_forget(p2p, io->fd);
        io->kind->close(io);
        return;
    }
    int code = make_stream(p2p, link, io, dial->stream, is_watch, true);
    if (code) {
        link_fail(p2p, link, code, "%s", muster_detail());
        return;
    }
    struct p2p_stream *stream = is_watch ? link->watches[0] : link->streams[dial->stream];
    if (stream) {
        stream->in_left = unread;
    }
    if (is_watch) {
        return;
    }
    if (dial->stream == 0) {
        link->is_mine = true;
        link->first_address = (uint8_t)dial->address;
        for (uint8_t i = 1; i < link->stream_count && !p2p->is_leaving; i++) {
            (void)dial_start(p2p, link, WIRE_PURPOSE_STREAM, i);
        }
    }
    (void)link_flush(p2p, link);
}

/* The answer is complete. */
static void on_answer(struct p2p *p2p, struct p2p_dial *dial) {
    struct wire_answer answer;
    if (wire_answer_decode(dial->answer, &answer) != 0 || !wire_secret_equal(answer.proof, dial->link->contact.proof)) {
        dial_next(p2p, dial, EPROTO); /* somebody else lives at that address */
    } else if (answer.verdict == WIRE_USE_MINE) {
        dial_close(p2p, dial);
        dial->is_cancelled = true; /* the peer's own connection has come, or is on its way */
    } else {
        dial_done(p2p, dial);
    }
}

/* Reads or writes what the connection takes of `bytes`. Gives as link_kind.read(). */
static ssize_t io_move(struct link *io, bool is_read, uint8_t *bytes, size_t max, size_t *done) {
    struct iovec part = {.iov_base = bytes + *done, .iov_len = max - *done};
    ssize_t n = *done == max ? 0 : is_read ? io->kind->read(io, &part, 1) : io->kind->write(io, &part, 1);
    *done += n > 0 ? (size_t)n : 0;
    return n;
}

/* The greeting goes, then the answer comes; each perhaps in pieces, and with TLS after a handshake. */
static void dial_talk(struct p2p *p2p, struct p2p_dial *dial) {
    struct link *io = dial->io;
    ssize_t n = io_move(io, false, dial->hello, sizeof dial->hello, &dial->hello_sent);
    bool is_sent = dial->hello_sent == sizeof dial->hello;
    if (n >= 0 && is_sent && p2p->is_leaving) {
        dial_done(p2p, dial);
        return;
    }
    if (n >= 0 && is_sent) {
        n = io_move(io, true, dial->answer, sizeof dial->answer, &dial->answer_have);
    }
    if (n < 0) {
        dial_next(p2p, dial, n == LINK_BROKEN ? errno : ECONNRESET);
    } else if (dial->answer_have == sizeof dial->answer) {
        on_answer(p2p, dial);
    } else if (attend_watch(p2p, EPOLL_CTL_MOD, io->fd, greeting_events(io, is_sent), ON_DIAL, dial) != 0) {
        dial_next(p2p, dial, errno);
    }
}

void dial_leave(struct p2p *p2p) {
    for (struct p2p_dial *dial = p2p->dials; dial; dial = dial->next) {
        if (!dial->is_cancelled && dial->io && dial->hello_sent == sizeof dial->hello) {
            dial_done(p2p, dial);
        }
    }
}

void greet_dialled(struct p2p *p2p, struct p2p_dial *dial) {
    if (dial->is_cancelled || dial->fd < 0) {
        return;
    }
    if (dial->io) {
        dial_talk(p2p, dial);
        return;
    }
    int error_number = net_socket_connect_result(dial->fd);
    if (error_number != 0) {
        dial_next(p2p, dial, error_number);
    } else {
        dial_greet(p2p, dial);
    }
}

/* ---- strangers ---- */

static void stranger_end(struct p2p *p2p, struct p2p_stranger *stranger) {
    (void)attend_forget(p2p, stranger->io->fd);
    stranger->io->kind->close(stranger->io);
    stranger->io = NULL;
}

/* Answers and makes a stream of the stranger's socket. */
static void stranger_welcome(struct p2p *p2p, struct p2p_stranger *stranger, const struct wire_hello *hello,
                             struct p2p_link *link, enum wire_verdict verdict) {
    struct wire_answer answer = {.verdict = (uint8_t)verdict};
    memcpy(answer.proof, p2p->contact.proof, WIRE_SECRET_BYTES);
    uint8_t bytes[WIRE_HELLO_BYTES];
    wire_answer_encode(&answer, bytes);
    size_t sent = 0; /* in one go: an empty socket takes 48 bytes */
    if (io_move(stranger->io, false, bytes, sizeof bytes, &sent) != (ssize_t)sizeof bytes || verdict != WIRE_WELCOME) {
        stranger_end(p2p, stranger);
        return;
    }
    struct link *io = stranger->io;
    stranger->io = NULL;
    int code = make_stream(p2p, link, io, hello->stream, hello->purpose == WIRE_PURPOSE_WATCH, false);
    if (code) {
        link_fail(p2p, link, code, "%s", muster_detail());
        return;
    }
    (void)link_flush(p2p, link);
}

static bool stream_is_wanted(const struct p2p_link *link, const struct wire_hello *hello) {
    if (hello->purpose == WIRE_PURPOSE_WATCH) {
        return !link->watches[1];
    }
    if (hello->stream_count > P2P_STREAMS_MAX || link->streams[hello->stream]) {
        return false;
    }
    return hello->stream == 0 || (link->state == LINK_OPEN && !link->is_mine && hello->stream < link->stream_count);
}

/* Does something follow the greeting already? Then the caller leaves: else it would wait for the answer. */
static bool says_more(struct link *io) {
    uint8_t byte;
    return (io->kind->pending && io->kind->pending(io)) || recv(io->fd, &byte, sizeof byte, MSG_PEEK) > 0;
}

/* The secret has been shown, or not. */
static void stranger_greets(struct p2p *p2p, struct p2p_stranger *stranger) {
    struct wire_hello hello;
    if (wire_hello_decode(stranger->hello, &hello) != 0 || !wire_secret_equal(hello.secret, p2p->contact.secret) ||
        hello.to != p2p->config.rank || hello.from >= p2p->config.size || hello.from == p2p->config.rank) {
        stranger_end(p2p, stranger);
        return;
    }
    struct p2p_link *link = link_entry(p2p, hello.from);
    if (!link || link->is_ring || link->state == LINK_FAILED || link->state == LINK_LEFT ||
        !stream_is_wanted(link, &hello)) {
        stranger_end(p2p, stranger);
        return;
    }
    enum wire_verdict verdict = WIRE_WELCOME;
    if (hello.purpose == WIRE_PURPOSE_STREAM && hello.stream == 0) {
        if (link->state == LINK_DIALLING && p2p->config.rank < hello.from && !dial_is_refused(p2p, link) &&
            !says_more(stranger->io)) {
            verdict = WIRE_USE_MINE;
        } else {
            for (struct p2p_dial *dial = p2p->dials; dial; dial = dial->next) {
                if (dial->link == link && dial->purpose == WIRE_PURPOSE_STREAM) {
                    dial_close(p2p, dial);
                    dial->is_cancelled = true;
                }
            }
            link->stream_count = hello.stream_count;
        }
    }
    stranger_welcome(p2p, stranger, &hello, link, verdict);
}

void greet_stranger(struct p2p *p2p, struct p2p_stranger *stranger) {
    if (!stranger->io) {
        return;
    }
    struct link *io = stranger->io;
    if (io_move(io, true, stranger->hello, sizeof stranger->hello, &stranger->have) < 0) {
        stranger_end(p2p, stranger);
    } else if (stranger->have == sizeof stranger->hello) {
        stranger_greets(p2p, stranger);
    } else if (attend_watch(p2p, EPOLL_CTL_MOD, io->fd, greeting_events(io, true), ON_STRANGER, stranger) != 0) {
        stranger_end(p2p, stranger);
    }
}

/* A free place, if need be that of whoever has been silent longest. */
static struct p2p_stranger *stranger_place(struct p2p *p2p) {
    struct p2p_stranger *place = &p2p->strangers[0];
    for (size_t i = 0; i < P2P_STRANGERS_MAX; i++) {
        if (!p2p->strangers[i].io) {
            return &p2p->strangers[i];
        }
        if (p2p->strangers[i].deadline_ns < place->deadline_ns) {
            place = &p2p->strangers[i];
        }
    }
    stranger_end(p2p, place);
    return place;
}

void greet_accept(struct p2p *p2p) {
    for (int i = 0; i < P2P_STRANGERS_MAX; i++) {
        int fd = accept4(p2p->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
                /* It would be readable for ever: look again a little later. */
                p2p->listener_pause_ns = attend_deadline_ns(LISTENER_PAUSE_MS);
                if (attend_watch(p2p, EPOLL_CTL_MOD, p2p->listener, 0, ON_LISTENER, NULL) != 0) {
                    attend_stop_listening(p2p, errno); /* callers learn it, and need not wait */
                }
            }
            return;
        }
        struct p2p_stranger *stranger = stranger_place(p2p);
        *stranger =
            (struct p2p_stranger){.io = make_io(p2p, fd, false), .deadline_ns = attend_deadline_ns(P2P_GREETING_MS)};
        if (stranger->io && attend_watch(p2p, EPOLL_CTL_ADD, fd, EPOLLIN, ON_STRANGER, stranger) != 0) {
            stranger_end(p2p, stranger);
        }
    }
}

/* ---- ends ---- */

void greet_end_late(struct p2p *p2p, int64_t now_ns, int error_number) {
    for (size_t i = 0; i < P2P_STRANGERS_MAX; i++) {
        if (p2p->strangers[i].io && now_ns >= p2p->strangers[i].deadline_ns) {
            stranger_end(p2p, &p2p->strangers[i]);
        }
    }
    for (struct p2p_dial *dial = p2p->dials; dial; dial = dial->next) {
        if (!dial->is_cancelled && now_ns >= dial->deadline_ns) {
            dial_is_late(p2p, dial, error_number);
        }
    }
}

void greet_end_all(struct p2p *p2p) {
    for (size_t i = 0; i < P2P_STRANGERS_MAX; i++) {
        if (p2p->strangers[i].io) {
            stranger_end(p2p, &p2p->strangers[i]);
        }
    }
    for (struct p2p_dial *dial = p2p->dials; dial; dial = dial->next) {
        dial_close(p2p, dial);
        dial->is_cancelled = true;
    }
    dial_sweep(p2p);
}
