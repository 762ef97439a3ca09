/* Reductions of every type against a plain reference: counts, alignments, numbers of inputs and outputs, in place,
 * NaNs, denormals, every 16-bit float, and the same bits from all vector widths and splits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/reduce/reduce.h"

enum { COUNT_MAX = 700, ELEMENT_BYTES_MAX = 8, SHIFTS = 9, INS_MAX = 9, OUTS_MAX = 4, GUARD = 0x5a, LINE_BYTES = 64 };

static const enum muster_type all_types[] = {
#define TYPE_ENTRY(name, value, bytes, text) name,
    MUSTER_TYPE_TABLE(TYPE_ENTRY)
#undef TYPE_ENTRY
};

static uint64_t random_state = UINT64_C(0x2545f4914f6cdd1d);

static uint64_t random_next(void) {
    random_state ^= random_state >> 12;
    random_state ^= random_state << 25;
    random_state ^= random_state >> 27;
    return random_state * UINT64_C(0x9e3779b97f4a7c15);
}

/* ---- the reference: one element, in double and 64-bit integers ---- */

/* An IEEE 754 number of `fraction_bits` and `exponent_bits`, by the definition. */
static double decode(uint32_t bits, int exponent_bits, int fraction_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(bits >> fraction_bits) & ((1 << exponent_bits) - 1);
    double fraction = bits & ((1U << fraction_bits) - 1);
    double sign = bits >> (exponent_bits + fraction_bits) & 1 ? -1.0 : 1.0;
    if (exponent == (1 << exponent_bits) - 1) {
        return fraction != 0 ? (double)NAN : sign * (double)INFINITY;
    }
    return exponent == 0 ? sign * ldexp(fraction, 1 - bias - fraction_bits)
                         : sign * ldexp(fraction + (double)(1U << fraction_bits), exponent - bias - fraction_bits);
}

/* To nearest even: rint() of the number counted in units of its last place. */
static uint32_t encode(float value, int exponent_bits, int fraction_bits) {
    int bias = (1 << (exponent_bits - 1)) - 1, exponent = 0;
    uint32_t sign = signbit(value) ? 1U << (exponent_bits + fraction_bits) : 0;
    uint32_t infinity = ((1U << exponent_bits) - 1) << fraction_bits;
    double size = fabs((double)value);
    if (size == 0) {
        return sign;
    }
    if (isnan(value) || isinf(value)) {
        return sign | infinity | (isnan(value) ? 1U << (fraction_bits - 1) : 0);
    }
    (void)frexp(size, &exponent);
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    uint64_t units = (uint64_t)rint(ldexp(size, fraction_bits - exponent));
    /* The hidden bit adds one to the exponent, and so does a carry out of the fraction. */
    uint64_t bits = ((uint64_t)(exponent + bias - 1) << fraction_bits) + units;
    return sign | (uint32_t)(bits > infinity ? infinity : bits);
}

struct number {
    double real; /* floats, and float32 sums of 16-bit ones */
    uint64_t whole;
};

static bool is_float(enum muster_type type) {
    return type >= MUSTER_FLOAT16 && type <= MUSTER_FLOAT64;
}

static struct number element_load(enum muster_type type, const unsigned char *at) {
    union {
        int8_t i8;
        uint8_t u8;
        int16_t i16;
        uint16_t u16;
        int32_t i32;
        uint32_t u32;
        int64_t i64;
        uint64_t u64;
        float f32;
        double f64;
    } raw;
    memcpy(&raw, at, muster_type_bytes(type));
    switch (type) {
    case MUSTER_INT8:
        return (struct number){.whole = (uint64_t)raw.i8};
    case MUSTER_UINT8:
        return (struct number){.whole = raw.u8};
    case MUSTER_INT16:
        return (struct number){.whole = (uint64_t)raw.i16};
    case MUSTER_UINT16:
        return (struct number){.whole = raw.u16};
    case MUSTER_UINT32:
        return (struct number){.whole = raw.u32};
    case MUSTER_UINT64:
        return (struct number){.whole = raw.u64};
    case MUSTER_INT32:
        return (struct number){.whole = (uint64_t)raw.i32};
    case MUSTER_INT64:
        return (struct number){.whole = (uint64_t)raw.i64};
    case MUSTER_FLOAT16:
        return (struct number){.real = decode(raw.u16, 5, 10)};
    case MUSTER_BFLOAT16:
        return (struct number){.real = decode(raw.u16, 8, 7)};
    case MUSTER_FLOAT32:
        return (struct number){.real = (double)raw.f32};
    default:
        return (struct number){.real = raw.f64};
    }
}

