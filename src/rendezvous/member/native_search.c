/* Which endpoint an agent joins; see native_search.h. */
#include "rendezvous/member/native_search.h"

#include <assert.h>
#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "base/fnv.h"
#include "net/retry.h"

void native_search_init(struct native_search *s, size_t count) {
    assert(count > 0 && count <= NET_ENDPOINTS_MAX);
    *s = (struct native_search){.count = count};
}

void native_search_served(struct native_search *s, uint64_t round) {
    s->last_round = round;
}

uint32_t native_search_begin(struct native_search *s, int64_t now_ms) {
    uint32_t asked = 0;
    for (size_t i = 0; i < s->count; i++) {
        s->places[i].is_awaited = true;
        asked |= UINT32_C(1) << i;
    }
    s->is_asking = true;
    s->is_decided = false;
    s->asked_ms = now_ms;
    return asked;
}

static bool can_be_joined(const struct native_search_place *place) {
    return !place->is_awaited && (place->answer == NATIVE_SERVES || place->answer == NATIVE_STANDS_BY);
}

static size_t count_awaited(const struct native_search *s) {
    size_t count = 0;
    for (size_t i = 0; i < s->count; i++) {
        count += s->places[i].is_awaited;
    }
    return count;
}

/* Has somebody who can be joined answered in this round of asking? */
static bool has_candidate(const struct native_search *s) {
    for (size_t i = 0; i < s->count; i++) {
        if (can_be_joined(&s->places[i])) {
            return true;
        }
    }
    return false;
}

static unsigned judge(struct native_search *s, int64_t now_ms) {
    unsigned result = 0;
    if (!s->is_asking) {
        return 0;
    }
    bool is_complete = count_awaited(s) == 0;
    bool is_late = now_ms - s->asked_ms >= NATIVE_SEARCH_GRACE_MS && has_candidate(s);
    if (!s->is_decided && (is_complete || is_late)) {
        s->is_decided = true;
        result |= NATIVE_SEARCH_DECIDE;
    }
    if (is_complete) {
        s->is_asking = false;
        result |= NATIVE_SEARCH_COMPLETE;
    }
    return result;
}

unsigned native_search_answered(struct native_search *s, size_t place, enum native_answer answer,
                                const struct coordinator_service *service, int64_t now_ms) {
    struct native_search_place *p = &s->places[place];
    if (!p->is_awaited) {
        return 0;
    }
    *p = (struct native_search_place){.answer = answer};
    if (service) {
        p->service = *service;
    }
    return judge(s, now_ms);
}

unsigned native_search_tick(struct native_search *s, int64_t now_ms) {
    if (s->is_asking && now_ms - s->asked_ms >= NATIVE_SEARCH_PATIENCE_MS) {
        for (size_t i = 0; i < s->count; i++) {
            if (s->places[i].is_awaited) {
                s->places[i] = (struct native_search_place){.answer = NATIVE_SILENT};
            }
        }
    }
    return judge(s, now_ms);
}

int64_t native_search_wake_ms(const struct native_search *s) {
    if (!s->is_asking) {
        return INT64_MAX;
    }
    return s->asked_ms + (!s->is_decided && has_candidate(s) ? NATIVE_SEARCH_GRACE_MS : NATIVE_SEARCH_PATIENCE_MS);
}

int64_t native_search_pause_ms(struct native_search *s) {
    static const struct retry_pace pace = {.first_ms = NATIVE_SEARCH_PAUSE_MIN_MS,
                                           .max_ms = NATIVE_SEARCH_PAUSE_MAX_MS};
    s->pause_count += s->pause_count < UINT_MAX;
    return (int64_t)retry_pause_ms(&pace, s->pause_count, 1); /* all endpoints are asked at once */
}

void native_search_hurry(struct native_search *s) {
    s->pause_count = 0;
}

/* A round's number names the place that told it (coordinator_quorum_next_round()): everybody who has heard of the same
 * latest round begins behind the same place, also who was not in it. */
static size_t distance(const struct native_search *s, size_t place) {
    uint64_t round = native_search_known_round(s);
    size_t first = (size_t)(round % s->count); /* round 1 is of place 0 */
    return (place + s->count - first) % s->count;
}

static bool is_better(const struct native_search *s, size_t left, size_t right) {
    const struct coordinator_service *a = &s->places[left].service, *b = &s->places[right].service;
    if (a->is_running != b->is_running) {
        return a->is_running;
    }
    if (a->is_running && a->round != b->round) {
        return a->round > b->round;
    }
    return distance(s, left) < distance(s, right);
}

bool native_search_can_join(const struct native_search *s, size_t place) {
    return can_be_joined(&s->places[place]);
}

int native_search_best(const struct native_search *s) {
    int best = -1;
    for (size_t i = 0; i < s->count; i++) {
        if (can_be_joined(&s->places[i]) && (best < 0 || is_better(s, i, (size_t)best))) {
            best = (int)i;
        }
    }
    return best;
}

bool native_search_leaves(const struct native_search *s, size_t at, bool is_stuck) {
    return native_search_can_join(s, at) && (is_stuck || native_search_best(s) != (int)at);
}

bool native_search_is_alone(const struct native_search *s, size_t place) {
    for (size_t i = 0; i < s->count; i++) {
        enum native_answer answer = s->places[i].answer;
        if (i != place && answer != NATIVE_REFUSED && answer != NATIVE_STANDS_BY) {
            return false;
        }
    }
    return true;
}

uint64_t native_search_known_round(const struct native_search *s) {
    uint64_t known = s->last_round;
    for (size_t i = 0; i < s->count; i++) {
        known = s->places[i].service.round > known ? s->places[i].service.round : known;
    }
    return known;
}

static uint64_t hash_text(uint64_t digest, const char *text) {
    for (; *text != '\0'; text++) {
        digest = fnv_step(digest, (uint8_t)tolower((unsigned char)*text));
    }
    return digest;
}

uint64_t native_search_digest(const struct net_endpoint_list *list) {
    uint64_t digest = FNV_BEGIN;
    char port[16];
    if (list->count < 2) {
        return 0;
    }
    for (size_t i = 0; i < list->count; i++) {
        (void)snprintf(port, sizeof port, ":%d", (int)list->list[i].port);
        digest = hash_text(hash_text(hash_text(digest, i > 0 ? "," : ""), list->list[i].host), port);
    }
    return digest != 0 ? digest : 1;
}
