/* Connections to members, frames to events, the coordinator's timer; see coordinator_server.h. What events mean is
 * coordinator.c, sockets and buffers are the store's (kv_connection.c). */
#include "rendezvous/coordinator/coordinator_server.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "base/system/random.h"
#include "net/endpoint.h"
#include "rendezvous/coordinator/coordinator_server_impl.h"
#include "rendezvous/round/cause.h"

/* OpenSSL's answers to one read, and a sealed frame. */
#define TLS_WIRE_BYTES_MAX ((size_t)128 * 1024)
/* What is not used yet and what one read adds to it. */
#define TLS_PLAIN_BYTES_MAX ((size_t)128 * 1024)

/* How long nobody is to be taken for silent, since this process was away itself. */
static int64_t listens_ms(const struct coordinator_server *server) {
    return loop_clock_left_ms(server->clock, server->loop, INT64_MIN, server->interval_ms);
}

/* It has joined, or never will; or is known to have been here at `since_ms`. */
static void no_stranger(struct coordinator_server *server, struct agent *agent, int64_t since_ms) {
    agent->heard_ms = since_ms > agent->heard_ms ? since_ms : agent->heard_ms;
    int64_t deadline_ms = server->silence_ms > 0 ? since_ms + server->silence_ms : INT64_MAX;
    if (!agent->is_stranger && deadline_ms <= agent->deadline_ms) {
        return;
    }
    coordinator_agents_take_out(agent->is_stranger ? &server->strangers : &server->joined, agent);
    agent->is_stranger = false;
    agent->deadline_ms = deadline_ms;
    coordinator_agents_insert(&server->joined, agent);
}

/* ---- the timer ---- */

static void on_timer(uv_timer_t *timer);

/* Of `left_ms` and what is left until the first of the list is judged. */
static int64_t first_left(const struct coordinator_server *server, const struct agents *list, int64_t left_ms) {
    if (!list->first || list->first->deadline_ms == INT64_MAX) {
        return left_ms;
    }
    int64_t its_ms = list->first->deadline_ms - coordinator_server_awake_ms(server), listens = listens_ms(server);
    its_ms = absence_ask_ms(its_ms > listens ? its_ms : listens, server->interval_ms);
    return its_ms < left_ms ? its_ms : left_ms;
}

static void note_history(struct coordinator_server *server) {
    struct coordinator_view view;
    char why[COORDINATOR_TEXT_BYTES_MAX];
    coordinator_look(server->coordinator, &view);
    coordinator_history_note(&server->history, &view, coordinator_why(server->coordinator, why),
                             coordinator_server_now_ms(server));
}

/* After each event: for whichever comes first. */
static void set_timer(struct coordinator_server *server) {
    int64_t wake_ms = coordinator_wake_ms(server->coordinator);
    int64_t left_ms = wake_ms == INT64_MAX ? INT64_MAX : wake_ms - coordinator_server_now_ms(server);
    left_ms = first_left(server, &server->strangers, left_ms);
    left_ms = first_left(server, &server->joined, left_ms);
    int64_t wanted = left_ms == INT64_MAX ? INT64_MAX : coordinator_server_now_ms(server) + (left_ms > 0 ? left_ms : 0);
    if (wanted == server->timer_ms) {
        return;
    }
    server->timer_ms = wanted;
    if (wanted == INT64_MAX) {
        (void)uv_timer_stop(&server->timer);
        return;
    }
    (void)uv_timer_start(&server->timer, on_timer, left_ms > 0 ? (uint64_t)left_ms : 0, 0);
}

static void drop_stranger(struct coordinator_server *server, struct agent *agent) {
    struct kv_connection *connection = agent->connection;
    no_stranger(server, agent, coordinator_server_awake_ms(server));
    (void)coordinator_line_end(&agent->line); /* what is said of it here is enough */
    kv_guest_drop(connection);
}

