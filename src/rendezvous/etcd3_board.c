/* What etcd3_seat.h decides, done: requests, the watch, timers, and what the agent is told; see etcd3_board.h. */
#include "rendezvous/etcd3_board.h"

#include <stdlib.h>
#include <sys/random.h>

#include "base/log.h"
#include "base/status.h"
#include "rendezvous/etcd3_leader.h"
#include "rendezvous/etcd3_seat.h"

enum { REQUEST_BYTES_MAX = 256 * 1024 };

struct etcd3_board {
    struct etcd3_board_options options;
    uv_loop_t *loop;
    uv_timer_t beat, linger;
    unsigned open_timers;
    struct etcd3_seat seat;
    struct etcd3_call *setup, *writing, *beating, *looking; /* in flight; setup: GRANT, STAND or REVOKE */
    struct etcd3_watch *watch;
    struct etcd3_leader *leader; /* NULL: another agent leads */
    bool is_closed;
    void (*done)(void *ctx);
};

static void act(struct etcd3_board *b, unsigned actions);

static bool is_leader_quiet(const struct etcd3_board *b) {
    return !b->leader || etcd3_leader_is_quiet(b->leader);
}

/* ---- requests ---- */

static int call(struct etcd3_board *b, const char *path, const struct buf *body, uint64_t patience_ms,
                etcd3_done_cb *done, struct etcd3_call **out) {
    return etcd3_client_call(b->options.client, path, body, patience_ms, done, b, out);
}

static void on_granted(void *ctx, int status, const struct etcd3_reply *reply) {
    struct etcd3_board *b = ctx;
    uint64_t identity[2] = {0};
    b->setup = NULL;
    if (status == MUSTER_OK && getrandom(identity, sizeof identity, 0) != (ssize_t)sizeof identity) {
        status = status_fail(MUSTER_ESYSTEM, "no random numbers for this agent's identity");
    }
    act(b, etcd3_seat_granted(&b->seat, status, reply, identity));
}

static int grant(struct etcd3_board *b, struct buf *body) {
    uint64_t patience_ms = b->seat.has_reached ? ETCD3_PATIENT : b->options.first_patience_ms;
    int rc = etcd3_wire_put_grant(body, (int64_t)((b->options.silence_ms + 999) / 1000));
    return rc ? rc : call(b, "lease/grant", body, patience_ms, on_granted, &b->setup);
}

static void on_stood(void *ctx, int status, const struct etcd3_reply *reply) {
    struct etcd3_board *b = ctx;
    b->setup = NULL;
    act(b, etcd3_seat_stood(&b->seat, status, reply));
}

static int stand(struct etcd3_board *b, struct buf *body) {
    int rc = etcd3_keys_put_stand(&b->seat.keys, b->seat.lease_id, body);
    return rc ? rc : call(b, "kv/txn", body, ETCD3_PATIENT, on_stood, &b->setup);
}

static void on_beaten(void *ctx, int status, const struct etcd3_reply *reply) {
    struct etcd3_board *b = ctx;
    b->beating = NULL;
    act(b, etcd3_seat_beaten(&b->seat, status, reply));
}

static int beat(struct etcd3_board *b, struct buf *body) {
    int rc = b->beating ? MUSTER_OK : etcd3_wire_put_lease(body, b->seat.lease_id);
    return rc || b->beating ? rc : call(b, "lease/keepalive", body, ETCD3_PATIENT, on_beaten, &b->beating);
}

static void on_written(void *ctx, int status, const struct etcd3_reply *reply) {
    struct etcd3_board *b = ctx;
    (void)reply;
    b->writing = NULL;
    act(b, etcd3_seat_written(&b->seat, status, is_leader_quiet(b)));
}

static int write_letter(struct etcd3_board *b, struct buf *body) {
    struct buf value;
    buf_init(&value, ETCD3_MAIL_BYTES_MAX);
    int rc = etcd3_mail_put(&b->seat.mail, &value);
    rc = rc ? rc
            : etcd3_keys_put_letter(&b->seat.keys, kv_slice_of(buf_bytes(&value), value.len), b->seat.lease_id, body);
    buf_done(&value);
    return rc ? rc : call(b, "kv/put", body, ETCD3_PATIENT, on_written, &b->writing);
}

static void on_revoked(void *ctx, int status, const struct etcd3_reply *reply) {
    struct etcd3_board *b = ctx;
    (void)status; /* then it expires */
    (void)reply;
    b->setup = NULL;
    act(b, etcd3_seat_revoked(&b->seat));
}

static int give_back(struct etcd3_board *b, struct buf *body) {
    int rc = etcd3_wire_put_lease(body, b->seat.lease_id);
    return rc ? rc : call(b, "lease/revoke", body, b->options.end_patience_ms, on_revoked, &b->setup);
}

