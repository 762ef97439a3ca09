/* TCPStore messages as bytes: both directions of requests and replies, in one file (docs/formats/tcpstore.md).
 *
 * Pure: no I/O, no allocation except what encoders append to the caller's buffer. A message has no frame header,
 * so finding its end means walking its fields; struct codec_scan does that walk incrementally, never looking at a byte
 * twice, and refuses a length over its limit as soon as the length itself has arrived. What a request means is not
 * decided here. */
#ifndef STORE_CODEC_H
#define STORE_CODEC_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "store/wire/slice.h"

/* Limits: the first three are those of PyTorch's libuv server. */
#define CODEC_KEY_BYTES_MAX ((size_t)8192)
#define CODEC_VALUE_BYTES_MAX ((size_t)8 * 1024 * 1024)
#define CODEC_KEYS_MAX ((size_t)131072)                      /* of CHECK, WAIT, MULTI_GET, MULTI_SET */
#define CODEC_MESSAGE_BYTES_MAX ((size_t)1024 * 1024 * 1024) /* one whole request or reply */
#define CODEC_LIST_KEYS_MAX ((size_t)64 * 1024 * 1024)       /* in a LIST_KEYS reply */

#define CODEC_MAGIC UINT32_C(0x3C85F7CE)

/* Single bytes that answer WAIT, BARRIER, CANCEL_WAIT and CHECK. */
enum { CODEC_WAIT_DONE = 0, CODEC_WAIT_CANCELED = 1, CODEC_CHECK_PRESENT = 0, CODEC_CHECK_ABSENT = 1 };

/* Raw key (no leading slash) which our server reports as present to CHECK: "WATCH is understood here". */
#define CODEC_WATCH_PROBE_KEY "muster/watch"
/* Another one: "CLIENT, RETURN and ADD_ONCE are understood here". */
#define CODEC_CLIENT_PROBE_KEY "muster/client"

/* What RETURN is answered where no client of that name is known; else how many of its requests have been served. */
#define CODEC_UNKNOWN INT64_C(-1)

/* Field letters of a layout:
 *   1 u8    4 u32    m the magic    8 i64    k key    v value    K counted keys    P counted (key, value) pairs
 *   t i64, a number of Muster's own beside another one
 *   b bytes of a reply    B as many b as the request asked for    L counted b    q i64, one b if it is > 0
 *
 * X(name, code, request layout, reply layout) */
#define CODEC_COMMAND_TABLE(X)                                                                                         \
    X(VALIDATE, 0x00, "m", "")                                                                                         \
    X(SET, 0x01, "kv", "")                                                                                             \
    X(COMPARE_SET, 0x02, "kvv", "b")                                                                                   \
    X(GET, 0x03, "k", "b")                                                                                             \
    X(ADD, 0x04, "k8", "8")                                                                                            \
    X(CHECK, 0x05, "K", "1")                                                                                           \
    X(WAIT, 0x06, "K", "1")                                                                                            \
    X(GETNUMKEYS, 0x07, "", "8")                                                                                       \
    X(DELETE_KEY, 0x08, "k", "8")                                                                                      \
    X(APPEND, 0x09, "kv", "")                                                                                          \
    X(MULTI_GET, 0x0a, "K", "B")                                                                                       \
    X(MULTI_SET, 0x0b, "P", "")                                                                                        \
    X(CANCEL_WAIT, 0x0c, "", "1")                                                                                      \
    X(PING, 0x0d, "4", "4")                                                                                            \
    X(QUEUE_PUSH, 0x0e, "kv", "")                                                                                      \
    X(QUEUE_POP, 0x0f, "k", "q")                                                                                       \
    X(QUEUE_LEN, 0x10, "k", "8")                                                                                       \
    X(LIST_KEYS, 0x11, "", "L")                                                                                        \
    X(BARRIER, 0x12, "k8", "1")                                                                                        \
    X(WATCH, 0x40, "kv", "b")     /* ours: key, known value; answered with the current one once it differs */          \
    X(CLIENT, 0x41, "8", "")      /* ours: who speaks on this connection */                                            \
    X(RETURN, 0x42, "8", "8")     /* ours: the same, and the server must have known it before */                       \
    X(ADD_ONCE, 0x43, "k8t", "8") /* ours: ADD, and its number among those of this client */

