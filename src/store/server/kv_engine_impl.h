/* What these share, each of which calls those behind it: kv_engine.c (listening, turns), kv_serve.c (bytes of one
 * client in), kv_guest.c (another protocol), kv_connection.c (one client's life, bytes out), kv_turn.c (a turn's time).
 */
#ifndef STORE_KV_ENGINE_IMPL_H
#define STORE_KV_ENGINE_IMPL_H

#include "base/buf.h"
#include "base/clock.h"
#include "store/server/kv_admission.h"
#include "store/server/kv_engine.h"
#include "store/server/kv_newcomers.h"
#include "store/wire/codec.h"

/* Bytes read at once, onto the stack: a store that nobody uses holds no memory for it, and a connection has memory of
 * its own only while a request is incomplete or a reply does not fit into the socket. */
#define KV_INPUT_BYTES ((size_t)64 * 1024)
/* A client that does not read its replies is not read from while it owes more than this. */
#define KV_OUTPUT_PAUSE_BYTES ((size_t)256 * 1024)
/* What one connection is sent at a time; and in how many pieces. */
#define KV_SEND_BYTES_MAX ((size_t)1024 * 1024)
#define KV_SEND_PIECES_MAX 64
/* So long a turn serves the clients that are known, and so long the others. Then the host's loop has its turn: what it
 * has to do besides (an agent's timers and keep-alives) must not wait for what clients do here. One request is
 * served to its end: the largest, of 131,072 keys, takes some tens of milliseconds. */
#define KV_SLICE_KNOWN_NS (2 * CLOCK_NS_PER_MS)
#define KV_SLICE_NEW_NS (1 * CLOCK_NS_PER_MS)
/* Replies that one request may cause, LIST_KEYS and MULTI_GET being the large ones. */
#define KV_REPLY_BYTES_MAX ((size_t)256 * 1024 * 1024)

/* A guest is told what everybody has to know, whether it reads or not: it is dropped when it owes more than this. */
#define KV_GUEST_OUTPUT_BYTES_MAX ((size_t)1024 * 1024)

/* What a connection of the guest's has beyond others. */
struct kv_seat {
    struct sockaddr_storage peer;
    void *data;
};

struct kv_connection {
    struct kv_session session; /* first: a session is turned back into its connection */
    struct kv_engine *engine;
    struct kv_connection *next, *previous; /* all connections */
    struct kv_connection *next_dead;
    int fd;
    uint32_t events; /* what epoll watches for */
    struct codec_scan scan;
    struct buf in;        /* the start of a request, or requests not served while paused */
    struct kv_output out; /* replies that the socket has not taken */
    size_t charged_bytes;
    struct net_address_key address; /* of its peer */
    struct kv_newcomer newcomer;    /* one of these, until it has shown what it is for */
    bool is_stranger;
    struct kv_seat *seat; /* owned; NULL: not a guest's connection */
    bool is_validated;
    bool is_paused;      /* owes too much output: neither read nor served until it has drained */
    bool peer_has_ended; /* it sends no more, and says so: no reset, no failure */
    bool peer_has_reset; /* it has closed the connection, and did not want what was sent */
    bool is_given_up;    /* by the network: nobody has said that it ends */
    bool is_replaced;    /* its client speaks on another one: the end of this is no event */
    bool is_at_end;      /* the peer sends no more; closed once its replies are out */
    bool is_dead;        /* on the dead list, freed at the end of the batch */
    bool is_admitting;   /* as long as it lives, its address is admitted */
};

