/* etcd-v3: the native backend's rounds (coordinator.h), with an etcd cluster between the agents instead of connections
 * to one of them (etcd3_board.h). This file is the agent's side, its part in the job (participant.h) over a board.
 *
 * Every agent has a workers' store ready and says where in its JOIN, so that whoever becomes rank 0 need not be asked:
 * a round costs each node one message and one answer. Workers that run need no etcd. */
#include <stdlib.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/coordinator_settings.h"
#include "rendezvous/etcd3_board.h"
#include "rendezvous/etcd_link.h"
#include "rendezvous/participant.h"
#include "rendezvous/rdzv_impl.h"
#include "rendezvous/worker_store.h"

struct etcd3 {
    struct participant part;
    struct etcd3_client *client;
    struct etcd3_board *board;
    bool is_open; /* the board */
    struct kv_server *worker_store;
    uint16_t store_port;
    bool has_ended; /* the board was told to */
};

static struct etcd3 *of(struct participant *part) {
    return (struct etcd3 *)part; /* its first member */
}

/* ---- the end ---- */

static void on_board_ended(void *ctx) {
    struct etcd3 *e = ctx;
    participant_end(&e->part);
}

/* What was said is written, and this agent's keys go. */
static void end_board(struct etcd3 *e) {
    if (!e->has_ended) {
        e->has_ended = true;
        e->is_open = false;
        etcd3_board_end(e->board, on_board_ended);
    }
}

/* ---- for people ---- */

/* Which etcd, and what was wrong with it last. */
static const char *describe(const struct participant *p, char out[PARTICIPANT_WHERE_MAX]) {
    char tried[PARTICIPANT_WHERE_MAX - 8];
    (void)str_format(out, PARTICIPANT_WHERE_MAX, "etcd %s",
                     etcd3_client_describe(((const struct etcd3 *)p)->client, tried, sizeof tried));
    return out;
}

static bool report_unreached(const struct participant *p) {
    char where[PARTICIPANT_WHERE_MAX];
    bool is_unreached = !((const struct etcd3 *)p)->is_open;
    if (is_unreached) {
        log_warning("still waiting for a leader of rendezvous '%s' (%s)", p->rdzv->options.run_id, describe(p, where));
    }
    return is_unreached;
}

/* ---- joining ---- */

static int send_join(struct etcd3 *e) {
    const struct rdzv_options *o = &e->part.rdzv->options;
    char addr[RDZV_ADDR_MAX];
    etcd_link_own_address(etcd3_client_local_address(e->client), o, addr);
    int rc = worker_store_prepare(e->part.rdzv->loop, false, o->share_store, NULL, &e->worker_store, &e->store_port);
    if (rc != MUSTER_OK) {
        return rc;
    }
    struct coordinator_message join = {
        .kind = COORDINATOR_JOIN,
        .node = membership_introduce(&e->part.membership, o, addr, etcd3_board_identity(e->board), e->store_port)};
    join.node.is_host = etcd3_board_leads(e->board);
    join.node.stop_ms = membership_stop_left_ms(&e->part.membership, e->part.rdzv);
    return etcd3_board_send(e->board, &join);
}

static int send_message(struct participant *p, const struct coordinator_message *message) {
    const struct etcd3 *e = of(p);
    return e->is_open ? etcd3_board_send(e->board, message) : MUSTER_ECLOSED;
}

/* The lease says that this node lives; ALIVE is for the answer alone. */
static bool ask(struct participant *p) {
    return participant_say(p, COORDINATOR_ALIVE, "");
}

static void on_refused(struct participant *p, const struct coordinator_message *message) {
    p->is_closed = true; /* to this node */
    participant_fail(p, status_fail(message->status, "%.*s", (int)message->text.len, (const char *)message->text.data));
}

static void end_way(struct participant *p) {
    end_board(of(p));
}

static const struct participant_way way = {.send = send_message,
                                           .ask = ask,
                                           .describe = describe,
                                           .report_unreached = report_unreached,
                                           .let_go = participant_end_barrier,
                                           .refused = on_refused,
                                           .end = end_way};

/* ---- the board ---- */

static void on_message(void *ctx, const struct coordinator_message *message) {
    struct etcd3 *e = ctx;
    participant_heard(&e->part, message);
}

