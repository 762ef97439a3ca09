/* The lease finder's requests, watch and timers; see lease_client.h. */
#include "rendezvous/finder/lease_client.h"

#include <stdlib.h>

#include "base/log.h"
#include "base/status.h"
#include "rendezvous/finder/lease.h"

#include <muster/status.h>

enum { REQUEST_BYTES_MAX = 64 * 1024, MS_PER_S = 1000, LAST_WAIT_MS = 500 };

struct lease_client {
    struct lease_client_options options;
    struct lease_keys keys;
    struct lease lease;
    uv_loop_t *loop;
    uv_timer_t beat, patience, end;
    unsigned open_timers;
    struct etcd3_call *asking; /* LOOK, EXPIRE, GRANT, STAND, CLEAN or REVOKE: one at a time */
    struct etcd3_call *granting_world, *fencing, *beating, *beating_world;
    int64_t beat_id, beat_world_id; /* the leases that are being renewed */
    struct etcd3_watch *watch;
    void (*done)(void *ctx);
    bool is_last_wait; /* of `patience` */
    bool is_closed;
};

static void act(struct lease_client *c, unsigned actions);

static int call(struct lease_client *c, const char *path, const struct buf *body, uint64_t patience_ms,
                etcd3_done_cb *done, struct etcd3_call **out) {
    return etcd3_client_call(c->options.client, path, body, patience_ms, done, c, out);
}

/* A job that has never reached etcd says so; one that runs waits. */
static uint64_t patience_ms(const struct lease_client *c) {
    return c->lease.has_reached ? ETCD3_PATIENT : c->options.first_patience_ms;
}

static int64_t ttl_s(uint64_t ms) {
    return (int64_t)((ms + MS_PER_S - 1) / MS_PER_S);
}

/* ---- finding ---- */

static void on_looked(void *ctx, int status, const struct etcd3_reply *reply) {
    struct lease_client *c = ctx;
    c->asking = NULL;
    act(c, lease_looked(&c->lease, status, reply));
}

static int look(struct lease_client *c, struct buf *body) {
    int rc = lease_keys_put_look(&c->keys, body);
    return rc ? rc : call(c, "kv/range", body, patience_ms(c), on_looked, &c->asking);
}

static void on_expired(void *ctx, int status, const struct etcd3_reply *reply) {
    struct lease_client *c = ctx;
    c->asking = NULL;
    act(c, lease_expired(&c->lease, status, reply));
}

static int expire(struct lease_client *c, struct buf *body) {
    int rc = lease_keys_put_expired(&c->keys, c->lease.epoch, body);
    return rc ? rc : call(c, "kv/txn", body, ETCD3_PATIENT, on_expired, &c->asking);
}

/* ---- standing ---- */

static void on_granted(void *ctx, int status, const struct etcd3_reply *reply) {
    struct lease_client *c = ctx;
    c->asking = NULL;
    act(c, lease_granted(&c->lease, status, reply));
}

static int grant(struct lease_client *c, struct buf *body) {
    int rc = etcd3_wire_put_grant(body, ttl_s(c->options.silence_ms));
    return rc ? rc : call(c, "lease/grant", body, patience_ms(c), on_granted, &c->asking);
}

static void on_stood(void *ctx, int status, const struct etcd3_reply *reply) {
    struct lease_client *c = ctx;
    c->asking = NULL;
    act(c, lease_stood(&c->lease, status, reply));
}

static int stand(struct lease_client *c, struct buf *body) {
    int rc = c->options.serve(c->options.ctx, &c->lease.self.place);
    rc = rc ? rc : lease_keys_put_stand(&c->keys, &c->lease.self, c->lease.lease_id, body);
    return rc ? rc : call(c, "kv/txn", body, ETCD3_PATIENT, on_stood, &c->asking);
}

/* ---- leading ---- */

static void on_world_granted(void *ctx, int status, const struct etcd3_reply *reply) {
    struct lease_client *c = ctx;
    c->granting_world = NULL;
    act(c, lease_world_granted(&c->lease, status, reply));
}

static int grant_world(struct lease_client *c, struct buf *body) {
    int rc = etcd3_wire_put_grant(body, ttl_s(c->options.world_ms));
    return rc ? rc : call(c, "lease/grant", body, ETCD3_PATIENT, on_world_granted, &c->granting_world);
}

