/* A GPT with the shapes, options and tensor names of minGPT, forward and backward, in float32.
 *
 *     tokens (batch, length) -> token embedding + position embedding
 *     `layers` blocks           x += attention(norm(x)); x += mlp(norm(x))
 *     norm, head             -> logits (batch, length, vocabulary)
 *
 * The parameters are an ordered list of named tensors (parameters.c). Neighbours form units: the embedding, each block,
 * and the final norm with the head. The parameters of a unit are one range of floats, and so are its gradients. The
 * model owns neither: before it uses a unit it asks for it, and says when it is done (struct gpt_memory). So the same
 * model trains in one process, with ddp, and with parameters that are spread over processes and gathered when needed.
 *
 * A step: gpt_forward(), gpt_loss(), gpt_backward(). Failures end the program (fail.h). One thread at a time for one
 * model. */
#ifndef EXAMPLES_GPT_GPT_H
#define EXAMPLES_GPT_GPT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* minGPT's names are in brackets. */
struct gpt_shape {
    int vocabulary;  /* [vocab_size] */
    int context;     /* tokens of a sequence at most [block_size] */
    int layers;      /* [n_layer] */
    int heads;       /* [n_head] */
    int width;       /* of a token's vector, a multiple of heads [n_embd] */
    bool tied;       /* the head's weight is the token embedding, as in GPT-2 */
    bool checkpoint; /* keep a block's input alone, and compute the rest again in the backward pass */
    float embedding_dropout, residual_dropout, attention_dropout; /* [embd_pdrop, resid_pdrop, attn_pdrop] */
};

/* ---- Parameters ---- */

/* A matrix is (rows, columns), row-major: PyTorch's (out, in). */
struct gpt_tensor {
    char name[48];
    int rows, columns; /* columns 0: a vector of `rows` */
    size_t offset;     /* in its unit, in floats: a multiple of GPT_ALIGNMENT */
    size_t count;      /* of floats */
    float deviation;   /* first values are drawn from N(0, deviation^2); 0: all are `constant` */
    float constant;
    bool decays; /* weight decay is for the matrices of linear layers alone */
};

/* Tensors begin at multiples of 64 bytes. The gaps between them hold zeros, and the model leaves them alone. */
enum { GPT_ALIGNMENT = 16 };

struct gpt_unit {
    const struct gpt_tensor *tensors;
    size_t tensor_count;
    size_t float_count; /* gaps included: a multiple of GPT_ALIGNMENT */
    int uses;           /* in each pass: 2 for the embedding if the head is tied to it, else 1 */
};

/* Units in the order of the forward pass: GPT_EMBEDDING, the blocks from GPT_FIRST_BLOCK on, the final one. */
enum { GPT_EMBEDDING = 0, GPT_FIRST_BLOCK = 1 };

struct gpt_parameters {
    int unit_count;
    struct gpt_unit *units;
    struct gpt_tensor *tensors;
    size_t tensor_count;
    size_t float_count;     /* of all units */
    size_t parameter_count; /* without the gaps */
};

struct gpt_parameters *gpt_parameters_create(const struct gpt_shape *shape);
void gpt_parameters_free(struct gpt_parameters *parameters); /* NULL is accepted */

/* First values of unit number `unit`, the same wherever and in whatever order units are filled. */
void gpt_parameters_fill(const struct gpt_parameters *parameters, int unit, uint64_t seed, float *values);

/* ---- Where they are ---- */

enum gpt_pass { GPT_FORWARD, GPT_BACKWARD };

struct gpt_range {
    const float *parameters;
    float *gradients; /* in the backward pass */
    bool add;         /* to the gradients that are there; else they are overwritten */
};

/* Both calls come from within gpt_forward() and gpt_backward(). What acquire() returns must stay where it is until
 * release(), and may be elsewhere the next time; only gradients keep their values. In the forward pass units come in
 * order, in the backward pass in the opposite order. A tied head uses GPT_EMBEDDING once more, while it holds the final
 * unit. Each of the unit's `uses` writes or adds to all of its gradients: from the second one on, acquire() must give
 * add = true. At the last release() of the backward pass they are complete. acquire() cannot fail: a caller that has
 * nothing to give returns memory of any content, and throws the results away. */
struct gpt_memory {
    void *context;
    struct gpt_range (*acquire)(void *context, int unit, enum gpt_pass pass);
    void (*release)(void *context, int unit, enum gpt_pass pass);
};

/* ---- The model ---- */

struct gpt;

/* batch: sequences at most. Copies shape and memory, borrows parameters. */
struct gpt *gpt_create(const struct gpt_shape *shape, const struct gpt_parameters *parameters, int batch,
                       const struct gpt_memory *memory);
void gpt_free(struct gpt *model); /* NULL is accepted */

/* What decides which values are dropped. Nothing else does, so that it does not matter which process has a sequence. */
struct gpt_dropout {
    uint64_t seed, step;
    uint64_t first_sequence; /* number of the first sequence of this call in the batch of all processes */
};

/* tokens: batch * length of them, each below the vocabulary; borrowed until gpt_backward() or the next call. length: at
 * most the context. dropout: NULL drops nothing. */
void gpt_forward(struct gpt *model, const int32_t *tokens, int batch, int length, const struct gpt_dropout *dropout);

/* Of the last forward call: (batch, length, vocabulary). Valid until gpt_backward(). */
const float *gpt_logits(const struct gpt *model);

/* Mean cross-entropy of the logits. targets: like tokens, and borrowed as long. */
double gpt_loss(struct gpt *model, const int32_t *targets);

/* Gradients of the mean loss times `weight`: 1, or what makes the average over processes right whose batches have
 * different sizes. After gpt_forward() and gpt_loss(), once. */
void gpt_backward(struct gpt *model, float weight);

#endif
