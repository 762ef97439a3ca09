/* Cases of the matrix of collectives; see matrix_test_support.h. */
#include "comm/group/matrix_test_support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "comm/host/unwatched_test_support.h"

static const char *const operation_names[] = {"all_reduce", "reduce",     "reduce_scatter", "scan",    "exscan",
                                              "broadcast",  "all_gather", "gather",         "scatter", "all_to_all"};

uint64_t matrix_random(uint64_t *random) {
    *random ^= *random >> 12;
    *random ^= *random << 25;
    *random ^= *random >> 27;
    return (*random * UINT64_C(0x2545f4914f6cdd1d)) >> 16;
}

static bool is_reducing(enum matrix_operation operation) {
    return operation < MATRIX_BROADCAST;
}

static bool has_blocks(enum matrix_operation operation) {
    return operation == MATRIX_REDUCE_SCATTER || operation >= MATRIX_ALL_GATHER;
}

UNWATCHED static bool is_float(enum muster_type type) {
    return type >= MUSTER_FLOAT16 && type <= MUSTER_FLOAT64;
}

/* ---- drawing ---- */

static bool exists(enum matrix_operation operation, enum muster_type type, enum muster_reduction reduction) {
    if (!is_reducing(operation)) {
        return reduction == MUSTER_OP_SUM; /* once per type */
    }
    if (reduction == MUSTER_OP_AVERAGE && (operation == MATRIX_SCAN || operation == MATRIX_EXSCAN)) {
        return false;
    }
    return !is_float(type) || reduction < MUSTER_OP_BIT_AND;
}

/* Calls `triple` down from what remains; true when it is found. */
static bool find_triple(size_t *triple, struct matrix_case *out) {
    for (int operation = 0; operation < MATRIX_OPERATIONS; operation++) {
        for (int type = 0; type < MUSTER_TYPE_COUNT; type++) {
            for (int reduction = 0; reduction < MUSTER_REDUCTION_COUNT; reduction++) {
                out->operation = (enum matrix_operation)operation;
                out->type = (enum muster_type)type;
                out->reduction = (enum muster_reduction)reduction;
                if (exists(out->operation, out->type, out->reduction) && (*triple)-- == 0) {
                    return true;
                }
            }
        }
    }
    return false;
}

size_t matrix_triple_count(void) {
    struct matrix_case scratch;
    size_t most = SIZE_MAX;
    (void)find_triple(&most, &scratch);
    return SIZE_MAX - most;
}

void matrix_draw(uint64_t *random, size_t triple, uint32_t size, size_t bytes_max, struct matrix_case *out) {
    static const size_t telling[] = {0,    1,     4,     8,      48,     64,      1000,   8191,
                                     8192, 16400, 65536, 100000, 262144, 1 << 20, 2 << 20};
    memset(out, 0, sizeof *out);
    (void)find_triple(&triple, out);
    out->size = size;
    out->root = (uint32_t)(matrix_random(random) % size);
    out->has_counts = has_blocks(out->operation) && matrix_random(random) % 3 == 0;
    out->seed = matrix_random(random);
    size_t width = muster_type_bytes(out->type) * (has_blocks(out->operation) ? size : 1);
    size_t bytes = telling[matrix_random(random) % (sizeof telling / sizeof *telling)];
    bytes = bytes / 2 < bytes_max / 2 ? bytes : bytes_max;
    out->count = out->has_counts ? bytes / 2 / width : bytes / width; /* below, up to twice as much */
    for (uint32_t a = 0; a < size; a++) {
        for (uint32_t b = 0; b < size; b++) {
            bool is_row = a == 0 || out->operation == MATRIX_ALL_TO_ALL;
            size_t uneven = out->has_counts && is_row ? matrix_random(random) % (2 * out->count + 1) : out->count;
            out->counts[a][b] = is_row ? uneven : out->counts[0][b];
        }
    }
}

const char *matrix_describe(const struct matrix_case *c) {
    static char text[160];
    (void)snprintf(text, sizeof text, "%s%s of %zu %s, %s, root %u, %u ranks, data %llx", operation_names[c->operation],
                   c->has_counts ? "_v" : "", c->count, muster_type_name(c->type), muster_reduction_name(c->reduction),
                   c->root, c->size, (unsigned long long)c->seed);
    return text;
}

/* ---- who has how much ---- */

size_t matrix_begin(const struct matrix_case *c, uint32_t block) {
    size_t begin = 0;
    for (uint32_t i = 0; i < block; i++) {
        begin += c->counts[0][i];
    }
    return begin;
}

