/* The rendezvous state machine; see machine.h. Each phase is a table of rules, tried from the top: the first condition
 * that holds names the operation. Operations change the local state, after which the rules are tried again, until one
 * that ends the turn is reached; what was changed then goes out in one write, and a verdict is only given on a state
 * that the store is known to hold. Row numbers in comments are those of docs/rendezvous.md, "Joining". */
#include "rendezvous/torch/machine.h"

#include <assert.h>

#include "base/absence.h"

/* PyTorch's agents look once a second, and then stop their workers. */
enum { ROLLBACK_MS = 5000, REREAD_MS = 1000, LINGER_MS = 3000, OPERATIONS_MAX = 8 };
enum { MARGIN_PART = 8 }; /* of a lease: by then workers that must end have ended, on a busy machine as well */

/* ---- conditions ---- */

typedef bool condition(const struct rdzv_machine *m, struct rdzv_now now);

static bool self_is(const struct rdzv_machine *m, unsigned lists) {
    return rdzv_state_is(&m->state, &m->self, lists);
}

static size_t participants(const struct rdzv_machine *m) {
    return rdzv_state_count(&m->state, RDZV_PARTICIPANT);
}

static bool has_place(const struct rdzv_machine *m) {
    return participants(m) < m->settings.max_nodes;
}

static bool always(const struct rdzv_machine *m, struct rdzv_now now) {
    (void)m;
    (void)now;
    return true;
}

static bool closed(const struct rdzv_machine *m, struct rdzv_now now) {
    (void)now;
    return m->state.closed;
}

static bool closed_on_spare(const struct rdzv_machine *m, struct rdzv_now now) {
    return closed(m, now) &&
           (m->was_spare || self_is(m, RDZV_SPARE) || (m->barred_round >= 0 && m->state.round == m->barred_round));
}

static bool spare_without_place(const struct rdzv_machine *m, struct rdzv_now now) {
    (void)now;
    return self_is(m, RDZV_SPARE) && !has_place(m);
}

static bool waits_outside(const struct rdzv_machine *m) {
    return self_is(m, RDZV_WAITING) && m->state.complete && m->state.round == m->barred_round;
}

static bool spare_with_place(const struct rdzv_machine *m, struct rdzv_now now) {
    (void)now;
    return self_is(m, RDZV_SPARE) && has_place(m);
}

static bool member_of_old_round(const struct rdzv_machine *m, struct rdzv_now now) {
    (void)now;
    return m->state.complete && m->state.round < m->min_round && self_is(m, RDZV_PARTICIPANT);
}

static bool member_of_complete_round(const struct rdzv_machine *m, struct rdzv_now now) {
    (void)now;
    return m->state.complete && self_is(m, RDZV_PARTICIPANT);
}

/* Somebody left the completed round before this node saw it: too few are left, or the ranks have a hole. Or a member
 * looks silent to this node alone: the others have a world with it. (PyTorch would go on with a smaller world than
 * theirs.) */
static bool member_of_broken_round(const struct rdzv_machine *m, struct rdzv_now now) {
    if (!member_of_complete_round(m, now)) {
        return false;
    }
    int64_t count = (int64_t)participants(m);
    if (count < m->settings.min_nodes || (size_t)count < m->stored_count) {
        return true;
    }
    for (size_t i = 0; i < m->state.member_count; i++) {
        const struct rdzv_member *at = &m->state.members[i];
        if ((at->lists & RDZV_PARTICIPANT) && (at->rank < 0 || at->rank >= count)) {
            return true;
        }
    }
    return false;
}

/* Its heartbeat may be what a node has left behind that was killed a moment ago, and of which this one is to take the
 * place. */
static bool is_there(const struct rdzv_machine *m, const struct rdzv_member *at) {
    const struct rdzv_sighting *sighting = rdzv_roster_find(&m->roster, &at->node);
    return m->settings.knows_departures || (sighting && sighting->renewed && !sighting->gone);
}

const struct rdzv_node *rdzv_machine_holder(const struct rdzv_machine *m) {
    bool is_one_too_many = m->settings.max_nodes == 1 && !m->settings.serves_others && !self_is(m, RDZV_PARTICIPANT);
    for (size_t i = 0; is_one_too_many && i < m->state.member_count; i++) {
        const struct rdzv_member *at = &m->state.members[i];
        if ((at->lists & RDZV_PARTICIPANT) && is_there(m, at)) {
            return &at->node;
        }
    }
    return NULL;
}

