/* See exact_squares.h. */
#include "train/optimizers/exact_squares.h"

#include <math.h>
#include <string.h>

enum {
    EXPONENTS = 256, /* of float32, biased; the last one is of infinities and NaNs */
    MANTISSA_BITS = 23,
    LIMB_BITS = 32,
    TABLES = 4,      /* neighbours mostly have the same exponent: additions need not wait for each other */
    BLOCK = 1 << 17, /* squares have 48 bits: 2^16 of them fit into 64, and a table gets half as many */
    UNIT = -298,     /* the exponent of the unit: two units of float32, 2^-149 */
};
_Static_assert(BLOCK / TABLES < 1 << (64 - 48) && BLOCK % TABLES == 0, "a table's numbers overflow");

struct tables {
    uint64_t sums[TABLES][EXPONENTS]; /* of the squares of mantissas */
};

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static uint32_t exponent_of(uint32_t bits) {
    return bits >> MANTISSA_BITS & (EXPONENTS - 1);
}

static void add_to_table(uint64_t sums[EXPONENTS], float value) {
    uint32_t bits = bits_of(value), exponent = exponent_of(bits);
    uint64_t mantissa = (bits & ((1U << MANTISSA_BITS) - 1)) | (uint32_t)(exponent > 0) << MANTISSA_BITS;
    sums[exponent] += mantissa * mantissa;
}

static void carry(uint64_t limbs[EXACT_LIMBS]) {
    for (size_t i = 0; i + 1 < EXACT_LIMBS; i++) {
        limbs[i + 1] += limbs[i] >> LIMB_BITS;
        limbs[i] &= UINT32_MAX;
    }
}

/* Adds `number` times the square of the lowest mantissa bit of that exponent. */
static void add_to_limbs(uint64_t limbs[EXACT_LIMBS], uint32_t exponent, uint64_t number) {
    uint32_t place = 2 * (exponent > 0 ? exponent - 1 : 0); /* 0 is of subnormals, whose scale is that of 1 */
    uint64_t *to = limbs + place / LIMB_BITS;
    uint32_t shift = place % LIMB_BITS;
    uint64_t low = (number & UINT32_MAX) << shift, high = (number >> LIMB_BITS) << shift;
    to[0] += low & UINT32_MAX;
    to[1] += (low >> LIMB_BITS) + (high & UINT32_MAX);
    to[2] += high >> LIMB_BITS;
}

/* Rare, so it may take its time. */
static void count_specials(struct exact_squares *sum, const float *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        sum->infinite += isinf(values[i]) != 0;
        sum->undefined += isnan(values[i]) != 0;
    }
}

static void add_block(struct exact_squares *sum, const float *values, size_t count) {
    struct tables tables = {0};
    size_t i = 0;
    for (; i + TABLES <= count; i += TABLES) {
        for (size_t t = 0; t < TABLES; t++) {
            add_to_table(tables.sums[t], values[i + t]);
        }
    }
    for (; i < count; i++) {
        add_to_table(tables.sums[0], values[i]);
    }
    for (size_t t = 0; t < TABLES; t++) {
        for (uint32_t exponent = 0; exponent < EXPONENTS - 1; exponent++) {
            if (tables.sums[t][exponent] > 0) {
                add_to_limbs(sum->limbs, exponent, tables.sums[t][exponent]);
            }
        }
    }
    carry(sum->limbs);
    uint64_t specials = 0;
    for (size_t t = 0; t < TABLES; t++) {
        specials |= tables.sums[t][EXPONENTS - 1];
    }
    if (specials > 0) {
        count_specials(sum, values, count);
    }
}

void exact_squares_add(struct exact_squares *sum, const float *values, size_t count) {
    for (size_t at = 0; at < count; at += BLOCK) {
        add_block(sum, values + at, count - at < BLOCK ? count - at : BLOCK);
    }
}

double exact_squares_value(const struct exact_squares *sum) {
    struct exact_squares carried = *sum;
    double value = 0;
    if (sum->undefined > 0) {
        return NAN;
    }
    if (sum->infinite > 0) {
        return INFINITY;
    }
    carry(carried.limbs);
    for (size_t i = 0; i < EXACT_LIMBS; i++) { /* the lowest first: what is rounded off is small */
        value += ldexp((double)carried.limbs[i], (int)i * LIMB_BITS + UNIT);
    }
    return value;
}
