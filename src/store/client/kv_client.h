/* An asynchronous TCPStore client on a libuv loop, for the agent (workers use the blocking one of
 * muster/store.h).
 *
 * Requests are sent in order and answered in order; a request issued before the connection stands is queued.
 * PyTorch's server keeps one wait a connection, so a WAIT (or a GET with `wait`) holds back the requests
 * queued behind it: use a connection of its own for what may wait long. Keys are user keys: the leading "/" of
 * the wire is added here. All calls and callbacks on the loop's thread; nothing blocks. */
#ifndef STORE_KV_CLIENT_H
#define STORE_KV_CLIENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "store/wire/slice.h"

struct loop_clock; /* net/loop_clock.h */

struct kv_client;

struct kv_reply {
    int status;                    /* 0 or a negative code; muster_detail() holds the sentence during the callback */
    int64_t number;                /* ADD: new value. CHECK: 1 all present, 0 not. DELETE_KEY: removed. GETNUMKEYS */
    const struct kv_slice *values; /* GET, COMPARE_SET, WATCH: one; MULTI_GET: one a key; LIST_KEYS: the keys as on the
                                    * wire. Borrowed until return */
    size_t value_count;
};
typedef void kv_reply_cb(void *ctx, const struct kv_reply *reply);

/* status 0: the connection stands (VALIDATE and PING done); otherwise it has failed or ended. Called once for the
 * outcome of the attempt and once more if an established connection ends later. Pending requests are answered
 * MUSTER_ECONNECT before that second call. */
typedef void kv_client_state_cb(void *ctx, int status);

/* Starts connecting to one numeric address; retries refused and reset connections with back-off until
 * `timeout_ms` has passed. The first tries come quickly (1, 2, 4 ... ms, at most 250 ms apart).
 * MUSTER_ENOMEM, MUSTER_ESYSTEM. *out on success only; callbacks come from the loop, never from inside. */
int kv_client_create(uv_loop_t *loop, const struct sockaddr *address, uint64_t timeout_ms, kv_client_state_cb *on_state,
                     void *ctx, struct kv_client **out);

/* The same client on a FileStore's file (muster/store.h), for processes that share a file system: no server, no WATCH,
 * no LIST_KEYS, and whatever waits looks again every few milliseconds. timeout_ms: for a lock that others hold.
 * MUSTER_ENOMEM. What is wrong with the file comes through `on_state`. */
int kv_client_create_file(uv_loop_t *loop, const char *path, uint64_t timeout_ms, kv_client_state_cb *on_state,
                          void *ctx, struct kv_client **out);

struct etcd_v2;

/* Where an etcd keeps what a store would: PyTorch's EtcdStore, a node for each key, and one key apart. */
struct kv_client_etcd_options {
    struct etcd_v2 *etcd;   /* borrowed until kv_client_close() */
    const char *folder;     /* of the nodes, "/" at the end: names and values are in base64; copied */
    const char *state_key;  /* this key lies at state_path as it is; NULL: none; copied */
    const char *state_path; /* copied */
    uint32_t state_ttl_s;   /* of that node, from its last write */
};

/* The same client on an etcd: as on a file, no LIST_KEYS; WATCH of state_key alone. Requests are carried out one after
 * the other. What COMPARE_SET finds where it expected nothing, or something, and there is nothing, is empty: there is
 * no seed. How long it may be out of reach is the etcd client's matter. */
int kv_client_create_etcd(uv_loop_t *loop, const struct kv_client_etcd_options *options, kv_client_state_cb *on_state,
                          void *ctx, struct kv_client **out);

/* Cancels everything without further callbacks; frees once libuv has closed the handles. NULL accepted. */
void kv_client_close(struct kv_client *client);

/* ---- silence ---- */

/* For a connection on which nothing is answered though the store may live: the network may be away, and the kernel
 * waits longer and longer before it sends again. Other ones are dialled beside it, to the address of the client or the
 * last one of kv_client_set_address(), one after another: each has 4 s, and 0.5 s lie between two. When the old
 * one says something before the new one stands, the dial is dropped. Else all that has not been answered is sent again
 * on the new one, in order, with the time that it has left, and each callback comes once. on_state hears nothing of it.
 * No-op while dialling, before the connection stands, after its end, and for a file or an etcd.
 *
 * What happens twice then is harmless. SET and MULTI_SET: Muster's server says how far it has served this client,
 * and they do not happen twice; another server may be told old values again. DELETE: the same absence, unless somebody
 * else has written in between (it may answer 0 instead of 1). COMPARE_SET: what had
 * been done is not done again, as the value is not the expected one any more; the answer is the value that the key
 * has now. To who has won that is its own value, unless somebody has built on it since. Then it reads like a loss, and
 * who looks at the value, as all do who use it, goes on from there. (Nobody may write a value that was there
 * before.) ADD: Muster's server knows it again. Another one does not: then it is not repeated, and answers
 * MUSTER_ECONNECT.
 *
 * The client ends (on_state, MUSTER_ECONNECT) as with a connection that ends, if the address at which it was connected
 * refuses the dial, since the store's process is gone then; if another store answers there; and if ours has been
 * started anew, or has dropped this client. */
