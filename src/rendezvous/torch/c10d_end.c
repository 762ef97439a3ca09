/* How the job ends over the shared store: which nodes are done, and what it means that one is missing. job_end.c
 * decides; here is asked what it needs to know.
 *
 * A node of ours that is done says so in the key by which it has introduced itself ("done" in place of "1"); PyTorch's
 * agents keep no such key, and only count themselves in at the exit barrier. So a member that is missing is looked up
 * before anybody minds: one request for each that is missing, and one for the count.
 *
 * The store goes with the node that hosts it. When that node is done it says so in a key that the others watch. They
 * know then, when the store is lost, that nobody is: they go on without it (`detached`). */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/torch/c10d_impl.h"

#include <muster/status.h>

#define DONE_TEXT "done"

static const struct rdzv_state *state_of(const struct c10d *c) {
    return &c->machine.state;
}

static void host_key(const struct c10d *c, char out[C10D_KEY_MAX + 16]) {
    (void)str_format(out, C10D_KEY_MAX + 16, "%s.muster/host", c->key);
}

/* Does one of our agents host the store, and not this one? */
static bool is_served_elsewhere(const struct c10d *c) {
    return c->link && !c10d_store_server(c) && kv_client_offers_watch(c->client);
}

/* ---- the host of the store ---- */

/* A host that is done may go without a word, and one that was silent for a lease may have gone. Who cannot go on
 * without an answer waits no longer for either than for any silent node. Whose workers run has the time of its lease,
 * since the host may only have been away, and would then take who has given it up for dead. */
static void set_patience(struct c10d *c, bool needs_answer) {
    const struct rdzv_conf *conf = &c->rdzv->options.conf;
    const uint64_t silence_ms = rdzv_conf_silence_ms(conf), hold_ms = rdzv_conf_hold_ms(conf);
    bool may_have_gone =
        c->end.is_host_done || (int64_t)uv_now(c->rdzv->loop) >= rdzv_machine_lease_end_ms(&c->machine);
    uint64_t patience_ms = conf->read_timeout_ms;
    if (needs_answer && may_have_gone && silence_ms < patience_ms) {
        patience_ms = silence_ms;
    } else if (!needs_answer && hold_ms > patience_ms && rdzv_machine_lease_end_ms(&c->machine) != INT64_MAX) {
        patience_ms = hold_ms;
    }
    kv_client_set_timeout(c->client, patience_ms);
}

void c10d_end_needs_store(struct c10d *c) {
    set_patience(c, true);
}

static void on_host_done(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    c->end.watches_host = false;
    if (reply->status == MUSTER_OK && reply->values[0].len > 0) {
        c->end.is_host_done = true;
        log_debug("the node that hosts the store is done");
    }
}

static void watch_host(struct c10d *c) {
    char key[C10D_KEY_MAX + 16];
    if (!is_served_elsewhere(c) || c->end.is_host_done || c->end.watches_host) {
        return;
    }
    host_key(c, key);
    /* The waiting connection has nothing else to do while workers run. */
    if (c10d_round_need_waiter(c) == MUSTER_OK) {
        c->end.watches_host = kv_client_watch(c->waiter, key, kv_slice_text(""), on_host_done, c) == MUSTER_OK;
    }
}

void c10d_end_begin_round(struct c10d *c) {
    c10d_cause_begin_round(c);
    set_patience(c, false);
    watch_host(c);
}

bool c10d_end_outlives_store(const struct c10d *c) {
    return c->end.is_host_done && c->has_machine && c->machine.phase == RDZV_PHASE_MEMBER && !c->forming &&
           !c->in_barrier && !c->ending && !c->end.begins_join;
}

void c10d_end_detach(struct c10d *c) {
    if (c->end.is_detached) {
        return;
    }
    c->end.is_detached = true;
    c->end.is_asking = false;
    log_warning("the node that hosts the rendezvous store has ended, after its workers had succeeded; this node's "
                "workers run on. Without the store no further round can be formed");
    (void)uv_timer_stop(rdzv_timer(c->rdzv, RDZV_TIMER_WAKE));
    (void)uv_timer_stop(rdzv_timer(c->rdzv, RDZV_TIMER_SYNC));
}

