/* The native backend, on the agent's side: one connection to the coordinator, which decides (coordinator.h); the agent
 * at the endpoint serves it on the port of its store.
 *
 * Every agent has a workers' store ready and says where in its JOIN, so that whoever becomes rank 0 need not be asked:
 * a round costs each node one message and one answer. */
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/coordinator_server.h"
#include "rendezvous/native_session.h"
#include "rendezvous/rdzv_impl.h"
#include "rendezvous/store_link.h"
#include "rendezvous/worker_store.h"

enum {
    MUTE_MAX = 5,   /* what ends that many connections without a word is no coordinator */
    RETRY_MS = 100, /* to connect anew, while joining */
    REPORT_FIRST_MS = 5000,
    REPORT_AGAIN_MS = 30000,
    LINGER_LOOK_MS = 2,
    LINGER_MAX_MS = 2000
};

enum phase {
    PHASE_IDLE,
    PHASE_JOINING, /* a WORLD is awaited */
    PHASE_MEMBER,  /* of a world */
    PHASE_BARRIER, /* done here; the other nodes are awaited */
    PHASE_DONE,    /* they are awaited no longer */
    PHASE_ENDING,  /* CLOSE or LEAVE has been sent */
    PHASE_OVER,
};

struct native {
    struct rdzv *rdzv;
    struct store_link *link;
    struct coordinator_server *server; /* NULL: another node serves */
    struct native_session *session;
    bool is_reached; /* the store on whose port the coordinator is */
    bool is_open;    /* the session */
    struct kv_server *worker_store;
    uint16_t store_port;
    uint64_t identity[2];
    enum phase phase;
    bool is_spare;
    bool has_failed; /* a worker in this round, and the others know */
    bool is_closed;  /* the job, as the coordinator has said */
    uint64_t last_round;
    uint32_t last_world_size;
    unsigned lingered_ms;
    uint64_t heard_ms;   /* when the coordinator was heard last */
    unsigned mute_count; /* connections in a row on which it said nothing */
};

/* ---- the end ---- */

static void end(struct native *n) {
    n->phase = PHASE_OVER;
    (void)uv_timer_stop(rdzv_timer(n->rdzv, RDZV_TIMER_WAKE));
    (void)uv_timer_stop(rdzv_timer(n->rdzv, RDZV_TIMER_REPORT));
    (void)uv_timer_stop(rdzv_timer(n->rdzv, RDZV_TIMER_SYNC));
    rdzv_tell_barrier_done(n->rdzv);
    rdzv_tell_shutdown_done(n->rdzv);
}

static void fail(struct native *n, int status) {
    rdzv_tell_failed(n->rdzv, status);
    end(n);
}

/* The others must hear how the job ended before their coordinator goes. */
static void on_linger(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    struct native *n = r->state;
    n->lingered_ms += LINGER_LOOK_MS;
    struct coordinator_view view;
    coordinator_server_look(n->server, &view);
    if (view.member_count <= 1 || n->lingered_ms >= LINGER_MAX_MS) {
        (void)uv_timer_stop(timer);
        end(n);
    }
}

static void end_or_linger(struct native *n) {
    (void)uv_timer_stop(rdzv_timer(n->rdzv, RDZV_TIMER_WAKE));
    if (n->server && n->phase == PHASE_ENDING) {
        (void)uv_timer_start(rdzv_timer(n->rdzv, RDZV_TIMER_LINGER), on_linger, 0, LINGER_LOOK_MS);
    } else {
        end(n);
    }
}

static void on_late(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    struct native *n = r->state;
    if (n->phase == PHASE_JOINING) {
        fail(n,
             status_fail(MUSTER_ETIMEOUT,
                         "no world of %u to %u nodes within join_timeout (%llu s): are enough nodes started, with the "
                         "same --rdzv-id and endpoint?",
                         r->options.min_nodes, r->options.max_nodes,
                         (unsigned long long)(r->options.conf.join_timeout_ms / 1000)));
    } else if (n->phase == PHASE_BARRIER) {
        log_warning("not all nodes have ended within %d s of this one: waiting no longer",
                    RDZV_BARRIER_TIMEOUT_MS / 1000);
        n->phase = PHASE_DONE;
        rdzv_tell_barrier_done(r);
    } else {
        end(n);
    }
}

