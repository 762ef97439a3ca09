/* A client of etcd's v2 API (/v2/keys) on a libuv loop, for the rendezvous backends that PyTorch's agents speak.
 *
 * Several endpoints: one is used as long as it answers, then the next. A request that fails on the way (refused, reset,
 * a server that restarts, a cluster without a leader) is tried again until `patience_ms` have passed since etcd
 * answered last. So a write may be carried out twice: a caller that compares and sets must accept its own value as a
 * success. Redirects of etcd are followed. A watch is not tried again: one that is interrupted is answered
 * ETCD_V2_INDEX_CLEARED. All calls and callbacks on the loop's thread. */
#ifndef STORE_ETCD_V2_H
#define STORE_ETCD_V2_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <uv.h>

#include "net/endpoint.h"
#include "store/client/etcd_v2_answer.h"

struct loop_clock; /* net/loop_clock.h */

struct etcd_v2;
struct etcd_v2_request;

enum { ETCD_V2_PATH_MAX = 2048 };

struct etcd_v2_options {
    const char *endpoints; /* net/url_list.h; port 2379 */
    bool https;            /* for those without a scheme */
    const char *ca_file;   /* NULL or "": not given; see net/http.h */
    const char *cert_file;
    const char *key_file;
    uint64_t patience_ms;
    struct loop_clock *clock; /* borrowed, by which etcd's silence is judged; NULL: uv_now() */
};

/* On which condition a write is carried out. */
enum etcd_v2_exist { ETCD_V2_EITHER, ETCD_V2_IF_ABSENT, ETCD_V2_IF_PRESENT };

struct etcd_v2_call {
    const char *method; /* "GET", "PUT", "DELETE" */
    const char *path;   /* below /v2/keys, "/" first; any bytes */
    bool recursive;     /* of a watch: everything below */
    bool wait;          /* GET: the first change from wait_index on, however long it takes */
    uint64_t wait_index;
    const char *value; /* PUT; NULL: none */
    bool is_folder;
    bool refresh;   /* PUT: a new ttl_s and nothing else */
    uint32_t ttl_s; /* 0: for ever */
    enum etcd_v2_exist exist;
    uint64_t prev_index;    /* only if it was written then; 0: either */
    const char *prev_value; /* only if this is its value; NULL: either */
};

/* status 0: etcd has answered, maybe with an error of its own. Otherwise muster_detail(): out of reach for patience_ms,
 * or nothing that more attempts would change. Borrowed until it returns. */
typedef void etcd_v2_cb(void *ctx, int status, const struct etcd_v2_answer *answer);

/* MUSTER_EINVAL (endpoints), MUSTER_EUNSUPPORTED (no libcurl), MUSTER_ENOMEM. */
int etcd_v2_create(uv_loop_t *loop, const struct etcd_v2_options *options, struct etcd_v2 **out);
/* Cancels what is in flight. NULL accepted. */
void etcd_v2_close(struct etcd_v2 *etcd);

/* Copies the call. *out is valid until `cb` returns or the request is cancelled. MUSTER_ENOMEM, MUSTER_ELIMIT (path).
 */
int etcd_v2_send(struct etcd_v2 *etcd, const struct etcd_v2_call *call, etcd_v2_cb *cb, void *ctx,
                 struct etcd_v2_request **out);
void etcd_v2_cancel(struct etcd_v2_request *request); /* NULL accepted */

/* For people: "http://a:2379, http://b:2379". */
const char *etcd_v2_describe(const struct etcd_v2 *etcd);
/* The address of this machine that etcd was last reached from; false: not known. */
bool etcd_v2_local_address(const struct etcd_v2 *etcd, char out[NET_ADDRESS_TEXT_MAX]);

/* For how long in all etcd has left requests without an answer, as far as each time was longer than a second: what the
 * users of etcd had to tell each other was not heard meanwhile. Grows when etcd answers again. */
uint64_t etcd_v2_silent_ms(const struct etcd_v2 *etcd);

/* For people: the sentence of an error of etcd's. Returns MUSTER_EPROTOCOL. */
int etcd_v2_fail(const struct etcd_v2_answer *answer, const char *what);

#endif
