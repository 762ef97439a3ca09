/* Memory for copies on peer hosts: found, made, fetched from. See peer_copies.h. */
#include "train/peers/peer_copies.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include <muster/collective.h>

#include "base/status.h"
#include "base/str.h"
#include "train/memory/holder.h"
#include "train/peers/peer_copies_impl.h"
#include "train/reduction/step_failure.h"
#include "train/state/checksum.h"
#include "train/state/snapshot_parts.h"

enum { HELD_NAME_BYTES = 128, PAGE_BYTES = 4096, LIFE_BITS = 32 };
#define TABLE_VERSION 1u
static const char table_magic[16] = "muster-peers";
_Static_assert(sizeof(struct peer_table) <= PAGE_BYTES, "the table is a page");

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

/* ---- what is in memory ---- */

static size_t region_bytes(uint64_t room) {
    return PAGE_BYTES + (size_t)PEER_SLOTS * PEER_SHARES * room;
}

/* Nothing in it is trusted. */
static bool fits(const struct peer_copies *copies, const struct state_region *region, uint64_t room) {
    const struct peer_table *table = region->memory;
    size_t bytes = region->segment.bytes - SEGMENT_HEADER_BYTES;
    if (bytes < region_bytes(room) || memcmp(table->magic, table_magic, sizeof table_magic) != 0 ||
        table->version != TABLE_VERSION || table->fingerprint != copies->options.fingerprint || table->room != room ||
        table->part_count != muster_group_size(copies->options.group)) {
        return false;
    }
    for (uint32_t slot = 0; slot < PEER_SLOTS; slot++) {
        for (uint32_t share = 0; share < PEER_SHARES; share++) {
            const struct peer_slot *it = &table->slots[slot];
            if (it->step >= 0 && (it->parts[share] >= table->part_count || it->bytes[share] > room)) {
                return false;
            }
        }
    }
    return true;
}

static bool is_undamaged(const struct peer_copies *copies, uint32_t slot) {
    const struct peer_slot *it = &copies->table->slots[slot];
    bool is = true;
    for (uint32_t share = 0; share < PEER_SHARES; share++) {
        is = is && checksum_of(peer_share(copies, slot, share), it->bytes[share]) == it->sums[share];
    }
    return is;
}

/* Shares are read, to compare checksums, only if one is to be fetched. */
static void make_offer(const struct peer_copies *copies, struct peer_offer *out) {
    out->given_up = copies->table->given_up;
    for (uint32_t slot = 0; slot < PEER_SLOTS; slot++) {
        const struct peer_slot *it = &copies->table->slots[slot];
        bool counts = it->step >= 0 && (copies->options.most != INT64_MAX || is_undamaged(copies, slot));
        out->labels[slot] = (struct peer_label){it->life, counts ? it->step : PEER_NOTHING};
        memcpy(out->parts[slot], it->parts, sizeof it->parts);
    }
}

/* ---- finding and making it ---- */

/* *out_fd: of held memory that fits and is mapped, or -1. */
static int look(struct peer_copies *copies, struct holder *holder, const char *name, uint64_t room) {
    int fd = -1, status = holder_get(holder, name, &fd);
    if (status == MUSTER_ENOENT) {
        return MUSTER_OK;
    }
    if (status != MUSTER_OK) {
        return status;
    }
    struct state_region region;
    if (state_region_adopt(fd, PAGE_BYTES, &region) == MUSTER_OK) {
        if (fits(copies, &region, room)) {
            copies->region = region;
            copies->table = region.memory;
        } else {
            state_region_free(&region);
        }
    }
    (void)close(fd);
    return MUSTER_OK;
}

static int make(struct peer_copies *copies, struct holder *holder, const char *name, uint64_t room) {
    size_t bytes = region_bytes(room);
    uint32_t neighbours = muster_group_local_size(copies->options.group); /* they may make theirs at the same time */
    int status = segment_check_room(neighbours * bytes, "copies on peer hosts");
    status = status ? status : state_region_create(NULL, "copies on peer hosts", bytes, &copies->region);
    if (status != MUSTER_OK) {
        return status;
    }
    struct peer_table *table = copies->table = copies->region.memory;
    table->version = TABLE_VERSION;
    table->part_count = muster_group_size(copies->options.group);
    table->fingerprint = copies->options.fingerprint;
    table->room = room;
    for (uint32_t slot = 0; slot < PEER_SLOTS; slot++) {
        table->slots[slot].step = PEER_NOTHING;
    }
    memcpy(table->magic, table_magic, sizeof table_magic);
    return holder_put(holder, name, copies->region.segment.fd);
}

struct told {
    uint64_t bytes, nonce;
    uint32_t part;
};

