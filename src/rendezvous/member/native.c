/* The native backend, on the agent's side: its part in the job (participant.h), over one connection to the coordinator,
 * which decides (coordinator.h). Which of the endpoints that one is at, and whether it lives, is native_reach.c's.
 *
 * Every agent has a workers' store ready and says where in its JOIN, so that whoever becomes rank 0 need not be asked:
 * a round costs each node one message and one answer. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "base/system/random.h"
#include "rendezvous/member/admission_client.h"
#include "rendezvous/member/admission_server.h"
#include "rendezvous/member/coordinator_settings.h"
#include "rendezvous/member/native_impl.h"
#include "rendezvous/round/worker_store.h"

enum {
    FLAWS_MAX = 3, /* connections that break the protocol in a row: before, one bit may have changed on its way */
    MUTE_MAX = 5,  /* what ends that many connections without a word is no coordinator */
    BRIEF_FAREWELL_MS = 200,
    LINGER_LOOK_MS = 2,
    LINGER_MAX_MS = 2000,
};

static struct native *of(struct participant *part) {
    return (struct native *)part; /* its first member */
}

/* ---- the end ---- */

/* Where the coordinator may be another one than that of the world before. */
static uint64_t stop_left_ms(const struct native *n) {
    return native_has_rivals(n) ? membership_stop_left_ms(&n->part.membership, n->part.rdzv) : 0;
}

/* The job stops, and no coordinator is known to have heard of it. */
static bool is_stop_untold(const struct native *n) {
    return !n->part.is_closed && !n->has_paid_stop && !n->part.membership.is_stop_heard && stop_left_ms(n) > 0;
}

static void end_part(struct native *n) {
    if (n->finder->end) {
        n->finder->end(n);
    } else {
        participant_end(&n->part);
    }
}

/* The others must hear how the job ended before their coordinator goes. */
static void on_linger(uv_timer_t *timer) {
    struct rdzv *r = timer->data;
    struct native *n = r->state;
    n->lingered_ms += LINGER_LOOK_MS;
    struct coordinator_view view;
    if (n->reach.own < 0) { /* another node leads meanwhile: this one has closed its server */
        (void)uv_timer_stop(timer);
        end_part(n);
        return;
    }
    coordinator_server_look(n->reach.server, &view);
    bool is_own = n->reach.session && (int)n->reach.at == n->reach.own;
    /* Some may still be on their way from the coordinator before, and nobody else would tell them that the job stops.
     */
    bool is_awaited = view.is_stopping && view.phase != COORDINATOR_OVER && stop_left_ms(n) > 1;
    /* Nobody else knows who has left for good: those who stop their workers for that are to have the next world first.
     */
    is_awaited |= native_has_rivals(n) && view.phase == COORDINATOR_FORMING && view.round > 0 &&
                  view.member_count > (is_own ? 1 : 0) &&
                  n->lingered_ms < n->part.rdzv->options.stop_timeout_ms + LINGER_MAX_MS;
    if (!is_awaited && (view.member_count <= (is_own ? 1 : 0) || n->lingered_ms >= LINGER_MAX_MS)) {
        (void)uv_timer_stop(timer);
        end_part(n);
    }
}

/* The others find the next coordinator, whose world this one would only delay. */
static bool hands_over(const struct native *n) {
    struct coordinator_view view;
    coordinator_server_look(n->reach.server, &view);
    return n->finder->hands_over && view.phase != COORDINATOR_OVER && !view.is_stopping;
}

static void end_or_linger(struct native *n) {
    (void)uv_timer_stop(rdzv_timer(n->part.rdzv, RDZV_TIMER_WAKE));
    if (n->reach.own >= 0 && n->part.phase == PARTICIPANT_ENDING && !hands_over(n)) {
        (void)uv_timer_start(rdzv_timer(n->part.rdzv, RDZV_TIMER_LINGER), on_linger, 0, LINGER_LOOK_MS);
    } else {
        end_part(n);
    }
}