/* A job of one node has no use for another one. */
static bool taken(const struct rdzv_machine *m, struct rdzv_now now) {
    (void)now;
    return rdzv_machine_holder(m) != NULL;
}

static bool taken_but_listed(const struct rdzv_machine *m, struct rdzv_now now) {
    return taken(m, now) && self_is(m, RDZV_LISTED);
}

static bool late(const struct rdzv_machine *m, struct rdzv_now now) {
    return now.monotonic_ms > m->deadline_ms;
}

static bool late_but_listed(const struct rdzv_machine *m, struct rdzv_now now) {
    return late(m, now) && now.monotonic_ms <= m->deadline_ms + ROLLBACK_MS &&
           self_is(m, RDZV_PARTICIPANT | RDZV_WAITING);
}

static bool may_wait(const struct rdzv_machine *m, struct rdzv_now now) {
    (void)now;
    return m->state.complete && has_place(m) && !self_is(m, RDZV_WAITING);
}

/* PyTorch leaves a node that waits when the round fills up in the wait list, where it makes the members restart for
 * ever; it becomes a spare instead. */
static bool must_be_spare(const struct rdzv_machine *m, struct rdzv_now now) {
    (void)now;
    return m->state.complete && !has_place(m);
}

/* After a failure, a departure or an arrival nobody unknown is expected: the round closes when all are there. A node
 * that has seen no complete round cannot tell, and waits as in a first round. */
static bool everybody_is_here(const struct rdzv_machine *m, struct rdzv_now now) {
    return !m->settings.last_call_given && m->last_complete_round >= 0 && m->state.round > m->last_complete_round &&
           rdzv_roster_all_joined(&m->roster, &m->state, now);
}

/* The deadline in the state is by the wall clock of another node, which may be wrong; PyTorch's agents obey it. Here it
 * only identifies the last call, whose time this node measures itself, from when it first saw it. So a clock that is
 * ahead by more than the last call takes does not close every round before the others are in, who would then break it
 * up again for ever. A clock that is behind keeps nobody waiting, nor does the deadline of a node that is gone. A node
 * that was there when the round had enough nodes closes it on time. A later one waits for as long at most, and only if
 * all of those have gone. */
static bool last_call_is_over(const struct rdzv_machine *m, struct rdzv_now now) {
    return m->state.has_deadline && m->state.deadline_us == m->last_call_us &&
           now.monotonic_ms > m->last_call_seen_ms + m->settings.last_call_timeout_ms;
}

static bool may_complete(const struct rdzv_machine *m, struct rdzv_now now) {
    size_t count = participants(m);
    if (m->state.complete || !self_is(m, RDZV_PARTICIPANT) || count < m->settings.min_nodes) {
        return false;
    }
    return count >= m->settings.max_nodes || last_call_is_over(m, now) || everybody_is_here(m, now);
}

static bool may_participate(const struct rdzv_machine *m, struct rdzv_now now) {
    (void)now;
    return !m->state.complete && !self_is(m, RDZV_PARTICIPANT);
}

static bool heartbeat_due(const struct rdzv_machine *m, struct rdzv_now now) {
    const struct rdzv_member *self = rdzv_state_find(&m->state, &m->self);
    if (!self || !(self->lists & RDZV_LISTED)) {
        return false;
    }
    /* A heartbeat from the future, after the clock was set back, would keep us silent. */
    int64_t age_us = now.wall_us - self->heartbeat_us;
    int64_t interval_us = m->settings.keep_alive_interval_ms * 1000;
    return !(self->lists & RDZV_HEARTBEAT) || age_us >= interval_us || age_us < -interval_us;
}

static bool member_missing(const struct rdzv_machine *m, struct rdzv_now now) {
    (void)now;
    if (m->told == RDZV_VERDICT_NODE_LEFT) {
        return false;
    }
    return !m->state.complete || m->state.round != m->joined_round || !self_is(m, RDZV_PARTICIPANT) ||
           participants(m) < m->joined_count;
}

static bool somebody_waits(const struct rdzv_machine *m, struct rdzv_now now) {
    (void)now;
    return m->told == RDZV_VERDICT_NONE && !m->state.closed && has_place(m) &&
           rdzv_state_count(&m->state, RDZV_WAITING) > 0;
}

static bool not_listed(const struct rdzv_machine *m, struct rdzv_now now) {
    (void)now;
    return !self_is(m, RDZV_LISTED);
}

