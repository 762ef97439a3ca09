/* The native backend's way to the coordinator: which endpoints there are, which of them this agent serves, the
 * connection to the coordinator, and whether that lives. Where to go is found by native_seek.c. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/member/native_impl.h"

enum {
    FIRST_ALIVE_MS = 2000, /* a coordinator answers it: what does not is none. Most worlds are told by then */
    PLACE_TEXT = 320,      /* a place and what came of it */
    MARGIN_PART = 8,       /* of the lease: by then workers that must stop are dead, on a busy machine as well */
};

/* With several endpoints the others go on without this node when its lease is over, however long it was away. */
uint64_t native_now_ms(const struct native *n) {
    struct rdzv *rdzv = n->part.rdzv;
    return native_has_rivals(n) ? uv_now(rdzv->loop) : (uint64_t)rdzv_now_ms(rdzv);
}

static uint64_t now_ms(const struct native *n) {
    return native_now_ms(n);
}

uint64_t native_listens_ms(const struct native *n) {
    return (uint64_t)rdzv_left_ms(n->part.rdzv, INT64_MIN);
}

bool native_has_rivals(const struct native *n) {
    return n->finder->has_rivals;
}

bool native_reach_is_loopback(const struct native *n) {
    for (size_t i = 0; i < n->reach.count; i++) {
        if (!native_place_is_loopback(&n->reach.places[i])) {
            return false;
        }
    }
    return true;
}

static uint64_t silence_ms(const struct native *n) {
    return rdzv_conf_silence_ms(&n->part.rdzv->options.conf);
}

/* How long this node may go on after the last ALIVE that was answered: not for as long as the coordinator keeps its
 * place, since that may go to another node when the time is over. */
static uint64_t lease_length_ms(const struct native *n) {
    bool is_over = n->part.phase == PARTICIPANT_BARRIER && n->part.is_host_done; /* nobody minds its end */
    bool has_place = n->reach.lease_ms > 0 && n->part.phase != PARTICIPANT_JOINING && !is_over;
    uint64_t lease_ms = has_place ? n->reach.lease_ms : silence_ms(n);
    return lease_ms - lease_ms / MARGIN_PART;
}

/* The coordinator counts the lease in time that passes for it, whether or not this node is away. */
static uint64_t lease_now_ms(const struct native *n) {
    return uv_now(n->part.rdzv->loop);
}

bool native_reach_is_held(const struct native *n) {
    return n->reach.lease_ms > silence_ms(n);
}

/* 0: the coordinator is silent; else after how long to ask again. After an absence it has an interval at least: its
 * answer, or its end, may be there to be read, and it may have been away as well. */
static uint64_t lease_left_ms(const struct native *n) {
    uint64_t end_ms = n->reach.answered_ms + lease_length_ms(n), now = lease_now_ms(n);
    uint64_t left_ms = end_ms > now ? end_ms - now : 0, listens_ms = native_listens_ms(n);
    left_ms = left_ms > listens_ms ? left_ms : listens_ms;
    return (uint64_t)absence_ask_ms((int64_t)left_ms, (int64_t)n->part.rdzv->options.conf.keep_alive_interval_ms);
}

/* Soon enough for an answer before the lease ends, also where one missed beat is to be the end. Of several endpoints
 * the coordinator hears with the next ALIVE that its answer to this one has come: with twice as many it can wait as
 * long for one as with one endpoint. */
static uint64_t beat_interval_ms(const struct native *n) {
    uint64_t half_ms = silence_ms(n) / 2, interval_ms = n->part.rdzv->options.conf.keep_alive_interval_ms;
    return (interval_ms < half_ms ? interval_ms : half_ms) / (native_has_rivals(n) ? 2 : 1);
}

/* ---- serving ---- */

static bool are_all_resolved(const struct native *n) {
    for (size_t i = 0; i < n->reach.count; i++) {
        if (n->reach.places[i].addresses.count == 0) {
            return false;
        }
    }
    return true;
}

/* Two of each node, spares and those who come back included. */
size_t native_reach_connections_max(const struct rdzv_options *o) {
    size_t wanted = (size_t)o->max_nodes * 4;
    return wanted > KV_CONNECTIONS_DEFAULT ? wanted : KV_CONNECTIONS_DEFAULT;
}

