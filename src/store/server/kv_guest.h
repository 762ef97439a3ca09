/* Another protocol on the store's port: a connection whose first byte is not a store client's is handed to a guest,
 * which shares the store's sockets, buffers and limits, and gives its own meaning to the bytes.
 *
 * The rendezvous coordinator is one: agents find it where the store is. Calls and callbacks belong to the engine's
 * thread; the functions below may also be called between its turns. */
#ifndef STORE_KV_GUEST_H
#define STORE_KV_GUEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

struct kv_connection;

struct kv_guest {
    uint8_t first_byte;       /* of each of its connections; not 0, which opens a store client's */
    uint8_t other_first_byte; /* 0: all begin alike */
    size_t input_max;         /* > 0: who has sent as many bytes without a whole message is dropped */
    /* bytes: what has come and was not used before; the first time with the first byte in front. Returns the bytes of
     * the message that it has taken. It is then called again for the next one, at once, or when a peer that has too
     * much to read has read some of it. Returns 0 when there is no whole message yet. Returns SIZE_MAX to drop the
     * connection, with a warning that holds the status detail; what was sent to it before goes out. May call the
     * functions below, for any of its connections. */
    size_t (*serve)(void *ctx, struct kv_connection *connection, const uint8_t *bytes, size_t len);
    /* The connection has ended, for whatever reason but the end of the engine; what is still sent to it is dropped.
     * The last call for it. */
    void (*ended)(void *ctx, struct kv_connection *connection);
    void *ctx;
};

/* Copies, and sends what the socket takes. A peer that is owed more than 1 MiB is dropped (`ended` follows later). */
void kv_guest_send(struct kv_connection *connection, const void *bytes, size_t len);
/* Ends the connection once what it is owed has been sent (`ended` follows later); nothing more is read from it. */
void kv_guest_end(struct kv_connection *connection);
/* Drops it at once (`ended` follows later), with a warning that holds the status detail. */
void kv_guest_drop(struct kv_connection *connection);
/* Has it been ended or dropped? */
bool kv_guest_is_over(const struct kv_connection *connection);
/* A warning about it, which holds the status detail; for `ended`, too. */
void kv_guest_warn(const struct kv_connection *connection);
/* It has shown what it is for: it no longer makes way when too many new connections come. */
void kv_guest_settle(struct kv_connection *connection);
/* Its peer could say who it is: TCPStore clients are served from the same address, too, as long as this connection
 * lives, or, if `lasting`, until the engine is reset (kv_server_options: is_guarded). MUSTER_ELIMIT, MUSTER_ENOMEM. */
int kv_guest_admit(struct kv_connection *connection, bool lasting);
/* A pointer of the guest's own; NULL at first. */
void kv_guest_set(struct kv_connection *connection, void *data);
void *kv_guest_data(const struct kv_connection *connection);
/* In `ended`: the other side has closed the connection in good order, as its kernel does for a process that dies; it
 * has neither failed nor been dropped here. */
bool kv_guest_peer_has_ended(const struct kv_connection *connection);
/* Or by a reset: it lives perhaps, but knows. */
bool kv_guest_peer_has_reset(const struct kv_connection *connection);
/* For how many milliseconds nothing more has come, to a tick of the kernel; negative where it does not say. */
int64_t kv_guest_quiet_ms(const struct kv_connection *connection);
/* The other side's address. */
void kv_guest_peer(const struct kv_connection *connection, struct sockaddr_storage *out);

#endif
