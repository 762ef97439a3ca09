/* The first meeting of the ranks; see bootstrap.h. */
#include "comm/context/bootstrap.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/formats/protocol.h"
#include "base/status.h"
#include "base/str.h"
#include "base/system/random.h"
#include "comm/context/generation.h"
#include "comm/context/leader.h"
#include "comm/context/verdict.h"
#include "comm/engine/engine_choice.h"
#include "comm/host/beacon.h"

enum {
    LIST_RUNS_MAX = 16 /* of ranks in a sentence */
};
/* Ranks start at different times, and so do their time-outs: how long to wait for rank 0's verdict after one's own. */
#define VERDICT_GRACE_MS INT64_C(1000)

/* One meeting, as this rank takes part in it. */
struct meeting {
    const struct comm_kv *kv;
    uint32_t rank, size;
    int64_t deadline_ns;
    uint32_t number; /* of its generation */
    struct identity own;
    uint8_t record[IDENTITY_ENCODED_BYTES_MAX];
    size_t record_len;
    struct verdict verdict; /* who the members are */
};

char *bootstrap_list_ranks(uint32_t size, bool (*has)(const void *context, uint32_t rank), const void *context,
                           char *out, size_t max) {
    size_t used = 0;
    uint32_t runs = 0, more = 0;
    out[0] = '\0';
    for (uint32_t rank = 0, end; rank < size; rank = end) {
        end = rank + 1;
        if (!has(context, rank)) {
            continue;
        }
        while (end < size && has(context, end)) {
            end++;
        }
        if (runs++ >= LIST_RUNS_MAX || used + 32 > max) {
            more += end - rank;
            continue;
        }
        used += (size_t)snprintf(out + used, max - used, "%s%u", used ? ", " : "", rank);
        if (end - rank > 1) {
            used += (size_t)snprintf(out + used, max - used, "-%u", end - 1);
        }
    }
    if (more > 0) {
        (void)snprintf(out + used, max - used, " and %u more", more);
    }
    return out;
}

/* ---- records ---- */

/* The record of `rank`, as `reader` finds it. Before its fields have a meaning, both must speak the same. */
static int read_record(const struct muster_store_value *value, uint32_t rank, uint32_t reader, struct identity *out) {
    uint32_t number = identity_protocol(value->data, value->len);
    if (number != protocol_ranks()) {
        char sentence[PROTOCOL_SENTENCE_SIZE], its[32], own[32];
        (void)str_format(its, sizeof its, "libmuster of rank %u", rank);
        (void)str_format(own, sizeof own, "that of rank %u", reader);
        return status_fail(MUSTER_EPROTOCOL, "%s", protocol_differs(its, number, own, protocol_ranks(), sentence));
    }
    int code = identity_decode(value->data, value->len, out);
    return code ? status_prefix(code, "rank %u", rank) : 0;
}

/* Those of `ranks`, in order. */
static int get_identities(const struct comm_kv *kv, uint32_t number, const uint32_t *ranks, uint32_t count,
                          uint32_t reader, int64_t deadline_ns, struct identity *out) {
    char(*keys)[GENERATION_KEY_BYTES] = calloc(count, sizeof *keys);
    const char **pointers = calloc(count, sizeof *pointers);
    struct muster_store_value *values = calloc(count, sizeof *values);
    int code = keys && pointers && values ? 0 : status_fail(MUSTER_ENOMEM, "no memory for %u ranks", count);
    for (uint32_t i = 0; code == 0 && i < count; i++) {
        generation_rank_key(number, ranks[i], keys[i]);
        pointers[i] = keys[i];
    }
    code = code ? code : kv->multi_get(kv->context, pointers, count, clock_remaining_ms(deadline_ns), values);
    for (uint32_t i = 0; code == 0 && i < count; i++) {
        code = read_record(&values[i], ranks[i], reader, &out[i]);
    }
    for (uint32_t i = 0; values && i < count; i++) {
        muster_store_value_free(&values[i]);
    }
    free(values);
    free(pointers);
    free(keys);
    return code;
}

/* Has one launcher started all ranks, on its node? */
static bool is_one_node(uint32_t size) {
    const char *text = getenv("LOCAL_WORLD_SIZE");
    int64_t local_size = 0;
    return text && str_parse_i64(text, &local_size) && local_size == size;
}

