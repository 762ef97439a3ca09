/* How loops become vector instructions. The compiler does it: functions marked VECTORISED exist once for each kind of
 * processor, and the program takes the right one when it starts; SIMD before a loop says that its iterations are
 * independent. */
#ifndef EXAMPLES_GPT_VECTOR_H
#define EXAMPLES_GPT_VECTOR_H

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) && !defined(MUSTER_EXAMPLE_PLAIN) /* sanitizers cannot live with that */
#define VECTORISED __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define VECTORISED
#endif
#define SIMD _Pragma("omp simd")
#define SIMD_SUM(sum) SIMD_TEXT(omp simd reduction(+ : sum))
#define SIMD_SUMS(one, other) SIMD_TEXT(omp simd reduction(+ : one, other))
#define SIMD_MAX(most) SIMD_TEXT(omp simd reduction(max : most))
#define SIMD_TEXT(text) _Pragma(#text)

/* e^x to within 2 units in the last place, without a branch or a call, for loops. Below -87 it is e^-87, above 88 e^88.
 * x = n log 2 + r with |r| <= log(2) / 2: e^x = 2^n e^r, and e^r is Taylor's series up to r^7, whose error is below
 * 6e-9. */
static inline __attribute__((always_inline)) float vector_exp(float x) {
    const float to_integer = 0x1.8p23F;                               /* adding it rounds to a whole number */
    const float log2_high = 0x1.62e4p-1F, log2_low = 0x1.7f7d1cp-20F; /* log 2 in two parts: n * high is exact */
    x = x < -87.0F ? -87.0F : x;
    x = x > 88.0F ? 88.0F : x;
    float n = (x * 1.44269504F + to_integer) - to_integer;
    float r = (x - n * log2_high) - n * log2_low;
    float series = 1.0F / 5040;
    series = series * r + 1.0F / 720;
    series = series * r + 1.0F / 120;
    series = series * r + 1.0F / 24;
    series = series * r + 1.0F / 6;
    series = series * r + 0.5F;
    series = series * r + 1.0F;
    series = series * r + 1.0F;
    int32_t bits = ((int32_t)n + 127) * (1 << 23); /* of the float 2^n */
    float power;
    memcpy(&power, &bits, sizeof power);
    return series * power;
}

#endif
