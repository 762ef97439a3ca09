/* The asynchronous client's next connection, when the one that it has is silent or lost; see kv_client_redial().
 *
 * It is dialled by a client of its own, which is one attempt, and stands when that has its handshake. A server of
 * ours is then asked to go on with this client (RETURN): from there on it reads nothing more of the old connection, and
 * reports no end of it. That is why the old one is closed only when the server has answered: its end could arrive
 * first. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "net/endpoint.h"
#include "net/socket.h"
#include "store/client/kv_client_impl.h"

enum { DIAL_MS = 4000, DIAL_AGAIN_MS = 500 };

static void on_dial_state(void *ctx, int status);

static int dial(struct kv_client *client, uint64_t pause_ms) {
    int code = kv_client_create(client->timer.loop, (const struct sockaddr *)&client->dialled, DIAL_MS, on_dial_state,
                                client, &client->dial);
    if (code == 0) {
        kv_client_set_clock(client->dial, client->clock);
        client->dial->is_dial = true;
        client->dial->started_ms += pause_ms;
        (void)uv_timer_start(&client->dial->timer, kv_client_on_timer, pause_ms, 0);
    }
    return code;
}

/* From the loop: without memory nothing is left to hope for where there is no connection. */
static void dial_or_fail(struct kv_client *client, uint64_t pause_ms) {
    if (dial(client, pause_ms) && client->state == STATE_LOST) {
        kv_client_fail(client, MUSTER_ENOMEM, "no memory to connect to %s again", client->address_text);
    }
}

/* ---- what was under way ---- */

/* Of additions to a server that would make them twice, the sent ones; they are taken out. */
static struct kv_request *take_additions(struct kv_client *client) {
    struct kv_request *sent = client->sent, *next, *additions = NULL, **last = &additions;
    client->sent = NULL;
    client->sent_last = &client->sent;
    for (; sent; sent = next) {
        next = sent->next;
        kv_request_append(sent->command == CODEC_ADD ? &last : &client->sent_last, sent);
    }
    return additions;
}

static void refuse(struct kv_client *client, struct kv_request *additions) {
    for (struct kv_request *next; additions; additions = next) {
        next = additions->next;
        if (client->is_closed) {
            kv_request_free(additions);
            continue;
        }
        struct kv_reply reply = {.status = MUSTER_ECONNECT};
        (void)status_fail(MUSTER_ECONNECT, "%s %s: the connection to %s was replaced, and it may have been done or not",
                          codec_command_name(additions->command), additions->keys, client->address_text);
        kv_client_answer(client, additions, &reply);
    }
}

/* All that is unanswered waits in order for the next connection. A callback may close the client. */
static void requeue(struct kv_client *client) {
    struct kv_request *additions = take_additions(client);
    if (client->sent) {
        *client->sent_last = client->queued;
        client->queued_last = client->queued ? client->queued_last : client->sent_last;
        client->queued = client->sent;
        client->sent = NULL;
        client->sent_last = &client->sent;
    }
    client->silent_count = 0;
    client->state = STATE_LOST;
    kv_client_expect_reply(client);
    refuse(client, additions);
}

/* The link is of no more use. */
static void leave_link(struct kv_client *client) {
    if (client->state == STATE_LOST) {
        return;
    }
    (void)uv_poll_stop(&client->link->poll);
    kv_client_drop_retired(client);
    client->retired = client->link;
    client->link = NULL;
    client->is_full = client->is_named = false;
    kv_client_forget_bytes(client);
    requeue(client);
}

/* What has been written is not written again: not even for a moment is a value there that was there before. */
static void forget_served(struct kv_client *client, uint64_t count) {
    struct kv_request *queued = client->queued, *next;
    client->queued = NULL;
    client->queued_last = &client->queued;
    for (; queued; queued = next) {
        next = queued->next;
        bool is_served = queued->sent_as > 0 && queued->sent_as <= count;
        if (is_served && !queued->has_reply) {
            client->request_count--;
            kv_request_free(queued);
            continue;
        }
        queued->sent_as = 0;
        queued->is_done = queued->is_done || (is_served && queued->command == CODEC_PING);
        kv_request_append(&client->queued_last, queued);
    }
}

