/* What the monitor thread does for p2p: strangers at the listener, connections being made, ends of connections, and
 * waking a caller who sleeps; see p2p_impl.h.
 *
 * Nobody is trusted before the secret from the store has been shown: a stranger gets 48 bytes of memory (with TLS, what
 * a handshake takes), a bounded time, and one of a bounded number of places. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/p2p_impl.h"
#include "net/socket.h"

enum { EVENTS_MAX = 64, ROUNDS_MAX = 4, LISTENER_PAUSE_MS = 100 };
/* A peer that does not acknowledge for so long is given up; one that says nothing is asked from time to time. */
enum { USER_TIMEOUT_MS = 30000, KEEP_ALIVE_IDLE_S = 10, KEEP_ALIVE_INTERVAL_S = 5, KEEP_ALIVE_PROBES = 4 };

/* What an event is about: in the low bits of its data, the rest is a pointer. */
enum subject { ON_LISTENER, ON_TIMER, ON_DATA, ON_STRANGER, ON_DIAL, ON_STREAM, SUBJECT_MASK = 7 };

static int watch(struct p2p *p2p, int operation, int fd, uint32_t events, enum subject subject, void *object) {
    assert(((uintptr_t)object & SUBJECT_MASK) == 0);
    struct epoll_event event = {.events = events, .data.u64 = (uint64_t)(uintptr_t)object | (uint64_t)subject};
    return epoll_ctl(p2p->attend_epoll, operation, fd, &event);
}

static int64_t after_ms(int64_t ms) {
    return clock_monotonic_ns() + ms * CLOCK_NS_PER_MS;
}

/* ---- the timer ---- */

void attend_set_timer(struct p2p *p2p) {
    int64_t first = p2p->listener_pause_ns;
    for (size_t i = 0; i < P2P_STRANGERS_MAX; i++) {
        if (p2p->strangers[i].io && (first == 0 || p2p->strangers[i].deadline_ns < first)) {
            first = p2p->strangers[i].deadline_ns;
        }
    }
    for (const struct p2p_dial *dial = p2p->dials; dial; dial = dial->next) {
        if (!dial->is_cancelled && (first == 0 || dial->deadline_ns < first)) {
            first = dial->deadline_ns;
        }
    }
    for (uint32_t peer = 0; p2p->dying_count > 0 && peer < p2p->config.size; peer++) {
        const struct p2p_link *link = p2p->links[peer];
        if (link && link->is_dying && (first == 0 || link->dying_until_ns < first)) {
            first = link->dying_until_ns;
        }
    }
    if (first == p2p->timer_ns) {
        return;
    }
    p2p->timer_ns = first;
    struct itimerspec at = {
        .it_value = {.tv_sec = (time_t)(first / CLOCK_NS_PER_S), .tv_nsec = (long)(first % CLOCK_NS_PER_S)}};
    (void)timerfd_settime(p2p->timer, TFD_TIMER_ABSTIME, &at, NULL);
}

/* ---- streams ---- */

static void tune(int fd) {
    static const struct {
        int name, value;
    } options[] = {{TCP_NODELAY, 1},
                   {TCP_KEEPIDLE, KEEP_ALIVE_IDLE_S},
                   {TCP_KEEPINTVL, KEEP_ALIVE_INTERVAL_S},
                   {TCP_KEEPCNT, KEEP_ALIVE_PROBES},
                   {TCP_USER_TIMEOUT, USER_TIMEOUT_MS}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) { /* comforts: it works without */
        (void)setsockopt(fd, IPPROTO_TCP, options[i].name, &options[i].value, sizeof options[i].value);
    }
}

void attend_add(struct p2p *p2p, struct p2p_stream *stream) {
    int fd = stream->io->fd;
    if (fd < 0) {
        return;
    }
    tune(fd);
    (void)watch(p2p, EPOLL_CTL_ADD, fd, stream->is_watch ? EPOLLIN | EPOLLRDHUP : EPOLLRDHUP, ON_STREAM, stream);
    if (!stream->is_watch) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = stream};
        (void)epoll_ctl(p2p->data_epoll, EPOLL_CTL_ADD, fd, &event);
    }
}