/* *out_beacon: of rank 0, to be closed when it has told; -1: none. */
static int make_record(struct meeting *m, const struct bootstrap_terms *terms, int *out_beacon) {
    *out_beacon = -1;
    identity_of_this_process(&m->own);
    if (random_fill(&m->own.token, sizeof m->own.token) != 0) {
        return status_fail_errno(errno, "random bytes");
    }
    m->own.choice_hash = terms->choice_hash;
    m->own.engine_wish = terms->engine_wish;
    m->own.engine_facts = terms->engine_facts;
    *out_beacon = m->rank == 0 && m->size > 1 ? beacon_light(is_one_node(m->size), &m->own) : -1;
    m->record_len = identity_encode(&m->own, m->record);
    return 0;
}

/* ---- rank 0 ---- */

static bool is_set(const void *flags, uint32_t rank) {
    return ((const bool *)flags)[rank];
}

/* Says who is missing, looking for one after the other: only done when the job fails. */
static int name_missing(const struct meeting *m) {
    bool *missing = calloc(m->size, sizeof *missing);
    struct muster_failure failure = status_no_failure();
    uint32_t count = 0;
    for (uint32_t rank = 0; missing && rank < m->size; rank++) {
        struct muster_store_value value = {0};
        char key[GENERATION_KEY_BYTES];
        generation_rank_key(m->number, rank, key);
        missing[rank] = m->kv->get(m->kv->context, key, 0, &value) != 0;
        count += missing[rank] ? 1 : 0;
        if (missing[rank]) {
            status_add_missing(&failure, rank);
        }
        muster_store_value_free(&value);
    }
    char list[256] = "some";
    if (missing) {
        (void)bootstrap_list_ranks(m->size, is_set, missing, list, sizeof list);
    }
    free(missing);
    (void)status_fail(MUSTER_ETIMEOUT, "%u of %u ranks did not come in time: rank%s %s", count, m->size,
                      str_plural(count), list);
    status_note(&failure);
    return MUSTER_ETIMEOUT;
}

/* What rank `rank` has otherwise than rank 0. */
static int compare_terms(const struct identity *first, const struct identity *own, uint32_t rank) {
    if (own->choice_hash != first->choice_hash) {
        return status_fail(MUSTER_EINVAL,
                           "rank %u has another table of algorithms than rank 0: MUSTER_CHOICE_FILE must name files "
                           "with the same contents on all ranks",
                           rank);
    }
    return own->engine_wish == first->engine_wish
               ? 0
               : status_fail(
                     MUSTER_EINVAL,
                     "rank %u asks for the engine '%s', rank 0 for '%s': muster_group_options and MUSTER_ENGINE "
                     "must say the same on all ranks",
                     rank, engine_kind_name((enum engine_kind)own->engine_wish),
                     engine_kind_name((enum engine_kind)first->engine_wish));
}

/* The topology, and the members' tokens. */
static int compute(struct meeting *m) {
    uint32_t *ranks = calloc(m->size, sizeof *ranks);
    struct identity *identities = calloc(m->size, sizeof *identities);
    m->verdict.tokens = calloc(m->size, sizeof *m->verdict.tokens);
    int code =
        ranks && identities && m->verdict.tokens ? 0 : status_fail(MUSTER_ENOMEM, "no memory for %u ranks", m->size);
    for (uint32_t rank = 0; code == 0 && rank < m->size; rank++) {
        ranks[rank] = rank;
    }
    code = code ? code : get_identities(m->kv, m->number, ranks, m->size, m->rank, m->deadline_ns, identities);
    if (code == MUSTER_ETIMEOUT) {
        code = name_missing(m);
    }
    for (uint32_t rank = 0; code == 0 && rank < m->size; rank++) {
        m->verdict.tokens[rank] = identities[rank].token;
        code = compare_terms(&identities[0], &identities[rank], rank);
    }
    code = code ? code : topology_compute(identities, m->size, &m->verdict.topology);
    free(identities);
    free(ranks);
    return code;
}

static int put_topology(const struct meeting *m) {
    uint8_t *bytes = NULL;
    size_t len = 0;
    int code = verdict_encode_topology(&m->verdict.topology, m->verdict.tokens, &bytes, &len);
    code = code ? code : generation_decide(m->kv, m->number, bytes, len);
    free(bytes);
    return code;
}

static int put_failure(const struct meeting *m, int code) {
    char sentence[MUSTER_DETAIL_MAX];
    uint8_t bytes[VERDICT_FAILURE_BYTES_MAX];
    const struct muster_failure failure = status_failure();
    (void)snprintf(sentence, sizeof sentence, "%s", muster_detail());
    (void)generation_decide(m->kv, m->number, bytes, verdict_encode_failure(code, sentence, &failure, bytes));
    return status_restore(code, sentence, &failure); /* whatever became of telling the others */
}

