/* Groups made from a group: by a list of ranks, or by colour. Both agree by all_gathers of the parent: three exchanges
 * at most, and no store operation. See muster/group.h. */
#include <muster/group.h>

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/fnv.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/group/group_impl.h"

enum { OFFER_BYTES = 8 + 4 + 1 + 4 + GROUP_SEGMENT_NAME_BYTES, CHOICE_BYTES = 8, STATUS_BYTES = 4 };

/* What each rank of the parent puts in: did its part succeed, an id if it is the first of its new group, the name of a
 * segment if it is the first of its host. */
struct offer {
    uint64_t list_hash; /* of a subset: all must have given the same list */
    int32_t status;
    uint8_t engine_wish; /* enum engine_kind: the members of a group must wish the same */
    uint32_t id;
    struct segment_name segment;
};

static void encode_offer(const struct offer *offer, uint8_t out[OFFER_BYTES]) {
    struct bytes_writer w = {out, OFFER_BYTES, 0, false};
    uint8_t name[GROUP_SEGMENT_NAME_BYTES];
    bytes_put_number(&w, offer->list_hash, 8);
    bytes_put_number(&w, (uint32_t)offer->status, 4);
    bytes_put_number(&w, offer->engine_wish, 1);
    bytes_put_number(&w, offer->id, 4);
    group_encode_segment_name(&offer->segment, name);
    bytes_put(&w, name, sizeof name);
}

static void decode_offer(const uint8_t in[OFFER_BYTES], struct offer *out) {
    struct bytes_reader r = {in, OFFER_BYTES, 0, false};
    out->list_hash = bytes_get_number(&r, 8);
    out->status = (int32_t)(uint32_t)bytes_get_number(&r, 4);
    out->engine_wish = (uint8_t)bytes_get_number(&r, 1);
    out->id = (uint32_t)bytes_get_number(&r, 4);
    group_decode_segment_name(bytes_get(&r, GROUP_SEGMENT_NAME_BYTES), &out->segment);
}

/* all_gather of `bytes` bytes a rank; *out is malloc'd. A rank that has no room for the others' answers fails the
 * parent, as every collective does that cannot go on: nothing else ends their wait. */
static int exchange(struct muster_group *parent, const void *own, size_t bytes, uint8_t **out) {
    uint8_t *all = malloc(parent->size * bytes);
    if (!all) {
        char sentence[MUSTER_GROUP_NAME_MAX + 64];
        (void)str_format(sentence, sizeof sentence, "no memory to ask the %u ranks of group '%s'", parent->size,
                         parent->name);
        return group_fail(parent, MUSTER_ENOMEM, sentence, NULL);
    }
    int code = muster_all_gather(parent, own, all, bytes, MUSTER_UINT8, NULL);
    if (code) {
        free(all);
        return code;
    }
    *out = all;
    return 0;
}

/* ---- this rank's part ---- */

/* The members' ranks in the parent, in their new order; empty where this rank is in no new group. */
struct members {
    const uint32_t *ranks;
    uint32_t count;
    int status; /* of finding them; of a failure all are told */
};

static int prepare(struct muster_group *parent, struct members members, const char *name,
                   const struct muster_group_options *options, struct offer *offer, struct muster_group **out) {
    uint32_t *roots = malloc(members.count * sizeof *roots);
    if (!roots) {
        return status_fail(MUSTER_ENOMEM, "no memory for a group of %u ranks", members.count);
    }
    for (uint32_t i = 0; i < members.count; i++) {
        roots[i] = parent->root_ranks[members.ranks[i]];
    }
    struct muster_group *group = NULL;
    enum engine_kind wish = parent->engine_wish;
    int code = options && options->engine ? group_engine_wish(options, &wish) : 0;
    code = code ? code
                : group_prepare(parent->context, roots, members.count, name,
                                options ? group_timeout_ns(options->timeout_ms) : parent->timeout_ns, &group);
    free(roots);
    if (code == 0) {
        group->engine_wish = wish;
        offer->engine_wish = (uint8_t)wish;
    }
    if (code == 0 && group->rank == 0) {
        code = group_new_id(parent->context, &offer->id);
    }
    if (code == 0 && group_leads_host(group) && group->local_count > 1) {
        code = group_make_segment(group, &offer->segment);
    }
    if (code) {
        (void)group_dispose(group);
        return code;
    }
    *out = group;
    return 0;
}

