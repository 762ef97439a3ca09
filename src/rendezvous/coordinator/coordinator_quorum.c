/* What keeps two coordinators of a job, at two of its endpoints, from running two worlds at a time; see
 * coordinator_impl.h, and docs/rendezvous.md, "When the host dies", for the rules and why they suffice. Pure.
 *
 * The next world follows those that may have been told last, the prior worlds: the latest that is known to have been,
 * and whatever was proposed after it. It needs a majority of each, and whoever has not come must have stopped by then.
 * All of a world accept it before it is told: so nobody who counts for the next one can have missed it.
 *
 * The method is that of dynamic voting with attempts that stay open until they are known to have failed, by Yeger
 * Lotem, Keidar and Dolev, "Dynamic Voting for Consistent Primary Components" (1997). */
#include <assert.h>
#include <inttypes.h>

#include "base/str.h"
#include "rendezvous/coordinator/coordinator_impl.h"

bool coordinator_has_rivals(const struct coordinator *c) {
    return c->settings.places.count > 1 || c->settings.places.is_leased;
}

/* ---- all of them ---- */

/* Where none is known to have been told: no other first world can be. */
static bool can_begin(const struct coordinator *c, bool only_accepted) {
    return coordinator_excludes_others(c) || coordinator_count_here(c, only_accepted) >= coordinator_count_all(c) ||
           (c->prior.none_else_serves && c->prior.known_round == 0);
}

/* By when all who have not come have stopped, whatever they were in: for the reasons of
 * coordinator_prior_world_stopped_ms(). */
static int64_t all_stopped_ms(const struct coordinator *c) {
    const struct coordinator_places *p = &c->settings.places;
    return c->prior.since_ms + 2 * p->silence_ms + p->stop_ms;
}

/* Nobody who was in a world before has come. There may have been one, told here by another process or elsewhere. Where
 * all that the job takes are here, and none of them has heard of a world, there is no need to wait. */
static int64_t forgotten_at_ms(const struct coordinator *c, bool only_accepted) {
    bool is_new = coordinator_count_here(c, only_accepted) >= coordinator_count_all(c) && c->prior.known_round == 0;
    return is_new ? INT64_MIN : all_stopped_ms(c);
}

