/* Connections to members, frames to events, the coordinator's timer; see coordinator_server.h. What events mean is
 * coordinator.c, sockets and buffers are the store's (kv_connection.c). */
#include "rendezvous/coordinator_server.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "base/status.h"
#include "base/str.h"
#include "net/endpoint.h"

/* One connection. */
struct agent {
    struct agent *previous, *next; /* in its list */
    struct kv_connection *connection;
    struct coordinator_member *member; /* NULL: has not joined, or is gone while its connection ends */
    int64_t deadline_ms;               /* of a stranger: to JOIN; else to be heard again */
    bool is_greeted;
    bool is_stranger;
};

struct agents {
    struct agent *first, *last;
    size_t count;
};

struct coordinator_server {
    struct kv_guest guest;
    struct coordinator *coordinator;
    uv_loop_t *loop;
    uv_timer_t timer;
    int64_t timer_ms;        /* what it is set to; INT64_MAX: it rests */
    struct agents strangers; /* in the order of their deadlines */
    struct agents joined;    /* in the order in which they were heard last; and those who are being ended */
    int64_t join_patience_ms, silence_ms;
    size_t strangers_max;
    struct buf frame; /* scratch */
};

static int64_t now_ms(const struct coordinator_server *server) {
    return (int64_t)uv_now(server->loop);
}

/* ---- lists ---- */

static void append(struct agents *list, struct agent *agent) {
    agent->previous = list->last;
    agent->next = NULL;
    *(list->last ? &list->last->next : &list->first) = agent;
    list->last = agent;
    list->count++;
}

static void take_out(struct agents *list, struct agent *agent) {
    *(agent->previous ? &agent->previous->next : &list->first) = agent->next;
    *(agent->next ? &agent->next->previous : &list->last) = agent->previous;
    list->count--;
}

/* It has joined, or never will; or has been heard again. */
static void no_stranger(struct coordinator_server *server, struct agent *agent) {
    take_out(agent->is_stranger ? &server->strangers : &server->joined, agent);
    agent->is_stranger = false;
    agent->deadline_ms = server->silence_ms > 0 ? now_ms(server) + server->silence_ms : INT64_MAX;
    append(&server->joined, agent);
}

/* ---- the timer ---- */

static void on_timer(uv_timer_t *timer);

static int64_t first_deadline(const struct agents *list, int64_t other_ms) {
    return list->first && list->first->deadline_ms < other_ms ? list->first->deadline_ms : other_ms;
}

/* After each event: for whichever comes first. */
static void set_timer(struct coordinator_server *server) {
    int64_t wanted = coordinator_wake_ms(server->coordinator);
    wanted = first_deadline(&server->strangers, wanted);
    wanted = first_deadline(&server->joined, wanted);
    if (wanted == server->timer_ms) {
        return;
    }
    server->timer_ms = wanted;
    if (wanted == INT64_MAX) {
        (void)uv_timer_stop(&server->timer);
        return;
    }
    int64_t delay_ms = wanted - now_ms(server);
    (void)uv_timer_start(&server->timer, on_timer, delay_ms > 0 ? (uint64_t)delay_ms : 0, 0);
}

static void drop_stranger(struct coordinator_server *server, struct agent *agent) {
    struct kv_connection *connection = agent->connection;
    no_stranger(server, agent);
    kv_guest_drop(connection);
}

/* The connection stands, but nobody is at work behind it: a stopped agent, or a machine that hangs. */
static void drop_silent(struct coordinator_server *server, struct agent *agent) {
    char why[64];
    struct coordinator_member *member = agent->member;
    no_stranger(server, agent);
    agent->deadline_ms = INT64_MAX; /* it is being ended */
    agent->member = NULL;
    (void)status_fail(MUSTER_ETIMEOUT, "its agent has been silent for %lld ms", (long long)server->silence_ms);
    kv_guest_drop(agent->connection);
    if (member) {
        (void)str_format(why, sizeof why, "nothing was heard of it for %lld ms", (long long)server->silence_ms);
        coordinator_gone(server->coordinator, member, kv_slice_text(why), now_ms(server));
    }
}

static void on_timer(uv_timer_t *timer) {
    struct coordinator_server *server = timer->data;
    int64_t now = now_ms(server);
    server->timer_ms = INT64_MAX;
    if (coordinator_wake_ms(server->coordinator) <= now) {
        coordinator_tick(server->coordinator, now);
    }
    while (server->strangers.first && server->strangers.first->deadline_ms <= now) {
        (void)status_fail(MUSTER_ETIMEOUT, "it has not joined the rendezvous within %lld ms",
                          (long long)server->join_patience_ms);
        drop_stranger(server, server->strangers.first);
    }
    while (server->joined.first && server->joined.first->deadline_ms <= now) {
        drop_silent(server, server->joined.first);
    }
    set_timer(server);
}

