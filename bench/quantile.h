/* What the benchmarks of this folder make of many times. */
#ifndef BENCH_QUANTILE_H
#define BENCH_QUANTILE_H

#include <stdlib.h>

static inline int quantile_compare(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return a < b ? -1 : a > b;
}

/* The value below which `part` of the values lie: 0.5 is the median. Sorts them; count > 0. */
static inline double quantile(double *values, size_t count, double part) {
    qsort(values, count, sizeof *values, quantile_compare);
    return values[(size_t)((double)(count - 1) * part + 0.5)];
}

#endif