/* ---- the new connection ---- */

/* Not ours: it would read what is still on its way on the old connection. */
static void take_over(struct kv_client *client, bool is_named, uint64_t served_count) {
    struct kv_client *next = client->dial;
    leave_link(client);
    if (client->is_closed) {
        return;
    }
    if (!client->knows_clients || is_named) {
        kv_client_drop_retired(client);
    }
    client->link = next->link;
    client->link->client = client;
    next->link = NULL;
    client->address = next->address;
    (void)str_copy(client->address_text, sizeof client->address_text, next->address_text);
    client->is_named = is_named;
    client->messages = served_count;
    forget_served(client, served_count);
    client->state = STATE_READY;
    kv_client_stop_dial(client);
    log_info("the store at %s is reached by another connection", client->address_text);
    kv_client_pump(client);
}

static void on_returned(void *ctx, const struct kv_reply *reply) {
    struct kv_client *client = ctx;
    if (reply->status != MUSTER_OK) {
        return; /* on_dial_state() follows */
    }
    if (reply->number != CODEC_UNKNOWN) {
        take_over(client, true, (uint64_t)reply->number);
        return;
    }
    kv_client_fail(client, MUSTER_ECONNECT,
                   "connection to the store at %s lost: it has been started anew, or has given this node up",
                   client->dial->address_text);
}

/* Is it the kind of server that it was? */
static bool is_alike(const struct kv_client *client) {
    return client->dial->server_is_muster == client->server_is_muster &&
           client->dial->knows_clients == client->knows_clients;
}

static void on_dial_failed(struct kv_client *client, int status) {
    struct kv_client *failed = client->dial;
    bool is_gone = failed->last_error == ECONNREFUSED && net_address_equal((const struct sockaddr *)&failed->address,
                                                                           (const struct sockaddr *)&client->address);
    if (is_gone || status == MUSTER_EPROTOCOL) {
        char text[MUSTER_DETAIL_MAX / 2];
        (void)str_format(text, sizeof text, "%s", muster_detail());
        kv_client_fail(client, MUSTER_ECONNECT, "connection to the store at %s lost: %s", client->address_text, text);
        return;
    }
    kv_client_stop_dial(client);
    dial_or_fail(client, DIAL_AGAIN_MS);
}

static void on_dial_state(void *ctx, int status) {
    struct kv_client *client = ctx;
    if (status != MUSTER_OK) {
        on_dial_failed(client, status);
    } else if (!is_alike(client)) {
        kv_client_fail(client, MUSTER_ECONNECT, "connection to the store at %s lost: another one answers at %s",
                       client->address_text, client->dial->address_text);
    } else if (!client->is_known) {
        take_over(client, false, 0);
    } else {
        leave_link(client); /* the server is about to do the same; no request is refused, as it knows us */
        int code = kv_client_return(client->dial, client->name, on_returned, client);
        if (code) {
            on_dial_failed(client, code);
        }
    }
}

static bool on_lost(struct kv_client *client, int error_number) {
    /* EPIPE: it had ended in good order when something was sent. */
    bool may_live = error_number != 0 && error_number != EPIPE;
    bool resumes = client->resumes && client->knows_clients;
    if (!may_live || !(resumes || (client->dial && error_number != ECONNRESET))) {
        return false;
    }
    log_debug("connection to the store at %s: %s", client->address_text, strerror(error_number));
    leave_link(client);
    kv_client_drop_retired(client);
    if (!client->is_closed && !client->dial) {
        dial_or_fail(client, 0);
    }
    return true;
}

/* ---- for the users ---- */

void kv_client_redial(struct kv_client *client) {
    bool stands = client->state == STATE_READY && client->link;
    client->lost = on_lost;
    if (stands && !client->dial) {
        (void)dial(client, 0); /* without memory it goes on as it was */
    }
}

void kv_client_set_resumes(struct kv_client *client, bool resumes) {
    client->lost = on_lost;
    client->resumes = resumes;
}

void kv_client_set_address(struct kv_client *client, const struct sockaddr *address) {
    memset(&client->dialled, 0, sizeof client->dialled);
    memcpy(&client->dialled, address, net_sockaddr_len(address));
}
