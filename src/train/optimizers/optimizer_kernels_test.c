/* The optimizers' loops: the same bits for every width of vectors, split, alignment and way of storing. */
#include "train/optimizers/optimizer_kernels.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A row: room to be shifted, and a multiple of 64 bytes, so that rows are aligned alike. */
enum { COUNT = 5003, ROW = 5024, ROUNDS = 40, ARRAYS = 3 };

static uint64_t seed = 20240611;

static uint32_t number_below(uint32_t limit) {
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)((seed >> 33) % limit);
}

static float number(void) {
    return ((float)number_below(1U << 20) - (float)(1U << 19)) * 0x1p-19F;
}

/* Parameter and slots before and after a step, and the rest of its data. shift: where the results of the last slot
 * begin. */
struct data {
    _Alignas(64) float before[ARRAYS][ROW], after[ARRAYS][ROW];
    float gradient[ROW];
    uint16_t bfloat16[ROW];
    size_t shift;
};

static const struct optimizer_factors factors = {.scale = 0.75F,
                                                 .rate = 0.01F,
                                                 .decay = 0.1F,
                                                 .shrink = 0.99F,
                                                 .epsilon = 1e-6F,
                                                 .momentum = 0.9F,
                                                 .undamped = 0.7F,
                                                 .rho = 0.95F,
                                                 .one_minus_rho = 0.05F,
                                                 .one_minus_beta1 = 0.1F,
                                                 .beta2 = 0.99F,
                                                 .one_minus_beta2 = 0.01F,
                                                 .root_bias = 0.3F};

static struct data *data_new(void) {
    struct data *data = aligned_alloc(_Alignof(struct data), sizeof *data);
    assert_non_null(data);
    memset(data, 0, sizeof *data);
    for (size_t i = 0; i < COUNT; i++) {
        data->gradient[i] = number();
        data->before[0][i] = number();
        data->before[1][i] = fabsf(number());
        data->before[2][i] = fabsf(number());
    }
    return data;
}

static struct optimizer_span span_at(struct data *data, size_t begin, size_t count, bool in_place) {
    struct optimizer_span span = {.count = count,
                                  .gradient = data->gradient + begin,
                                  .parameter = data->before[0] + begin,
                                  .parameter_out = (in_place ? data->before[0] : data->after[0]) + begin,
                                  .bfloat16_out = data->bfloat16 + begin};
    for (size_t slot = 0; slot < OPTIMIZER_SLOTS_MAX; slot++) {
        span.slots[slot] = data->before[slot + 1] + begin;
        span.slots_out[slot] = (in_place ? data->before[slot + 1] : data->after[slot + 1]) + begin;
    }
    span.slots_out[OPTIMIZER_SLOTS_MAX - 1] += in_place ? 0 : data->shift;
    return span;
}

/* A second way to write the formulas, one element at a time. */
static float narrow_and_widen(float value) {
    double step = ldexp(1, ilogb((double)value) - 7);
    return (float)(nearbyint((double)value / step) * step);
}

