/* etcd's v3 API as its JSON gateway speaks it: requests as bodies, answers as structs, and streams of answers cut into
 * objects. Keys and values are bytes (base64 there), 64-bit numbers are text there. Pure: no I/O; memory is taken for
 * what an answer holds alone. */
#ifndef RENDEZVOUS_ETCD3_WIRE_H
#define RENDEZVOUS_ETCD3_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "store/wire/slice.h"

enum {
    ETCD3_TOKEN_MAX = 2048, /* of authenticate's answer, terminator included; a JWT has some hundred */
    ETCD3_ERROR_MAX = 256,  /* of an error's sentence */
    ETCD3_RANGES_MAX = 2,   /* of a watch */
};

/* gRPC's numbers of errors, as far as they are told apart here. */
enum {
    ETCD3_CANCELLED = 1,
    ETCD3_UNKNOWN = 2,
    ETCD3_INVALID_ARGUMENT = 3,
    ETCD3_DEADLINE_EXCEEDED = 4,
    ETCD3_NOT_FOUND = 5,
    ETCD3_PERMISSION_DENIED = 7,
    ETCD3_RESOURCE_EXHAUSTED = 8,
    ETCD3_FAILED_PRECONDITION = 9,
    ETCD3_ABORTED = 10,
    ETCD3_UNAVAILABLE = 14,
    ETCD3_UNAUTHENTICATED = 16,
};

/* ---- requests: each appends the JSON body. MUSTER_ENOMEM, MUSTER_ELIMIT; what was appended then is of no use ---- */

/* A key, or with a non-empty `end` all keys from `key` up to, but not including, `end`. */
struct etcd3_range {
    struct kv_slice key, end;
};

enum etcd3_operation_kind { ETCD3_PUT, ETCD3_DELETE, ETCD3_RANGE };
struct etcd3_operation {
    enum etcd3_operation_kind kind;
    struct etcd3_range range; /* PUT: its key */
    struct kv_slice value;    /* PUT */
    int64_t lease_id;         /* PUT; 0: none */
};

/* `success` if the key's create_revision is the given one (0: there is no such key), else `failure`. With `value`
 * (empty: none) it must have this value, too: an etcd that has lost its data gives out its revisions once more. With
 * `other_key` (empty: none) that one's mod_revision must be the given one (0: there is no such key). */
struct etcd3_transaction {
    struct kv_slice key;
    int64_t create_revision;
    struct kv_slice value;
    struct kv_slice other_key;
    int64_t other_mod_revision;
    const struct etcd3_operation *success, *failure;
    size_t success_count, failure_count;
};

int etcd3_wire_put_grant(struct buf *out, int64_t ttl_s);
int etcd3_wire_put_lease(struct buf *out, int64_t lease_id);                            /* keepalive and revoke */
int etcd3_wire_put_operation(struct buf *out, const struct etcd3_operation *operation); /* on its own */
int etcd3_wire_put_transaction(struct buf *out, const struct etcd3_transaction *transaction);
/* One stream that watches all `count` (<= ETCD3_RANGES_MAX) ranges, each from its revision on. */
int etcd3_wire_put_watch(struct buf *out, const struct etcd3_range *ranges, const int64_t *revisions, size_t count);
/* MUSTER_EINVAL: not UTF-8. */
int etcd3_wire_put_authenticate(struct buf *out, const char *user, const char *password);

/* ---- answers ---- */

/* A key and its value, or an event of a watch. */
struct etcd3_pair {
    struct kv_slice key, value; /* in the reply's memory */
    int64_t create_revision, mod_revision;
    bool is_deleted;
};

/* One answer, or one object of a stream. What it does not say is zero. */
struct etcd3_reply {
    int64_t revision; /* of the store, when it answered */
    int64_t lease_id;
    int64_t ttl_s;            /* of the lease; 0: there is no such lease (any more) */
    bool has_succeeded;       /* a transaction */
    bool is_canceled;         /* a watch, by the server */
    int64_t compact_revision; /* of a canceled watch: the history before it is gone */
    size_t watch_index;       /* which range of etcd3_wire_put_watch(); SIZE_MAX: none */
    struct etcd3_pair *pairs; /* ranges, also those of transactions, and events */
    size_t pair_count;
    int error;                        /* one of the numbers above, or another; 0: none */
    char error_text[ETCD3_ERROR_MAX]; /* of an error, or why a watch was canceled: one line */
    char token[ETCD3_TOKEN_MAX];      /* authenticate's */
    uint8_t *bytes;                   /* owned */
};

/* Fills *out (etcd3_reply_done() frees it). MUSTER_EPROTOCOL: that is no answer of etcd's; MUSTER_ENOMEM. Nothing to
 * free then. */
int etcd3_wire_get(const uint8_t *text, size_t len, struct etcd3_reply *out);
void etcd3_reply_done(struct etcd3_reply *reply);

/* Where the first JSON object of a stream ends. Looks at each byte once: start with zeros, hand over the same beginning
 * with more behind it; after COMPLETE, zeros again and what follows the object. */
struct etcd3_splitter {
    size_t seen;
    unsigned depth;
    bool in_string, is_escaped;
};
enum etcd3_split { ETCD3_MORE, ETCD3_COMPLETE, ETCD3_MALFORMED };
/* COMPLETE: *used bytes hold one object and the blanks before it. MALFORMED: no object begins there. */
enum etcd3_split etcd3_wire_split(struct etcd3_splitter *splitter, const uint8_t *text, size_t len, size_t *used);

#endif
