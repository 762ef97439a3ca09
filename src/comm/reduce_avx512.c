/* Reductions with vectors of 64 bytes, for processors that have AVX-512 F, BW, DQ and VL (the build compiles this file
 * for them; reduce.c asks the processor). */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define VECTOR_BYTES 64
#define TABLE_NAME reduce_table_avx512
#define HAS_FLOAT16_WIDE

static inline __m512 load_f16_wide(const char *at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i_u *)at));
}

static inline void store_f16_wide(char *at, __m512 value) {
    _mm256_storeu_si256((__m256i_u *)at, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT));
}

#include "comm/reduce_template.h"
