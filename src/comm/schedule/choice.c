/* The built-in table of algorithms, and looking things up. Pure. */
#include "comm/schedule/choice.h"

#include <assert.h>
#include <string.h>

#include "base/fnv.h"

#define ANY_RANKS 0, UINT32_MAX
#define KIB(n) (UINT64_C(1024) * (n))
#define UP_TO(bytes) 0, (bytes)
#define LARGER 0, UINT64_MAX

/* By operation; the first that fits counts. Why these: docs/algorithms.md. */
static const struct choice_rule builtin[] = {
#define MESSAGES(operation, ranks, bytes, algorithm)                                                                   \
    { operation, CHOICE_MESSAGES, ranks, CHOICE_ANY_LOAD, bytes, algorithm, 0 }
#define EXACTLY(operation, ranks, bytes, algorithm)                                                                    \
    { operation, CHOICE_MESSAGES, ranks, ranks, CHOICE_ANY_LOAD, bytes, algorithm, 0 }
#define POWERS_OF_2(operation, limit, algorithm)                                                                       \
    EXACTLY(operation, 4, UP_TO(limit), algorithm), EXACTLY(operation, 8, UP_TO(limit), algorithm),                    \
        EXACTLY(operation, 16, UP_TO(limit), algorithm), EXACTLY(operation, 32, UP_TO(limit), algorithm)
#define ON_HOST(operation, medium, bytes, algorithm)                                                                   \
    { operation, medium, ANY_RANKS, CHOICE_ANY_LOAD, bytes, algorithm, 0 }
/* `pair`: two ranks. Below these sizes, two steps and looking up what is shared take longer than staging. */
#define SHARED(operation, pair, more)                                                                                  \
    {operation, CHOICE_SHARED, RANKS(1, 2), CHOICE_ANY_LOAD, UP_TO(KIB(pair) - 1), CHOICE_STAGED, 0},                  \
        {operation, CHOICE_SHARED, RANKS(3, UINT32_MAX), CHOICE_ANY_LOAD, UP_TO(KIB(more) - 1), CHOICE_STAGED, 0},     \
        ON_HOST(operation, CHOICE_SHARED, LARGER, CHOICE_DIRECT)
#define PRIVATE(operation, ranks, bytes, algorithm)                                                                    \
    { operation, CHOICE_PRIVATE, ranks, CHOICE_ANY_LOAD, bytes, algorithm, 0 }
/* Rooted ones stay staged for longer: then nobody waits for everybody. */
#define NODE(operation) SHARED(operation, 8, 32), ON_HOST(operation, CHOICE_PRIVATE, LARGER, CHOICE_STAGED)
#define NODE_ROOTED(operation) SHARED(operation, 32, 256), ON_HOST(operation, CHOICE_PRIVATE, LARGER, CHOICE_STAGED)
#define RANKS(min, max) min, max
    PRIVATE(COMM_ALL_REDUCE, RANKS(1, 2), UP_TO(KIB(512) - 1), CHOICE_STAGED),
    PRIVATE(COMM_ALL_REDUCE, RANKS(3, 7), UP_TO(KIB(256) - 1), CHOICE_STAGED),
    PRIVATE(COMM_ALL_REDUCE, RANKS(8, UINT32_MAX), UP_TO(KIB(128) - 1), CHOICE_STAGED),
    PRIVATE(COMM_ALL_REDUCE, ANY_RANKS, LARGER, CHOICE_TWO_STAGE),
    PRIVATE(COMM_REDUCE, RANKS(1, 7), LARGER, CHOICE_STAGED),
    PRIVATE(COMM_REDUCE, ANY_RANKS, UP_TO(KIB(256) - 1), CHOICE_STAGED),
    PRIVATE(COMM_REDUCE, ANY_RANKS, LARGER, CHOICE_TWO_STAGE),
    SHARED(COMM_ALL_REDUCE, 8, 32),
    SHARED(COMM_REDUCE, 32, 256),
    NODE_ROOTED(COMM_BROADCAST),
    NODE(COMM_ALL_GATHER),
    NODE_ROOTED(COMM_GATHER),
    NODE_ROOTED(COMM_SCATTER),
    NODE(COMM_REDUCE_SCATTER),
    NODE(COMM_ALL_TO_ALL),
    ON_HOST(COMM_BARRIER, CHOICE_SHARED, LARGER, CHOICE_STAGED),
    ON_HOST(COMM_BARRIER, CHOICE_PRIVATE, LARGER, CHOICE_STAGED),
    ON_HOST(COMM_MONITORED_BARRIER, CHOICE_SHARED, LARGER, CHOICE_STAGED),
    ON_HOST(COMM_MONITORED_BARRIER, CHOICE_PRIVATE, LARGER, CHOICE_STAGED),

    ON_HOST(COMM_SCAN, CHOICE_SHARED, LARGER, CHOICE_STAGED),
    ON_HOST(COMM_SCAN, CHOICE_PRIVATE, LARGER, CHOICE_STAGED),
    ON_HOST(COMM_EXSCAN, CHOICE_SHARED, LARGER, CHOICE_STAGED),
    ON_HOST(COMM_EXSCAN, CHOICE_PRIVATE, LARGER, CHOICE_STAGED),

    MESSAGES(COMM_BARRIER, ANY_RANKS, LARGER, SCHEDULE_DISSEMINATION),
    MESSAGES(COMM_MONITORED_BARRIER, ANY_RANKS, LARGER, SCHEDULE_DISSEMINATION),
    MESSAGES(COMM_SCAN, ANY_RANKS, LARGER, SCHEDULE_RECURSIVE_DOUBLING),
    MESSAGES(COMM_EXSCAN, ANY_RANKS, LARGER, SCHEDULE_RECURSIVE_DOUBLING),

    /* For powers of 2, doubling and halving cost as many bytes as a ring in fewer steps. */
    MESSAGES(COMM_ALL_REDUCE, RANKS(1, 2), UP_TO(KIB(512)), SCHEDULE_RECURSIVE_DOUBLING),
    MESSAGES(COMM_ALL_REDUCE, RANKS(3, 4), UP_TO(KIB(128)), SCHEDULE_RECURSIVE_DOUBLING),
    MESSAGES(COMM_ALL_REDUCE, ANY_RANKS, UP_TO(KIB(16)), SCHEDULE_RECURSIVE_DOUBLING),
    POWERS_OF_2(COMM_ALL_REDUCE, UINT64_MAX, SCHEDULE_RABENSEIFNER),
    MESSAGES(COMM_ALL_REDUCE, RANKS(3, 8), UP_TO(KIB(256)), SCHEDULE_RABENSEIFNER),
    MESSAGES(COMM_ALL_REDUCE, RANKS(9, 32), UP_TO(KIB(4096)), SCHEDULE_RABENSEIFNER),
    MESSAGES(COMM_ALL_REDUCE, RANKS(1, 32), LARGER, SCHEDULE_RING),
    MESSAGES(COMM_ALL_REDUCE, ANY_RANKS, LARGER, SCHEDULE_RABENSEIFNER),

    MESSAGES(COMM_REDUCE, RANKS(1, 2), LARGER, SCHEDULE_FLAT),
    MESSAGES(COMM_REDUCE, ANY_RANKS, UP_TO(KIB(128)), SCHEDULE_BINOMIAL),
    MESSAGES(COMM_REDUCE, RANKS(5, 32), LARGER, SCHEDULE_RING),
    MESSAGES(COMM_REDUCE, ANY_RANKS, LARGER, SCHEDULE_BINOMIAL),

    MESSAGES(COMM_BROADCAST, RANKS(1, 2), LARGER, SCHEDULE_FLAT),
    MESSAGES(COMM_BROADCAST, RANKS(3, 4), UP_TO(KIB(2048)), SCHEDULE_BINOMIAL),
    MESSAGES(COMM_BROADCAST, ANY_RANKS, UP_TO(KIB(512)), SCHEDULE_BINOMIAL),
    MESSAGES(COMM_BROADCAST, RANKS(3, 32), LARGER, SCHEDULE_RING),
    MESSAGES(COMM_BROADCAST, ANY_RANKS, LARGER, SCHEDULE_BINOMIAL),

    MESSAGES(COMM_ALL_GATHER, RANKS(1, 2), LARGER, SCHEDULE_FLAT),
    MESSAGES(COMM_ALL_GATHER, ANY_RANKS, UP_TO(KIB(64)), SCHEDULE_RECURSIVE_DOUBLING),
    POWERS_OF_2(COMM_ALL_GATHER, KIB(16384), SCHEDULE_RECURSIVE_DOUBLING),
    MESSAGES(COMM_ALL_GATHER, ANY_RANKS, LARGER, SCHEDULE_RING),

    MESSAGES(COMM_REDUCE_SCATTER, RANKS(1, 2), LARGER, SCHEDULE_FLAT),
    MESSAGES(COMM_REDUCE_SCATTER, ANY_RANKS, UP_TO(KIB(64)), SCHEDULE_RECURSIVE_HALVING),
    POWERS_OF_2(COMM_REDUCE_SCATTER, KIB(16384), SCHEDULE_RECURSIVE_HALVING),
    MESSAGES(COMM_REDUCE_SCATTER, ANY_RANKS, LARGER, SCHEDULE_RING),

    MESSAGES(COMM_GATHER, RANKS(9, UINT32_MAX), UP_TO(KIB(64)), SCHEDULE_BINOMIAL),
    MESSAGES(COMM_GATHER, ANY_RANKS, LARGER, SCHEDULE_FLAT),
    /* A root sends three short messages in 12 us over loopback, and a tree of 4 has it send two. */
    MESSAGES(COMM_SCATTER, RANKS(4, 8), UP_TO(KIB(16)), SCHEDULE_BINOMIAL),
    MESSAGES(COMM_SCATTER, RANKS(9, UINT32_MAX), UP_TO(KIB(64)), SCHEDULE_BINOMIAL),
    MESSAGES(COMM_SCATTER, ANY_RANKS, LARGER, SCHEDULE_FLAT),

    MESSAGES(COMM_ALL_TO_ALL, RANKS(9, UINT32_MAX), UP_TO(KIB(4)), SCHEDULE_BRUCK),
    MESSAGES(COMM_ALL_TO_ALL, RANKS(1, 32), LARGER, SCHEDULE_FLAT),
    MESSAGES(COMM_ALL_TO_ALL, ANY_RANKS, LARGER, SCHEDULE_PAIRWISE),
};

