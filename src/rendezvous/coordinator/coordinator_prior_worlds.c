/* Which worlds the next one has to follow, as those who come tell it, and who of them is here; see
 * coordinator_quorum.c. Pure. */
#include <assert.h>
#include <string.h>

#include "rendezvous/coordinator/coordinator_impl.h"

/* ---- members ---- */

void coordinator_quorum_count(struct coordinator *c, struct coordinator_member *member) {
    if (!coordinator_has_rivals(c) || member->place != COORDINATOR_JOINED || member->is_returning) {
        return;
    }
    for (size_t i = 0; i < c->prior.count && !member->is_returning; i++) {
        member->is_returning = coordinator_has_part(member, &c->prior.list[i].past);
    }
    c->returning_count += member->is_returning;
}

bool coordinator_quorum_is_elector(const struct coordinator *c, const struct coordinator_member *member) {
    return c->prior.count > 0 && coordinator_has_part(member, &c->prior.list[0].past);
}

/* `by`: 1, -1. */
static void weigh(struct coordinator *c, const struct coordinator_member *member, int by) {
    const struct coordinator_past *first = &c->prior.list[0].past;
    uint32_t accepted = coordinator_has_accepted(c, member) ? (uint32_t)by : 0;
    for (size_t i = 0; i < c->prior.count; i++) {
        struct coordinator_prior_world *p = &c->prior.list[i];
        if (coordinator_has_part(member, &p->past)) {
            p->here_count += (uint32_t)by;
            p->accepted_count += accepted;
        } else if (coordinator_is_unaware(member, &p->past, first)) {
            p->unaware_count += (uint32_t)by;
            p->unaware_accepted_count += accepted;
        }
        /* Whoever goes has said it all the same. */
        p->is_apart |= coordinator_knows(member, &p->past) && !coordinator_knows(member, first);
    }
}

void coordinator_quorum_weigh(struct coordinator *c, const struct coordinator_member *member, int by) {
    if (coordinator_has_rivals(c) && member->place != COORDINATOR_OUT) {
        c->proposed_round = 0;
        weigh(c, member, by);
    }
}

void coordinator_quorum_moved(struct coordinator *c, struct coordinator_member *member, enum coordinator_place from) {
    if (!coordinator_has_rivals(c)) {
        return;
    }
    if (from == COORDINATOR_JOINED || member->place == COORDINATOR_JOINED) {
        c->proposed_round = 0;
    }
    if (from == COORDINATOR_SPARED && coordinator_has_accepted(c, member)) {
        assert(c->accepted_spare_count > 0);
        c->accepted_spare_count--;
    }
    /* Whoever is not out counts, by joining or as a witness. */
    int by = (from == COORDINATOR_OUT) - (member->place == COORDINATOR_OUT);
    if (by != 0) {
        weigh(c, member, by);
    }
}

/* Counts anew who is here of a world that has become known. */
static void recount(struct coordinator *c) {
    for (size_t i = 0; i < c->prior.count; i++) {
        struct coordinator_prior_world *p = &c->prior.list[i];
        p->here_count = p->accepted_count = p->unaware_count = p->unaware_accepted_count = 0;
        p->is_apart = false;
    }
    c->proposed_round = 0;
    for (size_t place = 0; place < COORDINATOR_OUT; place++) {
        for (struct coordinator_member *m = c->places[place].first; m; m = m->next) {
            weigh(c, m, 1);
            if (!c->prior.is_own && m->is_returning) {
                assert(c->returning_count > 0);
                m->is_returning = false;
                c->returning_count--;
            }
            coordinator_quorum_count(c, m);
        }
    }
}

/* ---- worlds ---- */

/* `told` was: no world before it counts any more, and none that was proposed under the same number at its place by a
 * process that has died since, or served there before. */
static bool is_over(const struct coordinator_past *past, const struct coordinator_past *told) {
    return past->round < told->round ||
           (past->round == told->round && past->author != told->author && !past->is_confirmed);
}

