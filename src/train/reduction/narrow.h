/* Gradients in fewer bits: conversions between arrays of float32 or float64 and of bfloat16 or float16. Pure. */
#ifndef TRAIN_NARROW_H
#define TRAIN_NARROW_H

#include <stddef.h>
#include <stdint.h>

#include <muster/types.h>

/* To nearest, ties to even (float64 by way of float32); beyond the range: infinity; NaN stays NaN.
 * from: FLOAT32 or FLOAT64; to: BFLOAT16 or FLOAT16. No overlap. */
void narrow_floats(enum muster_type to, uint16_t *out, enum muster_type from, const void *in, size_t count);
/* The way back, exact. */
void widen_floats(enum muster_type to, void *out, enum muster_type from, const uint16_t *in, size_t count);

#endif