void attend_remove(struct p2p *p2p, struct p2p_stream *stream) {
    if (stream->io->fd >= 0) {
        (void)epoll_ctl(p2p->attend_epoll, EPOLL_CTL_DEL, stream->io->fd, NULL);
        (void)epoll_ctl(p2p->data_epoll, EPOLL_CTL_DEL, stream->io->fd, NULL);
    }
}

void attend_arm(struct p2p *p2p) {
    for (struct p2p_stream *stream = p2p->open; stream; stream = stream->next_open) {
        if (stream->io->fd >= 0 && stream->is_blocked != stream->is_polled_for_out) {
            struct epoll_event event = {.events = EPOLLIN | (stream->is_blocked ? (uint32_t)EPOLLOUT : 0),
                                        .data.ptr = stream};
            (void)epoll_ctl(p2p->data_epoll, EPOLL_CTL_MOD, stream->io->fd, &event);
            stream->is_polled_for_out = stream->is_blocked;
        }
    }
    if (!p2p->is_armed && p2p->bell_event < 0) {
        p2p->is_armed = watch(p2p, EPOLL_CTL_MOD, p2p->data_epoll, EPOLLIN | EPOLLONESHOT, ON_DATA, NULL) == 0;
    }
}

/* A watch has something to say, or a connection has ended: whatever came before the end counts. */
static void on_stream(struct p2p *p2p, struct p2p_stream *stream) {
    while (stream->io && stream_read(p2p, stream)) {
    }
}

/* ---- dialling ---- */

static void dial_close(struct p2p_dial *dial) {
    if (dial->io) {
        dial->io->kind->close(dial->io);
        dial->io = NULL;
    } else if (dial->fd >= 0) {
        (void)close(dial->fd);
    }
    dial->fd = -1; /* closing has taken it out of the epoll set */
}

void dial_cancel(struct p2p *p2p, const struct p2p_link *link) {
    for (struct p2p_dial *dial = p2p->dials; dial; dial = dial->next) {
        if (dial->link == link) {
            dial_close(dial);
            dial->is_cancelled = true; /* freed by sweep_dials() */
        }
    }
}

