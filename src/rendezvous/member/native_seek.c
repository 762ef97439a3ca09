/* The finder for a list of endpoints. Who serves the job? Asks the native backend's endpoints, and takes the node to
 * the coordinator that is best, also from one that is not. What the answers mean is decided in native_search.c, the way
 * there is native_reach.c's. */
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "rendezvous/member/native_impl.h"

enum {
    RETRY_MS = 100,       /* to connect anew */
    RETRIES_MAX = 4,      /* of a question that was not answered but ended */
    LOOK_ROUND_MS = 1000, /* most rounds are complete by then */
};

static void ask(struct native *n, size_t place);

static uint64_t now_ms(const struct native *n) {
    return native_now_ms(n);
}

static void end_probe(struct native_probe *probe) {
    native_connection_close(probe->connection);
    probe->connection = NULL;
}

static void end_probes(struct native *n) {
    for (size_t i = 0; i < n->reach.count; i++) {
        end_probe(&n->reach.probes[i]);
    }
}

/* A coordinator that nobody serves any more has died; so has one where a new one stands by. */
static void judge_fates(struct native *n) {
    struct native_reach *r = &n->reach;
    bool is_news = false;
    for (size_t i = 0; i < r->count; i++) {
        const struct native_search_place *place = &r->search.places[i];
        bool is_gone = place->answer == NATIVE_REFUSED || place->answer == NATIVE_STANDS_BY;
        if (is_gone && !place->is_awaited) {
            is_news |= membership_declare_dead(&n->part.membership, i, r->count, r->asked_count, now_ms(n));
        }
    }
    if (is_news && r->is_open && native_wants_coordinator(n)) {
        native_opened(n); /* the one that has been joined meanwhile waits for it to stop */
    }
}

/* The session was begun before this round of asking, and does not get through. */
static bool is_stuck(const struct native_reach *r) {
    return r->session_asked < r->asked_count && !native_session_is_connected(r->session);
}

/* To the best place; from one that has been joined only if that has answered, and is not as good. */
static void choose(struct native *n) {
    struct native_reach *r = &n->reach;
    int best = native_search_best(&r->search);
    if (best < 0 || !native_wants_coordinator(n)) {
        return;
    }
    if (r->session) {
        if (!native_search_leaves(&r->search, r->at, is_stuck(r))) {
            return;
        }
        native_reach_drop(n);
    }
    native_reach_connect(n, (size_t)best);
}

static void note_mute(const struct native_probe *probe) {
    if (probe->connection && native_connection_is_connected(probe->connection)) {
        struct native_place *place = &probe->native->reach.places[probe->place];
        (void)native_place_describe_mute(NATIVE_SEARCH_PATIENCE_MS, place->answer);
    }
}

static bool are_all_strangers(const struct native_reach *r) {
    for (size_t i = 0; i < r->count; i++) {
        if (r->search.places[i].answer != NATIVE_STRANGER) {
            return false;
        }
    }
    return true;
}

/* The first endpoint that was another job's before this node came, unless its own job is served already; -1: none. Who
 * comes later is the one who is told: a job is not ended because another one was given its endpoints. */
static int find_other_job(struct native *n) {
    struct native_reach *r = &n->reach;
    int found = -1;
    bool is_served = n->part.membership.last_round > 0;
    for (size_t i = r->count; i-- > 0;) {
        struct native_probe *probe = &r->probes[i];
        is_served = is_served || ((int)i != r->own && r->search.places[i].answer == NATIVE_SERVES);
        probe->was_refused = probe->is_refused && (probe->was_refused || !r->has_asked);
        found = probe->was_refused ? (int)i : found;
    }
    r->has_asked = true;
    return is_served ? -1 : found;
}