/* ---- for people ---- */

static const char *describe(const struct participant *p, char out[PARTICIPANT_WHERE_MAX]) {
    char tried[PARTICIPANT_WHERE_MAX - 16];
    (void)str_format(out, PARTICIPANT_WHERE_MAX, "coordinator %s",
                     native_reach_describe((const struct native *)p, tried, sizeof tried));
    return out;
}

static bool report_unreached(const struct participant *p) {
    const struct native *n = (const struct native *)p;
    char tried[PARTICIPANT_WHERE_MAX], note[RDZV_WAIT_NOTE_SIZE];
    bool is_unreached = !n->reach.is_open || native_reach_is_mute(n);
    if (is_unreached) {
        bool is_brief = !native_has_rivals(n) && !n->reach.was_open;
        int64_t by_ms = is_brief ? (int64_t)(n->reach.opened_ms + p->rdzv->options.conf.read_timeout_ms)
                                 : p->rdzv->waits[RDZV_TIMER_WAKE].deadline_ms;
        log_warning("still waiting for the coordinator of rendezvous '%s' (%s)%s", p->rdzv->options.run_id,
                    native_reach_describe(n, tried, sizeof tried),
                    rdzv_wait_note(p->rdzv, by_ms, is_brief ? "read_timeout" : "join_timeout", note));
    }
    return is_unreached;
}

/* ---- joining ---- */

/* By which address others reach this node. */
static void own_address(const struct native *n, char out[RDZV_ADDR_MAX]) {
    struct sockaddr_storage local;
    if (n->finder->own_address) {
        n->finder->own_address(n, out);
        return;
    }
    bool tells = native_session_local_address(n->reach.session, &local) == MUSTER_OK;
    worker_store_told_address(n->part.rdzv->options.local_addr, tells ? (struct sockaddr *)&local : NULL,
                              native_reach_is_loopback(n), out, RDZV_ADDR_MAX);
}

static int send_join(struct native *n) {
    const struct rdzv_options *o = &n->part.rdzv->options;
    char addr[RDZV_ADDR_MAX];
    const struct worker_store_guard guard = {
        .admission = n->admission_server ? admission_server_guest(n->admission_server) : NULL,
        .allowed = &o->conf.allow};
    bool is_done = n->part.phase == PARTICIPANT_BARRIER || n->part.phase == PARTICIPANT_ENDING;
    /* Also while the workers of a job that stops save: the next coordinator is told of the stop, and they use it. */
    bool keeps_store = is_done || n->part.phase == PARTICIPANT_MEMBER;
    int rc = keeps_store
                 ? MUSTER_OK
                 : worker_store_prepare(n->part.rdzv->loop,
                                        (struct worker_store_place){native_reach_is_loopback(n), o->local_addr},
                                        o->share_store, n->secret ? &guard : NULL, &n->worker_store, &n->store_port);
    if (rc != MUSTER_OK) {
        return rc;
    }
    own_address(n, addr);
    struct coordinator_message join = {
        .kind = COORDINATOR_JOIN,
        .node = membership_introduce(&n->part.membership, o, addr, n->identity, n->store_port)};
    join.node.known_round = native_search_known_round(&n->reach.search);
    join.node.endpoints = n->reach.digest;
    join.node.is_done = is_done;
    join.node.stop_ms = stop_left_ms(n);
    join.node.is_host = (int)n->reach.at == n->reach.own;
    join.node.session = n->reach.session_number;
    return native_session_send(n->reach.session, &join);
}

static int send_message(struct participant *p, const struct coordinator_message *message) {
    const struct native_reach *r = &of(p)->reach;
    return r->is_open ? native_session_send(r->session, message) : MUSTER_ECLOSED;
}

static unsigned ask(struct participant *p) {
    return native_reach_ask_alive(of(p));
}

/* ---- what the coordinator says ---- */

/* This node is in a world, and its agent has not been told. */
static bool is_untold(const struct native *n) {
    return n->admission || n->awaits_answer;
}