static size_t sent_before(const struct matrix_case *c, uint32_t rank, uint32_t to) {
    size_t begin = 0;
    for (uint32_t i = 0; i < to; i++) {
        begin += c->counts[rank][i];
    }
    return begin;
}

size_t matrix_send_count(const struct matrix_case *c, uint32_t rank) {
    switch (c->operation) {
    case MATRIX_BROADCAST:
        return rank == c->root ? c->count : 0;
    case MATRIX_ALL_GATHER:
    case MATRIX_GATHER:
        return c->counts[0][rank];
    case MATRIX_SCATTER:
        return rank == c->root ? sent_before(c, rank, c->size) : 0;
    case MATRIX_REDUCE_SCATTER:
    case MATRIX_ALL_TO_ALL:
        return sent_before(c, rank, c->size);
    default:
        return c->count;
    }
}

size_t matrix_receive_count(const struct matrix_case *c, uint32_t rank) {
    size_t sum = 0;
    switch (c->operation) {
    case MATRIX_REDUCE:
        return rank == c->root ? c->count : 0;
    case MATRIX_EXSCAN:
        return rank > 0 ? c->count : 0;
    case MATRIX_ALL_GATHER:
        return matrix_begin(c, c->size);
    case MATRIX_GATHER:
        return rank == c->root ? matrix_begin(c, c->size) : 0;
    case MATRIX_SCATTER:
    case MATRIX_REDUCE_SCATTER:
        return c->counts[0][rank];
    case MATRIX_ALL_TO_ALL:
        for (uint32_t from = 0; from < c->size; from++) {
            sum += c->counts[from][rank];
        }
        return sum;
    default:
        return c->count;
    }
}

/* ---- data ---- */

/* An IEEE 754 number of `bits` bits with `fraction` of them: sign, exponent around 1, and fraction from `from`. One in
 * 64 is infinite, not a number, or 0 where that has a result that can be foretold. */
UNWATCHED static uint64_t float_bits(uint64_t from, unsigned bits, unsigned fraction, bool may_be_special) {
    uint64_t exponent_mask = (UINT64_C(1) << (bits - 1 - fraction)) - 1;
    uint64_t exponent = exponent_mask / 2 - 2 + (from >> 56 & 3);
    uint64_t fraction_bits = from & ((UINT64_C(1) << fraction) - 1);
    if (may_be_special && from >> 58 == 0) {
        static const uint64_t kinds[] = {0, 1, 2};
        uint64_t kind = kinds[(from >> 40) % 3];
        exponent = kind == 0 ? 0 : exponent_mask;
        fraction_bits = kind == 2 ? UINT64_C(1) << (fraction - 1) : 0;
    }
    return (from >> 55 & 1) << (bits - 1) | exponent << fraction | fraction_bits;
}

/* The bits of element i of what `rank` gives. */
UNWATCHED static uint64_t element_bits(const struct matrix_case *c, uint32_t rank, size_t i) {
    uint64_t mixed = (c->seed ^ (uint64_t)rank << 40 ^ i) * UINT64_C(0x9e3779b97f4a7c15);
    mixed = (mixed ^ mixed >> 29) * UINT64_C(0xbf58476d1ce4e5b9);
    mixed ^= mixed >> 32;
    bool may_be_special = c->reduction == MUSTER_OP_MIN || c->reduction == MUSTER_OP_MAX;
    switch (c->type) {
    case MUSTER_FLOAT16:
        return float_bits(mixed, 16, 10, may_be_special);
    case MUSTER_BFLOAT16:
        return float_bits(mixed, 16, 7, may_be_special);
    case MUSTER_FLOAT32:
        return float_bits(mixed, 32, 23, may_be_special);
    case MUSTER_FLOAT64:
        return float_bits(mixed, 64, 52, may_be_special);
    default:
        return mixed;
    }
}

UNWATCHED static void fill_chunk(const struct matrix_case *c, uint32_t rank, void *chunk, size_t from, size_t count) {
    size_t width = muster_type_bytes(c->type);
    for (size_t i = 0; i < count; i++) {
        unwatched_put(chunk, i, width, element_bits(c, rank, from + i));
    }
}

