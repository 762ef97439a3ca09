/* The form that the loops of all vector widths have (private to optimizer_kernels.c and the files that include
 * optimizer_loops.h). */
#ifndef TRAIN_OPTIMIZER_TABLE_H
#define TRAIN_OPTIMIZER_TABLE_H

#include "train/optimizers/optimizer_kernels.h"

/* Elements of which a sum of squares is finished before the next are begun. */
enum { SQUARES_BLOCK = 4096 };

/* The span's gradient is not NULL. */
typedef void optimizer_loop(const struct optimizer_span *span, const struct optimizer_factors *factors);

struct optimizer_table {
    optimizer_loop *loops[RULE_COUNT];
    optimizer_loop *past_caches[RULE_COUNT]; /* the same results; NULL where there is no such loop */
    void (*narrow)(uint16_t *out, const float *in, size_t count); /* to bfloat16 */
    double (*squares)(const float *values, size_t count);         /* of one block, or a part of one */
};

extern const struct optimizer_table optimizer_table_portable; /* 16 bytes at a time: SSE2 on x86-64, NEON on arm64 */
#ifdef __x86_64__
extern const struct optimizer_table optimizer_table_avx2;
extern const struct optimizer_table optimizer_table_avx512; /* F, BW, DQ, VL */
#endif

#endif