/* ---- what is written to it ---- */

static void hear(struct etcd3_board *b, const struct etcd3_pair *pair) {
    struct etcd3_letter letter;
    struct coordinator_message message;
    unsigned actions = etcd3_seat_hear(&b->seat, pair, &letter);
    if (actions) {
        act(b, actions);
        return;
    }
    while (letter.frames.len > 0 && !b->is_closed && etcd3_seat_next(&b->seat, &letter, &message, &actions)) {
        b->options.on_message(b->options.ctx, &message);
    }
    if (actions) {
        act(b, actions);
    }
}

static void hear_all(struct etcd3_board *b, const struct etcd3_reply *reply) {
    for (size_t i = 0; i < reply->pair_count && b->seat.state != ETCD3_SEAT_OFF && !b->is_closed; i++) {
        hear(b, &reply->pairs[i]);
    }
}

static void on_events(void *ctx, const struct etcd3_reply *reply) {
    hear_all(ctx, reply);
}

static void on_gap(void *ctx) {
    struct etcd3_board *b = ctx;
    b->watch = NULL;
    act(b, etcd3_seat_miss(&b->seat));
}

static void on_watch_failed(void *ctx, int status) {
    struct etcd3_board *b = ctx;
    b->watch = NULL;
    act(b, etcd3_seat_break(&b->seat, status));
}

static int watch(struct etcd3_board *b) {
    static const struct etcd3_watch_callbacks callbacks = {
        .on_events = on_events, .on_gap = on_gap, .on_failed = on_watch_failed};
    const struct etcd3_range ranges[] = {{.key = kv_slice_text(b->seat.keys.leader)},
                                         {.key = kv_slice_text(b->seat.keys.to)}};
    return etcd3_watch_open(b->options.client, ranges, 2, b->seat.watch_revision, &callbacks, b, &b->watch);
}

static void on_looked(void *ctx, int status, const struct etcd3_reply *reply) {
    struct etcd3_board *b = ctx;
    b->looking = NULL;
    act(b, etcd3_seat_looked(&b->seat, status, reply));
    if (status == MUSTER_OK && reply->has_succeeded) {
        hear_all(b, reply);
    }
}

static int look(struct etcd3_board *b, struct buf *body) {
    log_warning("etcd has compacted the history of the rendezvous: reading it anew");
    int rc = etcd3_keys_put_look(&b->seat.keys, b->seat.epoch, body);
    return rc ? rc : call(b, "kv/txn", body, ETCD3_PATIENT, on_looked, &b->looking);
}

/* ---- leading ---- */

static void on_leader_ended(void *ctx, int status) {
    struct etcd3_board *b = ctx;
    act(b, etcd3_seat_deposed(&b->seat, status));
}

static void on_leader_quiet(void *ctx) {
    struct etcd3_board *b = ctx;
    act(b, etcd3_seat_quiet(&b->seat));
}

static int lead(struct etcd3_board *b) {
    const struct etcd3_leader_options options = {.client = b->options.client,
                                                 .office = {.root = b->seat.keys.root,
                                                            .epoch = b->seat.epoch,
                                                            .lease_id = b->seat.lease_id,
                                                            .coordinator = b->options.coordinator},
                                                 .on_ended = on_leader_ended,
                                                 .on_quiet = on_leader_quiet,
                                                 .ctx = b};
    log_debug("rendezvous: this agent leads");
    return etcd3_leader_create(b->loop, &options, &b->leader);
}

/* ---- what is to be done ---- */

static void on_beat(uv_timer_t *timer) {
    struct etcd3_board *b = timer->data;
    struct buf body;
    buf_init(&body, REQUEST_BYTES_MAX);
    int rc = beat(b, &body);
    buf_done(&body);
    if (rc != MUSTER_OK) {
        act(b, etcd3_seat_break(&b->seat, rc));
    }
}

static void on_linger(uv_timer_t *timer) {
    struct etcd3_board *b = timer->data;
    act(b, etcd3_seat_lingered(&b->seat));
}

static void drop(struct etcd3_board *b, unsigned actions) {
    if (actions & ETCD3_SEAT_DROP_LEADER) {
        etcd3_call_cancel(b->setup);
        etcd3_call_cancel(b->writing);
        etcd3_leader_close(b->leader);
        b->setup = b->writing = NULL;
        b->leader = NULL;
    }
    if (actions & ETCD3_SEAT_DROP_LEASE) {
        etcd3_call_cancel(b->beating);
        etcd3_call_cancel(b->looking);
        etcd3_watch_close(b->watch);
        b->beating = b->looking = NULL;
        b->watch = NULL;
        (void)uv_timer_stop(&b->beat);
        (void)uv_timer_stop(&b->linger);
    }
}

