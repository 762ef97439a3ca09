/* A TCPStore server on a libuv loop (wire: docs/formats/tcpstore.md): kv_engine.h, driven by the loop.
 *
 * Single-threaded: every call and callback happens on the loop's thread. Nothing here blocks or resolves names.
 * A client that breaks the protocol or a limit loses its connection; the others are not affected. */
#ifndef STORE_KV_SERVER_H
#define STORE_KV_SERVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "store/server/kv_engine.h" /* struct kv_server_options, struct kv_slice */

struct kv_server;

/* Binds, listens and starts serving on `loop`. MUSTER_ESYSTEM (errno kept: EADDRINUSE, EADDRNOTAVAIL are what
 * callers look at), MUSTER_ENOMEM. *out is written on success only. */
int kv_server_create(uv_loop_t *loop, const struct kv_server_options *options, struct kv_server **out);

uint16_t kv_server_port(const struct kv_server *server);
/* The first address that it listens on, with the port. Borrowed as long as the server. */
const struct sockaddr *kv_server_address(const struct kv_server *server);

/* Direct access by the process that hosts the store; same effects as from a client, waiters included.
 * get: false when absent; the slice dies with the next call on the server. set: MUSTER_ENOMEM, MUSTER_ELIMIT. */
bool kv_server_get(const struct kv_server *server, struct kv_slice key, struct kv_slice *out);
int kv_server_set(struct kv_server *server, struct kv_slice key, struct kv_slice value);

/* Drops every connection and every key, keeps listening on the same port: the next attempt's workers meet a
 * fresh store. Bytes that were on their way from earlier clients have no effect. */
void kv_server_reset(struct kv_server *server);
/* The same, except for connections and keys that are to be kept (kv_engine.h). */
void kv_server_reset_but(struct kv_server *server, const struct kv_keep *keep);

/* Stops listening, drops all clients, frees the server once libuv has closed its handles (during a later turn of
 * the loop). NULL is accepted. `server` must not be used after the call. */
void kv_server_close(struct kv_server *server);

#endif
