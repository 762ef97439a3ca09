/* Reductions with vectors of 64 bytes, for processors that have AVX-512 F, BW, DQ and VL (the build compiles this file
 * for them; reduce.c asks the processor). */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define VECTOR_BYTES 64
#define TABLE_NAME reduce_table_avx512
#define HAS_FLOAT16_WIDE
#define HAS_STREAM

static inline __m512 load_f16_wide(const char *at) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i_u *)at));
}

/* Without optimisation the intrinsic is a macro, whose mask of all elements is an int. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wsign-conversion"
static inline __m256i narrow_f16(__m512 value) {
    return _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT);
}
#pragma GCC diagnostic pop

typedef __m512i stream_vector;
typedef __m256i stream_half_vector;

static inline void stream_whole(char *at, __m512i value) {
    _mm512_stream_si512((__m512i *)(void *)at, value);
}

static inline void stream_half(char *at, __m256i value) {
    _mm256_stream_si256((__m256i *)(void *)at, value);
}

#include "comm/reduce/reduce_template.h"