/* ---- what all have offered ---- */

static int refuse(uint32_t rank, int status) {
    return status < 0 ? status_fail(status, "rank %u could not make its part of a new group: %s", rank,
                                    muster_strerror(status))
                      : 0;
}

static int judge(struct muster_group *parent, const uint8_t *all, uint64_t own_hash) {
    struct offer offer;
    int code = 0;
    for (uint32_t rank = 0; code == 0 && rank < parent->size; rank++) {
        decode_offer(all + rank * (size_t)OFFER_BYTES, &offer);
        code = refuse(rank, offer.status);
    }
    for (uint32_t rank = 0; code == 0 && rank < parent->size; rank++) {
        decode_offer(all + rank * (size_t)OFFER_BYTES, &offer);
        if (offer.list_hash != own_hash) {
            char sentence[128];
            (void)str_format(sentence, sizeof sentence,
                             "ranks %u and %u gave different lists of ranks for a subset of group '%s'", parent->rank,
                             rank, parent->name);
            struct muster_failure record = status_no_failure();
            group_blame(parent, rank, &record);
            code = group_fail(parent, MUSTER_EMISMATCH, sentence, &record);
        }
    }
    return code;
}

/* Do all members of this rank's group wish the same engine? */
static int compare_wishes(const uint8_t *all, struct members members, const struct muster_group *group) {
    for (uint32_t i = 0; i < members.count; i++) {
        struct offer offer;
        decode_offer(all + members.ranks[i] * (size_t)OFFER_BYTES, &offer);
        if (offer.engine_wish != group->engine_wish) {
            return status_fail(MUSTER_EINVAL, "rank %u asks for the engine '%s', rank %u for '%s'", i,
                               engine_kind_name((enum engine_kind)offer.engine_wish), group->rank,
                               engine_kind_name(group->engine_wish));
        }
    }
    return 0;
}

static int attach(const uint8_t *all, struct members members, struct muster_group *group) {
    struct offer first, leader;
    int code = compare_wishes(all, members, group);
    if (code) {
        return code;
    }
    decode_offer(all + members.ranks[0] * (size_t)OFFER_BYTES, &first);
    decode_offer(all + members.ranks[group->locals[0]] * (size_t)OFFER_BYTES, &leader);
    group->id = first.id;
    bool opens = group->local_count > 1 && !group_leads_host(group);
    return group_attach(group, opens ? &leader.segment : NULL);
}

/* Have all members attached? Asked of the whole parent, as before: a member that could not must keep nobody waiting, on
 * this host or another one. */
static int agree(struct muster_group *parent, int status) {
    uint8_t own[STATUS_BYTES], *all = NULL;
    char trouble[MUSTER_DETAIL_MAX] = "";
    struct bytes_writer w = {own, sizeof own, 0, false};
    if (status) {
        (void)str_format(trouble, sizeof trouble, "%s", muster_detail());
    }
    bytes_put_number(&w, (uint32_t)status, sizeof own);
    int code = exchange(parent, own, sizeof own, &all);
    if (code == 0 && status) {
        code = status_fail(status, "%s", trouble);
    }
    for (uint32_t rank = 0; code == 0 && rank < parent->size; rank++) {
        struct bytes_reader r = {all + rank * (size_t)STATUS_BYTES, STATUS_BYTES, 0, false};
        code = refuse(rank, (int32_t)(uint32_t)bytes_get_number(&r, STATUS_BYTES));
    }
    free(all);
    return code;
}

/* Has some new group the engine that the parent was to have? */
static bool keeps_engine(const struct muster_group *parent, const uint8_t *all) {
    bool keeps = false;
    for (uint32_t rank = 0; rank < parent->size; rank++) {
        struct offer offer;
        decode_offer(all + rank * (size_t)OFFER_BYTES, &offer);
        keeps |= offer.engine_wish == (uint8_t)parent->engine_wish; /* 0, as "auto", of those that are in none */
    }
    return keeps;
}

static int greatest_of_all(void *context, int32_t own, int32_t *out) {
    return muster_all_reduce(context, &own, out, 1, MUSTER_INT32, MUSTER_OP_MAX, NULL);
}