void kv_client_redial(struct kv_client *client);
/* From now on a connection that the network ends, or a reset, is replaced in the same way, if the server is
 * Muster's. One that the store ends in good order ends the client as before. */
void kv_client_set_resumes(struct kv_client *client, bool resumes);
/* Where to dial, if the store's name means something else by now. One that refuses is tried again. */
void kv_client_set_address(struct kv_client *client, const struct sockaddr *address);

/* By whose clock the store's silence is judged; borrowed until kv_client_close(). Right after creating the client. */
void kv_client_set_clock(struct kv_client *client, struct loop_clock *clock);

/* How long an answer may take: requests that are under way have that time from now on. */
void kv_client_set_timeout(struct kv_client *client, uint64_t timeout_ms);

/* How far the connection is, for messages; *out_error: errno of the latest failed try, 0 when none has failed. */
enum kv_client_stage { KV_CLIENT_CONNECTING, KV_CLIENT_HANDSHAKE, KV_CLIENT_READY, KV_CLIENT_ENDED };
enum kv_client_stage kv_client_stage(const struct kv_client *client, int *out_error);

/* The local address of the established connection (for "which of my addresses reaches the store"). */
int kv_client_local_address(const struct kv_client *client, struct sockaddr_storage *out);

/* The server is ours? Does it offer WATCH, as ours do, and an etcd for one key? Known once the connection stands. */
bool kv_client_server_is_muster(const struct kv_client *client);
bool kv_client_offers_watch(const struct kv_client *client);

/* Requests. Keys and values are copied. `cb` may be NULL where the protocol has no reply (then a lost connection
 * is only seen by on_state). timeout_ms 0: no limit; on expiry of a wait, CANCEL_WAIT is sent and
 * `cb` gets MUSTER_ETIMEOUT naming the keys. Every call returns 0, MUSTER_ENOMEM, MUSTER_ELIMIT or MUSTER_ECLOSED;
 * the callback comes only if the call returned 0. */
int kv_client_set(struct kv_client *client, const char *key, struct kv_slice value, kv_reply_cb *cb, void *ctx);
int kv_client_compare_set(struct kv_client *client, const char *key, struct kv_slice expected, struct kv_slice desired,
                          kv_reply_cb *cb, void *ctx);
/* GET. wait: WAIT first, as PyTorch's client does, for at most timeout_ms. Without: an absent key answers an empty
 * value on our server and on PyTorch's libuv server, but makes PyTorch's classic server drop the connection. */
int kv_client_get(struct kv_client *client, const char *key, bool wait, uint64_t timeout_ms, kv_reply_cb *cb,
                  void *ctx);
/* The value, empty where there is none: one request, answered in its turn, that no server drops the connection for. */
int kv_client_find(struct kv_client *client, const char *key, kv_reply_cb *cb, void *ctx);
int kv_client_multi_get(struct kv_client *client, const char *const *keys, size_t key_count, uint64_t timeout_ms,
                        kv_reply_cb *cb, void *ctx); /* waits for all */
int kv_client_multi_set(struct kv_client *client, const char *const *keys, const struct kv_slice *values,
                        size_t key_count, kv_reply_cb *cb, void *ctx);
int kv_client_add(struct kv_client *client, const char *key, int64_t delta, kv_reply_cb *cb, void *ctx);
int kv_client_check(struct kv_client *client, const char *const *keys, size_t key_count, kv_reply_cb *cb, void *ctx);
int kv_client_wait(struct kv_client *client, const char *const *keys, size_t key_count, uint64_t timeout_ms,
                   kv_reply_cb *cb, void *ctx);
int kv_client_delete(struct kv_client *client, const char *key, kv_reply_cb *cb, void *ctx);
/* Every key there is, as on the wire: user keys begin with "/". */
int kv_client_list_keys(struct kv_client *client, kv_reply_cb *cb, void *ctx);
/* "init/" is the one key PyTorch sends without the leading slash (count of clients that gave a world size). */
int kv_client_add_init(struct kv_client *client, kv_reply_cb *cb, void *ctx);
int kv_client_get_init(struct kv_client *client, kv_reply_cb *cb, void *ctx);

/* Our own extension, command 0x40: answered with the current value as soon as it differs from `known` (an absent key
 * counts as empty). MUSTER_EUNSUPPORTED when the server is not ours. Holds back later requests like a wait. */
int kv_client_watch(struct kv_client *client, const char *key, struct kv_slice known, kv_reply_cb *cb, void *ctx);

#endif