static void element_store(enum muster_type type, struct number number, unsigned char *at) {
    uint16_t half;
    float single = (float)number.real;
    switch (type) {
    case MUSTER_FLOAT16:
    case MUSTER_BFLOAT16:
        half = (uint16_t)(type == MUSTER_FLOAT16 ? encode(single, 5, 10) : encode(single, 8, 7));
        memcpy(at, &half, sizeof half);
        break;
    case MUSTER_FLOAT32:
        memcpy(at, &single, sizeof single);
        break;
    case MUSTER_FLOAT64:
        memcpy(at, &number.real, sizeof number.real);
        break;
    default:
        for (size_t byte = 0; byte < muster_type_bytes(type); byte++) {
            at[byte] = (unsigned char)(number.whole >> 8 * byte); /* little endian, as all we test on */
        }
    }
}

/* What a sum becomes in a register of its type. */
static struct number narrowed(enum muster_type type, struct number number) {
    unsigned char bytes[ELEMENT_BYTES_MAX];
    if (type == MUSTER_FLOAT64) {
        return number;
    }
    if (is_float(type)) {
        return (struct number){.real = (double)(float)number.real};
    }
    element_store(type, number, bytes);
    return element_load(type, bytes);
}

static bool is_less(enum muster_type type, uint64_t a, uint64_t b) {
    return type == MUSTER_UINT64 ? a < b : (int64_t)a < (int64_t)b;
}

static struct number combine(enum muster_type type, enum muster_reduction reduction, struct number a, struct number b) {
    bool real = is_float(type);
    struct number result = a;
    switch (reduction) {
    case MUSTER_OP_SUM:
    case MUSTER_OP_AVERAGE: /* double arithmetic of floats, rounded to float, equals float arithmetic */
        result = (struct number){.real = a.real + b.real, .whole = a.whole + b.whole};
        break;
    case MUSTER_OP_PRODUCT:
        result = (struct number){.real = a.real * b.real, .whole = a.whole * b.whole};
        break;
    case MUSTER_OP_MIN:
        result = real ? (isnan(a.real) || a.real < b.real ? a : b) : is_less(type, a.whole, b.whole) ? a : b;
        break;
    case MUSTER_OP_MAX:
        result = real ? (isnan(a.real) || a.real > b.real ? a : b) : is_less(type, b.whole, a.whole) ? a : b;
        break;
    case MUSTER_OP_BIT_AND:
        result.whole = a.whole & b.whole;
        break;
    case MUSTER_OP_BIT_OR:
        result.whole = a.whole | b.whole;
        break;
    default:
        result.whole = a.whole ^ b.whole;
    }
    return narrowed(type, result);
}

static struct number divided(enum muster_type type, struct number sum, uint32_t divisor) {
    struct number result = {.real = sum.real / divisor, .whole = (uint64_t)((int64_t)sum.whole / (int64_t)divisor)};
    result.whole = type == MUSTER_UINT64 ? sum.whole / divisor : result.whole;
    return narrowed(type, result);
}

static bool is_same(enum muster_type type, const unsigned char *got, const unsigned char *expected) {
    if (is_float(type) && isnan(element_load(type, expected).real)) {
        return isnan(element_load(type, got).real);
    }
    return memcmp(got, expected, muster_type_bytes(type)) == 0;
}

/* ---- inputs ---- */