static int tell_all(void *context, void *bytes, size_t count) {
    return muster_broadcast(context, bytes, count, MUSTER_UINT8, 0, NULL);
}

/* By all members of the parent. group: the new one that this rank is in, or NULL; first: its first rank, in the
 * parent. */
static int derive_engine(struct muster_group *parent, struct muster_group *group, uint32_t first) {
    const struct engine_table *table = parent->engine->table;
    const struct engine_talk talk = {greatest_of_all, tell_all, parent};
    bool is_same = group && group->engine->table->derive == table->derive;
    int code = table->derive(parent->engine, is_same ? group->engine : NULL, first, group ? group->rank : 0, &talk,
                             parent->timeout_ns);
    if (code && group) {
        (void)group_fail_setup(group, code); /* others may have been told that all is well */
    }
    if (code && !failure_is_set(&parent->failure)) {
        (void)group_fail_setup(parent, code);
    }
    return code ? failure_tell(&parent->failure) : 0;
}

/* All have attached: the engines, from that of the parent, or by themselves. */
static int set_engines_up(struct muster_group *parent, struct members members, const uint8_t *all,
                          struct muster_group *group) {
    int code = 0;
    if (group) {
        group_attached(group);
    }
    if (parent->engine->table->derive && keeps_engine(parent, all)) {
        code = derive_engine(parent, group, group ? members.ranks[0] : 0);
    }
    if (code || !group) {
        return code;
    }
    return group_connect_engine(group, clock_deadline_ns(clock_monotonic_ns(), group->timeout_ns / CLOCK_NS_PER_MS));
}

/* Both ways end here: every rank of the parent has its list. */
static int make(struct muster_group *parent, struct members members, uint64_t list_hash, const char *name,
                const struct muster_group_options *options, struct muster_group **out) {
    struct offer offer = {.list_hash = list_hash, .status = members.status};
    struct muster_group *group = NULL;
    uint8_t own[OFFER_BYTES], *all = NULL;
    char trouble[MUSTER_DETAIL_MAX] = "";
    if (offer.status == 0 && members.count > 0) {
        offer.status = prepare(parent, members, name, options, &offer, &group);
    }
    if (offer.status) {
        (void)str_format(trouble, sizeof trouble, "%s", muster_detail());
    }
    encode_offer(&offer, own);
    int code = exchange(parent, own, sizeof own, &all); /* also after a failure here: the others are waiting */
    if (code == 0 && offer.status) {
        code = status_fail(offer.status, "%s", trouble);
    }
    code = code ? code : judge(parent, all, list_hash);
    if (code == 0) {
        code = agree(parent, group ? attach(all, members, group) : 0);
    }
    code = code ? code : set_engines_up(parent, members, all, group);
    free(all);
    if (code) {
        (void)group_dispose(group);
        return status_prefix(code, "group '%s', from '%s'", name, parent->name);
    }
    *out = group;
    return 0;
}

static const char *name_of(const struct muster_group *parent, const struct muster_group_options *options,
                           const char *suffix, char out[MUSTER_GROUP_NAME_MAX]) {
    (void)(options && options->name ? str_format(out, MUSTER_GROUP_NAME_MAX, "%s", options->name)
                                    : str_format(out, MUSTER_GROUP_NAME_MAX, "%s%s", parent->name, suffix));
    return out;
}

/* own: the caller's options, as this version has them; *options becomes that, or stays NULL. */
static int check_parent(const struct muster_group *parent, const struct muster_group_options **options,
                        struct muster_group_options *own, struct muster_group *const *out) {
    int code = group_check(parent);
    if (code) {
        return code;
    }
    if (!out) {
        return status_fail(MUSTER_EINVAL, "a group from '%s': out is NULL", parent->name);
    }
    if (parent->coalesced) {
        return status_fail(MUSTER_EINVAL, "no group can be made between coalesce_begin and coalesce_end");
    }
    code = group_options_read(*options, own);
    *options = *options ? own : NULL;
    return code;
}

/* ---- by a list ---- */

static uint64_t hash_list(const uint32_t *ranks, uint32_t count) {
    uint64_t hash = FNV_BEGIN ^ count;
    for (uint32_t i = 0; i < count; i++) {
        hash = fnv_step(hash, ranks[i]);
    }
    return hash;
}