static int64_t max_ms(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* When the next world may follow that one, with those who are here; INT64_MAX: not. */
static int64_t free_at_ms(const struct coordinator *c, const struct coordinator_prior_world *p, bool only_accepted) {
    int64_t stopped_ms = coordinator_prior_world_stopped_ms(c, p);
    if (coordinator_prior_world_can_follow(c, p, only_accepted)) {
        return stopped_ms;
    }
    return coordinator_excludes_others(c) ? max_ms(stopped_ms, all_stopped_ms(c)) : INT64_MAX;
}

/* The first of them that cannot be followed now; NULL: none. */
static const struct coordinator_prior_world *find_obstacle(const struct coordinator *c, bool only_accepted,
                                                           int64_t now_ms) {
    for (size_t i = 0; i < c->prior.count; i++) {
        const struct coordinator_prior_world *p = &c->prior.list[i];
        if (now_ms < free_at_ms(c, p, only_accepted) && !coordinator_prior_world_has_failed(c, p, only_accepted)) {
            return p;
        }
    }
    return NULL;
}

/* No world is known to have been told: what was proposed before may not have been the only one. */
static bool is_first(const struct coordinator *c) {
    return c->prior.count == 0 || !c->prior.list[0].past.is_confirmed;
}

static bool allows(const struct coordinator *c, bool only_accepted, int64_t now_ms) {
    bool begins = is_first(c);
    if (c->prior.full_round > 0 ||
        (begins && !(can_begin(c, only_accepted) && now_ms >= forgotten_at_ms(c, only_accepted)))) {
        return false;
    }
    return find_obstacle(c, only_accepted, now_ms) == NULL;
}

/* With a lease the record of the last world is known, and only one leader can write the next one. So no majority is
 * needed: one node of that world that has come shows that it has ended, or ends within the silence. If none comes, it
 * may run with a leader that does not reach the others: it gets the same time. */
static int64_t lease_free_at_ms(const struct coordinator *c) {
    const struct coordinator_places *places = &c->settings.places;
    const struct coordinator_prior_world *p = &c->prior.list[0];
    if (!c->leads) {
        return INT64_MAX;
    }
    if (c->prior.count == 0 || c->prior.is_own) {
        return INT64_MIN;
    }
    return p->here_count + p->gone_count > 0 ? coordinator_prior_world_stopped_ms(c, p)
                                             : c->led_ms + 2 * places->silence_ms + places->stop_ms;
}

/* All that is known of that world is its record: it may have been killed, and started anew. */
static bool is_without_trace(const struct coordinator *c, const struct coordinator_prior_world *p) {
    return c->settings.places.is_leased && p->here_count + p->gone_count == 0;
}

bool coordinator_quorum_allows(const struct coordinator *c, int64_t now_ms) {
    if (c->settings.places.is_leased) {
        return now_ms >= lease_free_at_ms(c);
    }
    return !coordinator_has_rivals(c) || allows(c, false, now_ms);
}

bool coordinator_quorum_can_end(const struct coordinator *c) {
    const struct coordinator_prior_world *first = &c->prior.list[0];
    return !coordinator_has_rivals(c) || c->settings.places.is_leased || c->prior.count == 0 || c->prior.is_own ||
           coordinator_prior_world_can_follow(c, first, false);
}

bool coordinator_quorum_holds(const struct coordinator *c) {
    if (!coordinator_has_rivals(c) || !c->prior.is_own || c->phase != COORDINATOR_FORMING) {
        return false;
    }
    for (size_t i = 0; i < c->prior.count; i++) {
        const struct coordinator_prior_world *p = &c->prior.list[i];
        if (!coordinator_prior_world_is_majority(c, p, p->here_count) &&
            !coordinator_prior_world_has_failed(c, p, false)) {
            return false;
        }
    }
    return true;
}

/* ---- a proposal ---- */

/* The first of those that it follows, and how many of that one are in it. */
static void name_base(const struct coordinator *c, struct coordinator_past *world) {
    const struct coordinator_past *base = &c->prior.list[0].past;
    if (c->prior.count == 0) {
        return;
    }
    world->base_round = base->round;
    world->base_author = base->author;
    for (const struct coordinator_member *m = c->places[COORDINATOR_JOINED].first; m; m = m->next) {
        world->base_count += coordinator_has_part(m, base);
    }
}

static void propose_to(const struct coordinator *c, enum coordinator_place place, struct coordinator_message *message) {
    message->proposal.world.group_rank = COORDINATOR_NO_RANK;
    for (struct coordinator_member *m = c->places[place].first; m; m = m->next) {
        c->send(c->send_ctx, m->session, message);
    }
}

void coordinator_quorum_propose(struct coordinator *c, uint64_t round, int64_t now_ms) {
    struct coordinator_prior_worlds *b = &c->prior;
    size_t count = coordinator_order_rank(c);
    struct coordinator_message message = {.kind = COORDINATOR_PROPOSE,
                                          .stamp_ms = (uint64_t)now_ms,
                                          .proposal = {.world = {.round = round,
                                                                 .author = c->settings.places.author,
                                                                 .size = (uint32_t)count,
                                                                 .host_rank = coordinator_order_host(c, count)},
                                                       .past_count = b->count}};
    name_base(c, &message.proposal.world);
    for (size_t i = 0; i < b->count; i++) {
        message.proposal.pasts[i] = b->list[i].past;
        message.proposal.pasts[i].group_rank = COORDINATOR_NO_RANK;
        b->list[i].accepted_count = b->list[i].unaware_accepted_count = 0;
    }
    b->heard_round = round;
    c->proposed_round = round;
    c->accepted_count = c->accepted_spare_count = 0;
    for (size_t i = 0; i < count; i++) {
        message.proposal.world.group_rank = (uint32_t)i;
        c->send(c->send_ctx, c->order[i]->session, &message);
    }
    propose_to(c, COORDINATOR_SPARED, &message);
    propose_to(c, COORDINATOR_DONE_WAITS, &message);
}

void coordinator_quorum_fence(struct coordinator *c, uint64_t round, int64_t now_ms) {
    size_t count = coordinator_order_rank(c);
    const struct coordinator_record record = {.round = round,
                                              .author = c->settings.places.author,
                                              .size = (uint32_t)count,
                                              .host_rank = coordinator_order_host(c, count),
                                              .charges = coordinator_budget_charges(&c->budget)};
    (void)now_ms;
    c->prior.heard_round = round;
    c->proposed_round = round;
    c->settings.fence(c->settings.fence_ctx, &record);
}

void coordinator_quorum_accepted(struct coordinator *c, struct coordinator_member *member, uint64_t round) {
    if (round == 0 || round != c->proposed_round || member->accepted_round == round ||
        member->place == COORDINATOR_OUT) {
        return;
    }
    member->accepted_round = round;
    c->accepted_count += member->place == COORDINATOR_JOINED;
    c->accepted_spare_count += member->place == COORDINATOR_SPARED;
    for (size_t i = 0; i < c->prior.count; i++) {
        struct coordinator_prior_world *p = &c->prior.list[i];
        p->accepted_count += coordinator_has_part(member, &p->past);
        p->unaware_accepted_count += coordinator_is_unaware(member, &p->past, &c->prior.list[0].past);
    }
}

bool coordinator_quorum_is_accepted(const struct coordinator *c, int64_t now_ms) {
    if (c->settings.places.is_leased) {
        return c->proposed_round > 0 && c->proposed_round == c->fenced_round;
    }
    assert(c->proposed_round > 0 && c->accepted_count <= coordinator_count_of(c, COORDINATOR_JOINED));
    return c->accepted_count == coordinator_count_of(c, COORDINATOR_JOINED) && allows(c, true, now_ms);
}

/* ---- what follows ---- */

/* Of a world that was told: some of one that was proposed alone do not know of their places there. */
static size_t count_missing(const struct coordinator *c, int64_t now_ms) {
    const struct coordinator_prior_world *first = &c->prior.list[0];
    bool waits = coordinator_has_rivals(c) && c->phase == COORDINATOR_FORMING && c->prior.count > 0 &&
                 first->past.is_confirmed && now_ms < coordinator_prior_world_stopped_ms(c, first);
    return waits ? coordinator_prior_world_missing(first) : 0;
}

size_t coordinator_quorum_awaited(const struct coordinator *c, int64_t now_ms) {
    return is_without_trace(c, &c->prior.list[0]) ? 0 : count_missing(c, now_ms);
}

bool coordinator_quorum_awaits(const struct coordinator *c, const struct coordinator_node *node, int64_t now_ms) {
    const struct coordinator_past *first = &c->prior.list[0].past;
    bool has_place = node->last_round == first->round && node->last_author == first->author;
    for (size_t i = 0; i < node->past_count; i++) { /* it may not have heard that the world was told */
        has_place |= coordinator_wire_compare_pasts(&node->pasts[i], first) == 0 &&
                     node->pasts[i].group_rank != COORDINATOR_NO_RANK;
    }
    return has_place && count_missing(c, now_ms) > 0;
}

static const char *explain_beginning(const struct coordinator *c, int64_t now_ms,
                                     char out[COORDINATOR_QUORUM_TEXT_SIZE]) {
    if (can_begin(c, false)) {
        (void)str_format(out, COORDINATOR_QUORUM_TEXT_SIZE,
                         "enough, but others may have been in a world before, and get %" PRId64
                         " s to come, or to stop",
                         (forgotten_at_ms(c, false) - now_ms + 999) / 1000);
    } else {
        (void)str_format(out, COORDINATOR_QUORUM_TEXT_SIZE,
                         "enough, but others may have met at an endpoint that cannot be asked, or in a world before: "
                         "fewer than the maximum do not begin then");
    }
    return out;
}

static const char *explain_lease(const struct coordinator *c, int64_t now_ms, char out[COORDINATOR_QUORUM_TEXT_SIZE]) {
    int64_t free_ms = lease_free_at_ms(c);
    if (free_ms == INT64_MAX) {
        (void)str_format(out, COORDINATOR_QUORUM_TEXT_SIZE, "enough; the lease in etcd is awaited");
    } else if (now_ms >= free_ms) {
        (void)str_format(out, COORDINATOR_QUORUM_TEXT_SIZE, "enough; etcd has not confirmed round %" PRIu64 " yet",
                         c->proposed_round);
    } else {
        (void)str_format(out, COORDINATOR_QUORUM_TEXT_SIZE,
                         "enough, but %zu nodes of round %" PRIu64 " have not come, and get %" PRId64
                         " s to come, or to stop",
                         coordinator_prior_world_missing(&c->prior.list[0]), c->prior.list[0].past.round,
                         (free_ms - now_ms + 999) / 1000);
    }
    return out;
}

const char *coordinator_quorum_explain(const struct coordinator *c, int64_t now_ms,
                                       char out[COORDINATOR_QUORUM_TEXT_SIZE]) {
    if (c->settings.places.is_leased) {
        return explain_lease(c, now_ms, out);
    }
    const struct coordinator_prior_world *p = find_obstacle(c, false, now_ms);
    if (c->prior.full_round > 0) {
        (void)str_format(out, COORDINATOR_QUORUM_TEXT_SIZE,
                         "enough, but more than %zu worlds before may have been told: start the job anew",
                         COORDINATOR_PASTS_MAX - 1);
    } else if (!p && c->proposed_round > 0) {
        (void)str_format(out, COORDINATOR_QUORUM_TEXT_SIZE, "enough; %zu of %zu have accepted the next world",
                         c->accepted_count, coordinator_count_of(c, COORDINATOR_JOINED));
    } else if (!p) {
        return explain_beginning(c, now_ms, out);
    } else if (now_ms < coordinator_prior_world_stopped_ms(c, p)) {
        (void)str_format(out, COORDINATOR_QUORUM_TEXT_SIZE,
                         "%zu node%s of round %" PRIu64 " %s not come, and get%s %" PRId64 " s to come, or to stop",
                         coordinator_prior_world_missing(p), str_plural(coordinator_prior_world_missing(p)),
                         p->past.round, coordinator_prior_world_missing(p) == 1 ? "has" : "have",
                         coordinator_prior_world_missing(p) == 1 ? "s" : "",
                         (coordinator_prior_world_stopped_ms(c, p) - now_ms + 999) / 1000);
    } else if (free_at_ms(c, p, false) != INT64_MAX) {
        (void)str_format(out, COORDINATOR_QUORUM_TEXT_SIZE,
                         "enough, but others may be in a world elsewhere, and get %" PRId64 " s to come, or to stop",
                         (free_at_ms(c, p, false) - now_ms + 999) / 1000);
    } else {
        (void)str_format(out, COORDINATOR_QUORUM_TEXT_SIZE,
                         "here are %zu of the %zu nodes that are left of round %" PRIu64
                         ": only a majority goes on, so that no two halves do",
                         (size_t)p->here_count, coordinator_prior_world_electors(p), p->past.round);
    }
    return out;
}

/* Of what has not passed yet. */
static int64_t sooner(const struct coordinator *c, int64_t wake_ms, int64_t time_ms) {
    return time_ms > c->settled_ms && time_ms < wake_ms ? time_ms : wake_ms;
}

int64_t coordinator_quorum_wake_ms(const struct coordinator *c) {
    int64_t wake_ms = INT64_MAX;
    if (!coordinator_has_rivals(c) || c->phase != COORDINATOR_FORMING) {
        return INT64_MAX;
    }
    if (c->settings.places.is_leased) {
        int64_t free_ms = lease_free_at_ms(c);
        wake_ms = sooner(c, wake_ms, free_ms);
        return c->prior.count > 0 ? sooner(c, wake_ms, coordinator_prior_world_stopped_ms(c, &c->prior.list[0]))
                                  : wake_ms;
    }
    for (size_t i = 0; i < c->prior.count; i++) {
        const struct coordinator_prior_world *p = &c->prior.list[i];
        if (!coordinator_prior_world_has_failed(c, p, false)) {
            wake_ms = sooner(c, wake_ms, coordinator_prior_world_stopped_ms(c, p)); /* places are kept no longer */
            wake_ms = sooner(c, wake_ms, free_at_ms(c, p, false));
        }
    }
    return is_first(c) ? sooner(c, wake_ms, forgotten_at_ms(c, false)) : wake_ms;
}

/* A coordinator's rounds are those that are its place's among as many as there are places: so no two have the same. */
uint64_t coordinator_quorum_next_round(const struct coordinator *c, uint64_t last) {
    const struct coordinator_places *p = &c->settings.places;
    if (!coordinator_has_rivals(c)) {
        return last + 1;
    }
    last = c->prior.heard_round > last ? c->prior.heard_round : last;
    if (p->is_leased) { /* the fence lets no two leaders have the same */
        return last + 1;
    }
    return last + 1 + (p->place + p->count - last % p->count) % p->count;
}

/* (Of the leaders of a lease nobody knows how many nodes there are; as many as a job of fixed size needs are not left
 * over.) */
bool coordinator_quorum_needs_all(const struct coordinator *c) {
    const struct coordinator_settings *s = &c->settings;
    if (s->places.is_leased) {
        return s->min_nodes == s->max_nodes && coordinator_count_of(c, COORDINATOR_SPARED) == 0;
    }
    return !coordinator_has_rivals(c) || s->min_nodes >= coordinator_count_all(c);
}