static void forget_before(struct coordinator_prior_worlds *b, const struct coordinator_past *told) {
    size_t kept = 0;
    for (size_t i = 0; i < b->count; i++) {
        if (!is_over(&b->list[i].past, told)) {
            b->list[kept++] = b->list[i];
        }
    }
    if (kept < b->count) {
        b->count = kept;
        b->is_own = false;
    }
    b->full_round = told->round >= b->full_round ? 0 : b->full_round;
}

/* Where it is, or is now, in their order. NULL: there are too many. */
static struct coordinator_prior_world *find_or_add(struct coordinator_prior_worlds *b,
                                                   const struct coordinator_past *past, bool *is_added) {
    size_t at = 0;
    while (at < b->count && coordinator_wire_compare_pasts(&b->list[at].past, past) < 0) {
        at++;
    }
    *is_added = at == b->count || coordinator_wire_compare_pasts(&b->list[at].past, past) != 0;
    if (!*is_added) {
        return &b->list[at];
    }
    if (b->count + 1 == COORDINATOR_PASTS_MAX) { /* the next one has to fit, too */
        b->full_round = past->round > b->full_round ? past->round : b->full_round;
        return NULL;
    }
    memmove(b->list + at + 1, b->list + at, (b->count - at) * sizeof *b->list);
    b->count++;
    b->is_own &= at > 0;
    b->list[at] = (struct coordinator_prior_world){.past = *past};
    b->list[at].past.fate = COORDINATOR_UNKNOWN;
    return &b->list[at];
}

static bool is_ours(const struct coordinator *c, const struct coordinator_past *past) {
    return past->author == c->settings.places.author;
}

/* This coordinator has proposed it in vain. */
static bool was_in_vain(const struct coordinator *c, const struct coordinator_past *past) {
    return is_ours(c, past) && past->round > c->prior.last_told_round;
}

static void learn_fate(struct coordinator_prior_world *p, enum coordinator_fate fate, int64_t now_ms) {
    if (fate >= COORDINATOR_GONE && p->past.fate < COORDINATOR_GONE) {
        p->dead_since_ms = now_ms;
    }
    p->past.fate = fate > p->past.fate ? fate : p->past.fate;
}

/* `past` as a node tells it. True: the members have to be counted anew. */
static bool learn(struct coordinator *c, const struct coordinator_past *past, bool is_new, int64_t now_ms) {
    struct coordinator_prior_worlds *b = &c->prior;
    bool is_told = past->is_confirmed || (is_ours(c, past) && past->round == b->last_told_round), is_added = false;
    size_t count = b->count;
    if (was_in_vain(c, past) || (b->count > 0 && b->list[0].past.is_confirmed && is_over(past, &b->list[0].past))) {
        return false;
    }
    if (is_told) {
        forget_before(b, past);
    }
    struct coordinator_prior_world *p = find_or_add(b, past, &is_added);
    if (!p) {
        return true;
    }
    p->past.is_confirmed |= is_told;
    learn_fate(p, past->fate, now_ms);
    bool is_of_it = past->group_rank != COORDINATOR_NO_RANK;
    p->is_host_here |= is_of_it && past->group_rank == past->host_rank;
    if (is_added || (is_of_it && is_new)) {
        p->since_ms = now_ms; /* where it was before, it may have been counted until now */
    }
    return is_added || b->count != count;
}

static void forget_end(struct coordinator_prior_worlds *b, size_t at) {
    b->end_count--;
    memmove(b->ends + at, b->ends + at + 1, (b->end_count - at) * sizeof *b->ends);
}

void coordinator_quorum_note_end(struct coordinator *c, const struct coordinator_member *member, int64_t now_ms) {
    struct coordinator_prior_worlds *b = &c->prior;
    if (!coordinator_has_rivals(c) || !member->is_lasting_loss) {
        return;
    }
    if (b->end_count == COORDINATOR_ENDS_MAX) {
        forget_end(b, 0);
    }
    b->ends[b->end_count++] =
        (struct coordinator_end){.address_hash = hash_of(&c->members, member->addr), .ended_ms = now_ms};
}

/* The process before it on its machine was here, and has ended just now, while nobody served elsewhere: it was in no
 * world. So a node whose agent ends again and again delays nobody for ever. */
