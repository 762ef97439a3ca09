/* Requests to an etcd cluster, and watches of it, over its v3 JSON gateway (etcd 3.4 and later).
 *
 * The cluster may have several endpoints: what one cannot answer is asked at the next, and so on in a circle; watches
 * go along, from the revision after the last that they have seen. So every request may be carried out twice, and must
 * not mind. With a user, a token is got before the first request and whenever it has expired.
 *
 * On a libuv loop; nothing blocks. Callbacks come from the loop, never from inside a call, and may call anything here,
 * etcd3_client_close() included. */
#ifndef RENDEZVOUS_ETCD3_CLIENT_H
#define RENDEZVOUS_ETCD3_CLIENT_H

#include <uv.h>

#include "net/endpoint.h"
#include "rendezvous/etcd/etcd3_policy.h"
#include "rendezvous/etcd/etcd3_wire.h"

/* Of an answer, and of one object of a stream: all keys of a job with 10,000 nodes are 10 MiB. */
#define ETCD3_ANSWER_BYTES_MAX ((size_t)64 * 1024 * 1024)
#define ETCD3_REQUEST_BYTES_MAX ((size_t)1024 * 1024) /* etcd takes 1.5 MiB, of the decoded request */

struct etcd3_client;
struct etcd3_call;
struct etcd3_watch;

/* Strings are copied; NULL: not given. */
struct etcd3_client_options {
    const char *endpoints; /* "https://a:2379,b:2379,[::1]"; without a scheme the one before it, the first http; 2379 */
    const char *ca_file, *cert_file, *key_file; /* PEM, see net/http.h */
    const char *user, *password;
    uint64_t attempt_timeout_ms; /* of one endpoint, before the next is asked */
};

/* MUSTER_EINVAL (endpoints), MUSTER_EUNSUPPORTED (no libcurl), MUSTER_ENOMEM. */
int etcd3_client_create(uv_loop_t *loop, const struct etcd3_client_options *options, struct etcd3_client **out);
/* The endpoints alone. `is_https`: all of them are reached so. MUSTER_EINVAL, MUSTER_ENOMEM. */
int etcd3_client_check_endpoints(const char *text, bool *is_https);
/* Ends all calls and watches, without a callback. Frees during later turns of the loop. NULL accepted. */
void etcd3_client_close(struct etcd3_client *client);

/* The endpoint that is used, and what was wrong last: "http://10.0.0.1:2379 (connection refused)". Returns `out`. */
const char *etcd3_client_describe(const struct etcd3_client *client, char *out, size_t size);

/* This machine's numeric address on its connection to etcd; "" before the first answer. */
const char *etcd3_client_local_address(const struct etcd3_client *client);

/* Status 0 and the reply, which is borrowed; or without one, with muster_detail():
 *   MUSTER_ENOENT   there is no such lease
 *   MUSTER_EINVAL   etcd refuses the user, or what it may do; files of certificates are no good
 *   MUSTER_ELIMIT   etcd's space is used up
 *   MUSTER_EPROTOCOL  no endpoint is an etcd of version 3.4 or later, or it refuses the request
 *   MUSTER_ETIMEOUT   no endpoint could answer for `patience_ms`
 *   MUSTER_ENOMEM */
typedef void etcd3_done_cb(void *ctx, int status, const struct etcd3_reply *reply);

/* `path` ("kv/put") is borrowed for ever: a literal. The body is copied. Asks until somebody answers, or for
 * `patience_ms`, unless that is ETCD3_PATIENT. MUSTER_ENOMEM. */
int etcd3_client_call(struct etcd3_client *client, const char *path, const struct buf *body, uint64_t patience_ms,
                      etcd3_done_cb *done, void *ctx, struct etcd3_call **out);
/* No callback. Not after `done` has begun. NULL accepted. */
void etcd3_call_cancel(struct etcd3_call *call);

struct etcd3_watch_callbacks {
    /* Events in the order of their revisions, range by range. Borrowed. */
    void (*on_events)(void *ctx, const struct etcd3_reply *reply);
    /* What has happened meanwhile is no longer kept: read anew, and watch anew. Once, and nothing afterwards. */
    void (*on_gap)(void *ctx);
    /* As for a call. Once, and nothing afterwards. */
    void (*on_failed)(void *ctx, int status);
};

/* All `count` (<= ETCD3_RANGES_MAX) ranges (copied) from `revision` on. MUSTER_ENOMEM. */
int etcd3_watch_open(struct etcd3_client *client, const struct etcd3_range *ranges, size_t count, int64_t revision,
                     const struct etcd3_watch_callbacks *callbacks, void *ctx, struct etcd3_watch **out);
void etcd3_watch_close(struct etcd3_watch *watch); /* NULL accepted; also in a callback, and after on_failed */

#endif
