/* A node comes to the coordinator, or comes again: what is refused, who gets a place, and who waits for one. Private to
 * the rules of the rounds (coordinator.c). */
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "rendezvous/coordinator/coordinator_impl.h"

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
    if (node->endpoints != c->settings.places.endpoints) {
        return status_fail(MUSTER_EINVAL,
                           "this node was started with another --rdzv-endpoint than the one that serves the job: give "
                           "all nodes the same list of endpoints, in the same order and spelling");
    }
    if (node->local_world_size == 0 || node->addr.len == 0) {
        return status_fail(MUSTER_EPROTOCOL, "a node without workers, or without an address, cannot take part");
    }
    return MUSTER_OK;
}

/* One that was a spare elsewhere ends as the job did. */
static int check_open(const struct coordinator *c, const struct coordinator_node *node) {
    const char *late = node->last_round == 0 ? "this agent has come too late, and had no part in the job: " : "";
    if (c->is_stopping && c->phase != COORDINATOR_OVER) {
        return status_fail(MUSTER_EABORTED, "%sthe job is stopping, since a node is taken away: start it anew", late);
    }
    if (c->phase != COORDINATOR_OVER) {
        return MUSTER_OK;
    }
    return status_fail(c->has_failed || c->is_stopping ? MUSTER_EABORTED : MUSTER_ECLOSED,
                       "%sthe job %s (%.*s): start it anew to run it again", late,
                       c->has_failed ? "has failed" : "is over", (int)c->news.len, c->news.text);
}

/* Is a world that runs to be broken up for one more? */
static bool may_grow(const struct coordinator *c, int64_t now_ms) {
    return !c->any_done && coordinator_budget_allows(&c->budget, COORDINATOR_CHARGE_CHANGE, now_ms);
}

/* A node that was done when it lost its coordinator. Where the world goes on without it, it can go. */
static void join_done(struct coordinator *c, struct coordinator_member *member) {
    if (c->round > 0 || !coordinator_has_rivals(c)) {
        const struct coordinator_message change = {.kind = COORDINATOR_CHANGE, .change = COORDINATOR_NODE_LEFT};
        c->send(c->send_ctx, member->session, &change);
        return;
    }
    coordinator_end_note_done(c, member);
    coordinator_member_move(c, member, COORDINATOR_DONE_WAITS);
}

static bool must_stand_by(const struct coordinator *c, const struct coordinator_node *node, int64_t now_ms) {
    return !(coordinator_has_free_place(c, now_ms) || coordinator_quorum_awaits(c, node, now_ms)) ||
           (c->phase == COORDINATOR_RUNNING && !may_grow(c, now_ms));
}

/* It comes back for more. */
static void set_returning(struct coordinator *c, struct coordinator_member *member, bool is_one) {
    c->returning_count = c->returning_count - member->is_returning + is_one;
    member->is_returning = is_one;
}

/* Whoever waits for a place that is free, in a world that is not to be broken up for it, is not one too many. */
static int check_spares(const struct coordinator *c, int64_t now_ms) {
    size_t taken = coordinator_count_taken(c, now_ms), places = c->settings.max_nodes;
    size_t allowed = c->settings.max_spares + (taken < places ? places - taken : 0);
    if (!c->settings.limits_spares || coordinator_count_of(c, COORDINATOR_SPARED) < allowed) {
        return MUSTER_OK;
    }
    return status_fail(MUSTER_ELIMIT,
                       "all places are taken, and %zu spare node%s already: start the node that serves the "
                       "rendezvous with a larger --spares to keep more",
                       coordinator_count_of(c, COORDINATOR_SPARED),
                       coordinator_count_of(c, COORDINATOR_SPARED) == 1 ? " waits" : "s wait");
}

/* A job of one node has no use for another one, unless warm spares are wanted. The node that serves this coordinator
 * stays: the job needs it. */
static int check_second(const struct coordinator *c, const struct coordinator_node *node) {
    bool wants_spares = c->settings.limits_spares && c->settings.max_spares > 0;
    const struct coordinator_member *active = c->places[COORDINATOR_ACTIVE].first;
    const struct coordinator_member *holder = active ? active : c->places[COORDINATOR_JOINED].first;
    char name[COORDINATOR_NAME_BYTES_MAX + 32];
    if (c->settings.max_nodes > 1 || wants_spares || node->is_host || !holder) {
        return MUSTER_OK;
    }
    return status_fail(
        MUSTER_ELIMIT,
        "the job '%s' has one node (--nnodes=1), and it runs already: node %s. Another job needs another "
        "port in --rdzv-endpoint or, with an etcd, another --rdzv-id, or --standalone",
        c->run_id, coordinator_member_name(holder, name, sizeof name));
}

/* Those who wait are told, too: it may be one of theirs, started with other options. */
static void note_turned_away(struct coordinator *c, const struct coordinator_node *node) {
    const struct kv_slice name = coordinator_text_clip(node->host_name.len > 0 ? node->host_name : node->addr, 100);
    const struct kv_slice run_id = coordinator_text_clip(node->run_id, 100);
    (void)str_format(c->turned_away, sizeof c->turned_away,
                     "; turned away: %.*s (pid %lld), which has --rdzv-id=%.*s --nnodes=%u:%u", (int)name.len,
                     (const char *)name.data, (long long)node->pid, (int)run_id.len, (const char *)run_id.data,
                     node->min_nodes, node->max_nodes);
}