static void wait_at_most(struct native *n, uint64_t ms) {
    (void)uv_timer_start(rdzv_timer(n->rdzv, RDZV_TIMER_WAKE), on_late, ms, 0);
}

/* ---- joining ---- */

/* Another attempt meets an empty store. Every worker of this node has ended, and no other node's uses this store before
 * this one is rank 0 of the next round. */
static int prepare_store(struct native *n) {
    bool loopback = store_link_is_loopback(n->link);
    if (!n->rdzv->options.share_store) {
        return worker_store_free_port(n->rdzv->loop, loopback, &n->store_port);
    }
    if (n->worker_store) {
        kv_server_reset(n->worker_store);
        return MUSTER_OK;
    }
    int rc = worker_store_open(n->rdzv->loop, loopback, &n->worker_store);
    if (rc == MUSTER_OK) {
        n->store_port = kv_server_port(n->worker_store);
    }
    return rc;
}

/* By which address others reach this node: what its connection to the coordinator says, unless that is loopback, which
 * says something only where everybody is on this machine. */
static void own_address(const struct native *n, char out[RDZV_ADDR_MAX]) {
    struct sockaddr_storage local;
    char text[NET_ADDRESS_TEXT_MAX];
    if (n->rdzv->options.local_addr) {
        (void)str_copy(out, RDZV_ADDR_MAX, n->rdzv->options.local_addr);
        return;
    }
    bool tells = native_session_local_address(n->session, &local) == MUSTER_OK &&
                 (store_link_is_loopback(n->link) || !net_address_is_loopback((struct sockaddr *)&local));
    if (tells) {
        (void)net_address_host((struct sockaddr *)&local, text);
    } else {
        worker_store_own_address(text);
    }
    (void)str_copy(out, RDZV_ADDR_MAX, text);
}

static int send_join(struct native *n) {
    const struct rdzv_options *o = &n->rdzv->options;
    char addr[RDZV_ADDR_MAX];
    int rc = prepare_store(n);
    if (rc != MUSTER_OK) {
        return rc;
    }
    own_address(n, addr);
    struct coordinator_message join = {
        .kind = COORDINATOR_JOIN,
        .node = {.run_id = kv_slice_text(o->run_id),
                 .addr = kv_slice_text(addr),
                 .role = kv_slice_text(o->role ? o->role : "default"),
                 .topology = kv_slice_text(o->conf.topology),
                 .pid = getpid(),
                 .identity = {n->identity[0], n->identity[1]},
                 .min_nodes = o->min_nodes,
                 .max_nodes = o->max_nodes,
                 .local_world_size = o->local_world_size,
                 .store_port = n->store_port,
                 .uses_agent_store = o->share_store,
                 .last_round = n->last_round,
                 .last_world_size = n->last_world_size},
    };
    return native_session_send(n->session, &join);
}

static void on_report(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    struct native *n = r->state;
    char tried[MUSTER_DETAIL_MAX / 2];
    if (n->is_open) {
        log_warning("still waiting for a world of %u to %u nodes in rendezvous '%s' (coordinator %s)%s",
                    r->options.min_nodes, r->options.max_nodes, r->options.run_id,
                    store_link_describe(n->link, tried, sizeof tried),
                    n->is_spare ? ": all places are taken, this node is a spare" : "");
    } else {
        log_warning("still waiting for the coordinator of rendezvous '%s' (%s)", r->options.run_id,
                    store_link_describe(n->link, tried, sizeof tried));
    }
}

/* ---- what the coordinator says ---- */

static void on_world(struct native *n, const struct coordinator_message *message) {
    const struct coordinator_world *w = &message->world;
    struct exchange_result result = {.base_global_rank = w->base_global_rank,
                                     .global_world_size = w->global_world_size,
                                     .base_role_rank = w->base_role_rank,
                                     .role_world_size = w->role_world_size,
                                     .master_port = w->master_port};
    if (n->phase != PHASE_JOINING) {
        return; /* this node is on its way out */
    }
    (void)str_format(result.master_addr, sizeof result.master_addr, "%.*s", (int)w->master_addr.len,
                     (const char *)w->master_addr.data);
    n->phase = PHASE_MEMBER;
    n->last_round = w->round;
    n->last_world_size = w->group_world_size;
    (void)uv_timer_stop(rdzv_timer(n->rdzv, RDZV_TIMER_WAKE));
    (void)uv_timer_stop(rdzv_timer(n->rdzv, RDZV_TIMER_REPORT));
    if (message->text.len > 0) {
        log_info("round %llu: %.*s", (unsigned long long)w->round, (int)message->text.len,
                 (const char *)message->text.data);
    }
    rdzv_tell_world(n->rdzv, w->round, w->group_rank, w->group_world_size, &result);
}

