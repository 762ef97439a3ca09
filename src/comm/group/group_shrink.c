/* A group of the survivors: muster_group_shrink().
 *
 * Agreed through the store, under "shrink/GROUP/ATTEMPT/", because the group itself cannot be trusted any more:
 *
 *     everybody     SET here/RANK
 *     one of them   GETs the reports of all that it does not know to be dead, then stores the list of those that have
 *                   reported in `members`, if nobody has: the first list counts
 *     everybody     GET members
 *
 * The one is the lowest rank that is not known to be dead. If it dies, the next one takes over; if it does not answer,
 * everybody decides at the time-out: since the first list counts, it does not matter how many do. The new group is then
 * made as any other, its segments' names being passed through the store, too. If somebody dies while that is done, the
 * new group has failed before it was made, and is shrunk in its turn. */
#include <muster/group.h>

#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/group/group_impl.h"

/* How often to look for deaths while waiting for the store. */
enum { LOOK_MS = 50, KEY_BYTES = 80 };
#define RANK_BYTES_MAX 5u /* of a varint below 2^32 */

struct shrink {
    struct muster_group *failed;
    struct context *context;
    uint32_t attempt;
    int64_t deadline_ns;
};

struct list {
    uint32_t id;
    uint32_t *ranks; /* of the failed group, rising; owned */
    uint32_t count;
};

static const char *make_key(const struct shrink *shrink, const char *what, uint32_t number, char out[KEY_BYTES]) {
    (void)str_format(out, KEY_BYTES, "shrink/%u/%u/%s/%u", shrink->failed->id, shrink->attempt, what, number);
    return out;
}

static bool is_gone(const struct shrink *shrink, uint32_t rank) {
    uint32_t root = shrink->failed->root_ranks[rank];
    return atomic_load_explicit(&shrink->context->peers[root].state, memory_order_acquire) != CONTEXT_PEER_HERE;
}

static uint32_t first_alive(const struct shrink *shrink) {
    uint32_t rank = 0;
    while (rank < shrink->failed->size && is_gone(shrink, rank)) {
        rank++;
    }
    return rank;
}

/* ---- the list in the store: u32 id, then the ranks as varints ---- */

static int encode_list(const struct list *list, uint8_t **out, size_t *out_len) {
    size_t room = 4 + (size_t)list->count * RANK_BYTES_MAX;
    struct bytes_writer w = {malloc(room), room, 0, false};
    if (!w.data) {
        return status_fail(MUSTER_ENOMEM, "no memory for a list of %u ranks", list->count);
    }
    bytes_put_number(&w, list->id, 4);
    for (uint32_t i = 0; i < list->count; i++) {
        bytes_put_varint(&w, list->ranks[i]);
    }
    *out = w.data;
    *out_len = w.used;
    return 0;
}

static int decode_list(const struct muster_store_value *value, uint32_t size, struct list *out) {
    struct bytes_reader r = {value->data, value->len, 0, false};
    struct list list = {.id = (uint32_t)bytes_get_number(&r, 4), .ranks = malloc(size * sizeof *list.ranks)};
    if (!list.ranks) {
        return status_fail(MUSTER_ENOMEM, "no memory for a list of %u ranks", size);
    }
    bool right = !r.overrun;
    while (right && r.used < r.size) {
        uint64_t rank = bytes_get_varint(&r);
        right = !r.overrun && rank < size && (list.count == 0 || rank > list.ranks[list.count - 1]);
        if (right) {
            list.ranks[list.count++] = (uint32_t)rank;
        }
    }
    if (!right || list.count == 0) {
        free(list.ranks);
        return status_fail(MUSTER_EPROTOCOL, "the list of survivors in the store is not understood");
    }
    *out = list;
    return 0;
}

/* ---- agreeing ---- */

static bool has_reported(const struct shrink *shrink, uint32_t rank) {
    struct muster_store_value value = {0};
    char key[KEY_BYTES];
    const struct comm_kv *kv = &shrink->context->kv;
    bool has = kv->get(kv->context, make_key(shrink, "here", rank, key), 0, &value) == 0;
    muster_store_value_free(&value);
    return has;
}

