/* Sums of squares without rounding. An exact sum has no order: it is the same for every split into ranges, every
 * number of ranks that share them, every processor. Pure.
 *
 * The square of a float32 is a whole multiple of 2^-298, and below 2^256. So a sum is a whole number of such units,
 * in limbs of 32 bits each. Limbs are added like any integers, by anybody, and carried when there is time. */
#ifndef TRAIN_EXACT_SQUARES_H
#define TRAIN_EXACT_SQUARES_H

#include <stddef.h>
#include <stdint.h>

enum { EXACT_LIMBS = 20 }; /* 640 bits: 2^86 of the largest squares */

/* Zero it to begin. Those of several ranks are added member by member, as uint64_t. */
struct exact_squares {
    uint64_t limbs[EXACT_LIMBS];  /* below 2^32 each, but for the highest */
    uint64_t infinite, undefined; /* more than 0: there was an infinity; a NaN */
};

void exact_squares_add(struct exact_squares *sum, const float *values, size_t count);

/* The sum as a double, of members that are sums of up to 2^31 others. */
double exact_squares_value(const struct exact_squares *sum);

#endif
