/* See peer_find.h. */
#include "train/peers/peer_find.h"

#include <stdlib.h>
#include <string.h>

#include <muster/collective.h>

#include "base/fnv.h"
#include "base/status.h"
#include "base/str.h"
#include "train/peers/peer_copies_impl.h"
#include "train/state/checksum.h"
#include "train/state/snapshot_parts.h"

static const char table_magic[16] = "muster-peers";

/* ---- what is in memory ---- */

static uint64_t seal_of_table(const struct peer_table *table) {
    uint64_t hash = fnv_bytes(FNV_BEGIN, &table->part_count, sizeof table->part_count);
    hash = fnv_bytes(hash, &table->fingerprint, sizeof table->fingerprint);
    return fnv_bytes(hash, &table->room, sizeof table->room);
}

static uint64_t seal_of_life(uint64_t life) {
    return fnv_bytes(FNV_BEGIN, &life, sizeof life);
}

void peer_table_give_up(struct peer_table *table, uint64_t life) {
    for (int i = 0; i < PEER_LIVES; i++) {
        table->given_up[i] = (struct peer_given_up){life, seal_of_life(life)};
        atomic_thread_fence(memory_order_seq_cst);
    }
}

/* False: neither is as it was written. */
static bool read_given_up(const struct peer_table *table, uint64_t *out) {
    bool is = false;
    *out = 0;
    for (int i = 0; i < PEER_LIVES; i++) {
        const struct peer_given_up *it = &table->given_up[i];
        if (it->seal == seal_of_life(it->life)) {
            *out = it->life > *out ? it->life : *out;
            is = true;
        }
    }
    return is;
}

void peer_table_init(struct peer_table *table, uint64_t fingerprint, uint32_t part_count, uint64_t room) {
    table->version = PEER_TABLE_VERSION;
    table->part_count = part_count;
    table->fingerprint = fingerprint;
    table->room = room;
    table->seal = seal_of_table(table);
    peer_table_give_up(table, 0);
    for (uint32_t slot = 0; slot < PEER_SLOTS; slot++) {
        table->slots[slot].step = PEER_NOTHING;
    }
    memcpy(table->magic, table_magic, sizeof table_magic);
}

bool peer_table_is_of(const struct peer_table *table, size_t bytes, uint64_t fingerprint) {
    uint64_t given_up = 0;
    return bytes >= PEER_PAGE_BYTES && memcmp(table->magic, table_magic, sizeof table_magic) == 0 &&
           table->version == PEER_TABLE_VERSION && table->seal == seal_of_table(table) &&
           table->fingerprint == fingerprint && table->part_count > 0 && table->part_count <= MUSTER_GROUP_SIZE_MAX &&
           table->room <= bytes && bytes >= peer_region_bytes(table->room) && read_given_up(table, &given_up);
}

uint64_t peer_slot_seal(const struct peer_slot *slot, int64_t step) {
    uint64_t hash = fnv_bytes(FNV_BEGIN, &step, sizeof step);
    hash = fnv_bytes(hash, &slot->life, sizeof slot->life);
    hash = fnv_bytes(hash, slot->parts, sizeof slot->parts);
    hash = fnv_bytes(hash, slot->bytes, sizeof slot->bytes);
    return fnv_bytes(hash, slot->sums, sizeof slot->sums);
}

/* What does not fit is not offered, and neither is what is damaged, which only is looked at if it is wanted. */
static bool counts(const struct peer_find_options *o, struct peer_table *table, uint32_t slot) {
    struct peer_slot *it = &table->slots[slot];
    bool is = it->step >= 0 && it->seal == peer_slot_seal(it, it->step);
    for (uint32_t share = 0; is && share < PEER_SHARES; share++) {
        is = it->parts[share] < table->part_count && it->bytes[share] <= table->room &&
             it->bytes[share] == o->share_bytes(o->context, table->part_count, it->parts[share]) &&
             (!o->is_wanted ||
              checksum_of(peer_table_share(table, table->room, slot, share), it->bytes[share]) == it->sums[share]);
    }
    it->step = is ? it->step : PEER_NOTHING;
    return is;
}

void peer_table_offer(const struct peer_table *table, struct peer_offer *out) {
    out->part_count = table->part_count;
    (void)read_given_up(table, &out->given_up);
    for (uint32_t slot = 0; slot < PEER_SLOTS; slot++) {
        const struct peer_slot *it = &table->slots[slot];
        out->labels[slot] = (struct peer_label){it->life, it->step};
        memcpy(out->parts[slot], it->parts, sizeof it->parts);
    }
}

/* ---- looking ---- */

static int look(struct peer_finds *finds, const struct peer_find_options *o) {
    const char *host = getenv("MUSTER_HOST_ID");
    char roles[HELD_FIND_NAME_BYTES];
    (void)str_format(roles, sizeof roles, "%.64s/peer %.40s ", o->name, host ? host : "");
    (void)str_format(finds->role, sizeof finds->role, "%s%.15s", roles, holder_local_rank());
    int status = holder_open(&finds->holder);
    status = status ? status : held_finds_look(&finds->held, finds->holder, finds->role);
    if (status == MUSTER_OK && holder_looks_after_others(finds->holder)) {
        status = held_finds_look_on(&finds->held, finds->holder, roles); /* of ranks that are there no more, too */
    }
    return status;
}