int c10d_end_fail_detached(void) {
    return status_fail(MUSTER_ECLOSED, "no further round can be formed: the node that hosted the rendezvous store has "
                                       "succeeded and ended");
}

/* ---- this node ---- */

void c10d_end_done(struct c10d *c) {
    char key[C10D_INTRODUCTION_MAX];
    c10d_introduction(c, &c->machine.self, key);
    (void)kv_client_set(c->client, key, kv_slice_text(DONE_TEXT), NULL, NULL);
    if (c10d_store_server(c)) {
        host_key(c, key);
        (void)kv_client_set(c->client, key, kv_slice_text(DONE_TEXT), NULL, NULL);
    }
}

bool c10d_end_closes(const struct c10d *c) {
    return !c->rdzv->succeeded || c->barrier_passed || c->end.is_doomed || state_of(c)->closed ||
           rdzv_state_count(&c->world, RDZV_PARTICIPANT) < 2;
}

/* ---- what is known of the others ---- */

static bool was_member(const struct c10d *c, const struct rdzv_node *node) {
    return rdzv_state_is(&c->world, node, RDZV_PARTICIPANT);
}

static bool is_missing(const struct c10d *c, const struct rdzv_member *was) {
    return (was->lists & RDZV_PARTICIPANT) && !rdzv_state_is(state_of(c), &was->node, RDZV_PARTICIPANT);
}

static uint32_t count_missing(const struct c10d *c) {
    uint32_t count = 0;
    for (size_t i = 0; i < c->world.member_count; i++) {
        count += is_missing(c, &c->world.members[i]);
    }
    return count;
}

/* Nodes that were not in the round and wait for a place, or may get one. */
static uint32_t count_reserve(const struct c10d *c) {
    uint32_t count = 0;
    for (size_t i = 0; i < state_of(c)->member_count; i++) {
        const struct rdzv_member *at = &state_of(c)->members[i];
        count += (at->lists & RDZV_LISTED) && !was_member(c, &at->node);
    }
    return count;
}

static bool member_waits(const struct c10d *c) {
    for (size_t i = 0; i < state_of(c)->member_count; i++) {
        const struct rdzv_member *at = &state_of(c)->members[i];
        if ((at->lists & RDZV_WAITING) && was_member(c, &at->node)) {
            return true;
        }
    }
    return false;
}

/* Graves of the round's members: who has left for good while others join the next one. */
static uint32_t count_graves(const struct c10d *c) {
    uint32_t count = 0;
    for (size_t i = 0; i < state_of(c)->member_count; i++) {
        const struct rdzv_member *at = &state_of(c)->members[i];
        count += at->lists == RDZV_HEARTBEAT && at->heartbeat_us == RDZV_GRAVE_US && was_member(c, &at->node);
    }
    return count;
}

/* This node's place is still that of the round: only others can be missing. */
static bool stands_in_round(const struct c10d *c) {
    return state_of(c)->complete && state_of(c)->round == c->world.round &&
           rdzv_state_is(state_of(c), &c->machine.self, RDZV_PARTICIPANT);
}

static void begin_view(struct c10d *c) {
    c->end.is_asking = true;
    c->end.asks_again = false;
    c->end.names[0] = '\0';
    c->end.view = (struct job_end_view){.world_size = (uint32_t)rdzv_state_count(&c->world, RDZV_PARTICIPANT),
                                        .missing = count_missing(c),
                                        .reserve = count_reserve(c),
                                        .min_nodes = c->rdzv->options.min_nodes,
                                        .closed = state_of(c)->closed};
}

/* The store is lost, or answers nonsense: its own path tells. */
static bool is_answered(struct c10d *c, const struct kv_reply *reply) {
    if (reply->status != MUSTER_OK) {
        c->end.is_asking = false;
        if (!c->ending) {
            c10d_fail(c, reply->status);
        }
    }
    return reply->status == MUSTER_OK;
}

static bool says_done(const struct kv_reply *reply) {
    return kv_slice_equal(reply->values[0], kv_slice_text(DONE_TEXT));
}

