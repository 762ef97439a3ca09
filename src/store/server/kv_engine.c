/* Listening, accepting and dispatching for the store server; see kv_engine.h. */
#include "store/server/kv_engine.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/hold.h"
#include "base/status.h"
#include "base/system/descriptors.h"
#include "base/system/random.h"
#include "net/endpoint.h"
#include "net/socket.h"
#include "store/server/kv_engine_impl.h"

enum {
    EVENTS_PER_BATCH = 256,
    ACCEPTS_PER_EVENT = 64,
    PORT_TRIES_MAX = 16, /* a port the kernel chose for one address may be taken on another */
    KEEP_ALIVE_IDLE_S = 60,
    KEEP_ALIVE_INTERVAL_S = 15 /* of idle clients, who inherit it, for as long as a silent host is waited for */
};
/* Who is served first: a guest's connections, the store's clients, and whoever has not said yet what it is. */
enum rank { RANK_GUEST, RANK_KNOWN, RANK_NEW };
/* Contents above this are worth asking the allocator to give back. */
#define TRIM_BYTES ((size_t)1024 * 1024)

/* epoll's data: a connection's address, or an odd number for a listener. */
static uint64_t listener_tag(size_t index) {
    return (uint64_t)index * 2 + 1;
}

static void close_listeners(struct kv_engine *engine) {
    for (size_t i = 0; i < engine->listener_count; i++) {
        (void)epoll_ctl(engine->epoll_fd, EPOLL_CTL_DEL, engine->listener_fds[i], NULL);
        (void)close(engine->listener_fds[i]);
        engine->listener_rests[i] = false;
    }
    engine->listener_count = 0;
}

static bool has_ipv4(const struct kv_server_options *options) {
    for (size_t i = 0; i < options->address_count; i++) {
        if (options->addresses[i]->sa_family == AF_INET) {
            return true;
        }
    }
    return false;
}

/* Listens on one address, on `engine->port` unless that is 0. */
static int listen_on(struct kv_engine *engine, const struct sockaddr *address, bool v6_only) {
    struct sockaddr_storage copy;
    memset(&copy, 0, sizeof copy);
    memcpy(&copy, address, net_sockaddr_len(address));
    if (engine->port != 0) {
        net_address_set_port((struct sockaddr *)&copy, engine->port);
    }
    int fd = -1;
    int code = net_socket_listen((const struct sockaddr *)&copy, v6_only, &fd);
    if (code) {
        return code;
    }
    net_socket_keep_alive(fd, KEEP_ALIVE_IDLE_S, KEEP_ALIVE_INTERVAL_S, hold_from_env_ms());
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = listener_tag(engine->listener_count)};
    socklen_t len = sizeof copy;
    if (epoll_ctl(engine->epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0 ||
        getsockname(fd, (struct sockaddr *)&copy, &len) < 0) {
        int error_number = errno;
        (void)close(fd);
        code = status_fail_errno(error_number, "watch a listening socket");
        errno = error_number;
        return code;
    }
    if (engine->listener_count == 0) {
        engine->address = copy;
    }
    engine->port = net_address_port((const struct sockaddr *)&copy);
    engine->listener_fds[engine->listener_count++] = fd;
    return 0;
}

/* Does this machine lack the address, or all of its kind? Whoever binds it learns that; nobody need ask before. */
static bool is_absent(int error_number) {
    return error_number == EAFNOSUPPORT || error_number == EADDRNOTAVAIL;
}

static int listen_on_each(struct kv_engine *engine, const struct kv_server_options *options) {
    bool v6_only = has_ipv4(options);
    for (size_t i = 0; i < options->address_count; i++) {
        int code = listen_on(engine, options->addresses[i], v6_only);
        if (code && !(options->skips_absent && is_absent(errno))) {
            return code;
        }
    }
    return engine->listener_count > 0 ? 0 : listen_on(engine, options->addresses[0], v6_only); /* whose error counts */
}

static int listen_on_all(struct kv_engine *engine, const struct kv_server_options *options) {
    uint16_t wanted = net_address_port(options->addresses[0]);
    int code = 0;
    for (unsigned tries = 0; tries < PORT_TRIES_MAX; tries++) {
        engine->port = wanted;
        code = listen_on_each(engine, options);
        bool again = code && errno == EADDRINUSE && wanted == 0 && engine->listener_count > 0;
        if (code) {
            int error_number = errno;
            close_listeners(engine);
            errno = error_number;
        }
        if (!again) {
            break;
        }
    }
    return code;
}

