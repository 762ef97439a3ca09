/* The native backend's coordinator is found by a lease in etcd: between the agent's part in the job, the coordinator
 * that it serves while it leads, and the finder (lease_client.h), which decides whether it does. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/etcd/etcd_link.h"
#include "rendezvous/finder/lease_client.h"
#include "rendezvous/member/native_impl.h"
#include "rendezvous/round/store_host.h"

struct native_lease {
    struct native *native;
    struct etcd3_client *etcd;
    struct lease_client *client;
    struct coordinator_server_options server;
    struct lease_place told_at; /* where the coordinator of the last world serves */
    bool has_ended;
};

static struct native_place *place_of(const struct native *n) {
    return &n->reach.places[0];
}

static bool is_at(const struct native_place *place, const struct lease_place *other) {
    return place->endpoint.port == other->port && strcmp(place->endpoint.host, other->addr) == 0;
}

/* A node that is done hears how the others end, if somebody leads them: for that alone nobody has to. */
static void seek_leader(struct native *n) {
    if (n->lease->client && !n->lease->has_ended) {
        lease_client_seek(n->lease->client, n->part.phase != PARTICIPANT_BARRIER);
    }
}

static void seek_later(struct native *n) {
    native_finder_wake(n, native_now_ms(n) + (uint64_t)native_search_pause_ms(&n->reach.search));
}

static void own_address(const struct native *n, char out[RDZV_ADDR_MAX]) {
    etcd_link_own_address(etcd3_client_local_address(n->lease->etcd), &n->part.rdzv->options, out);
}

/* ---- serving ---- */

static void stop_serving(struct native *n) {
    struct native_reach *r = &n->reach;
    if (r->own < 0) {
        return;
    }
    r->own = -1;
    native_place_close(place_of(n));
    coordinator_server_close(r->server); /* after the store, whose guest it is */
    r->server = NULL;
    *place_of(n) = (struct native_place){.loop = n->part.rdzv->loop};
}

static void on_resolved(void *ctx, struct native_place *place) {
    struct native *n = ctx;
    (void)place;
    native_seek_resolved(n, 0);
}

/* On loopback alone if that is how others reach this node. */
static int listen_at(struct native *n, const char *addr) {
    const struct rdzv_options *o = &n->part.rdzv->options;
    const struct kv_server_options store = {.guest = coordinator_server_guest(n->reach.server),
                                            .connections_max = native_reach_connections_max(o),
                                            .is_guarded = n->secret || n->tls,
                                            .allowed = &o->conf.allow};
    struct native_place *place = place_of(n);
    struct net_addresses loopback;
    native_place_close(place);
    *place = (struct native_place){.loop = n->part.rdzv->loop, .on_resolved = on_resolved, .ctx = n};
    (void)str_copy(place->endpoint.host, sizeof place->endpoint.host, addr);
    if (net_resolve_numeric(addr, 0, &place->addresses) != MUSTER_OK) {
        place->addresses.count = 0;
    }
    (void)net_resolve_numeric("127.0.0.1", 0, &loopback);
    int rc = store_host_open(place->loop,
                             !store_host_is_loopback(addr) ? NULL
                             : place->addresses.count > 0  ? &place->addresses
                                                           : &loopback,
                             0, store, &place->server);
    if (rc == MUSTER_OK) {
        place->endpoint.port = kv_server_port(place->server);
        n->reach.own = 0;
    }
    return rc ? status_prefix(rc, "the rendezvous cannot be served") : MUSTER_OK;
}

static int serve(void *ctx, struct lease_place *out) {
    struct native *n = ctx;
    struct native_reach *r = &n->reach;
    char addr[RDZV_ADDR_MAX];
    if (r->own < 0) {
        own_address(n, addr);
        int rc = coordinator_server_create(n->part.rdzv->loop, &n->lease->server, &r->server);
        rc = rc ? rc : listen_at(n, addr);
        if (rc != MUSTER_OK) {
            coordinator_server_close(r->server);
            r->server = NULL;
            return rc;
        }
    }
    (void)str_copy(out->addr, sizeof out->addr, place_of(n)->endpoint.host);
    out->port = (uint16_t)place_of(n)->endpoint.port;
    return MUSTER_OK;
}

static void on_deposed(void *ctx) {
    struct native *n = ctx;
    struct native_reach *r = &n->reach;
    bool was_served = r->own >= 0 && r->session;
    if (was_served) {
        native_reach_drop(n);
    }
    stop_serving(n);
    if (was_served) {
        native_lost(n, status_fail(MUSTER_ECLOSED, "this node does not lead the rendezvous any more"));
    }
}

