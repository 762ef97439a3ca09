/* The first meeting of the ranks; see bootstrap.h. */
#include "comm/bootstrap.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/status.h"
#include "comm/beacon.h"
#include "comm/monitor.h"

enum {
    KEY_BYTES = 24,
    VERDICT_TOPOLOGY = 0,
    VERDICT_FAILURE = 1,
    LIST_RUNS_MAX = 16 /* of ranks in a sentence */
};
/* Ranks start at different times, and so do their time-outs: how long to wait for rank 0's verdict after one's own. */
#define VERDICT_GRACE_MS INT64_C(1000)
/* How long rank 0 may take before anybody asks whether it is alive, and how often then. Of those that look over the
 * network so many look so often, the others in proportion less: one that finds out tells all. */
#define LEADER_PATIENCE_MS INT64_C(500)
#define LEADER_LOOK_MS INT64_C(50)
#define LEADER_LOOKERS 8

static const char topology_key[] = "topology";

static void rank_key(uint32_t rank, char out[KEY_BYTES]) {
    (void)snprintf(out, KEY_BYTES, "rank/%u", rank);
}

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

/* ---- identities ---- */

/* Those of `ranks`, in order. */
static int get_identities(const struct comm_kv *kv, const uint32_t *ranks, uint32_t count, int64_t deadline_ns,
                          struct identity *out) {
    char(*keys)[KEY_BYTES] = calloc(count, sizeof *keys);
    const char **pointers = calloc(count, sizeof *pointers);
    struct muster_store_value *values = calloc(count, sizeof *values);
    int code = keys && pointers && values ? 0 : status_fail(MUSTER_ENOMEM, "no memory for %u ranks", count);
    for (uint32_t i = 0; code == 0 && i < count; i++) {
        rank_key(ranks[i], keys[i]);
        pointers[i] = keys[i];
    }
    code = code ? code : kv->multi_get(kv->context, pointers, count, clock_remaining_ms(deadline_ns), values);
    for (uint32_t i = 0; code == 0 && i < count; i++) {
        code = identity_decode(values[i].data, values[i].len, &out[i]);
        code = code ? status_prefix(code, "rank %u", ranks[i]) : 0;
    }
    for (uint32_t i = 0; values && i < count; i++) {
        muster_store_value_free(&values[i]);
    }
    free(values);
    free(pointers);
    free(keys);
    return code;
}

/* *out_beacon: of rank 0, to be closed when it has told; -1: none. */
static int put_identity(const struct comm_kv *kv, uint32_t rank, uint32_t size, uint64_t choice_hash, int *out_beacon) {
    struct identity identity;
    uint8_t bytes[IDENTITY_ENCODED_BYTES_MAX];
    char key[KEY_BYTES];
    identity_of_this_process(&identity);
    identity.choice_hash = choice_hash;
    *out_beacon = rank == 0 && size > 1 ? beacon_light(&identity) : -1;
    rank_key(rank, key);
    return kv->set(kv->context, key, bytes, identity_encode(&identity, bytes));
}

/* ---- rank 0 ---- */

static bool is_set(const void *flags, uint32_t rank) {
    return ((const bool *)flags)[rank];
}

/* Says who is missing, looking for one after the other: only done when the job fails. */
static int name_missing(const struct comm_kv *kv, uint32_t size) {
    bool *missing = calloc(size, sizeof *missing);
    uint32_t count = 0;
    for (uint32_t rank = 0; missing && rank < size; rank++) {
        struct muster_store_value value = {0};
        char key[KEY_BYTES];
        rank_key(rank, key);
        missing[rank] = kv->get(kv->context, key, 0, &value) != 0;
        count += missing[rank] ? 1 : 0;
        muster_store_value_free(&value);
    }
    char list[256] = "some";
    if (missing) {
        (void)bootstrap_list_ranks(size, is_set, missing, list, sizeof list);
    }
    free(missing);
    return status_fail(MUSTER_ETIMEOUT, "%u of %u ranks did not come in time: %s", count, size, list);
}

static int compute(const struct comm_kv *kv, uint32_t size, int64_t deadline_ns, struct topology *out) {
    uint32_t *ranks = calloc(size, sizeof *ranks);
    struct identity *identities = calloc(size, sizeof *identities);
    int code = ranks && identities ? 0 : status_fail(MUSTER_ENOMEM, "no memory for %u ranks", size);
    for (uint32_t rank = 0; code == 0 && rank < size; rank++) {
        ranks[rank] = rank;
    }
    code = code ? code : get_identities(kv, ranks, size, deadline_ns, identities);
    if (code == MUSTER_ETIMEOUT) {
        code = name_missing(kv, size);
    }
    for (uint32_t rank = 1; code == 0 && rank < size; rank++) {
        if (identities[rank].choice_hash != identities[0].choice_hash) {
            code =
                status_fail(MUSTER_EINVAL,
                            "rank %u has another table of algorithms than rank 0: MUSTER_CHOICE_FILE must name files "
                            "with the same contents on all ranks",
                            rank);
        }
    }
    code = code ? code : topology_compute(identities, size, out);
    free(identities);
    free(ranks);
    return code;
}