static size_t default_bytes_max(void) {
    long pages = sysconf(_SC_PHYS_PAGES), page_bytes = sysconf(_SC_PAGESIZE);
    if (pages <= 0 || page_bytes <= 0) {
        return CODEC_MESSAGE_BYTES_MAX;
    }
    return (size_t)pages / 2 * (size_t)page_bytes;
}

/* Everything that can fail, on a zeroed engine; the caller frees it on failure. */
static int start(struct kv_engine *engine, const struct kv_server_options *options) {
    uint64_t seed[4];
    if (random_fill(seed, sizeof seed) != 0) {
        return status_fail_errno(errno, "random seed for the store");
    }
    kv_machine_init(&engine->machine, seed, options->bytes_max ? options->bytes_max : default_bytes_max());
    engine->machine.plain = options->plain;
    kv_admission_init(&engine->admission, seed, options->allowed);
    size_t most = descriptors_limit() / 2 + 1;
    size_t wanted = options->newcomers_max ? options->newcomers_max : KV_NEWCOMERS_DEFAULT;
    kv_newcomers_init(&engine->newcomers, seed, wanted < most ? wanted : most);
    kv_newcomers_init(&engine->strangers, seed, options->strangers_max ? options->strangers_max : KV_STRANGERS_DEFAULT);
    engine->machine.deliver = kv_connection_deliver;
    engine->machine.deliver_ctx = engine;
    engine->machine.replaced = kv_connection_replaced;
    engine->machine.on_change = options->on_change;
    engine->machine.on_return = options->on_return;
    engine->machine.change_ctx = options->ctx;
    buf_init(&engine->spare, KV_REPLY_BYTES_MAX);
    engine->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (engine->epoll_fd < 0) {
        return status_fail_errno(errno, "epoll for the store");
    }
    engine->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    return listen_on_all(engine, options);
}

int kv_engine_create(const struct kv_server_options *options, struct kv_engine **out) {
    assert(options->address_count > 0 && options->address_count <= KV_LISTENERS_MAX);
    struct kv_engine *engine = calloc(1, sizeof *engine);
    if (!engine) {
        return status_fail(MUSTER_ENOMEM, "no memory for a store server");
    }
    engine->epoll_fd = -1;
    engine->spare_fd = -1;
    engine->connections_max = options->connections_max ? options->connections_max : KV_CONNECTIONS_DEFAULT;
    engine->is_guarded = options->is_guarded;
    engine->on_disconnect = options->on_disconnect;
    engine->ctx = options->ctx;
    if (options->guest) {
        assert(options->guest->first_byte != CODEC_VALIDATE && options->guest->input_max > 0);
        engine->guest = *options->guest;
    }
    int code = start(engine, options);
    if (code) {
        int error_number = errno;
        kv_engine_free(engine);
        errno = error_number;
        return code;
    }
    *out = engine;
    return 0;
}

/* keep: NULL for nobody. */
static void kill_all_but(struct kv_engine *engine, const struct kv_keep *keep) {
    for (struct kv_connection *connection = engine->connections; connection; connection = connection->next) {
        if (!keep || !keep->connection(keep->ctx, connection->session.id)) {
            kv_connection_kill(connection);
        }
    }
}

void kv_engine_free(struct kv_engine *engine) {
    if (!engine) {
        return;
    }
    assert(!engine->in_turn && engine->machine.depth == 0);
    engine->in_turn = true; /* kill_all_but() need not make the sockets ready */
    engine->on_disconnect = NULL;
    engine->guest.ended = NULL;
    kill_all_but(engine, NULL);
    kv_connections_reap(engine);
    if (engine->machine.deliver) { /* else create() failed before there was a machine */
        kv_machine_done(&engine->machine);
        kv_admission_done(&engine->admission);
        kv_newcomers_done(&engine->newcomers);
        kv_newcomers_done(&engine->strangers);
    }
    close_listeners(engine);
    if (engine->spare_fd >= 0) {
        (void)close(engine->spare_fd);
    }
    if (engine->epoll_fd >= 0) {
        (void)close(engine->epoll_fd);
    }
    buf_done(&engine->spare);
    free(engine);
}