/* The coordinator needs nothing more of this node, and hears no CLOSE from it. */
static void end_barrier(struct native *n) {
    n->phase = PHASE_DONE;
    n->is_closed = true;
    (void)uv_timer_stop(rdzv_timer(n->rdzv, RDZV_TIMER_WAKE));
    rdzv_tell_barrier_done(n->rdzv);
}

static void on_change(struct native *n, const struct coordinator_message *message) {
    if (n->phase == PHASE_MEMBER) {
        rdzv_tell_change(n->rdzv, message->change == COORDINATOR_NODE_ARRIVED ? RDZV_NODE_ARRIVED : RDZV_NODE_LEFT,
                         "%.*s", (int)message->text.len, (const char *)message->text.data);
    } else if (n->phase == PHASE_BARRIER) {
        end_barrier(n); /* the others go on without it */
    }
}

static void on_closed(struct native *n, const struct coordinator_message *message) {
    n->is_closed = true;
    switch (n->phase) {
    case PHASE_JOINING:
        if (n->is_spare) {
            rdzv_tell_spare_released(n->rdzv);
            n->phase = PHASE_IDLE;
            break;
        }
        /* fall through */
    case PHASE_MEMBER:
        fail(n, status_fail(MUSTER_ECLOSED, "the job has ended: %.*s", (int)message->text.len,
                            (const char *)message->text.data));
        break;
    case PHASE_BARRIER:
        end_barrier(n);
        break;
    case PHASE_ENDING:
        end_or_linger(n);
        break;
    case PHASE_IDLE:
    case PHASE_DONE:
    case PHASE_OVER:
        break;
    }
}

static void on_message(void *ctx, const struct coordinator_message *message) {
    struct native *n = ctx;
    n->heard_ms = uv_now(n->rdzv->loop);
    n->mute_count = 0;
    switch (message->kind) {
    case COORDINATOR_WORLD:
        on_world(n, message);
        return;
    case COORDINATOR_CHANGE:
        on_change(n, message);
        return;
    case COORDINATOR_ALL_DONE:
        if (n->phase == PHASE_BARRIER) {
            end_barrier(n);
        }
        return;
    case COORDINATOR_CLOSED:
        on_closed(n, message);
        return;
    case COORDINATOR_REFUSED:
        if (message->status == MUSTER_ECONNECT) {
            return; /* for now: an earlier connection still stands. This one ends, and is made anew */
        }
        fail(n, status_fail(message->status, "%.*s", (int)message->text.len, (const char *)message->text.data));
        return;
    case COORDINATOR_SPARE:
        n->is_spare = true;
        (void)uv_timer_stop(rdzv_timer(n->rdzv, RDZV_TIMER_WAKE)); /* as long as the job lasts */
        log_info("all places are taken: this node is a spare, and waits for one");
        return;
    case COORDINATOR_HEARD:
        return;
    case COORDINATOR_JOIN:
    case COORDINATOR_ALIVE:
    case COORDINATOR_FAILED:
    case COORDINATOR_LEAVE:
    case COORDINATOR_DONE:
    case COORDINATOR_CLOSE:
        return; /* the codec lets none of them through */
    }
}

/* ---- reaching it ---- */

/* A message of its kind alone; false when it cannot be sent. */
static bool say(struct native *n, enum coordinator_kind kind, const char *why) {
    struct coordinator_message message = {.kind = kind, .text = kv_slice_text(why)};
    return n->is_open && native_session_send(n->session, &message) == MUSTER_OK;
}

static void on_beat(uv_timer_t *timer);

