/* See commit_table.h. */
#include "train/commit/commit_table.h"

#include <stdatomic.h>
#include <string.h>

enum { LINE_BYTES = 64, SETS = 2 };
#define TABLE_VERSION 2u
static const char table_magic[16] = "muster-copies";

/* A cache line each: writers do not disturb each other. */
struct commit_labels {
    _Alignas(LINE_BYTES) _Atomic int64_t steps[COMMIT_COPIES];
};

/* There are two lists of labels. One counts; the other is filled when the number of writers changes. */
struct commit_table {
    char magic[sizeof table_magic];
    uint32_t version, room;
    struct commit_kind kind;
    _Atomic uint32_t active;
    uint32_t writer_counts[SETS];
    struct commit_life lives[SETS];
    struct commit_labels labels[]; /* SETS * room */
};

static struct commit_labels *labels_of(const struct commit_table *table, uint32_t set) {
    return (struct commit_labels *)(uintptr_t)table->labels + (size_t)set * table->room;
}

static uint32_t active_of(const struct commit_table *table) {
    return atomic_load_explicit(&table->active, memory_order_acquire) % SETS;
}

size_t commit_table_bytes(uint32_t writer_count) {
    size_t room = writer_count > COMMIT_WRITERS_LEAST ? writer_count : COMMIT_WRITERS_LEAST;
    return sizeof(struct commit_table) + SETS * room * sizeof(struct commit_labels);
}

void commit_table_init(struct commit_table *table, const struct commit_kind *kind, uint32_t writer_count) {
    table->version = TABLE_VERSION;
    table->room = writer_count > COMMIT_WRITERS_LEAST ? writer_count : COMMIT_WRITERS_LEAST;
    table->kind = *kind;
    commit_table_renew(table, writer_count, 0, &(struct commit_life){.from = COMMIT_NOTHING});
    memcpy(table->magic, table_magic, sizeof table_magic);
}

bool commit_table_fits(const struct commit_table *table, size_t bytes, const struct commit_kind *kind,
                       uint32_t writer_count) {
    if (bytes < sizeof *table || memcmp(table->magic, table_magic, sizeof table_magic) != 0 ||
        table->version != TABLE_VERSION || memcmp(&table->kind, kind, sizeof *kind) != 0) {
        return false;
    }
    uint32_t room = table->room;
    return room >= writer_count && room >= COMMIT_WRITERS_LEAST && room <= bytes / sizeof(struct commit_labels) &&
           commit_table_bytes(room) <= bytes && table->writer_counts[0] <= room && table->writer_counts[1] <= room;
}

uint32_t commit_table_room(const struct commit_table *table) {
    return table->room;
}

void commit_table_steps(const struct commit_table *table, int64_t out[COMMIT_COPIES]) {
    uint32_t set = active_of(table), count = table->writer_counts[set];
    const struct commit_labels *labels = labels_of(table, set);
    for (uint32_t copy = 0; copy < COMMIT_COPIES; copy++) {
        out[copy] = count > 0 ? atomic_load_explicit(&labels[0].steps[copy], memory_order_acquire) : COMMIT_NOTHING;
        for (uint32_t writer = 1; writer < count; writer++) {
            int64_t step = atomic_load_explicit(&labels[writer].steps[copy], memory_order_acquire);
            out[copy] = step == out[copy] ? step : COMMIT_NOTHING;
        }
        out[copy] = out[copy] < 0 ? COMMIT_NOTHING : out[copy];
    }
}

struct commit_life commit_table_life(const struct commit_table *table) {
    return table->lives[active_of(table)];
}

void commit_table_renew(struct commit_table *table, uint32_t writer_count, uint32_t copy,
                        const struct commit_life *life) {
    uint32_t set = (active_of(table) + 1) % SETS;
    struct commit_labels *labels = labels_of(table, set);
    for (uint32_t writer = 0; writer < writer_count; writer++) {
        for (uint32_t i = 0; i < COMMIT_COPIES; i++) {
            atomic_store_explicit(&labels[writer].steps[i], i == copy ? life->from : COMMIT_NOTHING,
                                  memory_order_relaxed);
        }
    }
    table->writer_counts[set] = writer_count;
    table->lives[set] = *life;
    atomic_store_explicit(&table->active, set, memory_order_release);
}

void commit_table_label(struct commit_table *table, uint32_t writer, uint32_t copy, int64_t step) {
    struct commit_labels *labels = labels_of(table, active_of(table));
    atomic_thread_fence(memory_order_seq_cst); /* also for stores past the caches, which are ordered by nothing else */
    atomic_store_explicit(&labels[writer].steps[copy], step, memory_order_release);
    atomic_thread_fence(memory_order_seq_cst);
}

/* ---- which step to go on from ---- */

bool commit_offer_has(const struct commit_offer *offer, int64_t step) {
    return step >= 0 && (offer->steps[0] == step || offer->steps[1] == step);
}

static size_t count_owners(const struct commit_offer *offers, size_t count, int64_t step) {
    size_t owners = 0;
    for (size_t i = 0; i < count; i++) {
        owners += commit_offer_has(&offers[i], step);
    }
    return owners;
}

int64_t commit_choose_common(const struct commit_offer *offers, size_t count) {
    int64_t chosen = COMMIT_NOTHING;
    for (size_t i = 0; count > 0 && i < COMMIT_COPIES; i++) { /* what all have, the first has */
        int64_t step = offers[0].steps[i];
        chosen = step > chosen && count_owners(offers, count, step) == count ? step : chosen;
    }
    return chosen;
}

int64_t commit_choose_replica(const struct commit_offer *offers, size_t count) {
    int64_t newest = COMMIT_NOTHING, common = commit_choose_common(offers, count);
    for (size_t i = 0; i < count; i++) {
        for (size_t j = 0; j < COMMIT_COPIES; j++) {
            newest = offers[i].steps[j] > newest ? offers[i].steps[j] : newest;
        }
    }
    return common != COMMIT_NOTHING ? common : newest;
}

uint32_t commit_count_failures(const struct commit_offer *offers, size_t count, int64_t step, bool has_failed) {
    uint32_t failures = 0;
    for (size_t i = 0; step >= 0 && i < count; i++) {
        uint32_t own = offers[i].life.from == step ? offers[i].life.failures : 0;
        failures = own > failures ? own : failures;
    }
    return step >= 0 && has_failed && failures < UINT32_MAX ? failures + 1 : failures;
}