/* ---- out ---- */

static void send_message(void *ctx, void *session, const struct coordinator_message *message) {
    struct coordinator_server *server = ctx;
    struct agent *agent = session;
    buf_clear(&server->frame);
    if (coordinator_wire_put(&server->frame, message)) { /* it would wait for this one for ever */
        kv_guest_drop(agent->connection);
        return;
    }
    kv_guest_send(agent->connection, buf_bytes(&server->frame), server->frame.len);
}

/* The agent has broken the protocol; the status detail says how, to it and to the log. */
static size_t refuse(struct coordinator_server *server, struct agent *agent) {
    char why[MUSTER_DETAIL_MAX];
    size_t len = strlen(muster_detail());
    memcpy(why, muster_detail(), len + 1);
    const struct coordinator_message message = {
        .kind = COORDINATOR_REFUSED, .status = MUSTER_EPROTOCOL, .text = kv_slice_of(why, len)};
    send_message(server, agent, &message);
    no_stranger(server, agent);
    (void)status_fail(MUSTER_EPROTOCOL, "%s", why);
    return SIZE_MAX;
}

/* ---- in ---- */

/* An address that names no host in particular. */
static bool is_unspecified(struct kv_slice addr) {
    char text[COORDINATOR_NAME_BYTES_MAX + 1];
    struct in_addr v4;
    struct in6_addr v6;
    if (addr.len > 0) {
        memcpy(text, addr.data, addr.len);
    }
    text[addr.len] = '\0';
    return addr.len == 0 || (inet_pton(AF_INET, text, &v4) == 1 && v4.s_addr == htonl(INADDR_ANY)) ||
           (inet_pton(AF_INET6, text, &v6) == 1 && IN6_IS_ADDR_UNSPECIFIED(&v6));
}

/* False when it may not. */
static bool join(struct coordinator_server *server, struct agent *agent, struct coordinator_node *node) {
    char host[NET_ADDRESS_TEXT_MAX];
    struct sockaddr_storage peer;
    if (is_unspecified(node->addr)) {
        kv_guest_peer(agent->connection, &peer);
        node->addr = kv_slice_text(net_address_host((const struct sockaddr *)&peer, host));
    }
    agent->member = coordinator_join(server->coordinator, agent->member, agent, node, now_ms(server));
    return agent->member != NULL;
}

static void leave(struct coordinator_server *server, struct agent *agent, struct kv_slice why) {
    struct coordinator_member *member = agent->member;
    agent->member = NULL;
    coordinator_gone(server->coordinator, member, why.len > 0 ? why : kv_slice_text("without a reason"),
                     now_ms(server));
}

/* False: the connection is to end, in good order. */
static bool handle(struct coordinator_server *server, struct agent *agent, struct coordinator_message *message) {
    switch (message->kind) {
    case COORDINATOR_JOIN:
        return join(server, agent, &message->node);
    case COORDINATOR_FAILED:
        coordinator_failed(server->coordinator, agent->member, message->text, now_ms(server));
        return true;
    case COORDINATOR_LEAVE:
        leave(server, agent, message->text);
        return false;
    case COORDINATOR_DONE:
        coordinator_done(server->coordinator, agent->member, now_ms(server));
        return true;
    case COORDINATOR_ALIVE:
        send_message(server, agent, &(struct coordinator_message){.kind = COORDINATOR_HEARD});
        return true;
    default:
        assert(message->kind == COORDINATOR_CLOSE); /* the decoder lets no other pass */
        coordinator_close(server->coordinator, agent->member, message->text);
        return true;
    }
}

static size_t serve_frame(struct coordinator_server *server, struct agent *agent, const uint8_t *bytes, size_t len) {
    struct coordinator_message message;
    size_t used = 0;
    enum coordinator_parse parse = coordinator_wire_get(bytes, len, true, &message, &used);
    if (parse == COORDINATOR_MORE) {
        return 0;
    }
    if (parse == COORDINATOR_MALFORMED) {
        return refuse(server, agent);
    }
    if (!agent->member && message.kind != COORDINATOR_JOIN) {
        (void)status_fail(MUSTER_EPROTOCOL, "%s before a JOIN", coordinator_kind_name(message.kind));
        return refuse(server, agent);
    }
    no_stranger(server, agent);
    if (!handle(server, agent, &message)) {
        kv_guest_end(agent->connection);
    }
    return used;
}