/* Stores the list of those that have reported, unless there is one. Looks at each, so that nobody who came is lost. */
static int decide(const struct shrink *shrink) {
    const struct comm_kv *kv = &shrink->context->kv;
    struct muster_store_value now = {0};
    struct list list = {.ranks = malloc(shrink->failed->size * sizeof *list.ranks)};
    uint8_t *bytes = NULL;
    size_t len = 0;
    char key[KEY_BYTES];
    int code = list.ranks ? group_new_id(shrink->context, &list.id) : status_fail(MUSTER_ENOMEM, "no memory to shrink");
    for (uint32_t rank = 0; code == 0 && rank < shrink->failed->size; rank++) {
        if (rank == shrink->failed->rank || (!is_gone(shrink, rank) && has_reported(shrink, rank))) {
            list.ranks[list.count++] = rank;
        }
    }
    code = code ? code : encode_list(&list, &bytes, &len);
    code = code ? code : kv->set_if_absent(kv->context, make_key(shrink, "members", 0, key), bytes, len, &now);
    muster_store_value_free(&now);
    free(bytes);
    free(list.ranks);
    return code;
}

/* Waits, for a moment, until all that are not known to be gone have reported. MUSTER_ETIMEOUT: not yet. */
static int await_reports(const struct shrink *shrink, int64_t wait_ms) {
    uint32_t size = shrink->failed->size, count = 0;
    char(*names)[KEY_BYTES] = calloc(size, sizeof *names);
    const char **keys = calloc(size, sizeof *keys);
    struct muster_store_value *values = calloc(size, sizeof *values);
    int code = names && keys && values ? 0 : status_fail(MUSTER_ENOMEM, "no memory to shrink a group of %u", size);
    for (uint32_t rank = 0; code == 0 && rank < size; rank++) {
        if (!is_gone(shrink, rank)) {
            keys[count] = make_key(shrink, "here", rank, names[count]);
            count++;
        }
    }
    const struct comm_kv *kv = &shrink->context->kv;
    code = code ? code : kv->multi_get(kv->context, keys, count, wait_ms, values);
    for (uint32_t i = 0; values && i < count; i++) {
        muster_store_value_free(&values[i]);
    }
    free(values);
    free(keys);
    free(names);
    return code;
}

/* One turn of waiting. MUSTER_ETIMEOUT: go on. */
static int look_for_list(const struct shrink *shrink, struct muster_store_value *out) {
    char key[KEY_BYTES];
    const struct comm_kv *kv = &shrink->context->kv;
    int64_t left_ms = clock_remaining_ms(shrink->deadline_ns), wait_ms = left_ms < LOOK_MS ? left_ms : LOOK_MS;
    bool decides = left_ms == 0;
    (void)p2p_progress(shrink->context->p2p); /* no call waits for messages now: others' words of deaths lie unread */
    if (first_alive(shrink) == shrink->failed->rank && !decides) {
        int code = await_reports(shrink, wait_ms);
        if (code && code != MUSTER_ETIMEOUT) {
            return code;
        }
        decides = code == 0;
        wait_ms = 0;
    }
    int code = decides ? decide(shrink) : 0;
    return code ? code : kv->get(kv->context, make_key(shrink, "members", 0, key), wait_ms, out);
}

static int agree(const struct shrink *shrink, struct list *out) {
    struct muster_store_value value = {0};
    char key[KEY_BYTES];
    const struct comm_kv *kv = &shrink->context->kv;
    int code = kv->set(kv->context, make_key(shrink, "here", shrink->failed->rank, key), "1", 1);
    if (code == 0) {
        do {
            code = look_for_list(shrink, &value);
        } while (code == MUSTER_ETIMEOUT);
    }
    code = code ? code : decode_list(&value, shrink->failed->size, out);
    muster_store_value_free(&value);
    return code;
}

/* ---- making it ---- */

static int make_segment(const struct shrink *shrink, struct muster_group *group, uint32_t host) {
    struct segment_name name = {0};
    uint8_t bytes[GROUP_SEGMENT_NAME_BYTES];
    char key[KEY_BYTES];
    int code = group_make_segment(group, &name);
    group_encode_segment_name(&name, bytes);
    int told = context_put_result(shrink->context, make_key(shrink, "segment", host, key), code, bytes, sizeof bytes);
    return code ? code : told;
}

