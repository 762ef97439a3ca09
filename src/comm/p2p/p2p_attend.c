/* What the monitor thread does for p2p: it waits for events at the listener, at connections that are being made
 * (p2p_greet.c), at the ends of connections, and for whoever sleeps; see p2p_impl.h. */
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "base/system/random.h"
#include "comm/host/identity.h"
#include "comm/p2p/p2p_impl.h"
#include "net/socket.h"

enum { EVENTS_MAX = 64, ROUNDS_MAX = 4 };
/* A peer that says nothing is asked from time to time. */
enum { KEEP_ALIVE_IDLE_S = 10, KEEP_ALIVE_INTERVAL_S = 5 };

/* The subject stands in the low bits of an event's data, the rest is a pointer. */
enum { SUBJECT_MASK = 7 };

int attend_watch(struct p2p *p2p, int operation, int fd, uint32_t events, enum attend_subject subject, void *object) {
    assert(((uintptr_t)object & SUBJECT_MASK) == 0);
    struct epoll_event event = {.events = events, .data.u64 = (uint64_t)(uintptr_t)object | (uint64_t)subject};
    return epoll_ctl(p2p->attend_epoll, operation, fd, &event);
}

int attend_forget(struct p2p *p2p, int fd) {
    return epoll_ctl(p2p->attend_epoll, EPOLL_CTL_DEL, fd, NULL);
}

void attend_stop_listening(struct p2p *p2p, int error_number) {
    log_warning("rank %u takes no further connections, since it cannot watch its listening socket: %s",
                (unsigned)p2p->config.rank, strerror(error_number));
    (void)attend_forget(p2p, p2p->listener);
    (void)shutdown(p2p->listener, SHUT_RDWR); /* also for a forked child that holds it */
    (void)close(p2p->listener);
    p2p->listener = -1;
    p2p->listener_pause_ns = 0;
}

int64_t attend_deadline_ns(int64_t ms) {
    return clock_monotonic_ns() + ms * CLOCK_NS_PER_MS;
}

/* ---- the timer ---- */

/* error_number: of those whose time is up. */
static void end_late(struct p2p *p2p, int64_t now_ns, int error_number) {
    if (p2p->listener_pause_ns != 0 && now_ns >= p2p->listener_pause_ns) {
        p2p->listener_pause_ns = 0;
        if (attend_watch(p2p, EPOLL_CTL_MOD, p2p->listener, EPOLLIN, ON_LISTENER, NULL) != 0) {
            attend_stop_listening(p2p, errno);
        }
    }
    if (p2p->silence_ns != 0 && error_number != ETIMEDOUT) {
        p2p->silence_ns = 0; /* nothing would tell when to look */
    } else if (p2p->silence_ns != 0 && now_ns >= p2p->silence_ns) {
        silence_look(p2p, now_ns);
    }
    greet_end_late(p2p, now_ns, error_number);
    links_bury_late(p2p, now_ns);
}

/* 0: nothing waits for its time. */
static int64_t first_deadline(const struct p2p *p2p) {
    int64_t first = p2p->listener_pause_ns;
    if (p2p->silence_ns != 0 && (first == 0 || p2p->silence_ns < first)) {
        first = p2p->silence_ns;
    }
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
    return first;
}

void attend_set_timer(struct p2p *p2p) {
    int64_t first;
    while ((first = first_deadline(p2p)) != p2p->timer_ns) {
        struct itimerspec at = {
            .it_value = {.tv_sec = (time_t)(first / CLOCK_NS_PER_S), .tv_nsec = (long)(first % CLOCK_NS_PER_S)}};
        if (timerfd_settime(p2p->timer, TFD_TIMER_ABSTIME, &at, NULL) == 0) {
            p2p->timer_ns = first;
            return;
        }
        /* Nothing would end what waits for its time, and callers would wait for that until their own is up. Whoever has
         * a further address to try then waits again. */
        p2p->timer_ns = 0;
        end_late(p2p, INT64_MAX, errno);
    }
}

/* ---- streams ---- */

void attend_tune(const struct p2p *p2p, int fd) {
    const int on = 1;
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on); /* comforts: it works without */
    net_socket_keep_alive(fd, KEEP_ALIVE_IDLE_S, KEEP_ALIVE_INTERVAL_S, silence_lost_after_ns(p2p) / CLOCK_NS_PER_MS);
}