const struct choice_rule *choice_builtin(size_t *out_count) {
    *out_count = sizeof builtin / sizeof *builtin;
    return builtin;
}

const char *choice_algorithm_name(uint32_t algorithm) {
    switch (algorithm) {
#define ALGORITHM_CASE(name, value, text)                                                                              \
    case name:                                                                                                         \
        return text;
        CHOICE_ALGORITHM_TABLE(ALGORITHM_CASE)
#undef ALGORITHM_CASE
    default:
        return "unknown algorithm";
    }
}

const char *choice_medium_name(enum choice_medium medium) {
    switch ((int)medium) {
#define MEDIUM_CASE(name, value, text)                                                                                 \
    case name:                                                                                                         \
        return text;
        CHOICE_MEDIUM_TABLE(MEDIUM_CASE)
#undef MEDIUM_CASE
    default:
        return "unknown medium";
    }
}

bool choice_is_possible(enum comm_operation operation, enum choice_medium medium, uint32_t algorithm) {
    if (operation == COMM_SEND || operation == COMM_RECEIVE) {
        return false;
    }
    if (medium == CHOICE_MESSAGES) {
        return algorithm < SCHEDULE_ALGORITHM_END &&
               schedule_is_defined(operation, false, (enum schedule_algorithm)algorithm);
    }
    if (algorithm == CHOICE_SINGLE_COPY) {
        return medium == CHOICE_PRIVATE && (operation == COMM_BROADCAST || operation == COMM_ALL_GATHER ||
                                            operation == COMM_GATHER || operation == COMM_SCATTER);
    }
    bool has_direct = operation != COMM_BARRIER && operation != COMM_MONITORED_BARRIER && !comm_is_prefix(operation);
    if (algorithm == CHOICE_TWO_STAGE) {
        return medium == CHOICE_PRIVATE && (operation == COMM_ALL_REDUCE || operation == COMM_REDUCE);
    }
    return algorithm == CHOICE_STAGED || (has_direct && medium == CHOICE_SHARED && algorithm == CHOICE_DIRECT);
}

