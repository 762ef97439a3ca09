/* A session over one connection after another; see native_session.h.
 *
 * The coordinator takes the end of a connection that carries a session for the end of its agent. So a connection that
 * may have carried it, once another one has been asked to, is kept until that one has been answered (`stale`). */
#include "rendezvous/member/native_session.h"

#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "rendezvous/wire/coordinator_resend.h"

enum {
    DIAL_MS = 4000, /* for a connection to be made, and for its RESUME to be answered: the kernel repeats a lost first
                     * packet after 1 and 3 s */
    RETRY_MS = 500, /* after a connection that could not be made */
};

struct carrier {
    struct native_session *session;
    struct native_connection *connection;
    struct carrier *next; /* of those that are stale */
    bool has_asked;       /* RESUME was sent */
};

struct native_session {
    uv_loop_t *loop;
    uv_timer_t timer; /* of the dial, or until the next one */
    struct sockaddr_storage address;
    struct native_connection_key key;
    struct native_session_name name;
    char run_id[COORDINATOR_NAME_BYTES_MAX + 1];
    struct native_session_callbacks callbacks;
    void *ctx;
    struct carrier *main;  /* NULL: between two */
    struct carrier *dial;  /* NULL: none */
    struct carrier *stale; /* a list */
    struct coordinator_resend resend;
    bool resumes, is_over, is_closed;
};

/* ---- carriers ---- */

static void drop(struct carrier **place, void (*end)(struct native_connection *connection)) {
    struct carrier *carrier = *place;
    if (carrier) {
        *place = carrier->next;
        end(carrier->connection);
        free(carrier);
    }
}

static void drop_all(struct native_session *s, void (*end)(struct native_connection *connection)) {
    (void)uv_timer_stop(&s->timer);
    drop(&s->main, end);
    drop(&s->dial, end);
    while (s->stale) {
        drop(&s->stale, end);
    }
}

static void make_stale(struct native_session *s, struct carrier **place) {
    struct carrier *carrier = *place;
    if (carrier) {
        *place = NULL;
        carrier->next = s->stale;
        s->stale = carrier;
    }
}

static void lose(struct native_session *s, int status) {
    if (!s->is_over && !s->is_closed) {
        s->is_over = true;
        (void)uv_timer_stop(&s->timer);
        s->callbacks.of.on_lost(s->ctx, status);
    }
}

static void on_open(void *ctx);
static void on_message(void *ctx, const struct coordinator_message *message);
static void on_lost(void *ctx, int status);

static int carrier_open(struct native_session *s, struct carrier **out) {
    static const struct native_connection_callbacks callbacks = {
        .on_open = on_open, .on_message = on_message, .on_lost = on_lost};
    struct carrier *carrier = calloc(1, sizeof *carrier);
    if (!carrier) {
        return status_fail(MUSTER_ENOMEM, "no memory for a connection to the coordinator");
    }
    carrier->session = s;
    int code = native_connection_open(s->loop, (struct sockaddr *)&s->address, &s->key, &callbacks, carrier,
                                      &carrier->connection);
    if (code) {
        free(carrier);
        return code;
    }
    *out = carrier;
    return MUSTER_OK;
}

/* ---- another connection ---- */

static bool can_resume(const struct native_session *s) {
    return s->resumes && s->resend.sent_count > 0;
}

static void dial(struct native_session *s);

static void on_timer(uv_timer_t *timer) {
    struct native_session *s = timer->data;
    if (s->dial && s->dial->has_asked) {
        make_stale(s, &s->dial);
    } else {
        drop(&s->dial, native_connection_give_up);
    }
    dial(s);
}

/* A connection that cannot be begun is tried again as one that fails. */
static void dial(struct native_session *s) {
    int code = carrier_open(s, &s->dial);
    (void)uv_timer_start(&s->timer, on_timer, code == MUSTER_OK ? DIAL_MS : RETRY_MS, 0);
}