static int offer(struct peer_finds *finds, const struct peer_find_options *o) {
    finds->own = calloc(finds->held.count + 1, sizeof *finds->own);
    if (!finds->own) {
        return status_fail(MUSTER_ENOMEM, "no memory for a list of %zu finds", finds->held.count);
    }
    for (size_t i = 0; i < finds->held.count; i++) {
        const struct held_find *find = &finds->held.items[i];
        struct peer_table *table = find->region.memory;
        if (!table || !peer_table_is_of(table, held_find_bytes(find), o->fingerprint)) {
            continue;
        }
        for (uint32_t slot = 0; slot < PEER_SLOTS; slot++) {
            (void)counts(o, table, slot);
        }
        struct peer_found *found = &finds->own[finds->own_count++];
        *found = (struct peer_found){.rank = muster_group_rank(o->group), .find = i};
        peer_table_offer(table, &found->offer);
        /* What is committed may have to move, and a host may be lost meanwhile. */
        finds->held.items[i].is_needed = !o->is_wanted && !o->is_given_up;
    }
    return MUSTER_OK;
}

/* ---- choosing ---- */

static int gather(struct peer_finds *finds, struct muster_group *group) {
    uint32_t size = muster_group_size(group), rank = muster_group_rank(group);
    uint64_t *told = calloc(size, sizeof *told), count = finds->own_count;
    size_t *bytes = calloc(size, sizeof *bytes);
    int status = told && bytes ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for the finds of %u ranks", size);
    status = snapshot_agree(group, status);
    if (status == MUSTER_OK && told && bytes) {
        told[rank] = count;
        status = muster_all_gather(group, &told[rank], told, 1, MUSTER_UINT64, NULL);
    }
    for (uint32_t i = 0; status == MUSTER_OK && told && bytes && i < size; i++) {
        bytes[i] = (size_t)told[i] * sizeof *finds->all;
        finds->count += (size_t)told[i];
    }
    finds->all = calloc(finds->count + 1, sizeof *finds->all);
    finds->offers = calloc(finds->count + 1, sizeof *finds->offers);
    if (status == MUSTER_OK) {
        status = snapshot_agree(group, finds->all && finds->offers
                                           ? MUSTER_OK
                                           : status_fail(MUSTER_ENOMEM, "no memory for %zu finds", finds->count));
    }
    if (status == MUSTER_OK && finds->count > 0) {
        status = muster_all_gather_v(group, finds->own, finds->all, bytes, MUSTER_UINT8, NULL);
    }
    free(told);
    free(bytes);
    return status;
}

static void point_to(struct peer_finds *finds, const struct peer_found *found, uint32_t share,
                     struct peer_source *source) {
    struct held_find *find = &finds->held.items[found->find];
    struct peer_table *table = find->region.memory;
    source->share = peer_table_share(table, table->room, peer_slot_of(&found->offer, &finds->chosen), share);
    find->is_needed = true;
}

static int list_sources(struct peer_finds *finds, uint32_t rank) {
    struct peer_owner *owners = calloc(finds->part_count + 1, sizeof *owners);
    finds->sources = calloc(finds->part_count + 1, sizeof *finds->sources);
    if (!owners || !finds->sources) {
        free(owners);
        return status_fail(MUSTER_ENOMEM, "no memory for a list of %u parts", finds->part_count);
    }
    peer_owners(finds->offers, (uint32_t)finds->count, &finds->chosen, finds->part_count, owners);
    for (uint32_t part = 0; part < finds->part_count; part++) {
        const struct peer_found *found = &finds->all[owners[part].offer];
        struct peer_source *source = &finds->sources[part];
        *source = (struct peer_source){.rank = found->rank, .part = part, .part_count = finds->part_count};
        if (found->rank == rank) {
            point_to(finds, found, owners[part].share, source);
        }
    }
    free(owners);
    return MUSTER_OK;
}

static int choose(struct peer_finds *finds, const struct peer_find_options *o) {
    int status = gather(finds, o->group);
    if (status != MUSTER_OK || !finds->all || !finds->offers) {
        return status;
    }
    for (size_t i = 0; i < finds->count; i++) {
        finds->offers[i] = finds->all[i].offer;
    }
    finds->chosen = peer_choose(finds->offers, (uint32_t)finds->count, INT64_MAX, &finds->part_count);
    status = finds->chosen.step >= 0 ? list_sources(finds, muster_group_rank(o->group)) : MUSTER_OK;
    return snapshot_agree(o->group, status);
}

int peer_find(const struct peer_find_options *options, struct peer_finds **out) {
    struct peer_finds *finds = calloc(1, sizeof *finds);
    int status = finds ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for copies on peer hosts");
    status = snapshot_agree(options->group, status);
    if (status != MUSTER_OK || !finds) {
        free(finds);
        return status;
    }
    finds->chosen.step = PEER_NOTHING;
    status = look(finds, options);
    status = snapshot_agree(options->group, status ? status : offer(finds, options));
    if (status == MUSTER_OK && options->is_wanted) {
        status = choose(finds, options);
    }
    if (status != MUSTER_OK) {
        peer_finds_free(finds);
        return status;
    }
    *out = finds;
    return MUSTER_OK;
}

int64_t peer_finds_step(const struct peer_finds *finds) {
    return finds->chosen.step;
}

size_t peer_finds_sources(const struct peer_finds *finds, const struct peer_source **out) {
    *out = finds->sources;
    return finds->chosen.step >= 0 ? finds->part_count : 0;
}

int peer_finds_drop(const struct peer_finds *finds, const char *name) {
    const struct held_use use = {.role = finds->role, .name = name, .counted = name ? holder_local_size() : 0};
    return held_finds_drop(&finds->held, finds->holder, &use);
}

void peer_finds_free(struct peer_finds *finds) {
    if (finds) {
        held_finds_done(&finds->held);
        holder_close(finds->holder);
        free(finds->own);
        free(finds->all);
        free(finds->offers);
        free(finds->sources);
        free(finds);
    }
}
