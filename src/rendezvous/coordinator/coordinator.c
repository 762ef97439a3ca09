/* The rules of the rounds; see coordinator.h. Who comes in is decided by coordinator_join.c, how the job ends by
 * coordinator_end.c; members are kept by coordinator_member.c, ranked by coordinator_order.c, and what happened to them
 * is worded by coordinator_news.c.
 *
 * Every event first puts its member where it belongs now, then calls coordinator_settle(), which looks at the whole: is
 * the job over, can spares be let in, can the round close? */
#include "rendezvous/coordinator/coordinator.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "rendezvous/coordinator/coordinator_impl.h"

static const struct kv_slice no_text = {.len = 0};
static const struct coordinator_message all_done = {.kind = COORDINATOR_ALL_DONE};

int coordinator_create(const struct coordinator_settings *settings, coordinator_send_fn *send, void *ctx,
                       struct coordinator **out) {
    assert(settings->min_nodes > 0 && settings->min_nodes <= settings->max_nodes);
    size_t run_id_bytes = strlen(settings->run_id) + 1;
    struct coordinator *c = malloc(sizeof *c + run_id_bytes);
    if (!c) {
        return status_fail(MUSTER_ENOMEM, "no memory for the rendezvous' coordinator");
    }
    *c = (struct coordinator){.settings = *settings, .send = send, .send_ctx = ctx, .last_call_ms = INT64_MAX};
    coordinator_budget_init(&c->budget, &settings->limits);
    memcpy(c->run_id, settings->run_id, run_id_bytes);
    c->settings.run_id = c->run_id;
    hash_init(&c->members, settings->hash_seed, offsetof(struct coordinator_member, identity));
    hash_init(&c->roles, settings->hash_seed, offsetof(struct coordinator_role, name));
    *out = c;
    return MUSTER_OK;
}

void coordinator_set_place(struct coordinator *c, uint32_t place) {
    assert(place < c->settings.places.count);
    c->settings.places.place = place;
}

void coordinator_free(struct coordinator *c) {
    if (!c) {
        return;
    }
    for (size_t place = 0; place < COORDINATOR_PLACES; place++) {
        while (c->places[place].first) {
            coordinator_member_free(c, c->places[place].first);
        }
    }
    hash_done(&c->members);
    hash_done(&c->roles);
    free(c->order);
    free(c);
}

/* ---- telling ---- */

static void tell(const struct coordinator *c, void *session, enum coordinator_kind kind, struct kv_slice text) {
    struct coordinator_message message = {.kind = kind, .text = text};
    c->send(c->send_ctx, session, &message);
}

void coordinator_refuse(const struct coordinator *c, void *session, int status) {
    struct coordinator_message message = {
        .kind = COORDINATOR_REFUSED, .status = status, .text = kv_slice_text(muster_detail())};
    c->send(c->send_ctx, session, &message);
}

static void forget_news(struct coordinator *c) {
    c->news.len = 0;
    c->news.omitted_count = 0;
}

/* A world has ended before the job was over. False when that was once too often: the job is over, then. */
static bool charge(struct coordinator *c, enum coordinator_charge charge, int64_t now_ms) {
    char spent[COORDINATOR_BUDGET_TEXT_SIZE], news[COORDINATOR_TEXT_BYTES_MAX], why[COORDINATOR_TEXT_BYTES_MAX];
    c->last_charge = charge;
    if (coordinator_budget_charge(&c->budget, charge, now_ms)) {
        return true;
    }
    coordinator_budget_explain(&c->budget, charge, now_ms, spent);
    struct kv_slice last = coordinator_news_text(&c->news, news);
    (void)str_format(why, sizeof why, "its budget is spent: %s%s%.*s", spent, last.len > 0 ? "; the last: " : "",
                     (int)last.len, (const char *)last.data);
    coordinator_end_job(c, kv_slice_text(why), true);
    return false;
}

void coordinator_let_go(struct coordinator *c, struct coordinator_member *member,
                        const struct coordinator_message *message) {
    if (c->is_stopping) { /* no world follows */
        coordinator_never_returns(member);
        coordinator_quorum_lost(c, member);
    }
    coordinator_member_move(c, member, COORDINATOR_OUT);
    c->send(c->send_ctx, member->session, message);
}

