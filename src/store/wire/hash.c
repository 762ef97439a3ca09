/* Linear hashing over intrusive nodes; see hash.h. */
#include "store/wire/hash.h"

#include <assert.h>
#include <endian.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 16 };

static inline uint64_t rotate_left(uint64_t x, unsigned bits) {
    return (x << bits) | (x >> (64 - bits));
}

static inline void sip_round(uint64_t v[4]) {
    v[0] += v[1];
    v[1] = rotate_left(v[1], 13) ^ v[0];
    v[0] = rotate_left(v[0], 32);
    v[2] += v[3];
    v[3] = rotate_left(v[3], 16) ^ v[2];
    v[0] += v[3];
    v[3] = rotate_left(v[3], 21) ^ v[0];
    v[2] += v[1];
    v[1] = rotate_left(v[1], 17) ^ v[2];
    v[2] = rotate_left(v[2], 32);
}

/* SipHash-1-3 (Aumasson and Bernstein 2012; one compression round, three final ones, as Rust and Python use it). */
static uint64_t siphash13(const uint64_t seed[2], const uint8_t *data, size_t len) {
    uint64_t v[4] = {UINT64_C(0x736f6d6570736575) ^ seed[0], UINT64_C(0x646f72616e646f6d) ^ seed[1],
                     UINT64_C(0x6c7967656e657261) ^ seed[0], UINT64_C(0x7465646279746573) ^ seed[1]};
    size_t whole = len / 8 * 8;
    for (size_t i = 0; i < whole; i += 8) {
        uint64_t word;
        memcpy(&word, data + i, 8);
        word = le64toh(word);
        v[3] ^= word;
        sip_round(v);
        v[0] ^= word;
    }
    uint64_t last = (uint64_t)len << 56;
    for (size_t i = whole; i < len; i++) {
        last |= (uint64_t)data[i] << (8 * (i - whole));
    }
    v[3] ^= last;
    sip_round(v);
    v[0] ^= last;
    v[2] ^= 0xff;
    sip_round(v);
    sip_round(v);
    sip_round(v);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

void hash_init(struct hash *hash, const uint64_t seed[2], size_t key_offset) {
    *hash = (struct hash){.bucket_count = 1, .key_offset = key_offset, .seed = {seed[0], seed[1]}};
    hash->buckets = &hash->single;
    hash->bucket_capacity = 1;
}

static void free_buckets(struct hash *hash) {
    if (hash->buckets != &hash->single) {
        free(hash->buckets);
    }
}

void hash_done(struct hash *hash) {
    free_buckets(hash);
    hash_init(hash, hash->seed, hash->key_offset);
}

uint32_t hash_of(const struct hash *hash, struct kv_slice key) {
    return (uint32_t)siphash13(hash->seed, key.data, key.len);
}

struct kv_slice hash_key(const struct hash *hash, const struct hash_node *node) {
    return kv_slice_of((const uint8_t *)node + hash->key_offset, node->key_len);
}

/* The largest power of two <= n (n > 0). */
static size_t floor_power(size_t n) {
    return (size_t)1 << (63 - __builtin_clzll(n));
}

static struct hash_node **bucket_of(const struct hash *hash, uint32_t key_hash) {
    size_t low = floor_power(hash->bucket_count);
    size_t index = key_hash & (2 * low - 1);
    return &hash->buckets[index < hash->bucket_count ? index : key_hash & (low - 1)];
}

struct hash_node *hash_find(const struct hash *hash, struct kv_slice key, uint32_t key_hash) {
    for (struct hash_node *node = *bucket_of(hash, key_hash); node; node = node->next) {
        if (node->hash == key_hash && kv_slice_equal(hash_key(hash, node), key)) {
            return node;
        }
    }
    return NULL;
}

static void set_capacity(struct hash *hash, size_t capacity) {
    assert(capacity >= hash->bucket_count);
    bool inside = hash->buckets == &hash->single;
    struct hash_node **grown = realloc(inside ? NULL : hash->buckets, capacity * sizeof *grown);
    if (!grown) {
        return; /* longer chains, or some memory kept */
    }
    if (inside) {
        grown[0] = hash->single;
        hash->single = NULL;
    }
    hash->buckets = grown;
    hash->bucket_capacity = capacity;
}

/* Adds a bucket and moves to it what now belongs there: all of that lies in one older bucket. */
static void split_one(struct hash *hash) {
    if (hash->bucket_count == hash->bucket_capacity) {
        set_capacity(hash, hash->bucket_count == 1 ? FIRST_CAPACITY : hash->bucket_capacity * 2);
        if (hash->bucket_count == hash->bucket_capacity) {
            return;
        }
    }
    size_t added = hash->bucket_count;
    size_t low = floor_power(added);
    struct hash_node **from = &hash->buckets[added - low];
    struct hash_node **to = &hash->buckets[added];
    *to = NULL;
    while (*from) {
        struct hash_node *node = *from;
        if ((node->hash & (2 * low - 1)) == added) {
            *from = node->next;
            node->next = NULL;
            *to = node;
            to = &node->next;
        } else {
            from = &node->next;
        }
    }
    hash->bucket_count++;
}

/* The reverse of split_one(). */
static void merge_one(struct hash *hash) {
    size_t removed = hash->bucket_count - 1;
    struct hash_node **to = &hash->buckets[removed - floor_power(removed)];
    while (*to) {
        to = &(*to)->next;
    }
    *to = hash->buckets[removed];
    hash->bucket_count--;
    if (hash->bucket_capacity > FIRST_CAPACITY && hash->bucket_count <= hash->bucket_capacity / 4) {
        set_capacity(hash, hash->bucket_capacity / 2);
    }
}

void hash_insert(struct hash *hash, struct hash_node *node) {
    struct hash_node **bucket = bucket_of(hash, node->hash);
    node->next = *bucket;
    *bucket = node;
    hash->count++;
    if (hash->count > hash->bucket_count) {
        split_one(hash);
    }
}

static struct hash_node **link_to(struct hash *hash, const struct hash_node *node) {
    struct hash_node **link = bucket_of(hash, node->hash);
    while (*link != node) {
        assert(*link);
        link = &(*link)->next;
    }
    return link;
}

void hash_remove(struct hash *hash, struct hash_node *node) {
    *link_to(hash, node) = node->next;
    assert(hash->count > 0);
    hash->count--;
    if (hash->bucket_count > 1 && hash->count < hash->bucket_count / 2) {
        merge_one(hash);
        if (hash->bucket_count > 1) { /* twice as fast as keys go, so that the table can catch up */
            merge_one(hash);
        }
    }
}

void hash_replace(struct hash *hash, struct hash_node *old, struct hash_node *node) {
    assert(old->hash == node->hash && old->key_len == node->key_len);
    *link_to(hash, old) = node;
    node->next = old->next;
}

struct hash_node *hash_next(const struct hash *hash, size_t *bucket, const struct hash_node *node) {
    struct hash_node *next = node ? node->next : NULL;
    if (!node) {
        next = hash->buckets[(*bucket)++];
    }
    while (!next && *bucket < hash->bucket_count) {
        next = hash->buckets[(*bucket)++];
    }
    return next;
}
