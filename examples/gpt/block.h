/* One transformer block: x += attention(norm(x)), x += mlp(norm(x)), forward and backward. */
#ifndef EXAMPLES_GPT_BLOCK_H
#define EXAMPLES_GPT_BLOCK_H

#include "gpt.h"
#include "layers.h"

/* What the forward pass keeps for the backward pass; n = batch * length rows, c = width. */
struct block_state {
    struct layer_norm norm1, norm2;
    float *normed1;       /* (n, c) */
    float *qkv;           /* (n, 3c) */
    float *probabilities; /* (batch, heads, length, length) */
    float *attended;      /* (n, c) */
    float *middle;        /* (n, c): x + attention */
    float *normed2;       /* (n, c) */
    float *active;        /* (n, 4c): after GELU */
    float *derivative;    /* (n, 4c): of GELU */
};

/* All blocks take turns with it. */
struct block_scratch {
    float *narrow, *dropped; /* (n, c) */
    float *wide;             /* (n, 4c) */
    float *attention;        /* struct attention */
};

/* Room for `batch` sequences as long as the context. */
void block_state_init(struct block_state *state, const struct gpt_shape *shape, int batch);
void block_state_done(struct block_state *state);
void block_scratch_init(struct block_scratch *scratch, const struct gpt_shape *shape, int batch);
void block_scratch_done(struct block_scratch *scratch);

/* One use of a block. */
struct block {
    const struct gpt_shape *shape;
    const struct gpt_unit *unit;
    int batch, length;
    bool drops;
    uint64_t key;            /* of this block and step, for dropout */
    uint64_t first_sequence; /* as in struct gpt_dropout */
    const struct block_scratch *scratch;
};

/* y: NULL if the state alone is wanted, to go backward from. */
void block_forward(const struct block *block, const float *parameters, const float *x, struct block_state *state,
                   float *y);

/* d: the gradient of y becomes that of x. */
void block_backward(const struct block *block, const struct gpt_range *range, const float *x,
                    const struct block_state *state, float *d);

#endif
