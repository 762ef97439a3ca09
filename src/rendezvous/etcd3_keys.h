/* The names of a job's keys on etcd, as one agent has them, and its requests about them (docs/formats/etcd-v3.md).
 * Pure. */
#ifndef RENDEZVOUS_ETCD3_KEYS_H
#define RENDEZVOUS_ETCD3_KEYS_H

#include "rendezvous/etcd3_wire.h"

enum { ETCD3_ROOT_MAX = 1100, ETCD3_KEY_MAX = ETCD3_ROOT_MAX + 48, ETCD3_IDENTITY_CHARS = 32 };

struct etcd3_keys {
    char root[ETCD3_ROOT_MAX]; /* "/muster/run" */
    char leader[ETCD3_KEY_MAX];
    char identity[ETCD3_IDENTITY_CHARS + 1];
    char from[ETCD3_KEY_MAX], to[ETCD3_KEY_MAX]; /* this agent's */
};

/* All but the agent's own. MUSTER_EINVAL: too long for a key. */
int etcd3_keys_init(struct etcd3_keys *keys, const char *prefix, const char *run_id);
void etcd3_keys_set_identity(struct etcd3_keys *keys, const uint64_t identity[2]);

/* Each appends the body of a request, as etcd3_wire_put_...(). */

/* kv/txn: the leader's key is this agent's if nobody has it, else it is read. Carried out twice it finds its own. */
int etcd3_keys_put_stand(const struct etcd3_keys *keys, int64_t lease_id, struct buf *out);
/* kv/txn: what was written to this agent if the leader is that of `epoch`, else the leader's key. */
int etcd3_keys_put_look(const struct etcd3_keys *keys, int64_t epoch, struct buf *out);
/* kv/put: what this agent writes. */
int etcd3_keys_put_letter(const struct etcd3_keys *keys, struct kv_slice value, int64_t lease_id, struct buf *out);

#endif