static int attach_and_meet(const struct shrink *shrink, struct muster_group *group, int64_t deadline_ns) {
    uint32_t host = shrink->context->bootstrap.topology.host_of[shrink->context->rank];
    struct segment_name name = {0};
    uint8_t bytes[GROUP_SEGMENT_NAME_BYTES];
    char key[KEY_BYTES];
    int code = 0;
    if (group->local_count > 1 && group_leads_host(group)) {
        code = make_segment(shrink, group, host);
    } else if (group->local_count > 1) {
        code = context_get_result(shrink->context, make_key(shrink, "segment", host, key),
                                  group->root_ranks[group->locals[0]], deadline_ns, bytes, sizeof bytes);
        group_decode_segment_name(bytes, &name);
    }
    code = code ? code : group_attach(group, group_leads_host(group) ? NULL : &name);
    code = code ? code : group_meet(group, deadline_ns);
    return code ? code : group_connect_engine(group, deadline_ns);
}

static int prepare(const struct shrink *shrink, const struct list *list, struct muster_group **out) {
    struct muster_group *failed = shrink->failed;
    uint32_t *roots = malloc(list->count * sizeof *roots);
    bool is_member = false;
    if (!roots) {
        return status_fail(MUSTER_ENOMEM, "no memory for a group of %u ranks", list->count);
    }
    for (uint32_t i = 0; i < list->count; i++) {
        roots[i] = failed->root_ranks[list->ranks[i]];
        is_member |= list->ranks[i] == failed->rank;
    }
    int code = is_member
                   ? group_prepare(shrink->context, roots, list->count, failed->name, failed->timeout_ns, out)
                   : status_fail(MUSTER_EGROUP,
                                 "the other ranks of group '%s' have gone on without rank %u, which came too late",
                                 failed->name, failed->rank);
    free(roots);
    return code;
}

static int shrink_once(struct muster_group *failed, int64_t timeout_ms, struct muster_group **out) {
    struct shrink shrink = {.failed = failed,
                            .context = failed->context,
                            .attempt = failed->shrink_count++,
                            .deadline_ns = clock_deadline_ns(clock_monotonic_ns(), timeout_ms)};
    struct list list = {0};
    struct muster_group *group = NULL;
    int code = agree(&shrink, &list);
    code = code ? code : prepare(&shrink, &list, &group);
    if (code == 0) {
        group->id = list.id;
        group->engine_wish = failed->engine_wish;
        group->shrunk_from = failed;
        group->survivors = list.ranks;
        code = attach_and_meet(&shrink, group, clock_deadline_ns(clock_monotonic_ns(), timeout_ms));
    }
    if (group) { /* they were for its engine */
        group->shrunk_from = NULL;
        group->survivors = NULL;
    }
    free(list.ranks);
    *out = group; /* also half-made */
    return code;
}

int muster_group_shrink(struct muster_group *failed, int64_t timeout_ms, struct muster_group **out) {
    int code = group_check(failed);
    code = code || out ? code : status_fail_null("shrink", "out");
    if (code == 0 && timeout_ms <= 0) {
        code = status_fail(MUSTER_EINVAL, "shrink group '%s': the time-out is %lld ms; it must be positive",
                           failed->name, (long long)timeout_ms);
    }
    code = code ? code : group_engine_may_shrink(failed);
    if (code) {
        return code;
    }
    char sentence[MUSTER_GROUP_NAME_MAX + 64];
    (void)str_format(sentence, sizeof sentence, "rank %u shrinks group '%s'", failed->rank, failed->name);
    struct muster_failure record = status_no_failure();
    group_blame(failed, failed->rank, &record);
    (void)group_fail(failed, MUSTER_EABORTED, sentence, &record);
    struct muster_group *group = NULL, *next = NULL;
    code = shrink_once(failed, timeout_ms, &group);
    /* Every turn loses a rank at least. */
    while (group && (code == MUSTER_EPEER || code == MUSTER_ETIMEOUT) && group->size > 1) {
        code = shrink_once(group, timeout_ms, &next);
        (void)group_dispose(group);
        group = next;
    }
    if (code) {
        (void)group_dispose(group);
        return status_prefix(code, "shrink group '%s'", failed->name);
    }
    *out = group;
    return 0;
}