uint64_t kv_engine_refused_count(const struct kv_engine *engine) {
    return engine->refused_count;
}

int kv_engine_fd(const struct kv_engine *engine) {
    return engine->epoll_fd;
}

uint16_t kv_engine_port(const struct kv_engine *engine) {
    return engine->port;
}

const struct sockaddr *kv_engine_address(const struct kv_engine *engine) {
    return (const struct sockaddr *)&engine->address;
}

bool kv_engine_get(const struct kv_engine *engine, struct kv_slice key, struct kv_slice *out) {
    return kv_table_get(&engine->machine.table, key, out);
}

int kv_engine_set(struct kv_engine *engine, struct kv_slice key, struct kv_slice value) {
    if (!engine->in_turn) {
        engine->slice_ends_ns = clock_monotonic_ns() + KV_SLICE_KNOWN_NS;
    }
    return kv_machine_set(&engine->machine, key, value);
}

/* Out of descriptors: a client in the queue would keep the listener ready for ever. Turn it away, if the spare one
 * allows that. */
static bool turn_one_away(struct kv_engine *engine, int listener_fd) {
    if (engine->spare_fd < 0) {
        return false;
    }
    (void)close(engine->spare_fd);
    int fd = accept4(listener_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
        (void)close(fd);
    }
    engine->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    kv_engine_warn(engine, "no file descriptor left for another connection (limit: ulimit -n)");
    return fd >= 0;
}

/* A listener whose clients can neither be taken nor turned away is only looked at when another one comes or a
 * connection has ended: as it stays ready, anything else would keep the processor busy for nothing. */
static void rest(struct kv_engine *engine, size_t index, bool resting) {
    if (engine->listener_rests[index] == resting) {
        return;
    }
    struct epoll_event event = {.events = resting ? EPOLLIN | EPOLLET : EPOLLIN, .data.u64 = listener_tag(index)};
    if (epoll_ctl(engine->epoll_fd, EPOLL_CTL_MOD, engine->listener_fds[index], &event) == 0) {
        engine->listener_rests[index] = resting;
    }
}

/* False when the kernel has clients that cannot be had. */
static bool accept_one(struct kv_engine *engine, int listener_fd, bool *more) {
    int fd = accept4(listener_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0 && engine->connection_count >= engine->connections_max) {
        kv_engine_warn(engine, "connection refused: there are %zu already", engine->connection_count);
        (void)close(fd);
    } else if (fd >= 0) {
        kv_connection_open(engine, fd);
    } else if (errno == EMFILE || errno == ENFILE) {
        *more = false;
        return turn_one_away(engine, listener_fd);
    } else if (errno != ECONNABORTED && errno != EINTR) {
        *more = false;
        if (errno == EAGAIN || errno == EWOULDBLOCK) {
            return true;
        }
        kv_engine_warn(engine, "a connection cannot be taken: accept4: %s", strerror(errno));
        return false;
    }
    return true;
}

static void accept_some(struct kv_engine *engine, size_t index) {
    bool more = true, fine = true;
    for (unsigned i = 0; more && i < ACCEPTS_PER_EVENT; i++) {
        fine = accept_one(engine, engine->listener_fds[index], &more);
    }
    rest(engine, index, !fine);
}

/* Something has been freed: perhaps what accepting lacked. */
static void wake_listeners(struct kv_engine *engine) {
    for (size_t i = 0; i < engine->listener_count; i++) {
        if (engine->listener_rests[i]) {
            accept_some(engine, i);
        }
    }
    if (engine->spare_fd < 0) {
        engine->spare_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    }
}

static bool is_listener(const struct epoll_event *event) {
    return event->data.u64 % 2 == 1;
}

static void serve_event(struct kv_engine *engine, struct epoll_event *event) {
    if (is_listener(event)) {
        accept_some(engine, event->data.u64 / 2);
    } else {
        kv_connection_ready(event->data.ptr, event->events);
    }
}

