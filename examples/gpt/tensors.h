/* Which tensor of a unit is which: the order in which parameters.c lists them. */
#ifndef EXAMPLES_GPT_TENSORS_H
#define EXAMPLES_GPT_TENSORS_H

enum embedding_tensor { EMBEDDING_TOKEN, EMBEDDING_POSITION, EMBEDDING_TENSORS };

/* Name, rows and columns in units of the width (columns 0: a vector), and what the first values are. */
#define BLOCK_TENSOR_TABLE(X)                                                                                          \
    X(BLOCK_NORM1_WEIGHT, "ln_1.weight", 1, 0, ONES)                                                                   \
    X(BLOCK_NORM1_BIAS, "ln_1.bias", 1, 0, ZEROS)                                                                      \
    X(BLOCK_QKV_WEIGHT, "attn.c_attn.weight", 3, 1, NORMAL)                                                            \
    X(BLOCK_QKV_BIAS, "attn.c_attn.bias", 3, 0, ZEROS)                                                                 \
    X(BLOCK_HEADS_WEIGHT, "attn.c_proj.weight", 1, 1, NORMAL_RESIDUAL)                                                 \
    X(BLOCK_HEADS_BIAS, "attn.c_proj.bias", 1, 0, ZEROS)                                                               \
    X(BLOCK_NORM2_WEIGHT, "ln_2.weight", 1, 0, ONES)                                                                   \
    X(BLOCK_NORM2_BIAS, "ln_2.bias", 1, 0, ZEROS)                                                                      \
    X(BLOCK_UP_WEIGHT, "mlp.c_fc.weight", 4, 1, NORMAL)                                                                \
    X(BLOCK_UP_BIAS, "mlp.c_fc.bias", 4, 0, ZEROS)                                                                     \
    X(BLOCK_DOWN_WEIGHT, "mlp.c_proj.weight", 1, 4, NORMAL_RESIDUAL)                                                   \
    X(BLOCK_DOWN_BIAS, "mlp.c_proj.bias", 1, 0, ZEROS)

enum block_tensor {
#define X(name, text, rows, columns, values) name,
    BLOCK_TENSOR_TABLE(X)
#undef X
        BLOCK_TENSORS
};

/* A tied head has no weight of its own. */
enum final_tensor { FINAL_NORM_WEIGHT, FINAL_NORM_BIAS, FINAL_HEAD_WEIGHT, FINAL_TENSORS };

#endif