/* Agents of the other backends find a store, and no job of theirs. */
static void on_store_change(void *ctx, uint64_t connection, struct kv_slice key, struct kv_slice old_value,
                            struct kv_slice new_value) {
    struct native *n = ctx;
    (void)old_value;
    rdzv_store_heard(n->part.rdzv, connection, key, new_value);
}

static void leave_card(struct native *n, struct kv_server *server) {
    char card[VISITORS_CARD_SIZE];
    (void)kv_server_set(server, kv_slice_text("/" VISITORS_KEY_HOST),
                        kv_slice_text(visitors_card(&n->part.rdzv->visitors, card)));
}

/* This agent serves at most one place: the first that is its machine's, and free. */
static int host_place(struct native *n, size_t i) {
    struct native_reach *r = &n->reach;
    const int is_host = n->part.rdzv->options.conf.is_host;
    bool must = is_host == 1 && r->count == 1;
    if (r->own >= 0 || is_host == 0) {
        return MUSTER_OK;
    }
    /* Agents come to the guest, workers use other stores: with a secret or TLS nobody else has any business here. */
    const struct kv_server_options store = {.on_change = on_store_change,
                                            .ctx = n,
                                            .guest = coordinator_server_guest(r->server),
                                            .connections_max = native_reach_connections_max(&n->part.rdzv->options),
                                            .is_guarded = n->secret || n->tls,
                                            .allowed = &n->part.rdzv->options.conf.allow};
    int rc = native_place_host(&r->places[i], &store, must);
    if (rc == MUSTER_OK) {
        r->own = (int)i;
        leave_card(n, r->places[i].server);
        native_place_hint(&r->places[i]);
        coordinator_server_set_place(r->server, (uint32_t)i);
    } else if (!must && rc == MUSTER_ESYSTEM && errno == EADDRINUSE) {
        r->may_host_later = r->count == 1;
        rc = MUSTER_OK;
    } else if (!must && rc == MUSTER_ENOENT) {
        rc = MUSTER_OK;
    }
    return rc;
}

static void host_no_more(struct native_reach *r) {
    coordinator_server_close(r->server);
    r->server = NULL;
    r->may_host_later = false;
}

void native_reach_host_later(struct native *n) {
    if (n->reach.may_host_later && n->reach.own < 0) {
        (void)host_place(n, 0); /* what is in the way, the wait for the coordinator bounds */
    }
}

static int check_hosting(struct native *n) {
    struct native_reach *r = &n->reach;
    if (r->own >= 0 || r->may_host_later || !are_all_resolved(n)) {
        return MUSTER_OK;
    }
    if (r->places[0].endpoint.port == 0) {
        return status_fail(MUSTER_EINVAL,
                           "the rendezvous endpoint %s needs a port: only the node that hosts the store can let the "
                           "kernel choose one",
                           r->places[0].endpoint.host);
    }
    host_no_more(r);
    if (n->part.rdzv->options.conf.is_host == 1) {
        return status_fail(MUSTER_EINVAL, "is_host=1, but none of the endpoints is this machine's and free: list its "
                                          "address, or let others serve");
    }
    return MUSTER_OK;
}

/* Which place is served by whom is settled when the names are known first. */
static void on_resolved(void *ctx, struct native_place *place) {
    struct native *n = ctx;
    size_t i = (size_t)(place - n->reach.places);
    if (place->has_moved) {
        membership_move(&n->part.membership, i, n->reach.count);
        native_seek_resolved(n, i);
        return;
    }
    int rc = host_place(n, i);
    rc = rc ? rc : check_hosting(n);
    if (rc != MUSTER_OK) {
        participant_fail(&n->part, rc);
    } else {
        native_seek_resolved(n, i);
    }
}