static void on_lead(void *ctx, const struct coordinator_record *record) {
    struct native *n = ctx;
    log_debug("rendezvous: this agent leads");
    coordinator_server_lead(n->reach.server, record);
    seek_leader(n);
}

static void on_fenced(void *ctx, uint64_t round) {
    struct native *n = ctx;
    if (n->reach.own >= 0) {
        coordinator_server_fenced(n->reach.server, round);
    }
}

/* ---- finding ---- */

static bool is_over(const struct native *n) {
    return n->part.phase == PARTICIPANT_OVER || n->part.phase == PARTICIPANT_DONE || n->lease->has_ended;
}

static void connect_to(struct native *n) {
    if (!n->reach.session && !is_over(n)) {
        native_reach_connect(n, 0);
    }
}

/* Nothing but its connection tells whether the coordinator that was found lives, and nothing is said on that before it
 * is open: the way there has a silence for it. */
static void watch_opening(struct native *n) {
    const struct rdzv_conf *conf = &n->part.rdzv->options.conf;
    if (n->reach.session && !n->reach.is_open) {
        native_finder_wake(n, native_now_ms(n) + rdzv_conf_silence_ms(conf));
    }
}

static void on_found(void *ctx, const struct lease_place *found) {
    struct native *n = ctx;
    struct native_place *place = place_of(n);
    struct net_endpoint endpoint = {.port = found->port};
    if (is_over(n)) {
        return;
    }
    if (n->reach.session && is_at(place, found)) {
        return; /* it is on its way there */
    }
    if (n->reach.session) {
        native_reach_drop(n);
    }
    if (!is_at(place, found)) {
        stop_serving(n);
        native_place_close(place);
        (void)str_copy(endpoint.host, sizeof endpoint.host, found->addr);
        int rc = native_place_open(place, n->part.rdzv->loop, &endpoint, on_resolved, n);
        if (rc != MUSTER_OK) {
            participant_fail(&n->part, rc);
            return;
        }
    }
    if (place->server || place->addresses.count > 0) {
        connect_to(n);
        watch_opening(n);
    } else { /* whether its name means something by then, or another one leads */
        native_place_retry(place);
        seek_later(n);
    }
}

static void on_nobody(void *ctx) {
    struct native *n = ctx;
    native_deserted(n);
    if (native_wants_coordinator(n)) {
        native_seek_later(n);
    }
}

static void on_news(void *ctx) {
    struct native *n = ctx;
    struct native_reach *r = &n->reach;
    if (r->session && !r->is_heard && native_wants_coordinator(n)) { /* it may be one that is no more */
        native_reach_drop(n);
    }
    if (!r->session && native_wants_coordinator(n)) {
        seek_leader(n);
    }
}

static void on_failed(void *ctx, int status) {
    struct native *n = ctx;
    if (native_wants_coordinator(n)) {
        participant_fail(&n->part, status);
    } else if (!is_over(n)) { /* workers that run need no etcd */
        log_warning("the rendezvous' etcd: %s", muster_detail());
    }
}

static void heard(struct native *n) {
    lease_client_joined(n->lease->client);
}

static void arrived(struct native *n) {
    const struct net_endpoint *endpoint = &place_of(n)->endpoint;
    (void)str_copy(n->lease->told_at.addr, sizeof n->lease->told_at.addr, endpoint->host);
    n->lease->told_at.port = (uint16_t)endpoint->port;
}

/* Where nobody listens any more, the last world's coordinator is dead. */
static void missed(struct native *n, int status) {
    struct native_reach *r = &n->reach;
    char why[MUSTER_DETAIL_MAX];
    (void)str_copy(why, sizeof why, muster_detail());
    if (status == MUSTER_ENOENT && is_at(place_of(n), &n->lease->told_at)) {
        r->asked_count++;
        (void)membership_declare_dead(&n->part.membership, 0, 1, r->asked_count, uv_now(n->part.rdzv->loop));
    }
    lease_client_missed(n->lease->client, status);
    (void)status_fail(status, "%s", why);
}

/* ---- the end ---- */

static void on_ended(void *ctx) {
    struct native *n = ctx;
    participant_end(&n->part);
}