enum codec_command {
#define CODEC_COMMAND_ENUM(name, code, request, reply) CODEC_##name = (code),
    CODEC_COMMAND_TABLE(CODEC_COMMAND_ENUM)
#undef CODEC_COMMAND_ENUM
};

/* "SET", "ADD" ...; "?" for an unknown code. Static. */
const char *codec_command_name(unsigned command);

enum codec_result {
    CODEC_MORE,      /* incomplete: call again with more bytes */
    CODEC_COMPLETE,  /* scan.at is the size of the message */
    CODEC_MALFORMED, /* status detail says why; the connection cannot be used any more */
};

/* Where the walk over one message stands. */
struct codec_scan {
    const char *layout; /* the field at hand; NULL: the command byte has not been seen */
    size_t at;          /* bytes walked so far */
    size_t need;        /* the message is at least this long */
    uint32_t items_left;
    bool in_list;
};

void codec_scan_request(struct codec_scan *scan);
/* value_count: how many keys the MULTI_GET had; ignored for the other commands. */
void codec_scan_reply(struct codec_scan *scan, enum codec_command command, size_t value_count);

/* `bytes` is the start of the message; what was passed before must be there again, unchanged (it may have moved). */
enum codec_result codec_scan_step(struct codec_scan *scan, const uint8_t *bytes, size_t len);

/* Items of a counted list, one after the other. */
struct codec_list {
    const uint8_t *at;
    const uint8_t *end;
    size_t item_count; /* for pairs: keys and values together */
};
/* False at the end. */
bool codec_list_next(struct codec_list *list, struct kv_slice *out);

/* A decoded request; the slices point into the bytes it was decoded from. */
struct codec_request {
    enum codec_command command;
    struct kv_slice key;
    struct kv_slice value;   /* COMPARE_SET: expected; WATCH: known */
    struct kv_slice desired; /* COMPARE_SET */
    int64_t number;          /* ADD: delta. BARRIER: world size. PING: nonce. CLIENT, RETURN: who */
    int64_t turn;            /* ADD_ONCE: its number */
    struct codec_list list;  /* keys; MULTI_SET: key, value, key, value ... */
};

/* `bytes` holds exactly one message for which the scan said CODEC_COMPLETE. */
void codec_request_decode(const uint8_t *bytes, size_t len, struct codec_request *out);

struct codec_reply {
    int64_t number; /* layouts 1, 4, 8 and q; L: number of keys */
    struct codec_list list;
};
/* The scan as codec_scan_reply() was given `command`, and complete. */
void codec_reply_decode(enum codec_command command, const uint8_t *bytes, size_t len, struct codec_reply *out);

/* Encoders: append, or fail with MUSTER_ENOMEM / MUSTER_ELIMIT, then leaving a part of the message behind (the caller
 * remembers buf.len and truncates, or drops the connection). */
int codec_put_u8(struct buf *out, uint8_t value);
int codec_put_u32(struct buf *out, uint32_t value);
int codec_put_i64(struct buf *out, int64_t value);
int codec_put_bytes(struct buf *out, struct kv_slice bytes);
/* A key as `prefix` + `key`. MUSTER_ELIMIT over CODEC_KEY_BYTES_MAX. */
int codec_put_key(struct buf *out, const char *prefix, struct kv_slice key);
/* A count and so many keys. MUSTER_ELIMIT over CODEC_KEYS_MAX. */
int codec_put_keys(struct buf *out, const char *prefix, const char *const *keys, size_t key_count);
/* MUSTER_ELIMIT over CODEC_VALUE_BYTES_MAX. */
int codec_put_value(struct buf *out, struct kv_slice value);

#endif