static void on_admitted(void *ctx, int status) {
    struct native *n = ctx;
    admission_client_close(n->admission);
    n->admission = NULL;
    if (status == MUSTER_OK && !n->awaits_answer) {
        rdzv_release_world(n->part.rdzv);
    } else if (status != MUSTER_OK) {
        participant_fail(&n->part, status);
    }
}

/* With a secret the workers' store of another node serves this one's workers when their agent has been there. */
static void request_admission(struct native *n, const struct coordinator_world *w) {
    const struct native_connection_key key = {.secret = n->secret, .run_id = n->part.rdzv->options.run_id};
    if (!n->secret || w->group_rank == 0 || !w->uses_agent_store) {
        return;
    }
    rdzv_hold_world(n->part.rdzv);
    int rc = admission_client_open(n->part.rdzv->loop, n->part.rdzv->world.master_addr, w->master_port, &key,
                                   n->part.rdzv->options.conf.read_timeout_ms, on_admitted, n, &n->admission);
    if (rc == MUSTER_OK) {
        admission_client_set_clock(n->admission, &n->part.rdzv->clock);
    } else {
        participant_fail(&n->part, rc);
    }
}

/* The coordinator, or the store of the world's workers. */
static bool is_needed(const struct participant *p) {
    const struct native *n = (const struct native *)p;
    bool has_store = p->membership.last_group_rank == 0 && p->rdzv->options.share_store;
    return n->reach.is_open && ((int)n->reach.at == n->reach.own || has_store);
}

/* The others go on without it. Of several endpoints the coordinator has to hear that this node knows: until then it
 * counts it as one that could go on with others. */
static void let_go(struct participant *p) {
    if (native_has_rivals(of(p))) {
        (void)participant_say(p, COORDINATOR_LEAVE, "it was done");
    }
    participant_end_barrier(p);
}

static void entered(struct participant *p, const struct coordinator_world *world) {
    struct native *n = of(p);
    n->engine[0] = '\0';
    n->awaits_answer = !native_has_rivals(n) && native_reach_is_overdue(n);
    if (n->awaits_answer) { /* it was away, and the coordinator may have gone on without it meanwhile */
        rdzv_hold_world(p->rdzv);
        (void)native_reach_ask_alive(n);
    }
    native_reach_arrived(n);
    request_admission(n, world);
}

static void end_way(struct participant *p) {
    end_or_linger(of(p));
}

/* So that the coordinator sees that it was heard. */
static void drop_way(struct participant *p) {
    native_reach_drop(of(p));
}

/* So that every node of a world has heard of it before any is at work in it: see coordinator_quorum.c. */
static void on_propose(struct native *n, const struct coordinator_message *message) {
    if (n->part.phase != PARTICIPANT_JOINING && n->part.phase != PARTICIPANT_BARRIER) {
        return;
    }
    membership_propose(&n->part.membership, &message->proposal);
    native_reach_proposed(n, message);
    const struct coordinator_message accept = {
        .kind = COORDINATOR_ACCEPT, .round = message->proposal.world.round, .stamp_ms = message->stamp_ms};
    int rc = native_session_send(n->reach.session, &accept);
    if (rc != MUSTER_OK) {
        participant_fail(&n->part, rc);
    }
}

static void on_refused(struct participant *p, const struct coordinator_message *message) {
    struct native_reach *r = &of(p)->reach;
    const struct net_endpoint *at = &r->places[r->at].endpoint;
    if (message->status == MUSTER_EPROTOCOL && ++r->flaw_count < FLAWS_MAX) {
        log_info("the coordinator at %s:%d did not understand this node; connecting again: %.*s", at->host,
                 (int)at->port, (int)message->text.len, (const char *)message->text.data);
        return; /* it ends the connection now */
    }
    if (message->status != MUSTER_ECONNECT) { /* else for now: an earlier connection still stands, this one ends */
        int status = message->status == MUSTER_EABORTED ? MUSTER_ECLOSED : message->status; /* it has failed */
        participant_fail(p, status_fail(status, "the coordinator at %s:%d refuses this node: %.*s", at->host,
                                        (int)at->port, (int)message->text.len, (const char *)message->text.data));
    }
}

