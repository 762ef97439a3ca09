/* Asking a coordinator, or a store; see status_link.h. The coordinator is asked first: a store's server that is none
 * hangs up on it, or says nothing. */
#include "cli/status/status_link.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "cli/status/status_report.h"
#include "net/event_loop.h"
#include "rendezvous/member/native_connection.h"
#include "rendezvous/round/resolver.h"
#include "rendezvous/torch/pickle.h"
#include "store/client/kv_client.h"

struct status_link {
    uv_loop_t *loop;
    const struct status_question *question;
    uv_timer_t timer;
    struct native_connection *session;
    struct kv_client *client;
    char key[NET_HOST_MAX + 32]; /* of the state in the store */
    char where[NET_ADDRESS_TEXT_MAX];
    /* The step that runs. */
    bool is_over, is_late;
    int code;
    char detail[MUSTER_DETAIL_MAX];
    bool was_open;     /* somebody listens there */
    bool was_answered; /* by a coordinator: it is one */
    unsigned piece_count;
    struct buf text;
    json_t *report;
    struct net_addresses addresses;
};

/* ---- steps ---- */

/* With the detail of this thread, if it has failed. */
static void end_step(struct status_link *link, int code) {
    if (!link->is_over) {
        link->is_over = true;
        link->code = code;
        (void)str_copy(link->detail, sizeof link->detail, code ? muster_detail() : "");
    }
}

static void on_late(uv_timer_t *timer) {
    struct status_link *link = timer->data;
    link->is_late = true;
    event_loop_wake(timer);
}

static void begin_step(struct status_link *link) {
    link->is_over = link->is_late = false;
    link->code = 0;
}

/* Runs the loop until the step is over. */
static int wait_step(struct status_link *link, const char *what) {
    (void)uv_timer_start(&link->timer, on_late, STATUS_ANSWER_MS, 0);
    while (!link->is_over && !link->is_late && !*link->question->is_interrupted) {
        (void)uv_run(link->loop, UV_RUN_ONCE);
    }
    (void)uv_timer_stop(&link->timer);
    if (link->is_over) {
        return link->code ? status_fail(link->code, "%s", link->detail) : 0;
    }
    if (*link->question->is_interrupted) {
        return status_fail(MUSTER_ECANCELED, "interrupted");
    }
    return status_fail(MUSTER_ETIMEOUT, "%s: no answer within %d s", what, STATUS_ANSWER_MS / 1000);
}

/* ---- the coordinator ---- */

static void ask_for_more(struct status_link *link) {
    const struct coordinator_message message = {.kind = COORDINATOR_STATUS};
    link->piece_count = 0;
    int code = native_connection_send(link->session, &message);
    if (code != 0) {
        end_step(link, code);
    }
}

static void take_piece(struct status_link *link, const struct coordinator_message *message) {
    int code = buf_append(&link->text, message->report.data, message->report.len);
    link->piece_count++;
    if (code == 0 && message->is_last) {
        json_error_t error;
        link->report = json_loadb((const char *)buf_bytes(&link->text), link->text.len, 0, &error);
        code = link->report ? 0
                            : status_fail(MUSTER_EPROTOCOL, "the report of %s is no JSON: %s", link->where, error.text);
        code = code ? code : status_report_clean(link->report);
        buf_clear(&link->text);
        end_step(link, code);
    } else if (code != 0) {
        end_step(link, code);
    } else if (link->piece_count == COORDINATOR_REPORT_BATCH) {
        ask_for_more(link);
    }
}

static void on_message(void *ctx, const struct coordinator_message *message) {
    struct status_link *link = ctx;
    link->was_answered = true;
    if (message->kind == COORDINATOR_REPORT) {
        take_piece(link, message);
    } else if (message->kind == COORDINATOR_REFUSED) {
        end_step(link, status_fail(message->status, "%s: %.*s", link->where, (int)message->text.len,
                                   (const char *)message->text.data));
    } else {
        end_step(link, status_fail(MUSTER_EPROTOCOL, "%s answers STATUS with %s: is it of another version?",
                                   link->where, coordinator_kind_name(message->kind)));
    }
}

