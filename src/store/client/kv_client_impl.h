/* What the client's files share: kv_client.c (life, queues, time), kv_client_connect.c, kv_client_redial.c,
 * kv_client_replies.c, kv_client_requests.c (the calls), kv_client_file.c (a file instead of a server) and
 * kv_client_etcd.c (an etcd). */
#ifndef STORE_KV_CLIENT_IMPL_H
#define STORE_KV_CLIENT_IMPL_H

#include <uv.h>

#include "base/buf.h"
#include "net/endpoint.h"
#include "net/loop_clock.h"
#include "store/client/kv_client.h"
#include "store/wire/codec.h"

#define KV_CLIENT_REQUESTS_MAX ((size_t)65536) /* unanswered, of one client */
#define KV_CLIENT_KEYS_TEXT_MAX 256            /* keys named in a message */
#define KV_CLIENT_SILENT_MAX ((size_t)64) /* requests without a reply that are kept, since no later reply has come */
#define KV_CLIENT_PING_BYTES ((size_t)5)
#define KV_CLIENT_NO_VALUE "muster: none" /* kv_client_find(): what nobody stores */

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
    bool is_done;        /* SET, MULTI_SET: served on an earlier connection: the PING alone is left */
    uint64_t sent_as;    /* the number of its (first) message on the last connection; 0: it was not sent */
    bool finds;          /* KV_CLIENT_NO_VALUE is no value */
    uint64_t timeout_ms; /* of the WAIT; 0: none */
    uint64_t since_ms;   /* when it became the first unanswered one, in its stage; 0: not yet */
    kv_reply_cb *cb;
    void *ctx;
    char keys[KV_CLIENT_KEYS_TEXT_MAX]; /* "/a, /b" */
    size_t value_count;
    struct kv_slice values[]; /* room for what the reply holds */
};

void kv_request_free(struct kv_request *request);
/* One that has no reply of its own gets that of a PING behind it. */
int kv_request_add_ping(struct kv_request *request);

enum kv_client_state {
    STATE_PAUSED, /* before the first try or between two */
    STATE_CONNECTING,
    STATE_HANDSHAKE,
    STATE_READY,
    STATE_LOST, /* it stood; another one is dialled, and requests wait for it */
    STATE_FAILED,
};

/* One attempt's socket. It outlives the attempt until libuv has closed the handle. */
struct link {
    uv_poll_t poll;
    struct kv_client *client; /* NULL: given up */
    int fd;
    int send_error; /* errno: told once only, and it was send() that was told */
};

struct kv_client {
    uv_timer_t timer; /* next try, end of the connecting time, end of the wait or reply at the head */
    struct sockaddr_storage address;
    char address_text[NET_ADDRESS_TEXT_MAX];
    struct loop_clock *clock; /* borrowed; NULL: uv_now() */
    uint64_t timeout_ms;
    uint64_t timeout_since_ms; /* kv_client_set_timeout(); 0: not yet */
    uint64_t started_ms;
    unsigned tries;
    int broken; /* a code: bytes could not be queued; reported from the loop */
    enum kv_client_state state;
    bool is_closed;
    bool is_full; /* the socket took no more of `out`, and says when it will */
    bool server_is_muster;
    bool offers_watch;
    bool knows_clients; /* the server, again, when they come back (CLIENT, RETURN, ADD_ONCE) */
    bool is_named;      /* the server has been sent our name on this connection */
    bool is_known;      /* and has answered since */
    bool resumes;
    bool is_dial; /* one attempt for another client, which is told by on_state */
    uint64_t name;
    int64_t additions; /* sent with a number */
    uint64_t messages; /* sent since CLIENT; after RETURN as many as were served */
    /* kv_client_redial.c, once it is asked for: the connection has ended: the errno, 0 when it was in good order.
     * False, or NULL: and with it the client, which the caller tells it. */
    bool (*lost)(struct kv_client *client, int error_number);
    struct kv_client *dial;          /* owned; NULL: not dialling */
    struct link *retired;            /* what the new connection replaces, until the server knows that it does */
    struct sockaddr_storage dialled; /* where to */
    int last_error;                  /* errno of the latest attempt; 0: none yet */
    struct link *link;
    char *file_path; /* instead of an address; else NULL */
    struct kv_file *file;
    struct kv_etcd *etcd; /* instead of an address; else NULL */
    uint32_t nonce;
    struct buf in, out;
    struct codec_scan scan; /* of the reply at hand */
    struct kv_request *queued, **queued_last;
    struct kv_request *sent, **sent_last; /* unanswered; or without a reply, and no later one has been answered */
    size_t silent_count;                  /* of the latter */
    size_t request_count;
    kv_client_state_cb *on_state;
    void *ctx;
};