static void on_session_open(void *ctx) {
    struct native *n = ctx;
    n->is_open = true;
    n->heard_ms = uv_now(n->rdzv->loop);
    int rc = n->phase == PHASE_JOINING ? send_join(n) : MUSTER_OK;
    if (rc != MUSTER_OK) {
        fail(n, rc);
    }
}

static void on_session_lost(void *ctx, int status);

static const struct native_session_callbacks session_callbacks = {
    .on_open = on_session_open, .on_message = on_message, .on_lost = on_session_lost};

static int connect_session(struct native *n) {
    return native_session_open(n->rdzv->loop, store_link_address(n->link), &session_callbacks, n, &n->session);
}

static void drop_session(struct native *n) {
    native_session_close(n->session);
    n->session = NULL;
    n->is_open = false;
}

/* The store that serves the coordinator is there, or its loss is on its way: on_link_failed(). So this node was given
 * up by the coordinator, after a silence of this one's or of its own, and may come back. */
static void on_session_lost(void *ctx, int status) {
    struct native *n = ctx;
    drop_session(n);
    switch (n->phase) {
    case PHASE_JOINING:
        if (status == MUSTER_EPROTOCOL) {
            fail(n, status);
        } else if (++n->mute_count >= MUTE_MAX) {
            fail(n, status_prefix(MUSTER_EPROTOCOL,
                                  "the store at the endpoint has no coordinator: start all nodes, and first the one "
                                  "that hosts it, with --rdzv-backend=muster"));
        } else { /* on_beat() tries again, for as long as join_timeout says */
            (void)uv_timer_start(rdzv_timer(n->rdzv, RDZV_TIMER_SYNC), on_beat, RETRY_MS, RETRY_MS);
        }
        return;
    case PHASE_MEMBER:
        rdzv_tell_change(n->rdzv, RDZV_NODE_LEFT, "this node has lost its place: %s", muster_detail());
        n->phase = PHASE_IDLE;
        return;
    case PHASE_BARRIER:
        end_barrier(n);
        return;
    case PHASE_ENDING:
        end_or_linger(n);
        return;
    case PHASE_IDLE:
    case PHASE_DONE:
    case PHASE_OVER:
        return;
    }
}

static uint64_t silence_ms(const struct native *n) {
    const struct rdzv_conf *conf = &n->rdzv->options.conf;
    return conf->keep_alive_interval_ms * conf->keep_alive_max_attempt;
}

/* Says that this agent is alive, and looks whether the coordinator is. */
static void on_beat(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    struct native *n = r->state;
    const uint64_t interval_ms = r->options.conf.keep_alive_interval_ms;
    int rc = MUSTER_OK;
    if (!n->session) {
        rc = n->phase == PHASE_JOINING ? connect_session(n) : MUSTER_OK;
    } else if (uv_now(r->loop) - n->heard_ms >= silence_ms(n)) {
        on_session_lost(n, status_fail(MUSTER_ETIMEOUT, "the coordinator has been silent for %llu ms",
                                       (unsigned long long)silence_ms(n)));
    } else if (n->is_open) {
        (void)say(n, COORDINATOR_ALIVE, "");
        (void)uv_timer_start(timer, on_beat, interval_ms, interval_ms);
    }
    if (rc != MUSTER_OK) {
        fail(n, rc);
    }
}

static void on_link_ready(void *ctx) {
    struct native *n = ctx;
    const uint64_t interval_ms = n->rdzv->options.conf.keep_alive_interval_ms;
    if (!store_link_server(n->link)) {
        coordinator_server_close(n->server);
        n->server = NULL;
    }
    n->is_reached = true;
    int rc = connect_session(n);
    if (rc != MUSTER_OK) {
        fail(n, rc);
        return;
    }
    (void)uv_timer_start(rdzv_timer(n->rdzv, RDZV_TIMER_SYNC), on_beat, interval_ms, interval_ms);
}

static void on_link_failed(void *ctx, int status) {
    struct native *n = ctx;
    if (n->phase == PHASE_ENDING) {
        end_or_linger(n);
    } else if (n->phase != PHASE_OVER) {
        fail(n, status);
    }
}