static void end(struct native *n) {
    struct coordinator_view view = {.phase = COORDINATOR_FORMING};
    if (n->lease->has_ended) {
        return;
    }
    n->lease->has_ended = true;
    if (!n->lease->client) { /* it could not be started */
        participant_end(&n->part);
        return;
    }
    if (n->reach.own >= 0) {
        coordinator_server_look(n->reach.server, &view);
    }
    stop_serving(n);
    participant_wait_at_most(&n->part, n->part.rdzv->options.conf.close_timeout_ms);
    lease_client_end(n->lease->client, view.phase == COORDINATOR_OVER, on_ended);
}

/* ---- for people ---- */

static const char *describe(const struct native *n, char *out, size_t size) {
    char tried[NET_URL_MAX + ETCD3_ERROR_MAX + 8];
    (void)str_format(out, size, "etcd %s", etcd3_client_describe(n->lease->etcd, tried, sizeof tried));
    return out;
}

/* ---- the finder ---- */

static void seek(struct native *n) {
    native_search_hurry(&n->reach.search); /* its pauses are used here */
    seek_leader(n);
}

static void due(struct native *n) {
    const struct native_reach *r = &n->reach;
    if (!native_wants_coordinator(n) || r->is_open) {
        return;
    }
    if (!r->session) {
        seek_leader(n);
    } else if (native_listens_ms(n) > 0) { /* what it has said meanwhile is read first */
        native_finder_wake(n, native_now_ms(n) + native_listens_ms(n));
    } else {
        native_reach_give_up(n);
        watch_opening(n); /* by another of its addresses */
    }
}

static void resolved(struct native *n, size_t place) {
    (void)place;
    connect_to(n);
}

const struct native_finder native_lease_finder = {.has_rivals = true,
                                                  .hands_over = true,
                                                  .seek = seek,
                                                  .seek_later = seek_later,
                                                  .resolved = resolved,
                                                  .due = due,
                                                  .heard = heard,
                                                  .missed = missed,
                                                  .arrived = arrived,
                                                  .end = end,
                                                  .own_address = own_address,
                                                  .describe = describe};

/* ---- life ---- */

int native_lease_start(struct native *n, const struct coordinator_server_options *server) {
    const struct rdzv_options *o = &n->part.rdzv->options;
    const uint64_t silence_ms = rdzv_conf_silence_ms(&o->conf);
    struct native_reach *r = &n->reach;
    struct native_lease *lease = calloc(1, sizeof *lease);
    r->places = calloc(1, sizeof *r->places);
    if (!lease || !r->places) {
        free(lease);
        return status_fail(MUSTER_ENOMEM, "no memory for a rendezvous");
    }
    n->lease = lease;
    lease->native = n;
    r->places[0].loop = n->part.rdzv->loop;
    r->count = 1;
    native_search_init(&r->search, 1);
    int rc = etcd_link_open_v3(n->part.rdzv->loop, o, &lease->etcd);
    const struct lease_client_options options = {
        .client = lease->etcd,
        .prefix = o->conf.etcd.prefix,
        .run_id = o->run_id,
        .identity = {n->identity[0], n->identity[1]},
        .keep_alive_interval_ms = o->conf.keep_alive_interval_ms,
        .silence_ms = silence_ms,
        .world_ms = 2 * silence_ms + o->stop_timeout_ms,
        .first_patience_ms = o->conf.read_timeout_ms,
        .end_patience_ms = o->conf.close_timeout_ms,
        .serve = serve,
        .on_deposed = on_deposed,
        .on_lead = on_lead,
        .on_fenced = on_fenced,
        .on_found = on_found,
        .on_nobody = on_nobody,
        .on_news = on_news,
        .on_failed = on_failed,
        .ctx = n,
    };
    rc = rc ? rc : lease_client_create(n->part.rdzv->loop, &options, &lease->client);
    lease->server = *server;
    lease->server.clock = &n->part.rdzv->clock;
    lease->server.interval_ms = (int64_t)o->conf.keep_alive_interval_ms;
    lease->server.coordinator.places.is_leased = true;
    lease->server.coordinator.places.count = 1;
    lease->server.coordinator.places.silence_ms = (int64_t)silence_ms;
    lease->server.coordinator.fence = lease_client_fence;
    lease->server.coordinator.fence_ctx = lease->client;
    return rc;
}

void native_lease_stop(struct native_lease *lease) {
    if (lease) {
        lease_client_close(lease->client);
        etcd3_client_close(lease->etcd);
        free(lease);
    }
}
