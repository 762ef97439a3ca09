/* The optimizers' loops with vectors of 64 bytes, for processors that have AVX-512 F, BW, DQ and VL (the build compiles
 * this file for them; optimizer_kernels.c asks the processor). */
#include <immintrin.h>

#define VECTOR_BYTES 64
#define TABLE_NAME optimizer_table_avx512
#define HAS_ROOT
#define HAS_STREAM

typedef __m512 root_vector;
typedef __m512 stream_vector;
typedef __m256i stream_half_vector;

static inline __m512 root_whole(__m512 value) {
    return _mm512_sqrt_ps(value);
}

static inline void stream_whole(float *at, __m512 value) {
    _mm512_stream_ps(at, value);
}

static inline void stream_half(void *at, __m256i value) {
    _mm256_stream_si256(at, value);
}

#include "train/optimizers/optimizer_loops.h"
