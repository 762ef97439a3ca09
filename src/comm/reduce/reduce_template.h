/* The body of every kernel, in GCC's vector extension, for vectors of VECTOR_BYTES. Included once by each of
 * reduce_portable.c, reduce_avx2.c and reduce_avx512.c, which differ in VECTOR_BYTES, in the instructions that the
 * compiler may use, and in the conversions of float16. No include guard: it defines code.
 *
 * Each element goes through the same operations in the same order whether it is met in four vectors at a time, in one
 * or in the tail, which is made of vectors of one element. So results do not depend on width, alignment or split. */
#include <stdbool.h>
#include <string.h>

#include "comm/reduce/reduce_kernels.h"

/* The portable form, unless the file that includes this says otherwise. */
#ifndef VECTOR_BYTES
#define VECTOR_BYTES 16
#define TABLE_NAME reduce_table_portable
#endif

#define ALWAYS_INLINE static inline __attribute__((always_inline))

/* NAME_wide and NAME_one: a vector, and a vector of one element. */
#define DEFINE_VECTORS(name, element)                                                                                  \
    typedef element name##_wide __attribute__((vector_size(VECTOR_BYTES)));                                            \
    typedef element name##_one __attribute__((vector_size(sizeof(element))));

DEFINE_VECTORS(i8, int8_t)
DEFINE_VECTORS(u8, uint8_t)
DEFINE_VECTORS(i16, int16_t)
DEFINE_VECTORS(u16, uint16_t)
DEFINE_VECTORS(i32, int32_t)
DEFINE_VECTORS(u32, uint32_t)
DEFINE_VECTORS(i64, int64_t)
DEFINE_VECTORS(u64, uint64_t)
DEFINE_VECTORS(f32, float)
DEFINE_VECTORS(f64, double)

/* ---- loads and stores: `at` has any alignment; 16-bit floats widen to float32 and are rounded on the way back ---- */

#define DEFINE_ACCESS(name, width)                                                                                     \
    ALWAYS_INLINE name##_##width load_##name##_##width(const char *at) {                                               \
        name##_##width value;                                                                                          \
        memcpy(&value, at, sizeof value);                                                                              \
        return value;                                                                                                  \
    }                                                                                                                  \
    ALWAYS_INLINE void store_##name##_##width(char *at, name##_##width value) {                                        \
        memcpy(at, &value, sizeof value);                                                                              \
    }
#define DEFINE_BOTH_ACCESSES(name) DEFINE_ACCESS(name, wide) DEFINE_ACCESS(name, one)

/* The integers are computed with as unsigned (they wrap) but for comparisons. */
DEFINE_BOTH_ACCESSES(u8)
DEFINE_BOTH_ACCESSES(u16)
DEFINE_BOTH_ACCESSES(u32)
DEFINE_BOTH_ACCESSES(u64)
DEFINE_BOTH_ACCESSES(f32)
DEFINE_BOTH_ACCESSES(f64)

/* `mask`: all ones or all zeros per element. */
#define SELECT(mask, yes, no) (((yes) & (mask)) | ((no) & ~(mask)))

typedef uint16_t half_wide __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef uint16_t half_one __attribute__((vector_size(2)));

/* bfloat16 is the upper half of a float32. To nearest even: adding 0x7fff, and one more if the last bit kept is set,
 * carries where it must (also into infinity). A NaN stays one by its quiet bit. (The AVX512_BF16 conversion is not
 * used: it flushes denormals.) */
#define DEFINE_BFLOAT16(width)                                                                                         \
    ALWAYS_INLINE f32_##width load_bf16_##width(const char *at) {                                                      \
        half_##width stored;                                                                                           \
        memcpy(&stored, at, sizeof stored);                                                                            \
        return (f32_##width)(__builtin_convertvector(stored, u32_##width) << 16);                                      \
    }                                                                                                                  \
    ALWAYS_INLINE half_##width narrow_bf16_##width(f32_##width value) {                                                \
        u32_##width bits = (u32_##width)value;                                                                         \
        u32_##width is_nan = (u32_##width)(value != value);                                                            \
        u32_##width rounded = bits + 0x7fff + ((bits >> 16) & 1);                                                      \
        u32_##width kept = SELECT(is_nan, bits | 0x400000, rounded) >> 16;                                             \
        return __builtin_convertvector(kept, half_##width);                                                            \
    }
