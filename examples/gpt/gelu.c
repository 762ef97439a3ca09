/* GELU in the approximation by tanh (Hendrycks and Gimpel 2016), which GPT-2 uses. See layers.h. Since
 * (1 + tanh(u)) / 2 = s(2u) with the logistic function s(v) = 1 / (1 + e^-v):
 *
 *     v = 2 sqrt(2 / pi) (x + 0.044715 x^3)
 *     gelu(x) = x s(v)
 *     gelu'(x) = s(v) + x s(v) (1 - s(v)) v'(x)
 *
 * The forward pass has s(v) at hand and computes both. */
#include "layers.h"
#include "vector.h"

static const float SLOPE = 1.59576912F; /* 2 sqrt(2 / pi) */
static const float CUBE = 0.044715F;

VECTORISED void gelu_forward(int rows, int width, const float *restrict bias, float *restrict x,
                             float *restrict derivative) {
    for (int row = 0; row < rows; row++, x += width, derivative += width) {
        SIMD for (int i = 0; i < width; i++) {
            float z = x[i] + bias[i], square = z * z;
            float s = 1 / (1 + vector_exp(-SLOPE * z * (1 + CUBE * square)));
            x[i] = z * s;
            derivative[i] = s + z * s * (1 - s) * SLOPE * (1 + 3 * CUBE * square);
        }
    }
}

VECTORISED void gelu_backward(size_t count, const float *restrict derivative, float *restrict dy) {
    SIMD for (size_t i = 0; i < count; i++) {
        dy[i] *= derivative[i];
    }
}
