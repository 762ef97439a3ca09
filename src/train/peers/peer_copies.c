/* Memory for copies on peer hosts: that of an earlier life, or new. See peer_copies.h. */
#include "train/peers/peer_copies.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <muster/collective.h>

#include "base/status.h"
#include "base/str.h"
#include "base/system/random.h"
#include "train/peers/peer_copies_impl.h"
#include "train/state/snapshot_parts.h"
#include "train/state/tensor_places.h"

enum { LIFE_BITS = 32 };

/* ---- who serves whom ---- */

static uint32_t host_of(const void *context, uint32_t rank) {
    return muster_group_host_of(context, rank);
}

static bool find_peers(const struct muster_group *group, uint32_t *out_server, uint32_t *out_served) {
    const struct peer_hosts hosts = {muster_group_size(group), host_of, group};
    return peer_server_of(&hosts, muster_group_rank(group), out_server, out_served);
}

bool peer_copies_are_possible(const struct muster_group *group) {
    uint32_t server, served;
    return find_peers(group, &server, &served);
}

/* ---- finding and making it ---- */

/* That of a find with room for this world's shares. It is held under the find's name. */
static void adopt(struct peer_copies *copies, struct peer_finds *finds, uint64_t room) {
    for (size_t i = 0; i < finds->held.count && !copies->table; i++) {
        struct held_find *find = &finds->held.items[i];
        const struct peer_table *table = find->region.memory;
        if (table && held_find_is_of(find, finds->role) &&
            peer_table_is_of(table, held_find_bytes(find), copies->options.fingerprint) && table->room == room &&
            table->part_count == muster_group_size(copies->options.group)) {
            copies->region = find->region;
            copies->table = copies->region.memory;
            find->region = (struct state_region){.memory = NULL};
            (void)str_copy(copies->name, sizeof copies->name, find->name);
        }
    }
}

/* What is not needed goes before new memory takes other's room. */
static int make_room(const struct peer_finds *finds) {
    int status = MUSTER_OK;
    for (size_t i = finds->held.count; status == MUSTER_OK && i > 0; i--) {
        const struct held_find *find = &finds->held.items[i - 1];
        if (!find->is_needed && held_find_is_of(find, finds->role)) {
            status = holder_drop(finds->holder, find->name);
        }
    }
    return status;
}

static int make(struct peer_copies *copies, const struct peer_finds *finds, uint64_t room) {
    size_t bytes = peer_region_bytes(room);
    uint32_t neighbours = muster_group_local_size(copies->options.group); /* they may make theirs at the same time */
    int status = segment_check_room(neighbours * bytes, "copies on peer hosts");
    status = status ? status : state_region_create(NULL, "copies on peer hosts", bytes, &copies->region);
    if (status != MUSTER_OK) {
        return status;
    }
    copies->table = copies->region.memory;
    peer_table_init(copies->table, copies->options.fingerprint, muster_group_size(copies->options.group), room);
    held_finds_free_name(&finds->held, finds->role, copies->name);
    return holder_put(finds->holder, copies->name, copies->region.segment.fd);
}

struct told {
    uint64_t bytes, nonce;
    uint32_t part;
};

/* The room that the largest needs. */
static uint64_t note_shares(struct peer_copies *copies, const struct told *all, uint32_t size) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < size; i++) {
        uint64_t room = (all[i].bytes + PEER_PAGE_BYTES - 1) / PEER_PAGE_BYTES * PEER_PAGE_BYTES;
        copies->part_of[i] = all[i].part;
        copies->bytes[all[i].part] = all[i].bytes;
        most = room > most ? room : most;
    }
    copies->life = all[0].nonce;
    return most;
}

/* Sizes of all shares, and rank 0's random number. */
static int tell(struct peer_copies *copies, uint64_t *out_room) {
    struct muster_group *group = copies->options.group;
    uint32_t size = muster_group_size(group), rank = muster_group_rank(group);
    struct told *all = calloc(size, sizeof *all);
    copies->offers = calloc(size, sizeof *copies->offers);
    copies->bytes = calloc(size, sizeof *copies->bytes);
    copies->part_of = calloc(size, sizeof *copies->part_of);
    copies->sends = calloc(size, sizeof *copies->sends);
    copies->receives = calloc(size, sizeof *copies->receives);
    bool has_room = all && copies->offers && copies->bytes && copies->part_of && copies->sends && copies->receives;
    int status = has_room ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for the shares of %u ranks", size);
    status = snapshot_agree(group, status);
    if (status == MUSTER_OK && all) {
        uint32_t nonce = 0;
        all[rank] = (struct told){.bytes = copies->options.share_bytes, .part = copies->options.part};
        all[rank].nonce = random_fill(&nonce, sizeof nonce) == 0 ? nonce : (uint32_t)getpid();
        status = muster_all_gather(group, &all[rank], all, sizeof *all, MUSTER_UINT8, NULL);
    }
    if (status == MUSTER_OK && all && copies->bytes && copies->part_of) {
        *out_room = note_shares(copies, all, size);
    }
    free(all);
    return status;
}