static void on_open(void *ctx) {
    struct etcd3 *e = ctx;
    e->is_open = true;
    participant_spare_no_more(&e->part); /* of the leader before */
    bool brings_stop = e->part.phase == PARTICIPANT_MEMBER && e->part.membership.stop_by_ms > 0;
    int rc = e->part.phase == PARTICIPANT_JOINING || brings_stop ? send_join(e) : MUSTER_OK;
    if (rc != MUSTER_OK) {
        participant_fail(&e->part, rc);
    }
}

/* The leader is gone, or this node was given up: either way the world is no more. */
static void on_lost(void *ctx, int status) {
    struct etcd3 *e = ctx;
    e->is_open = false;
    switch (e->part.phase) {
    case PARTICIPANT_JOINING:
        participant_spare_no_more(&e->part);
        if (status == MUSTER_ECLOSED) {
            etcd3_board_open(e->board);
        } else {
            participant_fail(&e->part, status);
        }
        return;
    case PARTICIPANT_MEMBER:
        if (status == MUSTER_ECLOSED && e->part.membership.stop_by_ms > 0) { /* the next leader is to know of it */
            etcd3_board_open(e->board);
        } else if (status == MUSTER_ECLOSED) {
            rdzv_tell_change(e->part.rdzv, RDZV_NODE_LEFT, "%s", muster_detail());
            e->part.phase = PARTICIPANT_IDLE;
        } else {
            participant_fail(&e->part, status);
        }
        return;
    case PARTICIPANT_BARRIER:
        participant_end_barrier(&e->part);
        return;
    case PARTICIPANT_ENDING:
        end_board(e);
        return;
    case PARTICIPANT_IDLE:
    case PARTICIPANT_DONE:
    case PARTICIPANT_OVER:
        return;
    }
}

static int make_board(struct etcd3 *e) {
    const struct rdzv_options *o = &e->part.rdzv->options;
    struct etcd3_board_options board = {
        .client = e->client,
        .prefix = o->conf.etcd.prefix,
        .keep_alive_interval_ms = o->conf.keep_alive_interval_ms,
        .silence_ms = o->conf.keep_alive_interval_ms * o->conf.keep_alive_max_attempt,
        .first_patience_ms = o->conf.read_timeout_ms,
        .end_patience_ms = o->conf.close_timeout_ms,
        .on_open = on_open,
        .on_message = on_message,
        .on_lost = on_lost,
        .ctx = e,
    };
    int rc = coordinator_settings_read(o, &board.coordinator);
    return rc ? rc : etcd3_board_create(e->part.rdzv->loop, &board, &e->board);
}

static int start(struct rdzv *r) {
    struct etcd3 *e = calloc(1, sizeof *e);
    if (!e) {
        return status_fail(MUSTER_ENOMEM, "no memory for a rendezvous");
    }
    r->state = e;
    participant_init(&e->part, r, &way);
    int rc = etcd_link_open_v3(r->loop, &r->options, &e->client);
    return rc ? rc : make_board(e);
}

/* ---- the agent's calls ---- */

static void join(struct rdzv *r) {
    struct etcd3 *e = r->state;
    participant_join(&e->part);
    int rc = e->is_open ? send_join(e) : MUSTER_OK;
    if (rc != MUSTER_OK) {
        participant_fail(&e->part, rc);
    } else if (!e->is_open) {
        etcd3_board_open(e->board);
    }
}

/* A CLOSE is answered by CLOSED: the others have been told. */
static void shutdown_node(struct rdzv *r, bool close_job) {
    struct etcd3 *e = r->state;
    bool said = participant_say_farewell(&e->part, close_job);
    participant_wait_at_most(&e->part, r->options.conf.close_timeout_ms);
    if (!said || !close_job) {
        end_board(e);
    }
}

static void stop(struct rdzv *r) {
    struct etcd3 *e = r->state;
    if (e) {
        etcd3_board_close(e->board);
        etcd3_client_close(e->client);
        kv_server_close(e->worker_store);
        free(e);
    }
}

const struct rdzv_backend_table rdzv_etcd3 = {.start = start,
                                              .join = join,
                                              .worker_failed = participant_worker_failed,
                                              .preempt = participant_preempt,
                                              .barrier = participant_barrier,
                                              .shutdown = shutdown_node,
                                              .is_needed_after_failure = true,
                                              .stop = stop};
