/* See commit_table.h. */
#include "train/commit/commit_table.h"

#include <stdatomic.h>
#include <string.h>

#include "base/fnv.h"

enum { LINE_BYTES = 64, SETS = 2 };
#define TABLE_VERSION 4u
static const char table_magic[16] = "muster-copies";

/* A cache line each: writers do not disturb each other. A step counts with its seal alone. */
struct commit_labels {
    _Alignas(LINE_BYTES) _Atomic int64_t steps[COMMIT_COPIES];
    _Atomic uint64_t seals[COMMIT_COPIES];
};

/* There are two lists of labels. One counts; the other is filled when the number of writers changes. Programs may write
 * where they should not: every word on which a choice depends has a seal. */
struct commit_table {
    char magic[sizeof table_magic];
    uint32_t version, room;
    struct commit_kind kind;
    struct commit_place place;
    _Atomic uint64_t active; /* of active_words */
    uint32_t writer_counts[SETS];
    struct commit_life lives[SETS];
    uint64_t seals[SETS];          /* of each set's number of writers and life, and of what is above */
    struct commit_labels labels[]; /* SETS * room */
};

/* A word that is written by mistake is neither. */
static const uint64_t active_words[SETS] = {UINT64_C(0x5bd1e9955bd1e995), UINT64_C(0xa4c3f1869e3779b9)};

static struct commit_labels *labels_of(const struct commit_table *table, uint32_t set) {
    return (struct commit_labels *)(uintptr_t)table->labels + (size_t)set * table->room;
}

/* SETS: none is. */
static uint32_t active_of(const struct commit_table *table) {
    uint64_t word = atomic_load_explicit(&table->active, memory_order_acquire);
    return word == active_words[0] ? 0 : word == active_words[1] ? 1 : SETS;
}

static uint64_t seal(const uint64_t *words, size_t count) {
    uint64_t hash = FNV_BEGIN;
    for (size_t i = 0; i < count; i++) {
        for (unsigned shift = 0; shift < 64; shift += 8) {
            hash = fnv_step(hash, words[i] >> shift & 0xff);
        }
    }
    return hash;
}

static uint64_t seal_of_set(const struct commit_table *table, uint32_t set) {
    const struct commit_life *life = &table->lives[set];
    const uint64_t words[] = {set,
                              table->version,
                              table->room,
                              table->kind.copy_bytes,
                              table->kind.extra_bytes,
                              table->kind.fingerprint,
                              table->place.first,
                              table->place.stride,
                              table->place.part_count,
                              table->writer_counts[set],
                              (uint64_t)life->from,
                              life->from_life,
                              life->number,
                              life->given_up,
                              life->heard,
                              life->failures};
    return seal(words, sizeof words / sizeof *words);
}

static uint64_t seal_of_label(const struct commit_table *table, uint32_t set, uint32_t writer, uint32_t copy,
                              int64_t step) {
    const uint64_t words[] = {(uint64_t)step, table->lives[set].number, table->kind.fingerprint, set, writer, copy};
    return seal(words, sizeof words / sizeof *words);
}

/* The seal first: who dies in between leaves no label. */
static void write_label(struct commit_table *table, uint32_t set, uint32_t writer, uint32_t copy, int64_t step) {
    struct commit_labels *labels = &labels_of(table, set)[writer];
    if (step >= 0) {
        atomic_store_explicit(&labels->seals[copy], seal_of_label(table, set, writer, copy, step),
                              memory_order_relaxed);
    }
    atomic_store_explicit(&labels->steps[copy], step, memory_order_release);
}

static int64_t read_label(const struct commit_table *table, uint32_t set, uint32_t writer, uint32_t copy) {
    const struct commit_labels *labels = &labels_of(table, set)[writer];
    int64_t step = atomic_load_explicit(&labels->steps[copy], memory_order_acquire);
    uint64_t seal = atomic_load_explicit(&labels->seals[copy], memory_order_relaxed);
    return step >= 0 && seal == seal_of_label(table, set, writer, copy, step) ? step : COMMIT_NOTHING;
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
    uint32_t room = table->room, set = active_of(table);
    return room >= COMMIT_WRITERS_LEAST && room <= bytes / sizeof(struct commit_labels) &&
           commit_table_bytes(room) <= bytes && set < SETS && table->writer_counts[set] <= room &&
           table->seals[set] == seal_of_set(table, set);
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
    uint32_t set = active_of(table), count = set < SETS ? table->writer_counts[set] : 0;
    count = count <= table->room ? count : 0; /* while a program runs, it may write anywhere */
    for (uint32_t copy = 0; copy < COMMIT_COPIES; copy++) {
        out[copy] = count > 0 ? read_label(table, set, 0, copy) : COMMIT_NOTHING;
        for (uint32_t writer = 1; writer < count; writer++) {
            out[copy] = read_label(table, set, writer, copy) == out[copy] ? out[copy] : COMMIT_NOTHING;
        }
    }
}

struct commit_offer commit_table_offer(const struct commit_table *table) {
    uint32_t set = active_of(table);
    struct commit_offer offer = {.life = table->lives[set < SETS ? set : 0], .place = table->place};
    commit_table_steps(table, offer.steps);
    return offer;
}

void commit_table_renew(struct commit_table *table, uint32_t writer_count, uint32_t copy,
                        const struct commit_life *life) {
    uint32_t set = active_of(table) == 0 ? 1 : 0;
    table->writer_counts[set] = writer_count;
    table->lives[set] = *life;
    table->seals[set] = seal_of_set(table, set);
    for (uint32_t writer = 0; writer < writer_count; writer++) {
        for (uint32_t i = 0; i < COMMIT_COPIES; i++) {
            write_label(table, set, writer, i, i == copy ? life->from : COMMIT_NOTHING);
        }
    }
    atomic_store_explicit(&table->active, active_words[set], memory_order_release);
}

void commit_table_label(struct commit_table *table, uint32_t writer, uint32_t copy, int64_t step) {
    uint32_t set = active_of(table);
    atomic_thread_fence(memory_order_seq_cst); /* also for stores past the caches, which are ordered by nothing else */
    write_label(table, set < SETS ? set : 0, writer, copy, step);
    atomic_thread_fence(memory_order_seq_cst);
}