static void join(struct native *n);

/* The agent has not been told of the world yet: this node waits for the next one in its place. */
static void join_before_told(struct native *n) {
    rdzv_withdraw_world(n->part.rdzv);
    if (!n->part.rdzv->failed) {
        join(n);
    }
}

/* For muster status, with the answers to ALIVE: so it needs no timer. */
static void tell_engine(struct native *n) {
    const struct rdzv *r = n->part.rdzv;
    char engine[RDZV_ENGINE_MAX] = "";
    bool has_rank_0 = n->part.phase == PARTICIPANT_MEMBER && !r->has_world && r->world.base_global_rank == 0;
    if (!has_rank_0 || !r->callbacks.engine) {
        return;
    }
    r->callbacks.engine(r->ctx, engine);
    if (engine[0] != '\0' && strcmp(engine, n->engine) != 0 && participant_say(&n->part, COORDINATOR_ENGINE, engine)) {
        (void)str_copy(n->engine, sizeof n->engine, engine);
    }
}

/* The world that was told stands. */
static void note_answer(struct native *n) {
    if (n->awaits_answer && !native_reach_is_overdue(n)) {
        n->awaits_answer = false;
        if (!n->admission) {
            rdzv_release_world(n->part.rdzv);
        }
    }
}

void native_heard(struct native *n, const struct coordinator_message *message) {
    if (message->kind == COORDINATOR_HEARD) {
        note_answer(n);
        tell_engine(n);
    }
    if (message->kind == COORDINATOR_PROPOSE) {
        on_propose(n, message);
    } else if (message->kind == COORDINATOR_CHANGE && n->part.phase == PARTICIPANT_MEMBER && is_untold(n)) {
        join_before_told(n);
    } else {
        participant_heard(&n->part, message);
    }
}

/* ---- its connection ---- */

static void lose_place(struct native *n, enum rdzv_change change, const char *why) {
    if (is_untold(n)) {
        join_before_told(n);
        return;
    }
    rdzv_tell_change(n->part.rdzv, change, "this node has lost its place: %s", why);
    n->part.phase = PARTICIPANT_IDLE;
}

bool native_wants_coordinator(const struct native *n) {
    bool has_part = n->part.phase == PARTICIPANT_BARRIER ||
                    (n->part.phase == PARTICIPANT_MEMBER && n->part.membership.stop_by_ms > 0);
    return n->part.phase == PARTICIPANT_JOINING || (has_part && n->reach.lost >= 0) || n->owes_stop;
}

void native_opened(struct native *n) {
    int rc = MUSTER_OK;
    participant_spare_no_more(&n->part); /* of the coordinator before */
    n->part.is_host_done = false;
    if (native_wants_coordinator(n)) {
        rc = send_join(n);
        if (n->owes_stop && rc == MUSTER_OK) {
            n->owes_stop = false;
            n->has_paid_stop = true;
            (void)participant_say(&n->part, COORDINATOR_LEAVE, "its node is taken away");
        }
    } else if (n->part.phase == PARTICIPANT_MEMBER && n->reach.is_checking) {
        lose_place(n, RDZV_NODE_LEFT, n->reach.places[n->reach.at].answer);
    }
    n->reach.is_checking = false;
    if (rc != MUSTER_OK) {
        participant_fail(&n->part, rc);
    }
}

static void fail_for_good(struct native *n, const char *why) {
    char name[NATIVE_REACH_NAME_SIZE], answer[NATIVE_PLACE_ANSWER_MAX];
    (void)str_copy(answer, sizeof answer, n->reach.places[n->reach.at].answer);
    participant_fail(&n->part, status_fail(MUSTER_ECONNECT, "the coordinator at %s %s (%s)", native_reach_name(n, name),
                                           why, answer));
}

