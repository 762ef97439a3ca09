/* Newcomers by source; see kv_newcomers.h. */
#include "store/server/kv_newcomers.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

enum { COUNTS_FIRST = 8 };

struct kv_source {
    struct hash_node node;
    struct net_address_key address;
    struct kv_source *previous, *next; /* of the same count */
    struct kv_newcomer *first, *last;
    size_t count;
};

void kv_newcomers_init(struct kv_newcomers *n, const uint64_t seed[2], size_t max) {
    *n = (struct kv_newcomers){.max = max};
    hash_init(&n->sources, seed, offsetof(struct kv_source, address));
}

static void free_counts(struct kv_newcomers *n) {
    free(n->by_count);
    n->by_count = NULL;
    n->by_count_capacity = 0;
}

void kv_newcomers_done(struct kv_newcomers *n) {
    hash_done(&n->sources);
    free_counts(n);
}

/* ---- sources by count ---- */

/* Room for a source of one more than anybody has. False: no memory. */
static bool reserve_count(struct kv_newcomers *n) {
    size_t wanted = n->top + 2, capacity = n->by_count_capacity ? n->by_count_capacity : COUNTS_FIRST;
    if (wanted <= n->by_count_capacity) {
        return true;
    }
    capacity = capacity < wanted ? 2 * capacity : capacity;
    struct kv_sources *by_count = realloc(n->by_count, capacity * sizeof *by_count);
    if (!by_count) {
        return false;
    }
    memset(by_count + n->by_count_capacity, 0, (capacity - n->by_count_capacity) * sizeof *by_count);
    n->by_count = by_count;
    n->by_count_capacity = capacity;
    return true;
}

static void take_out(struct kv_newcomers *n, struct kv_source *source) {
    struct kv_sources *list = &n->by_count[source->count];
    *(source->previous ? &source->previous->next : &list->first) = source->next;
    *(source->next ? &source->next->previous : &list->last) = source->previous;
}

static void put_in(struct kv_newcomers *n, struct kv_source *source) {
    struct kv_sources *list = &n->by_count[source->count];
    source->previous = list->last;
    source->next = NULL;
    *(list->last ? &list->last->next : &list->first) = source;
    list->last = source;
    n->top = source->count > n->top ? source->count : n->top;
}

static void recount(struct kv_newcomers *n, struct kv_source *source, size_t count) {
    take_out(n, source);
    source->count = count;
    if (count > 0) {
        put_in(n, source);
    }
    while (n->top > 0 && !n->by_count[n->top].first) { /* at most one step: counts change by one */
        n->top--;
    }
}

static struct kv_source *find_or_make(struct kv_newcomers *n, const struct net_address_key *from) {
    const struct net_address_key key =
        net_address_key_is_v4(from) ? *from : net_address_key_cut(from, KV_NEWCOMERS_V6_BITS);
    struct kv_slice bytes = kv_slice_of(key.bytes, sizeof key.bytes);
    uint32_t hash = hash_of(&n->sources, bytes);
    struct kv_source *source = (struct kv_source *)hash_find(&n->sources, bytes, hash);
    if (source) {
        return source;
    }
    source = calloc(1, sizeof *source);
    if (source) {
        source->node.hash = hash;
        source->node.key_len = sizeof key.bytes;
        source->address = key;
        hash_insert(&n->sources, &source->node);
        put_in(n, source);
    }
    return source;
}

/* ---- newcomers ---- */

int kv_newcomers_add(struct kv_newcomers *n, struct kv_newcomer *newcomer, const struct net_address_key *from) {
    struct kv_source *source = reserve_count(n) ? find_or_make(n, from) : NULL;
    if (!source) {
        return status_fail(MUSTER_ENOMEM, "no memory for a new address");
    }
    newcomer->source = source;
    newcomer->previous = source->last;
    newcomer->next = NULL;
    *(source->last ? &source->last->next : &source->first) = newcomer;
    source->last = newcomer;
    n->count++;
    recount(n, source, source->count + 1);
    return MUSTER_OK;
}

void kv_newcomers_remove(struct kv_newcomers *n, struct kv_newcomer *newcomer) {
    struct kv_source *source = newcomer->source;
    if (!source) {
        return;
    }
    *(newcomer->previous ? &newcomer->previous->next : &source->first) = newcomer->next;
    *(newcomer->next ? &newcomer->next->previous : &source->last) = newcomer->previous;
    newcomer->source = NULL;
    assert(n->count > 0 && source->count > 0);
    n->count--;
    recount(n, source, source->count - 1);
    if (source->count == 0) {
        hash_remove(&n->sources, &source->node);
        free(source);
    }
    if (n->count == 0) {
        free_counts(n);
    }
}

struct kv_newcomer *kv_newcomers_excess(const struct kv_newcomers *n) {
    return n->count > n->max ? n->by_count[n->top].first->first : NULL;
}