static int put_verdict(const struct comm_kv *kv, uint8_t kind, const void *data, size_t len) {
    uint8_t *bytes = malloc(len + 1);
    if (!bytes) {
        return status_fail(MUSTER_ENOMEM, "no memory for the topology");
    }
    bytes[0] = kind;
    memcpy(bytes + 1, data, len);
    int code = kv->set(kv->context, topology_key, bytes, len + 1);
    free(bytes);
    return code;
}

static int put_failure(const struct comm_kv *kv, int code) {
    char sentence[MUSTER_DETAIL_MAX];
    uint8_t bytes[MUSTER_DETAIL_MAX + 4];
    struct bytes_writer w = {bytes, sizeof bytes, 0, false};
    (void)snprintf(sentence, sizeof sentence, "%s", muster_detail());
    bytes_put_number(&w, (uint32_t)code, 4);
    bytes_put(&w, sentence, strlen(sentence));
    (void)put_verdict(kv, VERDICT_FAILURE, bytes, w.used);
    return status_fail(code, "%s", sentence); /* whatever became of telling the others */
}

static int lead(const struct comm_kv *kv, uint32_t size, int64_t deadline_ns) {
    struct topology topology = {0};
    uint8_t *bytes = NULL;
    size_t len = 0;
    int code = compute(kv, size, deadline_ns, &topology);
    code = code ? code : topology_encode(&topology, &bytes, &len);
    code = code ? put_failure(kv, code) : put_verdict(kv, VERDICT_TOPOLOGY, bytes, len);
    topology_done(&topology);
    free(bytes);
    return code;
}

/* ---- everybody ---- */

static int read_verdict(const struct muster_store_value *value, uint32_t size, struct topology *out) {
    struct bytes_reader r = {value->data, value->len, 0, false};
    uint64_t kind = bytes_get_number(&r, 1);
    if (kind == VERDICT_TOPOLOGY && !r.overrun) {
        return topology_decode(value->data + 1, value->len - 1, size, out);
    }
    int code = (int)(int32_t)(uint32_t)bytes_get_number(&r, 4);
    if (kind != VERDICT_FAILURE || r.overrun || code >= 0) {
        return status_fail(MUSTER_EPROTOCOL, "rank 0's answer in the store is not understood");
    }
    return status_fail(code, "rank 0: %.*s", (int)(value->len - r.used), (const char *)value->data + r.used);
}

/* Rank 0, as it is seen from here. */
struct leader {
    struct identity identity;
    bool is_known, is_near; /* it has come; its process can be seen */
    struct beacon_watch beacon;
    int64_t look_ms;
};

static int64_t pace(const struct leader *leader, uint32_t rank) {
    return leader->is_near                       ? LEADER_LOOK_MS
           : beacon_is_in_sight(&leader->beacon) ? LEADER_LOOK_MS * (1 + rank / LEADER_LOOKERS)
                                                 : INT64_MAX;
}

/* Who is it, and how can this process see whether it lives? */
static void find_leader(const struct comm_kv *kv, uint32_t rank, struct leader *leader) {
    struct identity own;
    const uint32_t first = 0;
    int code = get_identities(kv, &first, 1, 0, &leader->identity);
    if (code) {
        leader->look_ms = code == MUSTER_ETIMEOUT ? LEADER_PATIENCE_MS : INT64_MAX;
        return;
    }
    const struct host_identity *host = &leader->identity.host;
    identity_of_this_process(&own);
    leader->is_known = true;
    leader->is_near = memcmp(own.host.boot_id, host->boot_id, sizeof own.host.boot_id) == 0 &&
                      own.host.pid_namespace == host->pid_namespace && own.host.pid_namespace != 0;
    beacon_watch_begin(&leader->beacon, &leader->identity);
    leader->look_ms = pace(leader, rank);
}

static bool has_ended(struct leader *leader) {
    return leader->is_near ? !monitor_is_alive(leader->identity.pid, leader->identity.start_time)
                           : beacon_is_out(&leader->beacon);
}