DEFINE_BFLOAT16(wide)
DEFINE_BFLOAT16(one)

/* float16 has 5 bits of exponent (bias 15) and 10 of fraction. Widening: move the fields into place and correct the
 * bias; denormals (exponent 0) become the difference of 2^-14 * 1.fraction and 2^-14, which is exact. Narrowing: above
 * 65504 + half a step comes infinity, by the same carry as in bfloat16; below 2^-14 adding 0.5, whose last bit is
 * worth 2^-24 like float16's smallest denormal, lets the processor round. NaNs keep their sign and upper bits, as in
 * the F16C instructions. */
#define DEFINE_FLOAT16(width)                                                                                          \
    ALWAYS_INLINE f32_##width load_f16_##width(const char *at) {                                                       \
        half_##width stored;                                                                                           \
        memcpy(&stored, at, sizeof stored);                                                                            \
        u32_##width half = __builtin_convertvector(stored, u32_##width);                                               \
        u32_##width fields = (half & 0x7fff) << 13, exponent = half & 0x7c00;                                          \
        u32_##width normal = fields + (112U << 23);                                                                    \
        u32_##width is_nan = (u32_##width)((half & 0x7fff) > 0x7c00);                                                  \
        u32_##width special = (fields + (224U << 23)) | (is_nan & 0x400000);                                           \
        u32_##width least = (half & 0) + (113U << 23);                                                                 \
        u32_##width denormal = (u32_##width)((f32_##width)(fields + least) - (f32_##width)least);                      \
        u32_##width bits = SELECT((u32_##width)(exponent == 0x7c00), special, normal);                                 \
        bits = SELECT((u32_##width)(exponent == 0), denormal, bits);                                                   \
        return (f32_##width)(bits | (half & 0x8000) << 16);                                                            \
    }                                                                                                                  \
    ALWAYS_INLINE half_##width narrow_f16_##width(f32_##width value) {                                                 \
        u32_##width bits = (u32_##width)value & 0x7fffffff, sign = (u32_##width)value >> 16 & 0x8000;                  \
        u32_##width normal = (bits - (112U << 23) + 0xfff + ((bits >> 13) & 1)) >> 13;                                 \
        u32_##width half_bits = (bits & 0) + (126U << 23);                                                             \
        u32_##width denormal = (u32_##width)((f32_##width)bits + (f32_##width)half_bits) - half_bits;                  \
        u32_##width is_nan = (u32_##width)(bits > 0x7f800000);                                                         \
        u32_##width special = 0x7c00 | (is_nan & (0x200 | (bits >> 13 & 0x3ff)));                                      \
        u32_##width kept = SELECT((u32_##width)(bits < (113U << 23)), denormal, normal);                               \
        kept = SELECT((u32_##width)(bits >= (143U << 23)), special, kept) | sign;                                      \
        return __builtin_convertvector(kept, half_##width);                                                            \
    }
DEFINE_FLOAT16(one)
#ifdef HAS_FLOAT16_WIDE
ALWAYS_INLINE half_wide narrow_f16_wide(f32_wide value) {
    return (half_wide)narrow_f16(value);
}
#else
DEFINE_FLOAT16(wide)
#endif

#define DEFINE_HALF_STORE(name, width)                                                                                 \
    ALWAYS_INLINE void store_##name##_##width(char *at, f32_##width value) {                                           \
        half_##width stored = narrow_##name##_##width(value);                                                          \
        memcpy(at, &stored, sizeof stored);                                                                            \
    }
DEFINE_HALF_STORE(bf16, wide)
DEFINE_HALF_STORE(bf16, one)
DEFINE_HALF_STORE(f16, wide)
DEFINE_HALF_STORE(f16, one)

/* Stores that go past the caches, to addresses that are multiples of VECTOR_BYTES. */
#ifdef HAS_STREAM
ALWAYS_INLINE void stream_f32_wide(char *at, f32_wide value) {
    stream_whole(at, (stream_vector)value);
}
ALWAYS_INLINE void stream_f64_wide(char *at, f64_wide value) {
    stream_whole(at, (stream_vector)value);
}
ALWAYS_INLINE void stream_bf16_wide(char *at, f32_wide value) {
    stream_half(at, (stream_half_vector)narrow_bf16_wide(value));
}
ALWAYS_INLINE void stream_f16_wide(char *at, f32_wide value) {
    stream_half(at, (stream_half_vector)narrow_f16_wide(value));
}
#endif

/* ---- one operation on two registers; `u`, `i`: the unsigned and signed vectors of the same shape ---- */

#define OP_SUM(a, b, u, i) ((a) + (b))
#define OP_PRODUCT(a, b, u, i) ((a) * (b))
#define OP_BIT_AND(a, b, u, i) ((a) & (b))
#define OP_BIT_OR(a, b, u, i) ((a) | (b))
#define OP_BIT_XOR(a, b, u, i) ((a) ^ (b))
#define OP_MIN_UNSIGNED(a, b, u, i) SELECT((u)((a) < (b)), a, b)
#define OP_MAX_UNSIGNED(a, b, u, i) SELECT((u)((a) > (b)), a, b)
#define OP_MIN_SIGNED(a, b, u, i) SELECT((u)((i)(a) < (i)(b)), a, b)
#define OP_MAX_SIGNED(a, b, u, i) SELECT((u)((i)(a) > (i)(b)), a, b)
/* The first operand if it is a NaN; the second if only that is (the comparison is then false). */
#define OP_MIN_FLOAT(a, b, u, i) SELECT_FLOAT((u)(((a) < (b)) | ((a) != (a))), a, b, u)
#define OP_MAX_FLOAT(a, b, u, i) SELECT_FLOAT((u)(((a) > (b)) | ((a) != (a))), a, b, u)
#define SELECT_FLOAT(mask, a, b, u) ((__typeof__(a))SELECT(mask, (u)(a), (u)(b)))

/* ---- what happens to the result before it is stored ---- */

#define FINISH_NOT(value, element) (void)divisor
/* Divides by a float: a world of more than 2^24 ranks does not exist (MUSTER_GROUP_SIZE_MAX). */
#define FINISH_FLOAT(value, element) (value) /= (element)divisor
/* In 64 bits: the divisor need not fit the element. C rounds towards zero. For vectors of one element. */
#define FINISH_SIGNED(value, element)                                                                                  \
    (value)[0] = (__typeof__((value)[0]))((int64_t)(element)(value)[0] / (int64_t)divisor)
#define FINISH_UNSIGNED(value, element) (value)[0] = (__typeof__((value)[0]))((value)[0] / (uint64_t)divisor)

/* ---- a kernel: memory is passed over once; sums stay in registers over all inputs ---- */

/* What a kernel computes with: `access` names the loads and stores, `lanes` the vectors, `u` and `i` the vectors of
 * integers of the same shape; `element` is what one lane is in C; `bytes` of memory hold one element. */
#define SPAN(n, width, store, access, lanes, u, i, OP, FINISH, element, bytes)                                         \
    for (size_t step = (n) * sizeof(lanes##_##width) / sizeof(element); count - done >= step; done += step) {          \
        lanes##_##width sum[(n)];                                                                                      \
        for (size_t v = 0; v < (n); v++) {                                                                             \
            sum[v] = load_##access##_##width((const char *)ins[0] + (done + v * (step / (n))) * (bytes));              \
        }                                                                                                              \
        for (size_t k = 1; k < in_count; k++) {                                                                        \
            for (size_t v = 0; v < (n); v++) {                                                                         \
                lanes##_##width next =                                                                                 \
                    load_##access##_##width((const char *)ins[k] + (done + v * (step / (n))) * (bytes));               \
                sum[v] = OP(sum[v], next, u##_##width, i##_##width);                                                   \
            }                                                                                                          \
        }                                                                                                              \
        for (size_t v = 0; v < (n); v++) {                                                                             \
            FINISH(sum[v], element);                                                                                   \
        }                                                                                                              \
        for (size_t k = 0; k < out_count; k++) {                                                                       \
            for (size_t v = 0; v < (n); v++) {                                                                         \
                store##_##access##_##width((char *)outs[k] + (done + v * (step / (n))) * (bytes), sum[v]);             \
            }                                                                                                          \
        }                                                                                                              \
    }

#define KERNEL_PARAMETERS                                                                                              \
    void *const *outs, size_t out_count, const void *const *ins, size_t in_count, size_t count, uint32_t divisor

/* Two inputs, the case of every step of a schedule and of two ranks on a host, get copies of their own. */
#define DEFINE_KERNEL(name, ...)                                                                                       \
    ALWAYS_INLINE void name##_body(KERNEL_PARAMETERS) {                                                                \
        size_t done = 0;                                                                                               \
        SPAN(4, wide, store, __VA_ARGS__)                                                                              \
        SPAN(1, wide, store, __VA_ARGS__)                                                                              \
        SPAN(1, one, store, __VA_ARGS__)                                                                               \
    }                                                                                                                  \
    static void name(KERNEL_PARAMETERS) {                                                                              \
        if (in_count == 2 && out_count == 1) {                                                                         \
            name##_body(outs, 1, ins, 2, count, divisor);                                                              \
        } else if (in_count == 2 && out_count == 2) {                                                                  \
            name##_body(outs, 2, ins, 2, count, divisor);                                                              \
        } else {                                                                                                       \
            name##_body(outs, out_count, ins, in_count, count, divisor);                                               \
        }                                                                                                              \
    }

#ifdef HAS_STREAM
/* Elements until all outputs are aligned, SIZE_MAX if that never happens. */
static size_t unaligned_head(void *const *outs, size_t out_count, size_t bytes) {
    size_t head = (VECTOR_BYTES - (uintptr_t)outs[0] % VECTOR_BYTES) % VECTOR_BYTES;
    bool is_possible = head % bytes == 0;
    for (size_t k = 1; k < out_count; k++) {
        is_possible = is_possible && ((uintptr_t)outs[k] - (uintptr_t)outs[0]) % VECTOR_BYTES == 0;
    }
    return is_possible ? head / bytes : SIZE_MAX;
}

/* Above, and the same with stores past the caches. Those are not ordered by release stores, hence the fence: others
 * may be told of this memory next. */
#define DEFINE_STREAMING_KERNEL(name, bytes, ...)                                                                      \
    DEFINE_KERNEL(name, __VA_ARGS__, bytes)                                                                            \
    static void name##_past_caches(KERNEL_PARAMETERS) {                                                                \
        size_t done = 0, head = unaligned_head(outs, out_count, bytes), whole = count;                                 \
        if (head >= count) {                                                                                           \
            name(outs, out_count, ins, in_count, count, divisor);                                                      \
            return;                                                                                                    \
        }                                                                                                              \
        count = head;                                                                                                  \
        SPAN(1, one, store, __VA_ARGS__, bytes)                                                                        \
        count = whole;                                                                                                 \
        SPAN(4, wide, stream, __VA_ARGS__, bytes)                                                                      \
        _mm_sfence();                                                                                                  \
        SPAN(1, wide, store, __VA_ARGS__, bytes)                                                                       \
        SPAN(1, one, store, __VA_ARGS__, bytes)                                                                        \
    }
#else
#define DEFINE_STREAMING_KERNEL(name, bytes, ...) DEFINE_KERNEL(name, __VA_ARGS__, bytes)
#endif

/* One element at a time: dividing dwarfs the rest, and there is no vector division of integers. */
#define DEFINE_DIVIDING_KERNEL(name, ...)                                                                              \
    static void name(KERNEL_PARAMETERS) {                                                                              \
        size_t done = 0;                                                                                               \
        SPAN(1, one, store, __VA_ARGS__)                                                                               \
    }

#define DEFINE_INTEGER(type, u, i, SIGN, element)                                                                      \
    DEFINE_KERNEL(type##_sum, u, u, u, i, OP_SUM, FINISH_NOT, element, sizeof(element))                                \
    DEFINE_KERNEL(type##_product, u, u, u, i, OP_PRODUCT, FINISH_NOT, element, sizeof(element))                        \
    DEFINE_KERNEL(type##_min, u, u, u, i, OP_MIN_##SIGN, FINISH_NOT, element, sizeof(element))                         \
    DEFINE_KERNEL(type##_max, u, u, u, i, OP_MAX_##SIGN, FINISH_NOT, element, sizeof(element))                         \
    DEFINE_DIVIDING_KERNEL(type##_average, u, u, u, i, OP_SUM, FINISH_##SIGN, element, sizeof(element))                \
    DEFINE_KERNEL(type##_and, u, u, u, i, OP_BIT_AND, FINISH_NOT, element, sizeof(element))                            \
    DEFINE_KERNEL(type##_or, u, u, u, i, OP_BIT_OR, FINISH_NOT, element, sizeof(element))                              \
    DEFINE_KERNEL(type##_xor, u, u, u, i, OP_BIT_XOR, FINISH_NOT, element, sizeof(element))
#define DEFINE_FLOAT(type, lanes, u, i, element, bytes)                                                                \
    DEFINE_STREAMING_KERNEL(type##_sum, bytes, type, lanes, u, i, OP_SUM, FINISH_NOT, element)                         \
    DEFINE_KERNEL(type##_product, type, lanes, u, i, OP_PRODUCT, FINISH_NOT, element, bytes)                           \
    DEFINE_KERNEL(type##_min, type, lanes, u, i, OP_MIN_FLOAT, FINISH_NOT, element, bytes)                             \
    DEFINE_KERNEL(type##_max, type, lanes, u, i, OP_MAX_FLOAT, FINISH_NOT, element, bytes)                             \
    DEFINE_STREAMING_KERNEL(type##_average, bytes, type, lanes, u, i, OP_SUM, FINISH_FLOAT, element)

DEFINE_INTEGER(int8, u8, i8, SIGNED, int8_t)
DEFINE_INTEGER(uint8, u8, i8, UNSIGNED, uint8_t)
DEFINE_INTEGER(int16, u16, i16, SIGNED, int16_t)
DEFINE_INTEGER(int32, u32, i32, SIGNED, int32_t)
DEFINE_INTEGER(int64, u64, i64, SIGNED, int64_t)
DEFINE_INTEGER(uint16, u16, i16, UNSIGNED, uint16_t)
DEFINE_INTEGER(uint32, u32, i32, UNSIGNED, uint32_t)
DEFINE_INTEGER(uint64, u64, i64, UNSIGNED, uint64_t)
DEFINE_FLOAT(f16, f32, u32, i32, float, 2)
DEFINE_FLOAT(bf16, f32, u32, i32, float, 2)
DEFINE_FLOAT(f32, f32, u32, i32, float, 4)
DEFINE_FLOAT(f64, f64, u64, i64, double, 8)

#define FLOAT_ROW(type)                                                                                                \
    { type##_sum, type##_product, type##_min, type##_max, type##_average, NULL, NULL, NULL }
#define INTEGER_ROW(type)                                                                                              \
    { type##_sum, type##_product, type##_min, type##_max, type##_average, type##_and, type##_or, type##_xor }
#ifdef HAS_STREAM
#define STREAM_ROW(type)                                                                                               \
    { [MUSTER_OP_SUM] = type##_sum_past_caches, [MUSTER_OP_AVERAGE] = type##_average_past_caches }
#else
#define STREAM_ROW(type)                                                                                               \
    { NULL }
#endif

/* In the order of the tables of muster/types.h. */
_Static_assert(MUSTER_INT8 == 0 && MUSTER_UINT8 == 1 && MUSTER_INT16 == 2 && MUSTER_INT32 == 3 && MUSTER_INT64 == 4 &&
                   MUSTER_FLOAT16 == 5 && MUSTER_BFLOAT16 == 6 && MUSTER_FLOAT32 == 7 && MUSTER_FLOAT64 == 8 &&
                   MUSTER_UINT16 == 9 && MUSTER_UINT32 == 10 && MUSTER_UINT64 == 11 && MUSTER_TYPE_COUNT == 12,
               "rows");
_Static_assert(MUSTER_OP_SUM == 0 && MUSTER_OP_PRODUCT == 1 && MUSTER_OP_MIN == 2 && MUSTER_OP_MAX == 3 &&
                   MUSTER_OP_AVERAGE == 4 && MUSTER_OP_BIT_AND == 5 && MUSTER_OP_BIT_OR == 6 &&
                   MUSTER_OP_BIT_XOR == 7 && MUSTER_REDUCTION_COUNT == 8,
               "columns");
const struct reduce_table TABLE_NAME = {.kernels = {INTEGER_ROW(int8), INTEGER_ROW(uint8), INTEGER_ROW(int16),
                                                    INTEGER_ROW(int32), INTEGER_ROW(int64), FLOAT_ROW(f16),
                                                    FLOAT_ROW(bf16), FLOAT_ROW(f32), FLOAT_ROW(f64),
                                                    INTEGER_ROW(uint16), INTEGER_ROW(uint32), INTEGER_ROW(uint64)},
                                        .past_caches = {[MUSTER_FLOAT16] = STREAM_ROW(f16),
                                                        [MUSTER_BFLOAT16] = STREAM_ROW(bf16),
                                                        [MUSTER_FLOAT32] = STREAM_ROW(f32),
                                                        [MUSTER_FLOAT64] = STREAM_ROW(f64)}};