static void sweep_dials(struct p2p *p2p) {
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

bool dial_is_under_way(const struct p2p *p2p) {
    const struct p2p_dial *dial = p2p->dials;
    while (dial && (dial->is_cancelled || dial->is_refused)) {
        dial = dial->next;
    }
    return dial != NULL;
}

static void dial_give_up(struct p2p *p2p, struct p2p_dial *dial) {
    struct p2p_link *link = dial->link;
    dial_close(dial);
    if (dial->stream > 0 || p2p->is_leaving) {
        dial->is_cancelled = true; /* one stream less, or nobody needs it any more */
        return;
    }
    char text[NET_ADDRESS_TEXT_MAX] = "no address";
    if (link->contact.address_count > 0) {
        const struct net_address *last = &link->contact.addresses[link->contact.address_count - 1];
        (void)net_address_format((const struct sockaddr *)&last->sockaddr, text);
    }
    bool is_gone = !dial->last_reason[0] && (dial->last_error == ECONNREFUSED || dial->last_error == ECONNRESET);
    if (is_gone && !dial->is_refused) {
        /* It may have died, or left because of another's death: others may know. */
        dial->is_refused = true;
        dial->deadline_ns = after_ms(P2P_EXPLAIN_MS);
        if (link->said_goodbye) {
            dial_explain(p2p, link);
        }
        return;
    }
    dial->is_cancelled = true;
    char peer[P2P_PEER_NAME_MAX];
    link_fail(p2p, link, is_gone ? MUSTER_EPEER : MUSTER_ECONNECT, "rank %u cannot connect to %s at %s: %s%s",
              (unsigned)p2p->config.rank, link_peer_name(p2p, link, peer), text,
              dial->last_reason[0] ? dial->last_reason : strerror(dial->last_error), is_gone ? " (it has ended?)" : "");
}

/* Tries the contact's addresses from dial->address on, until one is under way. */
static void dial_try(struct p2p *p2p, struct p2p_dial *dial) {
    dial->hello_sent = dial->answer_have = 0;
    for (; dial->address < dial->link->contact.address_count; dial->address++) {
        const struct net_address *address = &dial->link->contact.addresses[dial->address];
        if (net_socket_connect((const struct sockaddr *)&address->sockaddr, &dial->fd) != 0) {
            dial->last_error = errno;
            dial->fd = -1;
            continue;
        }
        dial->deadline_ns = after_ms(P2P_DIAL_MS);
        if (watch(p2p, EPOLL_CTL_ADD, dial->fd, EPOLLOUT, ON_DIAL, dial) == 0) {
            return;
        }
        dial->last_error = errno;
        dial_close(dial);
    }
    dial_give_up(p2p, dial);
}

static void dial_next(struct p2p *p2p, struct p2p_dial *dial, int error_number) {
    const char *reason = dial->io && dial->io->kind->reason ? dial->io->kind->reason(dial->io) : NULL;
    if (reason) { /* a later address may say less */
        (void)str_format(dial->last_reason, sizeof dial->last_reason, "%s", reason);
    }
    dial->last_error = error_number;
    dial_close(dial);
    dial->address++;
    dial_try(p2p, dial);
}

int dial_start(struct p2p *p2p, struct p2p_link *link, enum wire_purpose purpose, uint8_t stream) {
    struct p2p_dial *dial = calloc(1, sizeof *dial);
    if (!dial) {
        return status_fail(MUSTER_ENOMEM, "no memory for a connection to rank %u", (unsigned)link->peer);
    }
    dial->link = link;
    dial->purpose = purpose;
    dial->stream = stream;
    dial->fd = -1;
    dial->last_error = EDESTADDRREQ;
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
    tune(dial->fd);
    dial->io = make_io(p2p, dial->fd, true);
    if (!dial->io) {
        dial->fd = -1; /* closed */
        dial_next(p2p, dial, ENOMEM);
        return;
    }
    dial_talk(p2p, dial);
}

/* Welcome: the socket becomes a stream. */
static void dial_done(struct p2p *p2p, struct p2p_dial *dial) {
    struct p2p_link *link = dial->link;
    struct link *io = dial->io;
    bool is_watch = dial->purpose == WIRE_PURPOSE_WATCH;
    dial->io = NULL;
    dial->fd = -1;
    dial->is_cancelled = true;
    (void)epoll_ctl(p2p->attend_epoll, EPOLL_CTL_DEL, io->fd, NULL);
    if (link->state == LINK_FAILED || (is_watch ? link->watches[0] != NULL : link->streams[dial->stream] != NULL)) {
        io->kind->close(io);
        return;
    }
    if (stream_open(p2p, link, io, dial->stream, is_watch, true) != 0) {
        link_fail(p2p, link, MUSTER_ENOMEM, "%s", muster_detail());
        return;
    }
    if (is_watch) {
        return;
    }
    if (dial->stream == 0) {
        link->is_mine = true;
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
        dial_close(dial);
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
    if (n >= 0 && is_sent) {
        n = io_move(io, true, dial->answer, sizeof dial->answer, &dial->answer_have);
    }
    if (n < 0) {
        dial_next(p2p, dial, n == LINK_BROKEN ? errno : ECONNRESET);
    } else if (dial->answer_have == sizeof dial->answer) {
        on_answer(p2p, dial);
    } else if (watch(p2p, EPOLL_CTL_MOD, io->fd, greeting_events(io, is_sent), ON_DIAL, dial) != 0) {
        dial_next(p2p, dial, errno);
    }
}

static void on_dial(struct p2p *p2p, struct p2p_dial *dial) {
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

static void stranger_end(struct p2p_stranger *stranger) {
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
        stranger_end(stranger);
        return;
    }
    struct link *io = stranger->io;
    stranger->io = NULL;
    (void)epoll_ctl(p2p->attend_epoll, EPOLL_CTL_DEL, io->fd, NULL);
    if (stream_open(p2p, link, io, hello->stream, hello->purpose == WIRE_PURPOSE_WATCH, false) != 0) {
        link_fail(p2p, link, MUSTER_ENOMEM, "%s", muster_detail());
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

/* The secret has been shown, or not. */
static void stranger_greets(struct p2p *p2p, struct p2p_stranger *stranger) {
    struct wire_hello hello;
    if (wire_hello_decode(stranger->hello, &hello) != 0 || !wire_secret_equal(hello.secret, p2p->contact.secret) ||
        hello.to != p2p->config.rank || hello.from >= p2p->config.size || hello.from == p2p->config.rank) {
        stranger_end(stranger);
        return;
    }
    struct p2p_link *link = link_entry(p2p, hello.from);
    if (!link || link->is_ring || link->state == LINK_FAILED || link->state == LINK_LEFT ||
        !stream_is_wanted(link, &hello)) {
        stranger_end(stranger);
        return;
    }
    enum wire_verdict verdict = WIRE_WELCOME;
    if (hello.purpose == WIRE_PURPOSE_STREAM && hello.stream == 0) {
        if (link->state == LINK_DIALLING && p2p->config.rank < hello.from) {
            verdict = WIRE_USE_MINE;
        } else {
            for (struct p2p_dial *dial = p2p->dials; dial; dial = dial->next) {
                if (dial->link == link && dial->purpose == WIRE_PURPOSE_STREAM) {
                    dial_close(dial);
                    dial->is_cancelled = true;
                }
            }
            link->stream_count = hello.stream_count;
        }
    }
    stranger_welcome(p2p, stranger, &hello, link, verdict);
}

static void on_stranger(struct p2p *p2p, struct p2p_stranger *stranger) {
    if (!stranger->io) {
        return;
    }
    struct link *io = stranger->io;
    if (io_move(io, true, stranger->hello, sizeof stranger->hello, &stranger->have) < 0) {
        stranger_end(stranger);
    } else if (stranger->have == sizeof stranger->hello) {
        stranger_greets(p2p, stranger);
    } else if (watch(p2p, EPOLL_CTL_MOD, io->fd, greeting_events(io, true), ON_STRANGER, stranger) != 0) {
        stranger_end(stranger);
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
    stranger_end(place);
    return place;
}

static void on_listener(struct p2p *p2p) {
    for (int i = 0; i < P2P_STRANGERS_MAX; i++) {
        int fd = accept4(p2p->listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
                /* It would be readable for ever: look again a little later. */
                (void)watch(p2p, EPOLL_CTL_MOD, p2p->listener, 0, ON_LISTENER, NULL);
                p2p->listener_pause_ns = after_ms(LISTENER_PAUSE_MS);
            }
            return;
        }
        struct p2p_stranger *stranger = stranger_place(p2p);
        *stranger = (struct p2p_stranger){.io = make_io(p2p, fd, false), .deadline_ns = after_ms(P2P_GREETING_MS)};
        if (stranger->io && watch(p2p, EPOLL_CTL_ADD, fd, EPOLLIN, ON_STRANGER, stranger) != 0) {
            stranger_end(stranger);
        }
    }
}

static void on_timer(struct p2p *p2p) {
    uint64_t expirations;
    (void)!read(p2p->timer, &expirations, sizeof expirations);
    p2p->timer_ns = 0;
    int64_t now = clock_monotonic_ns();
    if (p2p->listener_pause_ns != 0 && now >= p2p->listener_pause_ns) {
        p2p->listener_pause_ns = 0;
        (void)watch(p2p, EPOLL_CTL_MOD, p2p->listener, EPOLLIN, ON_LISTENER, NULL);
    }
    for (size_t i = 0; i < P2P_STRANGERS_MAX; i++) {
        if (p2p->strangers[i].io && now >= p2p->strangers[i].deadline_ns) {
            stranger_end(&p2p->strangers[i]);
        }
    }
    for (struct p2p_dial *dial = p2p->dials; dial; dial = dial->next) {
        if (!dial->is_cancelled && now >= dial->deadline_ns) {
            if (dial->is_refused) {
                dial_give_up(p2p, dial);
            } else {
                dial_next(p2p, dial, ETIMEDOUT);
            }
        }
    }
    links_bury_late(p2p, now);
}

/* ---- all of it ---- */

static void on_event(struct p2p *p2p, const struct epoll_event *event) {
    void *object = (void *)(uintptr_t)(event->data.u64 & ~(uint64_t)SUBJECT_MASK);
    switch ((enum subject)(event->data.u64 & SUBJECT_MASK)) {
    case ON_LISTENER:
        on_listener(p2p);
        break;
    case ON_TIMER:
        on_timer(p2p);
        break;
    case ON_DATA:
        p2p->is_armed = false;
        comm_bell_ring(p2p->config.bell);
        break;
    case ON_STRANGER:
        on_stranger(p2p, object);
        break;
    case ON_DIAL:
        on_dial(p2p, object);
        break;
    default:
        on_stream(p2p, object);
        break;
    }
}

void attend_turn(struct p2p *p2p) {
    for (int round = 0; round < ROUNDS_MAX; round++) {
        struct epoll_event events[EVENTS_MAX];
        int count = epoll_wait(p2p->attend_epoll, events, EVENTS_MAX, 0);
        for (int i = 0; i < count; i++) {
            on_event(p2p, &events[i]);
        }
        if (count < EVENTS_MAX) {
            break;
        }
    }
    sweep_dials(p2p);
    attend_set_timer(p2p);
}

void p2p_attend(struct p2p *p2p) {
    (void)atomic_fetch_add_explicit(&p2p->visitors, 1, memory_order_relaxed);
    p2p_lock(p2p);
    (void)atomic_fetch_sub_explicit(&p2p->visitors, 1, memory_order_relaxed);
    attend_turn(p2p);
    p2p_unlock(p2p);
}

int p2p_descriptor(const struct p2p *p2p) {
    return p2p->attend_epoll;
}

size_t p2p_contact(const struct p2p *p2p, uint8_t out[P2P_CONTACT_BYTES_MAX]) {
    return wire_contact_encode(&p2p->contact, out);
}

/* ---- making it ---- */

/* Processes with the same value share a loopback interface: the boot and the network namespace. */
static uint64_t host_identity(void) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    char boot[64] = "";
    struct stat namespace = {.st_ino = 0};
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        (void)!read(fd, boot, sizeof boot - 1);
        (void)close(fd);
    }
    for (const char *at = boot; *at; at++) {
        hash = (hash ^ (uint8_t)*at) * UINT64_C(0x100000001b3);
    }
    if (boot[0] == '\0' || stat("/proc/self/ns/net", &namespace) != 0) {
        return 0; /* of which nobody is the neighbour */
    }
    return (hash ^ (uint64_t) namespace.st_ino) * UINT64_C(0x100000001b3) | 1;
}

static int open_listener(struct p2p *p2p) {
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_ANY_INIT};
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_ANY)};
    int family = p2p->config.interfaces.family;
    int code = MUSTER_ESYSTEM;
    if (family != AF_INET) {
        code = net_socket_listen((const struct sockaddr *)&v6, family == AF_INET6, &p2p->listener);
    }
    if (code != 0 && family != AF_INET6) { /* a kernel without IPv6 */
        code = net_socket_listen((const struct sockaddr *)&v4, false, &p2p->listener);
    }
    struct sockaddr_storage own;
    socklen_t len = sizeof own;
    if (code == 0 && getsockname(p2p->listener, (struct sockaddr *)&own, &len) != 0) {
        code = status_fail_errno(errno, "ask for the port of a socket");
    }
    if (code == 0) {
        p2p->contact.port = net_address_port((const struct sockaddr *)&own);
        p2p->contact.speaks_tls = p2p->config.tls != NULL;
    }
    return code;
}

