/* The rules of the rounds; see coordinator.h. Members are kept by coordinator_member.c, ranked by coordinator_order.c,
 * and what happened to them is worded by coordinator_news.c.
 *
 * Every event first puts its member where it belongs now, then calls settle(), which looks at the whole: is the job
 * over, can spares be let in, can the round close? */
#include "rendezvous/coordinator.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "rendezvous/coordinator_impl.h"

static const struct kv_slice no_text = {.len = 0};

int coordinator_create(const struct coordinator_settings *settings, coordinator_send_fn *send, void *ctx,
                       struct coordinator **out) {
    assert(settings->min_nodes > 0 && settings->min_nodes <= settings->max_nodes);
    size_t run_id_bytes = strlen(settings->run_id) + 1;
    struct coordinator *c = malloc(sizeof *c + run_id_bytes);
    if (!c) {
        return status_fail(MUSTER_ENOMEM, "no memory for the rendezvous' coordinator");
    }
    *c = (struct coordinator){.settings = *settings, .send = send, .send_ctx = ctx, .last_call_ms = INT64_MAX};
    memcpy(c->run_id, settings->run_id, run_id_bytes);
    c->settings.run_id = c->run_id;
    hash_init(&c->members, settings->hash_seed, offsetof(struct coordinator_member, identity));
    hash_init(&c->roles, settings->hash_seed, offsetof(struct coordinator_role, name));
    *out = c;
    return MUSTER_OK;
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

static size_t count_of(const struct coordinator *c, enum coordinator_place place) {
    return c->places[place].count;
}

/* ---- telling ---- */

static void tell(const struct coordinator *c, void *session, enum coordinator_kind kind, struct kv_slice text) {
    struct coordinator_message message = {.kind = kind, .text = text};
    c->send(c->send_ctx, session, &message);
}

static void tell_and_let_go(struct coordinator *c, enum coordinator_place place, enum coordinator_kind kind,
                            struct kv_slice text) {
    while (c->places[place].first) {
        struct coordinator_member *member = c->places[place].first;
        coordinator_member_move(c, member, COORDINATOR_OUT);
        tell(c, member->session, kind, text);
    }
}

/* With the thread's status detail as the reason. */
static void refuse(const struct coordinator *c, void *session, int status) {
    struct coordinator_message message = {
        .kind = COORDINATOR_REFUSED, .status = status, .text = kv_slice_text(muster_detail())};
    c->send(c->send_ctx, session, &message);
}

/* The world is no longer the right one: opens a round, unless one is open. `knows` (may be NULL) need not be told. */
static void begin_change(struct coordinator *c, enum coordinator_change change,
                         const struct coordinator_member *knows) {
    char text[COORDINATOR_TEXT_BYTES_MAX];
    if (c->phase != COORDINATOR_RUNNING) {
        return;
    }
    c->phase = COORDINATOR_FORMING;
    struct coordinator_message message = {
        .kind = COORDINATOR_CHANGE, .change = change, .text = coordinator_news_text(&c->news, text)};
    for (struct coordinator_member *m = c->places[COORDINATOR_ACTIVE].first; m; m = m->next) {
        if (m != knows) {
            c->send(c->send_ctx, m->session, &message);
        }
    }
    while (c->places[COORDINATOR_DONE_WAITS].first) {
        struct coordinator_member *m = c->places[COORDINATOR_DONE_WAITS].first;
        coordinator_member_move(c, m, COORDINATOR_OUT);
        c->send(c->send_ctx, m->session, &message);
    }
}

/* ---- settling ---- */

static void forget_news(struct coordinator *c) {
    c->news.len = 0;
    c->news.omitted_count = 0;
}

/* The job has ended: `why` is for those who still wanted something of it, and for those who come too late. */
static void end_job(struct coordinator *c, struct kv_slice why) {
    c->phase = COORDINATOR_OVER;
    forget_news(c);
    struct kv_slice short_why = coordinator_text_clip(why, COORDINATOR_WHY_BYTES_MAX);
    memcpy(c->news.text, short_why.data, short_why.len);
    c->news.len = short_why.len;
    for (size_t place = 0; place < COORDINATOR_OUT; place++) {
        tell_and_let_go(c, (enum coordinator_place)place, COORDINATOR_CLOSED, why);
    }
}

/* Somebody of the world is done, all the others are done or gone, and nobody has come back from it for more. */
static bool is_done(const struct coordinator *c) {
    return c->any_done && count_of(c, COORDINATOR_ACTIVE) == 0 && c->veteran_count == 0;
}

static bool has_free_place(const struct coordinator *c) {
    size_t taken = c->phase == COORDINATOR_FORMING
                       ? count_of(c, COORDINATOR_ACTIVE) + count_of(c, COORDINATOR_JOINED)
                       : count_of(c, COORDINATOR_ACTIVE) + count_of(c, COORDINATOR_DONE_WAITS);
    return taken < c->settings.max_nodes;
}

static void let_in(struct coordinator *c, struct coordinator_member *member) {
    coordinator_member_move(c, member, COORDINATOR_JOINED);
    if (c->round > 0) {
        coordinator_news_add(&c->news, member, "has come", no_text);
    }
}

static void let_spares_in(struct coordinator *c) {
    while (c->phase == COORDINATOR_FORMING && count_of(c, COORDINATOR_SPARED) > 0 && has_free_place(c)) {
        let_in(c, c->places[COORDINATOR_SPARED].first);
    }
}

/* Nobody is known who could be waited for, or the user wants time for late ones. */
static bool needs_last_call(const struct coordinator *c) {
    return c->settings.last_call_given || c->veteran_count == 0;
}

/* Nobody has to answer, and there are enough: all that the round can still want is time. */
static bool is_complete_but_for_time(const struct coordinator *c) {
    return c->phase == COORDINATOR_FORMING && count_of(c, COORDINATOR_ACTIVE) == 0 &&
           count_of(c, COORDINATOR_JOINED) >= c->settings.min_nodes;
}

/* The last call begins when there are enough, and anew if some of them go. */
static void watch_last_call(struct coordinator *c, int64_t now_ms) {
    if (c->phase != COORDINATOR_FORMING || count_of(c, COORDINATOR_JOINED) < c->settings.min_nodes) {
        c->last_call_ms = INT64_MAX;
    } else if (c->last_call_ms == INT64_MAX) {
        c->last_call_ms = now_ms + c->settings.last_call_timeout_ms;
    }
}

static bool can_close(const struct coordinator *c, int64_t now_ms) {
    return is_complete_but_for_time(c) && (count_of(c, COORDINATOR_JOINED) == c->settings.max_nodes ||
                                           !needs_last_call(c) || now_ms >= c->last_call_ms);
}

/* Round numbers go on where another coordinator of the job has stopped. */
static uint64_t next_round(const struct coordinator *c) {
    uint64_t last = c->round;
    for (const struct coordinator_member *m = c->places[COORDINATOR_JOINED].first; m; m = m->next) {
        last = m->last_round > last ? m->last_round : last;
    }
    return last + 1;
}

static void close_round(struct coordinator *c) {
    c->round = next_round(c);
    c->phase = COORDINATOR_RUNNING;
    c->any_done = false;
    c->last_call_ms = INT64_MAX;
    size_t count = coordinator_order_tell(c);
    for (size_t i = 0; i < count; i++) {
        coordinator_member_move(c, c->order[i], COORDINATOR_ACTIVE);
    }
    forget_news(c);
}

static void settle(struct coordinator *c, int64_t now_ms) {
    if (c->phase == COORDINATOR_OVER) {
        return;
    }
    if (is_done(c)) {
        tell_and_let_go(c, COORDINATOR_DONE_WAITS, COORDINATOR_ALL_DONE, no_text);
        end_job(c, kv_slice_text("all nodes that took part are done"));
        return;
    }
    let_spares_in(c);
    watch_last_call(c, now_ms);
    if (can_close(c, now_ms)) {
        close_round(c);
    }
}

/* ---- joining ---- */

static int check_job(const struct coordinator *c, const struct coordinator_node *node) {
    if (!kv_slice_equal(node->run_id, kv_slice_text(c->run_id))) {
        return status_fail(MUSTER_EINVAL,
                           "this endpoint serves the job \"%s\": give all nodes the same --rdzv-id, or "
                           "this one another endpoint",
                           c->run_id);
    }
    if (node->min_nodes != c->settings.min_nodes || node->max_nodes != c->settings.max_nodes) {
        return status_fail(MUSTER_EINVAL,
                           "this node was started with --nnodes=%u:%u, the job has %u:%u: start all "
                           "nodes with the same",
                           node->min_nodes, node->max_nodes, c->settings.min_nodes, c->settings.max_nodes);
    }
    if (node->local_world_size == 0 || node->addr.len == 0) {
        return status_fail(MUSTER_EPROTOCOL, "a node without workers, or without an address, cannot take part");
    }
    return MUSTER_OK;
}

static int check_open(const struct coordinator *c) {
    return c->phase != COORDINATOR_OVER
               ? MUSTER_OK
               : status_fail(MUSTER_ECLOSED, "the job is over (%.*s): start it anew to run it again", (int)c->news.len,
                             c->news.text);
}

static struct coordinator_member *join_first(struct coordinator *c, void *session, const struct coordinator_node *node,
                                             int64_t now_ms) {
    int rc = check_job(c, node);
    rc = rc == MUSTER_OK ? check_open(c) : rc;
    struct coordinator_member *member = NULL;
    rc = rc == MUSTER_OK ? coordinator_member_new(c, node, session, &member) : rc;
    if (rc != MUSTER_OK) {
        refuse(c, session, rc);
        return NULL;
    }
    if (!has_free_place(c) || (c->phase == COORDINATOR_RUNNING && c->any_done)) {
        coordinator_member_move(c, member, COORDINATOR_SPARED);
        tell(c, session, COORDINATOR_SPARE, no_text);
    } else {
        let_in(c, member);
        begin_change(c, COORDINATOR_NODE_ARRIVED, NULL);
    }
    settle(c, now_ms);
    return member;
}

/* Does this JOIN answer the world that its member is in? See "names that world's round" in coordinator.h. */
static bool answers(const struct coordinator *c, const struct coordinator_member *member,
                    const struct coordinator_node *node) {
    return member->place == COORDINATOR_ACTIVE && node->last_round == c->round;
}

static int check_again(struct coordinator *c, struct coordinator_member *member, const struct coordinator_node *node) {
    int rc = check_job(c, node);
    if (rc == MUSTER_OK && (member->place == COORDINATOR_DONE_WAITS || member->place == COORDINATOR_OUT)) {
        rc = status_fail(MUSTER_EPROTOCOL, "this node is done: it has no part in a later round");
    }
    return rc != MUSTER_OK ? rc : coordinator_member_update(c, member, node);
}

static struct coordinator_member *join_again(struct coordinator *c, struct coordinator_member *member,
                                             const struct coordinator_node *node, int64_t now_ms) {
    if (c->phase == COORDINATOR_OVER || (member->place == COORDINATOR_ACTIVE && !answers(c, member, node))) {
        return member; /* CLOSED, or the WORLD, is on its way */
    }
    int rc = check_again(c, member, node);
    if (rc != MUSTER_OK) {
        refuse(c, member->session, rc);
        coordinator_gone(c, member, kv_slice_text(muster_detail()), now_ms);
        return NULL;
    }
    if (member->place == COORDINATOR_ACTIVE) {
        bool unasked = c->phase == COORDINATOR_RUNNING;
        coordinator_member_move(c, member, COORDINATOR_JOINED);
        member->veteran = true;
        c->veteran_count++;
        if (unasked) {
            coordinator_news_add(&c->news, member, "joins anew", no_text);
            begin_change(c, COORDINATOR_NODE_LEFT, NULL);
        }
        settle(c, now_ms);
    }
    return member;
}

struct coordinator_member *coordinator_join(struct coordinator *c, struct coordinator_member *member, void *session,
                                            const struct coordinator_node *node, int64_t now_ms) {
    return member ? join_again(c, member, node, now_ms) : join_first(c, session, node, now_ms);
}

/* ---- the other events ---- */

void coordinator_failed(struct coordinator *c, struct coordinator_member *member, struct kv_slice why, int64_t now_ms) {
    if (member->place != COORDINATOR_ACTIVE) {
        return;
    }
    coordinator_news_add(&c->news, member, "failed", why);
    begin_change(c, COORDINATOR_NODE_FAILED, member);
    settle(c, now_ms);
}

void coordinator_done(struct coordinator *c, struct coordinator_member *member, int64_t now_ms) {
    if (member->place != COORDINATOR_ACTIVE) {
        return;
    }
    c->any_done = true;
    /* While a round is open it has been told that the world has ended: it need not wait for anybody. */
    coordinator_member_move(c, member, c->phase == COORDINATOR_RUNNING ? COORDINATOR_DONE_WAITS : COORDINATOR_OUT);
    settle(c, now_ms);
}

void coordinator_close(struct coordinator *c, struct coordinator_member *member, struct kv_slice why) {
    if (member->place != COORDINATOR_OUT) {
        end_job(c, why.len > 0 ? why : kv_slice_text("a node has closed it"));
    }
}

void coordinator_gone(struct coordinator *c, struct coordinator_member *member, struct kv_slice why, int64_t now_ms) {
    enum coordinator_place place = member->place;
    if (place == COORDINATOR_ACTIVE || (place == COORDINATOR_JOINED && c->round > 0)) {
        coordinator_news_add(&c->news, member, why.len > 0 ? "has left" : "is lost (its connection has ended)", why);
    }
    coordinator_member_free(c, member);
    if (place == COORDINATOR_ACTIVE && !is_done(c)) {
        begin_change(c, COORDINATOR_NODE_LEFT, NULL);
    }
    settle(c, now_ms);
}

void coordinator_tick(struct coordinator *c, int64_t now_ms) {
    settle(c, now_ms);
}

int64_t coordinator_wake_ms(const struct coordinator *c) {
    return is_complete_but_for_time(c) ? c->last_call_ms : INT64_MAX;
}

void coordinator_look(const struct coordinator *c, struct coordinator_view *out) {
    *out = (struct coordinator_view){
        .phase = c->phase,
        .round = c->round,
        .active_count = count_of(c, COORDINATOR_ACTIVE),
        .joined_count = count_of(c, COORDINATOR_JOINED),
        .spare_count = count_of(c, COORDINATOR_SPARED),
        .done_count = count_of(c, COORDINATOR_DONE_WAITS),
        .member_count = c->members.count,
    };
}
