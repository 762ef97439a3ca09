/* The leader's decisions: what agents have written goes in, and what coordinator.h answers comes out, as transactions.
 * Pure: (state, event, now) -> bytes to be sent; whoever asks etcd (etcd3_leader.c) is somebody else.
 *
 * It is to be shown all agents' keys as they are at one revision (etcd3_office_read()), then every change of them
 * (etcd3_office_hear()), and all of them anew when changes were missed. */
#ifndef RENDEZVOUS_ETCD3_OFFICE_H
#define RENDEZVOUS_ETCD3_OFFICE_H

#include "rendezvous/coordinator.h"
#include "rendezvous/etcd3_post.h"

struct etcd3_office;

struct etcd3_office_settings {
    const char *root;                        /* of the job's keys: "/muster/run"; copied */
    int64_t epoch;                           /* create_revision of the leader's key */
    int64_t lease_id;                        /* to which all that is written hangs */
    struct coordinator_settings coordinator; /* with a hash_seed */
    /* For people: an agent has written what cannot be, and is refused. NULL: not told. */
    void (*on_refused)(void *ctx, const char *identity, const char *why);
    void *ctx;
};

/* MUSTER_ENOMEM. */
int etcd3_office_create(const struct etcd3_office_settings *settings, struct etcd3_office **out);
void etcd3_office_free(struct etcd3_office *office); /* NULL accepted */

/* All agents' keys. Points into the office. */
struct etcd3_range etcd3_office_agents(const struct etcd3_office *office);

/* They are `pairs`; whoever was known, and is not among them, is gone. MUSTER_ENOMEM. */
int etcd3_office_read(struct etcd3_office *office, const struct etcd3_pair *pairs, size_t count, int64_t now_ms);
/* Changes, in their order. MUSTER_ENOMEM. */
int etcd3_office_hear(struct etcd3_office *office, const struct etcd3_pair *pairs, size_t count, int64_t now_ms);

/* etcd3_office_wake_ms() has come; INT64_MAX: never. */
void etcd3_office_tick(struct etcd3_office *office, int64_t now_ms);
int64_t etcd3_office_wake_ms(const struct etcd3_office *office);

/* See etcd3_post_write(). */
int etcd3_office_write(struct etcd3_office *office, struct buf *out);
/* The transaction was carried out, or has lost: MUSTER_ECLOSED, another agent leads. */
int etcd3_office_written(struct etcd3_office *office, bool has_succeeded, int64_t now_ms);

/* All has been written; if the job is over, all others have heard it, and are gone. */
bool etcd3_office_is_quiet(const struct etcd3_office *office);

#endif