static int fill_contact(struct p2p *p2p) {
    struct wire_contact *contact = &p2p->contact;
    struct interface_address *all = malloc(INTERFACES_MAX * sizeof *all);
    struct interface_address chosen[INTERFACE_CHOSEN_MAX];
    size_t count = 0;
    int code = all ? interface_list(all, &count) : status_fail(MUSTER_ENOMEM, "no memory for the list of interfaces");
    count = code == 0 ? interface_choose(&p2p->config.interfaces, all, count, chosen) : 0;
    free(all);
    if (code == 0 && count == 0) {
        code = status_fail(MUSTER_EINVAL, "no network interface of this host is among those that MUSTER_SOCKET_IFNAME "
                                          "(or NCCL_ or GLOO_) and MUSTER_SOCKET_FAMILY allow");
    }
    if (code != 0) {
        return code;
    }
    for (size_t i = 0; i < count; i++) {
        contact->addresses[contact->address_count] = chosen[i].address;
        net_address_set_port((struct sockaddr *)&contact->addresses[contact->address_count].sockaddr, contact->port);
        contact->address_count++;
    }
    contact->host = host_identity();
    uint8_t random[2 * WIRE_SECRET_BYTES];
    if (getrandom(random, sizeof random, 0) != (ssize_t)sizeof random) {
        return status_fail_errno(errno, "ask for random bytes");
    }
    memcpy(contact->secret, random, WIRE_SECRET_BYTES);
    memcpy(contact->proof, random + WIRE_SECRET_BYTES, WIRE_SECRET_BYTES);
    return 0;
}

