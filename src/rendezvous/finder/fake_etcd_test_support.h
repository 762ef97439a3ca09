/* An etcd in memory, for tests of what talks to one: keys with revisions, transactions as their JSON bodies, the events
 * that a watch would bring. It keeps all that ever happened; what is there now is the last event of each key. */
#ifndef RENDEZVOUS_FINDER_FAKE_ETCD_TEST_SUPPORT_H
#define RENDEZVOUS_FINDER_FAKE_ETCD_TEST_SUPPORT_H

#include "rendezvous/etcd/etcd3_wire.h"

enum { FAKE_EVENTS_MAX = 16384 };

struct fake_event {
    struct etcd3_pair pair; /* points into `bytes` */
    uint8_t *bytes;
    int64_t lease_id;
};

struct fake_etcd {
    int64_t revision;
    struct fake_event events[FAKE_EVENTS_MAX];
    size_t event_count;
    size_t forgotten_count;
};

void fake_etcd_begin(struct fake_etcd *etcd, int64_t revision);
void fake_etcd_end(struct fake_etcd *etcd);

/* It comes back empty, with another revision. What was read before stays valid. */
void fake_etcd_lose_data(struct fake_etcd *etcd, int64_t revision);

/* Each makes a revision. */
void fake_etcd_put(struct fake_etcd *etcd, struct kv_slice key, struct kv_slice value, int64_t lease_id);
void fake_etcd_delete(struct fake_etcd *etcd, struct kv_slice key);
/* All keys of the lease. */
void fake_etcd_expire(struct fake_etcd *etcd, int64_t lease_id);

/* NULL: it is not there. Valid until the end. */
const struct etcd3_pair *fake_etcd_get(const struct fake_etcd *etcd, struct kv_slice key);
/* The keys of a range as they are. `out` has room for FAKE_EVENTS_MAX. */
size_t fake_etcd_read(const struct fake_etcd *etcd, struct etcd3_range range, struct etcd3_pair *out);
/* What has happened to them from *revision on, which goes past it. */
size_t fake_etcd_watch(const struct fake_etcd *etcd, struct etcd3_range range, int64_t *revision,
                       struct etcd3_pair *out);

/* Carries out the body of a kv/txn. Fills *out, to be ended with etcd3_reply_done(). `is_alive`: of a lease; false when
 * a key was to be put with one that is not: nothing is done then. */
bool fake_etcd_transaction(struct fake_etcd *etcd, const struct buf *body, bool (*is_alive)(int64_t lease_id),
                           struct etcd3_reply *out);

#endif
