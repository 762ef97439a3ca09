/* See peer_labels.h. */
#include "train/peers/peer_labels.h"

#include <muster/group.h>

bool peer_label_equals(const struct peer_label *a, const struct peer_label *b) {
    return a->step == b->step && a->life == b->life;
}

uint32_t peer_slot_of(const struct peer_offer *offer, const struct peer_label *label) {
    uint32_t slot = 0;
    while (slot < PEER_SLOTS && (label->step < 0 || !peer_label_equals(&offer->labels[slot], label))) {
        slot++;
    }
    return slot;
}

static bool is_of(const struct peer_offer *offer, uint32_t part_count, const struct peer_label *label,
                  uint32_t *out_slot) {
    *out_slot = offer->part_count == part_count ? peer_slot_of(offer, label) : PEER_SLOTS;
    return *out_slot < PEER_SLOTS;
}

void peer_owners(const struct peer_offer *offers, uint32_t count, const struct peer_label *label, uint32_t part_count,
                 struct peer_owner *out) {
    for (uint32_t part = 0; part < part_count; part++) {
        out[part].offer = count;
    }
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = 0;
        bool is = is_of(&offers[i], part_count, label, &slot);
        for (uint32_t share = 0; is && share < PEER_SHARES; share++) {
            uint32_t part = offers[i].parts[slot][share];
            if (part < part_count && out[part].offer == count) {
                out[part] = (struct peer_owner){i, share};
            }
        }
    }
}

/* A generation, and the parts of it that are there. */
struct generation {
    struct peer_label label;
    uint32_t part_count;
};

static bool is_newer(const struct generation *a, const struct generation *b) {
    return a->label.step != b->label.step   ? a->label.step > b->label.step
           : a->label.life != b->label.life ? a->label.life > b->label.life
                                            : a->part_count > b->part_count;
}

/* Is each part there, among the first so many shares of each offer? */
static bool has_all(const struct peer_offer *offers, uint32_t count, const struct generation *generation,
                    uint32_t shares) {
    uint64_t seen[MUSTER_GROUP_SIZE_MAX / 64] = {0};
    uint32_t missing = generation->part_count;
    for (uint32_t i = 0; i < count && missing > 0 && missing <= MUSTER_GROUP_SIZE_MAX; i++) {
        uint32_t slot = 0;
        bool is = is_of(&offers[i], generation->part_count, &generation->label, &slot);
        for (uint32_t share = 0; is && share < shares; share++) {
            uint32_t part = offers[i].parts[slot][share];
            uint64_t bit = UINT64_C(1) << part % 64;
            if (part < generation->part_count && !(seen[part / 64] & bit)) {
                seen[part / 64] |= bit;
                missing--;
            }
        }
    }
    return missing == 0;
}

/* The newest that counts, of those that are older than `before`. */
static bool find_next(const struct peer_offer *offers, uint32_t count, int64_t most, uint64_t given_up,
                      const struct generation *before, struct generation *out) {
    bool is_found = false;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t slot = 0; slot < PEER_SLOTS; slot++) {
            const struct generation own = {offers[i].labels[slot], offers[i].part_count};
            if (own.label.step >= 0 && own.label.step <= most && own.label.life > given_up && is_newer(before, &own) &&
                (!is_found || is_newer(&own, out))) {
                *out = own;
                is_found = true;
            }
        }
    }
    return is_found;
}

struct peer_label peer_choose(const struct peer_offer *offers, uint32_t count, int64_t most, uint32_t *out_part_count) {
    struct generation chosen = {.label.step = PEER_NOTHING},
                      next = {{UINT64_MAX, INT64_MAX}, UINT32_MAX}; /* newer than all */
    uint64_t given_up = 0;
    for (uint32_t i = 0; i < count; i++) {
        given_up = offers[i].given_up > given_up ? offers[i].given_up : given_up;
    }
    for (struct generation before = next; find_next(offers, count, most, given_up, &before, &next); before = next) {
        if (has_all(offers, count, &next, 1)) {
            chosen = next;
            break;
        }
        if (chosen.label.step < 0 && has_all(offers, count, &next, PEER_SHARES)) {
            chosen = next;
        }
    }
    if (chosen.label.step >= 0) {
        *out_part_count = chosen.part_count;
    }
    return chosen.label;
}

/* The rank's place among all, in the order of their hosts. */
static uint32_t place_of(const struct peer_hosts *hosts, uint32_t rank) {
    uint32_t place = 0, own = hosts->of(hosts->context, rank);
    for (uint32_t other = 0; other < hosts->rank_count; other++) {
        uint32_t host = hosts->of(hosts->context, other);
        place += host < own || (host == own && other < rank);
    }
    return place;
}

static uint32_t largest_host(const struct peer_hosts *hosts) {
    uint32_t largest = 0;
    for (uint32_t rank = 0; rank < hosts->rank_count; rank++) {
        uint32_t on_host = 0;
        for (uint32_t other = 0; other < hosts->rank_count; other++) {
            on_host += hosts->of(hosts->context, other) == hosts->of(hosts->context, rank);
        }
        largest = on_host > largest ? on_host : largest;
    }
    return largest;
}

/* The server is so many places further as the largest host has ranks. */
bool peer_server_of(const struct peer_hosts *hosts, uint32_t rank, uint32_t *out_server, uint32_t *out_served) {
    uint32_t count = hosts->rank_count, largest = largest_host(hosts), place = place_of(hosts, rank);
    *out_server = *out_served = rank;
    if (2 * largest > count) {
        return false;
    }
    for (uint32_t other = 0; other < count; other++) {
        uint32_t others = place_of(hosts, other);
        *out_server = others == (place + largest) % count ? other : *out_server;
        *out_served = place == (others + largest) % count ? other : *out_served;
    }
    return true;
}