static bool round_goes_on_without(const struct rdzv_machine *m) {
    return m->lingers && m->state.complete && m->state.round == m->joined_round &&
           participants(m) > self_is(m, RDZV_PARTICIPANT);
}

static bool may_linger(const struct rdzv_machine *m, struct rdzv_now now) {
    return round_goes_on_without(m) && self_is(m, RDZV_PARTICIPANT) && now.monotonic_ms < m->linger_until_ms;
}

static bool lingering(const struct rdzv_machine *m, struct rdzv_now now) {
    return round_goes_on_without(m) && self_is(m, RDZV_WAITING) && now.monotonic_ms < m->linger_until_ms;
}

/* ---- leases ---- */

/* Without a member of the world, or one of a round of fixed size that is open, the others are too few for another. */
static bool needs_each(const struct rdzv_machine *m) {
    size_t listed = rdzv_state_count(&m->state, RDZV_LISTED);
    return m->state.complete ? listed <= m->settings.min_nodes : m->settings.min_nodes == m->settings.max_nodes;
}

static bool all_are_ours(const struct rdzv_machine *m) {
    for (size_t i = 0; i < m->state.member_count; i++) {
        const struct rdzv_member *at = &m->state.members[i];
        if ((at->lists & RDZV_PARTICIPANT) && rdzv_member_lease(at) == RDZV_LEASE_NONE) {
            return false;
        }
    }
    return true;
}

/* It counts on its place for longer than a silence, and its workers run. */
static bool is_held(const struct rdzv_machine *m, const struct rdzv_member *at) {
    return m->state.complete && (at->lists & RDZV_PARTICIPANT) && rdzv_member_lease(at) == RDZV_LEASE_HOLD &&
           m->settings.hold_ms > m->settings.expiry_ms;
}

bool rdzv_machine_is_held(const struct rdzv_machine *m) {
    return m->answered == RDZV_LEASE_HOLD && needs_each(m) && m->settings.hold_ms > m->settings.expiry_ms;
}

int64_t rdzv_machine_lease_end_ms(const struct rdzv_machine *m) {
    int64_t lease_ms = rdzv_machine_is_held(m) ? m->settings.hold_ms : m->settings.expiry_ms;
    bool has_one = m->phase == RDZV_PHASE_MEMBER && m->answered_ms > 0 && all_are_ours(m);
    return has_one ? m->answered_ms + lease_ms - lease_ms / MARGIN_PART : INT64_MAX;
}

static bool is_cut_off(const struct rdzv_machine *m, struct rdzv_now now) {
    return !m->was_cut_off && now.real_ms >= rdzv_machine_lease_end_ms(m) && now.monotonic_ms >= now.judges_from_ms;
}

/* A heartbeat of this node's is in the store. */
static void note_answer(struct rdzv_machine *m) {
    const struct rdzv_member *self = rdzv_state_find(&m->state, &m->self);
    if (self && (self->lists & RDZV_HEARTBEAT) && self->heartbeat_us == m->beat_us) {
        m->answered_ms = m->beat_ms;
        m->answered = rdzv_member_lease(self);
    }
}

/* ---- operations on the local state ---- */

static void set_heartbeat(const struct rdzv_machine *m, struct rdzv_member *self, struct rdzv_now now) {
    enum rdzv_lease lease = needs_each(m) ? RDZV_LEASE_HOLD : RDZV_LEASE_SILENCE;
    self->lists |= RDZV_HEARTBEAT;
    self->heartbeat_us = now.wall_us - now.wall_us % 1000 - 1000 + lease; /* never in the future */
}

static void keep_alive(struct rdzv_machine *m, struct rdzv_now now) {
    set_heartbeat(m, rdzv_state_find(&m->state, &m->self), now);
}

/* Into exactly one list. */
static void move_to(struct rdzv_machine *m, enum rdzv_list list, struct rdzv_now now) {
    struct rdzv_member *self = rdzv_state_insert(&m->state, &m->self);
    self->lists = (uint8_t)list;
    self->rank = 0;
    set_heartbeat(m, self, now);
}

static void participate(struct rdzv_machine *m, struct rdzv_now now) {
    if (participants(m) == 0 && m->state.round < m->min_round) {
        m->state.round = m->min_round; /* an old state: its round would only be completed to be left again */
    }
    move_to(m, RDZV_PARTICIPANT, now);
    if (participants(m) == m->settings.min_nodes) {
        m->state.has_deadline = true;
        m->state.deadline_us = now.wall_us + m->settings.last_call_timeout_ms * 1000;
    }
}

