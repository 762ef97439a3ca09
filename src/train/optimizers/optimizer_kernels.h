/* The arithmetic of the optimizers over one range of elements; formulas in muster/optimizer.h. Pure.
 *
 * Every element is computed by itself, from what was there before into what is there after, which may be the same
 * memory. So the results have the same bits for every split into ranges, every alignment and every width of vectors. */
#ifndef TRAIN_OPTIMIZER_KERNELS_H
#define TRAIN_OPTIMIZER_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { OPTIMIZER_SLOTS_MAX = 2 };

/* What is computed; behind it what is remembered of an element, in the order of the slots. */
enum optimizer_rule {
    RULE_SGD,          /* nothing */
    RULE_SGD_MOMENTUM, /* b */
    RULE_SGD_NESTEROV, /* b */
    RULE_ADADELTA,     /* s, a */
    RULE_ADAM,         /* m, v */
    RULE_ADAMW,        /* m, v */
    RULE_COUNT
};

/* Each rule reads those that its formula has. */
struct optimizer_factors {
    float scale;  /* of gradients, before anything else */
    float rate;   /* Adam: rate / (1 - beta1^t) */
    float decay;  /* weight decay; AdamW's is in `shrink` */
    float shrink; /* 1 - rate * decay */
    float epsilon;
    float momentum, undamped; /* undamped: 1 - dampening, 1 in the first step */
    float rho, one_minus_rho;
    float one_minus_beta1, beta2, one_minus_beta2;
    float root_bias; /* sqrt(1 - beta2^t) */
};

/* Each pointer is to `count` elements. An output is the input of the same name, or does not overlap any other array. */
struct optimizer_span {
    size_t count;
    const float *gradient; /* NULL: nothing is computed, inputs are copied to outputs */
    const float *parameter, *slots[OPTIMIZER_SLOTS_MAX];
    float *parameter_out, *slots_out[OPTIMIZER_SLOTS_MAX];
    uint16_t *bfloat16_out; /* parameter_out rounded to nearest even; NULL for none */
};

size_t optimizer_rule_slots(enum optimizer_rule rule);

/* past_caches: what is written elsewhere is not going to be read soon. It is then stored without reading from memory
 * what it overwrites, if all outputs have the same alignment to 64 bytes. */
void optimizer_span_step(enum optimizer_rule rule, const struct optimizer_span *span,
                         const struct optimizer_factors *factors, bool past_caches);

/* The sum of squares, in an order that the position in `values` alone decides. */
double optimizer_squares(const float *values, size_t count);

/* For tests and benchmarks: those vectors from now on. False if the processor lacks them. */
enum optimizer_vectors { OPTIMIZER_PORTABLE, OPTIMIZER_AVX2, OPTIMIZER_AVX512, OPTIMIZER_VECTORS_COUNT };
bool optimizer_vectors_choose(enum optimizer_vectors vectors);

#endif