void coordinator_begin_change(struct coordinator *c, enum coordinator_change change, enum coordinator_charge charged,
                              const struct coordinator_member *knows, int64_t now_ms) {
    char text[COORDINATOR_TEXT_BYTES_MAX];
    if (c->phase != COORDINATOR_RUNNING || c->is_stopping || !charge(c, charged, now_ms)) {
        return;
    }
    c->phase = COORDINATOR_FORMING;
    c->ended_ms = now_ms;
    struct coordinator_message message = {
        .kind = COORDINATOR_CHANGE, .change = change, .text = coordinator_news_text(&c->news, text)};
    for (struct coordinator_member *m = c->places[COORDINATOR_ACTIVE].first; m; m = m->next) {
        if (m != knows) {
            c->send(c->send_ctx, m->session, &message);
        }
    }
    while (c->places[COORDINATOR_DONE_WAITS].first) {
        struct coordinator_member *m = c->places[COORDINATOR_DONE_WAITS].first;
        coordinator_let_go(c, m, &message);
    }
}

/* ---- settling ---- */

/* Somebody of the world is done, all the others are done or gone, and nobody has come back from it for more. */
static bool is_done(const struct coordinator *c, int64_t now_ms) {
    return c->any_done && coordinator_count_of(c, COORDINATOR_ACTIVE) == 0 && c->returning_count == 0 &&
           coordinator_quorum_awaited(c, now_ms) == 0;
}

size_t coordinator_count_taken(const struct coordinator *c, int64_t now_ms) {
    return coordinator_count_of(c, COORDINATOR_ACTIVE) +
           (c->phase == COORDINATOR_FORMING
                ? coordinator_count_of(c, COORDINATOR_JOINED) + coordinator_quorum_awaited(c, now_ms)
                : coordinator_count_of(c, COORDINATOR_DONE_WAITS));
}

bool coordinator_has_free_place(const struct coordinator *c, int64_t now_ms) {
    return coordinator_count_taken(c, now_ms) < c->settings.max_nodes;
}

void coordinator_tell_spare(const struct coordinator *c, struct coordinator_member *member) {
    member->knows_spared = true;
    tell(c, member->session, COORDINATOR_SPARE, no_text);
}

static void tell_let_in(const struct coordinator *c, struct coordinator_member *member) {
    if (member->knows_spared) {
        member->knows_spared = false;
        tell(c, member->session, COORDINATOR_LET_IN, no_text);
    }
}

void coordinator_let_in(struct coordinator *c, struct coordinator_member *member) {
    coordinator_member_move(c, member, COORDINATOR_JOINED);
    coordinator_quorum_count(c, member);
    if (c->round > 0) {
        coordinator_news_add(&c->news, member, "has come", no_text);
    }
}

static void let_spares_in(struct coordinator *c, int64_t now_ms) {
    while (c->phase == COORDINATOR_FORMING && coordinator_count_of(c, COORDINATOR_SPARED) > 0 &&
           coordinator_has_free_place(c, now_ms)) {
        struct coordinator_member *member = c->places[COORDINATOR_SPARED].first;
        coordinator_let_in(c, member);
        tell_let_in(c, member);
    }
}

static void put_aside(struct coordinator *c, struct coordinator_member *member) {
    coordinator_member_move(c, member, COORDINATOR_SPARED);
    coordinator_tell_spare(c, member);
}

/* Newcomers were here before those whose places they took: members of a world that another coordinator has told. Where
 * there are too many of these, since another world was proposed that was to follow it, those who were in that alone
 * make room, too. */
static void make_room_for_returning(struct coordinator *c, int64_t now_ms) {
    struct coordinator_member *before = NULL;
    if (c->phase != COORDINATOR_FORMING) {
        return;
    }
    for (struct coordinator_member *m = c->places[COORDINATOR_JOINED].last;
         m && coordinator_count_taken(c, now_ms) > c->settings.max_nodes; m = before) {
        before = m->previous;
        if (!m->is_returning) {
            put_aside(c, m);
        }
    }
    for (struct coordinator_member *m = c->places[COORDINATOR_JOINED].last;
         m && coordinator_count_of(c, COORDINATOR_JOINED) > c->settings.max_nodes; m = before) {
        before = m->previous;
        if (!coordinator_quorum_is_elector(c, m)) {
            put_aside(c, m);
        }
    }
}

