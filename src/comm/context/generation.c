/* Finding, owning and ending generations; the protocol is described in generation.h. */
#include "comm/context/generation.h"

#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/context/verdict.h"

enum { NUMBER_TEXT_BYTES = 16 };
/* How often a rank that waits beyond the first generation looks at the earlier ones again. */
#define LOOK_AGAIN_MS INT64_C(500)

static const char last_key[] = "last";
static const uint8_t farewell[] = {0};

void generation_rank_key(uint32_t number, uint32_t rank, char out[GENERATION_KEY_BYTES]) {
    (void)str_format(out, GENERATION_KEY_BYTES, "%u/rank/%u", number, rank);
}

void generation_verdict_key(uint32_t number, char out[GENERATION_KEY_BYTES]) {
    (void)str_format(out, GENERATION_KEY_BYTES, "%u/topology", number);
}

void generation_contact_key(uint32_t rank, char out[GENERATION_KEY_BYTES]) {
    (void)str_format(out, GENERATION_KEY_BYTES, "contact/%u", rank);
}

bool generation_is_farewell(const struct muster_store_value *contact) {
    return contact->len == sizeof farewell && contact->data[0] == farewell[0];
}

/* ---- where to begin ---- */

/* The one after `number`, or a later one that the store names. */
static int next_after(const struct comm_kv *kv, uint32_t *number) {
    struct muster_store_value value = {0};
    int64_t last = 0;
    if (*number > 1) { /* the store has been asked */
        ++*number;
        return 0;
    }
    int code = kv->get(kv->context, last_key, 0, &value);
    bool is_told = code == 0 && str_parse_i64((const char *)value.data, &last) && last > 1 && last < UINT32_MAX;
    *number = is_told ? (uint32_t)last : 2;
    muster_store_value_free(&value);
    return code == MUSTER_ETIMEOUT ? 0 : code;
}

static int tell_last(const struct comm_kv *kv, uint32_t number) {
    char text[NUMBER_TEXT_BYTES];
    (void)str_format(text, sizeof text, "%u", number);
    return kv->set(kv->context, last_key, text, strlen(text));
}

/* ---- ending ---- */

int generation_decide(const struct comm_kv *kv, uint32_t number, const void *verdict, size_t len) {
    struct muster_store_value now = {0};
    char key[GENERATION_KEY_BYTES];
    generation_verdict_key(number, key);
    int code = kv->set_if_absent(kv->context, key, verdict, len, &now);
    muster_store_value_free(&now);
    return code;
}

/* A process of this rank takes no part in a generation that has ended so: if another one does, it has gone. */
static int take_leave(const struct comm_kv *kv, uint32_t number, uint32_t rank,
                      const struct muster_store_value *verdict) {
    struct muster_store_value now = {0};
    char contact[GENERATION_KEY_BYTES], key[2 * GENERATION_KEY_BYTES];
    if (verdict->len == 0 || verdict->data[0] != VERDICT_TOPOLOGY) {
        return 0; /* there is no group that would wait */
    }
    generation_contact_key(rank, contact);
    (void)str_format(key, sizeof key, "%u/%s", number, contact);
    int code = kv->set_if_absent(kv->context, key, farewell, sizeof farewell, &now);
    muster_store_value_free(&now);
    return code;
}

/* Its owner has gone, or does not take part any more. */
static int end_generation(const struct comm_kv *kv, uint32_t number, uint32_t rank) {
    static const uint8_t replaced[] = {VERDICT_REPLACED};
    struct muster_store_value now = {0};
    char key[GENERATION_KEY_BYTES];
    generation_verdict_key(number, key);
    int code = kv->set_if_absent(kv->context, key, replaced, sizeof replaced, &now);
    code = code ? code : take_leave(kv, number, rank, &now);
    muster_store_value_free(&now);
    return code;
}

/* ---- forgetting ---- */

void generation_forget(const struct comm_kv *kv, uint32_t number, uint32_t rank) {
    char key[GENERATION_KEY_BYTES];
    if (rank == 0) { /* the verdict first: an owner without one is what a rank 0 that died leaves, and is got over */
        generation_verdict_key(number, key);
        (void)kv->remove(kv->context, key);
    }
    generation_rank_key(number, rank, key);
    (void)kv->remove(kv->context, key);
}

/* ---- rank 0 ---- */

int generation_own(const struct comm_kv *kv, const void *record, size_t len, uint32_t *out) {
    for (uint32_t number = 1;;) {
        struct muster_store_value now = {0};
        char key[GENERATION_KEY_BYTES];
        generation_rank_key(number, 0, key);
        int code = kv->set_if_absent(kv->context, key, record, len, &now);
        bool is_own = code == 0 && now.len == len && memcmp(now.data, record, len) == 0;
        muster_store_value_free(&now);
        if (is_own) {
            *out = number;
            return number > 1 ? tell_last(kv, number) : 0;
        }
        code = code ? code : end_generation(kv, number, 0);
        code = code ? code : next_after(kv, &number);
        if (code) {
            return code;
        }
    }
}

/* ---- the others ---- */

/* Waits for the owner of a generation without a verdict. Beyond the first, only for a while: what this rank saw in the
 * earlier ones may have been taken away since (generation_forget()), and rank 0 has begun there. */
static int await_record(const struct comm_kv *kv, int64_t deadline_ns, uint32_t number, bool *out_looks_again,
                        struct muster_store_value *out_record) {
    char key[GENERATION_KEY_BYTES];
    int64_t left_ms = clock_remaining_ms(deadline_ns);
    bool is_short = number > 1 && left_ms > LOOK_AGAIN_MS;
    generation_rank_key(number, 0, key);
    int code = kv->get(kv->context, key, is_short ? LOOK_AGAIN_MS : left_ms, out_record);
    *out_looks_again = is_short && code == MUSTER_ETIMEOUT;
    return code;
}

int generation_await_owner(const struct comm_kv *kv, uint32_t rank, int64_t deadline_ns, uint32_t *number,
                           struct muster_store_value *out_record) {
    for (;;) {
        struct muster_store_value verdict = {0};
        char key[GENERATION_KEY_BYTES];
        generation_verdict_key(*number, key);
        int code = kv->get(kv->context, key, 0, &verdict);
        if (code == MUSTER_ETIMEOUT) { /* none yet */
            bool looks_again;
            code = await_record(kv, deadline_ns, *number, &looks_again, out_record);
            if (!looks_again) {
                return code;
            }
            *number = 1;
            continue;
        }
        code = code ? code : take_leave(kv, *number, rank, &verdict);
        code = code ? code : next_after(kv, number);
        muster_store_value_free(&verdict);
        if (code) {
            return code;
        }
    }
}