/* What rank 0 then reads back as everybody does: another one may have ended this generation meanwhile. */
static int decide(struct meeting *m) {
    int code = generation_own(m->kv, m->record, m->record_len, &m->number);
    if (code) {
        return code;
    }
    code = compute(m);
    code = code ? put_failure(m, code) : put_topology(m);
    verdict_done(&m->verdict);
    return code;
}

/* ---- everybody ---- */

/* *out_counts: this rank is one of the members. */
static int read_verdict(struct meeting *m, const struct muster_store_value *value, bool *out_counts) {
    int code = verdict_decode(value->data, value->len, m->size, &m->verdict);
    *out_counts = code == 0 && m->verdict.kind == VERDICT_TOPOLOGY && m->verdict.tokens[m->rank] == m->own.token;
    return code;
}

static int hear_own_verdict(struct meeting *m) {
    struct muster_store_value value = {0};
    char key[GENERATION_KEY_BYTES];
    bool counts = false;
    generation_verdict_key(m->number, key);
    int code = m->kv->get(m->kv->context, key, clock_remaining_ms(m->deadline_ns) + VERDICT_GRACE_MS, &value);
    code = code ? code : read_verdict(m, &value, &counts);
    muster_store_value_free(&value);
    return code || counts ? code : status_fail(MUSTER_EPEER, "another process has become rank 0 meanwhile");
}

/* Puts this rank's record beside the owner's and waits for the verdict. *out_counts: it is a member; else it has to
 * look for the next generation. */
static int take_part(struct meeting *m, const struct identity *owner, bool *out_counts) {
    struct muster_store_value value = {0};
    char key[GENERATION_KEY_BYTES];
    struct leader leader;
    int64_t grace_ns = VERDICT_GRACE_MS * CLOCK_NS_PER_MS;
    int64_t until_ns = m->deadline_ns < INT64_MAX - grace_ns ? m->deadline_ns + grace_ns : m->deadline_ns;
    leader_begin(&leader, owner, &m->own);
    *out_counts = false;
    if (leader.is_near &&
        leader_has_ended(&leader)) { /* it died before, perhaps in another attempt: wait for the next */
        leader_done(&leader);
        m->number++;
        return 0;
    }
    generation_rank_key(m->number, m->rank, key);
    int code = m->kv->set(m->kv->context, key, m->record, m->record_len);
    generation_verdict_key(m->number, key);
    code = code ? code : leader_await_verdict(&leader, m->kv, key, m->rank, until_ns, &value);
    if (code == MUSTER_ETIMEOUT) {
        code = status_fail(code, "rank 0 came, but has not told who else did");
    }
    code = code ? code : read_verdict(m, &value, out_counts);
    muster_store_value_free(&value);
    leader_done(&leader);
    return code;
}

int bootstrap_blame(uint32_t rank, const struct identity *identity, int code) {
    struct muster_failure failure = identity_blame(rank, identity);
    if (code == MUSTER_ETIMEOUT) {
        status_add_missing(&failure, rank);
    }
    status_note(&failure);
    return code;
}

static int no_rank_0(const struct meeting *m) {
    struct muster_store_value value = {0};
    struct identity earlier;
    char key[GENERATION_KEY_BYTES];
    generation_rank_key(m->number - 1, 0, key);
    int code = m->number > 1 ? m->kv->get(m->kv->context, key, 0, &value) : MUSTER_ENOENT;
    code = code ? code : identity_decode(value.data, value.len, &earlier);
    muster_store_value_free(&value);
    if (code) {
        (void)status_fail(MUSTER_ETIMEOUT, "rank 0 did not come in time");
    } else {
        (void)status_fail(MUSTER_ETIMEOUT,
                          "rank 0 did not come in time; an earlier rank 0 (pid %d on host %s) has ended or met others",
                          (int)earlier.pid, earlier.host_name);
    }
    return bootstrap_blame(0, NULL, MUSTER_ETIMEOUT);
}

/* Rank 0 speaks another protocol. It is told by the verdict, whose sentence every protocol reads, and by this rank's
 * record, for which it may be waiting. */
static int refuse_owner(struct meeting *m, int code) {
    char key[GENERATION_KEY_BYTES];
    struct status_kept kept;
    (void)put_failure(m, code);
    status_keep(&kept);
    generation_rank_key(m->number, m->rank, key);
    (void)m->kv->set(m->kv->context, key, m->record, m->record_len);
    status_put_back(&kept);
    return code;
}

static int follow(struct meeting *m) {
    m->number = 1;
    for (;;) {
        struct muster_store_value value = {0};
        struct identity owner;
        bool counts = false;
        int code = generation_await_owner(m->kv, m->rank, m->deadline_ns, &m->number, &value);
        if (code == MUSTER_ETIMEOUT) {
            return no_rank_0(m);
        }
        if (code == 0) {
            code = read_record(&value, 0, m->rank, &owner);
            code = code ? refuse_owner(m, code) : 0;
        }
        muster_store_value_free(&value);
        code = code ? code : take_part(m, &owner, &counts);
        if (code || counts) {
            return code;
        }
        verdict_done(&m->verdict);
    }
}