int muster_group_subset(struct muster_group *parent, const uint32_t *ranks, uint32_t rank_count,
                        const struct muster_group_options *options, struct muster_group **out) {
    char name[MUSTER_GROUP_NAME_MAX], suffix[24];
    bool is_member = false;
    struct muster_group_options own;
    int code = check_parent(parent, &options, &own, out);
    if (code == 0 && (rank_count == 0 || rank_count > parent->size || !ranks)) {
        code = status_fail(MUSTER_EINVAL, "a subset of group '%s' has 1 to %u ranks", parent->name, parent->size);
    }
    for (uint32_t i = 0; code == 0 && i < rank_count; i++) {
        if (ranks[i] >= parent->size || (i > 0 && ranks[i] <= ranks[i - 1])) {
            code =
                status_fail(MUSTER_EINVAL, "the ranks of a subset must rise strictly and be below %u; entry %u is %u",
                            parent->size, i, ranks[i]);
        }
        is_member |= code == 0 && ranks[i] == parent->rank;
    }
    if (code) {
        return code;
    }
    struct members members = {ranks, is_member ? rank_count : 0, 0};
    (void)str_format(suffix, sizeof suffix, ".%u", ++parent->child_count);
    *out = NULL;
    return make(parent, members, hash_list(ranks, rank_count), name_of(parent, options, suffix, name), options, out);
}

/* ---- by colour ---- */

struct chooser {
    int32_t key;
    uint32_t rank;
};

static int compare_choosers(const void *a, const void *b) {
    const struct chooser *x = a, *y = b;
    if (x->key != y->key) {
        return x->key < y->key ? -1 : 1;
    }
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* Those of this rank's colour, in their order. *out is malloc'd. */
static int find_same_color(const struct muster_group *parent, const uint8_t *all, int32_t color, uint32_t **out,
                           uint32_t *out_count) {
    struct chooser *choosers = malloc(parent->size * sizeof *choosers);
    uint32_t *ranks = malloc(parent->size * sizeof *ranks), count = 0;
    if (!choosers || !ranks) {
        free(choosers);
        free(ranks);
        return status_fail(MUSTER_ENOMEM, "no memory to split %u ranks", parent->size);
    }
    for (uint32_t rank = 0; rank < parent->size; rank++) {
        struct bytes_reader r = {all + rank * (size_t)CHOICE_BYTES, CHOICE_BYTES, 0, false};
        int32_t their_color = (int32_t)(uint32_t)bytes_get_number(&r, 4);
        int32_t key = (int32_t)(uint32_t)bytes_get_number(&r, 4);
        if (their_color == color) {
            choosers[count++] = (struct chooser){key, rank};
        }
    }
    qsort(choosers, count, sizeof *choosers, compare_choosers);
    for (uint32_t i = 0; i < count; i++) {
        ranks[i] = choosers[i].rank;
    }
    free(choosers);
    *out = ranks;
    *out_count = count;
    return 0;
}

int muster_group_split(struct muster_group *parent, int32_t color, int32_t key,
                       const struct muster_group_options *options, struct muster_group **out) {
    char name[MUSTER_GROUP_NAME_MAX], suffix[32];
    uint8_t own[CHOICE_BYTES], *all = NULL;
    uint32_t *ranks = NULL, count = 0;
    struct members members = {0};
    struct bytes_writer w = {own, sizeof own, 0, false};
    struct muster_group_options own_options;
    int code = check_parent(parent, &options, &own_options, out);
    if (code) {
        return code;
    }
    bytes_put_number(&w, (uint32_t)color, 4);
    bytes_put_number(&w, (uint32_t)key, 4);
    (void)str_format(suffix, sizeof suffix, ".%u:%d", ++parent->child_count, (int)color);
    *out = NULL;
    code = exchange(parent, own, sizeof own, &all);
    if (code == 0 && color >= 0) {
        members.status = find_same_color(parent, all, color, &ranks, &count);
        members.ranks = ranks;
        members.count = count;
    }
    free(all);
    code = code ? code : make(parent, members, 0, name_of(parent, options, suffix, name), options, out);
    free(ranks);
    return code;
}
