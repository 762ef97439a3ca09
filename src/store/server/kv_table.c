/* The store's map and its operations; see kv_table.h. Queues are in kv_queue.c. */
#include "store/server/kv_table.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "store/server/kv_table_impl.h"

void kv_table_init(struct kv_table *table, const uint64_t seed[2], struct kv_budget *budget) {
    *table = (struct kv_table){.budget = budget};
    hash_init(&table->entries, seed, offsetof(struct kv_entry, bytes));
    hash_init(&table->queues, seed, offsetof(struct kv_queue, key));
}

void kv_table_clear(struct kv_table *table) {
    size_t bucket = 0;
    struct hash_node *node = hash_next(&table->entries, &bucket, NULL);
    while (node) {
        struct hash_node *next = hash_next(&table->entries, &bucket, node);
        kv_entry_retire(table, (struct kv_entry *)node);
        node = next;
    }
    hash_done(&table->entries);
    kv_queues_clear(table);
    kv_table_sweep(table);
}

/* The table is emptied and filled again: nothing can be taken out of it while it is walked. */
void kv_table_clear_but(struct kv_table *table, kv_table_keeps *keeps, const void *ctx) {
    struct hash_node *kept = NULL;
    size_t bucket = 0;
    struct hash_node *node = hash_next(&table->entries, &bucket, NULL);
    while (node) {
        struct hash_node *next = hash_next(&table->entries, &bucket, node);
        if (keeps(ctx, hash_key(&table->entries, node))) {
            node->next = kept;
            kept = node;
        } else {
            kv_entry_retire(table, (struct kv_entry *)node);
        }
        node = next;
    }
    hash_done(&table->entries);
    while (kept) {
        struct hash_node *next = kept->next;
        hash_insert(&table->entries, kept);
        kept = next;
    }
    kv_queues_clear(table);
    kv_table_sweep(table);
}

void kv_table_done(struct kv_table *table) {
    kv_table_clear(table);
}

size_t kv_table_count(const struct kv_table *table) {
    return table->entries.count;
}

static struct kv_slice entry_key(const struct kv_entry *entry) {
    return kv_slice_of(entry->bytes, entry->node.key_len);
}

static struct kv_entry *find(const struct kv_table *table, struct kv_slice key, uint32_t key_hash) {
    return (struct kv_entry *)hash_find(&table->entries, key, key_hash);
}

struct kv_entry *kv_table_find(const struct kv_table *table, struct kv_slice key) {
    return find(table, key, hash_of(&table->entries, key));
}

bool kv_table_get(const struct kv_table *table, struct kv_slice key, struct kv_slice *out) {
    const struct kv_entry *entry = kv_table_find(table, key);
    if (entry) {
        *out = kv_entry_value(entry);
    }
    return entry != NULL;
}

bool kv_table_next(const struct kv_table *table, size_t *bucket, const struct kv_entry **entry, struct kv_slice *key) {
    *entry = (const struct kv_entry *)hash_next(&table->entries, bucket, *entry ? &(*entry)->node : NULL);
    if (*entry) {
        *key = entry_key(*entry);
    }
    return *entry != NULL;
}

/* Puts `entry` in the place of `old` (NULL: a new key). */
static void put(struct kv_table *table, struct kv_entry *old, struct kv_entry *entry, struct kv_change *out) {
    *out = (struct kv_change){.key = entry_key(entry), .new_value = kv_entry_value(entry)};
    if (old) {
        out->old_value = kv_entry_value(old);
        hash_replace(&table->entries, &old->node, &entry->node);
        kv_entry_retire(table, old);
    } else {
        hash_insert(&table->entries, &entry->node);
    }
}

int kv_table_prepare(struct kv_table *table, struct kv_slice key, struct kv_slice value, struct kv_entry **out) {
    return kv_entry_new(table, key, hash_of(&table->entries, key), value, value.len, out);
}

void kv_table_commit(struct kv_table *table, struct kv_entry *entry, struct kv_change *out) {
    put(table, find(table, entry_key(entry), entry->node.hash), entry, out);
}

static int replace(struct kv_table *table, struct kv_entry *old, struct kv_slice key, uint32_t key_hash,
                   struct kv_slice value, struct kv_change *out) {
    struct kv_entry *entry = NULL;
    int code = kv_entry_new(table, key, key_hash, value, value.len, &entry);
    if (code == 0) {
        put(table, old, entry, out);
    }
    return code;
}

int kv_table_set(struct kv_table *table, struct kv_slice key, struct kv_slice value, struct kv_change *out) {
    uint32_t key_hash = hash_of(&table->entries, key);
    return replace(table, find(table, key, key_hash), key, key_hash, value, out);
}