static void act(struct native *n, unsigned result) {
    struct native_reach *r = &n->reach;
    char tried[MUSTER_DETAIL_MAX / 2];
    if (result & (NATIVE_SEARCH_DECIDE | NATIVE_SEARCH_COMPLETE)) {
        judge_fates(n);
        choose(n);
    }
    if ((result & NATIVE_SEARCH_COMPLETE) == 0) {
        native_finder_wake(n, (uint64_t)native_search_wake_ms(&r->search));
        return;
    }
    for (size_t i = 0; i < r->count; i++) {
        note_mute(&r->probes[i]);
        enum native_answer answer = r->search.places[i].answer;
        if (answer == NATIVE_SILENT || answer == NATIVE_REFUSED || answer == NATIVE_STRANGER) {
            native_place_retry(&r->places[i]);
        }
    }
    end_probes(n);
    if (r->own >= 0 && r->own_had_members) {
        struct coordinator_view view;
        coordinator_server_note_round(r->server, native_search_known_round(&r->search));
        /* Whom it has lost meanwhile may have gone to who was asked before. */
        coordinator_server_look(r->server, &view);
        coordinator_server_note_others(r->server, view.lost_count == r->own_lost_count &&
                                                      native_search_is_alone(&r->search, (size_t)r->own));
    }
    if (are_all_strangers(r) && !r->session) {
        participant_fail(&n->part, status_fail(MUSTER_EPROTOCOL, "none of the endpoints serves this job (%s)",
                                               native_reach_describe(n, tried, sizeof tried)));
        return;
    }
    int other = find_other_job(n);
    if (n->part.phase == PARTICIPANT_JOINING && other >= 0) {
        participant_fail(&n->part, status_fail(MUSTER_EINVAL,
                                               "%s; a job needs endpoints of its own, and one --rdzv-id on all nodes",
                                               native_reach_describe_place(n, (size_t)other, tried, sizeof tried)));
        return;
    }
    if (!r->session) {
        native_deserted(n);
    }
    r->ask_ms = now_ms(n) + (uint64_t)native_search_pause_ms(&r->search);
    native_finder_wake(n, r->ask_ms);
}

static void answered(struct native_probe *probe, enum native_answer answer, const struct coordinator_service *service) {
    struct native *n = probe->native;
    end_probe(probe);
    act(n, native_search_answered(&n->reach.search, probe->place, answer, service, (int64_t)now_ms(n)));
}

static void on_probe_open(void *ctx) {
    struct native_probe *probe = ctx;
    struct native *n = probe->native;
    const struct coordinator_message message = {.kind = COORDINATOR_PROBE,
                                                .node = {.run_id = kv_slice_text(n->part.rdzv->options.run_id)}};
    if (native_connection_send(probe->connection, &message) != MUSTER_OK) {
        native_place_note(&n->reach.places[probe->place]);
        answered(probe, NATIVE_SILENT, NULL);
    }
}

static void on_probe_message(void *ctx, const struct coordinator_message *message) {
    struct native_probe *probe = ctx;
    struct native_place *place = &probe->native->reach.places[probe->place];
    if (message->kind == COORDINATOR_SERVES) {
        place->answer[0] = '\0';
        answered(probe, message->service.is_serving ? NATIVE_SERVES : NATIVE_STANDS_BY, &message->service);
    } else {
        (void)status_fail(MUSTER_EPROTOCOL, "%.*s", (int)message->text.len, (const char *)message->text.data);
        native_place_note(place);
        probe->is_refused = true;
        answered(probe, NATIVE_STRANGER, NULL);
    }
}

static uint32_t all_addresses(const struct native_place *place) {
    size_t count = place->server || place->addresses.count == 0 ? 1 : place->addresses.count;
    return (uint32_t)((UINT64_C(1) << count) - 1);
}

/* Nobody serves at a place where all of its addresses say so. True: there are others to be tried. */
static bool note_address(struct native_probe *probe, int status) {
    struct native_place *place = &probe->native->reach.places[probe->place];
    uint32_t bit = UINT32_C(1) << (place->server ? 0 : place->at);
    probe->tried |= bit;
    probe->refused = status == MUSTER_ENOENT ? probe->refused | bit : probe->refused & ~bit;
    (void)native_place_next(place);
    return probe->tried != all_addresses(place);
}

