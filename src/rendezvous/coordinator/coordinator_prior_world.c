/* One world that may have been told before the next one: who of it is here, who may be elsewhere, and whether the next
 * one can follow it; see coordinator_quorum.c. Pure. */
#include "rendezvous/coordinator/coordinator_impl.h"

/* ---- members and worlds ---- */

/* The last world, or the claim, that has this name. */
static bool find(const struct coordinator_member *m, uint64_t round, uint64_t author, uint32_t *rank) {
    *rank = COORDINATOR_NO_RANK;
    if (m->last_round == round && m->last_author == author) {
        *rank = m->last_group_rank;
        return true;
    }
    for (size_t i = 0; i < m->claim_count; i++) {
        if (m->claims[i].round == round && m->claims[i].author == author) {
            *rank = m->claims[i].group_rank;
            return true;
        }
    }
    return false;
}

bool coordinator_knows(const struct coordinator_member *m, const struct coordinator_past *world) {
    uint32_t rank;
    return find(m, world->round, world->author, &rank);
}

uint32_t coordinator_rank_in(const struct coordinator_member *m, const struct coordinator_past *world) {
    uint32_t rank;
    (void)find(m, world->round, world->author, &rank);
    return rank;
}

bool coordinator_has_part(const struct coordinator_member *m, const struct coordinator_past *world) {
    return coordinator_rank_in(m, world) != COORDINATOR_NO_RANK;
}

bool coordinator_is_unaware(const struct coordinator_member *m, const struct coordinator_past *world,
                            const struct coordinator_past *first) {
    return coordinator_has_part(m, first) && !coordinator_knows(m, world);
}

bool coordinator_has_accepted(const struct coordinator *c, const struct coordinator_member *m) {
    return c->proposed_round > 0 && m->accepted_round == c->proposed_round;
}

/* ---- one prior world ---- */

static bool is_own(const struct coordinator *c, const struct coordinator_prior_world *p) {
    return c->prior.is_own && p == &c->prior.list[0];
}

static bool is_host_elsewhere(const struct coordinator_prior_world *p) {
    return p->past.host_rank != COORDINATOR_NO_RANK && !p->is_host_here;
}

static size_t subtract(size_t from, size_t what) {
    return from > what ? from - what : 0;
}

/* Its nodes that can still come, here or elsewhere, with those who are here. */
size_t coordinator_prior_world_electors(const struct coordinator_prior_world *p) {
    bool is_host_dead = is_host_elsewhere(p) && p->past.fate == COORDINATOR_DEAD;
    return subtract(p->past.size, p->gone_count + is_host_dead);
}

size_t coordinator_prior_world_missing(const struct coordinator_prior_world *p) {
    return subtract(coordinator_prior_world_electors(p), p->here_count);
}

/* Half of it, and the lowest rank that can be among the living with it. */
static bool breaks_the_tie(const struct coordinator *c, const struct coordinator_prior_world *p) {
    bool is_first_dead = is_host_elsewhere(p) && p->past.fate == COORDINATOR_DEAD && p->past.host_rank == 0;
    uint32_t wanted = is_first_dead ? 1 : 0;
    for (const struct coordinator_member *m = c->places[COORDINATOR_JOINED].first; m; m = m->next) {
        if (coordinator_rank_in(m, &p->past) == wanted) {
            return true;
        }
    }
    return false;
}

bool coordinator_prior_world_is_majority(const struct coordinator *c, const struct coordinator_prior_world *p,
                                         size_t count) {
    size_t electors = coordinator_prior_world_electors(p);
    /* All were here and have told what they knew, or are dead. (Of one that was alone and died, nobody has told.) */
    if (electors == 0 && p->gone_count > 0) {
        return true;
    }
    return 2 * count > electors || (2 * count == electors && count > 0 && breaks_the_tie(c, p));
}

uint64_t coordinator_count_all(const struct coordinator *c) {
    return (uint64_t)c->settings.max_nodes + c->settings.places.spare_nodes;
}

uint64_t coordinator_count_here(const struct coordinator *c, bool only_accepted) {
    return only_accepted ? c->accepted_count + c->accepted_spare_count
                         : coordinator_count_of(c, COORDINATOR_JOINED) + coordinator_count_of(c, COORDINATOR_SPARED) +
                               coordinator_count_of(c, COORDINATOR_ACTIVE);
}

bool coordinator_excludes_others(const struct coordinator *c) {
    return 2 * (uint64_t)c->settings.min_nodes > coordinator_count_all(c);
}

/* (Fewer nodes elsewhere than here would say nothing. They may be what is left of a majority, which has shrunk as its
 * members died, while those who came in their places count here.) */
bool coordinator_prior_world_can_follow(const struct coordinator *c, const struct coordinator_prior_world *p,
                                        bool only_accepted) {
    return coordinator_prior_world_is_majority(c, p, only_accepted ? p->accepted_count : p->here_count) ||
           coordinator_count_here(c, only_accepted) >= coordinator_count_all(c);
}

static bool follows_directly(const struct coordinator_past *past, const struct coordinator_past *first) {
    return past->base_round == first->round && past->base_author == first->author;
}

/* It cannot have been told, and never will be: one of its nodes is here and has not accepted it, as more of the first
 * world do not know of it than were left out. Or the first it follows is an earlier one than the first here, which was
 * told. If it was proposed without a word of that, some who have accepted that have not accepted it. Else it follows
 * both, as it was not known then that this one was told; how many of this one are in it is not known, but they were a
 * majority. */
bool coordinator_prior_world_has_failed(const struct coordinator *c, const struct coordinator_prior_world *p,
                                        bool only_accepted) {
    const struct coordinator_past *first = &c->prior.list[0].past;
    size_t unaware = only_accepted ? p->unaware_accepted_count : p->unaware_count;
    if (p == &c->prior.list[0] || p->past.base_round == 0) {
        return false;
    }
    if (follows_directly(&p->past, first)) {
        return unaware > subtract(first->size, p->past.base_count);
    }
    return first->is_confirmed && p->past.base_round <= first->round &&
           (p->is_apart || (!coordinator_excludes_others(c) && 2 * unaware > first->size));
}

/* By when everybody who has not come has stopped: nothing to wait for when all have come, or all but a host that is
 * dead. A node hears nothing more of a coordinator that is dead, and has begun to stop within a silence. One that lives
 * gives up the first who came here within a silence, tells the others, or has told them nothing for another silence:
 * whether its own node is here does not matter, since others may still hear it. */
int64_t coordinator_prior_world_stopped_ms(const struct coordinator *c, const struct coordinator_prior_world *p) {
    const struct coordinator_places *places = &c->settings.places;
    bool is_gone = p->past.fate >= COORDINATOR_GONE, is_away = is_host_elsewhere(p);
    size_t missing = subtract(p->past.size, p->gone_count + (is_gone && is_away) + p->here_count);
    if (is_own(c, p) || missing == 0) {
        return INT64_MIN;
    }
    bool is_host_alone = missing == 1 && is_away && !is_gone;
    int64_t alive_ms = p->since_ms + (is_host_alone ? 1 : 2) * places->silence_ms + places->stop_ms;
    int64_t dead_ms = p->dead_since_ms + places->silence_ms + places->stop_ms;
    return is_gone && dead_ms < alive_ms ? dead_ms : alive_ms;
}
