/* What kv_table.c, kv_queue.c and kv_entry.c share: the first calls the others, and both the last. */
#ifndef STORE_KV_TABLE_IMPL_H
#define STORE_KV_TABLE_IMPL_H

#include "store/server/kv_table.h"
#include "store/wire/codec.h" /* the limits */

/* A key with its value, in one allocation. Queue items are entries with an empty key. */
struct kv_entry {
    struct hash_node node;
    uint32_t value_len;
    uint32_t capacity;   /* bytes the value may take here */
    uint32_t references; /* freed with the last: the table's (until the sweep), and of those who hold it */
    uint8_t bytes[];     /* key, then value */
};

struct kv_queue {
    struct hash_node node;
    struct kv_entry *first, *last;
    size_t count;
    uint8_t key[];
};

/* A copy of key and value. MUSTER_ENOMEM, MUSTER_ELIMIT. */
int kv_entry_new(struct kv_table *table, struct kv_slice key, uint32_t key_hash, struct kv_slice value, size_t capacity,
                 struct kv_entry **out);
void kv_entry_retire(struct kv_table *table, struct kv_entry *entry);

void kv_queues_clear(struct kv_table *table);

#endif