/* What wakes a caller who sleeps when a socket has news: the monitor, or, where this process alone rings its bell since
 * it has no neighbours in shared memory, the sockets themselves; then the bell is a descriptor beside them. */
static int watch_data(struct p2p *p2p) {
    if (p2p->rings) {
        return watch(p2p, EPOLL_CTL_ADD, p2p->data_epoll, EPOLLONESHOT, ON_DATA, NULL);
    }
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
    p2p->bell_event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (p2p->bell_event < 0 || epoll_ctl(p2p->data_epoll, EPOLL_CTL_ADD, p2p->bell_event, &event) != 0) {
        return -1;
    }
    atomic_store_explicit(&p2p->config.bell->event, (uint32_t)p2p->bell_event + 1, memory_order_release);
    return 0;
}

int attend_create(struct p2p *p2p) {
    int code = open_listener(p2p);
    if (code == 0) {
        code = fill_contact(p2p);
    }
    if (code != 0) {
        return code;
    }
    p2p->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    p2p->attend_epoll = epoll_create1(EPOLL_CLOEXEC);
    p2p->data_epoll = epoll_create1(EPOLL_CLOEXEC);
    if (p2p->timer < 0 || p2p->attend_epoll < 0 || p2p->data_epoll < 0 ||
        watch(p2p, EPOLL_CTL_ADD, p2p->listener, EPOLLIN, ON_LISTENER, NULL) != 0 ||
        watch(p2p, EPOLL_CTL_ADD, p2p->timer, EPOLLIN, ON_TIMER, NULL) != 0 || watch_data(p2p) != 0) {
        return status_fail_errno(errno, "watch the sockets of a group");
    }
    return 0;
}

void attend_destroy(struct p2p *p2p) {
    for (size_t i = 0; i < P2P_STRANGERS_MAX; i++) {
        if (p2p->strangers[i].io) {
            stranger_end(&p2p->strangers[i]);
        }
    }
    for (struct p2p_dial *dial = p2p->dials; dial; dial = dial->next) {
        dial_close(dial);
        dial->is_cancelled = true;
    }
    sweep_dials(p2p);
    if (p2p->bell_event >= 0) {
        atomic_store_explicit(&p2p->config.bell->event, 0, memory_order_release);
    }
    int *const fds[] = {&p2p->listener, &p2p->timer, &p2p->bell_event, &p2p->data_epoll, &p2p->attend_epoll};
    for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
        if (*fds[i] >= 0) {
            (void)close(*fds[i]);
            *fds[i] = -1;
        }
    }
}
