/* The optimizers' loops with vectors of 32 bytes, for processors that have AVX2 (the build compiles this file for them;
 * optimizer_kernels.c asks the processor). */
#include <immintrin.h>

#define VECTOR_BYTES 32
#define TABLE_NAME optimizer_table_avx2
#define HAS_ROOT
#define HAS_STREAM

typedef __m256 root_vector;
typedef __m256 stream_vector;
typedef __m128i stream_half_vector;

static inline __m256 root_whole(__m256 value) {
    return _mm256_sqrt_ps(value);
}

static inline void stream_whole(float *at, __m256 value) {
    _mm256_stream_ps(at, value);
}

static inline void stream_half(void *at, __m128i value) {
    _mm_stream_si128(at, value);
}

#include "train/optimizers/optimizer_loops.h"