/* Nobody is known who could be waited for, or the user wants time for late ones. */
static bool needs_last_call(const struct coordinator *c) {
    return c->settings.last_call_given || c->returning_count == 0;
}

/* Nobody has to answer, and there are enough: all that the round can still want is time. */
static bool is_complete_but_for_time(const struct coordinator *c) {
    return c->phase == COORDINATOR_FORMING && coordinator_count_of(c, COORDINATOR_ACTIVE) == 0 &&
           coordinator_count_of(c, COORDINATOR_JOINED) >= c->settings.min_nodes;
}

/* The last call begins when there are enough, and anew if some of them go. */
static void watch_last_call(struct coordinator *c, int64_t now_ms) {
    if (c->phase != COORDINATOR_FORMING || coordinator_count_of(c, COORDINATOR_JOINED) < c->settings.min_nodes) {
        c->last_call_ms = INT64_MAX;
    } else if (c->last_call_ms == INT64_MAX) {
        c->last_call_ms = now_ms + c->settings.last_call_timeout_ms;
    }
}

static bool can_close(const struct coordinator *c, int64_t now_ms) {
    return is_complete_but_for_time(c) &&
           (coordinator_count_of(c, COORDINATOR_JOINED) == c->settings.max_nodes || !needs_last_call(c) ||
            now_ms >= c->last_call_ms) &&
           now_ms >= coordinator_absent_stopped_ms(c) && coordinator_quorum_allows(c, now_ms);
}

/* The last world that any of those who have joined was in. */
static uint64_t find_last_told(const struct coordinator *c) {
    uint64_t last = c->round;
    for (const struct coordinator_member *m = c->places[COORDINATOR_JOINED].first; m; m = m->next) {
        last = m->last_round > last ? m->last_round : last;
    }
    return last;
}

/* Round numbers go on where another coordinator of the job has stopped. */
static uint64_t find_last_round(const struct coordinator *c) {
    uint64_t told = find_last_told(c);
    return told > c->prior.known_round ? told : c->prior.known_round;
}

/* What has changed since the round before, and what the job was charged for it. */
static struct kv_slice describe_round(const struct coordinator *c, int64_t now_ms,
                                      char out[COORDINATOR_TEXT_BYTES_MAX]) {
    char charged[COORDINATOR_BUDGET_TEXT_SIZE];
    size_t len = coordinator_news_text(&c->news, out).len;
    coordinator_budget_describe(&c->budget, c->last_charge, now_ms, charged);
    (void)str_format(out + len, COORDINATOR_TEXT_BYTES_MAX - len, "%s%s", len > 0 ? "; " : "", charged);
    return kv_slice_text(out);
}

/* Of several endpoints: all who count must know of the world before it is told. */
static void propose_round(struct coordinator *c, int64_t now_ms) {
    c->has_told = true;
    c->proposed_ms = now_ms;
    uint64_t round = coordinator_quorum_next_round(c, find_last_round(c));
    if (c->settings.places.is_leased) {
        coordinator_quorum_fence(c, round, now_ms);
    } else {
        coordinator_quorum_propose(c, round, now_ms);
    }
}

/* Some may have accepted it before this process stood still, and have gone since. */
static bool is_out_of_date(const struct coordinator *c, int64_t now_ms) {
    return !c->settings.places.is_leased && now_ms - c->proposed_ms >= c->settings.places.silence_ms;
}

/* Where each costs much, one a moment, however many come and go in it. */
static int64_t next_proposal_ms(const struct coordinator *c) {
    enum { MANY = 256, MOMENT_MS = 50 };
    return c->proposed_ms > 0 && coordinator_count_of(c, COORDINATOR_JOINED) >= MANY ? c->proposed_ms + MOMENT_MS
                                                                                     : INT64_MIN;
}

/* coordinator_lease_ms() of a member of a world in which so many are at work. */
static int64_t lease_of(const struct coordinator *c, size_t at_work_count) {
    size_t others = at_work_count - 1 + coordinator_count_of(c, COORDINATOR_SPARED);
    bool is_needed = !c->is_stopping && !coordinator_has_rivals(c) && others < c->settings.min_nodes;
    return is_needed && c->settings.hold_ms > c->settings.silence_ms ? c->settings.hold_ms : c->settings.silence_ms;
}

