/* Connections that have not shown yet what they are for, by the address that they come from. A flood of them is bounded
 * and pushes out itself: when there are too many, the oldest of the address with the most is dropped. So a client from
 * an address with few of them is served, whatever others do.
 *
 * Pure. All calls take the same short time, but for the one in a while that makes room. The memory follows those who
 * are there: every agent has a server or two, mostly with nobody in here. */
#ifndef STORE_KV_NEWCOMERS_H
#define STORE_KV_NEWCOMERS_H

#include <stddef.h>
#include <stdint.h>

#include "net/range.h"
#include "store/wire/hash.h"

/* Of an IPv6 address so many bits count: one machine can have all addresses behind them. */
#define KV_NEWCOMERS_V6_BITS 64

struct kv_source; /* an address */

/* A member of whatever is kept here. Zeroed: in no list. */
struct kv_newcomer {
    struct kv_newcomer *previous, *next; /* of the same source, older ones first */
    struct kv_source *source;
};

struct kv_sources {
    struct kv_source *first, *last;
};

struct kv_newcomers {
    struct hash sources;
    /* Owned; [n]: the sources of n newcomers, in the order in which they came to be there. NULL: nobody is here. */
    struct kv_sources *by_count;
    size_t by_count_capacity;
    size_t top; /* no source has more */
    size_t count, max;
};

/* Must not be moved afterwards. */
void kv_newcomers_init(struct kv_newcomers *newcomers, const uint64_t seed[2], size_t max);
void kv_newcomers_done(struct kv_newcomers *newcomers); /* after the last has been removed */

/* The newest of its source. MUSTER_ENOMEM. */
int kv_newcomers_add(struct kv_newcomers *newcomers, struct kv_newcomer *newcomer, const struct net_address_key *from);
void kv_newcomers_remove(struct kv_newcomers *newcomers, struct kv_newcomer *newcomer); /* no-op if it is not there */

/* Who has to go, NULL when there are no more than `max`. It is still to be removed. */
struct kv_newcomer *kv_newcomers_excess(const struct kv_newcomers *newcomers);

#endif