/* With one endpoint nobody else can take the coordinator's place. */
static void lost_while_joining(struct native *n, int status) {
    const struct native_reach *r = &n->reach;
    uint64_t timeout_ms = n->part.rdzv->options.conf.read_timeout_ms;
    participant_spare_no_more(&n->part);
    if (native_has_rivals(n)) {
        native_seek_later(n);
    } else if (status == MUSTER_EPROTOCOL && r->flaw_count >= FLAWS_MAX) {
        participant_fail(&n->part, status);
    } else if (r->mute_count >= MUTE_MAX) {
        participant_fail(
            &n->part, status_prefix(MUSTER_EPROTOCOL,
                                    "the store at the endpoint has no coordinator: start all nodes, and first the one "
                                    "that hosts it, with --rdzv-backend=muster"));
    } else if (r->was_open && status == MUSTER_ENOENT) {
        fail_for_good(n, "is lost, the node that serves it has probably ended");
    } else if (!r->was_open && native_now_ms(n) - r->opened_ms >= timeout_ms) {
        fail_for_good(n, "cannot be reached within read_timeout: is the node that hosts it running?");
    } else { /* for as long as join_timeout says */
        native_seek_later(n);
    }
}

/* The next one is joined when the workers have ended; at once if the job stops, since that one is to know. */
static void lose_coordinator(struct native *n, int status) {
    struct native_reach *r = &n->reach;
    char name[NATIVE_REACH_NAME_SIZE], why[MUSTER_DETAIL_MAX];
    (void)str_copy(why, sizeof why, muster_detail());
    bool is_first = r->lost < 0;
    /* It lives, perhaps, and goes on without this node, whose workers are to be gone by then. */
    bool is_cut_off = status != MUSTER_ECLOSED || native_reach_may_be_given_up(n);
    if (is_first) {
        r->lost = (int)r->at;
        r->lost_ms = native_now_ms(n);
    }
    if (is_untold(n)) {
        join_before_told(n);
        return;
    }
    /* Workers that save go on: the next coordinator is told that the job stops (native_deserted(): or none is found).
     */
    bool is_stopping = n->part.membership.stop_by_ms > 0;
    if (!is_stopping || status == MUSTER_ETIMEOUT) {
        rdzv_tell_change(n->part.rdzv, is_cut_off ? RDZV_CUT_OFF : RDZV_NODE_LEFT, "the coordinator at %s is lost: %s",
                         native_reach_name(n, name), why);
    }
    if (!is_stopping) {
        n->part.phase = PARTICIPANT_IDLE;
    }
    if (is_first) {
        native_seek(n);
    } else {
        native_seek_later(n);
    }
}

/* The coordinator has gone with a node that was done, which is no loss: no other node has anything to tell. */
static void detach(struct native *n) {
    n->is_detached = true;
    log_warning("the node that serves the rendezvous has ended, after its workers had succeeded; this node's workers "
                "run on. No further round can be formed");
}

static void lost_while_member(struct native *n, int status) {
    struct native_reach *r = &n->reach;
    bool is_silent = status == MUSTER_ETIMEOUT;
    /* Silence alone: its node stays while others need it, and may form a world with those that it has. (With several
     * endpoints it has said that it can't.) */
    bool may_go_on = is_silent && !native_has_rivals(n) && !native_reach_is_held(n);
    if (n->part.is_host_done && !is_untold(n) && !may_go_on) {
        detach(n);
    } else if (native_has_rivals(n)) {
        lose_coordinator(n, status);
    } else if (is_silent) { /* held: workers have had their time to end before the place goes to another node */
        lose_place(n, native_reach_is_held(n) ? RDZV_NODE_LEFT : RDZV_CUT_OFF, muster_detail());
    } else if (!r->is_checking) {
        native_reach_check(n);
    } else if (status == MUSTER_ECONNECT) { /* it may live: there is no way to it at the moment */
        lose_place(n, RDZV_NODE_LEFT, muster_detail());
    } else {
        fail_for_good(n, "is lost, the node that serves it has probably ended");
    }
}

