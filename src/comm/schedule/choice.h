/* Which algorithm carries out which call, and how hosts are linked: a table from (operation, medium, ranks, load,
 * bytes) to (algorithm, piece), built in, or read from a small text file (docs/formats/choice.md) as a benchmark writes
 * it. Pure, but for choice_load().
 *
 * All ranks of a group must use the same table: choice_hash() lets them compare. */
#ifndef COMM_CHOICE_H
#define COMM_CHOICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/engine/call.h"
#include "comm/host/link_plan.h"
#include "comm/schedule/schedule.h"

#define CHOICE_RULES_MAX 512u
#define CHOICE_LINKS_MAX 512u
#define CHOICE_FILE_BYTES_MAX ((size_t)1 << 16)
#define CHOICE_RANGES_MAX 16u /* of bytes, for one operation of one group */

/* How the ranks of a call reach each other's data. */
#define CHOICE_MEDIUM_TABLE(X)                                                                                         \
    X(CHOICE_PRIVATE, 0, "private") /* one host, at least one buffer is private memory */                              \
    X(CHOICE_SHARED, 1, "shared")   /* one host, all buffers from muster_alloc() */                                    \
    X(CHOICE_MESSAGES, 2, "messages")

enum choice_medium {
#define CHOICE_MEDIUM_ENUM(name, value, text) name = (value),
    CHOICE_MEDIUM_TABLE(CHOICE_MEDIUM_ENUM)
#undef CHOICE_MEDIUM_ENUM
        CHOICE_MEDIUM_COUNT
};

/* The schedules (comm/schedule/schedule.h, for messages) and what a node can do (comm/node/node.h). */
#define CHOICE_NODE_TABLE(X)                                                                                           \
    X(CHOICE_STAGED, 32, "staged")           /* through the rings of the shared segment: any buffers */                \
    X(CHOICE_SINGLE_COPY, 33, "single copy") /* read from the other's private memory (cross-memory attach): what is    \
                                                not reduced, all_to_all excepted */                                    \
    X(CHOICE_DIRECT, 34, "direct")           /* read and written where it lies, in shared memory */                    \
    X(CHOICE_TWO_STAGE, 35, "two stage")     /* staged; each rank reduces its share: all_reduce and reduce */

#define CHOICE_ALGORITHM_TABLE(X) SCHEDULE_ALGORITHM_TABLE(X) CHOICE_NODE_TABLE(X)

#define CHOICE_NO_ALGORITHM UINT32_MAX /* nothing has been chosen */

enum choice_node_algorithm {
#define CHOICE_NODE_ENUM(name, value, text) name = (value),
    CHOICE_NODE_TABLE(CHOICE_NODE_ENUM)
#undef CHOICE_NODE_ENUM
};

/* "ring", "staged" and so on; "unknown algorithm". `algorithm`: an enum schedule_algorithm or choice_node_algorithm. */
const char *choice_algorithm_name(uint32_t algorithm);
const char *choice_medium_name(enum choice_medium medium);

/* May the operation be carried out so, in that medium? */
bool choice_is_possible(enum comm_operation operation, enum choice_medium medium, uint32_t algorithm);

enum choice_load { CHOICE_ANY_LOAD, CHOICE_FITS, CHOICE_CROWDED }; /* crowded: more ranks than cores on the host */

/* Bounds are included. */
struct choice_rule {
    enum comm_operation operation;
    enum choice_medium medium;
    uint32_t ranks_min, ranks_max;
    enum choice_load load;
    uint64_t bytes_min, bytes_max;
    uint32_t algorithm;
    uint64_t piece_bytes; /* 0: the algorithm's own */
};

/* The first rule that fits counts; where none does, the built-in ones follow. Of the links, too: there is no built-in
 * one. */
struct choice {
    size_t rule_count, link_count;
    struct choice_rule rules[CHOICE_RULES_MAX];
    struct link_plan links[CHOICE_LINKS_MAX];
};

/* MUSTER_EINVAL with "line 3: ..."; *out is then unspecified. `text` need not end in a zero. */
int choice_parse(const char *text, size_t bytes, struct choice *out);
/* One line of such a file, with its end. false: does not fit. */
bool choice_rule_format(const struct choice_rule *rule, char *out, size_t max);
/* The built-in rules. */
const struct choice_rule *choice_builtin(size_t *out_count);
/* Equal for equal tables. NULL: the built-in one. */
uint64_t choice_hash(const struct choice *choice);

/* Reads the file that MUSTER_CHOICE_FILE names. MUSTER_ESYSTEM, MUSTER_ENOMEM, MUSTER_EINVAL, with the path. Free with
 * free(). */
int choice_load(const char *path, struct choice **out);

/* ---- asking ---- */

struct choice_answer {
    uint32_t algorithm;
    uint64_t piece_bytes; /* 0: the algorithm's own */
};

/* For one group in one medium: the rules that can matter, by operation, in rising order of bytes. Looking up is a walk
 * over a few numbers. */
struct choice_table {
    struct choice_range {
        uint64_t bytes_max;
        struct choice_answer answer;
    } ranges[COMM_OPERATION_LAST + 1][CHOICE_RANGES_MAX];
    struct choice_range with_counts; /* of all_to_all: nobody knows the bytes of all ranks */
};

/* choice: borrowed during the call; NULL: the built-in one. ranks: of the group, or those on its host. is_crowded must
 * be the same on all ranks. */
void choice_table_make(const struct choice *choice, enum choice_medium medium, uint32_t ranks, bool is_crowded,
                       struct choice_table *out);

/* What to do for a call of `size` ranks. The size of a call, in bytes, is that of the larger of a rank's two buffers on
 * the rank that has the most: of all blocks where there are blocks. */
struct choice_answer choice_of(const struct choice_table *table, const struct comm_call *call, uint32_t size);

/* The same for a size that is known, as in a part of a call. */
static inline struct choice_answer choice_of_bytes(const struct choice_table *table, enum comm_operation operation,
                                                   uint64_t bytes) {
    const struct choice_range *range = table->ranges[operation];
    while (bytes > range->bytes_max) { /* the last one is UINT64_MAX */
        range++;
    }
    return range->answer;
}

#endif