/* Appending again and again must not copy the value each time: a value that grows gets an eighth in reserve. */
static size_t grown_capacity(size_t len) {
    size_t capacity = len + len / 8 + 16;
    return capacity < CODEC_VALUE_BYTES_MAX ? capacity : CODEC_VALUE_BYTES_MAX;
}

int kv_table_append(struct kv_table *table, struct kv_slice key, struct kv_slice value, struct kv_change *out) {
    uint32_t key_hash = hash_of(&table->entries, key);
    struct kv_entry *old = find(table, key, key_hash);
    if (!old) {
        return replace(table, NULL, key, key_hash, value, out);
    }
    struct kv_slice old_value = kv_entry_value(old);
    if (value.len > CODEC_VALUE_BYTES_MAX - old_value.len) {
        return status_fail(MUSTER_ELIMIT, "value would grow over %zu bytes", CODEC_VALUE_BYTES_MAX);
    }
    size_t len = old_value.len + value.len;
    struct kv_entry *entry = old;
    if (len > old->capacity) {
        int code = kv_entry_new(table, key, key_hash, old_value, grown_capacity(len), &entry);
        if (code) {
            return code;
        }
    }
    if (value.len > 0) {
        memcpy(entry->bytes + key.len + old_value.len, value.data, value.len);
    }
    entry->value_len = (uint32_t)len;
    if (entry != old) {
        put(table, old, entry, out);
    } else {
        *out = (struct kv_change){.key = entry_key(entry), .new_value = kv_entry_value(entry)};
    }
    out->old_value = old_value;
    return 0;
}

static bool is_blank(uint8_t c) {
    return c == ' ' || (c >= '\t' && c <= '\r');
}

/* What strtoll() makes of the beginning of `text`, in base 10; false for no digits or out of range. */
static bool read_number(struct kv_slice text, int64_t *out) {
    size_t i = 0;
    while (i < text.len && is_blank(text.data[i])) {
        i++;
    }
    bool negative = i < text.len && text.data[i] == '-';
    if (i < text.len && (text.data[i] == '-' || text.data[i] == '+')) {
        i++;
    }
    uint64_t limit = negative ? (uint64_t)INT64_MAX + 1 : (uint64_t)INT64_MAX;
    uint64_t value = 0;
    size_t digits = 0;
    for (; i < text.len && text.data[i] >= '0' && text.data[i] <= '9'; i++, digits++) {
        uint64_t digit = (uint64_t)(text.data[i] - '0');
        if (value > (limit - digit) / 10) {
            return false;
        }
        value = value * 10 + digit;
    }
    *out = negative ? (int64_t)(0 - value) : (int64_t)value;
    return digits > 0;
}

int kv_table_add(struct kv_table *table, struct kv_slice key, int64_t delta, int64_t *sum, struct kv_change *out) {
    uint32_t key_hash = hash_of(&table->entries, key);
    struct kv_entry *old = find(table, key, key_hash);
    int64_t before = 0;
    if (old && !read_number(kv_entry_value(old), &before)) {
        return status_fail(MUSTER_EINVAL, "ADD to a value that is not a number of 64 bits");
    }
    int64_t after = (int64_t)((uint64_t)before + (uint64_t)delta); /* wraps around, as the protocol has it */
    char text[24];
    int len = snprintf(text, sizeof text, "%" PRId64, after);
    int code = replace(table, old, key, key_hash, kv_slice_of(text, (size_t)len), out);
    if (code == 0) {
        *sum = after;
    }
    return code;
}

int kv_table_compare_set(struct kv_table *table, struct kv_slice key, struct kv_slice expected, struct kv_slice desired,
                         bool *stored, struct kv_slice *reply, struct kv_change *out) {
    uint32_t key_hash = hash_of(&table->entries, key);
    struct kv_entry *old = find(table, key, key_hash);
    bool matches = old ? kv_slice_equal(kv_entry_value(old), expected) : expected.len == 0;
    if (!matches) {
        *stored = false;
        *reply = old ? kv_entry_value(old) : expected; /* absent: the protocol answers as if `expected` were there */
        return 0;
    }
    int code = replace(table, old, key, key_hash, desired, out);
    if (code == 0) {
        *stored = true;
        *reply = desired;
    }
    return code;
}

bool kv_table_delete(struct kv_table *table, struct kv_slice key, struct kv_change *out) {
    struct kv_entry *entry = find(table, key, hash_of(&table->entries, key));
    if (!entry) {
        return false;
    }
    *out = (struct kv_change){.key = entry_key(entry), .old_value = kv_entry_value(entry)};
    hash_remove(&table->entries, &entry->node);
    kv_entry_retire(table, entry);
    return true;
}

bool kv_table_present(const struct kv_table *table, struct kv_slice key) {
    return kv_table_find(table, key) != NULL || kv_table_queue_length(table, key) > 0;
}