static int ask_node(struct c10d *c, const struct rdzv_node *node, kv_reply_cb *cb) {
    char key[C10D_INTRODUCTION_MAX];
    c10d_introduction(c, node, key);
    return kv_client_find(c->client, key, cb, c);
}

static int ask_count(struct c10d *c, kv_reply_cb *cb) {
    return c10d_round_ask_count(c, c->world.round, cb);
}

static void give_up(struct c10d *c, int rc) {
    c->end.is_asking = false;
    c10d_fail(c, rc);
}

/* ---- a member is missing ---- */

/* Does another member of the round still hold its connection to the store here? */
bool c10d_end_is_needed(const struct c10d *c) {
    for (size_t i = 0; i < c->liveness.count; i++) {
        const struct rdzv_node *node = &c->liveness.list[i].node;
        if (was_member(c, node) && rdzv_node_compare(node, &c->machine.self) != 0) {
            return true;
        }
    }
    return false;
}

bool c10d_end_serves_on(struct c10d *c) {
    c->end.serves_on = c10d_store_server(c) && c10d_end_is_needed(c) && !state_of(c)->closed;
    if (c->end.serves_on) {
        log_info("this node is done; it stays while others need the store of the rendezvous");
    }
    return c->end.serves_on;
}

static void go_on(struct c10d *c) {
    rdzv_machine_excuse(&c->machine);
    log_info("a node has gone after its workers had succeeded: %u of %u nodes of round %lld are done. The others go on",
             c->end.view.arrived, c->end.view.world_size, (long long)c->world.round);
    /* The last one to come tells the others that all have; it may have gone before it could. */
    if (c->in_barrier && c->end.view.arrived >= c->end.view.world_size) {
        c10d_round_tell_all_are_here(c);
    }
}

static void mind_loss(struct c10d *c, bool has_failed) {
    char why[MUSTER_DETAIL_MAX];
    c->end.is_doomed = !job_end_can_reform(&c->end.view);
    (void)c10d_report_change(c, true, why, sizeof why);
    if (c->in_barrier && c10d_end_serves_on(c)) {
        c10d_feed(c, RDZV_EVENT_LEAVE); /* the others' next round cannot begin before */
    } else if (c->in_barrier) {
        c10d_round_barrier_over(c, false);
    } else if (has_failed) {
        c10d_fail_job(c, status_fail(MUSTER_ECLOSED, "%s, and the job is closed: no further round can be formed", why));
    } else {
        rdzv_tell_change(c->rdzv, RDZV_NODE_LEFT, "%s", why);
    }
}

static void ask_for_join(struct c10d *c);

static void judge(struct c10d *c) {
    c->end.is_asking = false;
    if (c->end.begins_join && !c->ending) {
        ask_for_join(c);
        return;
    }
    if (c->ending || c->machine.phase != RDZV_PHASE_MEMBER) {
        return; /* on its way out, or to the next round */
    }
    if (stands_in_round(c) && (c->end.asks_again || count_missing(c) != c->end.view.missing)) {
        c10d_end_ask_missing(c);
        return;
    }
    enum job_end_verdict verdict = stands_in_round(c)    ? job_end_judge(&c->end.view)
                                   : state_of(c)->closed ? JOB_END_FAILED
                                                         : JOB_END_REFORM;
    if (verdict == JOB_END_GO_ON) {
        go_on(c);
    } else {
        mind_loss(c, verdict == JOB_END_FAILED);
    }
}

/* Of all members, since some keep no record: how many do, and are done? */
static void on_recorded(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    if (c->end.is_asking && is_answered(c, reply)) {
        c->end.view.recorded_done += says_done(reply);
        if (--c->end.unanswered == 0) {
            judge(c);
        }
    }
}

static void ask_all(struct c10d *c) {
    int rc = MUSTER_OK;
    c->end.unanswered = 0;
    for (size_t i = 0; rc == MUSTER_OK && i < c->world.member_count; i++) {
        if (c->world.members[i].lists & RDZV_PARTICIPANT) {
            rc = ask_node(c, &c->world.members[i].node, on_recorded);
            c->end.unanswered += rc == MUSTER_OK;
        }
    }
    if (rc != MUSTER_OK) {
        give_up(c, rc);
    }
}