/* A rule as numbers, so that padding does not count. */
static uint64_t hash_rule(uint64_t hash, const struct choice_rule *rule) {
    const uint64_t words[] = {(uint64_t)rule->operation, (uint64_t)rule->medium, rule->ranks_min,
                              rule->ranks_max,           (uint64_t)rule->load,   rule->bytes_min,
                              rule->bytes_max,           rule->algorithm,        rule->piece_bytes};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        hash = fnv_step(hash, words[i]);
        hash ^= hash >> 32;
    }
    return hash;
}

static uint64_t hash_link(uint64_t hash, const struct link_plan *link) {
    hash = fnv_step(fnv_step(hash, link->stream_count), link->path_count);
    for (uint32_t i = 0; i < link->path_count; i++) {
        uint64_t words[4];
        memcpy(words, link->paths[i].ends, sizeof words);
        for (size_t j = 0; j < sizeof words / sizeof *words; j++) {
            hash = fnv_step(hash, words[j]);
            hash ^= hash >> 32;
        }
    }
    return hash;
}

uint64_t choice_hash(const struct choice *choice) {
    uint64_t hash = FNV_BEGIN;
    for (size_t i = 0; choice && i < choice->link_count; i++) {
        hash = hash_link(hash, &choice->links[i]);
    }
    for (size_t i = 0; choice && i < choice->rule_count; i++) {
        hash = hash_rule(hash, &choice->rules[i]);
    }
    for (size_t i = 0; i < sizeof builtin / sizeof *builtin; i++) {
        hash = hash_rule(hash, &builtin[i]);
    }
    return hash;
}

