/* See peer_labels.h. */
#include "train/peers/peer_labels.h"

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

uint32_t peer_owner_of(const struct peer_offer *offers, uint32_t count, const struct peer_label *label,
                       uint32_t part_count, uint32_t part, uint32_t *out_share) {
    for (uint32_t i = 0; i < count; i++) {
        uint32_t slot = 0;
        bool is = is_of(&offers[i], part_count, label, &slot);
        for (uint32_t share = 0; is && share < PEER_SHARES; share++) {
            if (offers[i].parts[slot][share] == part) {
                *out_share = share;
                return i;
            }
        }
    }
    return count;
}

static bool is_complete(const struct peer_offer *offers, uint32_t count, uint32_t part_count,
                        const struct peer_label *label) {
    uint32_t part = 0, share;
    while (part < part_count && peer_owner_of(offers, count, label, part_count, part, &share) < count) {
        part++;
    }
    return part == part_count;
}

static bool is_newer(const struct peer_label *a, const struct peer_label *b) {
    return a->step != b->step ? a->step > b->step : a->life > b->life;
}

/* Is what the rank of that part had there? */
static bool is_on(const struct peer_offer *offers, uint32_t count, uint32_t part_count, const struct peer_label *label,
                  uint32_t part) {
    uint32_t i = 0, slot = 0;
    while (i < count && !(is_of(&offers[i], part_count, label, &slot) && offers[i].parts[slot][0] == part)) {
        i++;
    }
    return i < count;
}

static bool is_on_all(const struct peer_offer *offers, uint32_t count, uint32_t part_count,
                      const struct peer_label *label) {
    uint32_t part = 0;
    while (part < part_count && is_on(offers, count, part_count, label, part)) {
        part++;
    }
    return part == part_count;
}

struct peer_label peer_choose(const struct peer_offer *offers, uint32_t count, int64_t most, uint32_t *out_part_count) {
    struct peer_label chosen = {.step = PEER_NOTHING};
    bool is_safe = false;
    uint64_t given_up = 0;
    for (uint32_t i = 0; i < count; i++) {
        given_up = offers[i].given_up > given_up ? offers[i].given_up : given_up;
    }
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t slot = 0; slot < PEER_SLOTS; slot++) {
            const struct peer_label *label = &offers[i].labels[slot];
            uint32_t part_count = offers[i].part_count;
            if (label->step < 0 || label->step > most || peer_label_equals(label, &chosen) || label->life <= given_up ||
                !is_complete(offers, count, part_count, label)) {
                continue;
            }
            bool is_safer = is_on_all(offers, count, part_count, label);
            if (is_safer == is_safe ? is_newer(label, &chosen) : is_safer) {
                chosen = *label;
                is_safe = is_safer;
                *out_part_count = part_count;
            }
        }
    }
    return chosen;
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