static void lost_while_done(struct native *n) {
    if (!native_has_rivals(n)) {
        participant_end_barrier(&n->part);
    } else if (n->reach.lost < 0) {
        n->reach.lost = (int)n->reach.at;
        native_seek(n);
    } else {
        native_seek_later(n);
    }
}

void native_deserted(struct native *n) {
    if (n->part.phase == PARTICIPANT_BARRIER) {
        participant_end_barrier(&n->part);
    } else if (n->owes_stop) {
        n->owes_stop = false;
        end_or_linger(n);
    } else if (n->part.phase == PARTICIPANT_MEMBER && !n->reach.was_deserted &&
               native_now_ms(n) - n->reach.lost_ms >= n->part.rdzv->options.stop_timeout_ms) {
        n->reach.was_deserted = true; /* others who have not heard that the job stops go on by now */
        rdzv_tell_change(n->part.rdzv, RDZV_CUT_OFF, "the coordinator is lost, and no other one is found in time");
    }
}

void native_lost(struct native *n, int status) {
    if (n->finder->missed) {
        n->finder->missed(n, status);
    }
    switch (n->part.phase) {
    case PARTICIPANT_JOINING:
        lost_while_joining(n, status);
        return;
    case PARTICIPANT_MEMBER:
        lost_while_member(n, status);
        return;
    case PARTICIPANT_BARRIER:
        lost_while_done(n);
        return;
    case PARTICIPANT_ENDING:
        /* The LEAVE may have been said to one that was dead by then. */
        n->owes_stop = n->owes_stop || is_stop_untold(n);
        if (n->owes_stop) {
            native_seek_later(n);
        } else {
            end_or_linger(n);
        }
        return;
    case PARTICIPANT_IDLE:
    case PARTICIPANT_DONE:
    case PARTICIPANT_OVER:
        return;
    }
}

/* ---- its life ---- */

static const struct participant_way way = {.send = send_message,
                                           .ask = ask,
                                           .describe = describe,
                                           .report_unreached = report_unreached,
                                           .entered = entered,
                                           .is_needed = is_needed,
                                           .let_go = let_go,
                                           .refused = on_refused,
                                           .closed = drop_way,
                                           .end = end_way};

static int open_tls(struct native *n, const struct rdzv_tls_conf *conf) {
    const struct tls_files files = {.certificate = conf->cert_file, .key = conf->key_file, .authority = conf->ca_file};
    return conf->cert_file[0] != '\0' ? tls_context_create(&files, &n->tls) : MUSTER_OK;
}

static int start(struct rdzv *r) {
    const struct rdzv_options *o = &r->options;
    struct native *n = calloc(1, sizeof *n);
    if (!n) {
        return status_fail(MUSTER_ENOMEM, "no memory for a rendezvous");
    }
    r->state = n;
    participant_init(&n->part, r, &way);
    n->reach.own = n->reach.lost = -1; /* the end of a start that fails looks at these */
    n->finder = &native_endpoint_finder;
    if (random_fill(n->identity, sizeof n->identity) != 0) {
        return status_fail(MUSTER_ESYSTEM, "no random numbers for this agent's identity");
    }
    int rc = o->secret ? secret_create(o->secret, &n->secret) : MUSTER_OK;
    rc = rc == MUSTER_OK && n->secret ? admission_server_create(n->secret, o->run_id, &n->admission_server) : rc;
    rc = rc ? rc : open_tls(n, &o->conf.tls);
    struct coordinator_server_options server = {
        .secret = n->secret,
        .tls = n->tls,
    };
    rc = rc ? rc : coordinator_settings_read(o, &server.coordinator);
    server.coordinator.places.author = n->identity[0];
    return rc ? rc : native_reach_start(n, &server);
}

/* ---- the agent's calls ---- */

