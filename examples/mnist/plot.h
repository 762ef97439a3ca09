/* The curve of the losses: in the terminal as text, or as an SVG file. */
#ifndef EXAMPLES_MNIST_PLOT_H
#define EXAMPLES_MNIST_PLOT_H

#include <stddef.h>
#include <stdio.h>

/* Draws values[0..count) as a curve of a few lines of text. Values that are not finite are left out. */
void plot_text(FILE *out, const char *title, const double *values, size_t count);

/* Writes the same as an SVG picture. 0, or -1 with errno. */
int plot_svg(const char *path, const char *title, const double *values, size_t count);

#endif
