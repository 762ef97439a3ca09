/* The arithmetic of the double of NCCL; see nccl_double_test_support.h. Every operation rounds to the type. */
#include "comm/nccl/nccl_double_test_support.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct value {
    uint64_t whole;
    double real;
};

size_t nccl_double_type_bytes(unsigned type) {
    static const size_t bytes[] = {
        [NCCL_INT8] = 1,   [NCCL_UINT8] = 1,   [NCCL_INT32] = 4,   [NCCL_UINT32] = 4,  [NCCL_INT64] = 8,
        [NCCL_UINT64] = 8, [NCCL_FLOAT16] = 2, [NCCL_FLOAT32] = 4, [NCCL_FLOAT64] = 8, [NCCL_BFLOAT16] = 2};
    return type < sizeof bytes / sizeof *bytes ? bytes[type] : 0;
}

static bool is_float(unsigned type) {
    return type >= NCCL_FLOAT16;
}

static bool is_signed(unsigned type) {
    return type == NCCL_INT8 || type == NCCL_INT32 || type == NCCL_INT64;
}

static double real_of_float32(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

static uint32_t float32_of(double real) {
    float value = (float)real;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* A number of 16 bits with `fraction` bits of fraction. */
static double real_of_16(uint16_t bits, int fraction) {
    int exponent_bits = 15 - fraction, bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = bits >> fraction & ((1 << exponent_bits) - 1);
    double part = ldexp((double)(bits & ((1 << fraction) - 1)), -fraction);
    double size = exponent == (1 << exponent_bits) - 1 ? (part > 0 ? (double)NAN : (double)INFINITY)
                  : exponent == 0                      ? ldexp(part, 1 - bias)
                                                       : ldexp(1 + part, exponent - bias);
    return bits >> 15 ? -size : size;
}

/* Nearest, ties to even, by the rule of rint() on the scaled number. */
static uint16_t bits_16_of(double real, int fraction) {
    int exponent_bits = 15 - fraction, bias = (1 << (exponent_bits - 1)) - 1, exponent = 0;
    uint16_t sign = signbit(real) ? 0x8000 : 0, infinite = (uint16_t)(((1 << exponent_bits) - 1) << fraction);
    double size = fabs(real);
    if (isnan(real)) {
        return (uint16_t)(infinite | 1 << (fraction - 1));
    }
    (void)frexp(size, &exponent);
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    double units = rint(ldexp(size, fraction - exponent)); /* of the last place */
    if (isinf(real) || units == 0) {
        return (uint16_t)(sign | (units == 0 && !isinf(real) ? 0 : infinite));
    }
    if (units >= ldexp(1, fraction + 1)) {
        units /= 2;
        exponent++;
    }
    bool is_normal = units >= ldexp(1, fraction);
    if (is_normal && exponent > bias) {
        return (uint16_t)(sign | infinite);
    }
    unsigned low = (unsigned)units & ((1u << fraction) - 1);
    return (uint16_t)(sign | (is_normal ? (unsigned)(exponent + bias) << fraction : 0u) | low);
}

static struct value load(unsigned type, const void *data, size_t i) {
    uint64_t bits = 0;
    size_t width = nccl_double_type_bytes(type);
    memcpy(&bits, (const char *)data + i * width, width);
    switch (type) {
    case NCCL_INT8:
        return (struct value){.whole = (uint64_t)(int64_t)(int8_t)bits};
    case NCCL_INT32:
        return (struct value){.whole = (uint64_t)(int64_t)(int32_t)bits};
    case NCCL_FLOAT16:
        return (struct value){.real = real_of_16((uint16_t)bits, 10)};
    case NCCL_BFLOAT16:
        return (struct value){.real = real_of_16((uint16_t)bits, 7)};
    case NCCL_FLOAT32:
        return (struct value){.real = real_of_float32((uint32_t)bits)};
    case NCCL_FLOAT64: {
        struct value value = {0};
        memcpy(&value.real, &bits, sizeof value.real);
        return value;
    }
    default:
        return (struct value){.whole = bits};
    }
}

static void store(unsigned type, void *data, size_t i, struct value value) {
    uint64_t bits = value.whole;
    size_t width = nccl_double_type_bytes(type);
    if (type == NCCL_FLOAT16 || type == NCCL_BFLOAT16) {
        bits = bits_16_of(value.real, type == NCCL_FLOAT16 ? 10 : 7);
    } else if (type == NCCL_FLOAT32) {
        bits = float32_of(value.real);
    } else if (type == NCCL_FLOAT64) {
        memcpy(&bits, &value.real, sizeof bits);
    }
    memcpy((char *)data + i * width, &bits, width);
}

static struct value combine(unsigned type, unsigned op, struct value a, struct value b) {
    bool is_less = is_signed(type) ? (int64_t)a.whole < (int64_t)b.whole : a.whole < b.whole;
    switch (op) {
    case NCCL_PROD:
        return (struct value){a.whole * b.whole, a.real * b.real};
    case NCCL_MIN:
        return (struct value){is_less ? a.whole : b.whole, fmin(a.real, b.real)};
    case NCCL_MAX:
        return (struct value){is_less ? b.whole : a.whole, fmax(a.real, b.real)};
    default: /* sum, average, and sum after a multiplication */
        return (struct value){a.whole + b.whole, a.real + b.real};
    }
}

void nccl_double_combine(unsigned type, unsigned op, void *into, const void *with, size_t count) {
    for (size_t i = 0; i < count; i++) {
        store(type, into, i, combine(type, op, load(type, into, i), load(type, with, i)));
    }
}

void nccl_double_before(unsigned type, unsigned op, const double *scalar, unsigned size, void *data, size_t count) {
    bool is_average = op == NCCL_AVG && is_float(type);
    double factor = scalar ? *scalar : 1.0 / size;
    unsigned char rounded[8];
    if (!scalar && !is_average) {
        return;
    }
    store(type, rounded, 0, (struct value){(uint64_t)(int64_t)factor, factor});
    struct value by = load(type, rounded, 0);
    for (size_t i = 0; i < count; i++) {
        struct value value = load(type, data, i);
        store(type, data, i, (struct value){value.whole * by.whole, value.real * by.real});
    }
}

void nccl_double_after(unsigned type, unsigned op, unsigned size, void *data, size_t count) {
    for (size_t i = 0; op == NCCL_AVG && !is_float(type) && i < count; i++) {
        struct value sum = load(type, data, i);
        uint64_t quotient = is_signed(type) ? (uint64_t)((int64_t)sum.whole / (int64_t)size) : sum.whole / size;
        store(type, data, i, (struct value){.whole = quotient});
    }
}
