/* What a job keeps in an etcd (docs/formats/etcd-v3.md): the names of its two keys, their values, and the transactions
 * on them. Pure. */
#ifndef RENDEZVOUS_FINDER_LEASE_KEYS_H
#define RENDEZVOUS_FINDER_LEASE_KEYS_H

#include "net/endpoint.h"
#include "rendezvous/coordinator/coordinator.h"
#include "rendezvous/etcd/etcd3_wire.h"

enum { LEASE_KEY_MAX = 1024, LEASE_VALUE_MAX = 1024 };

struct lease_keys {
    char leader[LEASE_KEY_MAX], world[LEASE_KEY_MAX];
    char first[LEASE_KEY_MAX], end[LEASE_KEY_MAX]; /* the range that holds both */
};

/* Where an agent serves the coordinator. */
struct lease_place {
    char addr[NET_HOST_MAX];
    uint16_t port;
};

/* Who leads. */
struct lease_leader {
    uint64_t identity[2];
    struct lease_place place;
};

/* The last world that may have been told, and where its leader serves. `lease_id`: of the key. */
struct lease_world {
    struct coordinator_record record;
    struct lease_place place;
    int64_t lease_id;
};

/* MUSTER_EINVAL: too long. */
int lease_keys_init(struct lease_keys *keys, const char *prefix, const char *run_id);

/* Values: MUSTER_ENOMEM; reading: MUSTER_EPROTOCOL with the detail. */
int lease_leader_put(const struct lease_leader *leader, struct buf *out);
int lease_leader_get(struct kv_slice value, struct lease_leader *out);
int lease_world_put(const struct lease_world *world, struct buf *out);
int lease_world_get(struct kv_slice value, struct lease_world *out);

/* Requests; each appends a body. LOOK is a range, the others are transactions, which read both keys where they fail. */
int lease_keys_put_look(const struct lease_keys *keys, struct buf *out);
/* If nobody leads: `leader` does; reads the world. */
int lease_keys_put_stand(const struct lease_keys *keys, const struct lease_leader *leader, int64_t lease_id,
                         struct buf *out);
/* If the leader's key was created at `epoch`: it is deleted. */
int lease_keys_put_expired(const struct lease_keys *keys, int64_t epoch, struct buf *out);
/* If the leader's key was created at `epoch` and names `leader`, and the world's was last written at `world_revision`
 * (0: it is not there): that is written. */
int lease_keys_put_fence(const struct lease_keys *keys, const struct lease_leader *leader, int64_t epoch,
                         int64_t world_revision, const struct lease_world *world, struct buf *out);
/* If the leader's key was created at `epoch` and names `leader`: both are deleted. */
int lease_keys_put_clean(const struct lease_keys *keys, const struct lease_leader *leader, int64_t epoch,
                         struct buf *out);

#endif
