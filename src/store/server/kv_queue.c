/* The store's named queues. An empty queue does not exist: its memory goes with the last item. */
#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "store/server/kv_table_impl.h"

static struct kv_queue *find(const struct kv_table *table, struct kv_slice key) {
    if (table->queues.count == 0) { /* the usual case: spare WAIT and CHECK the second hash */
        return NULL;
    }
    return (struct kv_queue *)hash_find(&table->queues, key, hash_of(&table->queues, key));
}

static size_t queue_size(size_t key_len) {
    return sizeof(struct kv_queue) + key_len;
}

static int create(struct kv_table *table, struct kv_slice key, struct kv_queue **out) {
    int code = kv_budget_take(table->budget, queue_size(key.len));
    if (code) {
        return code;
    }
    struct kv_queue *queue = malloc(queue_size(key.len));
    if (!queue) {
        kv_budget_give(table->budget, queue_size(key.len));
        return status_fail(MUSTER_ENOMEM, "no memory for a queue");
    }
    *queue = (struct kv_queue){.node = {.hash = hash_of(&table->queues, key), .key_len = (uint32_t)key.len}};
    if (key.len > 0) {
        memcpy(queue->key, key.data, key.len);
    }
    hash_insert(&table->queues, &queue->node);
    *out = queue;
    return 0;
}

/* Frees a queue that is no longer in the table. */
static void destroy(struct kv_table *table, struct kv_queue *queue) {
    kv_budget_give(table->budget, queue_size(queue->node.key_len));
    free(queue);
}

int kv_table_queue_push(struct kv_table *table, struct kv_slice key, struct kv_slice item) {
    struct kv_entry *entry = NULL;
    int code = kv_entry_new(table, kv_slice_of(NULL, 0), 0, item, item.len, &entry);
    if (code) {
        return code;
    }
    struct kv_queue *queue = find(table, key);
    code = queue ? 0 : create(table, key, &queue);
    if (code) {
        kv_table_drop(table, entry);
        return code;
    }
    if (queue->last) {
        *kv_entry_link(queue->last) = entry;
    } else {
        queue->first = entry;
    }
    queue->last = entry;
    queue->count++;
    return 0;
}

size_t kv_table_queue_pop(struct kv_table *table, struct kv_slice key, struct kv_entry **out) {
    struct kv_queue *queue = find(table, key);
    if (!queue) {
        return 0;
    }
    size_t before = queue->count;
    struct kv_entry *entry = queue->first;
    assert(before > 0 && entry); /* an empty queue does not exist */
    *out = entry;
    queue->first = *kv_entry_link(entry);
    queue->count--;
    kv_entry_retire(table, entry);
    assert((queue->count == 0) == (queue->first == NULL));
    if (queue->count == 0) {
        hash_remove(&table->queues, &queue->node);
        destroy(table, queue);
    }
    return before;
}

size_t kv_table_queue_length(const struct kv_table *table, struct kv_slice key) {
    const struct kv_queue *queue = find(table, key);
    return queue ? queue->count : 0;
}

void kv_queues_clear(struct kv_table *table) {
    size_t bucket = 0;
    struct hash_node *node = hash_next(&table->queues, &bucket, NULL);
    while (node) {
        struct hash_node *next = hash_next(&table->queues, &bucket, node);
        struct kv_queue *queue = (struct kv_queue *)node;
        while (queue->first) {
            struct kv_entry *entry = queue->first;
            queue->first = *kv_entry_link(entry);
            kv_entry_retire(table, entry);
        }
        destroy(table, queue);
        node = next;
    }
    hash_done(&table->queues);
}