static void complete(struct rdzv_machine *m, struct rdzv_now now) {
    (void)now;
    rdzv_state_complete(&m->state);
}

static void wait_for_place(struct rdzv_machine *m, struct rdzv_now now) {
    move_to(m, RDZV_WAITING, now);
}

static void stand_by(struct rdzv_machine *m, struct rdzv_now now) {
    move_to(m, RDZV_SPARE, now);
}

static void leave_lists(struct rdzv_machine *m, struct rdzv_now now) {
    (void)now;
    bool took_part = self_is(m, RDZV_PARTICIPANT);
    m->stored_count = 0; /* what is complete from here on is this node's own doing */
    (void)rdzv_state_remove(&m->state, &m->self, RDZV_LISTED | RDZV_HEARTBEAT);
    if (took_part) {
        rdzv_state_epilogue(&m->state, m->settings.min_nodes);
    }
}

static void leave_broken_round(struct rdzv_machine *m, struct rdzv_now now) {
    m->min_round = m->state.round + 1;
    leave_lists(m, now);
}

static void take_place(struct rdzv_machine *m, struct rdzv_now now) {
    leave_lists(m, now);
    m->deadline_ms = now.monotonic_ms + m->settings.join_timeout_ms;
}

static void close_job(struct rdzv_machine *m, struct rdzv_now now) {
    (void)now;
    m->state.closed = true;
}

static void remove_self(struct rdzv_machine *m, struct rdzv_now now) {
    (void)now;
    (void)rdzv_state_remove_dead(&m->state, &m->self, m->settings.min_nodes);
}

/* ---- the tables ---- */

typedef void operation(struct rdzv_machine *m, struct rdzv_now now);

struct rule {
    condition *applies;
    operation *change; /* NULL: the turn ends with `verdict` */
    enum rdzv_verdict verdict;
};

static const struct rule joining[] = {
    {closed_on_spare, NULL, RDZV_VERDICT_SPARE_RELEASED}, /* 1 */
    {closed, NULL, RDZV_VERDICT_CLOSED},                  /* 2 */
    {taken_but_listed, leave_lists, RDZV_VERDICT_NONE},
    {taken, NULL, RDZV_VERDICT_TAKEN},
    {member_of_old_round, leave_lists, RDZV_VERDICT_NONE}, /* the exit operation */
    {spare_with_place, take_place, RDZV_VERDICT_NONE},     /* 4 */
    {member_of_broken_round, leave_broken_round, RDZV_VERDICT_NONE},
    {member_of_complete_round, NULL, RDZV_VERDICT_JOINED}, /* 5 */
    {spare_without_place, NULL, RDZV_VERDICT_NONE},        /* 3; the heartbeat is seen to before */
    {late_but_listed, leave_lists, RDZV_VERDICT_NONE},     /* 6, 7 */
    {late, NULL, RDZV_VERDICT_TIMEOUT},                    /* 8 */
    {may_wait, wait_for_place, RDZV_VERDICT_NONE},         /* 9 */
    {must_be_spare, stand_by, RDZV_VERDICT_NONE},          /* 10 */
    {may_complete, complete, RDZV_VERDICT_NONE},           /* 11 */
    {may_participate, participate, RDZV_VERDICT_NONE},     /* 12 */
    {always, NULL, RDZV_VERDICT_NONE},                     /* 13 */
};

static const struct rule member[] = {
    {member_missing, NULL, RDZV_VERDICT_NODE_LEFT},
    {somebody_waits, NULL, RDZV_VERDICT_NODE_ARRIVED},
    {always, NULL, RDZV_VERDICT_NONE},
};

static const struct rule closing[] = {
    {closed, NULL, RDZV_VERDICT_DONE},
    {late, NULL, RDZV_VERDICT_GIVEN_UP},
    {always, close_job, RDZV_VERDICT_NONE},
};

static const struct rule leaving[] = {
    {closed, NULL, RDZV_VERDICT_DONE},    {not_listed, NULL, RDZV_VERDICT_DONE},
    {late, NULL, RDZV_VERDICT_GIVEN_UP},  {may_linger, wait_for_place, RDZV_VERDICT_NONE},
    {lingering, NULL, RDZV_VERDICT_NONE}, {always, remove_self, RDZV_VERDICT_NONE},
};

