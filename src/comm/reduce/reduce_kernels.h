/* The form that all vector widths of the reductions have: one table of kernels each (private to reduce*.c). */
#ifndef COMM_REDUCE_KERNELS_H
#define COMM_REDUCE_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#include <muster/types.h>

/* outs[k][i] = (ins[0][i] op ins[1][i] op ...), for AVERAGE divided by `divisor`. Elements of a type no vector needs:
 * any alignment. Each out may be one of the ins. in_count, out_count >= 1. */
typedef void reduce_kernel(void *const *outs, size_t out_count, const void *const *ins, size_t in_count, size_t count,
                           uint32_t divisor);

/* NULL where the type has no such reduction. */
typedef reduce_kernel *reduce_rows[MUSTER_TYPE_COUNT][MUSTER_REDUCTION_COUNT];

struct reduce_table {
    reduce_rows kernels;
    reduce_rows past_caches; /* the same results, stored past the caches; NULL where there is no such kernel */
};

extern const struct reduce_table reduce_table_portable; /* 16 bytes at a time: SSE2 on x86-64, NEON on arm64 */
#ifdef __x86_64__
extern const struct reduce_table reduce_table_avx2;   /* needs F16C too */
extern const struct reduce_table reduce_table_avx512; /* F, BW, DQ, VL */
#endif

#endif
