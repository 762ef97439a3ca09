/* The store's contents: a map from key to bytes, and named queues beside it (docs/formats/tcpstore.md, "Semantics").
 *
 * Pure: no I/O, no clock, no randomness (the seed is handed in). The two namespaces do not meet. Every slice that
 * a call gives out, of old values included, stays valid until kv_table_sweep(). Failures change nothing. */
#ifndef STORE_KV_TABLE_H
#define STORE_KV_TABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "store/server/budget.h"
#include "store/wire/hash.h"

struct kv_entry;

struct kv_table {
    struct hash entries;
    struct hash queues;
    struct kv_entry *retired; /* entries taken out, freed by the next sweep */
    struct kv_budget *budget; /* borrowed for the table's life */
};

/* A write, as its caller reports it onwards. A value that does not exist has data == NULL (an empty one has not). */
struct kv_change {
    struct kv_slice key;
    struct kv_slice old_value;
    struct kv_slice new_value;
};

void kv_table_init(struct kv_table *table, const uint64_t seed[2], struct kv_budget *budget);
void kv_table_done(struct kv_table *table);
/* Forgets keys and queues. */
void kv_table_clear(struct kv_table *table);
/* Forgets the keys that `keeps` does not want kept, and all queues. */
typedef bool kv_table_keeps(const void *ctx, struct kv_slice key);
void kv_table_clear_but(struct kv_table *table, kv_table_keeps *keeps, const void *ctx);
void kv_table_sweep(struct kv_table *table);

size_t kv_table_count(const struct kv_table *table);
bool kv_table_get(const struct kv_table *table, struct kv_slice key, struct kv_slice *out);
/* The same, as the entry that holds it; NULL when absent. */
struct kv_entry *kv_table_find(const struct kv_table *table, struct kv_slice key);
struct kv_slice kv_entry_value(const struct kv_entry *entry);
/* Keeps the entry and the bytes of its value beyond the sweep, until kv_table_drop(); its memory stays charged. */
void kv_entry_hold(struct kv_entry *entry);
/* Gives up a prepared entry that is not committed, or one that is held. */
void kv_table_drop(struct kv_table *table, struct kv_entry *entry);
/* Walks the keys in no particular order: start with *bucket = 0, *entry = NULL; false at the end. */
bool kv_table_next(const struct kv_table *table, size_t *bucket, const struct kv_entry **entry, struct kv_slice *key);

/* Writes fill *out. All but delete: MUSTER_ENOMEM, MUSTER_ELIMIT. */
int kv_table_set(struct kv_table *table, struct kv_slice key, struct kv_slice value, struct kv_change *out);
int kv_table_append(struct kv_table *table, struct kv_slice key, struct kv_slice value, struct kv_change *out);
/* The value read as strtoll() reads it, plus delta modulo 2^64, is stored as decimal text and put into *sum.
 * MUSTER_EINVAL when the value does not begin with a number that fits. */
int kv_table_add(struct kv_table *table, struct kv_slice key, int64_t delta, int64_t *sum, struct kv_change *out);
/* *stored: was the desired value written? *reply: what the protocol answers (may be one of the arguments). */
int kv_table_compare_set(struct kv_table *table, struct kv_slice key, struct kv_slice expected, struct kv_slice desired,
                         bool *stored, struct kv_slice *reply, struct kv_change *out);
/* False when there was no such key. */
bool kv_table_delete(struct kv_table *table, struct kv_slice key, struct kv_change *out);

/* Two steps of a write, for several that must all happen or none: prepare takes the memory, commit cannot fail.
 * A prepared entry that is not committed must be dropped. */
int kv_table_prepare(struct kv_table *table, struct kv_slice key, struct kv_slice value, struct kv_entry **out);
void kv_table_commit(struct kv_table *table, struct kv_entry *entry, struct kv_change *out);
/* Prepared entries can be chained by their owner. */
struct kv_entry **kv_entry_link(struct kv_entry *entry);

/* Queues. push: MUSTER_ENOMEM, MUSTER_ELIMIT. */
int kv_table_queue_push(struct kv_table *table, struct kv_slice key, struct kv_slice item);
/* Length before the pop; *out has the item as its value when that is > 0, and is valid until the sweep. */
size_t kv_table_queue_pop(struct kv_table *table, struct kv_slice key, struct kv_entry **out);
size_t kv_table_queue_length(const struct kv_table *table, struct kv_slice key);

/* What WAIT and CHECK call present: in the map, or a queue that is not empty. */
bool kv_table_present(const struct kv_table *table, struct kv_slice key);

#endif