static float widen(uint16_t half) {
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void every_width_and_split_has_the_same_bits(void **state) {
    (void)state;
    for (int rule = 0; rule < RULE_COUNT; rule++) {
        struct data *first = data_new(), *other = data_new();
        struct data kept = *first;
        (void)optimizer_vectors_choose(OPTIMIZER_PORTABLE);
        struct optimizer_span whole = span_at(first, 0, COUNT, false);
        optimizer_span_step((enum optimizer_rule)rule, &whole, &factors, false);
        for (int round = 0; round < ROUNDS; round++) {
            bool in_place = number_below(2) == 0, past_caches = number_below(2) == 0;
            (void)optimizer_vectors_choose((enum optimizer_vectors)(round % OPTIMIZER_VECTORS_COUNT));
            *other = kept;
            other->shift = number_below(3) == 0 ? 1 + number_below(15) : 0;
            for (size_t begin = 0, count; begin < COUNT; begin += count) {
                count = number_below(round % 2 == 0 ? 40 : 3000);
                count = count < COUNT - begin ? count : COUNT - begin;
                struct optimizer_span part = span_at(other, begin, count, in_place);
                optimizer_span_step((enum optimizer_rule)rule, &part, &factors, past_caches);
            }
            float(*result)[ROW] = in_place ? other->before : other->after;
            for (size_t array = 0; array < 1 + optimizer_rule_slots((enum optimizer_rule)rule); array++) {
                size_t shift = array == OPTIMIZER_SLOTS_MAX && !in_place ? other->shift : 0;
                assert_memory_equal(result[array] + shift, first->after[array], COUNT * sizeof(float));
            }
            assert_memory_equal(other->bfloat16, first->bfloat16, sizeof other->bfloat16);
            if (!in_place) {
                assert_memory_equal(other->before, kept.before, sizeof kept.before);
            }
        }
        free(first);
        free(other);
    }
}

static void other_arrays_are_left_alone(void **state) {
    (void)state;
    for (int rule = 0; rule < RULE_COUNT; rule++) {
        struct data *data = data_new();
        struct optimizer_span part = span_at(data, 3, 100, false);
        optimizer_span_step((enum optimizer_rule)rule, &part, &factors, true);
        for (size_t array = 0; array < ARRAYS; array++) {
            bool is_written = array <= optimizer_rule_slots((enum optimizer_rule)rule);
            for (size_t i = 0; i < COUNT; i++) {
                assert_true((data->after[array][i] != 0) == (is_written && i >= 3 && i < 103));
            }
        }
        free(data);
    }
}

static void without_a_gradient_values_are_copied(void **state) {
    (void)state;
    for (int past_caches = 0; past_caches < 2; past_caches++) {
        struct data *data = data_new();
        struct optimizer_span span = span_at(data, 0, COUNT, false);
        span.gradient = NULL;
        optimizer_span_step(RULE_ADAMW, &span, &factors, past_caches == 1);
        assert_memory_equal(data->after, data->before, sizeof data->after);
        for (size_t i = 0; i < COUNT; i++) {
            assert_true(widen(data->bfloat16[i]) == narrow_and_widen(data->before[0][i]) || data->before[0][i] == 0);
        }
        free(data);
    }
}

static void bfloat16_is_rounded_to_nearest_even(void **state) {
    (void)state;
    static const struct {
        float in;
        uint16_t out;
    } cases[] = {{1, 0x3f80},
                 {0x1.01p0F, 0x3f80},     /* halfway, down to even */
                 {0x1.03p0F, 0x3f82},     /* halfway, up to even */
                 {0x1.010002p0F, 0x3f81}, /* above halfway */
                 {-0x1.03p0F, 0xbf82},
                 {0x1.fffffep127F, 0x7f80}, /* too large */
                 {-INFINITY, 0xff80},
                 {0x1p-149F, 0},
                 {0x1p-133F, 1}, /* the least denormal */
                 {-0.0F, 0x8000}};
    for (int vectors = 0; vectors < OPTIMIZER_VECTORS_COUNT; vectors++) {
        (void)optimizer_vectors_choose((enum optimizer_vectors)vectors);
        for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
            float values[33];
            uint16_t halves[33];
            for (size_t k = 0; k < 33; k++) {
                values[k] = cases[i].in;
            }
            struct optimizer_span span = {
                .count = 33, .parameter = values, .parameter_out = values, .bfloat16_out = halves};
            optimizer_span_step(RULE_SGD, &span, &factors, false);
            for (size_t k = 0; k < 33; k++) {
                assert_int_equal(halves[k], cases[i].out);
            }
            values[0] = values[32] = NAN;
            optimizer_span_step(RULE_SGD, &span, &factors, false);
            assert_true(isnan(widen(halves[0])) && isnan(widen(halves[32])));
        }
    }
}

static void sums_of_squares_have_the_same_bits(void **state) {
    (void)state;
    enum { LARGE = 20011 };
    float *values = malloc((LARGE + 16) * sizeof *values), *shifted = malloc((LARGE + 16) * sizeof *values);
    assert_true(values && shifted);
    for (size_t i = 0; i < LARGE; i++) {
        values[i] = number() * (i % 7 == 0 ? 1e15F : 1);
    }
    for (int round = 0; round < ROUNDS; round++) {
        size_t count = number_below(LARGE), shift = number_below(16);
        long double exact = 0;
        for (size_t i = 0; i < count; i++) {
            exact += (long double)values[i] * (long double)values[i];
        }
        (void)optimizer_vectors_choose(OPTIMIZER_PORTABLE);
        double sum = optimizer_squares(values, count);
        assert_true(fabsl((long double)sum - exact) <= exact * 0x1p-48L); /* 4096/16 + 5 + 5 additions in a row */
        memcpy(shifted + shift, values, count * sizeof *values);
        for (int vectors = 0; vectors < OPTIMIZER_VECTORS_COUNT; vectors++) {
            (void)optimizer_vectors_choose((enum optimizer_vectors)vectors);
            double other = optimizer_squares(shifted + shift, count);
            assert_memory_equal(&other, &sum, sizeof sum);
        }
    }
    assert_true(optimizer_squares(NULL, 0) == 0);
    free(values);
    free(shifted);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_width_and_split_has_the_same_bits),
        cmocka_unit_test(other_arrays_are_left_alone),
        cmocka_unit_test(without_a_gradient_values_are_copied),
        cmocka_unit_test(bfloat16_is_rounded_to_nearest_even),
        cmocka_unit_test(sums_of_squares_have_the_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
