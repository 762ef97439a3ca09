/* TCP between simulated hosts: connections that are made, bytes that arrive in order and in any pieces, ends and
 * resets. A path that is blocked holds everything back, as retransmission does, until it opens or the kernel gives up.
 */
#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "sim_kernel.h"
#include "sim_memory.h"

enum {
    CONNECT_TRIES_MAX = 7,
    PORT_FIRST = 32768,
    PORT_LAST = 60999,
    LOOPBACK_US = 10,
    PIECES_MAX = 4,
    RESENT_AFTER_US = 200000,
    RESENT_AFTER_MAX_US = 120000000
};

static void trace(const struct sim_file *file, const char *what) {
    assert(file->host);
    if (sim_kernel.traces) {
        sim_trace("host %u: socket %d (port %u to host %u port %u) %s", file->host->index, file->fd - SIM_FD_FIRST,
                  file->local.port, (file->remote.addr & 0xffffff) - 1, file->remote.port, what);
    }
}

/* ---- the way there ---- */

static int64_t blocked_until_us(const struct sim_host *from, const struct sim_host *to) {
    const struct sim_kernel *k = &sim_kernel;
    assert(from && to);
    return k->blocked_until_us && from != to ? k->blocked_until_us[from->index * k->host_count + to->index] : 0;
}

static bool is_blocked(const struct sim_host *from, const struct sim_host *to) {
    return blocked_until_us(from, to) > sim_kernel.now_us;
}

static int64_t draw_delay_us(const struct sim_host *from, const struct sim_host *to) {
    const struct sim_network *n = &sim_kernel.network;
    if (from == to) {
        return LOOPBACK_US;
    }
    int64_t delay = n->delay_us + (n->jitter_us ? sim_random_between(&sim_kernel.random, 0, n->jitter_us) : 0);
    bool is_lost = n->late_one_in && sim_random_one_in(&sim_kernel.random, n->late_one_in);
    return is_lost ? delay + RESENT_AFTER_US + delay * (int64_t)sim_random_below(&sim_kernel.random, 4) : delay;
}

/* Something for `to` sets out now; on one connection nothing overtakes. */
static int64_t next_arrival_us(struct sim_file *to, const struct sim_host *from) {
    int64_t at = sim_kernel.now_us + draw_delay_us(from, to->host);
    to->arrival_us = at > to->arrival_us ? at : to->arrival_us;
    if (sim_kernel.network.slow_us > 0 && to->arrival_us - sim_kernel.now_us >= sim_kernel.network.slow_us) {
        int64_t last_us = sim_kernel.slow_until_us;
        sim_kernel.slow_until_us = to->arrival_us > last_us ? to->arrival_us : last_us;
    }
    return to->arrival_us;
}

/* When the first of what is held back is sent once more on a way that is open again. What follows it comes with it. */
static int64_t resent_us(const struct sim_file *to, int64_t open_us) {
    if (!sim_kernel.network.backs_off || to->arrival_us >= open_us) {
        return open_us;
    }
    int64_t at_us = sim_kernel.now_us;
    for (int64_t pause_us = RESENT_AFTER_US; at_us < open_us;) {
        at_us += pause_us;
        pause_us = 2 * pause_us < RESENT_AFTER_MAX_US ? 2 * pause_us : RESENT_AFTER_MAX_US;
    }
    return at_us;
}

/* What arrives now is held back if the way is blocked: false then, and it comes again. */
static bool gets_through(struct sim_file *to, sim_event_fn *fn, uint64_t token) {
    const struct sim_host *from = to->peer ? to->peer->host : NULL;
    if (to->is_forgotten) {
        return false;
    }
    if (!from || !is_blocked(from, to->host)) {
        return to->host->is_up;
    }
    int64_t at = resent_us(to, blocked_until_us(from, to->host)) + draw_delay_us(from, to->host);
    to->arrival_us = at > to->arrival_us ? at : to->arrival_us;
    sim_post(to->arrival_us, fn, to, token);
    return false;
}

/* ---- the end of a connection ---- */

void sim_tcp_break(struct sim_file *file, int error) {
    if (file->state == SIM_CONNECTED || file->state == SIM_CONNECTING) {
        trace(file, "breaks");
        file->state = SIM_BROKEN;
        file->error = error;
        file->in_end = true;
        sim_file_changed(file);
    }
}