static void on_open(void *ctx) {
    struct status_link *link = ctx;
    link->was_open = true;
    ask_for_more(link);
}

static void on_lost(void *ctx, int status) {
    struct status_link *link = ctx;
    end_step(link,
             link->was_answered ? status_fail(MUSTER_ECLOSED, "the coordinator at %s is gone", link->where) : status);
}

static int ask_coordinator(struct status_link *link, const struct sockaddr *address) {
    static const struct native_connection_callbacks callbacks = {on_open, on_message, on_lost};
    const struct native_connection_key key = {
        .secret = link->question->secret, .run_id = link->question->run_id, .tls = link->question->tls};
    begin_step(link);
    int code = native_connection_open(link->loop, address, &key, &callbacks, link, &link->session);
    return code ? code : wait_step(link, link->where);
}

/* ---- the store ---- */

static void on_state(void *ctx, int status) {
    struct status_link *link = ctx;
    end_step(link, status);
}

static void on_read(void *ctx, const struct kv_reply *reply) {
    struct status_link *link = ctx;
    struct rdzv_state state;
    int code = reply->status;
    rdzv_state_init(&state);
    if (code == 0) {
        code = pickle_read_text(reply->values[0].data, reply->values[0].len, &state);
    }
    if (code == 0) {
        code = status_report_c10d(&state, link->question->run_id, clock_realtime_us(), &link->report);
        code = code ? code : status_report_clean(link->report);
    }
    rdzv_state_done(&state);
    end_step(link, code);
}

static void on_checked(void *ctx, const struct kv_reply *reply) {
    struct status_link *link = ctx;
    int code = reply->status;
    if (code == 0 && reply->number != 1) {
        code = status_fail(MUSTER_ENOENT,
                           "a TCPStore is at %s, but in it is no rendezvous named \"%s\": give the job's --rdzv-id",
                           link->where, link->question->run_id);
    }
    code = code ? code : kv_client_get(link->client, link->key, false, STATUS_ANSWER_MS, on_read, link);
    if (code != 0) {
        end_step(link, code);
    }
}

/* An absent key makes some servers hang up, so it is asked for first. */
static int read_state(struct status_link *link) {
    const char *key = link->key;
    begin_step(link);
    int code = kv_client_check(link->client, &key, 1, on_checked, link);
    return code ? code : wait_step(link, link->where);
}

static int ask_store(struct status_link *link, const struct sockaddr *address) {
    begin_step(link);
    int code = kv_client_create(link->loop, address, STATUS_ANSWER_MS / 2, on_state, link, &link->client);
    code = code ? code : wait_step(link, link->where);
    if (code != 0 && code != MUSTER_ECANCELED) {
        return status_fail(MUSTER_EPROTOCOL,
                           "%s is neither a coordinator of --rdzv-backend=muster nor a TCPStore: is that the job's "
                           "--rdzv-endpoint?",
                           link->where);
    }
    return code ? code : read_state(link);
}

/* ---- one address after the other ---- */

static void hang_up(struct status_link *link) {
    native_connection_close(link->session);
    kv_client_close(link->client);
    link->session = NULL;
    link->client = NULL;
    link->was_open = link->was_answered = false;
    buf_clear(&link->text);
}

static int try_address(struct status_link *link, const struct sockaddr *address) {
    (void)net_address_format(address, link->where);
    int code = ask_coordinator(link, address);
    if (code == 0 || link->was_answered || code == MUSTER_ECANCELED) {
        return code;
    }
    if (!link->was_open && code != MUSTER_EPROTOCOL) { /* with a secret it is open when both have proved to know it */
        char why[MUSTER_DETAIL_MAX];
        (void)str_copy(why, sizeof why, muster_detail());
        hang_up(link);
        return status_fail(MUSTER_ECONNECT,
                           "nothing answers at %s (%.200s): is the job running, and is that its --rdzv-endpoint?",
                           link->where, why);
    }
    if ((link->question->secret || link->question->tls) && code == MUSTER_EPROTOCOL) {
        return code;
    }
    hang_up(link);
    return ask_store(link, address);
}