struct kv_engine {
    int epoll_fd;
    int spare_fd; /* given up for a moment to turn clients away when descriptors have run out */
    int listener_fds[KV_LISTENERS_MAX];
    bool listener_rests[KV_LISTENERS_MAX]; /* ready, but nobody can be accepted just now */
    size_t listener_count;
    struct sockaddr_storage address; /* of the first, with the port */
    uint16_t port;
    struct kv_machine machine;
    struct kv_connection *connections;
    size_t connection_count;
    size_t connections_max;
    uint64_t last_id;
    struct kv_connection *current; /* the one being served: its replies gather, and go out together */
    struct kv_connection *dead;
    bool in_turn;
    int64_t slice_ends_ns; /* whoever is not served before that (monotonic) has to wait for another turn */
    size_t rotation[3];    /* of each rank: where in a batch of events serving begins, since it was cut off there */
    unsigned warnings_logged;
    struct kv_newcomers newcomers; /* those who have said nothing */
    struct kv_newcomers strangers; /* those who have begun to speak to the guest */
    struct kv_admission admission;
    bool is_guarded;
    uint64_t refused_count;
    kv_server_disconnect_cb *on_disconnect;
    void *ctx;
    struct kv_guest guest; /* `serve` is NULL when there is none */
    struct buf spare;      /* memory for replies: lent to whoever is served, so that a reply costs no allocation */
};

/* ---- kv_serve.c ---- */

/* Serves what epoll reported. */
void kv_connection_ready(struct kv_connection *connection, uint32_t events);

/* ---- kv_connection.c ---- */

/* Takes `fd`. On failure (out of memory, not admitted) it is closed and no user hears of it. */
void kv_connection_open(struct kv_engine *engine, int fd);
/* Ends it; freed by kv_connections_reap(). */
void kv_connection_kill(struct kv_connection *connection);
/* The same, since the kernel has said this of it (errno). */
void kv_connection_failed(struct kv_connection *connection, int error_number);
/* The same, with a warning that holds the status detail: its client broke a rule, or memory has run out. */
void kv_connection_drop(struct kv_connection *connection);
/* The same, once all that it is owed has been sent; it is not read from any more. */
void kv_connection_end(struct kv_connection *connection);
/* Sends what the socket takes of what it is owed, at most KV_SEND_BYTES_MAX. */
void kv_connection_flush(struct kv_connection *connection);
/* It has shown what it is for. */
void kv_connection_settle(struct kv_connection *connection);
/* It speaks to the guest: no newcomer any more, but a stranger. False when it had to be dropped. */
bool kv_connection_make_stranger(struct kv_connection *connection);
/* May a client that cannot say who it is come from there? If not that is counted, with a warning. */
bool kv_connection_may_come(struct kv_engine *engine, const struct sockaddr *peer, int fd);
/* Memory for replies is lent by the engine, so that a reply costs no allocation, and comes back when nothing is owed.
 */
void kv_connection_borrow_memory(struct kv_connection *connection);
void kv_connection_return_memory(struct kv_connection *connection);
/* Memory that the client's unfinished messages hold is on the store's account. */
void kv_connection_charge(struct kv_connection *connection);
/* Has epoll watch for what the connection's state asks for. */
void kv_connection_update_events(struct kv_connection *connection);
/* Frees the dead and tells on_disconnect, or the guest. */
void kv_connections_reap(struct kv_engine *engine);
/* The machine's ways to waiting sessions, and to one that is nobody's any more; ctx is the engine. */
kv_machine_deliver_cb kv_connection_deliver;
kv_machine_replaced_cb kv_connection_replaced;

/* ---- kv_turn.c ---- */

/* Has this turn's time for these clients passed? */
bool kv_engine_slice_is_over(const struct kv_engine *engine);
/* A warning about clients. After some of them the rest are for the debug log: who comes back again and again must not
 * fill the log. */
void kv_engine_warn(struct kv_engine *engine, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* ---- kv_guest.c ---- */

/* Is it the guest's, going by the first byte that has come on it? */
bool kv_guest_owns(const struct kv_connection *connection, uint8_t first_byte);
/* Hands it what has come; returns the bytes used. */
size_t kv_guest_serve(struct kv_connection *connection, const uint8_t *bytes, size_t len);

#endif