/* This process was away: what agents have said meanwhile is still to be read. True: it is to be read first. */
static bool reads_first(struct coordinator_server *server) {
    enum { READ_MS = 1 };
    int64_t away_ms = server->clock ? server->clock->absence.away_ms : 0;
    if (away_ms == server->away_ms) {
        return false;
    }
    server->away_ms = away_ms;
    server->timer_ms = coordinator_server_now_ms(server) + READ_MS;
    (void)uv_timer_start(&server->timer, on_timer, READ_MS, 0);
    return true;
}

static bool is_late(const struct coordinator_server *server, const struct agents *list) {
    return list->first && list->first->deadline_ms <= coordinator_server_awake_ms(server) && listens_ms(server) == 0;
}

static void on_timer(uv_timer_t *timer) {
    struct coordinator_server *server = timer->data;
    int64_t now = coordinator_server_now_ms(server);
    (void)loop_clock_now_ms(server->clock, server->loop); /* so that it is known what was late */
    if (reads_first(server)) {
        return;
    }
    server->timer_ms = INT64_MAX;
    if (coordinator_wake_ms(server->coordinator) <= now) {
        coordinator_tick(server->coordinator, now);
    }
    while (is_late(server, &server->strangers)) {
        (void)status_fail(MUSTER_ETIMEOUT, "it has not joined the rendezvous within %lld ms",
                          (long long)server->join_patience_ms);
        drop_stranger(server, server->strangers.first);
    }
    while (is_late(server, &server->joined)) {
        coordinator_silence_judge(server, server->joined.first);
    }
    note_history(server);
    set_timer(server);
}

/* ---- out ---- */

/* What is in `frame`. */
static void send_frame(struct coordinator_server *server, struct agent *agent) {
    const struct buf *out = &server->frame;
    if (agent->tls && server->frame.len > 0) {
        buf_clear(&server->wire);
        if (tls_stream_put(agent->tls, buf_bytes(&server->frame), server->frame.len, &server->wire)) {
            kv_guest_drop(agent->connection);
            return;
        }
        out = &server->wire;
    }
    kv_guest_send(agent->connection, buf_bytes(out), out->len);
}

/* It would wait for what cannot be said to it for ever. */
static void give_up(struct agent *agent) {
    agent->is_broken = true;
    if (agent->connection) {
        kv_guest_drop(agent->connection);
    }
}

/* What is in `frame`, plain. Between two connections it waits for the next. */
static void seal_and_send(struct coordinator_server *server, struct agent *agent) {
    if (agent->connection && coordinator_line_seal(&agent->line, &server->gate, &server->frame)) {
        give_up(agent);
    } else if (agent->connection) {
        send_frame(server, agent);
    }
}

static void send_message(void *ctx, void *session, const struct coordinator_message *message) {
    struct coordinator_server *server = ctx;
    struct agent *agent = session;
    buf_clear(&server->frame);
    int rc = coordinator_wire_put(&server->frame, message);
    if (rc == MUSTER_OK && coordinator_resend_counts(message->kind)) {
        rc = coordinator_resend_sent(&agent->resend, buf_bytes(&server->frame), server->frame.len);
    }
    if (rc != MUSTER_OK) {
        give_up(agent);
        return;
    }
    if (message->kind == COORDINATOR_WORLD) { /* its workers of the world before have ended */
        agent->lease_ms = 0;
        coordinator_silence_told(agent, message->world.lease_ms);
    }
    seal_and_send(server, agent);
}

