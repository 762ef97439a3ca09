/* The TCPStore server without an event loop of its own: everything it waits for is behind one descriptor.
 *
 * Whoever hosts it polls kv_engine_fd() for reading and calls kv_engine_turn() when it is ready: the libuv shell
 * (kv_server.h) in the agent, a thread of its own in a worker (store_host.c). Needs libc only. Single-threaded: calls
 * and callbacks belong to one thread at a time. Nothing blocks or resolves names. */
#ifndef STORE_KV_ENGINE_H
#define STORE_KV_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "net/range.h"
#include "store/server/kv_guest.h"
#include "store/server/kv_machine.h" /* kv_server_change_cb */
#include "store/wire/slice.h"

#define KV_CONNECTIONS_DEFAULT ((size_t)65536)
#define KV_LISTENERS_MAX 16
/* Connections that have said nothing yet, or only a part of a client's handshake; and those that speak the guest's
 * protocol, but have not shown the guest what they are for. One more ends the oldest of the address that has the most
 * of them (kv_newcomers.h). Of the former there are never more than half the descriptors that the process may have. */
#define KV_NEWCOMERS_DEFAULT ((size_t)16384)
#define KV_STRANGERS_DEFAULT ((size_t)4096)

struct kv_engine;

/* How a connection has ended: its process has closed it, or a machine says that there is none; the network has given it
 * up, and nobody has said a word: the client may live; or the server has dropped it, or was reset. */
enum kv_end { KV_END_TOLD, KV_END_SILENT, KV_END_DROPPED };

/* Called once when a connection has ended for any reason (also when the server drops it or is reset); may call
 * kv_server_set() and kv_server_get(), nothing else. Not called for connections that kv_server_close() ends, nor for a
 * guest's, nor for one whose client speaks on another one, which has the same number. A client of which
 * this has been called may come back (on_return). */
typedef void kv_server_disconnect_cb(void *ctx, uint64_t connection, enum kv_end end);

struct kv_server_options {
    const struct sockaddr *const *addresses; /* borrowed during create: addresses to listen on, all or error */
    size_t address_count;                    /* port 0 in the first: the kernel chooses, the others get the same port */
    bool skips_absent;      /* an address that this machine has not got is left out, unless it has none of them */
    size_t connections_max; /* 0: the default, 65536 */
    size_t bytes_max;       /* of keys, values, waits and buffers; 0: half of the machine's memory */
    bool plain;             /* pass for PyTorch's server: offer nothing more (for tests) */
    kv_server_change_cb *on_change;         /* may be NULL */
    kv_server_disconnect_cb *on_disconnect; /* may be NULL */
    kv_server_return_cb *on_return;         /* may be NULL */
    void *ctx;
    size_t newcomers_max; /* silent connections; 0: the default, 16384 */
    size_t strangers_max; /* of the guest's; 0: the default, 4096 */
    bool is_guarded; /* TCPStore clients are served from this machine's own addresses and admitted ones alone: whoever
                      * connects from elsewhere loses the connection before anything that it says is looked at, unless
                      * the first byte is the guest's */
    const struct net_ranges *allowed; /* admitted from the start; borrowed during create; NULL: none */
    const struct kv_guest *guest;     /* another protocol on the same port, copied; NULL: none */
};

/* As kv_server_create() and its companions, with the same errors. */
int kv_engine_create(const struct kv_server_options *options, struct kv_engine **out);
int kv_engine_fd(const struct kv_engine *engine);
uint64_t kv_engine_refused_count(const struct kv_engine *engine); /* connections that were not admitted */
uint16_t kv_engine_port(const struct kv_engine *engine);
const struct sockaddr *kv_engine_address(const struct kv_engine *engine);
/* Serves what is ready, for a bounded time; more may be ready afterwards. */
void kv_engine_turn(struct kv_engine *engine);
bool kv_engine_get(const struct kv_engine *engine, struct kv_slice key, struct kv_slice *out);
int kv_engine_set(struct kv_engine *engine, struct kv_slice key, struct kv_slice value);
void kv_engine_reset(struct kv_engine *engine);

/* What outlives a reset of the rest: connections by their numbers, also those of clients that may come back, and keys
 * as on the wire. */
struct kv_keep {
    bool (*connection)(const void *ctx, uint64_t connection);
    kv_table_keeps *key;
    const void *ctx;
};
void kv_engine_reset_but(struct kv_engine *engine, const struct kv_keep *keep);
void kv_engine_free(struct kv_engine *engine);

#endif
