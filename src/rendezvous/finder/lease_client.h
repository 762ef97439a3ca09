/* What the lease finder decides (lease.h), done: requests to etcd, the watch, timers, and what the agent is told. On a
 * libuv loop; nothing blocks. Callbacks may call anything here, lease_client_close() included. */
#ifndef RENDEZVOUS_FINDER_LEASE_CLIENT_H
#define RENDEZVOUS_FINDER_LEASE_CLIENT_H

#include <uv.h>

#include "rendezvous/etcd/etcd3_client.h"
#include "rendezvous/finder/lease_keys.h"

struct lease_client;

struct lease_client_options {
    struct etcd3_client *client; /* borrowed until lease_client_close() */
    const char *prefix, *run_id; /* borrowed until lease_client_create() returns */
    uint64_t identity[2];
    uint64_t keep_alive_interval_ms;
    uint64_t silence_ms; /* of the leader's lease; without etcd for so long a leader gives up what it is to tell */
    uint64_t world_ms;   /* of the world's lease */
    uint64_t first_patience_ms; /* for etcd's first answer */
    uint64_t end_patience_ms;   /* for the end */
    /* Serves the coordinator, unless it does, and says where. */
    int (*serve)(void *ctx, struct lease_place *out);
    void (*on_deposed)(void *ctx); /* serves no longer */
    /* This agent leads, after that world (NULL: none yet). */
    void (*on_lead)(void *ctx, const struct coordinator_record *record);
    void (*on_fenced)(void *ctx, uint64_t round); /* its record stands */
    void (*on_found)(void *ctx, const struct lease_place *place);
    void (*on_nobody)(void *ctx); /* nobody leads */
    void (*on_news)(void *ctx);   /* to seek again is worth while */
    void (*on_failed)(void *ctx, int status);
    void *ctx;
};

/* MUSTER_EINVAL (too long for a key), MUSTER_ENOMEM. */
int lease_client_create(uv_loop_t *loop, const struct lease_client_options *options, struct lease_client **out);
/* No callback any more. Frees during later turns of the loop. NULL accepted. */
void lease_client_close(struct lease_client *client);

/* Where is the coordinator? A callback follows: on_found, on_failed, or, if nobody leads, on_lead with `may_lead`, else
 * on_nobody. */
void lease_client_seek(struct lease_client *client, bool may_lead);
/* The coordinator that was found has said something. */
void lease_client_joined(struct lease_client *client);
/* It cannot be reached, or not any more: muster/status.h's MUSTER_ENOENT (nobody listens there), MUSTER_ETIMEOUT (it is
 * silent), or another one. */
void lease_client_missed(struct lease_client *client, int status);
/* coordinator_fence_fn */
void lease_client_fence(void *client, const struct coordinator_record *record);
bool lease_client_leads(const struct lease_client *client);
/* The agent's part is over, and with `is_over` the job: keys and leases go. `done` comes from the loop. */
void lease_client_end(struct lease_client *client, bool is_over, void (*done)(void *ctx));

#endif
