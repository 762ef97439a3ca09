/* Element-wise reductions in memory: every type with every reduction that it has, with the processor's widest vectors
 * (chosen once, at first use). Deterministic: inputs are combined in the order given, element by element, whatever the
 * vectors, the alignment or the split into pieces. (When two NaNs meet, which of them is passed on is the compiler's
 * choice for each place in a call: equal calls give equal bits, calls cut differently may not.) Buffers need no
 * alignment. Pure, but for the choice of vectors. */
#ifndef COMM_REDUCE_H
#define COMM_REDUCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/types.h>

/* Has `type` this reduction? (No BIT operations on floats.) */
bool reduce_is_defined(enum muster_type type, enum muster_reduction reduction);

/* out[i] = a[i] op b[i]; `out` may be a or b, other overlaps are not allowed. AVERAGE adds: reduce_finish() divides. */
void reduce_pair(enum muster_type type, enum muster_reduction reduction, void *out, const void *a, const void *b,
                 size_t count);

/* outs[k][i] = ins[0][i] op ins[1][i] op ... for all k, finished (AVERAGE divided by in_count; 16-bit floats rounded
 * once). Each out may be one of the ins. in_count >= 1; out_count >= 1. */
void reduce_many(enum muster_type type, enum muster_reduction reduction, void *const *outs, size_t out_count,
                 const void *const *ins, size_t in_count, size_t count);

/* For AVERAGE after all pairs: data[i] /= divisor. Nothing for the others. */
void reduce_finish(enum muster_type type, enum muster_reduction reduction, void *data, size_t count, uint32_t divisor);

/* The widths there are. reduce_choose() is for tests and benchmarks, which compare them: false, and nothing changes, if
 * this processor lacks it. */
enum reduce_vectors { REDUCE_PORTABLE, REDUCE_AVX2, REDUCE_AVX512, REDUCE_VECTORS_COUNT };
bool reduce_choose(enum reduce_vectors vectors);

#endif
