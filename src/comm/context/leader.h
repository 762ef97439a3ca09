/* Rank 0 as another rank sees it that waits for its verdict: whether it still runs, by its process where that can be
 * seen from here, else by its beacon (comm/host/beacon.h). */
#ifndef COMM_LEADER_H
#define COMM_LEADER_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/context/kv.h"
#include "comm/host/beacon.h"
#include "comm/host/identity.h"

struct leader {
    struct identity identity;
    bool is_near; /* its process can be seen */
    struct beacon_watch beacon;
    int64_t look_ms;
};

/* identity: as rank 0 has put it; copied. own: this process's. Does not look yet. */
void leader_begin(struct leader *leader, const struct identity *identity, const struct identity *own);
void leader_done(struct leader *leader);
/* Has it ended, as far as can be seen now? Does not block. */
bool leader_has_ended(struct leader *leader);
/* Waits for the verdict at `key`; for one that has ended without, gives it one, so that all fail. MUSTER_ETIMEOUT: none
 * came in time. *out is the caller's to free. */
int leader_await_verdict(struct leader *leader, const struct comm_kv *kv, const char *key, uint32_t rank,
                         int64_t until_ns, struct muster_store_value *out);

#endif
