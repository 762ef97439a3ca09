/* Weights from elsewhere: a safetensors file of float32, float16 or bfloat16 with the names of minGPT, which are those
 * of snapshots and of examples/pytorch/gpt.py too, or of Hugging Face's GPT-2.
 *
 * The names are the same but for the beginning "transformer.", which Hugging Face's files may lack. Their matrices of
 * linear layers are (in, out), and their head is the token embedding, so that such a model needs --tied. What else is
 * in the file, such as masks, is left alone. */
#ifndef EXAMPLES_GPT_WEIGHTS_H
#define EXAMPLES_GPT_WEIGHTS_H

#include "gpt.h"

/* Where a model's first values come from. */
struct first_values {
    const char *path; /* of a file of weights; NULL: drawn by `seed` */
    uint64_t seed;
};

/* Fills unit number `unit`, the same wherever and in whatever order units are filled. */
void first_values_fill(const struct first_values *first, const struct gpt_parameters *parameters, int unit,
                       float *values);

/* Fills unit number `unit` from the file, as gpt_parameters_fill() fills it with first values. Fails with a sentence
 * that names the tensor if one is missing or has another shape. */
void weights_fill(const char *path, const struct gpt_parameters *parameters, int unit, float *values);

#endif