/* Any bits at all; for floats half of them near 1, so that sums meet rounding rather than NaN and overflow, and some
 * of the values where conversions go wrong. */
static void element_random(enum muster_type type, unsigned char *at) {
    static const double telling[] = {0.0,     -0.0,    INFINITY, -INFINITY,      NAN,      65504.0,  65519.99,
                                     65520.0, 0x1p-14, 0x1p-24,  0x1.8p-25,      0x1p-149, 0x1p-127, 0x1.fep127,
                                     -1.0,    2049.0,  257.0,    0x1.ffffffp127, 0x1p-1074};
    uint64_t bits = random_next(), kind = random_next() >> 60;
    struct number number = {.whole = bits};
    if (is_float(type) && kind < 8) {
        number.real = ((double)(bits >> 11) * 0x1p-53 - 0.5) * 4.0;
    } else if (is_float(type) && kind < 11) {
        number.real = telling[bits % (sizeof telling / sizeof *telling)];
    } else {
        memcpy(at, &bits, muster_type_bytes(type));
        return;
    }
    element_store(type, number, at);
}

struct arena { /* one buffer with room for a shift and guards on both sides */
    unsigned char bytes[LINE_BYTES + SHIFTS + COUNT_MAX * ELEMENT_BYTES_MAX + LINE_BYTES];
};

static struct arena ins[INS_MAX], outs[OUTS_MAX], reference;

static unsigned char *begin_of(struct arena *arena, size_t shift) {
    return arena->bytes + LINE_BYTES + shift;
}

static void fill(enum muster_type type, struct arena *arena, size_t shift, size_t count) {
    memset(arena, GUARD, sizeof *arena);
    for (size_t i = 0; i < count; i++) {
        element_random(type, begin_of(arena, shift) + i * muster_type_bytes(type));
    }
}

static void check(enum muster_type type, enum muster_reduction reduction, const char *what, struct arena *got,
                  size_t shift, size_t count) {
    size_t bytes = muster_type_bytes(type);
    for (size_t i = 0; i < count; i++) {
        const unsigned char *a = begin_of(got, shift) + i * bytes, *b = begin_of(&reference, 0) + i * bytes;
        if (!is_same(type, a, b)) {
            fail_msg("%s of %s, %s: element %zu of %zu, shift %zu: got %g (%llx), expected %g (%llx)",
                     muster_reduction_name(reduction), muster_type_name(type), what, i, count, shift,
                     element_load(type, a).real, (unsigned long long)element_load(type, a).whole,
                     element_load(type, b).real, (unsigned long long)element_load(type, b).whole);
        }
    }
    for (size_t i = 0; i < LINE_BYTES; i++) {
        assert_int_equal(begin_of(got, shift)[-1 - (ptrdiff_t)i], GUARD);
        assert_int_equal(begin_of(got, shift)[count * bytes + i], GUARD);
    }
}

static void reference_many(enum muster_type type, enum muster_reduction reduction, const size_t *shifts,
                           size_t in_count, size_t count, bool finish) {
    size_t bytes = muster_type_bytes(type);
    for (size_t i = 0; i < count; i++) {
        struct number sum = element_load(type, begin_of(&ins[0], shifts[0]) + i * bytes);
        for (size_t k = 1; k < in_count; k++) {
            sum = combine(type, reduction, sum, element_load(type, begin_of(&ins[k], shifts[k]) + i * bytes));
        }
        if (finish && reduction == MUSTER_OP_AVERAGE) {
            sum = divided(type, sum, (uint32_t)in_count);
        }
        element_store(type, sum, begin_of(&reference, 0) + i * bytes);
    }
}

/* ---- the tests; each runs once per width that this processor has ---- */