/* The agent has broken the protocol; the status detail says how, to it and to the log. */
static size_t refuse(struct coordinator_server *server, struct agent *agent) {
    char why[MUSTER_DETAIL_MAX];
    size_t len = strlen(muster_detail());
    memcpy(why, muster_detail(), len + 1);
    const struct coordinator_message message = {
        .kind = COORDINATOR_REFUSED, .status = MUSTER_EPROTOCOL, .text = kv_slice_of(why, len)};
    send_message(server, agent, &message);
    no_stranger(server, agent, coordinator_server_awake_ms(server));
    agent->is_broken = true;
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

/* Of an agent whose member has gone, or has another connection now. */
static void end_connection(struct coordinator_server *server, struct agent *agent) {
    if (agent->connection) {
        coordinator_agents_take_out(&server->joined, agent);
        agent->deadline_ms = INT64_MAX;
        coordinator_agents_append(&server->joined, agent);
        kv_guest_end(agent->connection);
    } else {
        coordinator_agents_forget(server, agent);
    }
}

/* A node that begins a new session has given up the one before. */
static void end_earlier_session(struct coordinator_server *server, const struct coordinator_node *node) {
    struct coordinator_member *member = coordinator_find(server->coordinator, node->identity);
    struct agent *before = member ? coordinator_session(member) : NULL;
    if (before && before->session < node->session && (before->is_silent || !before->connection)) {
        before->member = NULL;
        coordinator_gone(server->coordinator, member, kv_slice_text("it has connected anew"),
                         coordinator_server_now_ms(server));
        end_connection(server, before);
    }
}

/* False when it may not. */
static bool join(struct coordinator_server *server, struct agent *agent, struct coordinator_node *node) {
    char host[NET_ADDRESS_TEXT_MAX];
    struct sockaddr_storage peer;
    if (is_unspecified(node->addr)) {
        kv_guest_peer(agent->connection, &peer);
        node->addr = kv_slice_text(net_address_host((const struct sockaddr *)&peer, host));
    }
    if (!agent->member) {
        agent->session = node->session;
        end_earlier_session(server, node);
    }
    agent->member =
        coordinator_join(server->coordinator, agent->member, agent, node, coordinator_server_now_ms(server));
    if (agent->member && !coordinator_is_at_work(agent->member)) {
        agent->lease_ms = server->silence_ms;
    }
    return agent->member != NULL;
}

/* RESUME names the session that `before` holds. */
static bool can_resume(const struct coordinator_server *server, struct agent *before,
                       const struct coordinator_message *message) {
    return before && !before->is_broken && before->session == message->node.session &&
           kv_slice_equal(message->node.run_id, kv_slice_text(server->run_id)) &&
           coordinator_resend_confirm(&before->resend, message->received_count);
}

/* `agent` is `before` from now on, whose connection, if there is one, carries nothing any more. */
static void take_over(struct coordinator_server *server, struct agent *agent, struct agent *before) {
    agent->member = before->member;
    agent->session = before->session;
    agent->resend = before->resend;
    agent->lease_ms = before->lease_ms;
    agent->told_lease_ms = before->told_lease_ms;
    agent->granted_ms = coordinator_server_now_ms(server);
    coordinator_resend_init(&before->resend);
    coordinator_knock_stop(before);
    before->member = NULL;
    coordinator_set_session(agent->member, agent);
}

/* False: it is told that it cannot, and the connection ends. */
static bool resume(struct coordinator_server *server, struct agent *agent, const struct coordinator_message *message) {
    struct coordinator_member *member = coordinator_find(server->coordinator, message->node.identity);
    struct agent *before = member ? coordinator_session(member) : NULL;
    if (!can_resume(server, before, message)) {
        const struct coordinator_message refused = {
            .kind = COORDINATOR_REFUSED,
            .status = MUSTER_ECONNECT,
            .text = kv_slice_text(member ? "it has begun another one" : "it has lost its place")};
        send_message(server, agent, &refused);
        return false;
    }
    coordinator_silence_heard(server, before);
    take_over(server, agent, before);
    end_connection(server, before);
    const struct coordinator_message resumed = {.kind = COORDINATOR_RESUMED,
                                                .received_count = agent->resend.received_count};
    send_message(server, agent, &resumed);
    size_t at = 0, len;
    for (const uint8_t *frame; (frame = coordinator_resend_next(&agent->resend, &at, &len));) {
        buf_clear(&server->frame);
        if (buf_append(&server->frame, frame, len)) {
            give_up(agent);
            break;
        }
        seal_and_send(server, agent);
    }
    return true;
}

static void leave(struct coordinator_server *server, struct agent *agent, struct kv_slice why) {
    struct coordinator_member *member = agent->member;
    agent->member = NULL;
    coordinator_never_returns(member);
    coordinator_leave(server->coordinator, member, why.len > 0 ? why : kv_slice_text("without a reason"),
                      coordinator_server_now_ms(server));
}

/* How long what was said had been here when this turn of the loop began: on a busy machine this process may have been
 * late. Below 0 if it came during the turn. */
static int64_t waited_ms(const struct coordinator_server *server, const struct agent *agent) {
    int64_t quiet_ms = kv_guest_quiet_ms(agent->connection);
    int64_t turn_ms = clock_monotonic_ns() / CLOCK_NS_PER_MS - coordinator_server_now_ms(server);
    return quiet_ms >= 0 ? quiet_ms - turn_ms : 0;
}

static void fail(struct coordinator_server *server, struct agent *agent, const struct coordinator_message *message) {
    struct coordinator_failure failure = {.why = message->text, .cause = message->cause, .is_final = message->is_final};
    struct rdzv_cause cause;
    if (rdzv_cause_read((const char *)message->cause.data, message->cause.len, &cause) == MUSTER_OK) {
        failure.is_victim = cause.is_victim;
        failure.early_ms = rdzv_cause_early_ms(cause.wait_status);
        failure.has_age = cause.age_us >= 0;
        failure.age_ms = cause.age_us / 1000 + waited_ms(server, agent);
    }
    coordinator_failed(server->coordinator, agent->member, &failure, coordinator_server_now_ms(server));
}

/* Whoever asks stays what it is: an agent that wants to know where to join. */
static bool answer_probe(struct coordinator_server *server, struct agent *agent, struct kv_slice run_id) {
    struct coordinator_message answer = {.kind = COORDINATOR_SERVES};
    if (kv_slice_equal(run_id, kv_slice_text(server->run_id))) {
        coordinator_describe(server->coordinator, &answer.service);
    } else {
        (void)status_fail(MUSTER_EINVAL, "this endpoint is held by the job \"%s\"", server->run_id);
        answer.kind = COORDINATOR_REFUSED;
        answer.status = MUSTER_EINVAL;
        answer.text = kv_slice_text(muster_detail());
    }
    send_message(server, agent, &answer);
    return answer.kind == COORDINATOR_SERVES;
}

/* Those who wait are told for what, at no message's cost. */
static void answer_alive(struct coordinator_server *server, struct agent *agent) {
    char waits[COORDINATOR_TEXT_BYTES_MAX];
    const struct coordinator *c = server->coordinator;
    struct kv_slice text = coordinator_waits_for(c, coordinator_server_now_ms(server), waits);
    if (text.len == 0 && agent->member && coordinator_is_spare(agent->member)) {
        text = coordinator_spare_of(c, waits);
    }
    const struct coordinator_message heard = {
        .kind = COORDINATOR_HEARD,
        .stamp_ms = (uint64_t)coordinator_server_now_ms(server),
        .has_host = coordinator_has_host(server->coordinator),
        .lease_ms = (uint64_t)(agent->member ? coordinator_lease_ms(c, agent->member) : server->silence_ms),
        .received_count = agent->resend.received_count,
        .text = text};
    agent->granted_ms = coordinator_server_now_ms(server);
    coordinator_silence_told(agent, heard.lease_ms);
    send_message(server, agent, &heard);
}

/* How the job does. False: it has been told why it is not told. */
static bool answer_status_client(struct coordinator_server *server, struct agent *agent) {
    int code = coordinator_status_clients_serve(&server->status_clients, &agent->status_client, server->coordinator,
                                                &server->history, coordinator_server_now_ms(server), send_message,
                                                server, agent);
    if (code != 0) {
        const struct coordinator_message message = {
            .kind = COORDINATOR_REFUSED, .status = code, .text = kv_slice_text(muster_detail())};
        send_message(server, agent, &message);
    }
    return code == 0;
}

/* False: the connection is to end, in good order. */
static bool handle(struct coordinator_server *server, struct agent *agent, struct coordinator_message *message) {
    switch (message->kind) {
    case COORDINATOR_JOIN:
        return join(server, agent, &message->node);
    case COORDINATOR_FAILED:
        fail(server, agent, message);
        return true;
    case COORDINATOR_LEAVE:
        leave(server, agent, message->text);
        return false;
    case COORDINATOR_DONE:
        coordinator_done(server->coordinator, agent->member, coordinator_server_now_ms(server));
        return true;
    case COORDINATOR_PREEMPT:
        coordinator_preempt(server->coordinator, agent->member, message->grace_ms, message->text,
                            coordinator_server_now_ms(server));
        return true;
    case COORDINATOR_PROBE:
        return answer_probe(server, agent, message->node.run_id);
    case COORDINATOR_STATUS:
        return answer_status_client(server, agent);
    case COORDINATOR_ALIVE:
        coordinator_silence_acknowledged(agent, message->lease_ms);
        answer_alive(server, agent);
        return true;
    case COORDINATOR_RESUME:
        return resume(server, agent, message);
    case COORDINATOR_ENGINE:
        coordinator_note_engine(server->coordinator, agent->member, message->text);
        return true;
    case COORDINATOR_ACCEPT:
        coordinator_accepted(server->coordinator, agent->member, message->round, coordinator_server_now_ms(server));
        return true;
    default:
        assert(message->kind == COORDINATOR_CLOSE); /* is_expected() lets no other pass */
        coordinator_close(server->coordinator, agent->member, message->text, message->has_failed);
        return true;
    }
}

/* What a member may say, and what comes before. False with the detail. */
static bool is_expected(const struct agent *agent, enum coordinator_kind kind) {
    switch (kind) {
    case COORDINATOR_PROBE:
        return true;
    case COORDINATOR_RESUME:
        if (agent->member) {
            (void)status_fail(MUSTER_EPROTOCOL, "RESUME from a node that has joined: connect anew");
            return false;
        }
        /* fall through */
    case COORDINATOR_JOIN:
        if (agent->status_client.is_counted) {
            (void)status_fail(MUSTER_EPROTOCOL, "%s after a STATUS: connect anew", coordinator_kind_name(kind));
        }
        return !agent->status_client.is_counted;
    case COORDINATOR_STATUS:
        if (agent->member) {
            (void)status_fail(MUSTER_EPROTOCOL, "STATUS from a node that has joined: ask over another connection");
        }
        return !agent->member;
    case COORDINATOR_FAILED:
    case COORDINATOR_LEAVE:
    case COORDINATOR_DONE:
    case COORDINATOR_CLOSE:
    case COORDINATOR_PREEMPT:
    case COORDINATOR_ALIVE:
    case COORDINATOR_ENGINE:
    case COORDINATOR_ACCEPT:
        if (!agent->member) {
            (void)status_fail(MUSTER_EPROTOCOL, "%s before a JOIN", coordinator_kind_name(kind));
        }
        return agent->member != NULL;
    default:
        (void)status_fail(MUSTER_EPROTOCOL, "%s is not served here", coordinator_kind_name(kind));
        return false;
    }
}

/* When its agent certainly was here. With one endpoint whatever comes shows that it lives. With several, what comes may
 * have been on its way for long, while the agent has gone elsewhere: what it repeats of this side's clock counts. */
static int64_t here_since_ms(const struct coordinator_server *server, const struct agent *agent,
                             const struct coordinator_message *message) {
    int64_t now = coordinator_server_awake_ms(server);
    if (!server->has_rivals || !agent->member) {
        return now;
    }
    bool repeats = message->kind == COORDINATOR_ALIVE || message->kind == COORDINATOR_ACCEPT;
    int64_t stamp_ms = message->stamp_ms < (uint64_t)now ? (int64_t)message->stamp_ms : now;
    return repeats ? stamp_ms : 0;
}

static size_t serve_message(struct coordinator_server *server, struct agent *agent, struct coordinator_message *message,
                            size_t used) {
    if (!is_expected(agent, message->kind)) {
        return refuse(server, agent);
    }
    if (message->kind == COORDINATOR_ALIVE && !coordinator_resend_confirm(&agent->resend, message->received_count)) {
        (void)status_fail(MUSTER_EPROTOCOL, "ALIVE: it confirms messages that were never sent");
        return refuse(server, agent);
    }
    if (message->kind != COORDINATOR_PROBE) {
        agent->granted_ms = agent->member ? agent->granted_ms : coordinator_server_now_ms(server);
        coordinator_silence_heard(server, agent);
        no_stranger(server, agent, here_since_ms(server, agent, message));
        kv_guest_settle(agent->connection);
    }
    agent->resend.received_count += coordinator_resend_counts(message->kind);
    if (!handle(server, agent, message)) {
        kv_guest_end(agent->connection);
    }
    return used;
}

/* Has its agent shown that it knows the secret? */
static bool is_proven(const struct coordinator_server *server, const struct agent *agent) {
    return server->gate.secret && agent->line.stage == COORDINATOR_LINE_OPEN;
}

static size_t serve_bytes(struct coordinator_server *server, struct agent *agent, const uint8_t *bytes, size_t len) {
    struct coordinator_message message;
    size_t used = 0;
    buf_clear(&server->frame);
    switch (coordinator_line_take(&agent->line, &server->gate, bytes, len, &server->frame, &message, &used)) {
    case COORDINATOR_LINE_MORE:
        return 0;
    case COORDINATOR_LINE_STEP:
        send_frame(server, agent);
        if (!is_proven(server, agent)) {
            return used;
        }
        kv_guest_settle(agent->connection);
        return kv_guest_admit(agent->connection, false) ? SIZE_MAX : used;
    case COORDINATOR_LINE_MESSAGE:
        return serve_message(server, agent, &message, used);
    case COORDINATOR_LINE_REFUSED:
        return refuse(server, agent);
    case COORDINATOR_LINE_BROKEN:
        break;
    }
    return SIZE_MAX;
}

/* Bytes of a connection in TLS: none are left to the store, OpenSSL keeps what is not a whole record. */
static size_t serve_tls(struct coordinator_server *server, struct agent *agent, const uint8_t *bytes, size_t len) {
    buf_clear(&server->wire);
    int rc = tls_stream_take(agent->tls, bytes, len, &agent->plain, &server->wire);
    if (server->wire.len > 0) { /* also after a failure, which it should hear of */
        kv_guest_send(agent->connection, buf_bytes(&server->wire), server->wire.len);
    }
    for (size_t used = 1; rc == MUSTER_OK && used > 0 && agent->plain.len > 0;) {
        if (kv_guest_is_over(agent->connection)) {
            return len;
        }
        used = serve_bytes(server, agent, buf_bytes(&agent->plain), agent->plain.len);
        if (used == SIZE_MAX) {
            return SIZE_MAX;
        }
        buf_consume(&agent->plain, used);
    }
    if (agent->plain.len == 0) {
        buf_done(&agent->plain);
    }
    return rc ? SIZE_MAX : len;
}

/* It begins with TLS. False with the detail. */
static bool begin_tls(struct coordinator_server *server, struct agent *agent) {
    if (server->tls) {
        agent->line.is_tls = true;
        return tls_stream_create(server->tls, false, &agent->tls) == MUSTER_OK;
    }
    (void)status_fail(MUSTER_EPROTOCOL,
                      "the node that serves the rendezvous does not use TLS, and this one does: start "
                      "all nodes with tls_cert, tls_key and tls_ca, or none");
    return false;
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
    agent->deadline_ms = coordinator_server_awake_ms(server) + server->join_patience_ms;
    agent->lease_ms = agent->told_lease_ms = server->silence_ms;
    coordinator_resend_init(&agent->resend);
    buf_init(&agent->plain, TLS_PLAIN_BYTES_MAX);
    kv_guest_set(connection, agent);
    coordinator_agents_append(&server->strangers, agent);
    return agent;
}

static size_t serve(void *ctx, struct kv_connection *connection, const uint8_t *bytes, size_t len) {
    struct coordinator_server *server = ctx;
    struct agent *agent = kv_guest_data(connection);
    bool is_new = agent == NULL;
    agent = agent ? agent : make_agent(server, connection);
    if (!agent) {
        return SIZE_MAX;
    }
    size_t used;
    if (is_new && bytes[0] == TLS_STREAM_FIRST_BYTE && !begin_tls(server, agent)) {
        used = refuse(server, agent);
    } else {
        used = agent->tls ? serve_tls(server, agent, bytes, len) : serve_bytes(server, agent, bytes, len);
    }
    note_history(server);
    set_timer(server);
    return used;
}

/* The process of its agent has ended. */
static void lose_ended(struct coordinator_server *server, struct agent *agent) {
    struct coordinator_member *member = agent->member;
    agent->member = NULL;
    coordinator_never_returns(member);
    coordinator_gone(server->coordinator, member, kv_slice_of(NULL, 0), coordinator_server_now_ms(server));
    coordinator_agents_forget(server, agent);
    note_history(server);
    set_timer(server);
}

/* No word of its end has come, and it was told that its place is kept: its session may be resumed. With several
 * endpoints an agent ends its workers as soon as its connection is reset, unless its place is held. */
static bool outlives(struct coordinator_server *server, struct agent *agent) {
    const struct kv_connection *connection = agent->connection;
    bool is_held = agent->lease_ms > server->silence_ms;
    if (!agent->member || agent->is_broken || kv_guest_peer_has_ended(connection)) {
        return false;
    }
    if (!kv_guest_peer_has_reset(connection)) {
        return is_held;
    }
    return coordinator_is_at_work(agent->member) && (is_held || !server->has_rivals) &&
           coordinator_knock_begin(server, agent, lose_ended);
}

static void detach(struct agent *agent) {
    tls_stream_free(agent->tls);
    agent->tls = NULL;
    buf_clear(&agent->plain);
    agent->connection = NULL;
}

static void on_ended(void *ctx, struct kv_connection *connection) {
    struct coordinator_server *server = ctx;
    struct agent *agent = kv_guest_data(connection);
    if (!agent) {
        return;
    }
    if (!coordinator_line_end(&agent->line)) {
        kv_guest_warn(connection);
    }
    if (outlives(server, agent)) {
        detach(agent);
        return;
    }
    coordinator_agents_take_out(agent->is_stranger ? &server->strangers : &server->joined, agent);
    if (agent->member) {
        if (kv_guest_peer_has_ended(connection)) { /* an agent that lives resets what it gives up */
            coordinator_never_returns(agent->member);
        } else if (!kv_guest_peer_has_reset(connection)) { /* the network has given up: it may not know */
            coordinator_works_until(agent->member, coordinator_silence_works_until_ms(server, agent));
        }
        coordinator_gone(server->coordinator, agent->member, kv_slice_of(NULL, 0), coordinator_server_now_ms(server));
    }
    coordinator_agents_free(server, agent);
    note_history(server);
    set_timer(server);
}

/* ---- its life ---- */

int coordinator_server_create(uv_loop_t *loop, const struct coordinator_server_options *options,
                              struct coordinator_server **out) {
    struct coordinator_settings settings = options->coordinator;
    if (random_fill(settings.hash_seed, sizeof settings.hash_seed) != 0) {
        return status_fail_errno(errno, "random seed for the coordinator");
    }
    struct coordinator_server *server = calloc(1, sizeof *server);
    char *run_id = strdup(settings.run_id);
    if (!server || !run_id) {
        free(server);
        free(run_id);
        return status_fail(MUSTER_ENOMEM, "no memory for the coordinator's server");
    }
    server->run_id = run_id;
    server->gate = (struct coordinator_gate){
        .secret = options->secret, .run_id = kv_slice_text(run_id), .requires_tls = options->tls != NULL};
    server->tls = options->tls;
    int rc = coordinator_create(&settings, send_message, server, &server->coordinator);
    if (rc != MUSTER_OK) {
        free(run_id);
        free(server);
        return rc;
    }
    server->guest = (struct kv_guest){.first_byte = (uint8_t)COORDINATOR_HELLO[0],
                                      .other_first_byte = TLS_STREAM_FIRST_BYTE,
                                      .input_max = COORDINATOR_LINE_BYTES_MAX,
                                      .serve = serve,
                                      .ended = on_ended,
                                      .ctx = server};
    server->loop = loop;
    server->timer_ms = INT64_MAX;
    server->silence_ms = settings.silence_ms;
    server->stop_ms = settings.places.stop_ms;
    server->has_rivals = settings.places.count > 1 || settings.places.is_leased;
    server->clock = options->clock;
    server->interval_ms = options->interval_ms;
    server->join_patience_ms = options->join_patience_ms ? options->join_patience_ms : COORDINATOR_JOIN_PATIENCE_MS;
    buf_init(&server->frame, COORDINATOR_LINE_BYTES_MAX);
    buf_init(&server->wire, TLS_WIRE_BYTES_MAX);
    (void)uv_timer_init(loop, &server->timer);
    server->timer.data = server;
    *out = server;
    return MUSTER_OK;
}

const struct kv_guest *coordinator_server_guest(const struct coordinator_server *server) {
    return &server->guest;
}

void coordinator_server_set_place(struct coordinator_server *server, uint32_t place) {
    coordinator_set_place(server->coordinator, place);
}

void coordinator_server_note_others(struct coordinator_server *server, bool none_serves) {
    coordinator_note_others(server->coordinator, none_serves, coordinator_server_now_ms(server));
    set_timer(server);
}

void coordinator_server_note_round(struct coordinator_server *server, uint64_t round) {
    coordinator_note_round(server->coordinator, round);
}

void coordinator_server_lead(struct coordinator_server *server, const struct coordinator_record *record) {
    coordinator_lead(server->coordinator, record, coordinator_server_now_ms(server));
    note_history(server);
    set_timer(server);
}

void coordinator_server_fenced(struct coordinator_server *server, uint64_t round) {
    coordinator_fenced(server->coordinator, round, coordinator_server_now_ms(server));
    note_history(server);
    set_timer(server);
}

bool coordinator_server_awaits_fence(const struct coordinator_server *server) {
    return coordinator_awaits_fence(server->coordinator);
}

void coordinator_server_look(const struct coordinator_server *server, struct coordinator_view *out) {
    coordinator_look(server->coordinator, out);
}

static void on_closed(uv_handle_t *handle) {
    free(handle->data);
}

static void free_agents(struct coordinator_server *server, struct agent *first) {
    for (struct agent *agent = first, *next; agent; agent = next) {
        next = agent->next;
        (void)coordinator_line_end(&agent->line);
        coordinator_agents_free(server, agent);
    }
}

void coordinator_server_close(struct coordinator_server *server) {
    if (!server) {
        return;
    }
    free_agents(server, server->strangers.first);
    free_agents(server, server->joined.first);
    coordinator_status_clients_done(&server->status_clients);
    coordinator_free(server->coordinator);
    free(server->run_id);
    buf_done(&server->frame);
    buf_done(&server->wire);
    uv_close((uv_handle_t *)&server->timer, on_closed);
}