/* The ranks of this host, and which of them is this one. */
static int list_locals(const struct meeting *m, struct bootstrap *bootstrap) {
    const struct topology *topology = &m->verdict.topology;
    uint32_t host = topology->host_of[m->rank], count = 0;
    for (uint32_t r = 0; r < topology->size; r++) {
        bootstrap->local = r == m->rank ? count : bootstrap->local;
        count += topology->host_of[r] == host ? 1 : 0;
    }
    assert(count > 0); /* this one */
    bootstrap->local_count = count;
    bootstrap->locals = calloc(count, sizeof *bootstrap->locals);
    if (!bootstrap->locals) {
        return status_fail(MUSTER_ENOMEM, "no memory for %u ranks", count);
    }
    for (uint32_t r = 0, i = 0; r < topology->size; r++) {
        if (topology->host_of[r] == host) {
            bootstrap->locals[i++] = (struct bootstrap_local){.rank = r, .token = m->verdict.tokens[r]};
        }
    }
    return 0;
}

/* The process behind a rank of this host, if its record is still the one that rank 0 has read. */
static int know_local(struct bootstrap_local *local, const struct identity *identity) {
    if (identity->token != local->token) {
        int code = status_fail(MUSTER_EPEER,
                               "rank %u has ended while the group was made; another process has come in its place",
                               local->rank);
        return bootstrap_blame(local->rank, NULL, code);
    }
    local->pid = identity->pid;
    local->start_time = identity->start_time;
    return 0;
}

/* Those whom this rank needs at once: itself, and the first rank of the host, which makes the shared memory. */
static int find_locals(const struct meeting *m, struct bootstrap *bootstrap) {
    struct identity first;
    int code = list_locals(m, bootstrap);
    code = code ? code : know_local(&bootstrap->locals[bootstrap->local], &m->own);
    if (code || bootstrap->local == 0) {
        return code;
    }
    code = get_identities(m->kv, m->number, &bootstrap->locals[0].rank, 1, m->rank, m->deadline_ns, &first);
    return code ? code : know_local(&bootstrap->locals[0], &first);
}

int bootstrap_fetch_locals(const struct comm_kv *kv, int64_t deadline_ns, struct bootstrap *bootstrap) {
    uint32_t count = bootstrap->local_count, own = bootstrap->locals[bootstrap->local].rank;
    uint32_t *ranks = calloc(count, sizeof *ranks);
    struct identity *identities = calloc(count, sizeof *identities);
    int code = ranks && identities ? 0 : status_fail(MUSTER_ENOMEM, "no memory for %u ranks", count);
    for (uint32_t i = 0; code == 0 && i < count; i++) {
        ranks[i] = bootstrap->locals[i].rank;
    }
    code = code ? code : get_identities(kv, bootstrap->generation, ranks, count, own, deadline_ns, identities);
    for (uint32_t i = 0; code == 0 && i < count; i++) {
        code = know_local(&bootstrap->locals[i], &identities[i]);
    }
    free(identities);
    free(ranks);
    return code;
}

void bootstrap_done(struct bootstrap *bootstrap) {
    topology_done(&bootstrap->topology);
    free(bootstrap->locals);
    *bootstrap = (struct bootstrap){0};
}

int bootstrap_run(const struct comm_kv *kv, uint32_t rank, uint32_t size, const struct bootstrap_terms *terms,
                  int64_t deadline_ns, struct bootstrap *out) {
    struct meeting m = {.kv = kv, .rank = rank, .size = size, .deadline_ns = deadline_ns};
    struct bootstrap bootstrap = {0};
    int beacon = -1;
    int code = make_record(&m, terms, &beacon);
    if (code == 0 && rank == 0) {
        code = decide(&m);
    }
    if (beacon >= 0) {
        (void)close(beacon);
    }
    code = code ? code : rank == 0 ? hear_own_verdict(&m) : follow(&m);
    code = code ? code : find_locals(&m, &bootstrap);
    bootstrap.topology = m.verdict.topology;
    bootstrap.generation = m.number;
    bootstrap.token = code ? 0 : m.verdict.tokens[0];
    m.verdict.topology = (struct topology){0};
    verdict_done(&m.verdict);
    if (code) {
        bootstrap_done(&bootstrap);
        return code;
    }
    *out = bootstrap;
    return 0;
}