static void on_resolved(void *ctx, int status, const struct net_addresses *addresses) {
    struct status_link *link = ctx;
    link->addresses = *addresses;
    end_step(link, status);
}

static int resolve(struct status_link *link, const struct net_endpoint *endpoint) {
    struct resolver *resolver = NULL;
    if (net_resolve_numeric(endpoint->host, (uint16_t)endpoint->port, &link->addresses) == 0) {
        return 0;
    }
    begin_step(link);
    int code = resolver_start(link->loop, endpoint->host, (uint16_t)endpoint->port, on_resolved, link, &resolver);
    code = code ? code : wait_step(link, endpoint->host);
    resolver_close(resolver);
    return code;
}

static int try_endpoint(struct status_link *link, const struct net_endpoint *endpoint) {
    int code = resolve(link, endpoint);
    if (code != 0) {
        return code;
    }
    code = MUSTER_ERESOLVE;
    for (size_t i = 0; i < link->addresses.count; i++) {
        int next = try_address(link, (const struct sockaddr *)&link->addresses.list[i].sockaddr);
        if (next == 0 || next != MUSTER_ECONNECT) {
            return next;
        }
        code = next;
    }
    return code;
}

/* A coordinator that waits at one of several endpoints, and has no members: the job is at another one. */
static bool is_idle(const json_t *report) {
    return json_integer_value(json_object_get(report, "round")) == 0 &&
           json_array_size(json_object_get(report, "members")) == 0;
}

static int try_all(struct status_link *link) {
    const struct status_question *question = link->question;
    int code = MUSTER_EINVAL;
    for (size_t i = 0; i < question->endpoint_count; i++) {
        code = try_endpoint(link, &question->endpoints[i]);
        bool is_final = i + 1 == question->endpoint_count || code == MUSTER_ECANCELED;
        if ((code == 0 && !is_idle(link->report)) || is_final) {
            break;
        }
        hang_up(link);
        json_decref(link->report);
        link->report = NULL;
    }
    return code;
}

/* ---- life ---- */

static int take_report(struct status_link *link, json_t **out) {
    *out = link->report;
    link->report = NULL;
    return 0;
}

int status_link_open(uv_loop_t *loop, const struct status_question *question, struct status_link **out,
                     json_t **out_report) {
    struct status_link *link = calloc(1, sizeof *link);
    if (!link) {
        return status_fail(MUSTER_ENOMEM, "no memory to ask");
    }
    link->loop = loop;
    link->question = question;
    (void)str_format(link->key, sizeof link->key, "torch.rendezvous.%s", question->run_id);
    buf_init(&link->text, STATUS_REPORT_BYTES_MAX);
    (void)uv_timer_init(loop, &link->timer);
    link->timer.data = link;
    int code = try_all(link);
    if (code != 0) {
        status_link_close(link);
        return code;
    }
    *out = link;
    return take_report(link, out_report);
}

int status_link_ask(struct status_link *link, json_t **out_report) {
    int code = 0;
    if (link->client) {
        code = read_state(link);
        code = code == MUSTER_ECONNECT ? MUSTER_ECLOSED : code;
    } else {
        begin_step(link);
        ask_for_more(link); /* fails at once where the connection has ended */
        code = wait_step(link, link->where);
    }
    if (code == MUSTER_ECLOSED) {
        return status_fail(MUSTER_ECLOSED, "%s has hung up: the job has ended there", link->where);
    }
    return code ? code : take_report(link, out_report);
}

static void on_closed(uv_handle_t *handle) {
    free(handle->data);
}

void status_link_close(struct status_link *link) {
    if (!link) {
        return;
    }
    hang_up(link);
    buf_done(&link->text);
    json_decref(link->report);
    uv_close((uv_handle_t *)&link->timer, on_closed);
}