static void drop_admission(struct native *n) {
    n->awaits_answer = false;
    admission_client_close(n->admission);
    n->admission = NULL;
}

static void join(struct native *n) {
    drop_admission(n);
    if (n->is_detached) {
        participant_fail(&n->part,
                         status_fail(MUSTER_ECLOSED, "no further round can be formed: the node that served the "
                                                     "rendezvous has succeeded and ended"));
        return;
    }
    participant_join(&n->part);
    n->reach.is_checking = false;
    int rc = n->reach.is_open ? send_join(n) : MUSTER_OK;
    if (rc != MUSTER_OK) {
        participant_fail(&n->part, rc);
    } else if (!n->reach.session) {
        native_seek(n);
    } else { /* or it is on its way */
        native_seek_better(n);
    }
}

static void on_join(struct rdzv *r) {
    join(r->state);
}

static bool preempt(struct rdzv *r, uint64_t grace_ms, const char *why) {
    struct native *n = r->state;
    bool is_between = n->part.phase == PARTICIPANT_IDLE && n->reach.lost >= 0; /* coordinators */
    if (n->is_detached) {
        return false;
    }
    if (is_between) {
        n->part.phase = PARTICIPANT_MEMBER;
    }
    bool said = participant_preempt(r, grace_ms, why);
    if (is_between) {
        native_seek(n);
    }
    return said || (participant_takes_part(&n->part) && stop_left_ms(n) > 0); /* the next coordinator will be told */
}

static void barrier(struct rdzv *r) {
    struct native *n = r->state;
    if (n->is_detached) {
        rdzv_tell_barrier_done(r);
        return;
    }
    bool is_between = n->part.phase == PARTICIPANT_IDLE || (n->part.phase == PARTICIPANT_MEMBER && !n->reach.is_open);
    if (is_between && n->reach.lost >= 0) { /* the coordinator was lost before it could hear of it */
        n->part.phase = PARTICIPANT_BARRIER;
        n->part.heard_until_known = 1; /* by the next one, which the JOIN tells */
        participant_wait_at_most(&n->part, RDZV_BARRIER_TIMEOUT_MS);
        native_seek(n);
        return;
    }
    participant_barrier(r);
}

/* A CLOSE is answered by CLOSED, a LEAVE by the end of the connection: then it has been heard. */
static void shutdown_node(struct rdzv *r, bool close_job) {
    struct native *n = r->state;
    drop_admission(n);
    bool said = participant_say_farewell(&n->part, close_job);
    n->owes_stop = !said && is_stop_untold(n);
    if (said || n->owes_stop) {
        /* Who was in no world has nothing to say that the end of its connection does not. */
        bool is_brief = !n->owes_stop && (native_reach_is_mute(n) || n->part.membership.last_round == 0);
        participant_wait_at_most(&n->part, is_brief ? BRIEF_FAREWELL_MS : r->options.conf.close_timeout_ms);
    }
    if (n->owes_stop) {
        native_seek(n);
    } else if (!said) {
        end_or_linger(n);
    }
}

static void stop(struct rdzv *r) {
    struct native *n = r->state;
    if (n) {
        admission_client_close(n->admission);
        native_reach_stop(n);
        kv_server_close(n->worker_store);
        admission_server_free(n->admission_server);
        secret_free(n->secret);
        tls_context_free(n->tls);
        free(n);
    }
}

#define NATIVE_TABLE(most_nodes)                                                                                       \
    {                                                                                                                  \
        .nodes_max = (most_nodes), .orders_by_name = true, .start = start, .join = on_join,                            \
        .worker_failed = participant_worker_failed, .preempt = preempt, .barrier = barrier, .shutdown = shutdown_node, \
        .settles_cause = true, .is_needed_after_failure = true, .stop = stop                                           \
    }

const struct rdzv_backend_table rdzv_native = NATIVE_TABLE(COORDINATOR_NODES_MAX);
const struct rdzv_backend_table rdzv_etcd3 = NATIVE_TABLE(RDZV_NODES_MAX);
