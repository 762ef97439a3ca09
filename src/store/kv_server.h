/* A TCPStore server on a libuv loop (wire: docs/formats/tcpstore.md).
 *
 * Single-threaded: every call and callback happens on the loop's thread. Nothing here blocks or resolves names.
 * A client that breaks the protocol or a limit loses its connection; the others are not affected. */
#ifndef STORE_KV_SERVER_H
#define STORE_KV_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

struct kv_server;

struct kv_slice {
    const uint8_t *data; /* borrowed; may be NULL when len is 0 */
    size_t len;
};

/* Called after a write has changed the value of a key. `connection` is the server's number for the writing
 * connection (never reused within a server), 0 for kv_server_set(). Slices are borrowed until return; an
 * absent value has data == NULL. The callback may call kv_server_set() and kv_server_get(), nothing else. */
typedef void kv_server_change_cb(void *ctx, uint64_t connection, struct kv_slice key, struct kv_slice old_value,
                                 struct kv_slice new_value);
/* Called once when a connection has ended for any reason (also when the server drops it or is reset). */
typedef void kv_server_disconnect_cb(void *ctx, uint64_t connection);

struct kv_server_options {
    const struct sockaddr *const *addresses; /* borrowed during create: addresses to listen on, all or error */
    size_t address_count;                    /* port 0 in the first: the kernel chooses, the others get the same port */
    size_t connections_max;                  /* 0: the default, 65536 */
    kv_server_change_cb *on_change;          /* may be NULL */
    kv_server_disconnect_cb *on_disconnect;  /* may be NULL */
    void *ctx;
};

/* Binds, listens and starts serving on `loop`. MUSTER_ESYSTEM (errno kept: EADDRINUSE, EADDRNOTAVAIL are what
 * callers look at), MUSTER_ENOMEM. *out is written on success only. */
int kv_server_create(uv_loop_t *loop, const struct kv_server_options *options, struct kv_server **out);

uint16_t kv_server_port(const struct kv_server *server);

/* Direct access by the process that hosts the store; same effects as from a client, waiters included.
 * get: false when absent; the slice dies with the next call on the server. set: MUSTER_ENOMEM, MUSTER_ELIMIT. */
bool kv_server_get(const struct kv_server *server, struct kv_slice key, struct kv_slice *out);
int kv_server_set(struct kv_server *server, struct kv_slice key, struct kv_slice value);

/* Drops every connection and every key, keeps listening on the same port: the next attempt's workers meet a
 * fresh store. Bytes that were on their way from earlier clients have no effect. */
void kv_server_reset(struct kv_server *server);

/* Stops listening, drops all clients, frees the server once libuv has closed its handles (during a later turn of
 * the loop). NULL is accepted. `server` must not be used after the call. */
void kv_server_close(struct kv_server *server);

#endif