static uint64_t latest_in(const struct peer_offer *offer) {
    uint64_t latest = offer->given_up;
    for (uint32_t slot = 0; slot < PEER_SLOTS; slot++) {
        latest = offer->labels[slot].life > latest ? offer->labels[slot].life : latest;
    }
    return latest;
}

/* All learn what there is. A life has a greater number than all that left something, in whatever world. */
static int choose(struct peer_copies *copies, const struct peer_finds *finds) {
    struct muster_group *group = copies->options.group;
    uint32_t size = muster_group_size(group), rank = muster_group_rank(group), part_count = 0;
    uint64_t latest = latest_in(&copies->offers[rank]);
    for (size_t i = 0; i < finds->own_count; i++) {
        uint64_t found = latest_in(&finds->own[i].offer);
        latest = found > latest ? found : latest;
    }
    int status =
        muster_all_gather(group, &copies->offers[rank], copies->offers, sizeof *copies->offers, MUSTER_UINT8, NULL);
    status = status ? status : muster_all_reduce(group, &latest, &latest, 1, MUSTER_UINT64, MUSTER_OP_MAX, NULL);
    copies->life |= ((latest >> LIFE_BITS) + 1) << LIFE_BITS;
    copies->found = peer_choose(copies->offers, size, copies->options.most, &part_count);
    copies->numbers.step = copies->found.step;
    return status;
}

/* Each rank that has found none. Copies of another world stay if there is room: what is committed can do without. */
static int make_all(struct peer_copies *copies, struct peer_finds *finds, uint64_t room) {
    struct muster_group *group = copies->options.group;
    bool makes = copies->table == NULL;
    int status = snapshot_agree(group, makes ? make_room(finds) : MUSTER_OK);
    status = status ? status : snapshot_agree(group, makes ? make(copies, finds, room) : MUSTER_OK);
    if (status != MUSTER_ENOMEM || finds->chosen.step >= 0 || muster_group_status(group) != MUSTER_OK) {
        return status;
    }
    for (size_t i = 0; i < finds->held.count; i++) {
        finds->held.items[i].is_needed = false;
    }
    makes = copies->table == NULL;
    status = snapshot_agree(group, makes ? make_room(finds) : MUSTER_OK);
    return status ? status : snapshot_agree(group, makes ? make(copies, finds, room) : MUSTER_OK);
}

static int open_held(struct peer_copies *copies, struct peer_finds *finds) {
    struct muster_group *group = copies->options.group;
    uint64_t room = 0;
    int status = tell(copies, &room);
    if (status != MUSTER_OK) {
        return status;
    }
    copies->room = room;
    adopt(copies, finds, room);
    status = make_all(copies, finds, room);
    if (status == MUSTER_OK && copies->table && copies->offers) {
        peer_table_offer(copies->table, &copies->offers[muster_group_rank(group)]);
        status = choose(copies, finds);
    }
    return status;
}

int peer_copies_open(const struct peer_copies_options *options, struct peer_finds *finds, struct peer_copies **out) {
    struct peer_copies *copies = calloc(1, sizeof *copies);
    int status = copies ? MUSTER_OK : status_fail(MUSTER_ENOMEM, "no memory for copies on peer hosts");
    status = snapshot_agree(options->group, status);
    if (status != MUSTER_OK || !copies) {
        free(copies);
        return status;
    }
    copies->options = *options;
    (void)pthread_mutex_init(&copies->lock, NULL);
    (void)pthread_cond_init(&copies->changed, NULL);
    (void)find_peers(options->group, &copies->server, &copies->served);
    status = open_held(copies, finds);
    if (status != MUSTER_OK) {
        peer_copies_close(copies, true);
        return status;
    }
    *out = copies;
    return MUSTER_OK;
}

const char *peer_copies_name(const struct peer_copies *copies) {
    return copies->name;
}

int peer_copies_settle(struct peer_copies *copies) {
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    struct muster_group *group = copies->options.group;
    uint32_t size = muster_group_size(group), rank = muster_group_rank(group);
    uint32_t stays = peer_slot_of(&copies->offers[rank], &copies->found);
    uint64_t given_up = 0;
    for (uint32_t i = 0; i < size; i++) {
        given_up = copies->offers[i].given_up > given_up ? copies->offers[i].given_up : given_up;
    }
    /* Nothing of earlier lives is used again, if the job does not go on from one. */
    given_up = copies->found.step < 0 ? copies->life - 1 : given_up;
    peer_table_give_up(copies->table, given_up);
    for (uint32_t slot = 0; slot < PEER_SLOTS; slot++) {
        if (slot != stays) {
            copies->table->slots[slot].step = PEER_NOTHING;
        }
    }
    copies->next_slot = stays == 0 ? 1 : 0;
    options.name = "copies";
    options.engine = tensors_host_engine(group); /* copies are of kept memory, which is the host's */
    copies->copy = peer_copy;
    int status = muster_group_split(group, 0, (int32_t)rank, &options, &copies->group);
    return status ? status : snapshot_agree(group, peer_thread_start(copies));
}
