/* Admitted addresses; see kv_admission.h. */
#include "store/server/kv_admission.h"

#include <assert.h>
#include <stdlib.h>

#include "base/status.h"

struct entry {
    struct hash_node node;
    struct net_address_key address;
    size_t peer_count;
};

void kv_admission_init(struct kv_admission *admission, const uint64_t seed[2], const struct net_ranges *allowed) {
    *admission = (struct kv_admission){0};
    if (allowed) {
        admission->allowed = *allowed;
    }
    hash_init(&admission->addresses, seed, offsetof(struct entry, address));
}

static struct entry *find(const struct kv_admission *admission, const struct net_address_key *address) {
    struct kv_slice key = kv_slice_of(address->bytes, sizeof address->bytes);
    return (struct entry *)hash_find(&admission->addresses, key, hash_of(&admission->addresses, key));
}

int kv_admission_add(struct kv_admission *admission, const struct net_address_key *address) {
    struct kv_slice key = kv_slice_of(address->bytes, sizeof address->bytes);
    struct entry *entry = find(admission, address);
    if (entry) {
        entry->peer_count++;
        return MUSTER_OK;
    }
    if (admission->addresses.count >= KV_ADMITTED_MAX) {
        return status_fail(MUSTER_ELIMIT, "%zu addresses are admitted already", admission->addresses.count);
    }
    entry = calloc(1, sizeof *entry);
    if (!entry) {
        return status_fail(MUSTER_ENOMEM, "no memory for an admitted address");
    }
    entry->node.hash = hash_of(&admission->addresses, key);
    entry->node.key_len = sizeof address->bytes;
    entry->address = *address;
    entry->peer_count = 1;
    hash_insert(&admission->addresses, &entry->node);
    return MUSTER_OK;
}

void kv_admission_remove(struct kv_admission *admission, const struct net_address_key *address) {
    struct entry *entry = find(admission, address);
    assert(entry);
    if (--entry->peer_count == 0) {
        hash_remove(&admission->addresses, &entry->node);
        free(entry);
    }
}

void kv_admission_clear(struct kv_admission *admission) {
    size_t bucket = 0;
    struct hash_node *node = hash_next(&admission->addresses, &bucket, NULL);
    while (node) {
        struct hash_node *next = hash_next(&admission->addresses, &bucket, node);
        free(node);
        node = next;
    }
    const uint64_t seed[2] = {admission->addresses.seed[0], admission->addresses.seed[1]};
    hash_done(&admission->addresses);
    hash_init(&admission->addresses, seed, offsetof(struct entry, address));
}

void kv_admission_done(struct kv_admission *admission) {
    kv_admission_clear(admission);
    hash_done(&admission->addresses);
}

bool kv_admission_has(const struct kv_admission *admission, const struct net_address_key *address) {
    return find(admission, address) || net_ranges_contain(&admission->allowed, address);
}