int native_reach_start(struct native *n, const struct coordinator_server_options *server) {
    struct native_reach *r = &n->reach;
    struct net_endpoint_list list;
    if (n->part.rdzv->options.backend == RDZV_BACKEND_ETCD_V3) {
        n->finder = &native_lease_finder;
        r->opened_ms = now_ms(n);
        return native_lease_start(n, server);
    }
    const char *text = n->part.rdzv->options.endpoint;
    int rc = net_endpoint_list_parse(text ? text : "", RDZV_DEFAULT_PORT, &list);
    if (rc != MUSTER_OK) {
        return rc;
    }
    n->finder = list.count > 1 ? &native_list_finder : &native_endpoint_finder;
    r->opened_ms = now_ms(n);
    r->digest = native_search_digest(&list);
    struct coordinator_server_options options = *server;
    options.coordinator.places.count = (uint32_t)list.count;
    options.coordinator.places.endpoints = r->digest;
    options.coordinator.places.silence_ms = (int64_t)silence_ms(n);
    options.clock = &n->part.rdzv->clock;
    options.interval_ms = (int64_t)n->part.rdzv->options.conf.keep_alive_interval_ms;
    rc = coordinator_server_create(n->part.rdzv->loop, &options, &r->server);
    native_search_init(&r->search, list.count);
    r->places = calloc(list.count, sizeof *r->places);
    if (rc == MUSTER_OK && !r->places) {
        rc = status_fail(MUSTER_ENOMEM, "no memory for the endpoints");
    }
    for (size_t i = 0; i < list.count && rc == MUSTER_OK; i++) {
        r->probes[i] = (struct native_probe){.native = n, .place = i};
        rc = native_place_open(&r->places[i], n->part.rdzv->loop, &list.list[i], on_resolved, n);
        /* A list is the same on all nodes: what is loopback in it is so for all. */
        r->places[i].is_default = !text || text[0] == '\0';
        r->places[i].others_come = list.count == 1 && n->part.rdzv->options.max_nodes > 1;
        r->count = i + 1;
    }
    for (size_t i = 0; i < r->count && rc == MUSTER_OK; i++) {
        rc = r->places[i].addresses.count > 0 ? host_place(n, i) : MUSTER_OK;
    }
    return rc ? rc : check_hosting(n);
}

bool native_reach_is_overdue(const struct native *n) {
    return lease_now_ms(n) >= n->reach.answered_ms + silence_ms(n) - silence_ms(n) / MARGIN_PART;
}

bool native_reach_may_be_given_up(const struct native *n) {
    return lease_now_ms(n) >= n->reach.answered_before_ms + lease_length_ms(n);
}

/* `in_office_ms`: see membership_past. */
static void note_loss(struct native *n, uint64_t in_office_ms) {
    struct native_reach *r = &n->reach;
    membership_lose(&n->part.membership, r->at, r->count, r->asked_count, in_office_ms);
}

void native_reach_drop(struct native *n) {
    if (n->reach.is_open) {
        note_loss(n, 0);
    }
    native_session_give_up(n->reach.session);
    n->reach.session = NULL;
    n->reach.is_open = false;
}

void native_reach_stop(struct native *n) {
    struct native_reach *r = &n->reach;
    native_lease_stop(n->lease);
    native_session_close(r->session);
    native_seek_end(n);
    for (size_t i = 0; i < r->count; i++) {
        native_place_close(&r->places[i]);
    }
    coordinator_server_close(r->server); /* after the store, whose guest it is */
    free(r->places);
}

/* ---- the session ---- */

static void on_beat(uv_timer_t *timer);

/* An ALIVE that is not answered for so long: is there another way? */
static uint64_t redial_ms(const struct native *n) {
    uint64_t interval_ms = n->part.rdzv->options.conf.keep_alive_interval_ms;
    uint64_t slow_ms = 2 * n->reach.trip_ms < silence_ms(n) ? 2 * n->reach.trip_ms : silence_ms(n);
    return n->reach.alive_ms + (interval_ms > slow_ms ? interval_ms : slow_ms);
}

/* Who is in a world has workers that run on meanwhile. */
static uint64_t tell_ms(const struct native *n) {
    return !native_reach_is_held(n) || n->part.phase == PARTICIPANT_JOINING ? UINT64_MAX
           : n->reach.told_ms > 0                                           ? n->reach.told_ms + RDZV_SILENCE_REPORT_MS
                                                                            : n->reach.answered_ms + silence_ms(n);
}

static void set_beat(struct native *n) {
    const struct native_reach *r = &n->reach;
    uint64_t now = lease_now_ms(n), next_ms = lease_left_ms(n), tell = tell_ms(n);
    uint64_t act_ms = r->alive_ms == 0 ? r->beat_ms : redial_ms(n) > now ? redial_ms(n) : tell;
    act_ms = tell < act_ms ? tell : act_ms;
    act_ms = act_ms > now ? act_ms - now : 0;
    (void)uv_timer_start(rdzv_timer(n->part.rdzv, RDZV_TIMER_SYNC), on_beat, act_ms < next_ms ? act_ms : next_ms, 0);
}

