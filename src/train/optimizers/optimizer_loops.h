/* The loops of the optimizers, in GCC's vector extension, for vectors of VECTOR_BYTES. Included once by each of
 * optimizer_portable.c, optimizer_avx2.c and optimizer_avx512.c, which differ in VECTOR_BYTES, in the instructions that
 * the compiler may use (CMakeLists.txt), in the square root and in stores past the caches. No include guard: it defines
 * code.
 *
 * An element goes through the same operations in a vector and in the tail, which is made of vectors of one element. No
 * operation is fused with another or reordered, and square roots and divisions are exact to the last bit in vectors of
 * any width. So results do not depend on the width, the alignment or the split into ranges. */
#include <math.h>
#include <string.h>

#include "train/optimizers/optimizer_table.h"

/* The portable form, unless the file that includes this says otherwise. */
#ifndef VECTOR_BYTES
#define VECTOR_BYTES 16
#define TABLE_NAME optimizer_table_portable
#endif

#define ALWAYS_INLINE static inline __attribute__((always_inline))

typedef float f32_wide __attribute__((vector_size(VECTOR_BYTES)));
typedef float f32_one __attribute__((vector_size(sizeof(float))));
typedef uint32_t u32_wide __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t u32_one __attribute__((vector_size(sizeof(uint32_t))));
typedef uint16_t half_wide __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef uint16_t half_one __attribute__((vector_size(sizeof(uint16_t))));

ALWAYS_INLINE f32_one root_one(f32_one value) {
    value[0] = sqrtf(value[0]);
    return value;
}
#ifdef HAS_ROOT
ALWAYS_INLINE f32_wide root_wide(f32_wide value) {
    return (f32_wide)root_whole((root_vector)value);
}
#else
ALWAYS_INLINE f32_wide root_wide(f32_wide value) {
    for (size_t lane = 0; lane < VECTOR_BYTES / sizeof(float); lane++) {
        value[lane] = sqrtf(value[lane]);
    }
    return value;
}
#endif

/* ---- loads and stores: `at` has any alignment ---- */

/* bfloat16 is the upper half of a float32, rounded by an addition that carries where it must (also into infinity). A
 * NaN stays one by its quiet bit. */
#define DEFINE_ACCESS(width)                                                                                           \
    ALWAYS_INLINE f32_##width load_##width(const float *at) {                                                          \
        f32_##width value;                                                                                             \
        memcpy(&value, at, sizeof value);                                                                              \
        return value;                                                                                                  \
    }                                                                                                                  \
    ALWAYS_INLINE void store_##width(float *at, f32_##width value) {                                                   \
        memcpy(at, &value, sizeof value);                                                                              \
    }                                                                                                                  \
    ALWAYS_INLINE half_##width narrow_##width(f32_##width value) {                                                     \
        u32_##width bits = (u32_##width)value, is_nan = (u32_##width)(value != value);                                 \
        u32_##width rounded = bits + 0x7fff + ((bits >> 16) & 1);                                                      \
        u32_##width kept = (((bits | 0x400000) & is_nan) | (rounded & ~is_nan)) >> 16;                                 \
        return __builtin_convertvector(kept, half_##width);                                                            \
    }                                                                                                                  \
    ALWAYS_INLINE void store_half_##width(uint16_t *at, half_##width value) {                                          \
        memcpy(at, &value, sizeof value);                                                                              \
    }
DEFINE_ACCESS(wide)
DEFINE_ACCESS(one)

/* ---- the formulas: what is there before, p and its slots x and y, becomes what is there after ---- */

