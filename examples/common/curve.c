/* See curve.h. Both pictures have columns, each the mean of the points that fall on it, and begin at a loss of 0. */
#include "curve.h"

#include <math.h>
#include <stdbool.h>

enum {
    TEXT_COLUMNS = 72,
    TEXT_ROWS = 8,
    EIGHTHS = 8, /* heights that one character can show */
    SVG_COLUMNS = 512,
    SVG_WIDTH = 640,
    SVG_HEIGHT = 240,
    SVG_MARGIN = 48,
    SVG_TOP = SVG_MARGIN / 2,
};

void curve_add(struct curve *curve, double loss) {
    curve->open_sum += loss;
    if (++curve->open_count < curve->steps_per_point) {
        return;
    }
    if (curve->point_count == CURVE_POINTS) {
        for (int i = 0; i < CURVE_POINTS / 2; i++) {
            curve->points[i] = (curve->points[2 * i] + curve->points[2 * i + 1]) / 2;
        }
        curve->point_count = CURVE_POINTS / 2;
        curve->steps_per_point *= 2;
        return; /* half of the larger point is there */
    }
    curve->points[curve->point_count++] = curve->open_sum / (double)curve->open_count;
    curve->open_sum = 0;
    curve->open_count = 0;
}

void curve_describe(struct curve *curve, struct muster_tensor *tensor, struct muster_value *values) {
    *tensor = (struct muster_tensor){
        .name = "curve.points", .type = MUSTER_FLOAT64, .dim_count = 1, .shape = {CURVE_POINTS}, .data = curve->points};
    values[0] = muster_value_integer("curve.point_count", &curve->point_count);
    values[1] = muster_value_integer("curve.steps_per_point", &curve->steps_per_point);
    values[2] = muster_value_real("curve.open_sum", &curve->open_sum);
    values[3] = muster_value_integer("curve.open_count", &curve->open_count);
}

/* At most `columns` means of neighbouring points; how many. *largest: of them, or 0. */
static int64_t fold(const struct curve *curve, int64_t columns, double *means, double *largest) {
    int64_t count = curve->point_count < columns ? curve->point_count : columns;
    *largest = 0;
    for (int64_t column = 0; column < count; column++) {
        int64_t from = column * curve->point_count / count, to = (column + 1) * curve->point_count / count;
        double sum = 0;
        for (int64_t i = from; i < to; i++) {
            sum += curve->points[i];
        }
        means[column] = sum / (double)(to - from);
        *largest = isfinite(means[column]) && means[column] > *largest ? means[column] : *largest;
    }
    return count;
}

void curve_print(const struct curve *curve, FILE *out) {
    static const char *const blocks[EIGHTHS + 1] = {" ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█"};
    double means[TEXT_COLUMNS], largest = 0;
    int64_t count = fold(curve, TEXT_COLUMNS, means, &largest);
    if (!(largest > 0)) {
        return;
    }
    (void)fprintf(out, "loss of steps 1 to %lld:\n", (long long)(curve->point_count * curve->steps_per_point));
    for (int row = TEXT_ROWS - 1; row >= 0; row--) {
        char label[16] = "";
        if (row == TEXT_ROWS - 1 || row == 0) {
            (void)snprintf(label, sizeof label, "%.2f", row == 0 ? 0 : largest);
        }
        (void)fprintf(out, "%6s |", label);
        for (int64_t column = 0; column < count; column++) {
            double height = means[column] / largest * TEXT_ROWS * EIGHTHS - row * EIGHTHS;
            bool below = !isfinite(height) || height < 0;
            (void)fputs(blocks[below ? 0 : height > EIGHTHS ? EIGHTHS : (int)lround(height)], out);
        }
        (void)fputc('\n', out);
    }
}

static void svg_axes(FILE *out, double largest, int64_t steps) {
    const int left = SVG_MARGIN, right = SVG_MARGIN + SVG_WIDTH, top = SVG_TOP, bottom = top + SVG_HEIGHT;
    (void)fprintf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" font-family=\"sans-serif\" "
                  "font-size=\"12\">\n<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
                  right + SVG_MARGIN / 2, bottom + SVG_MARGIN / 2);
    (void)fprintf(out, "<path d=\"M%d %dV%dH%d\" fill=\"none\" stroke=\"black\"/>\n", left, top, bottom, right);
    (void)fprintf(out,
                  "<text x=\"%d\" y=\"%d\">loss</text>\n<g text-anchor=\"end\"><text x=\"%d\" y=\"%d\">%.2f</text>"
                  "<text x=\"%d\" y=\"%d\">0</text><text x=\"%d\" y=\"%d\">step %lld</text></g>\n",
                  left + 6, top + 4, left - 6, top + 4, largest, left - 6, bottom + 4, right, bottom + 16,
                  (long long)steps);
}

int curve_save_svg(const struct curve *curve, const char *path) {
    double means[SVG_COLUMNS], largest = 0;
    int64_t count = fold(curve, SVG_COLUMNS, means, &largest);
    FILE *out = fopen(path, "we");
    if (out == NULL) {
        return -1;
    }
    svg_axes(out, largest, curve->point_count * curve->steps_per_point);
    (void)fputs("<polyline fill=\"none\" stroke=\"#0a5fb4\" stroke-width=\"1.5\" points=\"", out);
    for (int64_t column = 0; column < count; column++) {
        if (isfinite(means[column]) && largest > 0) {
            (void)fprintf(out, "%.1f,%.1f ", SVG_MARGIN + ((double)column + 0.5) * SVG_WIDTH / (double)count,
                          SVG_TOP + SVG_HEIGHT * (1 - means[column] / largest));
        }
    }
    (void)fputs("\"/>\n</svg>\n", out);
    bool written = ferror(out) == 0;
    return fclose(out) == 0 && written ? 0 : -1;
}
