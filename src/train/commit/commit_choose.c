/* See commit_choose.h. */
#include "train/commit/commit_choose.h"

#include <muster/group.h>

enum { LIFE_BITS = 32 };

static const struct commit_label no_label = {.step = COMMIT_NOTHING};

struct commit_label commit_offer_label(const struct commit_offer *offer, uint32_t copy) {
    int64_t step = offer->steps[copy];
    if (step < 0) {
        return no_label;
    }
    return (struct commit_label){step, step == offer->life.from ? offer->life.from_life : offer->life.number};
}

uint32_t commit_offer_copy(const struct commit_offer *offer, const struct commit_label *label) {
    uint32_t copy = 0;
    while (copy < COMMIT_COPIES) {
        struct commit_label own = commit_offer_label(offer, copy);
        if (label->step >= 0 && own.step == label->step && own.life == label->life) {
            break;
        }
        copy++;
    }
    return copy;
}

static bool has(const struct commit_offer *offer, const struct commit_label *label) {
    return commit_offer_copy(offer, label) < COMMIT_COPIES;
}

bool commit_label_is_newer(const struct commit_label *a, const struct commit_label *b) {
    return a->step != b->step ? a->step > b->step : a->step >= 0 && a->life > b->life;
}

struct commit_label commit_newest(const struct commit_offer *offers, size_t count) {
    struct commit_label newest = no_label;
    for (size_t i = 0; i < count; i++) {
        for (uint32_t copy = 0; copy < COMMIT_COPIES; copy++) {
            struct commit_label label = commit_offer_label(&offers[i], copy);
            newest = commit_label_is_newer(&label, &newest) ? label : newest;
        }
    }
    return newest;
}

void commit_offers_forget(struct commit_offer *offers, size_t count) {
    uint64_t given_up = 0;
    for (size_t i = 0; i < count; i++) {
        given_up = offers[i].life.given_up > given_up ? offers[i].life.given_up : given_up;
    }
    for (size_t i = 0; i < count; i++) {
        for (uint32_t copy = 0; copy < COMMIT_COPIES; copy++) {
            struct commit_label label = commit_offer_label(&offers[i], copy);
            offers[i].steps[copy] = label.life > given_up ? label.step : COMMIT_NOTHING;
        }
        offers[i].life.given_up = given_up;
    }
}

uint64_t commit_next_life(const struct commit_offer *offers, size_t count, uint32_t chance) {
    uint64_t latest = 0;
    for (size_t i = 0; i < count; i++) {
        latest = offers[i].life.number > latest ? offers[i].life.number : latest;
    }
    return ((latest >> LIFE_BITS) + 1) << LIFE_BITS | chance;
}

/* ---- rows ---- */

static size_t count_owners(const struct commit_offer *offers, size_t count, const struct commit_label *label) {
    size_t owners = 0;
    for (size_t i = 0; i < count; i++) {
        owners += has(&offers[i], label);
    }
    return owners;
}

struct commit_label commit_choose_common(const struct commit_offer *offers, size_t count) {
    struct commit_label chosen = no_label;
    for (uint32_t copy = 0; count > 0 && copy < COMMIT_COPIES; copy++) { /* what all have, the first has */
        struct commit_label label = commit_offer_label(&offers[0], copy);
        bool is_common = count_owners(offers, count, &label) == count;
        chosen = is_common && commit_label_is_newer(&label, &chosen) ? label : chosen;
    }
    return chosen;
}

struct commit_label commit_choose_replica(const struct commit_offer *offers, size_t count) {
    struct commit_label common = commit_choose_common(offers, count);
    return common.step >= 0 ? common : commit_newest(offers, count);
}

/* ---- parts ---- */

size_t commit_owner_of(const struct commit_offer *offers, size_t count, const struct commit_label *label,
                       uint32_t part_count, uint32_t part) {
    size_t i = 0;
    while (i < count && !(offers[i].place.part_count == part_count && has(&offers[i], label) &&
                          part % offers[i].place.stride == offers[i].place.first)) {
        i++;
    }
    return i;
}

/* A label, and of how many parts its memory is. */
struct generation {
    struct commit_label label;
    uint32_t part_count;
};

static bool is_newer(const struct generation *a, const struct generation *b) {
    return commit_label_is_newer(&a->label, &b->label) ||
           (!commit_label_is_newer(&b->label, &a->label) && a->part_count > b->part_count);
}

static bool is_complete(const struct commit_offer *offers, size_t count, const struct generation *generation) {
    uint64_t seen[MUSTER_GROUP_SIZE_MAX / 64] = {0};
    uint32_t missing = generation->part_count;
    for (size_t i = 0; i < count && missing > 0 && missing <= MUSTER_GROUP_SIZE_MAX; i++) {
        const struct commit_place *place = &offers[i].place;
        bool is = place->part_count == generation->part_count && has(&offers[i], &generation->label);
        for (uint64_t part = place->first; is && missing > 0 && part < generation->part_count; part += place->stride) {
            uint64_t bit = UINT64_C(1) << part % 64;
            missing -= !(seen[part / 64] & bit);
            seen[part / 64] |= bit;
        }
    }
    return generation->part_count > 0 && missing == 0;
}

/* The newest of those that are older than `before`. */
static bool find_next(const struct commit_offer *offers, size_t count, const struct generation *before,
                      struct generation *out) {
    bool is_found = false;
    for (size_t i = 0; i < count; i++) {
        for (uint32_t copy = 0; copy < COMMIT_COPIES; copy++) {
            const struct generation own = {commit_offer_label(&offers[i], copy), offers[i].place.part_count};
            if (own.label.step >= 0 && is_newer(before, &own) && (!is_found || is_newer(&own, out))) {
                *out = own;
                is_found = true;
            }
        }
    }
    return is_found;
}

struct commit_label commit_choose_parts(const struct commit_offer *offers, size_t count, uint32_t *out_part_count) {
    struct generation next = {{INT64_MAX, UINT64_MAX}, UINT32_MAX}; /* newer than all */
    for (struct generation before = next; find_next(offers, count, &before, &next); before = next) {
        if (is_complete(offers, count, &next)) {
            *out_part_count = next.part_count;
            return next.label;
        }
    }
    return no_label;
}

struct commit_way commit_choose(const struct commit_offer *offers, size_t count, const struct commit_offer *rows,
                                size_t row_count, bool replicates) {
    struct commit_way way = {.moves = false};
    struct commit_label own =
        replicates ? commit_choose_replica(rows, row_count) : commit_choose_common(rows, row_count);
    struct commit_label newest = replicates ? commit_newest(rows, row_count) : own;
    struct commit_label spread = commit_choose_parts(offers, count, &way.part_count);
    way.moves = commit_label_is_newer(&spread, &newest);
    way.label = way.moves ? spread : own;
    return way;
}

/* ---- failures ---- */

uint32_t commit_count_failures(const struct commit_offer *offers, size_t count, int64_t step, bool has_failed) {
    uint32_t failures = 0;
    for (size_t i = 0; step >= 0 && i < count; i++) {
        uint32_t own = offers[i].life.from == step ? offers[i].life.failures : 0;
        failures = own > failures ? own : failures;
    }
    return step >= 0 && has_failed && failures < UINT32_MAX ? failures + 1 : failures;
}
