/* See kv_lost.h. Nobody can wait for either of two keys, so a wait goes in parts, with a look between them. */
#include "comm/context/kv_lost.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"

enum { LOOK_MS = 500 };

static int lost_set(void *context, const char *key, const void *value, size_t len) {
    const struct kv_lost *lost = context;
    return lost->meeting.set(lost->meeting.context, key, value, len);
}

static int lost_set_if_absent(void *context, const char *key, const void *value, size_t len,
                              struct muster_store_value *out) {
    const struct kv_lost *lost = context;
    return lost->meeting.set_if_absent(lost->meeting.context, key, value, len, out);
}

static int lost_remove(void *context, const char *key) {
    const struct kv_lost *lost = context;
    return lost->meeting.remove(lost->meeting.context, key);
}

/* MUSTER_ETIMEOUT: nothing is told. */
static int look(const struct kv_lost *lost) {
    struct muster_store_value value = {0};
    int code = muster_store_get(lost->root, lost->key, 0, &value);
    if (code == 0) {
        code = status_fail(MUSTER_EPEER, "not all ranks have come, and one never will: %.*s", (int)value.len,
                           (const char *)value.data);
    }
    muster_store_value_free(&value);
    return code;
}

/* What was waited for may have come before that was told, and counts. Else what the last call has said is kept. */
static int look_after(struct kv_lost *lost, const char *const *keys, size_t key_count, struct muster_store_value *out) {
    const struct comm_kv *kv = &lost->meeting;
    struct status_kept kept;
    status_keep(&kept);
    int told = look(lost);
    if (told == MUSTER_ETIMEOUT) {
        status_put_back(&kept);
        return told;
    }
    status_keep(&kept);
    int code = kv->multi_get(kv->context, keys, key_count, 0, out);
    if (code == MUSTER_ETIMEOUT) {
        status_put_back(&kept);
    }
    return code == MUSTER_ETIMEOUT ? told : code;
}

/* Who calls may wait in parts, too, and shorter ones: the time since the last look counts. */
static int lost_multi_get(void *context, const char *const *keys, size_t key_count, int64_t timeout_ms,
                          struct muster_store_value *out) {
    struct kv_lost *lost = context;
    const struct comm_kv *kv = &lost->meeting;
    int64_t until_ns = clock_deadline_ns(clock_monotonic_ns(), timeout_ms);
    for (bool is_last = false;;) {
        int64_t left_ms = clock_remaining_ms(until_ns);
        is_last = left_ms <= LOOK_MS;
        int code = kv->multi_get(kv->context, keys, key_count, is_last ? left_ms : LOOK_MS, out);
        int64_t now_ns = clock_monotonic_ns();
        if (code == MUSTER_ETIMEOUT && timeout_ms > 0 && now_ns - lost->looked_ns >= LOOK_MS * CLOCK_NS_PER_MS) {
            lost->looked_ns = now_ns;
            code = look_after(lost, keys, key_count, out);
        }
        if (code != MUSTER_ETIMEOUT || is_last) {
            return code;
        }
    }
}

static int lost_get(void *context, const char *key, int64_t timeout_ms, struct muster_store_value *out) {
    return lost_multi_get(context, &key, 1, timeout_ms, out);
}

struct comm_kv kv_lost_watch(struct kv_lost *lost, struct comm_kv meeting, struct muster_store *root, uint32_t size) {
    const char *key = getenv("MUSTER_LOST_KEY"), *all = getenv("WORLD_SIZE");
    int64_t count = 0;
    if (!root || !key || !*key || !all || !str_parse_i64(all, &count) || count != size) {
        return meeting;
    }
    *lost = (struct kv_lost){meeting, root, key, clock_monotonic_ns()};
    return (struct comm_kv){lost, lost_set, lost_get, lost_multi_get, lost_set_if_absent, lost_remove};
}