/* The room that the largest needs. */
static uint64_t note_shares(struct peer_copies *copies, const struct told *all, uint32_t size) {
    uint64_t most = 0;
    for (uint32_t i = 0; i < size; i++) {
        uint64_t room = (all[i].bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
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
        all[rank].nonce = getrandom(&nonce, sizeof nonce, 0) == (ssize_t)sizeof nonce ? nonce : (uint32_t)getpid();
        status = muster_all_gather(group, &all[rank], all, sizeof *all, MUSTER_UINT8, NULL);
    }
    if (status == MUSTER_OK && all && copies->bytes && copies->part_of) {
        *out_room = note_shares(copies, all, size);
    }
    free(all);
    return status;
}

/* All learn what there is. A life has a greater number than all that left something. */
static int choose(struct peer_copies *copies) {
    struct muster_group *group = copies->options.group;
    uint32_t size = muster_group_size(group), rank = muster_group_rank(group);
    uint64_t latest = 0;
    int status =
        muster_all_gather(group, &copies->offers[rank], copies->offers, sizeof *copies->offers, MUSTER_UINT8, NULL);
    for (uint32_t i = 0; status == MUSTER_OK && i < size; i++) {
        latest = copies->offers[i].given_up > latest ? copies->offers[i].given_up : latest;
        for (uint32_t slot = 0; slot < PEER_SLOTS; slot++) {
            uint64_t life = copies->offers[i].labels[slot].life;
            latest = life > latest ? life : latest;
        }
    }
    copies->life |= ((latest >> LIFE_BITS) + 1) << LIFE_BITS;
    copies->found = peer_choose(copies->offers, size, size, copies->options.most);
    copies->numbers.step = copies->found.step;
    return status;
}

static int open_held(struct peer_copies *copies, struct holder *holder) {
    struct muster_group *group = copies->options.group;
    const char *local = getenv("LOCAL_RANK"), *host = getenv("MUSTER_HOST_ID");
    char name[HELD_NAME_BYTES];
    uint64_t room = 0;
    (void)str_format(name, sizeof name, "%.64s/peer %.40s %.16s", copies->options.name, host ? host : "",
                     local ? local : "0");
    struct peer_offer nothing = {.labels = {{0, PEER_NOTHING}, {0, PEER_NOTHING}}};
    int status = tell(copies, &room);
    status = status ? status : snapshot_agree(group, look(copies, holder, name, room));
    if (status != MUSTER_OK) {
        return status;
    }
    bool makes = copies->table == NULL;
    status = snapshot_agree(group, makes ? holder_drop(holder, name) : MUSTER_OK); /* before it takes other's room */
    status = status ? status : snapshot_agree(group, makes ? make(copies, holder, name, room) : MUSTER_OK);
    if (status == MUSTER_OK && copies->table && copies->offers) {
        copies->offers[muster_group_rank(group)] = nothing;
        make_offer(copies, &copies->offers[muster_group_rank(group)]);
        status = choose(copies);
    }
    return status;
}

int peer_copies_open(const struct peer_copies_options *options, struct peer_copies **out) {
    struct holder *holder = NULL;
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
    status = snapshot_agree(options->group, holder_open(&holder));
    status = status ? status : open_held(copies, holder);
    holder_close(holder);
    if (status != MUSTER_OK) {
        peer_copies_close(copies, true);
        return status;
    }
    *out = copies;
    return MUSTER_OK;
}

int64_t peer_copies_found(const struct peer_copies *copies) {
    return copies->found.step;
}

/* ---- going on from it ---- */

/* From its owner to the rank whose part it is. */
static int move(struct peer_copies *copies, uint32_t rank, void *share) {
    struct muster_group *group = copies->options.group;
    uint32_t size = muster_group_size(group), own = muster_group_rank(group), which = 0, part = copies->part_of[rank];
    uint32_t owner = peer_owner_of(copies->offers, size, &copies->found, part, &which);
    void *from = owner == own ? peer_share(copies, peer_slot_of(&copies->offers[own], &copies->found), which) : NULL;
    if (owner == rank) {
        if (from) {
            memcpy(share, from, copies->bytes[part]);
        }
        return MUSTER_OK;
    }
    copies->sends[rank] = owner == own ? copies->bytes[part] : 0;
    copies->receives[owner] = rank == own ? copies->bytes[part] : 0;
    int status = muster_all_to_all_v(group, from ? from : copies->region.memory, copies->sends, share, copies->receives,
                                     MUSTER_UINT8, NULL);
    copies->sends[rank] = copies->receives[owner] = 0;
    return status;
}

int peer_copies_fetch(struct peer_copies *copies, void *share) {
    int status = MUSTER_OK;
    for (uint32_t rank = 0; status == MUSTER_OK && rank < muster_group_size(copies->options.group); rank++) {
        status = move(copies, rank, share);
    }
    return status;
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
    copies->table->given_up = given_up;
    for (uint32_t slot = 0; slot < PEER_SLOTS; slot++) {
        if (slot != stays) {
            copies->table->slots[slot].step = PEER_NOTHING;
        }
    }
    copies->next_slot = stays == 0 ? 1 : 0;
    options.name = "copies";
    copies->copy = peer_copy;
    int status = muster_group_split(group, 0, (int32_t)rank, &options, &copies->group);
    return status ? status : snapshot_agree(group, peer_thread_start(copies));
}
