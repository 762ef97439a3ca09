/* Sightings of nodes; see roster.h. */
#include "rendezvous/torch/roster.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

void rdzv_roster_init(struct rdzv_roster *roster) {
    *roster = (struct rdzv_roster){.count = 0};
}

void rdzv_roster_done(struct rdzv_roster *roster) {
    free(roster->list);
    rdzv_roster_init(roster);
}

int rdzv_roster_reserve(struct rdzv_roster *roster, size_t extra) {
    size_t wanted = roster->count + extra;
    if (wanted <= roster->capacity) {
        return MUSTER_OK;
    }
    size_t capacity = roster->capacity ? roster->capacity : 4;
    while (capacity < wanted) {
        capacity *= 2;
    }
    struct rdzv_sighting *grown = realloc(roster->list, capacity * sizeof *grown);
    if (!grown) {
        return status_fail(MUSTER_ENOMEM, "no memory to remember %zu rendezvous nodes", capacity);
    }
    roster->list = grown;
    roster->capacity = capacity;
    return MUSTER_OK;
}

static size_t lower_bound(const struct rdzv_roster *roster, const struct rdzv_node *node) {
    size_t low = 0;
    size_t high = roster->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (rdzv_node_compare(&roster->list[middle].node, node) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

struct rdzv_sighting *rdzv_roster_find(const struct rdzv_roster *roster, const struct rdzv_node *node) {
    size_t at = lower_bound(roster, node);
    if (at < roster->count && rdzv_node_compare(&roster->list[at].node, node) == 0) {
        return &roster->list[at];
    }
    return NULL;
}

static struct rdzv_sighting *insert(struct rdzv_roster *roster, const struct rdzv_member *member, struct rdzv_now now) {
    struct rdzv_sighting *slot = roster->list + lower_bound(roster, &member->node);
    assert(roster->count < roster->capacity);
    memmove(slot + 1, slot, (size_t)(roster->list + roster->count - slot) * sizeof *slot);
    roster->count++;
    *slot = (struct rdzv_sighting){
        .node = member->node, .heartbeat_us = member->heartbeat_us, .changed_ms = now.monotonic_ms};
    assert(slot == roster->list || rdzv_node_compare(&slot[-1].node, &slot->node) < 0); /* sorted */
    assert(slot + 1 == roster->list + roster->count || rdzv_node_compare(&slot->node, &slot[1].node) < 0);
    return slot;
}

static void observe_member(struct rdzv_roster *roster, const struct rdzv_member *member, struct rdzv_now now) {
    struct rdzv_sighting *s = rdzv_roster_find(roster, &member->node);
    if (!(member->lists & RDZV_LISTED)) {
        if (s && member->heartbeat_us == RDZV_GRAVE_US) {
            s->gone = true;
        }
        return;
    }
    if (!s) {
        s = insert(roster, member, now);
    } else if ((member->lists & RDZV_HEARTBEAT) && s->heartbeat_us != member->heartbeat_us) {
        s->heartbeat_us = member->heartbeat_us;
        s->changed_ms = now.monotonic_ms;
        s->renewed = true;
    }
    s->met = true;
    s->gone = false;
    s->absent_ms = RDZV_NOT_ABSENT;
}

void rdzv_roster_observe(struct rdzv_roster *roster, const struct rdzv_state *state, struct rdzv_now now) {
    for (size_t i = 0; i < roster->count; i++) {
        roster->list[i].met = false;
    }
    for (size_t i = 0; i < state->member_count; i++) {
        observe_member(roster, &state->members[i], now);
    }
    size_t kept = 0;
    for (size_t i = 0; i < roster->count; i++) {
        struct rdzv_sighting *s = &roster->list[i];
        if (!s->met && s->absent_ms == RDZV_NOT_ABSENT) {
            s->absent_ms = now.monotonic_ms;
        }
        /* Members of a complete round that have just left are about to come back. The gone are remembered for longer: a
         * node whose clock is slow looks silent until its heartbeat is seen to change, and would else be a stranger,
         * and be removed, in every round anew. */
        int64_t memory_ms = s->gone ? RDZV_GONE_MEMORY_MS : RDZV_ABSENT_GRACE_MS;
        if (state->complete && !s->met && now.monotonic_ms - s->absent_ms >= memory_ms) {
            continue;
        }
        roster->list[kept++] = *s;
    }
    roster->count = kept;
}

static int64_t moved_on(int64_t at_ms, int64_t by_ms, struct rdzv_now now) {
    return at_ms + by_ms < now.monotonic_ms ? at_ms + by_ms : now.monotonic_ms;
}

void rdzv_roster_excuse(struct rdzv_roster *roster, int64_t away_ms, struct rdzv_now now) {
    for (size_t i = 0; i < roster->count; i++) {
        struct rdzv_sighting *s = &roster->list[i];
        s->changed_ms = moved_on(s->changed_ms, away_ms, now);
        if (s->absent_ms != RDZV_NOT_ABSENT) {
            s->absent_ms = moved_on(s->absent_ms, away_ms, now);
        }
    }
}

bool rdzv_roster_expired(const struct rdzv_roster *roster, const struct rdzv_member *member, int64_t limit_ms,
                         struct rdzv_now now) {
    if (!(member->lists & RDZV_HEARTBEAT) || now.monotonic_ms < now.judges_from_ms) {
        return false;
    }
    if (rdzv_roster_is_silent(roster, &member->node, limit_ms, now)) {
        return true;
    }
    const struct rdzv_sighting *s = rdzv_roster_find(roster, &member->node);
    return !(s && s->renewed) && now.wall_us - member->heartbeat_us > limit_ms * 1000;
}

bool rdzv_roster_is_silent(const struct rdzv_roster *roster, const struct rdzv_node *node, int64_t limit_ms,
                           struct rdzv_now now) {
    const struct rdzv_sighting *s = rdzv_roster_find(roster, node);
    return s && now.monotonic_ms >= now.judges_from_ms && now.monotonic_ms - s->changed_ms >= limit_ms;
}

bool rdzv_roster_all_joined(const struct rdzv_roster *roster, const struct rdzv_state *state, struct rdzv_now now) {
    for (size_t i = 0; i < roster->count; i++) {
        const struct rdzv_sighting *s = &roster->list[i];
        bool absent = s->absent_ms != RDZV_NOT_ABSENT && now.monotonic_ms - s->absent_ms >= RDZV_ABSENT_GRACE_MS;
        if (!s->gone && !absent && !rdzv_state_is(state, &s->node, RDZV_PARTICIPANT)) {
            return false;
        }
    }
    return true;
}