static void on_reset(void *subject, uint64_t token) {
    struct sim_file *file = subject;
    if (gets_through(file, on_reset, token)) {
        sim_tcp_break(file, (int)token);
    }
}

static void on_end(void *subject, uint64_t token) {
    struct sim_file *file = subject;
    if (gets_through(file, on_end, token) && file->state == SIM_CONNECTED) {
        trace(file, "ends");
        file->in_end = true;
        sim_file_changed(file);
    }
}

/* What lies between the hosts knows nothing of this connection. */
static void on_refused_bytes(void *subject, uint64_t token) {
    (void)token;
    sim_tcp_break(subject, ECONNRESET);
}

static void post_reset(struct sim_file *to, const struct sim_host *from) {
    if (!to) {
        return;
    }
    sim_post(next_arrival_us(to, from), on_reset, to, ECONNRESET);
}

void sim_tcp_shutdown(struct sim_file *file) {
    if (file->kind != SIM_STREAM || file->state != SIM_CONNECTED) {
        return;
    }
    if (!file->out_end && file->peer) {
        sim_post(next_arrival_us(file->peer, file->host), on_end, file->peer, 0);
    }
    file->out_end = file->in_end = true;
    sim_file_changed(file);
}

static void close_stream(struct sim_file *file) {
    struct sim_file *peer = file->peer;
    if (file->state == SIM_CONNECTED && peer) {
        if (file->in_len > 0 || file->gives_up) { /* not all was read, or it is wanted: the kernel resets */
            post_reset(peer, file->host);
        } else if (!file->out_end) {
            sim_post(next_arrival_us(peer, file->host), on_end, peer, 0);
        }
        file->out_end = true;
    }
}

void sim_tcp_close(struct sim_file *file) {
    if (file->kind == SIM_STREAM) {
        close_stream(file);
        return;
    }
    struct sim_file **at = &file->host->listeners;
    while (*at != file) {
        at = &(*at)->next_listener;
    }
    *at = file->next_listener;
    file->queue_first = file->queue_last = NULL;
    for (struct sim_file *waits = file->host->files, *next; waits; waits = next) {
        next = waits->next;
        if (waits->listener == file) { /* nobody will accept it any more */
            waits->out_end = true;
            post_reset(waits->peer, file->host);
            sim_file_close(waits);
        }
    }
}

/* ---- bytes ---- */

static void on_bytes(void *subject, uint64_t token) {
    struct sim_file *file = subject;
    if (!gets_through(file, on_bytes, token) || file->state == SIM_BROKEN) {
        return;
    }
    if (!file->is_open) { /* nobody is there any more, the kernel says */
        if (file->peer && file->peer->state == SIM_CONNECTED) {
            post_reset(file->peer, file->host);
        }
        file->state = SIM_BROKEN;
        return;
    }
    file->in_arrived += token;
    file->heard_us = sim_kernel.now_us;
    trace(file, "bytes arrive");
    sim_file_changed(file);
}

static void keep(struct sim_file *to, const void *bytes, size_t len) {
    if (to->in_at > 0 && to->in_at + to->in_len + len > to->in_capacity) {
        memmove(to->in, to->in + to->in_at, to->in_len);
        to->in_at = 0;
    }
    if (to->in_len + len > to->in_capacity) {
        to->in_capacity = 2 * (to->in_len + len);
        to->in = sim_memory_resize(to->in, to->in_capacity);
    }
    memcpy(to->in + to->in_at + to->in_len, bytes, len);
    to->in_len += len;
}

static void post_pieces(struct sim_file *to, const struct sim_host *from, size_t len) {
    unsigned pieces = sim_kernel.network.splits ? (unsigned)sim_random_below(&sim_kernel.random, PIECES_MAX) : 0;
    for (; pieces > 0 && len > 1; pieces--) {
        size_t piece = 1 + sim_random_below(&sim_kernel.random, len - 1);
        sim_post(next_arrival_us(to, from), on_bytes, to, piece);
        len -= piece;
    }
    sim_post(next_arrival_us(to, from), on_bytes, to, len);
}