#define DEFINE_FORMULAS(width)                                                                                         \
    struct element_##width {                                                                                           \
        f32_##width p, x, y;                                                                                           \
    };                                                                                                                 \
    ALWAYS_INLINE struct element_##width sgd_##width(struct element_##width e, f32_##width gradient,                   \
                                                     struct optimizer_factors f) {                                     \
        e.p = e.p - f.rate * (f.scale * gradient + f.decay * e.p);                                                     \
        return e;                                                                                                      \
    }                                                                                                                  \
    ALWAYS_INLINE struct element_##width sgd_momentum_##width(struct element_##width e, f32_##width gradient,          \
                                                              struct optimizer_factors f) {                            \
        f32_##width d = f.scale * gradient + f.decay * e.p;                                                            \
        e.x = f.momentum * e.x + f.undamped * d;                                                                       \
        e.p = e.p - f.rate * e.x;                                                                                      \
        return e;                                                                                                      \
    }                                                                                                                  \
    ALWAYS_INLINE struct element_##width sgd_nesterov_##width(struct element_##width e, f32_##width gradient,          \
                                                              struct optimizer_factors f) {                            \
        f32_##width d = f.scale * gradient + f.decay * e.p;                                                            \
        e.x = f.momentum * e.x + f.undamped * d;                                                                       \
        e.p = e.p - f.rate * (d + f.momentum * e.x);                                                                   \
        return e;                                                                                                      \
    }                                                                                                                  \
    ALWAYS_INLINE struct element_##width adadelta_##width(struct element_##width e, f32_##width gradient,              \
                                                          struct optimizer_factors f) {                                \
        f32_##width g = f.scale * gradient + f.decay * e.p;                                                            \
        e.x = f.rho * e.x + f.one_minus_rho * (g * g);                                                                 \
        f32_##width delta = root_##width(e.y + f.epsilon) / root_##width(e.x + f.epsilon) * g;                         \
        e.y = f.rho * e.y + f.one_minus_rho * (delta * delta);                                                         \
        e.p = e.p - f.rate * delta;                                                                                    \
        return e;                                                                                                      \
    }                                                                                                                  \
    ALWAYS_INLINE struct element_##width adam_##width(struct element_##width e, f32_##width gradient,                  \
                                                      struct optimizer_factors f) {                                    \
        f32_##width g = f.scale * gradient + f.decay * e.p;                                                            \
        e.x = e.x + f.one_minus_beta1 * (g - e.x);                                                                     \
        e.y = f.beta2 * e.y + f.one_minus_beta2 * (g * g);                                                             \
        e.p = e.p - f.rate * (e.x / (root_##width(e.y) / f.root_bias + f.epsilon));                                    \
        return e;                                                                                                      \
    }                                                                                                                  \
    ALWAYS_INLINE struct element_##width adamw_##width(struct element_##width e, f32_##width gradient,                 \
                                                       struct optimizer_factors f) {                                   \
        f32_##width g = f.scale * gradient;                                                                            \
        e.x = e.x + f.one_minus_beta1 * (g - e.x);                                                                     \
        e.y = f.beta2 * e.y + f.one_minus_beta2 * (g * g);                                                             \
        e.p = f.shrink * e.p - f.rate * (e.x / (root_##width(e.y) / f.root_bias + f.epsilon));                         \
        return e;                                                                                                      \
    }
DEFINE_FORMULAS(wide)
DEFINE_FORMULAS(one)

/* ---- a loop: memory is passed over once ---- */

/* Elements up to `end`. All is loaded before anything is stored: an output may be its input. */
#define SPAN(rule, slot_count, width, store, store_half)                                                               \
    for (const size_t lanes = sizeof(f32_##width) / sizeof(float); end - done >= lanes; done += lanes) {               \
        struct element_##width e = {load_##width(s.parameter + done), {0}, {0}};                                       \
        if ((slot_count) > 0) {                                                                                        \
            e.x = load_##width(s.slots[0] + done);                                                                     \
        }                                                                                                              \
        if ((slot_count) > 1) {                                                                                        \
            e.y = load_##width(s.slots[1] + done);                                                                     \
        }                                                                                                              \
        e = rule##_##width(e, load_##width(s.gradient + done), f);                                                     \
        store##_##width(s.parameter_out + done, e.p);                                                                  \
        if ((slot_count) > 0) {                                                                                        \
            store##_##width(s.slots_out[0] + done, e.x);                                                               \
        }                                                                                                              \
        if ((slot_count) > 1) {                                                                                        \
            store##_##width(s.slots_out[1] + done, e.y);                                                               \
        }                                                                                                              \
        if (s.bfloat16_out) {                                                                                          \
            store_half##_##width(s.bfloat16_out + done, narrow_##width(e.p));                                          \
        }                                                                                                              \
    }

#define DEFINE_LOOP(rule, slot_count)                                                                                  \
    static void rule(const struct optimizer_span *span, const struct optimizer_factors *factors) {                     \
        const struct optimizer_span s = *span;                                                                         \
        const struct optimizer_factors f = *factors;                                                                   \
        size_t done = 0, end = s.count;                                                                                \
        SPAN(rule, slot_count, wide, store, store_half)                                                                \
        SPAN(rule, slot_count, one, store, store_half)                                                                 \
    }

#ifdef HAS_STREAM
ALWAYS_INLINE void stream_wide(float *at, f32_wide value) {
    stream_whole(at, (stream_vector)value);
}
ALWAYS_INLINE void stream_half_wide(uint16_t *at, half_wide value) {
    stream_half(at, (stream_half_vector)value);
}

/* Elements until all outputs are aligned for vectors, SIZE_MAX if that never happens. */
static size_t unaligned_head(const struct optimizer_span *s, size_t slot_count) {
    const size_t lanes = VECTOR_BYTES / sizeof(float);
    size_t past = (uintptr_t)s->parameter_out % VECTOR_BYTES;
    size_t head = (VECTOR_BYTES - past) / sizeof(float) % lanes;
    bool is_possible = past % sizeof(float) == 0;
    for (size_t slot = 0; slot < slot_count; slot++) {
        is_possible = is_possible && (uintptr_t)s->slots_out[slot] % VECTOR_BYTES == past;
    }
    if (s->bfloat16_out) {
        is_possible = is_possible && (uintptr_t)(s->bfloat16_out + head) % (VECTOR_BYTES / 2) == 0;
    }
    return is_possible ? head : SIZE_MAX;
}

/* Above, and the same with stores past the caches. Those are not ordered by release stores, hence the fence: others
 * may be told of this memory next. */
#define DEFINE_STREAMING_LOOP(rule, slot_count)                                                                        \
    DEFINE_LOOP(rule, slot_count)                                                                                      \
    static void rule##_past_caches(const struct optimizer_span *span, const struct optimizer_factors *factors) {       \
        const struct optimizer_span s = *span;                                                                         \
        const struct optimizer_factors f = *factors;                                                                   \
        size_t done = 0, end = unaligned_head(span, slot_count);                                                       \
        if (end >= s.count) {                                                                                          \
            rule(span, factors);                                                                                       \
            return;                                                                                                    \
        }                                                                                                              \
        SPAN(rule, slot_count, one, store, store_half)                                                                 \
        end = s.count;                                                                                                 \
        SPAN(rule, slot_count, wide, stream, stream_half)                                                              \
        _mm_sfence();                                                                                                  \
        SPAN(rule, slot_count, one, store, store_half)                                                                 \
    }
#else
#define DEFINE_STREAMING_LOOP(rule, slot_count) DEFINE_LOOP(rule, slot_count)
#endif

DEFINE_STREAMING_LOOP(sgd, 0)
DEFINE_STREAMING_LOOP(sgd_momentum, 1)
DEFINE_STREAMING_LOOP(sgd_nesterov, 1)
DEFINE_STREAMING_LOOP(adadelta, 2)
DEFINE_STREAMING_LOOP(adam, 2)
DEFINE_STREAMING_LOOP(adamw, 2)

static void narrow(uint16_t *out, const float *in, size_t count) {
    size_t done = 0;
    for (const size_t lanes = VECTOR_BYTES / sizeof(float); count - done >= lanes; done += lanes) {
        store_half_wide(out + done, narrow_wide(load_wide(in + done)));
    }
    for (; done < count; done++) {
        store_half_one(out + done, narrow_one(load_one(in + done)));
    }
}

/* ---- sums of squares ---- */

enum { LANES = 16 };

/* Lane l adds the squares of elements l, l + LANES ..., and the lanes are added in pairs. The squares are exact. */
static double squares(const float *values, size_t count) {
    double lanes[LANES] = {0};
    size_t whole = count / LANES * LANES;
    for (size_t i = 0; i < whole; i += LANES) {
        for (size_t lane = 0; lane < LANES; lane++) {
            lanes[lane] += (double)values[i + lane] * (double)values[i + lane];
        }
    }
    for (size_t i = whole; i < count; i++) {
        lanes[i - whole] += (double)values[i] * (double)values[i];
    }
    for (size_t half = LANES / 2; half > 0; half /= 2) {
        for (size_t lane = 0; lane < half; lane++) {
            lanes[lane] += lanes[lane + half];
        }
    }
    return lanes[0];
}

const struct optimizer_table TABLE_NAME = {
    .loops = {[RULE_SGD] = sgd,
              [RULE_SGD_MOMENTUM] = sgd_momentum,
              [RULE_SGD_NESTEROV] = sgd_nesterov,
              [RULE_ADADELTA] = adadelta,
              [RULE_ADAM] = adam,
              [RULE_ADAMW] = adamw},
#ifdef HAS_STREAM
    .past_caches = {[RULE_SGD] = sgd_past_caches,
                    [RULE_SGD_MOMENTUM] = sgd_momentum_past_caches,
                    [RULE_SGD_NESTEROV] = sgd_nesterov_past_caches,
                    [RULE_ADADELTA] = adadelta_past_caches,
                    [RULE_ADAM] = adam_past_caches,
                    [RULE_ADAMW] = adamw_past_caches},
#endif
    .narrow = narrow,
    .squares = squares,
};