static const struct rule silent[] = {{always, NULL, RDZV_VERDICT_NONE}};

static const struct rule *rules_of(enum rdzv_phase phase) {
    static const struct rule *const tables[] = {
        [RDZV_PHASE_IDLE] = silent,     [RDZV_PHASE_JOINING] = joining, [RDZV_PHASE_MEMBER] = member,
        [RDZV_PHASE_CLOSING] = closing, [RDZV_PHASE_LEAVING] = leaving, [RDZV_PHASE_OVER] = silent,
    };
    return tables[phase];
}

/* ---- deciding ---- */

static bool keeps_alive(const struct rdzv_machine *m) {
    return m->phase == RDZV_PHASE_JOINING || m->phase == RDZV_PHASE_MEMBER;
}

static void conclude(struct rdzv_machine *m, enum rdzv_verdict verdict) {
    switch (verdict) {
    case RDZV_VERDICT_JOINED:
        assert(m->phase == RDZV_PHASE_JOINING && m->state.complete && self_is(m, RDZV_PARTICIPANT));
        m->phase = RDZV_PHASE_MEMBER;
        m->told = RDZV_VERDICT_NONE;
        m->was_cut_off = false;
        m->joined_round = m->state.round;
        m->joined_count = participants(m);
        break;
    case RDZV_VERDICT_NODE_LEFT:
    case RDZV_VERDICT_NODE_ARRIVED:
        m->told = verdict;
        break;
    case RDZV_VERDICT_CUT_OFF:
        m->told = RDZV_VERDICT_NODE_LEFT;
        m->was_cut_off = true;
        break;
    case RDZV_VERDICT_CLOSED:
    case RDZV_VERDICT_TIMEOUT:
    case RDZV_VERDICT_TAKEN:
    case RDZV_VERDICT_SPARE_RELEASED:
    case RDZV_VERDICT_DONE:
    case RDZV_VERDICT_GIVEN_UP:
        m->phase = RDZV_PHASE_OVER;
        break;
    case RDZV_VERDICT_NONE:
        break;
    }
}

static void decide(struct rdzv_machine *m, struct rdzv_now now, struct rdzv_actions *out) {
    bool dirty = false;
    assert(m->synced && !m->writing); /* it decides on what the store holds */
    for (int operations = 0;; operations++) {
        assert(operations <= OPERATIONS_MAX); /* every operation makes its own condition false */
        const struct rule *rule = rules_of(m->phase);
        while (!rule->applies(m, now)) {
            rule++;
        }
        if (rule->change) {
            rule->change(m, now);
            dirty = true;
            continue;
        }
        if (keeps_alive(m) && rule->verdict == RDZV_VERDICT_NONE && !m->state.closed && heartbeat_due(m, now)) {
            keep_alive(m, now);
            dirty = true;
        }
        if (!dirty) {
            out->verdict = rule->verdict;
            conclude(m, rule->verdict);
        }
        break;
    }
    out->write = dirty;
    m->writing = dirty;
    const struct rdzv_member *self = rdzv_state_find(&m->state, &m->self);
    if (dirty && self && (self->lists & RDZV_HEARTBEAT)) {
        m->beat_us = self->heartbeat_us;
        m->beat_ms = now.real_ms;
    }
}

static bool is_silent(const struct rdzv_machine *m, const struct rdzv_member *at, struct rdzv_now now) {
    return rdzv_node_compare(&at->node, &m->self) != 0 &&
           rdzv_roster_expired(&m->roster, at, m->settings.expiry_ms, now);
}

/* Are there enough nodes for a world without those that are silent? */
static bool can_do_without_silent(const struct rdzv_machine *m, struct rdzv_now now) {
    size_t count = 0;
    for (size_t i = 0; i < m->state.member_count; i++) {
        const struct rdzv_member *at = &m->state.members[i];
        count += (at->lists & RDZV_LISTED) != 0 && !is_silent(m, at, now);
    }
    return count >= m->settings.min_nodes;
}

/* To stop this node's workers for a silent one would cost the attempt, and gain nothing: the next world would have to
 * wait for that node, or for another in its place. So a member that counts on its place keeps it, whoever else comes.
 * It may come back before, and its workers may never have noticed. What an agent of PyTorch's counts on is not known:
 * it keeps its place as long as a world would be waited for. */
