/* The kernels, in what C and CUDA's C++ have in common. Whoever includes this says what becomes of the text: CODE(...),
 * a string for NVRTC, or code for the double of it; and in that text KERNEL, PART (of a kernel), BITS_OF(a float) and
 * FLOAT_OF(its bits), and FIRST and STEP, the elements of a thread. Without include guards: each use is one expansion.
 *
 * The arithmetic is that of train/reduction/narrow.c and comm/reduce/reduce_template.h: to nearest, ties to even. */

#ifndef CODE /* nobody includes it */
#define CODE(...)
#endif

CODE(
    PART unsigned bfloat16_of(float value) {
        unsigned bits = BITS_OF(value);
        unsigned rounded = bits + 0x7fff + (bits >> 16 & 1);
        return ((bits & 0x7fffffff) > 0x7f800000 ? bits | 0x400000 : rounded) >> 16;
    }

    PART float of_bfloat16(unsigned half) { return FLOAT_OF(half << 16); }

    PART unsigned float16_of(float value) {
        unsigned bits = BITS_OF(value) & 0x7fffffff;
        unsigned sign = BITS_OF(value) >> 16 & 0x8000;
        unsigned kept = (bits - (112u << 23) + 0xfff + (bits >> 13 & 1)) >> 13;
        if (bits < 113u << 23) {
            kept = BITS_OF(FLOAT_OF(bits) + 0.5f) - (126u << 23);
        } else if (bits >= 143u << 23) {
            kept = bits > 0x7f800000 ? 0x7e00 : 0x7c00;
        }
        return kept | sign;
    }

    PART float of_float16(unsigned half) {
        unsigned fields = (half & 0x7fff) << 13;
        unsigned exponent = half & 0x7c00;
        unsigned bits = fields + (112u << 23);
        if (exponent == 0x7c00) {
            bits = fields + (224u << 23);
        } else if (exponent == 0) {
            bits = BITS_OF(FLOAT_OF(fields + (113u << 23)) - FLOAT_OF(113u << 23));
        }
        return FLOAT_OF(bits | (half & 0x8000) << 16);
    })

/* NOLINTBEGIN(bugprone-macro-parentheses): `type` is a type */
#define NARROW(half, type, wide)                                                                                       \
    CODE(KERNEL void muster_narrow_##wide##_##half(unsigned short *out, const type *in, unsigned long long count) {    \
        for (unsigned long long i = FIRST; i < count; i += STEP) {                                                     \
            out[i] = (unsigned short)half##_of((float)in[i]);                                                          \
        }                                                                                                              \
    })
#define WIDEN(half, type, wide)                                                                                        \
    CODE(KERNEL void muster_widen_##wide##_##half(type *out, const unsigned short *in, unsigned long long count) {     \
        for (unsigned long long i = FIRST; i < count; i += STEP) {                                                     \
            out[i] = (type)of_##half(in[i]);                                                                           \
        }                                                                                                              \
    })
#define DIVIDE(type, wide)                                                                                             \
    CODE(KERNEL void muster_divide_##wide(type *data, unsigned long long count, unsigned divisor) {                    \
        for (unsigned long long i = FIRST; i < count; i += STEP) {                                                     \
            data[i] = data[i] / (type)divisor;                                                                         \
        }                                                                                                              \
    })
#define DIVIDE_HALF(half)                                                                                              \
    CODE(KERNEL void muster_divide_##half(unsigned short *data, unsigned long long count, unsigned divisor) {          \
        for (unsigned long long i = FIRST; i < count; i += STEP) {                                                     \
            data[i] = (unsigned short)half##_of(of_##half(data[i]) / (float)divisor);                                  \
        }                                                                                                              \
    })
/* NOLINTEND(bugprone-macro-parentheses) */

NARROW(bfloat16, float, float32)
NARROW(float16, float, float32)
NARROW(bfloat16, double, float64)
NARROW(float16, double, float64)
WIDEN(bfloat16, float, float32)
WIDEN(float16, float, float32)
WIDEN(bfloat16, double, float64)
WIDEN(float16, double, float64)
DIVIDE(float, float32)
DIVIDE(double, float64)
DIVIDE_HALF(bfloat16)
DIVIDE_HALF(float16)

#undef NARROW
#undef WIDEN
#undef DIVIDE
#undef DIVIDE_HALF