static int request(struct etcd3_board *b, unsigned actions) {
    static const struct {
        unsigned action;
        int (*send)(struct etcd3_board *b, struct buf *body);
    } table[] = {{ETCD3_SEAT_GRANT, grant},
                 {ETCD3_SEAT_STAND, stand},
                 {ETCD3_SEAT_LOOK, look},
                 {ETCD3_SEAT_WRITE, write_letter},
                 {ETCD3_SEAT_REVOKE, give_back}};
    int rc = MUSTER_OK;
    for (size_t i = 0; i < sizeof table / sizeof *table && rc == MUSTER_OK; i++) {
        struct buf body;
        if (actions & table[i].action) {
            buf_init(&body, REQUEST_BYTES_MAX);
            rc = table[i].send(b, &body);
            buf_done(&body);
        }
    }
    return rc;
}

static void set_timers(struct etcd3_board *b, unsigned actions) {
    if (actions & ETCD3_SEAT_LINGER) {
        (void)uv_timer_start(&b->linger, on_linger, b->seat.linger_ms, 0);
    }
    if (actions & ETCD3_SEAT_BEAT) {
        (void)uv_timer_start(&b->beat, on_beat, b->seat.beat_ms, b->seat.beat_ms);
    }
}

static void warn(const struct etcd3_board *b) {
    log_warning("etcd has lost its data, or was given older ones: its revision is %lld, and was %lld. The rendezvous "
                "begins anew there",
                (long long)b->seat.last_revision, (long long)b->seat.former_revision);
}

/* Last thing that a caller does. */
static void act(struct etcd3_board *b, unsigned actions) {
    drop(b, actions);
    set_timers(b, actions);
    if (actions & ETCD3_SEAT_WARN) {
        warn(b);
    }
    int rc = request(b, actions);
    rc = rc == MUSTER_OK && (actions & ETCD3_SEAT_WATCH) ? watch(b) : rc;
    rc = rc == MUSTER_OK && (actions & ETCD3_SEAT_LEAD) ? lead(b) : rc;
    if (rc != MUSTER_OK) {
        act(b, etcd3_seat_break(&b->seat, rc));
    } else if (actions & ETCD3_SEAT_OPENED) {
        b->options.on_open(b->options.ctx);
    } else if (actions & ETCD3_SEAT_LOST) {
        b->options.on_lost(b->options.ctx, b->seat.lost_status);
    } else if (actions & ETCD3_SEAT_ENDED) {
        b->done(b->options.ctx);
    }
}

/* ---- the agent's calls ---- */

void etcd3_board_open(struct etcd3_board *b) {
    act(b, etcd3_seat_want(&b->seat));
}

int etcd3_board_send(struct etcd3_board *b, const struct coordinator_message *message) {
    unsigned actions;
    int rc = etcd3_seat_send(&b->seat, message, &actions);
    if (rc == MUSTER_OK) {
        act(b, actions);
    }
    return rc;
}

void etcd3_board_end(struct etcd3_board *b, void (*done)(void *ctx)) {
    b->done = done;
    act(b, etcd3_seat_end(&b->seat, is_leader_quiet(b)));
}

const uint64_t *etcd3_board_identity(const struct etcd3_board *b) {
    return b->seat.identity;
}

bool etcd3_board_leads(const struct etcd3_board *b) {
    return b->leader != NULL;
}

/* ---- life ---- */

int etcd3_board_create(uv_loop_t *loop, const struct etcd3_board_options *options, struct etcd3_board **out) {
    struct etcd3_keys keys;
    int rc = etcd3_keys_init(&keys, options->prefix, options->coordinator.run_id);
    if (rc != MUSTER_OK) {
        return rc;
    }
    struct etcd3_board *b = calloc(1, sizeof *b);
    if (!b) {
        return status_fail(MUSTER_ENOMEM, "no memory for a place on etcd");
    }
    b->options = *options;
    b->loop = loop;
    etcd3_seat_init(&b->seat, &keys, options->keep_alive_interval_ms);
    (void)uv_timer_init(loop, &b->beat);
    (void)uv_timer_init(loop, &b->linger);
    b->beat.data = b->linger.data = b;
    b->open_timers = 2;
    *out = b;
    return MUSTER_OK;
}

static void on_closed(uv_handle_t *handle) {
    struct etcd3_board *b = handle->data;
    if (--b->open_timers == 0) {
        etcd3_seat_done(&b->seat);
        free(b);
    }
}

void etcd3_board_close(struct etcd3_board *b) {
    if (b && !b->is_closed) {
        b->is_closed = true;
        drop(b, ETCD3_SEAT_DROP_LEADER | ETCD3_SEAT_DROP_LEASE);
        uv_close((uv_handle_t *)&b->beat, on_closed);
        uv_close((uv_handle_t *)&b->linger, on_closed);
    }
}