static bool keeps_place(const struct rdzv_machine *m, const struct rdzv_member *at, struct rdzv_now now) {
    bool is_in_world = m->phase == RDZV_PHASE_MEMBER && m->state.complete && m->state.round == m->joined_round &&
                       (at->lists & RDZV_PARTICIPANT);
    if (rdzv_member_lease(at) != RDZV_LEASE_NONE) {
        return is_held(m, at) &&
               !rdzv_roster_is_silent(&m->roster, &at->node, m->settings.hold_ms + m->settings.stop_ms, now);
    }
    return is_in_world &&
           !rdzv_roster_expired(&m->roster, at, m->settings.expiry_ms + m->settings.join_timeout_ms, now) &&
           !can_do_without_silent(m, now);
}

static void note_silent(struct rdzv_machine *m, const struct rdzv_member *at, struct rdzv_now now) {
    const struct rdzv_sighting *s = rdzv_roster_find(&m->roster, &at->node);
    if (!m->has_silent) {
        m->silent = at->node;
        m->silent_since_ms = s ? s->changed_ms : now.monotonic_ms;
        m->kept_until_ms = m->silent_since_ms + (is_held(m, at) ? m->settings.hold_ms + m->settings.stop_ms
                                                                : m->settings.expiry_ms + m->settings.join_timeout_ms);
    }
    m->has_silent = true;
}

/* Removes whoever has fallen silent. As in PyTorch this alone is not worth a write: it goes out with the next one.
 * This node is never removed by itself. */
static void sanitise(struct rdzv_machine *m, struct rdzv_now now) {
    bool participant_removed = false;
    m->has_silent = false;
    for (size_t i = 0; i < m->state.member_count;) {
        struct rdzv_member *at = &m->state.members[i];
        bool grave = at->lists == RDZV_HEARTBEAT && at->heartbeat_us == RDZV_GRAVE_US;
        if (grave || !is_silent(m, at, now)) {
            i++;
            continue;
        }
        if (keeps_place(m, at, now)) {
            note_silent(m, at, now);
            i++;
            continue;
        }
        struct rdzv_sighting *sighting = rdzv_roster_find(&m->roster, &at->node);
        if (sighting) {
            sighting->gone = true;
        }
        participant_removed |= (at->lists & RDZV_PARTICIPANT) != 0;
        struct rdzv_node node = at->node;
        (void)rdzv_state_remove(&m->state, &node, RDZV_LISTED | RDZV_HEARTBEAT);
    }
    if (participant_removed) {
        rdzv_state_epilogue(&m->state, m->settings.min_nodes);
    }
}

/* What the store says of this node as one that waits, and for what. A turn that was not written says nothing. */
static void note_awaited(struct rdzv_machine *m) {
    if (m->phase != RDZV_PHASE_JOINING) {
        return;
    }
    m->was_spare |= self_is(m, RDZV_SPARE);
    if (m->state.complete && !self_is(m, RDZV_PARTICIPANT)) {
        m->awaited_count = m->state.round == m->awaited_round ? m->awaited_count : 0;
        m->awaited_round = m->state.round;
        m->awaited_count = m->stored_count > m->awaited_count ? m->stored_count : m->awaited_count;
    }
}

static void synced(struct rdzv_machine *m, struct rdzv_now now) {
    m->synced = true;
    m->writing = false;
    note_answer(m);
    rdzv_roster_observe(&m->roster, &m->state, now);
    if (m->state.has_deadline && m->state.deadline_us != m->last_call_us) {
        m->last_call_us = m->state.deadline_us;
        m->last_call_seen_ms = now.monotonic_ms;
    }
    if (m->state.complete) {
        m->last_complete_round = m->state.round;
    } else if (m->state.round < m->last_complete_round) {
        m->last_complete_round = -1; /* the store was emptied: rounds begin anew */
    }
    if (m->state.round + 1 < m->min_round) {
        m->min_round = 0;
    }
    m->stored_count = m->state.complete ? participants(m) : 0;
    note_awaited(m);
    sanitise(m, now);
    if (m->phase == RDZV_PHASE_JOINING && (spare_without_place(m, now) || waits_outside(m))) {
        /* A spare has all the time of the job. Should it be struck, for a silence that was the network's, it has as
         * much as in the beginning to come back. */
        m->deadline_ms = now.monotonic_ms + m->settings.join_timeout_ms;
    }
}