static void on_probe_lost(void *ctx, int status) {
    struct native_probe *probe = ctx;
    struct native_place *place = &probe->native->reach.places[probe->place];
    native_place_note(place);
    bool has_others = (status == MUSTER_ENOENT || status == MUSTER_ECONNECT) && note_address(probe, status);
    /* A process that dies ends its connections first and its listening socket a moment later. What breaks the protocol
     * may have been changed on its way. */
    bool may_pass = status == MUSTER_ECLOSED || status == MUSTER_ECONNECT || status == MUSTER_EPROTOCOL;
    if (has_others || (may_pass && probe->retries++ < RETRIES_MAX)) {
        ask(probe->native, probe->place);
        return;
    }
    answered(probe,
             probe->refused == all_addresses(place)                   ? NATIVE_REFUSED
             : status == MUSTER_EPROTOCOL || status == MUSTER_ECLOSED ? NATIVE_STRANGER
                                                                      : NATIVE_SILENT,
             NULL);
}

static void ask(struct native *n, size_t place) {
    static const struct native_connection_callbacks callbacks = {
        .on_open = on_probe_open, .on_message = on_probe_message, .on_lost = on_probe_lost};
    struct native_probe *probe = &n->reach.probes[place];
    end_probe(probe);
    if (native_reach_open_connection(n, place, &callbacks, probe, &probe->connection) != MUSTER_OK) {
        native_place_note(&n->reach.places[place]);
        probe->connection = NULL; /* it counts as silent when the time for answers is over */
        native_place_retry(&n->reach.places[place]);
    }
}

static void ask_all(struct native *n) {
    struct native_reach *r = &n->reach;
    struct coordinator_view view = {.member_count = 0};
    if (r->own >= 0) {
        coordinator_server_look(r->server, &view);
    }
    r->own_had_members = view.member_count > 0;
    r->own_lost_count = view.lost_count;
    r->asked_count++;
    uint32_t asked = native_search_begin(&r->search, (int64_t)now_ms(n));
    for (size_t i = 0; i < r->count; i++) {
        if (asked >> i & 1) {
            r->probes[i].retries = r->probes[i].tried = r->probes[i].refused = 0;
            r->probes[i].is_refused = false;
            ask(n, i);
        }
    }
    native_finder_wake(n, (uint64_t)native_search_wake_ms(&r->search));
}

static void search(struct native *n) {
    struct native_reach *r = &n->reach;
    if (r->search.is_asking && native_listens_ms(n) > 0) {
        native_finder_wake(n, now_ms(n) + native_listens_ms(n));
    } else if (r->search.is_asking) {
        act(n, native_search_tick(&r->search, (int64_t)now_ms(n)));
    } else if (native_wants_coordinator(n)) {
        ask_all(n);
    }
}

static void seek_better(struct native *n) {
    if (!n->reach.search.is_asking) {
        native_finder_wake(n, now_ms(n) + LOOK_ROUND_MS);
    }
}

static void seek_later(struct native *n) {
    n->reach.search.is_decided = false;
    if (!n->reach.search.is_asking) {
        native_finder_wake(n, now_ms(n) + RETRY_MS);
    }
}

static void seek(struct native *n) {
    struct native_reach *r = &n->reach;
    native_search_hurry(&r->search);
    if (r->search.is_asking) {
        return;
    }
    if (r->search.is_decided && native_search_best(&r->search) >= 0 && now_ms(n) < r->ask_ms) {
        choose(n); /* what has just been answered */
    } else {
        ask_all(n);
    }
}

static void resolved(struct native *n, size_t place) {
    struct native_reach *r = &n->reach;
    struct native_probe *probe = &r->probes[place];
    if (probe->connection && native_connection_is_connected(probe->connection)) {
        return;
    }
    if (r->search.places[place].is_awaited && r->places[place].addresses.count > 0) {
        probe->tried = probe->refused = 0; /* those were other addresses */
        ask(n, place);
    }
}

const struct native_finder native_list_finder = {.has_rivals = true,
                                                 .seek = seek,
                                                 .seek_later = seek_later,
                                                 .seek_better = seek_better,
                                                 .resolved = resolved,
                                                 .due = search};