static bool was_here_before(struct coordinator *c, const struct coordinator_node *node, int64_t now_ms) {
    struct coordinator_prior_worlds *b = &c->prior;
    uint32_t address_hash = hash_of(&c->members, node->addr);
    if (!b->none_else_serves || node->last_round > 0 || node->past_count > 0) {
        return false;
    }
    for (size_t i = 0; i < b->end_count; i++) {
        if (b->ends[i].address_hash == address_hash && now_ms - b->ends[i].ended_ms <= c->settings.places.silence_ms) {
            forget_end(b, i);
            return true;
        }
    }
    return false;
}

void coordinator_quorum_learn(struct coordinator *c, struct coordinator_member *member,
                              const struct coordinator_node *node, bool is_new, int64_t now_ms) {
    struct coordinator_prior_worlds *b = &c->prior;
    uint64_t known = node->known_round > node->last_round ? node->known_round : node->last_round;
    b->known_round = known > b->known_round ? known : b->known_round;
    if (node->past_count > 0 && node->pasts[node->past_count - 1].round > b->heard_round) {
        b->heard_round = node->pasts[node->past_count - 1].round;
    }
    if (!coordinator_has_rivals(c)) {
        return;
    }
    if (is_new && !was_here_before(c, node, now_ms)) { /* the process before it may have been in a world until now */
        b->since_ms = now_ms;
    }
    bool has_changed = false;
    for (size_t i = 0; i < node->past_count; i++) {
        has_changed |= learn(c, &node->pasts[i], is_new, now_ms);
    }
    if (node->last_round > 0) {
        const struct coordinator_past last = {.round = node->last_round,
                                              .author = node->last_author,
                                              .size = node->last_world_size,
                                              .group_rank = node->last_group_rank,
                                              .host_rank = node->last_host_rank,
                                              .fate = node->fate,
                                              .is_confirmed = true};
        has_changed |= learn(c, &last, is_new, now_ms);
    }
    if (has_changed) {
        recount(c);
    } else {
        coordinator_quorum_count(c, member);
    }
}

void coordinator_quorum_recall(struct coordinator *c, const struct coordinator_record *record, int64_t now_ms) {
    const struct coordinator_past past = {.round = record->round,
                                          .author = record->author,
                                          .size = record->size,
                                          .group_rank = COORDINATOR_NO_RANK,
                                          .host_rank = record->host_rank,
                                          .is_confirmed = true};
    coordinator_budget_learn(&c->budget, &record->charges);
    coordinator_note_round(c, record->round);
    if (learn(c, &past, false, now_ms)) {
        recount(c);
    }
}

void coordinator_quorum_closed(struct coordinator *c, size_t size, uint32_t host_rank) {
    struct coordinator_prior_worlds *b = &c->prior;
    b->known_round = c->round > b->known_round ? c->round : b->known_round;
    b->last_told_round = c->round;
    b->is_own = true;
    b->full_round = 0;
    b->count = 1;
    b->list[0] = (struct coordinator_prior_world){.past = {.round = c->round,
                                                           .author = c->settings.places.author,
                                                           .size = (uint32_t)size,
                                                           .host_rank = host_rank,
                                                           .is_confirmed = true},
                                                  .here_count = (uint32_t)size,
                                                  .is_host_here = host_rank != COORDINATOR_NO_RANK};
}

void coordinator_quorum_lost(struct coordinator *c, struct coordinator_member *member) {
    if (member->is_given_up) {
        return;
    }
    member->is_given_up = true;
    if (member->place == COORDINATOR_ACTIVE && member->works_until_ms > 0) {
        coordinator_absent_note(c, member);
    }
    c->lost_count += !member->is_lasting_loss;
    c->prior.none_else_serves &= member->is_lasting_loss; /* it may be served there by now */
    for (size_t i = 0; i < c->prior.count; i++) {
        struct coordinator_prior_world *p = &c->prior.list[i];
        uint32_t rank = coordinator_rank_in(member, &p->past);
        p->gone_count += rank != COORDINATOR_NO_RANK && member->is_lasting_loss;
        p->is_host_here &= rank == COORDINATOR_NO_RANK || rank != p->past.host_rank || member->is_lasting_loss;
    }
}