static void dial_later(struct native_session *s) {
    drop(&s->dial, native_connection_close);
    (void)uv_timer_start(&s->timer, on_timer, RETRY_MS, 0);
}

void native_session_redial(struct native_session *s) {
    if (can_resume(s) && !s->is_over && !s->is_closed && !uv_is_active((uv_handle_t *)&s->timer)) {
        dial(s);
    }
}

/* The coordinator moves the session as soon as it reads this: from here on the connection before may end at any time,
 * and what comes on it comes again on the new one. */
static void ask_to_resume(struct native_session *s) {
    const struct coordinator_message message = {.kind = COORDINATOR_RESUME,
                                                .node = {.run_id = kv_slice_text(s->run_id),
                                                         .identity = {s->name.identity[0], s->name.identity[1]},
                                                         .session = s->name.number},
                                                .received_count = s->resend.received_count};
    if (native_connection_send(s->dial->connection, &message) == MUSTER_OK) {
        s->dial->has_asked = true;
        make_stale(s, &s->main);
        (void)uv_timer_start(&s->timer, on_timer, DIAL_MS, 0);
    } else {
        dial_later(s);
    }
}

static void resend(struct native_session *s) {
    size_t at = 0, len;
    for (const uint8_t *frame; (frame = coordinator_resend_next(&s->resend, &at, &len));) {
        if (native_connection_send_frame(s->main->connection, frame, len) != MUSTER_OK) {
            return; /* its end follows */
        }
    }
}

static void take_answer(struct native_session *s, const struct coordinator_message *message) {
    if (message->kind != COORDINATOR_RESUMED || !coordinator_resend_confirm(&s->resend, message->received_count)) {
        lose(s,
             status_fail(MUSTER_ECLOSED, "the coordinator does not know this node's session any more%s%.*s",
                         message->text.len > 0 ? ": " : "", (int)message->text.len, (const char *)message->text.data));
        return;
    }
    (void)uv_timer_stop(&s->timer);
    s->main = s->dial;
    s->dial = NULL;
    while (s->stale) {
        drop(&s->stale, native_connection_give_up);
    }
    resend(s);
    if (s->callbacks.on_resumed) {
        s->callbacks.on_resumed(s->ctx);
    }
}

/* ---- what connections say ---- */

static void on_open(void *ctx) {
    struct carrier *carrier = ctx;
    struct native_session *s = carrier->session;
    if (carrier == s->main) {
        s->callbacks.of.on_open(s->ctx);
    } else if (carrier == s->dial) {
        ask_to_resume(s);
    }
}

static void take_message(struct native_session *s, const struct coordinator_message *message) {
    if (s->dial) { /* it is not silent after all */
        (void)uv_timer_stop(&s->timer);
        drop(&s->dial, native_connection_give_up);
    }
    s->resend.received_count += coordinator_resend_counts(message->kind);
    if (message->kind == COORDINATOR_HEARD && !coordinator_resend_confirm(&s->resend, message->received_count)) {
        lose(s, status_fail(MUSTER_EPROTOCOL, "the coordinator confirms messages that were never sent"));
        return;
    }
    s->callbacks.of.on_message(s->ctx, message);
}

static void on_message(void *ctx, const struct coordinator_message *message) {
    struct carrier *carrier = ctx;
    struct native_session *s = carrier->session;
    if (s->is_over) {
        return;
    }
    if (carrier == s->main) {
        take_message(s, message);
    } else if (carrier == s->dial) {
        take_answer(s, message);
    }
}

static void drop_stale(struct native_session *s, const struct carrier *carrier) {
    struct carrier **place = &s->stale;
    while (*place && *place != carrier) {
        place = &(*place)->next;
    }
    drop(place, native_connection_close);
}

