/* From which addresses clients of a store are let in that cannot say who they are: those of peers that could, as long
 * as they are there, and those that were allowed beforehand. Pure. */
#ifndef STORE_KV_ADMISSION_H
#define STORE_KV_ADMISSION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "net/range.h"
#include "store/wire/hash.h"

#define KV_ADMITTED_MAX ((size_t)1 << 20) /* addresses */

struct kv_admission {
    struct hash addresses;
    struct net_ranges allowed;
};

/* `allowed` is copied; NULL: none. Must not be moved afterwards. */
void kv_admission_init(struct kv_admission *admission, const uint64_t seed[2], const struct net_ranges *allowed);
void kv_admission_done(struct kv_admission *admission);

/* One more peer at this address, or one less. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int kv_admission_add(struct kv_admission *admission, const struct net_address_key *address);
void kv_admission_remove(struct kv_admission *admission, const struct net_address_key *address);
/* All peers. */
void kv_admission_clear(struct kv_admission *admission);

bool kv_admission_has(const struct kv_admission *admission, const struct net_address_key *address);

#endif
