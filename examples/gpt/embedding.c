/* The vectors of tokens and of their places. See layers.h. */
#include "layers.h"
#include "vector.h"

VECTORISED void embedding_forward(const struct embedding *embedding, const int32_t *tokens, const float *token_weight,
                                  const float *position_weight, float *y) {
    int width = embedding->width, count = embedding->batch * embedding->length;
    for (int n = 0; n < count; n++, y += width) {
        const float *token = token_weight + (size_t)tokens[n] * (size_t)width;
        const float *position = position_weight + (size_t)(n % embedding->length) * (size_t)width;
        SIMD for (int i = 0; i < width; i++) {
            y[i] = token[i] + position[i];
        }
    }
}

VECTORISED void embedding_backward(const struct embedding *embedding, const int32_t *tokens, const float *dy,
                                   float *dtoken_weight, float *dposition_weight) {
    int width = embedding->width, count = embedding->batch * embedding->length;
    for (int n = 0; n < count; n++, dy += width) {
        float *token = dtoken_weight + (size_t)tokens[n] * (size_t)width;
        float *position = dposition_weight + (size_t)(n % embedding->length) * (size_t)width;
        SIMD for (int i = 0; i < width; i++) {
            token[i] += dy[i];
            position[i] += dy[i];
        }
    }
}
