/* What kv_client.c (the connection) and kv_client_requests.c (the calls) share. */
#ifndef STORE_KV_CLIENT_IMPL_H
#define STORE_KV_CLIENT_IMPL_H

#include "base/buf.h"
#include "store/codec.h"
#include "store/kv_client.h"

#define KV_CLIENT_REQUESTS_MAX ((size_t)65536) /* unanswered, of one client */
#define KV_CLIENT_KEYS_TEXT_MAX 256            /* keys named in a message */

enum kv_request_stage {
    KV_STAGE_WAIT,   /* a WAIT comes first */
    KV_STAGE_CANCEL, /* it has run out of time: CANCEL_WAIT is to be answered */
    KV_STAGE_COMMAND,
};

/* One call of the user: `bytes` holds a WAIT message (the first wait_len bytes, may be none) and then a command. */
struct kv_request {
    struct kv_request *next;
    struct buf bytes;
    size_t wait_len;
    enum codec_command command; /* whose reply ends the request; CODEC_WAIT: only waits */
    enum kv_request_stage stage;
    bool holds_back; /* nothing may be sent behind it before it is answered */
    bool has_reply;
    uint64_t timeout_ms; /* of the WAIT; 0: none */
    kv_reply_cb *cb;
    void *ctx;
    char keys[KV_CLIENT_KEYS_TEXT_MAX]; /* "/a, /b" */
    size_t value_count;
    struct kv_slice values[]; /* room for what the reply holds */
};

void kv_request_free(struct kv_request *request);

/* Takes `request`: sends it as soon as the order allows. MUSTER_ECLOSED, MUSTER_ELIMIT (then it is freed). */
int kv_client_submit(struct kv_client *client, struct kv_request *request);

#endif