static struct coordinator_member *join_first(struct coordinator *c, void *session, const struct coordinator_node *node,
                                             int64_t now_ms) {
    bool stops = coordinator_stop_concerns(c, node);
    int rc = check_job(c, node);
    if (rc == MUSTER_EINVAL) {
        note_turned_away(c, node);
    }
    rc = rc == MUSTER_OK && !stops ? check_open(c, node) : rc;
    if (rc == MUSTER_OK) {
        coordinator_absent_returned(c, node);
        coordinator_budget_learn(&c->budget, &node->charges);
    }
    bool is_spare = !node->is_done && node->stop_ms == 0 && !stops && must_stand_by(c, node, now_ms);
    rc = rc == MUSTER_OK && is_spare ? check_second(c, node) : rc;
    rc = rc == MUSTER_OK && is_spare ? check_spares(c, now_ms) : rc;
    struct coordinator_member *member = NULL;
    rc = rc == MUSTER_OK ? coordinator_member_new(c, node, session, &member) : rc;
    if (rc != MUSTER_OK) {
        coordinator_refuse(c, session, rc);
        return NULL;
    }
    if (stops) {
        coordinator_stop_join(c, member, node, now_ms);
        coordinator_settle(c, now_ms);
        return member;
    }
    if (node->is_done || node->stop_ms > 0) {
        join_done(c, member);
    } else if (is_spare) {
        coordinator_member_move(c, member, COORDINATOR_SPARED);
        coordinator_tell_spare(c, member);
    } else {
        coordinator_let_in(c, member);
        coordinator_begin_change(c, COORDINATOR_NODE_ARRIVED, COORDINATOR_CHARGE_CHANGE, NULL, now_ms);
    }
    coordinator_quorum_learn(c, member, node, true, now_ms);
    coordinator_settle(c, now_ms);
    return member;
}

/* Does this JOIN answer the world that its member is in? See "names that world's round" in coordinator.h. */
static bool answers(const struct coordinator *c, const struct coordinator_member *member,
                    const struct coordinator_node *node) {
    return member->place == COORDINATOR_ACTIVE && node->last_round == c->round;
}

/* It came when its coordinator was lost, and knows more of that now. */
static bool says_more(const struct coordinator *c, const struct coordinator_member *member,
                      const struct coordinator_node *node) {
    return member->place == COORDINATOR_DONE_WAITS ? node->is_done
           : member->place == COORDINATOR_ACTIVE   ? c->is_stopping && node->stop_ms > 0
                                                   : coordinator_has_rivals(c);
}

static int check_again(struct coordinator *c, struct coordinator_member *member, const struct coordinator_node *node) {
    int rc = check_job(c, node);
    bool was_done = member->place == COORDINATOR_DONE_WAITS && !node->is_done;
    if (rc == MUSTER_OK && (was_done || member->place == COORDINATOR_OUT)) {
        rc = status_fail(MUSTER_EPROTOCOL, "this node is done: it has no part in a later round");
    }
    return rc != MUSTER_OK ? rc : coordinator_member_update(c, member, node);
}

static struct coordinator_member *join_again(struct coordinator *c, struct coordinator_member *member,
                                             const struct coordinator_node *node, int64_t now_ms) {
    bool adds = says_more(c, member, node);
    if (c->phase == COORDINATOR_OVER) {
        coordinator_end_answered(c, member, now_ms);
        return member; /* CLOSED is on its way */
    }
    if (member->place == COORDINATOR_ACTIVE && !adds && !answers(c, member, node)) {
        return member; /* the WORLD is on its way */
    }
    int rc = check_again(c, member, node);
    if (rc != MUSTER_OK) {
        coordinator_refuse(c, member->session, rc);
        coordinator_gone(c, member, kv_slice_text(muster_detail()), now_ms);
        return NULL;
    }
    if (adds) {
        coordinator_quorum_learn(c, member, node, false, now_ms);
        coordinator_settle(c, now_ms);
    } else if (member->place == COORDINATOR_ACTIVE && c->is_stopping) { /* STOP is on its way */
        coordinator_member_move(c, member, COORDINATOR_OUT);
        coordinator_settle(c, now_ms);
    } else if (member->place == COORDINATOR_ACTIVE) {
        bool unasked = c->phase == COORDINATOR_RUNNING;
        coordinator_member_move(c, member, COORDINATOR_JOINED);
        set_returning(c, member, true);
        if (unasked) {
            coordinator_news_add(&c->news, member, "joins anew", kv_slice_of(NULL, 0));
            coordinator_begin_change(c, COORDINATOR_NODE_LEFT, COORDINATOR_CHARGE_CHANGE, NULL, now_ms);
        }
        coordinator_settle(c, now_ms);
    }
    return member;
}

struct coordinator_member *coordinator_join(struct coordinator *c, struct coordinator_member *member, void *session,
                                            const struct coordinator_node *node, int64_t now_ms) {
    return member ? join_again(c, member, node, now_ms) : join_first(c, session, node, now_ms);
}
