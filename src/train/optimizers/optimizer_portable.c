/* The optimizers' loops for every processor. */
#ifdef __x86_64__
#include <immintrin.h>

#define HAS_ROOT

typedef __m128 root_vector;

static inline __m128 root_whole(__m128 value) {
    return _mm_sqrt_ps(value);
}
#endif

#include "train/optimizers/optimizer_loops.h"
