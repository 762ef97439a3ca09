/* The layers of the GPT: each has a file of its own, with its formulas. Matrices are row-major floats; a row is what
 * the network knows of one token. Layers keep nothing: what the backward pass needs is the caller's (block.c). */
#ifndef EXAMPLES_GPT_LAYERS_H
#define EXAMPLES_GPT_LAYERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- linear.c: y = x w^T + bias ---- */

/* x is (rows, in), w is (out, in), y is (rows, out). */
struct linear {
    int rows, in, out;
};

void linear_forward(struct linear shape, const float *x, const float *w, const float *bias, float *y);

/* y = base + x w^T + bias, where base is like y. */
void linear_add(struct linear shape, const float *x, const float *w, const float *bias, const float *base, float *y);

/* dx = dy w. */
void linear_backward_input(struct linear shape, const float *dy, const float *w, float *dx);

/* dw = dy^T x, dbias = the sum of dy's rows; added to what is there if `add`. linear_forward()'s bias and dbias may be
 * NULL. */
void linear_backward_weight(struct linear shape, const float *x, const float *dy, float *dw, float *dbias, bool add);

/* ---- layer_norm.c: each row to mean 0 and variance 1, then scaled and shifted ---- */

/* The statistics of each row, for the backward pass. */
struct layer_norm {
    float *mean, *inverse_deviation; /* rows of them */
};

void layer_norm_forward(const struct layer_norm *norm, int rows, int width, const float *x, const float *weight,
                        const float *bias, float *y);

/* The gradients of a layer norm's parameters; added to what is there if `add`. */
struct layer_norm_gradients {
    float *weight, *bias;
    bool add;
};

/* dx += the gradient of x: x also goes past the layer, and that gradient is in dx already. */
void layer_norm_backward(const struct layer_norm *norm, int rows, int width, const float *x, const float *weight,
                         const float *dy, float *dx, const struct layer_norm_gradients *gradients);

/* ---- gelu.c ---- */

/* x becomes gelu(x + bias), and the derivative there is kept for the backward pass. The bias is that of the linear
 * layer before: adding it here saves a pass over memory. */
void gelu_forward(int rows, int width, const float *bias, float *x, float *derivative);

/* dy becomes dy * derivative. */
void gelu_backward(size_t count, const float *derivative, float *dy);

/* ---- dropout.c ---- */

/* Row number r of a matrix that is dropped with `rate`: which of its values depends on key and r alone. */
struct dropout {
    uint64_t key;
    float rate; /* 0: nothing is dropped */
};

/* y = x, where each value is 0 with probability rate, and else x / (1 - rate). x may be y. */
void dropout_row(const struct dropout *dropout, uint64_t row, int width, const float *x, float *y);
void dropout_rows(const struct dropout *dropout, uint64_t first_row, int rows, int width, const float *x, float *y);

/* y = x + z after dropout of z. */
void dropout_add(const struct dropout *dropout, uint64_t first_row, int rows, int width, const float *x, const float *z,
                 float *y);

/* ---- attention.c ---- */

enum { ATTENTION_ROWS = 64 }; /* that are computed together */

struct attention {
    int batch, length, heads, width;
    struct dropout dropout;
    uint64_t first_sequence;
    float *scratch; /* 2 * ATTENTION_ROWS * length floats */
};

/* qkv is (batch * length, 3 * width): a token's query, key and value, in each of which the heads lie side by side. y is
 * (batch * length, width). probabilities (batch, heads, length, length) is for the backward pass. */
void attention_forward(const struct attention *attention, const float *qkv, float *probabilities, float *y);
void attention_backward(const struct attention *attention, const float *qkv, const float *probabilities,
                        const float *dy, float *dqkv);

/* ---- embedding.c ---- */

struct embedding {
    int batch, length, width, vocabulary, context;
};

/* y of a token = token_weight[token] + position_weight[its place in the sequence]. */
void embedding_forward(const struct embedding *embedding, const int32_t *tokens, const float *token_weight,
                       const float *position_weight, float *y);

/* Adds to both. */
void embedding_backward(const struct embedding *embedding, const int32_t *tokens, const float *dy, float *dtoken_weight,
                        float *dposition_weight);

/* ---- loss.c ---- */

/* Mean over rows of -log softmax(logits)[target]. log_sums: rows of them, for the backward pass. */
double loss_forward(int rows, int vocabulary, const float *logits, const int32_t *targets, float *log_sums);

/* Logits become the gradients of that mean times `weight`. */
void loss_backward(int rows, int vocabulary, float weight, float *logits, const int32_t *targets,
                   const float *log_sums);

#endif