ssize_t sim_tcp_send(struct sim_file *file, const void *bytes, size_t len) {
    struct sim_file *to = file->peer;
    if (file->state == SIM_BROKEN || file->out_end) {
        int error = file->error ? file->error : EPIPE;
        file->error = 0;
        return -error;
    }
    if (file->state != SIM_CONNECTED) {
        return file->state == SIM_CONNECTING ? -EAGAIN : -ENOTCONN;
    }
    size_t room = to->in_len < sim_kernel.network.window_bytes ? sim_kernel.network.window_bytes - to->in_len : 0;
    if (room == 0) {
        file->wants_room = true;
        return -EAGAIN;
    }
    size_t taken = len < room ? len : room;
    file->wants_room = taken < len;
    sim_kernel.counts.sends++;
    sim_kernel.counts.bytes += taken;
    file->has_unheard = true;
    if (to->host->is_up || to->is_open) {
        keep(to, bytes, taken);
        post_pieces(to, file->host, taken);
    }
    if (file->is_refused) {
        sim_post(sim_kernel.now_us + draw_delay_us(file->host, to->host), on_refused_bytes, file, 0);
    }
    return (ssize_t)taken;
}

static void on_room(void *subject, uint64_t token) {
    (void)token;
    sim_file_changed(subject);
}

ssize_t sim_tcp_recv(struct sim_file *file, void *bytes, size_t len) {
    size_t taken = len < file->in_arrived ? len : file->in_arrived;
    if (taken > 0) {
        memcpy(bytes, file->in + file->in_at, taken);
        file->in_at += taken;
        file->in_arrived -= taken;
        file->in_len -= taken;
        file->in_at = file->in_len ? file->in_at : 0;
        if (file->peer && file->peer->wants_room) {
            file->peer->wants_room = false;
            sim_post(sim_kernel.now_us + draw_delay_us(file->host, file->peer->host), on_room, file->peer, 0);
        }
        return (ssize_t)taken;
    }
    if (file->error) {
        int error = file->error;
        file->error = 0;
        return -error;
    }
    if (file->in_end) {
        return 0;
    }
    return file->state == SIM_FRESH ? -ENOTCONN : -EAGAIN;
}

/* ---- binding ---- */

static struct sim_file *listener_on(const struct sim_host *host, struct sim_address at) {
    for (struct sim_file *file = host->listeners; file; file = file->next_listener) {
        if (file->local.port == at.port &&
            (file->local.addr == INADDR_ANY || at.addr == INADDR_ANY || file->local.addr == at.addr)) {
            return file;
        }
    }
    return NULL;
}

static uint16_t free_port(struct sim_host *host) {
    struct sim_address at = {.addr = INADDR_ANY};
    do {
        at.port = host->next_port;
        host->next_port = host->next_port == PORT_LAST ? PORT_FIRST : (uint16_t)(host->next_port + 1);
    } while (listener_on(host, at));
    return at.port;
}

int sim_tcp_bind(struct sim_file *file, struct sim_address address) {
    if (address.addr != INADDR_ANY && address.addr >> 24 != 127 && address.addr != file->host->addr) {
        return EADDRNOTAVAIL;
    }
    if (address.port == 0) {
        address.port = free_port(file->host);
    } else if (listener_on(file->host, address)) {
        return EADDRINUSE;
    }
    file->local = address;
    return 0;
}

int sim_tcp_listen(struct sim_file *file) {
    if (listener_on(file->host, file->local)) {
        return EADDRINUSE;
    }
    file->kind = SIM_LISTENER;
    file->next_listener = file->host->listeners;
    file->host->listeners = file;
    return 0;
}

struct sim_file *sim_tcp_accept(struct sim_file *listener) {
    struct sim_file *first = listener->queue_first;
    if (first) {
        first->listener = NULL;
        listener->queue_first = first->queue_next;
        listener->queue_last = first->queue_next ? listener->queue_last : NULL;
    }
    return first;
}

/* ---- connecting ---- */

/* The last message of the handshake: the listener's process can have it, if it still listens. */
static void on_acceptable(void *subject, uint64_t token) {
    struct sim_file *file = subject;
    struct sim_file *listener = file->listener;
    (void)token;
    if (!file->is_open) {
        return;
    }
    trace(file, "can be accepted");
    *(listener->queue_last ? &listener->queue_last->queue_next : &listener->queue_first) = file;
    listener->queue_last = file;
    sim_file_changed(listener);
}