static void close_round(struct coordinator *c, int64_t now_ms) {
    char text[COORDINATOR_TEXT_BYTES_MAX];
    uint64_t last = find_last_told(c), proposed = c->proposed_round;
    /* A world that another coordinator has told has ended with that one. */
    if (c->round == 0 && last > 0 && !charge(c, COORDINATOR_CHARGE_CHANGE, now_ms)) {
        return;
    }
    c->round = proposed > 0 ? proposed : coordinator_quorum_next_round(c, find_last_round(c));
    c->has_told = true;
    c->phase = COORDINATOR_RUNNING;
    coordinator_end_forget(c);
    c->last_call_ms = INT64_MAX;
    const int64_t lease_ms = lease_of(c, coordinator_count_of(c, COORDINATOR_JOINED));
    size_t count = c->world_size =
        coordinator_order_tell(c, lease_ms, last > 0 ? describe_round(c, now_ms, text) : no_text);
    for (size_t i = 0; i < count; i++) {
        c->order[i]->last_round = c->round;
        c->order[i]->last_author = c->settings.places.author;
        c->order[i]->last_group_rank = (uint32_t)i;
        c->order[i]->has_failed = false;
        coordinator_member_move(c, c->order[i], COORDINATOR_ACTIVE);
    }
    coordinator_quorum_closed(c, count, coordinator_order_host(c, count));
    const struct coordinator_message change = {.kind = COORDINATOR_CHANGE, .change = COORDINATOR_NODE_LEFT};
    while (c->places[COORDINATOR_DONE_WAITS].first) { /* they were done with a world of another coordinator */
        coordinator_let_go(c, c->places[COORDINATOR_DONE_WAITS].first, &change);
    }
    if (c->is_host_done) {
        coordinator_end_tell_host_done(c);
    }
    forget_news(c);
}

/* The last one of the world has ended: whoever waits for that need not serve the workers' store any more. */
static void settle_stopping(struct coordinator *c, int64_t now_ms) {
    if (coordinator_stop_is_over(c, now_ms)) {
        coordinator_end_let_go(c, COORDINATOR_DONE_WAITS, &all_done);
        coordinator_end_job(c, kv_slice_text("it has stopped before its end, since a node was taken away"), false);
    }
}

/* Holds after every event. */
static bool is_sound(const struct coordinator *c) {
    size_t in_places = 0;
    for (size_t place = 0; place < COORDINATOR_PLACES; place++) {
        in_places += c->places[place].count;
    }
    bool is_over_for_all = in_places == coordinator_count_of(c, COORDINATOR_OUT);
    return in_places == c->members.count && c->returning_count <= coordinator_count_of(c, COORDINATOR_JOINED) &&
           (c->phase == COORDINATOR_OVER ? is_over_for_all : c->owing_count == 0);
}

void coordinator_settle(struct coordinator *c, int64_t now_ms) {
    assert(is_sound(c));
    c->settled_ms = now_ms;
    if (c->phase == COORDINATOR_OVER) {
        coordinator_end_settle(c, now_ms);
        return;
    }
    if (c->is_stopping) {
        settle_stopping(c, now_ms);
        return;
    }
    if (is_done(c, now_ms)) {
        bool can_end = coordinator_quorum_can_end(c);
        coordinator_end_let_go(c, COORDINATOR_DONE_WAITS, &all_done);
        if (!can_end) { /* they need not wait any longer, but others may go on elsewhere */
            c->any_done = false;
            return;
        }
        coordinator_end_job(c, kv_slice_text("all nodes that took part are done"), false);
        return;
    }
    if (coordinator_end_without_done(c)) {
        return;
    }
    make_room_for_returning(c, now_ms);
    let_spares_in(c, now_ms);
    watch_last_call(c, now_ms);
    if (!can_close(c, now_ms)) {
        return;
    }
    if (coordinator_has_rivals(c) && (c->proposed_round == 0 || is_out_of_date(c, now_ms))) {
        if (now_ms < next_proposal_ms(c)) {
            return;
        }
        propose_round(c, now_ms);
    }
    if (!coordinator_has_rivals(c) || coordinator_quorum_is_accepted(c, now_ms)) {
        close_round(c, now_ms);
    }
}