/* The coordinator's connection has ended, and another one is not open yet. */
static void wait_for_check(struct native *n) {
    (void)uv_timer_start(rdzv_timer(n->part.rdzv, RDZV_TIMER_SYNC), on_beat, lease_left_ms(n), 0);
}

static void on_lost(void *ctx, int status) {
    struct native *n = ctx;
    struct native_reach *r = &n->reach;
    struct native_place *place = &r->places[r->at];
    bool was_open = r->is_open;
    native_place_note(place);
    r->mute_ms = native_session_is_connected(r->session) ? r->mute_ms : 0;
    r->flaw_count += status == MUSTER_EPROTOCOL;
    r->mute_count = was_open && !r->is_heard ? r->mute_count + 1 : r->mute_count;
    native_session_close(r->session);
    r->session = NULL;
    r->is_open = false;
    if (was_open) {
        /* A process that dies ends its connections in good order. It has known then that this node was there, and
         * counted it for a silence at least. (A reset may be the network's: then it may have lived on.) */
        bool may_have_died = status == MUSTER_ECLOSED && r->has_host;
        note_loss(n, may_have_died ? r->answered_before_ms + lease_length_ms(n) : 0);
    }
    if (!was_open) {
        native_place_hint(place);
    }
    if (!was_open && !native_place_next(place)) {
        native_reach_connect(n, r->at); /* by another of its addresses */
    } else {
        native_place_retry(place);
        native_lost(n, status);
    }
}

void native_reach_give_up(struct native *n) {
    on_lost(n, status_fail(MUSTER_ECONNECT, "the coordinator has not answered in time"));
}

/* One ALIVE at a time: what HEARD answers is clear then, and by when the coordinator has heard of this node. One that
 * falls due meanwhile goes with the answer: over a slow network the next interval would be too late for the lease. */
static void send_alive(struct native *n) {
    struct native_reach *r = &n->reach;
    const struct coordinator_message alive = {
        .kind = COORDINATOR_ALIVE, .stamp_ms = r->stamp_ms, .lease_ms = r->lease_ms};
    if (r->alive_ms > 0) {
        return;
    }
    if (native_session_send(r->session, &alive) == MUSTER_OK) {
        r->alive_ms = lease_now_ms(n);
    }
    r->beat_ms = lease_now_ms(n) + beat_interval_ms(n);
}

unsigned native_reach_ask_alive(struct native *n) {
    struct native_reach *r = &n->reach;
    if (!r->is_open) {
        return 0;
    }
    if (r->alive_ms > 0) {
        r->beat_ms = lease_now_ms(n); /* the next one goes when this one is answered */
        set_beat(n);                  /* the lease may be another one now */
        return 2;
    }
    send_alive(n);
    return r->alive_ms > 0 ? 1 : 0;
}

const char *native_reach_name(const struct native *n, char out[NATIVE_REACH_NAME_SIZE]) {
    const struct net_endpoint *endpoint = &n->reach.places[n->reach.at].endpoint;
    (void)str_format(out, NATIVE_REACH_NAME_SIZE, "%s:%d", endpoint->host, (int)endpoint->port);
    return out;
}

static void tell_silence(struct native *n) {
    struct native_reach *r = &n->reach;
    char name[NATIVE_REACH_NAME_SIZE];
    uint64_t now = lease_now_ms(n);
    if (now < tell_ms(n)) {
        return;
    }
    r->told_ms = now;
    log_warning(
        "the coordinator at %s has not answered for %llu s; this node's workers run on, and are ended in %llu s "
        "unless it answers",
        native_reach_name(n, name), (unsigned long long)((now - r->answered_ms) / 1000),
        (unsigned long long)((lease_left_ms(n) + 999) / 1000));
}

static void tell_answer(struct native *n) {
    char name[NATIVE_REACH_NAME_SIZE];
    if (n->reach.told_ms > 0) {
        n->reach.told_ms = 0;
        log_warning("the coordinator at %s answers again after %llu s; the same workers run on",
                    native_reach_name(n, name), (unsigned long long)((lease_now_ms(n) - n->reach.answered_ms) / 1000));
    }
}