/* Somebody looks silent, but only in what we know: ask before judging. */
static bool needs_fresh_look(const struct rdzv_machine *m, struct rdzv_now now) {
    for (size_t i = 0; i < m->state.member_count; i++) {
        const struct rdzv_member *at = &m->state.members[i];
        if ((at->lists & RDZV_LISTED) && rdzv_node_compare(&at->node, &m->self) != 0 &&
            rdzv_roster_expired(&m->roster, at, m->settings.expiry_ms, now)) {
            return true;
        }
    }
    return false;
}

/* ---- when to look again ---- */

/* What is overdue has been looked at just now. */
static void earlier(int64_t *at, int64_t candidate, struct rdzv_now now) {
    candidate = candidate > now.monotonic_ms ? candidate : now.monotonic_ms + REREAD_MS;
    *at = candidate < *at ? candidate : *at;
}

/* Wall-clock times become monotonic ones, a millisecond late rather than early. */
static int64_t wall_to_monotonic(int64_t wall_us, struct rdzv_now now) {
    return now.monotonic_ms + (wall_us - now.wall_us) / 1000 + 1;
}

/* Somebody is silent by then: when to look at the clock next. */
static int64_t judged_ms(const struct rdzv_machine *m, int64_t silent_ms, struct rdzv_now now) {
    int64_t at_ms = silent_ms > now.judges_from_ms ? silent_ms : now.judges_from_ms;
    int64_t left_ms = at_ms - now.monotonic_ms;
    return left_ms > 0 ? now.monotonic_ms + absence_ask_ms(left_ms, m->settings.keep_alive_interval_ms) : at_ms;
}

static void earlier_by_roster(const struct rdzv_machine *m, struct rdzv_now now, int64_t *at) {
    for (size_t i = 0; i < m->roster.count; i++) {
        const struct rdzv_sighting *s = &m->roster.list[i];
        if (s->gone || rdzv_node_compare(&s->node, &m->self) == 0) {
            continue;
        }
        if (s->absent_ms != RDZV_NOT_ABSENT) {
            if (s->absent_ms + RDZV_ABSENT_GRACE_MS > now.monotonic_ms) {
                earlier(at, s->absent_ms + RDZV_ABSENT_GRACE_MS, now);
            }
            continue;
        }
        earlier(at, judged_ms(m, s->changed_ms + m->settings.expiry_ms, now), now);
        if (!s->renewed) {
            int64_t expiry_us = s->heartbeat_us + m->settings.expiry_ms * 1000;
            earlier(at, judged_ms(m, wall_to_monotonic(expiry_us, now), now), now);
        }
    }
}

static int64_t next_wake(const struct rdzv_machine *m, struct rdzv_now now) {
    int64_t at = INT64_MAX;
    bool has_deadline =
        m->phase == RDZV_PHASE_JOINING || m->phase == RDZV_PHASE_CLOSING || m->phase == RDZV_PHASE_LEAVING;
    if (has_deadline) {
        int64_t deadline = m->deadline_ms + 1;
        earlier(&at, deadline > now.monotonic_ms ? deadline : deadline + ROLLBACK_MS, now);
    }
    if (m->phase == RDZV_PHASE_LEAVING && m->lingers && m->linger_until_ms > now.monotonic_ms) {
        earlier(&at, m->linger_until_ms, now);
    }
    if (!keeps_alive(m) || !m->synced) {
        return at;
    }
    const struct rdzv_member *self = rdzv_state_find(&m->state, &m->self);
    if (self && (self->lists & RDZV_LISTED) && !m->state.closed) {
        earlier(&at, wall_to_monotonic(self->heartbeat_us + m->settings.keep_alive_interval_ms * 1000, now), now);
    }
    if (rdzv_machine_lease_end_ms(m) != INT64_MAX && !m->was_cut_off) {
        int64_t end_ms = now.monotonic_ms + rdzv_machine_lease_end_ms(m) - now.real_ms;
        earlier(&at, end_ms > now.judges_from_ms ? end_ms : now.judges_from_ms, now);
    }
    if (m->phase == RDZV_PHASE_JOINING && m->state.has_deadline) {
        int64_t last_call = m->last_call_seen_ms + m->settings.last_call_timeout_ms + 1;
        if (last_call > now.monotonic_ms) {
            earlier(&at, last_call, now);
        }
    }
    earlier_by_roster(m, now, &at);
    return at;
}

/* ---- events ---- */