void matrix_fill(const struct matrix_case *c, uint32_t rank, void *send) {
    uint64_t chunk[UNWATCHED_CHUNK];
    size_t width = muster_type_bytes(c->type), count = matrix_send_count(c, rank);
    for (size_t at = 0, some; at < count; at += some) {
        some = unwatched_chunk(at, count);
        fill_chunk(c, rank, chunk, at, some);
        memcpy((char *)send + at * width, chunk, some * width);
    }
}

struct number {
    int64_t whole;
    double real;
};

UNWATCHED static double double_of(uint64_t bits) {
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

UNWATCHED static double float_of(uint64_t bits) {
    uint32_t low = (uint32_t)bits;
    float value;
    memcpy(&value, &low, sizeof value);
    return (double)value;
}

UNWATCHED static double float16_of(uint64_t bits) {
    int exponent = (int)(bits >> 10 & 31);
    double part = (double)(bits & 1023) / 1024;
    double size = exponent == 31  ? (part != 0 ? (double)NAN : (double)INFINITY)
                  : exponent == 0 ? part * 0x1p-14
                                  : (1 + part) * double_of((uint64_t)(exponent - 15 + 1023) << 52);
    return bits >> 15 & 1 ? -size : size;
}

UNWATCHED static struct number number_of(enum muster_type type, uint64_t bits) {
    switch (type) {
    case MUSTER_FLOAT16:
        return (struct number){.real = float16_of(bits)};
    case MUSTER_BFLOAT16:
        return (struct number){.real = float_of(bits << 16)};
    case MUSTER_FLOAT32:
        return (struct number){.real = float_of(bits)};
    case MUSTER_FLOAT64:
        return (struct number){.real = double_of(bits)};
    case MUSTER_INT8:
        return (struct number){.whole = (int8_t)bits};
    case MUSTER_UINT8:
        return (struct number){.whole = (uint8_t)bits};
    case MUSTER_INT16:
        return (struct number){.whole = (int16_t)bits};
    case MUSTER_INT32:
        return (struct number){.whole = (int32_t)bits};
    case MUSTER_UINT16:
        return (struct number){.whole = (uint16_t)bits};
    case MUSTER_UINT32:
        return (struct number){.whole = (uint32_t)bits};
    default:
        return (struct number){.whole = (int64_t)bits};
    }
}

UNWATCHED static struct number combine(const struct matrix_case *c, struct number a, struct number b) {
    enum muster_type type = c->type;
    uint64_t x = (uint64_t)a.whole, y = (uint64_t)b.whole;
    bool is_less = type == MUSTER_UINT64 ? x < y : a.whole < b.whole;
    bool is_nan = !c->drops_nans && (isnan(a.real) || isnan(b.real));
    switch (c->reduction) {
    case MUSTER_OP_PRODUCT:
        return (struct number){(int64_t)(x * y), a.real * b.real};
    case MUSTER_OP_MIN:
        return (struct number){is_less ? a.whole : b.whole, is_nan ? (double)NAN : fmin(a.real, b.real)};
    case MUSTER_OP_MAX:
        return (struct number){is_less ? b.whole : a.whole, is_nan ? (double)NAN : fmax(a.real, b.real)};
    case MUSTER_OP_BIT_AND:
        return (struct number){.whole = (int64_t)(x & y)};
    case MUSTER_OP_BIT_OR:
        return (struct number){.whole = (int64_t)(x | y)};
    case MUSTER_OP_BIT_XOR:
        return (struct number){.whole = (int64_t)(x ^ y)};
    default:
        return (struct number){(int64_t)(x + y), a.real + b.real};
    }
}

/* Each of up to P operations, and the steps to 16 bits between hosts, round by at most half a unit of the last place of
 * a number that is no larger than the sum of sizes. Twice that, for the double arithmetic here. */
UNWATCHED static double bound_of(const struct matrix_case *c, struct number sum, double sizes) {
    static const int digits[] = {
        [MUSTER_FLOAT16] = 11, [MUSTER_BFLOAT16] = 8, [MUSTER_FLOAT32] = 24, [MUSTER_FLOAT64] = 53};
    double unit = ldexp(1.0, -digits[c->type]);
    switch (c->reduction) {
    case MUSTER_OP_MIN:
    case MUSTER_OP_MAX:
        return 0;
    case MUSTER_OP_PRODUCT:
        return 2 * c->size * unit * fabs(sum.real);
    case MUSTER_OP_AVERAGE:
        return 2 * (c->size + 1) * unit * sizes / c->size;
    default:
        return 2 * c->size * unit * sizes;
    }
}

/* Whose elements `rank` gets: those of ranks before it. */
static uint32_t end_of(const struct matrix_case *c, uint32_t rank) {
    return c->operation == MATRIX_SCAN ? rank + 1 : c->operation == MATRIX_EXSCAN ? rank : c->size;
}

/* Of the first `end` ranks. `position`: of the element in everybody's send buffer. */
UNWATCHED static bool is_reduced(const struct matrix_case *c, uint32_t end, size_t position, uint64_t got) {
    struct number sum = number_of(c->type, element_bits(c, 0, position));
    double sizes = fabs(sum.real);
    for (uint32_t rank = 1; rank < end; rank++) {
        struct number next = number_of(c->type, element_bits(c, rank, position));
        sum = combine(c, sum, next);
        sum.whole = number_of(c->type, (uint64_t)sum.whole).whole;
        sizes += fabs(next.real);
    }
    struct number result = number_of(c->type, got);
    if (c->reduction == MUSTER_OP_AVERAGE) {
        sum.real /= c->size;
        sum.whole = c->type == MUSTER_UINT64 ? (int64_t)((uint64_t)sum.whole / c->size) : sum.whole / (int64_t)c->size;
    }
    if (!is_float(c->type)) {
        return result.whole == number_of(c->type, (uint64_t)sum.whole).whole;
    }
    return isnan(sum.real) ? isnan(result.real)
                           : result.real == sum.real || fabs(result.real - sum.real) <= bound_of(c, sum, sizes);
}

/* Where, in what `from` gives, lies what `rank` gets of it, and how much that is. */
static size_t share_of(const struct matrix_case *c, uint32_t rank, uint32_t from, size_t *out_begin) {
    *out_begin = 0;
    switch (c->operation) {
    case MATRIX_BROADCAST:
        return from == c->root ? c->count : 0;
    case MATRIX_SCATTER:
        *out_begin = sent_before(c, from, rank);
        return from == c->root ? c->counts[0][rank] : 0;
    case MATRIX_ALL_TO_ALL:
        *out_begin = sent_before(c, from, rank);
        return c->counts[from][rank];
    default:
        return c->counts[0][from];
    }
}

static const char *wrong_at(size_t element, size_t count, uint64_t got) {
    static char text[96];
    (void)snprintf(text, sizeof text, "element %zu of %zu is %llx", element, count, (unsigned long long)got);
    return text;
}

/* The first of `count` elements that is not what the elements from `position` on give together; `count`: there is none.
 */
UNWATCHED static size_t first_not_reduced(const struct matrix_case *c, uint32_t end, size_t position, const void *chunk,
                                          size_t count) {
    size_t width = muster_type_bytes(c->type), i = 0;
    while (i < count && is_reduced(c, end, position + i, unwatched_get(chunk, i, width))) {
        i++;
    }
    return i;
}

/* The first that is not what `from` gives from `position` on. */
UNWATCHED static size_t first_not_given(const struct matrix_case *c, uint32_t from, size_t position, const void *chunk,
                                        size_t count) {
    size_t width = muster_type_bytes(c->type), i = 0;
    uint64_t mask = width == 8 ? UINT64_MAX : (UINT64_C(1) << 8 * width) - 1;
    while (i < count && unwatched_get(chunk, i, width) == (element_bits(c, from, position + i) & mask)) {
        i++;
    }
    return i;
}

const char *matrix_check(const struct matrix_case *c, uint32_t rank, const void *receive) {
    uint64_t chunk[UNWATCHED_CHUNK];
    size_t width = muster_type_bytes(c->type), count = matrix_receive_count(c, rank), at = 0, begin = 0;
    bool reduces = is_reducing(c->operation);
    for (uint32_t from = 0; count > 0 && from < (reduces ? 1 : c->size); from++) {
        size_t share = reduces ? count : share_of(c, rank, from, &begin);
        begin = c->operation == MATRIX_REDUCE_SCATTER ? matrix_begin(c, rank) : begin;
        for (size_t i = 0, some; i < share; i += some, at += some) {
            some = unwatched_chunk(i, share);
            memcpy(chunk, (const char *)receive + at * width, some * width);
            size_t right = reduces ? first_not_reduced(c, end_of(c, rank), begin + i, chunk, some)
                                   : first_not_given(c, from, begin + i, chunk, some);
            if (right < some) {
                return wrong_at(at + right, count, unwatched_get(chunk, right, width));
            }
        }
    }
    return at == count ? NULL : "the reference is wrong";
}
