/* The office's (etcd3_office.h) requests to etcd, its watch and its timer; see etcd3_leader.h. */
#include "rendezvous/etcd3_leader.h"

#include <errno.h>
#include <stdlib.h>
#include <sys/random.h>

#include "base/log.h"
#include "base/status.h"
#include "rendezvous/etcd3_office.h"

struct etcd3_leader {
    uv_loop_t *loop;
    uv_timer_t timer; /* the coordinator's */
    struct etcd3_client *client;
    struct etcd3_call *reading, *writing;
    struct etcd3_watch *watch;
    struct etcd3_office *office;
    void (*on_ended)(void *ctx, int status);
    void (*on_quiet)(void *ctx);
    void *ctx;
    bool is_over, is_closed;
};

static int64_t now_ms(const struct etcd3_leader *leader) {
    return (int64_t)uv_now(leader->loop);
}

static void end(struct etcd3_leader *leader, int status) {
    if (!leader->is_over) {
        leader->is_over = true;
        leader->on_ended(leader->ctx, status);
    }
}

/* ---- after each event ---- */

static void on_written(void *ctx, int status, const struct etcd3_reply *reply);
static void on_timer(uv_timer_t *timer);

static int flush(struct etcd3_leader *leader) {
    struct buf body;
    buf_init(&body, ETCD3_TRANSACTION_BYTES_MAX);
    int rc = etcd3_office_write(leader->office, &body);
    if (rc == MUSTER_OK && body.len > 0) {
        rc = etcd3_client_call(leader->client, "kv/txn", &body, ETCD3_PATIENT, on_written, leader, &leader->writing);
    }
    buf_done(&body);
    return rc;
}

static void set_timer(struct etcd3_leader *leader) {
    int64_t wake_ms = etcd3_office_wake_ms(leader->office);
    if (wake_ms == INT64_MAX) {
        (void)uv_timer_stop(&leader->timer);
    } else {
        int64_t delay_ms = wake_ms - now_ms(leader);
        (void)uv_timer_start(&leader->timer, on_timer, delay_ms > 0 ? (uint64_t)delay_ms : 0, 0);
    }
}

/* Of what the office has made of it: writes, sets the timer, says when there is nothing left to do. Last thing that a
 * caller does. */
static void settle(struct etcd3_leader *leader, int status) {
    status = status ? status : flush(leader);
    if (status != MUSTER_OK) {
        end(leader, status);
        return;
    }
    set_timer(leader);
    if (etcd3_office_is_quiet(leader->office)) {
        leader->on_quiet(leader->ctx);
    }
}

static void on_timer(uv_timer_t *timer) {
    struct etcd3_leader *leader = timer->data;
    if (!leader->is_over) {
        etcd3_office_tick(leader->office, now_ms(leader));
        settle(leader, MUSTER_OK);
    }
}

static void on_written(void *ctx, int status, const struct etcd3_reply *reply) {
    struct etcd3_leader *leader = ctx;
    leader->writing = NULL;
    if (status == MUSTER_OK) {
        status = etcd3_office_written(leader->office, reply->has_succeeded, now_ms(leader));
    }
    settle(leader, status == MUSTER_ENOENT ? MUSTER_ECLOSED : status);
}

/* ---- reading ---- */

static int read_all(struct etcd3_leader *leader);

static void on_events(void *ctx, const struct etcd3_reply *reply) {
    struct etcd3_leader *leader = ctx;
    settle(leader, etcd3_office_hear(leader->office, reply->pairs, reply->pair_count, now_ms(leader)));
}

static void on_gap(void *ctx) {
    struct etcd3_leader *leader = ctx;
    leader->watch = NULL;
    log_warning("etcd has compacted the history of the rendezvous: reading it anew");
    int rc = read_all(leader);
    if (rc != MUSTER_OK) {
        end(leader, rc);
    }
}

static void on_watch_failed(void *ctx, int status) {
    struct etcd3_leader *leader = ctx;
    leader->watch = NULL;
    end(leader, status);
}

static void on_all_read(void *ctx, int status, const struct etcd3_reply *reply) {
    static const struct etcd3_watch_callbacks callbacks = {
        .on_events = on_events, .on_gap = on_gap, .on_failed = on_watch_failed};
    struct etcd3_leader *leader = ctx;
    leader->reading = NULL;
    if (status == MUSTER_OK) {
        status = etcd3_office_read(leader->office, reply->pairs, reply->pair_count, now_ms(leader));
    }
    if (status == MUSTER_OK) {
        struct etcd3_range range = etcd3_office_agents(leader->office);
        status = etcd3_watch_open(leader->client, &range, 1, reply->revision + 1, &callbacks, leader, &leader->watch);
    }
    settle(leader, status);
}

static int read_all(struct etcd3_leader *leader) {
    const struct etcd3_operation read = {.kind = ETCD3_RANGE, .range = etcd3_office_agents(leader->office)};
    struct buf body;
    buf_init(&body, 2 * 2 * ETCD3_KEY_MAX);
    int rc = etcd3_wire_put_operation(&body, &read);
    if (rc == MUSTER_OK) {
        rc = etcd3_client_call(leader->client, "kv/range", &body, ETCD3_PATIENT, on_all_read, leader, &leader->reading);
    }
    buf_done(&body);
    return rc;
}

/* ---- life ---- */

static void on_refused(void *ctx, const char *identity, const char *why) {
    (void)ctx;
    log_warning("rendezvous: agent %s: %s", identity, why);
}

int etcd3_leader_create(uv_loop_t *loop, const struct etcd3_leader_options *options, struct etcd3_leader **out) {
    struct etcd3_office_settings office = options->office;
    office.on_refused = on_refused;
    uint64_t *seed = office.coordinator.hash_seed;
    if (getrandom(seed, sizeof office.coordinator.hash_seed, 0) != (ssize_t)sizeof office.coordinator.hash_seed) {
        return status_fail_errno(errno, "random seed for the coordinator");
    }
    struct etcd3_leader *leader = calloc(1, sizeof *leader);
    if (!leader) {
        return status_fail(MUSTER_ENOMEM, "no memory to lead the rendezvous");
    }
    int rc = etcd3_office_create(&office, &leader->office);
    if (rc != MUSTER_OK) {
        free(leader);
        return rc;
    }
    leader->loop = loop;
    leader->client = options->client;
    leader->on_ended = options->on_ended;
    leader->on_quiet = options->on_quiet;
    leader->ctx = options->ctx;
    (void)uv_timer_init(loop, &leader->timer);
    leader->timer.data = leader;
    rc = read_all(leader);
    if (rc != MUSTER_OK) {
        etcd3_leader_close(leader);
        return rc;
    }
    *out = leader;
    return MUSTER_OK;
}

bool etcd3_leader_is_quiet(const struct etcd3_leader *leader) {
    return etcd3_office_is_quiet(leader->office);
}

static void on_closed(uv_handle_t *handle) {
    free(handle->data);
}

void etcd3_leader_close(struct etcd3_leader *leader) {
    if (!leader || leader->is_closed) {
        return;
    }
    leader->is_over = leader->is_closed = true;
    etcd3_call_cancel(leader->reading);
    etcd3_call_cancel(leader->writing);
    etcd3_watch_close(leader->watch);
    etcd3_office_free(leader->office);
    uv_close((uv_handle_t *)&leader->timer, on_closed);
}