/* ---- the other events ---- */

void coordinator_preempt(struct coordinator *c, struct coordinator_member *member, uint64_t grace_ms,
                         struct kv_slice why, int64_t now_ms) {
    if (c->phase == COORDINATOR_OVER || c->is_stopping || member->place == COORDINATOR_OUT ||
        member->place == COORDINATOR_SPARED) {
        return;
    }
    coordinator_news_add(&c->news, member, "is taken away", why);
    coordinator_stop_begin(c, grace_ms, now_ms);
    coordinator_settle(c, now_ms);
}

void coordinator_never_returns(struct coordinator_member *member) {
    member->is_lasting_loss = true;
}

void coordinator_works_until(struct coordinator_member *member, int64_t until_ms) {
    member->works_until_ms = until_ms;
}

void coordinator_accepted(struct coordinator *c, struct coordinator_member *member, uint64_t round, int64_t now_ms) {
    coordinator_quorum_accepted(c, member, round);
    coordinator_settle(c, now_ms);
}

void coordinator_note_engine(struct coordinator *c, const struct coordinator_member *member, struct kv_slice engine) {
    bool is_at_work = member->place == COORDINATOR_ACTIVE && c->phase == COORDINATOR_RUNNING;
    if (is_at_work && member->base_global_rank == 0 && engine.len > 0) {
        const struct kv_slice kept = coordinator_text_clip(engine, COORDINATOR_ENGINE_BYTES_MAX);
        memcpy(c->engine, kept.data, kept.len);
        c->engine_len = kept.len;
    }
}

void coordinator_lead(struct coordinator *c, const struct coordinator_record *record, int64_t now_ms) {
    c->leads = true;
    c->led_ms = now_ms;
    if (record) {
        coordinator_quorum_recall(c, record, now_ms);
    }
    coordinator_settle(c, now_ms);
}

void coordinator_fenced(struct coordinator *c, uint64_t round, int64_t now_ms) {
    c->fenced_round = round;
    coordinator_settle(c, now_ms);
}

bool coordinator_awaits_fence(const struct coordinator *c) {
    return c->settings.places.is_leased && c->phase == COORDINATOR_FORMING && c->proposed_round > 0;
}

int64_t coordinator_lease_ms(const struct coordinator *c, const struct coordinator_member *member) {
    return member->place == COORDINATOR_ACTIVE && c->phase == COORDINATOR_RUNNING
               ? lease_of(c, coordinator_count_of(c, COORDINATOR_ACTIVE))
               : c->settings.silence_ms;
}

bool coordinator_is_at_work(const struct coordinator_member *member) {
    return member->place == COORDINATOR_ACTIVE;
}

struct coordinator_member *coordinator_find(const struct coordinator *c, const uint64_t identity[2]) {
    struct kv_slice key = kv_slice_of((const uint8_t *)identity, 2 * sizeof *identity);
    return (struct coordinator_member *)hash_find(&c->members, key, hash_of(&c->members, key));
}

void *coordinator_session(const struct coordinator_member *member) {
    return member->session;
}

void coordinator_set_session(struct coordinator_member *member, void *session) {
    member->session = session;
}

bool coordinator_has_host(const struct coordinator *c) {
    return c->host_count > 0;
}

void coordinator_note_others(struct coordinator *c, bool none_serves, int64_t now_ms) {
    if (none_serves && !c->prior.none_else_serves) {
        c->prior.since_ms = now_ms; /* one may have served until now */
        c->prior.end_count = 0;
    }
    c->prior.none_else_serves = none_serves;
    coordinator_settle(c, now_ms);
}

void coordinator_note_round(struct coordinator *c, uint64_t round) {
    c->prior.known_round = round > c->prior.known_round ? round : c->prior.known_round;
}

/* Everybody has gone: elsewhere, perhaps, and what is known here may be out of date when somebody comes again. */
static void stand_by(struct coordinator *c) {
    c->phase = COORDINATOR_FORMING;
    c->round = 0;
    coordinator_end_forget(c);
    c->last_call_ms = INT64_MAX;
    c->prior.count = 0;
    c->prior.full_round = 0;
    c->prior.end_count = 0;
    c->prior.is_own = c->prior.none_else_serves = false;
    forget_news(c);
}

