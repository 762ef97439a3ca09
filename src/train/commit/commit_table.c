/* See commit_table.h. */
#include "train/commit/commit_table.h"

#include <stdatomic.h>
#include <string.h>

enum { LINE_BYTES = 64, SETS = 2 };
#define TABLE_VERSION 3u
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
    struct commit_place place;
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

void commit_table_init(struct commit_table *table, const struct commit_kind *kind, const struct commit_place *place,
                       uint32_t writer_count) {
    table->version = TABLE_VERSION;
    table->room = writer_count > COMMIT_WRITERS_LEAST ? writer_count : COMMIT_WRITERS_LEAST;
    table->kind = *kind;
    table->place = *place;
    commit_table_renew(table, writer_count, 0, &(struct commit_life){.from = COMMIT_NOTHING});
    memcpy(table->magic, table_magic, sizeof table_magic);
}

bool commit_place_equals(const struct commit_place *a, const struct commit_place *b) {
    return (a->stride == 1 && b->stride == 1) ||
           (a->first == b->first && a->stride == b->stride && a->part_count == b->part_count);
}

static bool is_place(const struct commit_place *place) {
    return place->stride > 0 && place->first < place->stride && place->part_count > 0 &&
           place->part_count % place->stride == 0;
}

bool commit_table_is_of(const struct commit_table *table, size_t bytes, uint64_t fingerprint) {
    if (bytes < sizeof *table || memcmp(table->magic, table_magic, sizeof table_magic) != 0 ||
        table->version != TABLE_VERSION || table->kind.fingerprint != fingerprint || !is_place(&table->place)) {
        return false;
    }
    uint32_t room = table->room;
    return room >= COMMIT_WRITERS_LEAST && room <= bytes / sizeof(struct commit_labels) &&
           commit_table_bytes(room) <= bytes && table->writer_counts[0] <= room && table->writer_counts[1] <= room;
}

struct commit_kind commit_table_kind(const struct commit_table *table) {
    return table->kind;
}

bool commit_table_fits(const struct commit_table *table, size_t bytes, const struct commit_kind *kind,
                       const struct commit_place *place, uint32_t writer_count) {
    return commit_table_is_of(table, bytes, kind->fingerprint) && memcmp(&table->kind, kind, sizeof *kind) == 0 &&
           commit_place_equals(&table->place, place) && table->room >= writer_count;
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

struct commit_offer commit_table_offer(const struct commit_table *table) {
    struct commit_offer offer = {.life = table->lives[active_of(table)], .place = table->place};
    commit_table_steps(table, offer.steps);
    return offer;
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