static void on_connected(void *subject, uint64_t token) {
    struct sim_file *file = subject;
    (void)token;
    if (file->state == SIM_CONNECTING && file->is_open) {
        trace(file, "is connected");
        file->state = SIM_CONNECTED;
        sim_file_changed(file);
    } else if (!file->is_open && file->peer) { /* it does not want it any more */
        post_reset(file->peer, file->host);
    }
}

static void on_refused(void *subject, uint64_t token) {
    struct sim_file *file = subject;
    (void)token;
    if (file->is_open) {
        sim_tcp_break(file, ECONNREFUSED);
    }
}

/* The listener's end; it is nobody's until it is accepted. */
static struct sim_file *answer(struct sim_file *client, struct sim_file *listener) {
    struct sim_host *before = sim_kernel.current;
    sim_kernel.current = listener->host;
    struct sim_file *file = sim_file_new(SIM_STREAM);
    sim_kernel.current = before;
    file->family = listener->family;
    file->local = client->remote;
    file->remote = client->local;
    file->state = SIM_CONNECTED;
    file->peer = client;
    file->listener = listener;
    file->keep_alive_us = listener->keep_alive_us;
    sim_kernel.counts.connections++;
    return file;
}

/* A first message that was sent twice: the second connection is for nobody, and is reset when that turns out. */
static void open_ghost(struct sim_file *client, struct sim_file *listener) {
    struct sim_file *ghost = answer(client, listener);
    ghost->remote.port = (uint16_t)(ghost->remote.port + 1);
    ghost->peer = NULL;
    int64_t at = sim_kernel.now_us + draw_delay_us(client->host, listener->host);
    sim_post(at, on_acceptable, ghost, 0);
    sim_post(at + draw_delay_us(client->host, listener->host), on_reset, ghost, ECONNRESET);
}

static void on_connect(void *subject, uint64_t token);

static void connect_again(struct sim_file *file) {
    int64_t pause_us = SIM_S << file->connect_tries++;
    if (file->connect_tries < CONNECT_TRIES_MAX) {
        sim_post(sim_kernel.now_us + pause_us, on_connect, file, 0);
    } else {
        sim_tcp_break(file, ETIMEDOUT);
    }
}

static void on_connect(void *subject, uint64_t token) {
    struct sim_file *file = subject;
    struct sim_host *to = sim_host_at(file->remote.addr);
    (void)token;
    if (!file->is_open || file->state != SIM_CONNECTING) {
        return;
    }
    to = file->remote.addr >> 24 == 127 ? file->host : to;
    if (!to || !to->is_up || is_blocked(file->host, to) || is_blocked(to, file->host)) {
        connect_again(file);
        return;
    }
    struct sim_file *listener = listener_on(to, file->remote);
    int64_t back_at = sim_kernel.now_us + draw_delay_us(to, file->host);
    if (!listener) {
        sim_post(back_at, on_refused, file, 0);
        return;
    }
    file->peer = answer(file, listener);
    sim_post(back_at, on_connected, file, 0);
    file->peer->arrival_us = back_at + draw_delay_us(file->host, to);
    sim_post(file->peer->arrival_us, on_acceptable, file->peer, 0);
    if (sim_kernel.network.ghost_one_in && sim_random_one_in(&sim_kernel.random, sim_kernel.network.ghost_one_in)) {
        open_ghost(file, listener);
    }
}

int sim_tcp_connect(struct sim_file *file, struct sim_address address) {
    if (file->state != SIM_FRESH) {
        return EISCONN;
    }
    file->remote = address;
    bool is_loopback = address.addr >> 24 == 127;
    if (file->local.port == 0) {
        file->local.port = free_port(file->host);
        file->local.addr = is_loopback ? address.addr : file->host->addr;
    }
    file->state = SIM_CONNECTING;
    file->connect_us = sim_kernel.now_us;
    sim_post(sim_kernel.now_us + (is_loopback ? LOOPBACK_US : draw_delay_us(file->host, sim_host_at(address.addr))),
             on_connect, file, 0);
    return EINPROGRESS;
}
