/* Patterns of whole numbers; see bench_data.h. */
#include "cli/bench/bench_data.h"

#include <stdbool.h>
#include <string.h>

#include "train/reduction/narrow.h"

/* 1 to 7; of a product 1 and 2. */
static int64_t value_of(enum muster_reduction reduction, uint32_t rank, uint32_t block, size_t i) {
    uint64_t mixed = 3 * (uint64_t)rank + 5 * (uint64_t)block + i;
    return 1 + (int64_t)(reduction == MUSTER_OP_PRODUCT ? mixed % 2 : mixed % 7);
}

/* Stores a whole number (or for a float type a fraction) as an element. */
static void put(struct bench_pattern *pattern, size_t i, int64_t whole, double fraction) {
    float single = (float)fraction;
    uint16_t narrow = 0;
    switch (pattern->type) {
    case MUSTER_FLOAT64:
        memcpy(&pattern->elements[i], &fraction, sizeof fraction);
        break;
    case MUSTER_FLOAT32:
        memcpy(&pattern->elements[i], &single, sizeof single);
        break;
    case MUSTER_FLOAT16:
    case MUSTER_BFLOAT16:
        narrow_floats(pattern->type, &narrow, MUSTER_FLOAT32, &single, 1);
        memcpy(&pattern->elements[i], &narrow, sizeof narrow);
        break;
    default: { /* integers wrap around: their low bytes count */
        uint64_t bits = (uint64_t)whole;
        uint8_t bytes[8];
        size_t size = muster_type_bytes(pattern->type);
        for (size_t k = 0; k < size; k++) {
            bytes[__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? k : size - 1 - k] = (uint8_t)(bits >> (8 * k));
        }
        memcpy(&pattern->elements[i], bytes, size);
    }
    }
}

/* The low bytes of `value`, as the type reads them. */
static int64_t wrapped(enum muster_type type, int64_t value) {
    switch (type) {
    case MUSTER_INT8:
        return (int8_t)value;
    case MUSTER_UINT8:
        return (uint8_t)value;
    case MUSTER_INT16:
        return (int16_t)value;
    case MUSTER_INT32:
        return (int32_t)value;
    case MUSTER_UINT16:
        return (uint16_t)value;
    case MUSTER_UINT32:
        return (uint32_t)value;
    default:
        return value;
    }
}

static int64_t combine(enum muster_reduction reduction, int64_t a, int64_t b) {
    switch (reduction) {
    case MUSTER_OP_PRODUCT:
        return (int64_t)((uint64_t)a * (uint64_t)b);
    case MUSTER_OP_MIN:
        return a < b ? a : b;
    case MUSTER_OP_MAX:
        return a > b ? a : b;
    case MUSTER_OP_BIT_AND:
        return a & b;
    case MUSTER_OP_BIT_OR:
        return a | b;
    case MUSTER_OP_BIT_XOR:
        return a ^ b;
    default:
        return a + b;
    }
}

void bench_pattern_sent(struct bench_pattern *out, enum muster_type type, enum muster_reduction reduction,
                        uint32_t rank, uint32_t block) {
    *out = (struct bench_pattern){.type = type};
    for (size_t i = 0; i < BENCH_PERIOD; i++) {
        int64_t value = value_of(reduction, rank, block, i);
        put(out, i, value, (double)value);
    }
}

void bench_pattern_reduced(struct bench_pattern *out, enum muster_type type, enum muster_reduction reduction,
                           uint32_t ranks, uint32_t block) {
    *out = (struct bench_pattern){.type = type};
    for (size_t i = 0; i < BENCH_PERIOD; i++) {
        int64_t whole = value_of(reduction, 0, block, i);
        double product = (double)whole; /* which may not fit an integer */
        for (uint32_t rank = 1; rank < ranks; rank++) {
            int64_t value = value_of(reduction, rank, block, i);
            whole = combine(reduction, whole, value);
            product *= (double)value;
        }
        bool averages = reduction == MUSTER_OP_AVERAGE;
        double fraction = reduction == MUSTER_OP_PRODUCT ? product : (double)whole / (averages ? ranks : 1);
        put(out, i, averages ? wrapped(type, whole) / (int64_t)ranks : whole, fraction);
    }
}

void bench_pattern_fill(const struct bench_pattern *pattern, void *buffer, size_t count) {
    size_t size = muster_type_bytes(pattern->type);
    uint8_t *bytes = buffer;
    for (size_t i = 0; i < count; i++) {
        memcpy(bytes + i * size, &pattern->elements[i % BENCH_PERIOD], size);
    }
}

size_t bench_pattern_wrong(const struct bench_pattern *pattern, const void *buffer, size_t count) {
    size_t size = muster_type_bytes(pattern->type), wrong = 0;
    const uint8_t *bytes = buffer;
    for (size_t i = 0; i < count; i++) {
        wrong += memcmp(bytes + i * size, &pattern->elements[i % BENCH_PERIOD], size) != 0;
    }
    return wrong;
}