/* Says that this agent is alive, and looks whether the coordinator is. */
static void on_beat(uv_timer_t *timer) {
    struct rdzv *rdzv = timer->data;
    struct native *n = rdzv->state;
    struct native_reach *r = &n->reach;
    if (!r->session || !(r->is_open || r->is_checking)) {
        return;
    }
    if (lease_left_ms(n) == 0) {
        int status = status_fail(MUSTER_ETIMEOUT, "the coordinator has been silent for %llu ms",
                                 (unsigned long long)lease_length_ms(n));
        native_place_note(&r->places[r->at]);
        native_reach_drop(n);
        native_lost(n, status);
        return;
    }
    if (!r->is_open) {
        wait_for_check(n);
        return;
    }
    if (r->alive_ms == 0 && lease_now_ms(n) >= r->beat_ms) {
        send_alive(n);
    }
    if (r->alive_ms > 0 && lease_now_ms(n) >= redial_ms(n)) {
        native_session_redial(r->session);
    }
    tell_silence(n);
    set_beat(n);
}

/* With several endpoints the coordinator has gone on without a node whose connection ends, unless it holds its place.
 */
static void note_lease(struct native *n, uint64_t lease_ms) {
    n->reach.lease_ms = lease_ms;
    native_session_set_resumes(n->reach.session, !native_has_rivals(n) || native_reach_is_held(n));
}

static void on_open(void *ctx) {
    struct native *n = ctx;
    struct native_reach *r = &n->reach;
    r->is_open = r->was_open = true;
    if (r->own < 0 && r->may_host_later) {
        host_no_more(r);
    }
    r->opened_ms = now_ms(n);
    r->answered_ms = r->answered_before_ms = lease_now_ms(n);
    r->alive_ms = r->stamp_ms = r->told_ms = r->trip_ms = 0;
    note_lease(n, 0);
    r->has_host = false;
    const uint64_t interval_ms = beat_interval_ms(n);
    r->beat_ms = lease_now_ms(n) + (interval_ms < FIRST_ALIVE_MS ? interval_ms : FIRST_ALIVE_MS);
    set_beat(n);
    native_opened(n);
}

static void on_message(void *ctx, const struct coordinator_message *message) {
    struct native *n = ctx;
    struct native_reach *r = &n->reach;
    if (n->finder->heard && !r->is_heard) {
        n->finder->heard(n);
    }
    r->is_heard = true;
    r->mute_ms = r->mute_count = 0;
    if (message->kind == COORDINATOR_WORLD) {
        note_lease(n, message->world.lease_ms);
    }
    if (message->kind == COORDINATOR_HEARD) {
        tell_answer(n);
        r->trip_ms = r->alive_ms > 0 ? lease_now_ms(n) - r->alive_ms : r->trip_ms;
        r->answered_before_ms = r->answered_ms;
        r->answered_ms = r->alive_ms > 0 ? r->alive_ms : r->answered_ms;
        r->alive_ms = 0;
        note_lease(n, message->lease_ms);
        r->stamp_ms = message->stamp_ms;
        r->has_host = message->has_host;
        if (n->part.phase != PARTICIPANT_OVER) {
            set_beat(n);
        }
    }
    native_heard(n, message);
}

/* An ALIVE went over the connection before, or its answer did. */
static void on_resumed(void *ctx) {
    struct native *n = ctx;
    struct native_reach *r = &n->reach;
    r->alive_ms = 0;
    r->beat_ms = lease_now_ms(n);
    if (n->part.phase != PARTICIPANT_OVER) {
        set_beat(n);
    }
}

static struct native_connection_key key_of(const struct native *n) {
    return (struct native_connection_key){.secret = n->secret, .run_id = n->part.rdzv->options.run_id, .tls = n->tls};
}

/* NULL with the detail. */
static const struct sockaddr *address_of(const struct native *n, size_t place, struct net_address *room) {
    const struct sockaddr *address = native_place_address(&n->reach.places[place], room);
    if (!address) {
        (void)status_fail(MUSTER_ERESOLVE, "%s is not resolved", n->reach.places[place].endpoint.host);
    }
    return address;
}

int native_reach_open_connection(struct native *n, size_t place, const struct native_connection_callbacks *callbacks,
                                 void *ctx, struct native_connection **out) {
    const struct native_connection_key key = key_of(n);
    struct net_address room;
    const struct sockaddr *address = address_of(n, place, &room);
    return address ? native_connection_open(n->part.rdzv->loop, address, &key, callbacks, ctx, out) : MUSTER_ERESOLVE;
}

