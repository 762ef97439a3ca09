/* The loops of batch normalisation over one rank's [n, channels, plane] arrays. Sums are kept in float64: products of
 * float32 are exact in it, so that sum of squares minus square of sum loses nothing that matters (with a mean 10^4
 * times the standard deviation, 10^-8 of the variance). Same order of additions in every run. Pure. */
#ifndef TRAIN_SYNCBN_MATH_H
#define TRAIN_SYNCBN_MATH_H

#include <stddef.h>

struct syncbn_shape {
    size_t n, channels, plane;
};

/* sums[c] = sum of x, squares[c] = sum of x*x, over n and plane. */
void syncbn_forward_sums(const float *x, struct syncbn_shape shape, double *sums, double *squares);

/* sums[c] = sum of dy, products[c] = sum of dy * (x - centre[c]). */
void syncbn_backward_sums(const float *x, const float *dy, struct syncbn_shape shape, const float *centre, double *sums,
                          double *products);

/* The constants of one channel. */
struct syncbn_line {
    float centre, scale;
    float shift; /* of y: added at the end; of dx: subtracted from dy */
    float slope; /* of dx alone */
};

/* One channel of y = (x - centre) * scale + shift, for all n. y may be x. */
void syncbn_apply(const float *x, float *y, struct syncbn_shape shape, size_t channel, struct syncbn_line line);

/* One channel of dx = (dy - shift - (x - centre) * slope) * scale, for all n. dx may be dy. */
void syncbn_apply_backward(const float *x, const float *dy, float *dx, struct syncbn_shape shape, size_t channel,
                           struct syncbn_line line);

#endif
