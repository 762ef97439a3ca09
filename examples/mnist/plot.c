/* See plot.h. Both pictures have one column a pixel or character: the mean of the values that fall on it. */
#include "plot.h"

#include <errno.h>
#include <math.h>
#include <stdbool.h>

enum {
    TEXT_COLUMNS = 72,
    TEXT_ROWS = 10,
    STEPS = 8, /* of one character: eighths of a block */
    SVG_COLUMNS = 600,
    SVG_HEIGHT = 240,
    SVG_MARGIN = 40,
};

/* The mean of the finite values in part `column` of `columns`; NAN when there is none. */
static double column_mean(const double *values, size_t count, size_t column, size_t columns) {
    size_t from = column * count / columns, to = (column + 1) * count / columns;
    double sum = 0;
    size_t finite = 0;
    for (size_t i = from; i < (to > from ? to : from + 1) && i < count; i++) {
        if (isfinite(values[i])) {
            sum += values[i];
            finite++;
        }
    }
    return finite > 0 ? sum / (double)finite : NAN;
}

/* The means of all columns, and the largest of them (0 when there is none). */
static double column_means(const double *values, size_t count, double *means, size_t columns) {
    double largest = 0;
    for (size_t column = 0; column < columns; column++) {
        means[column] = column_mean(values, count, column, columns);
        largest = means[column] > largest ? means[column] : largest;
    }
    return largest;
}

void plot_text(FILE *out, const char *title, const double *values, size_t count) {
    static const char *const blocks[STEPS + 1] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    double means[TEXT_COLUMNS];
    size_t columns = count < TEXT_COLUMNS ? count : TEXT_COLUMNS;
    double largest = column_means(values, count, means, columns);
    if (!(largest > 0)) {
        return;
    }
    (void)fprintf(out, "%s\n", title);
    for (int row = TEXT_ROWS - 1; row >= 0; row--) {
        if (row == TEXT_ROWS - 1) {
            (void)fprintf(out, "%8.4f |", largest);
        } else {
            (void)fprintf(out, row == 0 ? "%8d |" : "%8.0d |", 0);
        }
        for (size_t column = 0; column < columns; column++) {
            double eighths = means[column] / largest * TEXT_ROWS * STEPS - row * STEPS;
            bool none = !isfinite(eighths) || eighths < 0;
            (void)fputs(blocks[none ? 0 : eighths > STEPS ? STEPS : (int)lround(eighths)], out);
        }
        (void)fputc('\n', out);
    }
    (void)fprintf(out, "         +");
    for (size_t column = 0; column < columns; column++) {
        (void)fputc('-', out);
    }
    (void)fprintf(out, "\n          1%*zu\n", (int)columns - 1, count);
}

static void svg_axes(FILE *out, const char *title, double largest, size_t count) {
    int right = SVG_MARGIN + SVG_COLUMNS, bottom = SVG_MARGIN + SVG_HEIGHT;
    (void)fprintf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
                  "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n"
                  "<text x=\"%d\" y=\"%d\">%s</text>\n",
                  right + SVG_MARGIN, bottom + SVG_MARGIN, SVG_MARGIN, SVG_MARGIN / 2, title);
    (void)fprintf(out, "<path d=\"M%d %dV%dH%d\" fill=\"none\" stroke=\"black\"/>\n", SVG_MARGIN, SVG_MARGIN, bottom,
                  right);
    (void)fprintf(out,
                  "<g text-anchor=\"end\"><text x=\"%d\" y=\"%d\">%.3g</text><text x=\"%d\" y=\"%d\">0</text>"
                  "<text x=\"%d\" y=\"%d\">step %zu</text></g>\n",
                  SVG_MARGIN - 4, SVG_MARGIN + 4, largest, SVG_MARGIN - 4, bottom + 4, right, bottom + 16, count);
}

int plot_svg(const char *path, const char *title, const double *values, size_t count) {
    double means[SVG_COLUMNS];
    size_t columns = count < SVG_COLUMNS ? count : SVG_COLUMNS;
    double largest = column_means(values, count, means, columns);
    FILE *out = fopen(path, "we");
    if (out == NULL) {
        return -1;
    }
    svg_axes(out, title, largest, count);
    (void)fputs("<polyline fill=\"none\" stroke=\"#0a5fb4\" stroke-width=\"1.5\" points=\"", out);
    for (size_t column = 0; column < columns; column++) {
        if (isfinite(means[column]) && largest > 0) {
            (void)fprintf(out, "%.1f,%.1f ", SVG_MARGIN + ((double)column + 0.5) * SVG_COLUMNS / (double)columns,
                          SVG_MARGIN + SVG_HEIGHT * (1 - means[column] / largest));
        }
    }
    (void)fputs("\"/>\n</svg>\n", out);
    bool written = ferror(out) == 0;
    return fclose(out) == 0 && written ? 0 : -1;
}