static int open_session(struct native *n, size_t place) {
    static const struct native_session_callbacks callbacks = {
        .of = {.on_open = on_open, .on_message = on_message, .on_lost = on_lost}, .on_resumed = on_resumed};
    const struct native_connection_key key = key_of(n);
    const struct native_session_name name = {.identity = {n->identity[0], n->identity[1]},
                                             .number = ++n->reach.session_number,
                                             .run_id = n->part.rdzv->options.run_id};
    struct net_address room;
    const struct sockaddr *address = address_of(n, place, &room);
    return address ? native_session_open(n->part.rdzv->loop, address, &key, &name, &callbacks, n, &n->reach.session)
                   : MUSTER_ERESOLVE;
}

void native_reach_connect(struct native *n, size_t place) {
    struct native_reach *r = &n->reach;
    r->at = place;
    r->session_asked = r->asked_count;
    r->is_heard = false;
    r->mute_ms = r->mute_ms > 0 ? r->mute_ms : now_ms(n);
    int rc = open_session(n, place);
    if (rc != MUSTER_OK) {
        r->session = NULL;
        participant_fail(&n->part, rc);
    }
}

void native_reach_check(struct native *n) {
    n->reach.is_checking = true;
    wait_for_check(n);
    native_reach_connect(n, n->reach.at);
}

void native_reach_proposed(struct native *n, const struct coordinator_message *message) {
    n->reach.stamp_ms = message->stamp_ms;
    n->reach.has_host = message->proposal.world.host_rank != COORDINATOR_NO_RANK;
}

void native_reach_arrived(struct native *n) {
    struct native_reach *r = &n->reach;
    r->lost = -1;
    r->flaw_count = 0;
    r->was_deserted = false;
    if (r->own >= 0) {
        coordinator_server_note_round(r->server, n->part.membership.last_round);
    }
    native_seek_arrived(n);
}

/* ---- for people ---- */

bool native_reach_is_mute(const struct native *n) {
    const struct native_reach *r = &n->reach;
    return r->session && !r->is_heard && native_session_is_connected(r->session);
}

const char *native_reach_describe_place(const struct native *n, size_t i, char *out, size_t size) {
    const struct native_reach *r = &n->reach;
    const struct native_place *place = &r->places[i];
    const char *answer = place->answer[0] != '\0' ? place->answer : "no answer yet";
    char mute[NATIVE_PLACE_ANSWER_MAX];
    if (r->at == i && native_reach_is_mute(n)) {
        answer = native_place_describe_mute(now_ms(n) - r->mute_ms, mute);
    } else if (r->is_open && r->at == i) {
        answer = "joined";
    } else if (native_has_rivals(n) && r->search.places[i].answer == NATIVE_STANDS_BY) {
        answer = "stands by";
    } else if (native_has_rivals(n) && r->search.places[i].answer == NATIVE_SERVES) {
        answer = "serves other nodes";
    } else if (native_has_rivals(n) && r->search.places[i].answer == NATIVE_SILENT) {
        answer = place->answer[0] != '\0' ? place->answer : "unreachable";
    }
    (void)snprintf(out, size, "%s:%d: %s", place->endpoint.host, (int)place->endpoint.port, answer);
    return out;
}

const char *native_reach_describe(const struct native *n, char *out, size_t size) {
    char one[PLACE_TEXT], hint[STORE_HOST_HINT_SIZE];
    size_t used = 0;
    out[0] = '\0';
    if (n->finder->describe) {
        (void)snprintf(out, size, "%s; ", n->finder->describe(n, one, sizeof one));
        used = strlen(out);
        if (n->reach.places[0].endpoint.host[0] == '\0') {
            (void)snprintf(out + used, size - used, "no node leads yet");
            return out;
        }
    }
    for (size_t i = 0; i < n->reach.count && used + 2 < size; i++) {
        (void)snprintf(out + used, size - used, "%s%s", i > 0 ? "; " : "",
                       native_reach_describe_place(n, i, one, sizeof one));
        used = strlen(out);
    }
    if (n->reach.count == 1 && native_place_describe_hint(&n->reach.places[0], hint)[0] != '\0') {
        (void)snprintf(out + used, size - used, "; %s", hint);
    }
    return out;
}