static void on_fence_answered(void *ctx, int status, const struct etcd3_reply *reply) {
    struct lease_client *c = ctx;
    c->fencing = NULL;
    act(c, lease_fenced(&c->lease, status, reply));
}

static int fence(struct lease_client *c, struct buf *body) {
    int rc = lease_keys_put_fence(&c->keys, &c->lease.self, c->lease.epoch, c->lease.world_revision, &c->lease.writing,
                                  body);
    return rc ? rc : call(c, "kv/txn", body, ETCD3_PATIENT, on_fence_answered, &c->fencing);
}

static void on_beaten(void *ctx, int status, const struct etcd3_reply *reply) {
    struct lease_client *c = ctx;
    c->beating = NULL;
    if (c->beat_id == c->lease.lease_id) {
        act(c, lease_beaten(&c->lease, false, status, reply));
    }
}

static void on_world_beaten(void *ctx, int status, const struct etcd3_reply *reply) {
    struct lease_client *c = ctx;
    c->beating_world = NULL;
    if (c->beat_world_id == c->lease.world_lease_id) {
        act(c, lease_beaten(&c->lease, true, status, reply));
    }
}

static int renew(struct lease_client *c, int64_t lease_id, int64_t *renewed_id, etcd3_done_cb *done,
                 struct etcd3_call **out) {
    struct buf body;
    if (lease_id == 0 || *out) {
        return MUSTER_OK;
    }
    *renewed_id = lease_id;
    buf_init(&body, REQUEST_BYTES_MAX);
    int rc = etcd3_wire_put_lease(&body, lease_id);
    rc = rc ? rc : call(c, "lease/keepalive", &body, ETCD3_PATIENT, done, out);
    buf_done(&body);
    return rc;
}

static void on_beat(uv_timer_t *timer) {
    struct lease_client *c = timer->data;
    int rc = renew(c, c->lease.lease_id, &c->beat_id, on_beaten, &c->beating);
    rc = rc ? rc : renew(c, c->lease.world_lease_id, &c->beat_world_id, on_world_beaten, &c->beating_world);
    if (rc != MUSTER_OK) {
        act(c, lease_break(&c->lease, rc));
    }
}

/* What has come while this process was away is read before that is judged. */
static void on_patience(uv_timer_t *timer) {
    struct lease_client *c = timer->data;
    if (!c->is_last_wait) {
        c->is_last_wait = true;
        (void)uv_timer_start(&c->patience, on_patience, LAST_WAIT_MS, 0);
    } else if (c->lease.wants_fence) {
        log_warning("this node leads the rendezvous but has not reached etcd for %llu s: another node may lead now",
                    (unsigned long long)(c->options.silence_ms / MS_PER_S));
        act(c, lease_abdicate(&c->lease));
    }
}

/* ---- the watch ---- */

static void on_events(void *ctx, const struct etcd3_reply *reply) {
    struct lease_client *c = ctx;
    const struct etcd3_watch *watch = c->watch;
    for (size_t i = 0; i < reply->pair_count && c->watch == watch && !c->is_closed; i++) {
        act(c, lease_heard(&c->lease, &reply->pairs[i]));
    }
}

static void on_gap(void *ctx) {
    struct lease_client *c = ctx;
    c->watch = NULL;
    log_warning("etcd has compacted the history of the rendezvous: reading it anew");
    act(c, lease_gap(&c->lease));
}

static void on_watch_failed(void *ctx, int status) {
    struct lease_client *c = ctx;
    c->watch = NULL;
    act(c, lease_break(&c->lease, status));
}

static void unwatch(struct lease_client *c) {
    etcd3_watch_close(c->watch);
    c->watch = NULL;
}

static int watch(struct lease_client *c) {
    static const struct etcd3_watch_callbacks callbacks = {
        .on_events = on_events, .on_gap = on_gap, .on_failed = on_watch_failed};
    const struct etcd3_range range = {.key = kv_slice_text(c->keys.leader)};
    unwatch(c);
    return etcd3_watch_open(c->options.client, &range, 1, c->lease.watch_revision, &callbacks, c, &c->watch);
}

/* ---- the end ---- */

static void on_ended(uv_timer_t *timer) {
    struct lease_client *c = timer->data;
    c->done(c->options.ctx);
}