static void go(struct coordinator *c, struct coordinator_member *member, enum coordinator_charge charged,
               struct kv_slice why, int64_t now_ms) {
    enum coordinator_place place = member->place;
    if (place == COORDINATOR_ACTIVE || (place == COORDINATOR_JOINED && c->round > 0)) {
        coordinator_news_add(&c->news, member, why.len > 0 ? "has left" : "is lost (its connection has ended)", why);
    }
    if (place == COORDINATOR_DONE_WAITS) {
        coordinator_end_lost_done(c, member);
    }
    coordinator_quorum_lost(c, member);
    coordinator_quorum_note_end(c, member, now_ms);
    coordinator_member_free(c, member);
    if (place == COORDINATOR_ACTIVE && !is_done(c, now_ms)) {
        coordinator_begin_change(c, COORDINATOR_NODE_LEFT, charged, NULL, now_ms);
    }
    coordinator_settle(c, now_ms);
    /* A stop is not out of date: those who have not heard of it may still come. */
    if (c->settings.places.count > 1 && c->members.count == 0 && c->phase != COORDINATOR_OVER && !c->is_stopping) {
        stand_by(c);
    }
}

void coordinator_gone(struct coordinator *c, struct coordinator_member *member, struct kv_slice why, int64_t now_ms) {
    go(c, member, COORDINATOR_CHARGE_CHANGE, why, now_ms);
}

void coordinator_leave(struct coordinator *c, struct coordinator_member *member, struct kv_slice why, int64_t now_ms) {
    go(c, member, COORDINATOR_CHARGE_PREEMPTION, why, now_ms);
}

void coordinator_tick(struct coordinator *c, int64_t now_ms) {
    coordinator_settle(c, now_ms);
}

int64_t coordinator_wake_ms(const struct coordinator *c) {
    const int64_t times_ms[] = {is_complete_but_for_time(c) ? c->last_call_ms : INT64_MAX,
                                c->phase == COORDINATOR_FORMING ? coordinator_absent_stopped_ms(c) : INT64_MAX,
                                c->phase == COORDINATOR_FORMING && c->proposed_round == 0 ? next_proposal_ms(c)
                                                                                          : INT64_MAX,
                                coordinator_end_wake_ms(c), coordinator_quorum_wake_ms(c)};
    int64_t wake_ms = INT64_MAX;
    for (size_t i = 0; i < sizeof times_ms / sizeof *times_ms; i++) {
        /* What has passed already without closing the round will not close it now. */
        bool is_next = times_ms[i] > c->settled_ms && times_ms[i] < wake_ms;
        wake_ms = is_next ? times_ms[i] : wake_ms;
    }
    return wake_ms;
}

/* One that has told a world serves for good: only another process at its endpoint may be taken for a proof that it is
 * dead. */
void coordinator_describe(const struct coordinator *c, struct coordinator_service *out) {
    *out = (struct coordinator_service){
        .is_serving = c->members.count > 0 || c->has_told || c->phase == COORDINATOR_OVER,
        .is_running = c->phase == COORDINATOR_RUNNING || coordinator_quorum_holds(c),
        .round = c->round > c->prior.known_round ? c->round : c->prior.known_round,
        .member_count = (uint32_t)c->members.count,
    };
}

void coordinator_look(const struct coordinator *c, struct coordinator_view *out) {
    *out = (struct coordinator_view){
        .phase = c->phase,
        .is_stopping = c->is_stopping,
        .round = c->round,
        .active_count = coordinator_count_of(c, COORDINATOR_ACTIVE),
        .joined_count = coordinator_count_of(c, COORDINATOR_JOINED),
        .spare_count = coordinator_count_of(c, COORDINATOR_SPARED),
        .done_count = coordinator_count_of(c, COORDINATOR_DONE_WAITS),
        .charges = coordinator_budget_charges(&c->budget),
        .lost_count = c->lost_count,
        .member_count = c->members.count,
        .world_node_count = c->world_node_count,
        .world_worker_count = c->world_worker_count,
    };
}

struct kv_slice coordinator_why(const struct coordinator *c, char out[COORDINATOR_TEXT_BYTES_MAX]) {
    return coordinator_news_text(&c->news, out);
}
