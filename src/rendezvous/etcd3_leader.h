/* The coordinator of a job on etcd: the agent that holds the leader's key reads what all agents write, and writes what
 * coordinator.h answers (docs/formats/etcd-v3.md). What that is, etcd3_office.h decides; this asks etcd.
 *
 * Every write is conditional on the leader's key, so one who has been deposed, and does not know it yet, can tell
 * nobody anything. A new leader finds everybody who lives, by their leases, and lets no round close before all of them
 * have told it what they do. On a libuv loop; nothing blocks. */
#ifndef RENDEZVOUS_ETCD3_LEADER_H
#define RENDEZVOUS_ETCD3_LEADER_H

#include <uv.h>

#include "rendezvous/etcd3_client.h"
#include "rendezvous/etcd3_office.h"

struct etcd3_leader;

struct etcd3_leader_options {
    struct etcd3_client *client;         /* borrowed until close */
    struct etcd3_office_settings office; /* its hash_seed, on_refused and ctx are the leader's own */
    /* It leads no more, MUSTER_ECLOSED, or cannot; muster_detail() says why. Once, and nothing afterwards. */
    void (*on_ended)(void *ctx, int status);
    /* All has been written; if the job is over, all others have heard it, and are gone. */
    void (*on_quiet)(void *ctx);
    void *ctx;
};

/* MUSTER_ENOMEM, MUSTER_ESYSTEM. */
int etcd3_leader_create(uv_loop_t *loop, const struct etcd3_leader_options *options, struct etcd3_leader **out);
bool etcd3_leader_is_quiet(const struct etcd3_leader *leader);
/* Frees it during later turns of the loop. NULL accepted; also in its callbacks. */
void etcd3_leader_close(struct etcd3_leader *leader);

#endif