/* ---- asking ---- */

struct question {
    enum comm_operation operation;
    enum choice_medium medium;
    uint32_t ranks;
    enum choice_load load;
    bool has_counts;
};

static const struct choice_rule *rule_at(const struct choice *choice, size_t index) {
    size_t own = choice ? choice->rule_count : 0;
    if (index < own) {
        return &choice->rules[index];
    }
    return index - own < sizeof builtin / sizeof *builtin ? &builtin[index - own] : NULL;
}

static bool fits(const struct choice_rule *rule, const struct question *question) {
    return rule->operation == question->operation && rule->medium == question->medium &&
           question->ranks >= rule->ranks_min && question->ranks <= rule->ranks_max &&
           (rule->load == CHOICE_ANY_LOAD || rule->load == question->load) &&
           !(question->has_counts && rule->algorithm == SCHEDULE_BRUCK);
}

/* The rule that counts from `bytes` on, and up to where its range ends or one that comes before it begins. */
static struct choice_range range_from(const struct choice *choice, const struct question *question, uint64_t bytes) {
    uint64_t end = UINT64_MAX;
    for (size_t i = 0;; i++) {
        const struct choice_rule *rule = rule_at(choice, i);
        assert(rule); /* the built-in rules leave nothing out */
        if (!fits(rule, question) || rule->bytes_max < bytes) {
            continue;
        }
        if (rule->bytes_min <= bytes) {
            end = rule->bytes_max < end ? rule->bytes_max : end;
            return (struct choice_range){.bytes_max = end, .answer = {rule->algorithm, rule->piece_bytes}};
        }
        end = rule->bytes_min - 1 < end ? rule->bytes_min - 1 : end;
    }
}

/* Should a table have more ranges than there is room for, the last one goes on to the end. */
static void make_ranges(const struct choice *choice, const struct question *question,
                        struct choice_range ranges[CHOICE_RANGES_MAX]) {
    uint64_t bytes = 0;
    for (size_t i = 0; i < CHOICE_RANGES_MAX; i++) {
        ranges[i] = range_from(choice, question, bytes);
        if (i + 1 == CHOICE_RANGES_MAX) {
            ranges[i].bytes_max = UINT64_MAX;
        }
        if (ranges[i].bytes_max == UINT64_MAX) {
            return;
        }
        bytes = ranges[i].bytes_max + 1;
    }
}

void choice_table_make(const struct choice *choice, enum choice_medium medium, uint32_t ranks, bool is_crowded,
                       struct choice_table *out) {
    struct question question = {.medium = medium, .ranks = ranks, .load = is_crowded ? CHOICE_CROWDED : CHOICE_FITS};
    *out = (struct choice_table){0};
    for (int operation = COMM_BARRIER; operation <= COMM_OPERATION_LAST; operation++) {
        if (operation != COMM_SEND && operation != COMM_RECEIVE) {
            question.operation = (enum comm_operation)operation;
            make_ranges(choice, &question, out->ranges[operation]);
        }
    }
    question.operation = COMM_ALL_TO_ALL;
    question.has_counts = true;
    out->with_counts = range_from(choice, &question, UINT64_MAX);
}

static uint64_t bytes_of(const struct comm_call *call, uint32_t size) {
    const size_t *counts = comm_call_counts(call);
    uint64_t count = counts ? comm_counts_sum(counts, size) : call->count;
    if (!counts && call->operation >= COMM_ALL_GATHER && call->operation <= COMM_ALL_TO_ALL) {
        count *= size;
    }
    return count * call->type_bytes;
}

struct choice_answer choice_of(const struct choice_table *table, const struct comm_call *call, uint32_t size) {
    if (call->operation == COMM_ALL_TO_ALL && call->send_counts) {
        return table->with_counts.answer;
    }
    return choice_of_bytes(table, call->operation, bytes_of(call, size));
}