static size_t serve_hello(struct agent *agent, const uint8_t *bytes, size_t len) {
    size_t here = len < COORDINATOR_HELLO_BYTES ? len : COORDINATOR_HELLO_BYTES;
    if (memcmp(bytes, COORDINATOR_HELLO, here) != 0) {
        (void)status_fail(MUSTER_EPROTOCOL, "it speaks neither the store's protocol nor the coordinator's");
        return SIZE_MAX;
    }
    agent->is_greeted = here == COORDINATOR_HELLO_BYTES;
    return agent->is_greeted ? here : 0;
}

/* For the first bytes of a connection. NULL without memory. */
static struct agent *make_agent(struct coordinator_server *server, struct kv_connection *connection) {
    struct agent *agent = calloc(1, sizeof *agent);
    if (!agent) {
        (void)status_fail(MUSTER_ENOMEM, "no memory for another agent");
        return NULL;
    }
    agent->connection = connection;
    agent->is_stranger = true;
    agent->deadline_ms = now_ms(server) + server->join_patience_ms;
    kv_guest_set(connection, agent);
    if (server->strangers.count >= server->strangers_max) {
        (void)status_fail(MUSTER_ELIMIT, "%zu connections have not joined, this is the oldest",
                          server->strangers.count);
        drop_stranger(server, server->strangers.first);
    }
    append(&server->strangers, agent);
    return agent;
}

static size_t serve(void *ctx, struct kv_connection *connection, const uint8_t *bytes, size_t len) {
    struct coordinator_server *server = ctx;
    struct agent *agent = kv_guest_data(connection);
    agent = agent ? agent : make_agent(server, connection);
    if (!agent) {
        return SIZE_MAX;
    }
    size_t used = agent->is_greeted ? serve_frame(server, agent, bytes, len) : serve_hello(agent, bytes, len);
    set_timer(server);
    return used;
}

static void on_ended(void *ctx, struct kv_connection *connection) {
    struct coordinator_server *server = ctx;
    struct agent *agent = kv_guest_data(connection);
    if (!agent) {
        return;
    }
    take_out(agent->is_stranger ? &server->strangers : &server->joined, agent);
    if (agent->member) {
        coordinator_gone(server->coordinator, agent->member, kv_slice_of(NULL, 0), now_ms(server));
    }
    free(agent);
    set_timer(server);
}

/* ---- its life ---- */

int coordinator_server_create(uv_loop_t *loop, const struct coordinator_server_options *options,
                              struct coordinator_server **out) {
    struct coordinator_settings settings = options->coordinator;
    if (getrandom(settings.hash_seed, sizeof settings.hash_seed, 0) != (ssize_t)sizeof settings.hash_seed) {
        return status_fail_errno(errno, "random seed for the coordinator");
    }
    struct coordinator_server *server = calloc(1, sizeof *server);
    if (!server) {
        return status_fail(MUSTER_ENOMEM, "no memory for the coordinator's server");
    }
    int rc = coordinator_create(&settings, send_message, server, &server->coordinator);
    if (rc != MUSTER_OK) {
        free(server);
        return rc;
    }
    server->guest = (struct kv_guest){.first_byte = (uint8_t)COORDINATOR_HELLO[0],
                                      .input_max = COORDINATOR_FRAME_BYTES_MAX,
                                      .serve = serve,
                                      .ended = on_ended,
                                      .ctx = server};
    server->loop = loop;
    server->timer_ms = INT64_MAX;
    server->silence_ms = options->silence_ms;
    server->join_patience_ms = options->join_patience_ms ? options->join_patience_ms : COORDINATOR_JOIN_PATIENCE_MS;
    server->strangers_max = options->strangers_max ? options->strangers_max : COORDINATOR_STRANGERS_MAX;
    buf_init(&server->frame, COORDINATOR_FRAME_BYTES_MAX);
    (void)uv_timer_init(loop, &server->timer);
    server->timer.data = server;
    *out = server;
    return MUSTER_OK;
}

const struct kv_guest *coordinator_server_guest(const struct coordinator_server *server) {
    return &server->guest;
}

void coordinator_server_look(const struct coordinator_server *server, struct coordinator_view *out) {
    coordinator_look(server->coordinator, out);
}

static void on_closed(uv_handle_t *handle) {
    free(handle->data);
}

static void free_agents(struct agent *first) {
    for (struct agent *agent = first, *next; agent; agent = next) {
        next = agent->next;
        free(agent);
    }
}

void coordinator_server_close(struct coordinator_server *server) {
    if (!server) {
        return;
    }
    free_agents(server->strangers.first);
    free_agents(server->joined.first);
    coordinator_free(server->coordinator);
    buf_done(&server->frame);
    uv_close((uv_handle_t *)&server->timer, on_closed);
}