static int start(struct rdzv *r) {
    const struct rdzv_options *o = &r->options;
    struct net_endpoint endpoint;
    struct native *n = calloc(1, sizeof *n);
    if (!n) {
        return status_fail(MUSTER_ENOMEM, "no memory for a rendezvous");
    }
    r->state = n;
    n->rdzv = r;
    if (getrandom(n->identity, sizeof n->identity, 0) != (ssize_t)sizeof n->identity) {
        return status_fail(MUSTER_ESYSTEM, "no random numbers for this agent's identity");
    }
    int rc = net_endpoint_parse(o->endpoint ? o->endpoint : "", &endpoint);
    struct coordinator_server_options server = {
        .coordinator = {.run_id = o->run_id,
                        .min_nodes = o->min_nodes,
                        .max_nodes = o->max_nodes,
                        .last_call_timeout_ms = (int64_t)o->conf.last_call_timeout_ms,
                        .last_call_given = o->conf.last_call_given},
        .silence_ms = (int64_t)(o->conf.keep_alive_interval_ms * o->conf.keep_alive_max_attempt),
    };
    rc = rc ? rc : coordinator_server_create(r->loop, &server, &n->server);
    if (rc != MUSTER_OK) {
        return rc;
    }
    struct store_link_options link = {
        .host = endpoint.host,
        .port = endpoint.port < 0 ? RDZV_DEFAULT_PORT : (uint16_t)endpoint.port,
        .is_host = o->conf.is_host,
        .timeout_ms = o->conf.read_timeout_ms,
        .silence_ms = o->conf.silence_timeout_ms,
        .guest = coordinator_server_guest(n->server),
        .on_ready = on_link_ready,
        .on_failed = on_link_failed,
        .ctx = n,
    };
    return store_link_create(r->loop, &link, &n->link);
}

/* ---- the agent's calls ---- */

static void join(struct rdzv *r) {
    struct native *n = r->state;
    n->phase = PHASE_JOINING;
    n->is_spare = n->has_failed = false;
    (void)uv_timer_start(rdzv_timer(r, RDZV_TIMER_REPORT), on_report, REPORT_FIRST_MS, REPORT_AGAIN_MS);
    wait_at_most(n, r->options.conf.join_timeout_ms);
    int rc = MUSTER_OK;
    if (n->is_open) {
        rc = send_join(n);
    } else if (n->is_reached && !n->session) { /* it was lost */
        rc = connect_session(n);
    } /* else it is on its way */
    if (rc != MUSTER_OK) {
        fail(n, rc);
    }
}

static void worker_failed(struct rdzv *r, const char *why) {
    struct native *n = r->state;
    if (n->phase == PHASE_MEMBER && !n->has_failed) {
        n->has_failed = say(n, COORDINATOR_FAILED, why);
    }
}

static void barrier(struct rdzv *r) {
    struct native *n = r->state;
    if (n->phase != PHASE_MEMBER || !say(n, COORDINATOR_DONE, "")) {
        rdzv_tell_barrier_done(r);
        return;
    }
    n->phase = PHASE_BARRIER;
    wait_at_most(n, RDZV_BARRIER_TIMEOUT_MS);
}

/* A CLOSE is answered by CLOSED, a LEAVE by the end of the connection: then it has been heard. */
static void shutdown_node(struct rdzv *r, bool close_job) {
    struct native *n = r->state;
    (void)uv_timer_stop(rdzv_timer(r, RDZV_TIMER_REPORT));
    n->phase = PHASE_ENDING;
    bool said = !n->is_closed && (close_job ? say(n, COORDINATOR_CLOSE, "a node has ended it")
                                            : say(n, COORDINATOR_LEAVE, "the node was told to end"));
    if (said) {
        wait_at_most(n, r->options.conf.close_timeout_ms);
    } else {
        end_or_linger(n);
    }
}

static void stop(struct rdzv *r) {
    struct native *n = r->state;
    if (n) {
        native_session_close(n->session);
        store_link_close(n->link);
        coordinator_server_close(n->server); /* after the store, whose guest it is */
        kv_server_close(n->worker_store);
        free(n);
    }
}

const struct rdzv_backend_table rdzv_native = {.start = start,
                                               .join = join,
                                               .worker_failed = worker_failed,
                                               .barrier = barrier,
                                               .shutdown = shutdown_node,
                                               .stop = stop};
