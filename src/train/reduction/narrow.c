/* Conversions between wide and 16-bit floats. Written without branches, so that the compiler makes vectors of them; the
 * arithmetic is the same as in the reductions (comm/reduce/reduce_template.h), which round in the same way. */
#include "train/reduction/narrow.h"

#include <assert.h>
#include <string.h>

static inline uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t select(uint32_t condition, uint32_t yes, uint32_t no) {
    uint32_t mask = 0 - condition;
    return (yes & mask) | (no & ~mask);
}

/* The upper half of a float32, rounded by an addition that carries where it must (also into infinity). A NaN stays one
 * by its quiet bit. */
static inline uint16_t bfloat16_of(float value) {
    uint32_t bits = bits_of(value), is_nan = (bits & 0x7fffffff) > 0x7f800000;
    uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
    return (uint16_t)(select(is_nan, bits | 0x400000, rounded) >> 16);
}

static inline float of_bfloat16(uint16_t half) {
    return float_of((uint32_t)half << 16);
}

/* 5 bits of exponent (bias 15), 10 of fraction. Normal numbers: correct the bias and round as above. Below 2^-14:
 * adding 0.5, whose last bit is worth 2^-24 as float16's smallest denormal, lets the processor round. From 65520 on:
 * infinity, by the carry. */
static inline uint16_t float16_of(float value) {
    uint32_t bits = bits_of(value) & 0x7fffffff, sign = bits_of(value) >> 16 & 0x8000;
    uint32_t normal = (bits - (112U << 23) + 0xfff + (bits >> 13 & 1)) >> 13;
    uint32_t denormal = bits_of(float_of(bits) + 0.5F) - (126U << 23);
    uint32_t special = select(bits > 0x7f800000, 0x7e00, 0x7c00);
    uint32_t kept = select(bits < (113U << 23), denormal, normal);
    return (uint16_t)(select(bits >= (143U << 23), special, kept) | sign);
}

/* Denormals are the difference of 2^-14 * 1.fraction and 2^-14, which is exact. */
static inline float of_float16(uint16_t half) {
    uint32_t fields = (half & 0x7fffU) << 13, exponent = half & 0x7c00U;
    uint32_t normal = fields + (112U << 23), special = fields + (224U << 23);
    uint32_t denormal = bits_of(float_of(fields + (113U << 23)) - float_of(113U << 23));
    uint32_t bits = select(exponent == 0x7c00, special, select(exponent == 0, denormal, normal));
    return float_of(bits | (half & 0x8000U) << 16);
}

/* NOLINTBEGIN(bugprone-macro-parentheses): `wide` is a type */
#define DEFINE_LOOPS(half, wide)                                                                                       \
    static void narrow_##wide##_##half(uint16_t *restrict out, const wide *restrict in, size_t count) {                \
        for (size_t i = 0; i < count; i++) {                                                                           \
            out[i] = half##_of((float)in[i]);                                                                          \
        }                                                                                                              \
    }                                                                                                                  \
    static void widen_##half##_##wide(wide *restrict out, const uint16_t *restrict in, size_t count) {                 \
        for (size_t i = 0; i < count; i++) {                                                                           \
            out[i] = (wide)of_##half(in[i]);                                                                           \
        }                                                                                                              \
    }
/* NOLINTEND(bugprone-macro-parentheses) */
DEFINE_LOOPS(bfloat16, float)
DEFINE_LOOPS(bfloat16, double)
DEFINE_LOOPS(float16, float)
DEFINE_LOOPS(float16, double)

void narrow_floats(enum muster_type to, uint16_t *out, enum muster_type from, const void *in, size_t count) {
    assert((to == MUSTER_BFLOAT16 || to == MUSTER_FLOAT16) && (from == MUSTER_FLOAT32 || from == MUSTER_FLOAT64));
    if (from == MUSTER_FLOAT32) {
        (to == MUSTER_BFLOAT16 ? narrow_float_bfloat16 : narrow_float_float16)(out, in, count);
    } else {
        (to == MUSTER_BFLOAT16 ? narrow_double_bfloat16 : narrow_double_float16)(out, in, count);
    }
}

void widen_floats(enum muster_type to, void *out, enum muster_type from, const uint16_t *in, size_t count) {
    assert((from == MUSTER_BFLOAT16 || from == MUSTER_FLOAT16) && (to == MUSTER_FLOAT32 || to == MUSTER_FLOAT64));
    if (to == MUSTER_FLOAT32) {
        (from == MUSTER_BFLOAT16 ? widen_bfloat16_float : widen_float16_float)(out, in, count);
    } else {
        (from == MUSTER_BFLOAT16 ? widen_bfloat16_double : widen_float16_double)(out, in, count);
    }
}