static void pair_case(enum muster_type type, enum muster_reduction reduction, size_t count, size_t shift) {
    size_t shifts[] = {shift, (shift * 5 + 3) % SHIFTS};
    fill(type, &ins[0], shifts[0], count);
    fill(type, &ins[1], shifts[1], count);
    reference_many(type, reduction, shifts, 2, count, false);
    void *a = begin_of(&ins[0], shifts[0]), *b = begin_of(&ins[1], shifts[1]);
    memset(&outs[0], GUARD, sizeof outs[0]);
    reduce_pair(type, reduction, begin_of(&outs[0], SHIFTS - 1 - shift), a, b, count);
    check(type, reduction, "pair", &outs[0], SHIFTS - 1 - shift, count);
    outs[1] = ins[0];
    reduce_pair(type, reduction, begin_of(&outs[1], shifts[0]), begin_of(&outs[1], shifts[0]), b, count);
    check(type, reduction, "pair into the first", &outs[1], shifts[0], count);
    reduce_pair(type, reduction, b, a, b, count);
    check(type, reduction, "pair into the second", &ins[1], shifts[1], count);
}

static void pairs_are_right(void **state) {
    (void)state;
    for (size_t t = 0; t < MUSTER_TYPE_COUNT; t++) {
        for (int r = 0; r < MUSTER_REDUCTION_COUNT; r++) {
            enum muster_reduction reduction = (enum muster_reduction)r;
            for (size_t count = 0; reduce_is_defined(all_types[t], reduction) && count <= 67; count++) {
                for (size_t shift = 0; shift < SHIFTS; shift++) {
                    pair_case(all_types[t], reduction, count, shift);
                }
            }
        }
    }
}

static void many_case(enum muster_type type, enum muster_reduction reduction, size_t in_count, size_t out_count,
                      size_t count, size_t in_place) {
    size_t shifts[INS_MAX];
    const void *in[INS_MAX];
    void *out[OUTS_MAX];
    for (size_t k = 0; k < in_count; k++) {
        shifts[k] = random_next() % SHIFTS;
        fill(type, &ins[k], shifts[k], count);
        in[k] = begin_of(&ins[k], shifts[k]);
    }
    reference_many(type, reduction, shifts, in_count, count, true);
    for (size_t k = 0; k < out_count; k++) {
        memset(&outs[k], GUARD, sizeof outs[k]);
        out[k] = k < in_place ? begin_of(&ins[k], shifts[k]) : begin_of(&outs[k], k);
    }
    reduce_many(type, reduction, out, out_count, in, in_count, count);
    for (size_t k = 0; k < out_count; k++) {
        check(type, reduction, k < in_place ? "many in place" : "many", k < in_place ? &ins[k] : &outs[k],
              k < in_place ? shifts[k] : k, count);
    }
}

static void many_inputs_and_outputs_are_right(void **state) {
    (void)state;
    static const size_t counts[] = {0, 1, 3, 16, 31, 67, 260, COUNT_MAX};
    for (size_t t = 0; t < MUSTER_TYPE_COUNT; t++) {
        for (int r = 0; r < MUSTER_REDUCTION_COUNT; r++) {
            for (size_t n = 1; reduce_is_defined(all_types[t], (enum muster_reduction)r) && n <= INS_MAX; n++) {
                for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
                    size_t out_count = 1 + random_next() % OUTS_MAX;
                    size_t place = out_count < n ? out_count : n;
                    many_case(all_types[t], (enum muster_reduction)r, n, out_count, counts[c],
                              random_next() % (place + 1));
                }
            }
        }
    }
}

static void averages_are_finished(void **state) {
    (void)state;
    for (size_t t = 0; t < MUSTER_TYPE_COUNT; t++) {
        enum muster_type type = all_types[t];
        for (uint32_t divisor = 1; divisor < 70000; divisor = divisor * 3 + 1) {
            size_t shift = divisor % SHIFTS;
            fill(type, &ins[0], shift, 67);
            outs[0] = ins[0];
            for (size_t i = 0; i < 67; i++) {
                size_t at = i * muster_type_bytes(type);
                element_store(type, divided(type, element_load(type, begin_of(&ins[0], shift) + at), divisor),
                              begin_of(&reference, 0) + at);
            }
            reduce_finish(type, MUSTER_OP_AVERAGE, begin_of(&outs[0], shift), 67, divisor);
            check(type, MUSTER_OP_AVERAGE, "finish", &outs[0], shift, 67);
            reduce_finish(type, MUSTER_OP_SUM, begin_of(&ins[0], shift), 67, divisor);
        }
    }
}