/* Rank 0 has ended without an answer: tells everybody, unless the answer came in the last moment. */
static int bury_leader(const struct comm_kv *kv, const struct identity *leader, struct muster_store_value *out) {
    char sentence[256];
    uint8_t bytes[sizeof sentence + 8];
    struct bytes_writer w = {bytes, sizeof bytes, 0, false};
    (void)snprintf(sentence, sizeof sentence,
                   "its process (pid %d on host %s) has ended before it had told who is on which host",
                   (int)leader->pid, leader->host_name);
    bytes_put_number(&w, VERDICT_FAILURE, 1);
    bytes_put_number(&w, (uint32_t)MUSTER_EPEER, 4);
    bytes_put(&w, sentence, strlen(sentence));
    return kv->set_if_absent(kv->context, topology_key, bytes, w.used, out);
}

static int watch_and_wait(const struct comm_kv *kv, uint32_t rank, int64_t until_ns, struct leader *leader,
                          struct muster_store_value *out) {
    for (;;) {
        bool is_gone = leader->is_known && has_ended(leader);
        int64_t left_ms = clock_remaining_ms(until_ns);
        int64_t wait_ms = is_gone ? 0 : left_ms < leader->look_ms ? left_ms : leader->look_ms;
        int code = kv->get(kv->context, topology_key, wait_ms, out);
        if (code == MUSTER_ETIMEOUT && is_gone) {
            return bury_leader(kv, &leader->identity, out);
        }
        if (code != MUSTER_ETIMEOUT || wait_ms == left_ms) {
            return code;
        }
        if (leader->is_known) {
            leader->look_ms = pace(leader, rank);
        } else {
            find_leader(kv, rank, leader);
        }
    }
}

/* Waits for rank 0's answer. After a while whoever can looks whether it still runs. */
static int await_verdict(const struct comm_kv *kv, uint32_t rank, int64_t until_ns, struct muster_store_value *out) {
    struct leader leader = {.look_ms = LEADER_PATIENCE_MS, .beacon = {.fd = -1}};
    int code = watch_and_wait(kv, rank, until_ns, &leader, out);
    beacon_watch_end(&leader.beacon);
    return code;
}

static int follow(const struct comm_kv *kv, uint32_t rank, uint32_t size, int64_t deadline_ns, struct topology *out) {
    struct muster_store_value value = {0};
    int64_t grace_ns = VERDICT_GRACE_MS * CLOCK_NS_PER_MS;
    int code =
        await_verdict(kv, rank, deadline_ns < INT64_MAX - grace_ns ? deadline_ns + grace_ns : deadline_ns, &value);
    if (code == MUSTER_ETIMEOUT) {
        char key[KEY_BYTES];
        rank_key(0, key);
        code = kv->get(kv->context, key, 0, &value)
                   ? status_fail(MUSTER_ETIMEOUT, "rank 0 did not come in time")
                   : status_fail(MUSTER_ETIMEOUT, "rank 0 came, but has not told who else did");
    } else if (code == 0) {
        code = read_verdict(&value, size, out);
    }
    muster_store_value_free(&value);
    return code;
}

static int find_locals(const struct comm_kv *kv, uint32_t rank, int64_t deadline_ns, struct bootstrap *bootstrap) {
    const struct topology *topology = &bootstrap->topology;
    uint32_t host = topology->host_of[rank], count = 0;
    uint32_t *ranks = calloc(topology->size, sizeof *ranks);
    if (!ranks) {
        return status_fail(MUSTER_ENOMEM, "no memory for %u ranks", topology->size);
    }
    for (uint32_t r = 0; r < topology->size; r++) {
        if (topology->host_of[r] == host) {
            bootstrap->local = r == rank ? count : bootstrap->local;
            ranks[count++] = r;
        }
    }
    assert(count > 0); /* this one */
    bootstrap->local_count = count;
    bootstrap->locals = calloc(count, sizeof *bootstrap->locals);
    struct identity *identities = calloc(count, sizeof *identities);
    int code = bootstrap->locals && identities ? 0 : status_fail(MUSTER_ENOMEM, "no memory for %u ranks", count);
    code = code ? code : get_identities(kv, ranks, count, deadline_ns, identities);
    for (uint32_t i = 0; code == 0 && i < count; i++) {
        bootstrap->locals[i] = (struct bootstrap_local){ranks[i], identities[i]};
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

int bootstrap_run(const struct comm_kv *kv, uint32_t rank, uint32_t size, uint64_t choice_hash, int64_t deadline_ns,
                  struct bootstrap *out) {
    struct bootstrap bootstrap = {0};
    int beacon = -1;
    int code = put_identity(kv, rank, size, choice_hash, &beacon);
    if (code == 0 && rank == 0) {
        code = lead(kv, size, deadline_ns);
    }
    if (beacon >= 0) {
        (void)close(beacon);
    }
    code = code ? code : follow(kv, rank, size, deadline_ns, &bootstrap.topology);
    code = code ? code : find_locals(kv, rank, deadline_ns, &bootstrap);
    if (code) {
        bootstrap_done(&bootstrap);
        return code;
    }
    *out = bootstrap;
    return 0;
}
