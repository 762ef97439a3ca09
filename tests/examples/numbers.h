/* Input and comparison for the tests of examples/mnist: drawn arrays, arrays recorded from PyTorch, and how far two
 * may be apart. */
#ifndef TESTS_EXAMPLES_NUMBERS_H
#define TESTS_EXAMPLES_NUMBERS_H

#include <stddef.h>
#include <stdint.h>

/* `count` numbers, uniform in [-1, 1), as record_pytorch.py's draw(seed) has them. The caller frees. */
float *numbers_draw(uint64_t seed, size_t count);
/* The same seen as (batch, channels, side, side), given as (batch, side, side, channels). */
float *numbers_draw_nhwc(uint64_t seed, int batch, int side, int channels);

/* Asserts that all of got[0..count) lie within `tolerance` of want[]. */
void numbers_assert_near(const char *name, const float *got, const double *want, size_t count, double tolerance);

/* Asserts the same against the tensor recorded under this name, which must have `count` elements. */
void numbers_assert_recorded(const char *name, const float *got, size_t count, double tolerance);

#endif