int attend_add(struct p2p *p2p, struct p2p_stream *stream) {
    int fd = stream->io->fd;
    if (fd < 0) {
        return 0;
    }
    attend_tune(p2p, fd);
    uint32_t events = stream->is_watch ? EPOLLIN | EPOLLRDHUP : EPOLLRDHUP;
    int result = attend_watch(p2p, EPOLL_CTL_ADD, fd, events, ON_STREAM, stream);
    if (result == 0 && !stream->is_watch) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = stream};
        result = epoll_ctl(p2p->data_epoll, EPOLL_CTL_ADD, fd, &event);
    }
    return result;
}

void attend_remove(struct p2p *p2p, struct p2p_stream *stream) {
    if (stream->io->fd >= 0) {
        (void)attend_forget(p2p, stream->io->fd);
        (void)epoll_ctl(p2p->data_epoll, EPOLL_CTL_DEL, stream->io->fd, NULL);
    }
}

void attend_arm(struct p2p *p2p) {
    for (struct p2p_stream *stream = p2p->open; stream; stream = stream->next_open) {
        if (stream->io->fd >= 0 && stream->is_blocked != stream->is_polled_for_out) {
            struct epoll_event event = {.events = EPOLLIN | (stream->is_blocked ? (uint32_t)EPOLLOUT : 0),
                                        .data.ptr = stream};
            if (epoll_ctl(p2p->data_epoll, EPOLL_CTL_MOD, stream->io->fd, &event) != 0) {
                stream_break(p2p, stream, errno); /* no event would tell that there is room */
            }
            stream->is_polled_for_out = stream->is_blocked;
        }
    }
    if (!p2p->is_armed && p2p->bell_event < 0) {
        p2p->is_armed = attend_watch(p2p, EPOLL_CTL_MOD, p2p->data_epoll, EPOLLIN | EPOLLONESHOT, ON_DATA, NULL) == 0;
        int error_number = errno;
        for (struct p2p_stream *stream = p2p->open; stream && !p2p->is_armed; stream = stream->next_open) {
            if (stream->io->fd >= 0) {
                stream_break(p2p, stream, error_number); /* nobody would wake the sleeper; the monitor sees the end */
            }
        }
    }
}

/* A watch has something to say, or a connection has ended: whatever came before the end counts. Or the kernel has given
 * memory back: it says so as if there were an error, but there is none. */
static void on_stream(struct p2p *p2p, struct p2p_stream *stream, uint32_t events) {
    if (events == EPOLLERR && stream->io && stream_take_back(p2p, stream)) {
        return; /* of an error the next turn tells again */
    }
    while (stream->io && stream_read(p2p, stream)) {
    }
}

/* ---- events ---- */

static void on_timer(struct p2p *p2p) {
    uint64_t expirations;
    (void)!read(p2p->timer, &expirations, sizeof expirations);
    p2p->timer_ns = 0;
    end_late(p2p, clock_monotonic_ns(), ETIMEDOUT);
}

