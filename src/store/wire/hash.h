/* A hash table of caller-owned nodes with binary keys.
 *
 * Keys come from strangers, so the hash is SipHash-1-3 with a secret seed: nobody outside can aim at one bucket.
 * The table grows and shrinks one bucket at a time (linear hashing, Litwin 1980), so no single insertion pays for a
 * rehash of everything, and inserting never fails: where no memory for more buckets can be had, chains get longer. */
#ifndef STORE_HASH_H
#define STORE_HASH_H

#include <stddef.h>
#include <stdint.h>

#include "store/wire/slice.h"

/* First member of whatever is kept in the table. The key's bytes lie in the same allocation, at the offset which
 * the table was given. */
struct hash_node {
    struct hash_node *next;
    uint32_t hash;
    uint32_t key_len;
};

struct hash {
    struct hash_node **buckets; /* owned; &single while there is only one bucket */
    struct hash_node *single;
    size_t bucket_count;
    size_t bucket_capacity;
    size_t count;
    size_t key_offset;
    uint64_t seed[2];
};

/* A table must not be moved while it is in use. */
void hash_init(struct hash *hash, const uint64_t seed[2], size_t key_offset);
/* Frees the buckets; the nodes are the caller's. */
void hash_done(struct hash *hash);

uint32_t hash_of(const struct hash *hash, struct kv_slice key);

struct kv_slice hash_key(const struct hash *hash, const struct hash_node *node);

/* NULL when absent. `key_hash` is hash_of() the key. */
struct hash_node *hash_find(const struct hash *hash, struct kv_slice key, uint32_t key_hash);

/* The key must be absent; node->hash, node->key_len and the key's bytes are set. */
void hash_insert(struct hash *hash, struct hash_node *node);

/* The node must be in the table; it can be freed afterwards. */
void hash_remove(struct hash *hash, struct hash_node *node);

/* Puts `node` where `old`, with the same key, was. */
void hash_replace(struct hash *hash, struct hash_node *old, struct hash_node *node);

/* Walks all nodes: start with *bucket = 0 and node NULL; NULL at the end. The table must not change meanwhile. */
struct hash_node *hash_next(const struct hash *hash, size_t *bucket, const struct hash_node *node);

#endif
