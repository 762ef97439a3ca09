/* The data of `muster bench`: what each rank sends, and what has to come out, element for element. Small whole numbers
 * that repeat, so that a few elements tell them all and no type rounds. Pure. */
#ifndef CLI_BENCH_DATA_H
#define CLI_BENCH_DATA_H

#include <stddef.h>
#include <stdint.h>

#include <muster/types.h>

enum { BENCH_PERIOD = 14 };

/* Element i of a buffer is element i % BENCH_PERIOD of its pattern. */
struct bench_pattern {
    enum muster_type type;
    uint64_t elements[BENCH_PERIOD]; /* in memory as the type has it, in the first bytes */
};

/* What `rank` sends in `block` (0 where buffers are not divided). The reduction matters: factors of a product are
 * small. */
void bench_pattern_sent(struct bench_pattern *out, enum muster_type type, enum muster_reduction reduction,
                        uint32_t rank, uint32_t block);

/* What becomes of the block when all `ranks` are reduced. */
void bench_pattern_reduced(struct bench_pattern *out, enum muster_type type, enum muster_reduction reduction,
                           uint32_t ranks, uint32_t block);

void bench_pattern_fill(const struct bench_pattern *pattern, void *buffer, size_t count);

/* How many elements differ from the pattern. */
size_t bench_pattern_wrong(const struct bench_pattern *pattern, const void *buffer, size_t count);

#endif
