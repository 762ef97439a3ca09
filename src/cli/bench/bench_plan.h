/* What `muster bench` measures: the operations with their formulas, and the command line. Pure. */
#ifndef CLI_BENCH_PLAN_H
#define CLI_BENCH_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/types.h>

/* Name, are the buffers divided into a block per rank, does it reduce, has it a root. */
#define BENCH_OPERATION_TABLE(X)                                                                                       \
    X(BENCH_ALL_REDUCE, "all_reduce", false, true, false)                                                              \
    X(BENCH_BROADCAST, "broadcast", false, false, true)                                                                \
    X(BENCH_REDUCE, "reduce", false, true, true)                                                                       \
    X(BENCH_ALL_GATHER, "all_gather", true, false, false)                                                              \
    X(BENCH_GATHER, "gather", true, false, true)                                                                       \
    X(BENCH_SCATTER, "scatter", true, false, true)                                                                     \
    X(BENCH_REDUCE_SCATTER, "reduce_scatter", true, true, false)                                                       \
    X(BENCH_ALL_TO_ALL, "all_to_all", true, false, false)                                                              \
    X(BENCH_SENDRECV, "sendrecv", false, false, false)                                                                 \
    X(BENCH_BARRIER, "barrier", false, false, false)

enum bench_operation {
#define BENCH_OPERATION_ENUM(id, name, is_divided, reduces, has_root) id,
    BENCH_OPERATION_TABLE(BENCH_OPERATION_ENUM)
#undef BENCH_OPERATION_ENUM
        BENCH_OPERATION_COUNT
};

struct bench_operation_info {
    const char *name;
    bool is_divided, reduces, has_root;
};
extern const struct bench_operation_info bench_operations[BENCH_OPERATION_COUNT];

/* Which of the two halves of a row there are: broadcast has only the second, sendrecv only the first, barrier one time.
 */
bool bench_has_place(enum bench_operation operation, bool is_in_place);

/* Elements of one block for `bytes` of the largest buffer of a rank; 0 when they do not reach for one each. */
uint64_t bench_count(enum bench_operation operation, uint64_t bytes, size_t element_bytes, uint32_t ranks);

/* Bytes of the largest buffer of a rank for so many elements of a block. */
uint64_t bench_bytes(enum bench_operation operation, uint64_t count, size_t element_bytes, uint32_t ranks);

/* By how much the bytes over the time are multiplied to have the rate at which each rank's link is used, whatever the
 * number of ranks (nccl-tests, PERFORMANCE.md, "bus bandwidth"). */
double bench_bus_factor(enum bench_operation operation, uint32_t ranks);

#define BENCH_BYTES_MAX (UINT64_C(1) << 38)
enum { BENCH_ITERATIONS_MAX = 1000000, BENCH_RANKS_MAX = 4096 };

struct bench_options {
    bool operations[BENCH_OPERATION_COUNT];
    uint64_t begin_bytes, end_bytes; /* -b, -e */
    uint64_t factor, step_bytes;     /* -f, -i: step_bytes > 0 counts */
    uint32_t iterations, warm_up;    /* -n (0: as many as fill a tenth of a second), -w */
    bool checks;                     /* -c */
    bool uses_own_memory;            /* --memory own */
    const char *engine;              /* --engine; NULL: not given. Borrowed from the command line */
    bool tunes, tunes_links;         /* --tune, --tune=links */
    enum muster_type type;           /* -d */
    enum muster_reduction reduction; /* -o */
    uint32_t root;                   /* -r */
    uint32_t ranks;                  /* --ranks; 0: not given */
    bool wants_help;
};

/* Reads the words behind "bench". MUSTER_EINVAL with a sentence for the user. */
int bench_options_parse(int argc, char **argv, struct bench_options *out);

/* The size after `bytes`, 0 when it was the last. */
uint64_t bench_next(const struct bench_options *options, uint64_t bytes);

/* "8", "64K", "1.5M" are no, yes, no... sizes are whole numbers with K, M or G (1024s) behind them. False otherwise. */
bool bench_parse_bytes(const char *text, uint64_t *out);

#endif