static inline struct kv_request *kv_request_take_first(struct kv_request **first, struct kv_request ***last) {
    struct kv_request *request = *first;
    if (request) {
        *first = request->next;
        if (!*first) {
            *last = first;
        }
    }
    return request;
}

static inline void kv_request_append(struct kv_request ***last, struct kv_request *request) {
    request->next = NULL;
    **last = request;
    *last = &request->next;
}

static inline uint64_t kv_client_now_ms(const struct kv_client *client) {
    return (uint64_t)loop_clock_now_ms(client->clock, client->timer.loop);
}

/* Takes `request`: sends it as soon as the order allows. MUSTER_ECLOSED, MUSTER_ELIMIT (then it is freed). */
int kv_client_submit(struct kv_client *client, struct kv_request *request);

/* Takes `request`, which has been taken from its queue, and tells its caller. */
void kv_client_answer(struct kv_client *client, struct kv_request *request, const struct kv_reply *reply);
/* The wait of the first unanswered request has taken too long. */
void kv_client_time_out(struct kv_client *client);
/* The connection, or the attempt to get one, is over: `format` says why. */
void kv_client_fail(struct kv_client *client, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
void kv_client_on_timer(uv_timer_t *timer);

void kv_client_drop_link(struct kv_client *client);
/* Of the connection that the new one replaces: now the server knows. */
void kv_client_drop_retired(struct kv_client *client);
void kv_client_forget_bytes(struct kv_client *client);
/* The moment by which something must have happened, or 0. */
uint64_t kv_client_deadline_ms(const struct kv_client *client);
/* Until it may be said that the store has not answered in time. */
uint64_t kv_client_left_ms(const struct kv_client *client, uint64_t deadline_ms);
void kv_client_arm_timer(struct kv_client *client);
void kv_client_update_poll(struct kv_client *client);
void kv_client_send_pending(struct kv_client *client);
/* Sends the requests that may be sent. */
void kv_client_pump(struct kv_client *client);
/* Another request is the first unanswered one, or it is in another stage. */
void kv_client_expect_reply(struct kv_client *client);
/* The first one that is owed a reply; NULL: none. */
struct kv_request *kv_client_head(const struct kv_client *client);

/* The old connection has answered, or it is the end. */
void kv_client_stop_dial(struct kv_client *client);

/* kv_client_connect.c: one attempt; its socket is connected, or not; the answer has come, or a part of it; there will
 * be none, so again after a pause; no more time. */
void kv_client_try_now(struct kv_client *client);
void kv_client_on_connected(struct kv_client *client);
void kv_client_handle_handshake(struct kv_client *client);
void kv_client_try_later(struct kv_client *client, int error_number);
void kv_client_give_up(struct kv_client *client);

/* kv_client_replies.c: answers requests from what has arrived. */
void kv_client_handle_input(struct kv_client *client);

/* kv_client_requests.c: asks a server of ours whether it knows the client of that name. */
int kv_client_return(struct kv_client *client, uint64_t name, kv_reply_cb *cb, void *ctx);

/* kv_client_file.c: something has been queued; the timer has run out. */
void kv_client_file_wake(struct kv_client *client);
void kv_client_file_turn(struct kv_client *client);

/* kv_client_etcd.c: the same of an etcd; and the end. NULL accepted. */
void kv_client_etcd_turn(struct kv_client *client);
void kv_etcd_close(struct kv_etcd *etcd);

/* Everything but whom to talk to; the first turn of the loop begins. NULL with a detail. */
struct kv_client *kv_client_new(uv_loop_t *loop, uint64_t timeout_ms, kv_client_state_cb *on_state, void *ctx);

#endif
