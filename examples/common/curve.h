/* The losses of a run, however long, in a few kilobytes; drawn in the terminal or as an SVG picture. */
#ifndef EXAMPLES_COMMON_CURVE_H
#define EXAMPLES_COMMON_CURVE_H

#include <stdint.h>
#include <stdio.h>

#include <muster/snapshot.h>

enum { CURVE_POINTS = 1024, CURVE_VALUES = 4 };

/* points[i] is the mean of `steps_per_point` losses in a row. When all are used, neighbours are joined and each point
 * stands for twice as many. Plain data: part of a snapshot, so that the curve goes on after a restart. */
struct curve {
    double points[CURVE_POINTS];
    int64_t point_count; /* whole points */
    int64_t steps_per_point;
    double open_sum; /* of the point that is not yet whole */
    int64_t open_count;
};

#define CURVE_INIT                                                                                                     \
    { .steps_per_point = 1 }

void curve_add(struct curve *curve, double loss);

/* What a snapshot keeps of it: a tensor, and CURVE_VALUES values. They point into the curve. */
void curve_describe(struct curve *curve, struct muster_tensor *tensor, struct muster_value *values);

/* A few lines of text. */
void curve_print(const struct curve *curve, FILE *out);

/* Writes a picture. 0, or -1 with errno. */
int curve_save_svg(const struct curve *curve, const char *path);

#endif
