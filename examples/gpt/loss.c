/* Cross-entropy of a softmax. See layers.h. With S = log(sum of e^logit) of a row:
 *
 *     loss = S - logit of the target
 *     dlogit = (e^(logit - S) - [is the target]) * weight / rows */
#include <math.h>

#include "layers.h"
#include "vector.h"

VECTORISED double loss_forward(int rows, int vocabulary, const float *logits, const int32_t *targets, float *log_sums) {
    double loss = 0;
    for (int row = 0; row < rows; row++, logits += vocabulary) {
        float most = logits[0], sum = 0;
        SIMD_MAX(most)
        for (int i = 0; i < vocabulary; i++) {
            most = logits[i] > most ? logits[i] : most;
        }
        SIMD_SUM(sum)
        for (int i = 0; i < vocabulary; i++) {
            sum += vector_exp(logits[i] - most);
        }
        log_sums[row] = most + logf(sum);
        loss += (double)(log_sums[row] - logits[targets[row]]);
    }
    return loss / rows;
}

VECTORISED void loss_backward(int rows, int vocabulary, float weight, float *logits, const int32_t *targets,
                              const float *log_sums) {
    float share = weight / (float)rows;
    for (int row = 0; row < rows; row++, logits += vocabulary) {
        SIMD for (int i = 0; i < vocabulary; i++) {
            logits[i] = vector_exp(logits[i] - log_sums[row]) * share;
        }
        logits[targets[row]] -= share;
    }
}