static void on_revoked(void *ctx, int status, const struct etcd3_reply *reply) {
    struct lease_client *c = ctx;
    (void)status; /* then it expires */
    (void)reply;
    c->asking = NULL;
    act(c, lease_revoked(&c->lease));
}

static int give_back(struct lease_client *c, struct buf *body) {
    int rc = etcd3_wire_put_lease(body, c->lease.lease_id);
    return rc ? rc : call(c, "lease/revoke", body, c->options.end_patience_ms, on_revoked, &c->asking);
}

static void on_nothing(void *ctx, int status, const struct etcd3_reply *reply) {
    (void)ctx;
    (void)status;
    (void)reply;
}

/* Whether it is heard or not: then it expires. */
static void revoke_quietly(struct lease_client *c, int64_t lease_id) {
    struct etcd3_call *unused;
    struct buf body;
    buf_init(&body, REQUEST_BYTES_MAX);
    if (lease_id != 0 && etcd3_wire_put_lease(&body, lease_id) == MUSTER_OK) {
        (void)etcd3_client_call(c->options.client, "lease/revoke", &body, c->options.end_patience_ms, on_nothing, NULL,
                                &unused);
    }
    buf_done(&body);
}

static void on_world_revoked(void *ctx, int status, const struct etcd3_reply *reply) {
    struct lease_client *c = ctx;
    (void)status;
    (void)reply;
    c->asking = NULL;
    act(c, lease_cleaned(&c->lease));
}

static void on_cleaned(void *ctx, int status, const struct etcd3_reply *reply) {
    struct lease_client *c = ctx;
    struct buf body;
    c->asking = NULL;
    buf_init(&body, REQUEST_BYTES_MAX);
    bool is_next =
        status == MUSTER_OK && c->lease.world_lease_id != 0 &&
        etcd3_wire_put_lease(&body, c->lease.world_lease_id) == MUSTER_OK &&
        call(c, "lease/revoke", &body, c->options.end_patience_ms, on_world_revoked, &c->asking) == MUSTER_OK;
    buf_done(&body);
    if (!is_next) {
        on_world_revoked(c, status, reply);
    }
}

static int clean(struct lease_client *c, struct buf *body) {
    int rc = lease_keys_put_clean(&c->keys, &c->lease.self, c->lease.epoch, body);
    return rc ? rc : call(c, "kv/txn", body, c->options.end_patience_ms, on_cleaned, &c->asking);
}

/* ---- what is to be done ---- */

static void drop(struct lease_client *c) {
    struct etcd3_call **calls[] = {&c->asking, &c->granting_world, &c->fencing, &c->beating, &c->beating_world};
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        etcd3_call_cancel(*calls[i]);
        *calls[i] = NULL;
    }
    unwatch(c);
    (void)uv_timer_stop(&c->beat);
    (void)uv_timer_stop(&c->patience);
}

static int request(struct lease_client *c, unsigned actions) {
    static const struct {
        unsigned action;
        int (*send)(struct lease_client *c, struct buf *body);
    } table[] = {{LEASE_LOOK, look},   {LEASE_EXPIRE, expire},           {LEASE_GRANT, grant},
                 {LEASE_STAND, stand}, {LEASE_GRANT_WORLD, grant_world}, {LEASE_FENCE, fence},
                 {LEASE_CLEAN, clean}, {LEASE_REVOKE, give_back}};
    int rc = MUSTER_OK;
    for (size_t i = 0; i < sizeof table / sizeof *table && rc == MUSTER_OK; i++) {
        struct buf body;
        if (actions & table[i].action) {
            buf_init(&body, REQUEST_BYTES_MAX);
            rc = table[i].send(c, &body);
            buf_done(&body);
        }
    }
    return rc == MUSTER_OK && (actions & LEASE_WATCH) ? watch(c) : rc;
}

static void warn(const struct lease_client *c) {
    log_warning("etcd has lost data or was restored from an older backup: its revision is %lld, and was %lld",
                (long long)c->lease.last_revision, (long long)c->lease.former_revision);
}