static void on_counted(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    if (!c->end.is_asking || !is_answered(c, reply)) {
        return;
    }
    c->end.view.arrived = (uint32_t)(reply->number < 0 ? 0 : reply->number);
    if (c->end.view.missing_mute > 0 && c->end.view.arrived > 0) {
        ask_all(c);
    } else {
        judge(c);
    }
}

static void on_missing(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    if (c->end.is_asking && is_answered(c, reply)) {
        c->end.view.missing_done += says_done(reply);
        c->end.view.missing_mute += reply->values[0].len == 0;
    }
}

void c10d_end_ask_missing(struct c10d *c) {
    if (c->end.is_asking) {
        c->end.asks_again = true;
        return;
    }
    begin_view(c);
    if (!stands_in_round(c)) {
        judge(c);
        return;
    }
    int rc = MUSTER_OK;
    for (size_t i = 0; rc == MUSTER_OK && i < c->world.member_count; i++) {
        if (is_missing(c, &c->world.members[i])) {
            rc = ask_node(c, &c->world.members[i].node, on_missing);
        }
    }
    rc = rc == MUSTER_OK ? ask_count(c, on_counted) : rc; /* answered last */
    if (rc != MUSTER_OK) {
        give_up(c, rc);
    }
}

/* ---- somebody waits for a place ---- */

static void on_counted_for_arrival(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    char why[MUSTER_DETAIL_MAX];
    if (reply->status != MUSTER_OK || c->ending || c->in_barrier || c->machine.phase != RDZV_PHASE_MEMBER) {
        return;
    }
    (void)c10d_report_change(c, false, why, sizeof why);
    if (reply->number > 0 && !member_waits(c)) {
        log_info("%s; it gets no place, since a node of round %lld is done already", why, (long long)c->world.round);
    } else {
        rdzv_tell_change(c->rdzv, RDZV_NODE_ARRIVED, "%s", why);
    }
}

void c10d_end_ask_arrival(struct c10d *c) {
    int rc = ask_count(c, on_counted_for_arrival);
    if (rc != MUSTER_OK) {
        c10d_fail(c, rc);
    }
}

/* ---- before the next round ---- */

/* Nobody can go on: the others hear that first, and why. What failed here did so for good. */
static void close_and_fail(struct c10d *c) {
    struct rdzv_cause cause;
    c->end.fails_when_closed = true;
    if (failures_own(&c->rdzv->failures, &cause)) {
        cause.is_final = cause.is_told = true;
        c10d_cause_tell(c->rdzv, &cause);
    } else {
        c->ending = true;
        c10d_feed(c, RDZV_EVENT_CLOSE);
    }
}

static void on_cause_of_round(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    const struct job_end_view *view = &c->end.view;
    uint32_t left = view->world_size - (view->arrived < view->world_size ? view->arrived : view->world_size);
    if (reply->status == MUSTER_OK) {
        (void)rdzv_note_cause_text(c->rdzv, reply->values[0]); /* what the next round was wanted for */
    }
    c->end.is_asking = false;
    (void)str_format(c->end.why, sizeof c->end.why,
                     "no further round can be formed: %s succeeded already, and without %s %u of the %u nodes that a "
                     "round needs are left",
                     c->end.names[0] ? c->end.names : "some nodes of the last one have",
                     view->arrived == 1 ? "it" : "them", left + view->reserve, view->min_nodes);
    close_and_fail(c);
}

/* Whose answer this is follows from the order of asking. */
static void on_named(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    char name[RDZV_NODE_TEXT_MAX];
    if (!c->end.is_asking || !is_answered(c, reply)) {
        return;
    }
    while (!(c->world.members[c->end.named].lists & RDZV_PARTICIPANT)) {
        c->end.named++;
    }
    const struct rdzv_node *node = &c->world.members[c->end.named++].node;
    size_t used = strlen(c->end.names);
    if (says_done(reply) && used + RDZV_NODE_TEXT_MAX + 8 < sizeof c->end.names) {
        (void)str_format(c->end.names + used, sizeof c->end.names - used, "%snode %s has", used > 0 ? ", " : "",
                         rdzv_node_format(node, name));
    }
    if (--c->end.unanswered == 0) {
        char key[2 * C10D_KEY_MAX];
        c10d_cause_key(c, key);
        int rc = kv_client_find(c->client, key, on_cause_of_round, c);
        if (rc != MUSTER_OK) {
            give_up(c, rc);
        }
    }
}

