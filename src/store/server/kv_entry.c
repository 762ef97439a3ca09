/* Keys with their values, and items of queues: made, held, retired from the table, and freed when nobody has them any
 * more; see kv_table.h. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "store/server/kv_table_impl.h"

struct kv_entry **kv_entry_link(struct kv_entry *entry) {
    return (struct kv_entry **)(void *)&entry->node.next; /* a node is the first member of its entry */
}

static size_t entry_size(const struct kv_entry *entry) {
    return sizeof *entry + entry->node.key_len + entry->capacity;
}

struct kv_slice kv_entry_value(const struct kv_entry *entry) {
    return kv_slice_of(entry->bytes + entry->node.key_len, entry->value_len);
}

int kv_entry_new(struct kv_table *table, struct kv_slice key, uint32_t key_hash, struct kv_slice value, size_t capacity,
                 struct kv_entry **out) {
    assert(key.len <= UINT32_MAX && value.len <= capacity && capacity <= UINT32_MAX);
    size_t size = sizeof(struct kv_entry) + key.len + capacity;
    int code = kv_budget_take(table->budget, size);
    if (code) {
        return code;
    }
    struct kv_entry *entry = malloc(size);
    if (!entry) {
        kv_budget_give(table->budget, size);
        return status_fail(MUSTER_ENOMEM, "no memory for a key and value of %zu bytes", size);
    }
    entry->node = (struct hash_node){.hash = key_hash, .key_len = (uint32_t)key.len};
    entry->value_len = (uint32_t)value.len;
    entry->capacity = (uint32_t)capacity;
    entry->references = 1;
    if (key.len > 0) {
        memcpy(entry->bytes, key.data, key.len);
    }
    if (value.len > 0) {
        memcpy(entry->bytes + key.len, value.data, value.len);
    }
    *out = entry;
    return 0;
}

void kv_entry_retire(struct kv_table *table, struct kv_entry *entry) {
    *kv_entry_link(entry) = table->retired;
    table->retired = entry;
}

void kv_entry_hold(struct kv_entry *entry) {
    assert(entry->references > 0 && entry->references < UINT32_MAX);
    entry->references++;
}

void kv_table_drop(struct kv_table *table, struct kv_entry *entry) {
    assert(entry->references > 0);
    if (--entry->references == 0) {
        kv_budget_give(table->budget, entry_size(entry));
        free(entry);
    }
}

void kv_table_sweep(struct kv_table *table) {
    while (table->retired) {
        struct kv_entry *entry = table->retired;
        table->retired = *kv_entry_link(entry);
        kv_table_drop(table, entry);
    }
}
