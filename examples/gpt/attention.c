/* Causal attention of several heads (Vaswani et al. 2017). See layers.h. Of one head, with a row for each token:
 *
 *     P = softmax(scale q k^T) with 0 above the diagonal, scale = 1 / sqrt(width of a head)
 *     y = P v
 *
 *     dP = dy v^T        dv = P^T dy
 *     dS = P * (dP - sum over the row of dP * P)
 *     dq = scale dS k    dk = scale dS^T q
 *
 * With dropout, D(P) stands for P in y and dv, and dP is D of the above. ATTENTION_ROWS queries are computed together;
 * they need the keys up to their own last one, so that almost half of the work is left out. */
#include <math.h>
#include <string.h>

#include "layers.h"
#include "product.h"
#include "vector.h"

/* One head of one sequence. Rows of q, k and v are `stride` apart, those of y `width`, those of P `length`. */
struct head {
    size_t at;          /* of q in qkv, and of dq in dqkv, in floats; k and v come `width` and 2 * `width` later */
    size_t y_at, p_at;  /* likewise in y and in the probabilities */
    uint64_t first_row; /* number of its first row for dropout */
};

static struct head head_of(const struct attention *a, int sequence, int number) {
    size_t length = (size_t)a->length, width = (size_t)a->width, size = width / (size_t)a->heads;
    size_t begin = (size_t)sequence * length, matrix = (size_t)sequence * (size_t)a->heads + (size_t)number;
    uint64_t row = ((a->first_sequence + (uint64_t)sequence) * (uint64_t)a->heads + (uint64_t)number) * length;
    return (struct head){.at = begin * 3 * width + (size_t)number * size,
                         .y_at = begin * width + (size_t)number * size,
                         .p_at = matrix * length * length,
                         .first_row = row};
}

/* Softmax of rows `from` up to `to`, over the keys up to each one's own; 0 for the keys from there up to `to`. */
VECTORISED static void causal_softmax(float *p, int from, int to, int stride) {
    for (int row = from; row < to; row++, p += stride) {
        float most = p[0], sum = 0;
        SIMD_MAX(most)
        for (int i = 0; i <= row; i++) {
            most = p[i] > most ? p[i] : most;
        }
        SIMD_SUM(sum)
        for (int i = 0; i <= row; i++) {
            p[i] = vector_exp(p[i] - most);
            sum += p[i];
        }
        float share = 1 / sum;
        SIMD for (int i = 0; i <= row; i++) {
            p[i] *= share;
        }
        memset(p + row + 1, 0, (size_t)(to - row - 1) * sizeof *p);
    }
}

/* dP becomes dS, for rows whose keys are `keys`. */
VECTORISED static void softmax_backward(const float *p, float *dp, int rows, int keys, int stride) {
    for (int row = 0; row < rows; row++, p += stride, dp += stride) {
        float sum = 0;
        SIMD_SUM(sum)
        for (int i = 0; i < keys; i++) {
            sum += dp[i] * p[i];
        }
        SIMD for (int i = 0; i < keys; i++) {
            dp[i] = p[i] * (dp[i] - sum);
        }
    }
}

/* D of rows `from` up to `to`; x may be y. */
static void drop(const struct attention *a, const struct head *head, int from, int to, const float *x, float *y) {
    for (int row = from; row < to; row++, x += a->length, y += a->length) {
        dropout_row(&a->dropout, head->first_row + (uint64_t)row, to, x, y);
    }
}

static void head_forward(const struct attention *a, const struct head *head, const float *qkv, float *probabilities,
                         float *y) {
    int width = a->width, stride = 3 * width, size = width / a->heads;
    const float *q = qkv + head->at, *k = q + width, *v = k + width;
    for (int from = 0; from < a->length; from += ATTENTION_ROWS) {
        int to = from + ATTENTION_ROWS < a->length ? from + ATTENTION_ROWS : a->length, rows = to - from;
        const float *q_rows = q + (size_t)from * (size_t)stride;
        float *p = probabilities + head->p_at + (size_t)from * (size_t)a->length;
        const float *used = p;
        product((struct product){rows, to, size, 1 / sqrtf((float)size), false}, plain(q_rows, stride),
                transposed(k, stride), p, a->length);
        causal_softmax(p, from, to, a->length);
        if (a->dropout.rate > 0) {
            drop(a, head, from, to, p, a->scratch);
            used = a->scratch;
        }
        product((struct product){rows, size, to, 1, false}, plain(used, a->length), plain(v, stride),
                y + head->y_at + (size_t)from * (size_t)width, width);
    }
}

/* Rows `from` up to `to`. The last rows come first: they reach all keys, so they overwrite dk and dv, and the others
 * add. */
static void backward_rows(const struct attention *a, const struct head *head, int from, int to, const float *qkv,
                          const float *p, const float *dy, float *dqkv) {
    int width = a->width, stride = 3 * width, size = width / a->heads, rows = to - from, length = a->length;
    float scale = 1 / sqrtf((float)size);
    bool add = to < length;
    const float *q = qkv + head->at, *k = q + width, *v = k + width;
    float *dq = dqkv + head->at, *dk = dq + width, *dv = dk + width;
    float *dp = a->scratch, *dropped = a->scratch + (size_t)ATTENTION_ROWS * (size_t)length;
    const float *used = p;
    size_t first = (size_t)from * (size_t)stride;

    product((struct product){rows, to, size, 1, false}, plain(dy, width), transposed(v, stride), dp, length);
    if (a->dropout.rate > 0) {
        drop(a, head, from, to, dp, dp);
        drop(a, head, from, to, p, dropped);
        used = dropped;
    }
    product((struct product){to, size, rows, 1, add}, transposed(used, length), plain(dy, width), dv, stride);
    softmax_backward(p, dp, rows, to, length);
    product((struct product){rows, size, to, scale, false}, plain(dp, length), plain(k, stride), dq + first, stride);
    product((struct product){to, size, rows, scale, add}, transposed(dp, length), plain(q + first, stride), dk, stride);
}

void attention_forward(const struct attention *attention, const float *qkv, float *probabilities, float *y) {
    for (int i = 0; i < attention->batch * attention->heads; i++) {
        struct head head = head_of(attention, i / attention->heads, i % attention->heads);
        head_forward(attention, &head, qkv, probabilities, y);
    }
}

void attention_backward(const struct attention *attention, const float *qkv, const float *probabilities,
                        const float *dy, float *dqkv) {
    int length = attention->length, width = attention->width;
    for (int i = 0; i < attention->batch * attention->heads; i++) {
        struct head head = head_of(attention, i / attention->heads, i % attention->heads);
        for (int to = length; to > 0;) {
            int from = (to - 1) / ATTENTION_ROWS * ATTENTION_ROWS;
            backward_rows(attention, &head, from, to, qkv, probabilities + head.p_at + (size_t)from * (size_t)length,
                          dy + head.y_at + (size_t)from * (size_t)width, dqkv);
            to = from;
        }
    }
}