static void on_lost(void *ctx, int status) {
    struct carrier *carrier = ctx;
    struct native_session *s = carrier->session;
    bool may_pass = status == MUSTER_ECONNECT && can_resume(s);
    if (carrier != s->main && carrier != s->dial) {
        drop_stale(s, carrier);
    } else if (!may_pass && (carrier == s->main || status == MUSTER_ENOENT || status == MUSTER_EPROTOCOL)) {
        lose(s, status);
    } else if (carrier == s->dial) {
        dial_later(s);
    } else {
        drop(&s->main, native_connection_close);
        native_session_redial(s);
    }
}

/* ---- its life ---- */

int native_session_open(uv_loop_t *loop, const struct sockaddr *address, const struct native_connection_key *key,
                        const struct native_session_name *name, const struct native_session_callbacks *callbacks,
                        void *ctx, struct native_session **out) {
    struct native_session *s = calloc(1, sizeof *s);
    if (!s) {
        return status_fail(MUSTER_ENOMEM, "no memory for a session with the coordinator");
    }
    s->loop = loop;
    memcpy(&s->address, address,
           address->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6) : sizeof(struct sockaddr_in));
    s->key = *key;
    s->name = *name;
    (void)str_copy(s->run_id, sizeof s->run_id, name->run_id);
    s->key.run_id = s->name.run_id = s->run_id;
    s->callbacks = *callbacks;
    s->ctx = ctx;
    coordinator_resend_init(&s->resend);
    int code = carrier_open(s, &s->main);
    if (code) {
        free(s);
        return code;
    }
    (void)uv_timer_init(loop, &s->timer);
    s->timer.data = s;
    *out = s;
    return MUSTER_OK;
}

void native_session_set_resumes(struct native_session *s, bool resumes) {
    s->resumes = resumes;
}

/* Only what no later connection can carry has to find one. */
static int send_counted(struct native_session *s, const struct coordinator_message *message) {
    struct buf frame;
    buf_init(&frame, COORDINATOR_FRAME_BYTES_MAX);
    int code = coordinator_wire_put(&frame, message);
    code = code ? code : coordinator_resend_sent(&s->resend, buf_bytes(&frame), frame.len);
    if (code == MUSTER_OK && s->main) {
        int sent = native_connection_send_frame(s->main->connection, buf_bytes(&frame), frame.len);
        code = can_resume(s) ? MUSTER_OK : sent;
    }
    buf_done(&frame);
    return code;
}

int native_session_send(struct native_session *s, const struct coordinator_message *message) {
    bool is_counted = coordinator_resend_counts(message->kind);
    if (s->is_over || (!s->main && (!is_counted || !can_resume(s)))) {
        return status_fail(MUSTER_ECLOSED, "there is no connection to the coordinator at the moment");
    }
    if (is_counted) {
        return send_counted(s, message);
    }
    struct coordinator_message signed_message = *message;
    signed_message.received_count = s->resend.received_count;
    return native_connection_send(s->main->connection, &signed_message);
}

int native_session_local_address(const struct native_session *s, struct sockaddr_storage *out) {
    const struct carrier *carrier = s->main ? s->main : s->dial;
    return carrier ? native_connection_local_address(carrier->connection, out)
                   : status_fail(MUSTER_ESYSTEM, "there is no connection to the coordinator at the moment");
}

bool native_session_is_connected(const struct native_session *s) {
    return !s->main || native_connection_is_connected(s->main->connection);
}

static void on_closed(uv_handle_t *handle) {
    struct native_session *s = handle->data;
    coordinator_resend_done(&s->resend);
    free(s);
}

static void end(struct native_session *s, void (*end_connection)(struct native_connection *connection)) {
    if (s) {
        s->is_closed = true;
        drop_all(s, end_connection);
        uv_close((uv_handle_t *)&s->timer, on_closed);
    }
}

void native_session_close(struct native_session *s) {
    end(s, native_connection_close);
}

void native_session_give_up(struct native_session *s) {
    end(s, native_connection_give_up);
}