/* Average of one changes no number: every one of the 65536 comes back; products reach every rounding, and denormals. */
static void every_16_bit_float_is_converted(void **state) {
    (void)state;
    static uint16_t all[65536], got[65536], factor[65536];
    for (int type = MUSTER_FLOAT16; type <= MUSTER_BFLOAT16; type++) {
        int exponent_bits = type == MUSTER_FLOAT16 ? 5 : 8, fraction_bits = 15 - exponent_bits;
        for (size_t i = 0; i < 65536; i++) {
            all[i] = got[i] = (uint16_t)i;
        }
        reduce_finish((enum muster_type)type, MUSTER_OP_AVERAGE, got, 65536, 1);
        for (size_t i = 0; i < 65536; i++) {
            bool is_nan = isnan(decode((uint32_t)i, exponent_bits, fraction_bits));
            /* A signalling NaN comes back quiet, with its sign and the rest of its bits. */
            assert_int_equal(got[i], is_nan ? i | 1U << (fraction_bits - 1) : i);
        }
        for (int round = 0; round < 16; round++) {
            uint16_t with = (uint16_t)random_next();
            for (size_t i = 0; i < 65536; i++) {
                factor[i] = with;
            }
            reduce_pair((enum muster_type)type, MUSTER_OP_PRODUCT, got, all, factor, 65536);
            for (size_t i = 0; i < 65536; i++) {
                float a = (float)decode((uint32_t)i, exponent_bits, fraction_bits);
                uint16_t expected = (uint16_t)encode(a * (float)decode(with, exponent_bits, fraction_bits),
                                                     exponent_bits, fraction_bits);
                if (!is_same((enum muster_type)type, (unsigned char *)&got[i], (unsigned char *)&expected)) {
                    fail_msg("%s: %zx * %x: got %x, expected %x", muster_type_name((enum muster_type)type), i, with,
                             got[i], expected);
                }
            }
        }
    }
}

/* A call on the whole, and calls on pieces of it cut anywhere. */
static void splits_do_not_matter(void **state) {
    (void)state;
    for (size_t t = 0; t < MUSTER_TYPE_COUNT; t++) {
        for (int r = 0; r < MUSTER_REDUCTION_COUNT; r++) {
            enum muster_type type = all_types[t];
            enum muster_reduction reduction = (enum muster_reduction)r;
            size_t bytes = muster_type_bytes(type);
            for (int round = 0; reduce_is_defined(type, reduction) && round < 40; round++) {
                fill(type, &ins[0], 0, COUNT_MAX);
                fill(type, &ins[1], 1, COUNT_MAX);
                const void *in[] = {begin_of(&ins[0], 0), begin_of(&ins[1], 1), begin_of(&ins[0], 0)};
                size_t in_count = 2 + random_next() % 2;
                reduce_many(type, reduction, (void *[]){begin_of(&outs[0], 0)}, 1, in, in_count, COUNT_MAX);
                for (size_t from = 0, piece; from < COUNT_MAX; from += piece) {
                    piece = 1 + random_next() % 90;
                    piece = piece > COUNT_MAX - from ? COUNT_MAX - from : piece;
                    const void *part[3];
                    for (size_t k = 0; k < in_count; k++) {
                        part[k] = (const char *)in[k] + from * bytes;
                    }
                    reduce_many(type, reduction, (void *[]){begin_of(&outs[1], 2) + from * bytes}, 1, part, in_count,
                                piece);
                }
                memcpy(begin_of(&reference, 0), begin_of(&outs[0], 0), COUNT_MAX * bytes);
                memset(&outs[2], GUARD, sizeof outs[2]);
                memcpy(begin_of(&outs[2], 2), begin_of(&outs[1], 2), COUNT_MAX * bytes);
                check(type, reduction, "in pieces", &outs[2], 2, COUNT_MAX);
            }
        }
    }
}