static void on_event(struct p2p *p2p, const struct epoll_event *event) {
    void *object = (void *)(uintptr_t)(event->data.u64 & ~(uint64_t)SUBJECT_MASK);
    switch ((enum attend_subject)(event->data.u64 & SUBJECT_MASK)) {
    case ON_LISTENER:
        greet_accept(p2p);
        break;
    case ON_TIMER:
        on_timer(p2p);
        break;
    case ON_DATA:
        p2p->is_armed = false;
        comm_bell_ring(p2p->config.bell);
        break;
    case ON_STRANGER:
        greet_stranger(p2p, object);
        break;
    case ON_DIAL:
        greet_dialled(p2p, object);
        break;
    default:
        on_stream(p2p, object, event->events);
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
    dial_sweep(p2p);
    attend_set_timer(p2p);
}

void p2p_attend(struct p2p *p2p) {
    (void)atomic_fetch_add_explicit(&p2p->visitors, 1, memory_order_relaxed);
    p2p_lock(p2p);
    (void)atomic_fetch_sub_explicit(&p2p->visitors, 1, memory_order_relaxed);
    attend_turn(p2p);
    p2p->leaves_more = p2p_has_more(p2p); /* of a link that was opened just now, above all */
    p2p_unlock(p2p);
}

int p2p_descriptor(const struct p2p *p2p) {
    return p2p->attend_epoll;
}

size_t p2p_contact(const struct p2p *p2p, uint8_t out[P2P_CONTACT_BYTES_MAX]) {
    return wire_contact_encode(&p2p->contact, out);
}

/* ---- making it ---- */

/* Where others are told to connect to: what the user's choice of interfaces has come to. */
static void log_addresses(const struct interface_address *chosen, size_t count, uint16_t port) {
    char list[512] = "", address[NET_ADDRESS_TEXT_MAX], one[sizeof address + INTERFACE_NAME_MAX + 8];
    for (size_t i = 0; i < count; i++) {
        (void)str_format(one, sizeof one, "%s%s (%s)", i > 0 ? ", " : "",
                         net_address_host((const struct sockaddr *)&chosen[i].address.sockaddr, address),
                         chosen[i].name);
        size_t used = strlen(list);
        (void)str_format(list + used, sizeof list - used, "%s", one);
    }
    log_info("other hosts connect to port %u of %s", (unsigned)port, list);
}

static int listen_on_interfaces(struct p2p *p2p) {
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
    code = code ? code : interface_listen(p2p->config.interfaces.family, &p2p->listener, &contact->port);
    if (code != 0) {
        return code;
    }
    interface_numbers(chosen, count, contact->interfaces);
    for (size_t i = 0; i < count; i++) {
        contact->addresses[contact->address_count] = chosen[i].address;
        net_address_set_port((struct sockaddr *)&contact->addresses[contact->address_count].sockaddr, contact->port);
        contact->address_count++;
    }
    log_addresses(chosen, count, contact->port);
    return 0;
}

static int listen_on_loopback(struct p2p *p2p) {
    struct wire_contact *contact = &p2p->contact;
    int code = interface_listen_on_loopback(p2p->config.interfaces.family, &p2p->listener, &contact->addresses[0]);
    if (code == 0) {
        contact->address_count = 1;
        contact->port = net_address_port((const struct sockaddr *)&contact->addresses[0].sockaddr);
    }
    return code;
}

/* Nobody listens where nobody can want to connect; a wish for interfaces is a wish to use them. */
static int open_listener(struct p2p *p2p) {
    bool has_wish = p2p->config.interfaces.count > 0;
    switch (p2p->config.reach) {
    case P2P_REACH_NOBODY:
        return 0;
    case P2P_REACH_LOOPBACK:
        return has_wish ? listen_on_interfaces(p2p) : listen_on_loopback(p2p);
    case P2P_REACH_NETWORK:
        break;
    }
    return listen_on_interfaces(p2p);
}

static int fill_contact(struct p2p *p2p) {
    struct wire_contact *contact = &p2p->contact;
    contact->speaks_tls = p2p->config.tls != NULL;
    contact->host = identity_network();
    uint8_t random[2 * WIRE_SECRET_BYTES];
    if (random_fill(random, sizeof random) != 0) {
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
        return attend_watch(p2p, EPOLL_CTL_ADD, p2p->data_epoll, EPOLLONESHOT, ON_DATA, NULL);
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
    code = code ? code : fill_contact(p2p);
    if (code != 0) {
        return code;
    }
    p2p->timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    p2p->attend_epoll = epoll_create1(EPOLL_CLOEXEC);
    p2p->data_epoll = epoll_create1(EPOLL_CLOEXEC);
    if (p2p->timer < 0 || p2p->attend_epoll < 0 || p2p->data_epoll < 0 ||
        (p2p->listener >= 0 && attend_watch(p2p, EPOLL_CTL_ADD, p2p->listener, EPOLLIN, ON_LISTENER, NULL) != 0) ||
        attend_watch(p2p, EPOLL_CTL_ADD, p2p->timer, EPOLLIN, ON_TIMER, NULL) != 0 || watch_data(p2p) != 0) {
        return status_fail_errno(errno, "watch the sockets of a group");
    }
    return 0;
}

void attend_destroy(struct p2p *p2p) {
    greet_end_all(p2p);
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
