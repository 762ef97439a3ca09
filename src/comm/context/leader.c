/* Waiting for rank 0 and looking after it; see leader.h. */
#include "comm/context/leader.h"

#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/status.h"
#include "comm/context/verdict.h"
#include "comm/host/monitor.h"

/* How long rank 0 may take before anybody asks whether it is alive, and how often then. Of those that look over the
 * network so many look so often, the others in proportion less: one that finds out tells all. */
#define LEADER_PATIENCE_MS INT64_C(500)
#define LEADER_LOOK_MS INT64_C(50)
#define LEADER_LOOKERS 8

void leader_begin(struct leader *leader, const struct identity *identity, const struct identity *own) {
    *leader = (struct leader){.identity = *identity, .look_ms = LEADER_PATIENCE_MS};
    leader->is_near = memcmp(own->host.boot_id, identity->host.boot_id, sizeof own->host.boot_id) == 0 &&
                      own->host.pid_namespace == identity->host.pid_namespace && own->host.pid_namespace != 0;
    beacon_watch_begin(&leader->beacon, identity);
}

void leader_done(struct leader *leader) {
    beacon_watch_end(&leader->beacon);
}

bool leader_has_ended(struct leader *leader) {
    return leader->is_near ? !monitor_is_alive(leader->identity.pid, leader->identity.start_time)
                           : beacon_is_out(&leader->beacon);
}

static int64_t pace(const struct leader *leader, uint32_t rank) {
    return leader->is_near                       ? LEADER_LOOK_MS
           : beacon_is_in_sight(&leader->beacon) ? LEADER_LOOK_MS * (1 + rank / LEADER_LOOKERS)
                                                 : INT64_MAX;
}

/* Rank 0 has ended without a verdict: tells everybody, unless the verdict came in the last moment. */
static int decide_for(const struct leader *leader, const struct comm_kv *kv, const char *key,
                      struct muster_store_value *out) {
    char sentence[256];
    const struct muster_failure record = identity_blame(0, &leader->identity);
    uint8_t bytes[VERDICT_FAILURE_BYTES_MAX];
    (void)snprintf(sentence, sizeof sentence,
                   "its process (pid %d on host %s) has ended before it had told who is on which host",
                   (int)leader->identity.pid, leader->identity.host_name);
    size_t len = verdict_encode_failure(MUSTER_EPEER, sentence, &record, bytes);
    return kv->set_if_absent(kv->context, key, bytes, len, out);
}

int leader_await_verdict(struct leader *leader, const struct comm_kv *kv, const char *key, uint32_t rank,
                         int64_t until_ns, struct muster_store_value *out) {
    for (bool looks = false;; looks = true) {
        bool is_gone = looks && leader_has_ended(leader);
        int64_t left_ms = clock_remaining_ms(until_ns);
        int64_t wait_ms = is_gone ? 0 : left_ms < leader->look_ms ? left_ms : leader->look_ms;
        int code = kv->get(kv->context, key, wait_ms, out);
        if (code == MUSTER_ETIMEOUT && is_gone) {
            return decide_for(leader, kv, key, out);
        }
        if (code != MUSTER_ETIMEOUT || wait_ms == left_ms) {
            return code;
        }
        leader->look_ms = pace(leader, rank);
    }
}