/* Large enough for stores past the caches: as in pieces that are not. */
static void large_calls_are_right(void **state) {
    (void)state;
    enum { LARGE_BYTES = (8 << 20) + 4096, PIECE_COUNT = 1000, BUFFERS = 6 };
    unsigned char *buffers[BUFFERS];
    for (size_t k = 0; k < BUFFERS; k++) {
        buffers[k] = malloc(LARGE_BYTES + SHIFTS);
        assert_non_null(buffers[k]);
        for (size_t i = 0; i + 1 < LARGE_BYTES + SHIFTS; i += 2) { /* any bits that are no NaN in any type */
            uint16_t bits = (uint16_t)(random_next() >> 20 & 0xbfff);
            memcpy(buffers[k] + i, &bits, sizeof bits);
        }
    }
    for (int type = MUSTER_FLOAT16; type <= MUSTER_FLOAT64; type++) {
        for (size_t shift = 0; shift < 3; shift++) { /* aligned, alike, and not alike */
            size_t bytes = muster_type_bytes((enum muster_type)type), count = LARGE_BYTES / bytes,
                   at = shift > 0 ? bytes : 0;
            enum muster_reduction reduction = shift == 1 ? MUSTER_OP_AVERAGE : MUSTER_OP_SUM;
            const void *in[] = {buffers[0], buffers[1]};
            void *out[] = {buffers[2] + at, buffers[3] + (shift == 2 ? 0 : at)};
            reduce_many((enum muster_type)type, reduction, out, 2, in, 2, count);
            for (size_t from = 0; from < count; from += PIECE_COUNT) {
                size_t piece = count - from < PIECE_COUNT ? count - from : PIECE_COUNT;
                const void *part[] = {buffers[0] + from * bytes, buffers[1] + from * bytes};
                reduce_many((enum muster_type)type, reduction, (void *[]){buffers[4]}, 1, part, 2, piece);
                assert_memory_equal((unsigned char *)out[0] + from * bytes, buffers[4], piece * bytes);
                assert_memory_equal((unsigned char *)out[1] + from * bytes, buffers[4], piece * bytes);
            }
        }
    }
    for (size_t k = 0; k < BUFFERS; k++) {
        free(buffers[k]);
    }
}

static void floats_have_no_bit_operations(void **state) {
    (void)state;
    assert_true(reduce_is_defined(MUSTER_INT8, MUSTER_OP_BIT_XOR));
    assert_false(reduce_is_defined(MUSTER_FLOAT32, MUSTER_OP_BIT_AND));
    assert_false(reduce_is_defined(MUSTER_BFLOAT16, MUSTER_OP_BIT_OR));
    assert_true(reduce_is_defined(MUSTER_FLOAT16, MUSTER_OP_AVERAGE));
    assert_false(reduce_is_defined(MUSTER_TYPE_COUNT, MUSTER_OP_SUM));
    assert_false(reduce_is_defined(MUSTER_INT8, MUSTER_REDUCTION_COUNT));
}

int main(void) {
    static const char *const names[] = {"portable", "AVX2", "AVX-512"};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pairs_are_right),
        cmocka_unit_test(many_inputs_and_outputs_are_right),
        cmocka_unit_test(averages_are_finished),
        cmocka_unit_test(every_16_bit_float_is_converted),
        cmocka_unit_test(splits_do_not_matter),
        cmocka_unit_test(large_calls_are_right),
        cmocka_unit_test(floats_have_no_bit_operations),
    };
    int failed = 0;
    for (int vectors = REDUCE_PORTABLE; vectors < REDUCE_VECTORS_COUNT; vectors++) {
        if (reduce_choose((enum reduce_vectors)vectors)) {
            failed += cmocka_run_group_tests_name(names[vectors], tests, NULL, NULL);
        } else {
            (void)printf("%s: not on this processor\n", names[vectors]);
        }
    }
    return failed;
}