static void name_the_done(struct c10d *c) {
    int rc = MUSTER_OK;
    c->end.unanswered = 0;
    c->end.named = 0;
    for (size_t i = 0; rc == MUSTER_OK && i < c->world.member_count; i++) {
        if (c->world.members[i].lists & RDZV_PARTICIPANT) {
            rc = ask_node(c, &c->world.members[i].node, on_named);
            c->end.unanswered += rc == MUSTER_OK;
        }
    }
    if (rc != MUSTER_OK) {
        give_up(c, rc);
    }
}

static void on_counted_for_join(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    bool begins = c->end.begins_join;
    if (!c->end.is_asking || !is_answered(c, reply) || c->ending) {
        c->end.is_asking = false;
        return;
    }
    c->end.view.arrived = (uint32_t)(reply->number < 0 ? 0 : reply->number);
    if (!job_end_can_reform(&c->end.view)) {
        name_the_done(c);
        return;
    }
    c->end.is_asking = c->end.begins_join = false;
    if (begins) {
        c10d_feed(c, RDZV_EVENT_JOIN);
    }
}

static void ask_for_join(struct c10d *c) {
    begin_view(c);
    int rc = ask_count(c, on_counted_for_join);
    if (rc != MUSTER_OK) {
        give_up(c, rc);
    }
}

void c10d_end_join(struct c10d *c) {
    bool has_world = c->machine.phase == RDZV_PHASE_MEMBER && !c->rdzv->options.survivors_continue &&
                     rdzv_state_count(&c->world, RDZV_PARTICIPANT) > 1;
    c->end.is_doomed = c->end.looks_for_cause = c->end.has_looked = false;
    c->end.graves = 0;
    if (!has_world) {
        c10d_feed(c, RDZV_EVENT_JOIN);
        return;
    }
    c->end.begins_join = true;
    c10d_end_needs_store(c);
    if (!c->end.is_asking) { /* else when that is answered: judge() */
        ask_for_join(c);
    }
}

/* One of the members that this node waits for may have been done: it leaves when it hears that the round is over. */
void c10d_end_look_while_joining(struct c10d *c) {
    bool joins = c->machine.phase == RDZV_PHASE_JOINING && !state_of(c)->complete && !c->ending &&
                 !c->rdzv->options.survivors_continue && rdzv_state_count(&c->world, RDZV_PARTICIPANT) > 1;
    uint32_t graves = joins ? count_graves(c) : 0;
    if (graves > c->end.graves && !c->end.is_asking) {
        c->end.graves = graves;
        ask_for_join(c);
    }
}

/* ---- a node that waits for a place ---- */

static bool waits_for_place(const struct c10d *c) {
    return c->machine.phase == RDZV_PHASE_JOINING && state_of(c)->complete && !state_of(c)->closed && !c->ending &&
           state_of(c)->round != c->machine.barred_round && rdzv_state_is(state_of(c), &c->machine.self, RDZV_WAITING);
}

static void on_counted_for_place(void *ctx, const struct kv_reply *reply) {
    struct c10d *c = ctx;
    c->end.asks_for_place = false;
    if (reply->status == MUSTER_OK && reply->number > 0 && c->end.place_round == state_of(c)->round &&
        waits_for_place(c)) {
        log_info("a node of round %lld is done already, so nobody is let in; this node waits as a spare",
                 (long long)c->end.place_round);
        rdzv_machine_bar(&c->machine, c10d_now(c));
    }
}

/* The members let nobody in where one of them is done: c10d_end_ask_arrival(). */
void c10d_end_look_while_waiting(struct c10d *c) {
    if (waits_for_place(c) && !c->end.asks_for_place) {
        c->end.place_round = state_of(c)->round;
        c->end.asks_for_place = c10d_round_ask_count(c, c->end.place_round, on_counted_for_place) == MUSTER_OK;
    }
}
