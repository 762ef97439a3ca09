/* Reductions with vectors of 32 bytes, for processors that have AVX2 and F16C (the build compiles this file for them;
 * reduce.c asks the processor). */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define VECTOR_BYTES 32
#define TABLE_NAME reduce_table_avx2
#define HAS_FLOAT16_WIDE

static inline __m256 load_f16_wide(const char *at) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i_u *)at));
}

static inline void store_f16_wide(char *at, __m256 value) {
    _mm_storeu_si128((__m128i_u *)at, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

#include "comm/reduce_template.h"