static void begin(struct rdzv_machine *m, enum rdzv_phase phase, int64_t timeout_ms, struct rdzv_now now) {
    m->phase = phase;
    m->deadline_ms = now.monotonic_ms + timeout_ms;
}

static void begin_joining(struct rdzv_machine *m, struct rdzv_now now) {
    if (m->phase == RDZV_PHASE_MEMBER) {
        m->min_round = m->joined_round + 1;
    }
    m->was_spare = false;
    m->barred_round = m->awaited_round = -1;
    begin(m, RDZV_PHASE_JOINING, m->settings.join_timeout_ms, now);
}

void rdzv_step(struct rdzv_machine *m, enum rdzv_event event, struct rdzv_now now, struct rdzv_actions *out) {
    *out = (struct rdzv_actions){.wake_ms = INT64_MAX};
    switch (event) {
    case RDZV_EVENT_JOIN:
        begin_joining(m, now);
        break;
    case RDZV_EVENT_CLOSE:
        begin(m, RDZV_PHASE_CLOSING, m->settings.close_timeout_ms, now);
        break;
    case RDZV_EVENT_LEAVE:
        begin(m, RDZV_PHASE_LEAVING, m->settings.close_timeout_ms, now);
        m->linger_until_ms = now.monotonic_ms + LINGER_MS;
        break;
    case RDZV_EVENT_SYNCED:
        synced(m, now);
        break;
    case RDZV_EVENT_TIMER:
        out->read = m->synced && !m->writing && keeps_alive(m) && needs_fresh_look(m, now);
        break;
    }
    bool ends = m->phase == RDZV_PHASE_CLOSING || m->phase == RDZV_PHASE_LEAVING;
    if (m->synced && !m->writing) {
        decide(m, now, out);
    } else if (late(m, now) && (ends || (m->phase == RDZV_PHASE_JOINING && !spare_without_place(m, now)))) {
        /* The store does not answer. (A spare has all the time of the job: only its heartbeat is on its way.) */
        out->verdict = ends ? RDZV_VERDICT_GIVEN_UP : RDZV_VERDICT_TIMEOUT;
        conclude(m, out->verdict);
    }
    if (!out->write && out->verdict == RDZV_VERDICT_NONE && is_cut_off(m, now)) {
        out->verdict = RDZV_VERDICT_CUT_OFF;
        conclude(m, out->verdict);
    }
    assert(!out->write || (m->writing && out->verdict == RDZV_VERDICT_NONE)); /* a verdict is on what is stored */
    out->wake_ms = next_wake(m, now);
}

/* ---- lifetime ---- */

void rdzv_machine_init(struct rdzv_machine *m, const struct rdzv_settings *settings, const struct rdzv_node *self) {
    assert(settings->min_nodes >= 1 && settings->min_nodes <= settings->max_nodes);
    *m = (struct rdzv_machine){.settings = *settings,
                               .self = *self,
                               .last_complete_round = -1,
                               .joined_round = -1,
                               .barred_round = -1,
                               .awaited_round = -1};
    rdzv_state_init(&m->state);
    rdzv_roster_init(&m->roster);
}

void rdzv_machine_done(struct rdzv_machine *m) {
    rdzv_state_done(&m->state);
    rdzv_roster_done(&m->roster);
}

void rdzv_machine_excuse(struct rdzv_machine *m) {
    m->joined_count = participants(m);
    m->told = m->told == RDZV_VERDICT_NODE_LEFT ? RDZV_VERDICT_NONE : m->told;
}

void rdzv_machine_bar(struct rdzv_machine *m, struct rdzv_now now) {
    m->barred_round = m->state.round;
    m->deadline_ms = now.monotonic_ms + m->settings.join_timeout_ms;
}

bool rdzv_machine_is_spare(const struct rdzv_machine *m) {
    return m->phase == RDZV_PHASE_JOINING && !m->state.closed && (self_is(m, RDZV_SPARE) || waits_outside(m));
}

int rdzv_machine_adopt(struct rdzv_machine *m, struct rdzv_state *state) {
    int rc = rdzv_state_reserve(state, state->member_count + 1);
    if (rc == 0) {
        rc = rdzv_roster_reserve(&m->roster, state->member_count + 1);
    }
    if (rc != 0) {
        return rc;
    }
    rdzv_state_done(&m->state);
    m->state = *state;
    rdzv_state_init(state);
    return 0;
}
