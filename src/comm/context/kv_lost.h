/* A wait for other ranks that ends when the launcher says that one of them is lost (MUSTER_LOST_KEY,
 * docs/worker-contract.md): with --survivors=continue nobody starts a rank again, and a group that is still to be made
 * would wait for it until its time-out. */
#ifndef COMM_KV_LOST_H
#define COMM_KV_LOST_H

#include "comm/context/kv.h"

struct kv_lost {
    struct comm_kv meeting;    /* where the waits are carried out */
    struct muster_store *root; /* where it is told */
    const char *key;
    int64_t looked_ns; /* when it was looked for last */
};

/* `meeting` itself where nothing will be told: no such variable, or a group of other ranks than all `size` of the job.
 * Else its waits fail with MUSTER_EPEER and what was told. `lost` and `root` are borrowed as long as the result is
 * used.
 */
struct comm_kv kv_lost_watch(struct kv_lost *lost, struct comm_kv meeting, struct muster_store *root, uint32_t size);

#endif
