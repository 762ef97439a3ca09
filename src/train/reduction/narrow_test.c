/* 16-bit floats: exact on the way back, to nearest even on the way there, for every value where that can be tried.
 *
 * Recorded values are those of PyTorch 2.13: torch.tensor(x).to(torch.float16).view(torch.int16). */
#include "train/reduction/narrow.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static uint16_t narrow(enum muster_type to, float value) {
    uint16_t half, through_double;
    double wide = (double)value;
    narrow_floats(to, &half, MUSTER_FLOAT32, &value, 1);
    narrow_floats(to, &through_double, MUSTER_FLOAT64, &wide, 1);
    assert_int_equal(half, through_double);
    return half;
}

static float widen(enum muster_type from, uint16_t half) {
    float value;
    double wide;
    widen_floats(MUSTER_FLOAT32, &value, from, &half, 1);
    widen_floats(MUSTER_FLOAT64, &wide, from, &half, 1);
    assert_true((isnan(wide) && isnan(value)) || (double)value == wide);
    return value;
}

/* By the definition of the formats. */
static double meaning(enum muster_type type, uint16_t half) {
    int fraction_bits = type == MUSTER_FLOAT16 ? 10 : 7, bias = type == MUSTER_FLOAT16 ? 15 : 127;
    int exponent = (half & 0x7fff) >> fraction_bits, fraction = half & ((1 << fraction_bits) - 1);
    double sign = half & 0x8000 ? -1 : 1;
    if (exponent == (0x7fff >> fraction_bits)) {
        return fraction ? NAN : sign * INFINITY;
    }
    double significand = fraction + (exponent > 0 ? 1 << fraction_bits : 0);
    return sign * ldexp(significand, (exponent > 0 ? exponent : 1) - bias - fraction_bits);
}

static void every_half_comes_back(void **state) {
    (void)state;
    static const enum muster_type types[] = {MUSTER_BFLOAT16, MUSTER_FLOAT16};
    for (int kind = 0; kind < 2; kind++) {
        for (uint32_t half = 0; half < 65536; half++) {
            float value = widen(types[kind], (uint16_t)half);
            double expected = meaning(types[kind], (uint16_t)half);
            if (isnan(expected)) {
                assert_true(isnan(value) && isnan(widen(types[kind], narrow(types[kind], value))));
                continue;
            }
            assert_true((double)value == expected && (signbit(value) != 0) == (half >> 15 != 0));
            assert_int_equal(narrow(types[kind], value), half);
        }
    }
}

/* Between two neighbours: the nearer one, and in the middle the even one. */
static void rounds_to_nearest_even(void **state) {
    (void)state;
    static const struct {
        enum muster_type type;
        uint16_t largest;
    } kinds[] = {{MUSTER_BFLOAT16, 0x7f7f}, {MUSTER_FLOAT16, 0x7bff}};
    for (int kind = 0; kind < 2; kind++) {
        enum muster_type type = kinds[kind].type;
        for (uint16_t half = 0; half < kinds[kind].largest; half++) {
            uint16_t above = (uint16_t)(half + 1), even = half % 2 == 0 ? half : above;
            float middle = (float)((meaning(type, half) + meaning(type, above)) / 2);
            assert_int_equal(narrow(type, middle), even);
            assert_int_equal(narrow(type, nextafterf(middle, -INFINITY)), half);
            assert_int_equal(narrow(type, nextafterf(middle, INFINITY)), above);
            assert_int_equal(narrow(type, -middle), even | 0x8000);
        }
    }
}

static void beyond_the_range(void **state) {
    (void)state;
    assert_int_equal(narrow(MUSTER_FLOAT16, 65504), 0x7bff);
    assert_int_equal(narrow(MUSTER_FLOAT16, 65519), 0x7bff);
    assert_int_equal(narrow(MUSTER_FLOAT16, 65520), 0x7c00);
    assert_int_equal(narrow(MUSTER_FLOAT16, -1e30F), 0xfc00);
    assert_int_equal(narrow(MUSTER_FLOAT16, 1e-8F), 0);
    assert_int_equal(narrow(MUSTER_FLOAT16, -1e-8F), 0x8000);
    assert_int_equal(narrow(MUSTER_BFLOAT16, 3.4e38F), 0x7f80);
    assert_int_equal(narrow(MUSTER_BFLOAT16, INFINITY), 0x7f80);
    assert_int_equal(narrow(MUSTER_FLOAT16, -INFINITY), 0xfc00);
    uint16_t half;
    double huge = 1e300;
    narrow_floats(MUSTER_BFLOAT16, &half, MUSTER_FLOAT64, &huge, 1);
    assert_int_equal(half, 0x7f80);
}

static void recorded_values(void **state) {
    (void)state;
    static const struct {
        float value;
        uint16_t float16, bfloat16;
    } cases[] = {
        {0.1F, 0x2e66, 0x3dcd},       {-0.3333333F, 0xb555, 0xbeab}, {1.0009765F, 0x3c01, 0x3f80},
        {6.1e-05F, 0x03ff, 0x3880},   {5.96e-08F, 0x0001, 0x3380},   {3.1415927F, 0x4248, 0x4049},
        {-1234.567F, 0xe4d3, 0xc49a}, {0.00012345F, 0x080c, 0x3901},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(narrow(MUSTER_FLOAT16, cases[i].value), cases[i].float16);
        assert_int_equal(narrow(MUSTER_BFLOAT16, cases[i].value), cases[i].bfloat16);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_comes_back),
        cmocka_unit_test(rounds_to_nearest_even),
        cmocka_unit_test(beyond_the_range),
        cmocka_unit_test(recorded_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