static enum rank rank_of(const struct epoll_event *event) {
    const struct kv_connection *connection = event->data.ptr;
    if (is_listener(event) || connection->newcomer.source) {
        return RANK_NEW;
    }
    return connection->seat ? RANK_GUEST : RANK_KNOWN;
}

/* Serves those of one rank, in turns: who is not reached in this slice is still ready in the next turn, and then among
 * the first. False when the slice was too short. */
static bool serve_rank(struct kv_engine *engine, struct epoll_event *events, const uint8_t *ranks, size_t count,
                       enum rank rank) {
    for (size_t i = 0; i < count; i++) {
        size_t index = (engine->rotation[rank] + i) % count;
        if (ranks[index] != rank) {
            continue;
        }
        if (rank != RANK_GUEST && kv_engine_slice_is_over(engine)) {
            engine->rotation[rank] = index;
            return false;
        }
        serve_event(engine, &events[index]);
    }
    return true;
}

/* One batch. First what keeps the job alive, the coordinator's own connections; then those whom we know, so that a
 * flood of others does not keep them waiting; then the others, who have a slice of their own for the same reason. */
static bool serve_batch(struct kv_engine *engine, struct epoll_event *events, size_t count) {
    uint8_t ranks[EVENTS_PER_BATCH];
    size_t counts[RANK_NEW + 1] = {0};
    for (size_t i = 0; i < count; i++) {
        ranks[i] = (uint8_t)rank_of(&events[i]);
        counts[ranks[i]]++;
    }
    bool all = true;
    for (enum rank rank = RANK_GUEST; rank <= RANK_NEW; rank++) {
        if (rank == RANK_NEW && counts[rank] > 0) {
            engine->slice_ends_ns = clock_monotonic_ns() + KV_SLICE_NEW_NS;
        }
        all = (counts[rank] == 0 || serve_rank(engine, events, ranks, count, rank)) && all;
    }
    return all;
}

void kv_engine_turn(struct kv_engine *engine) {
    struct epoll_event events[EVENTS_PER_BATCH];
    assert(!engine->in_turn);
    engine->in_turn = true;
    int64_t ends_ns = clock_monotonic_ns() + KV_SLICE_KNOWN_NS;
    for (bool all = true; all && clock_monotonic_ns() < ends_ns;) {
        engine->slice_ends_ns = ends_ns;
        int count = epoll_wait(engine->epoll_fd, events, EVENTS_PER_BATCH, 0);
        all = count > 0 && serve_batch(engine, events, (size_t)count);
        if (engine->dead) {
            kv_connections_reap(engine);
            wake_listeners(engine);
        }
        if (count <= 1) { /* a busy store saves the way through the host's loop; a quiet one saves this call */
            break;
        }
    }
    engine->in_turn = false;
}

/* Clients that the kernel has accepted but we have not: they belong to what is being forgotten. */
static void drain_backlog(int listener_fd) {
    for (unsigned i = 0; i < KV_CONNECTIONS_DEFAULT; i++) {
        int fd = accept4(listener_fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            (void)close(fd);
        } else if (errno != ECONNABORTED && errno != EINTR) {
            return;
        }
    }
}

/* Whoever was there loses the connection, those in the backlog as well: what is on its way from them has no effect. */
static void drop_clients(struct kv_engine *engine, const struct kv_keep *keep) {
    kill_all_but(engine, keep);
    for (size_t i = 0; i < engine->listener_count; i++) {
        drain_backlog(engine->listener_fds[i]);
    }
    kv_connections_reap(engine);
}

void kv_engine_reset(struct kv_engine *engine) {
    assert(!engine->in_turn && engine->machine.depth == 0);
    size_t held = engine->machine.budget.used_bytes;
    engine->in_turn = true;
    drop_clients(engine, NULL);
    kv_admission_clear(&engine->admission);
    kv_machine_clear(&engine->machine); /* last: on_disconnect may have written */
    engine->in_turn = false;
    if (held > TRIM_BYTES) {
        (void)malloc_trim(0);
    }
}

void kv_engine_reset_but(struct kv_engine *engine, const struct kv_keep *keep) {
    assert(!engine->in_turn && engine->machine.depth == 0);
    engine->in_turn = true;
    drop_clients(engine, keep);
    kv_machine_clear_but(&engine->machine, keep->key, keep->connection, keep->ctx);
    engine->in_turn = false;
}