/* What the agent hears; any of it may end this client. */
static void tell(struct lease_client *c, unsigned actions) {
    const struct lease_client_options *o = &c->options;
    if (actions & LEASE_DEPOSE) {
        o->on_deposed(o->ctx);
    }
    if ((actions & LEASE_LEAD) && !c->is_closed) {
        o->on_lead(o->ctx, c->lease.has_world ? &c->lease.world.record : NULL);
    }
    if ((actions & LEASE_FENCED) && !c->is_closed) {
        (void)uv_timer_stop(&c->patience);
        o->on_fenced(o->ctx, c->lease.told.round);
    }
    if ((actions & LEASE_FOUND) && !c->is_closed) {
        o->on_found(o->ctx, &c->lease.found);
    }
    if ((actions & LEASE_NOBODY) && !c->is_closed) {
        o->on_nobody(o->ctx);
    }
    if ((actions & LEASE_NEWS) && !c->is_closed) {
        o->on_news(o->ctx);
    }
    if ((actions & LEASE_FAILED) && !c->is_closed) {
        o->on_failed(o->ctx, c->lease.failed_status);
    }
}

/* Last thing that a caller does. */
static void act(struct lease_client *c, unsigned actions) {
    if (actions & LEASE_DROP) {
        drop(c);
    }
    if (actions & LEASE_REVOKE_OLD) {
        revoke_quietly(c, c->lease.old_lease_id);
    }
    if (actions & LEASE_UNWATCH) {
        unwatch(c);
    }
    if (actions & LEASE_BEAT) {
        (void)uv_timer_start(&c->beat, on_beat, c->lease.beat_ms, c->lease.beat_ms);
    }
    if (actions & LEASE_WARN) {
        warn(c);
    }
    int rc = request(c, actions);
    if (rc != MUSTER_OK) {
        act(c, lease_break(&c->lease, rc));
        return;
    }
    if (actions & LEASE_ENDED) { /* from the loop, as everything */
        (void)uv_timer_start(&c->end, on_ended, 0, 0);
    }
    tell(c, actions);
}

/* ---- the agent's calls ---- */

void lease_client_seek(struct lease_client *c, bool may_lead) {
    act(c, lease_seek(&c->lease, may_lead));
}

void lease_client_joined(struct lease_client *c) {
    act(c, lease_joined(&c->lease));
}

void lease_client_missed(struct lease_client *c, int status) {
    act(c, lease_missed(&c->lease, status == MUSTER_ENOENT     ? LEASE_REFUSED
                                   : status == MUSTER_ETIMEOUT ? LEASE_SILENT
                                                               : LEASE_LOST));
}

void lease_client_fence(void *client, const struct coordinator_record *record) {
    struct lease_client *c = client;
    if (!uv_is_active((const uv_handle_t *)&c->patience)) {
        c->is_last_wait = false;
        (void)uv_timer_start(&c->patience, on_patience, c->options.silence_ms, 0);
    }
    act(c, lease_fence(&c->lease, record));
}

bool lease_client_leads(const struct lease_client *c) {
    return c->lease.state == LEASE_LEADING;
}

void lease_client_end(struct lease_client *c, bool is_over, void (*done)(void *ctx)) {
    c->done = done;
    act(c, lease_end(&c->lease, is_over));
}

/* ---- life ---- */

int lease_client_create(uv_loop_t *loop, const struct lease_client_options *options, struct lease_client **out) {
    struct lease_client *c = calloc(1, sizeof *c);
    if (!c) {
        return status_fail(MUSTER_ENOMEM, "no memory for a lease in etcd");
    }
    int rc = lease_keys_init(&c->keys, options->prefix, options->run_id);
    if (rc != MUSTER_OK) {
        free(c);
        return rc;
    }
    c->options = *options;
    c->loop = loop;
    lease_init(&c->lease, options->identity, options->keep_alive_interval_ms);
    uv_timer_t *timers[] = {&c->beat, &c->patience, &c->end};
    for (size_t i = 0; i < sizeof timers / sizeof *timers; i++) {
        (void)uv_timer_init(loop, timers[i]);
        timers[i]->data = c;
        c->open_timers++;
    }
    *out = c;
    return MUSTER_OK;
}

static void on_closed(uv_handle_t *handle) {
    struct lease_client *c = handle->data;
    if (--c->open_timers == 0) {
        free(c);
    }
}

void lease_client_close(struct lease_client *c) {
    if (c && !c->is_closed) {
        c->is_closed = true;
        drop(c);
        uv_close((uv_handle_t *)&c->beat, on_closed);
        uv_close((uv_handle_t *)&c->patience, on_closed);
        uv_close((uv_handle_t *)&c->end, on_closed);
    }
}
