/* Reductions with vectors of 32 bytes, for processors that have AVX2 and F16C (the build compiles this file for them;
 * reduce.c asks the processor). */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define VECTOR_BYTES 32
#define TABLE_NAME reduce_table_avx2
#define HAS_FLOAT16_WIDE
#define HAS_STREAM

static inline __m256 load_f16_wide(const char *at) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)at));
}

static inline __m128i narrow_f16(__m256 value) {
    return _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
}

typedef __m256i stream_vector;
typedef __m128i stream_half_vector;

static inline void stream_whole(char *at, __m256i value) {
    _mm256_stream_si256((__m256i *)(void *)at, value);
}

static inline void stream_half(char *at, __m128i value) {
    _mm_stream_si128((__m128i *)(void *)at, value);
}

#include "comm/reduce/reduce_template.h"
