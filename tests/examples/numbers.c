/* See numbers.h. The recorded file: lines of NAME STRIDE COUNT VALUE..., see record_pytorch.py. */
#include "numbers.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

float *numbers_draw(uint64_t seed, size_t count) {
    float *numbers = malloc(count * sizeof *numbers);
    assert_non_null(numbers);
    for (size_t i = 0; i < count; i++) {
        uint64_t z = seed += UINT64_C(0x9e3779b97f4a7c15);
        z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
        z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
        z ^= z >> 31;
        numbers[i] = (float)((double)(z >> 40) / (1 << 23) - 1);
    }
    return numbers;
}

float *numbers_draw_nhwc(uint64_t seed, int batch, int side, int channels) {
    size_t pixels = (size_t)side * (size_t)side, width = (size_t)channels;
    float *nchw = numbers_draw(seed, (size_t)batch * pixels * width);
    float *nhwc = malloc((size_t)batch * pixels * width * sizeof *nhwc);
    assert_non_null(nhwc);
    for (size_t image = 0; image < (size_t)batch; image++) {
        for (size_t c = 0; c < width; c++) {
            for (size_t pixel = 0; pixel < pixels; pixel++) {
                nhwc[(image * pixels + pixel) * width + c] = nchw[(image * width + c) * pixels + pixel];
            }
        }
    }
    free(nchw);
    return nhwc;
}

static void assert_near(const char *name, size_t index, double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) {
        fail_msg("%s[%zu] is %.9g, not %.9g: %.3g apart, %.3g allowed", name, index, got, want, fabs(got - want),
                 tolerance);
    }
}

void numbers_assert_near(const char *name, const float *got, const double *want, size_t count, double tolerance) {
    for (size_t i = 0; i < count; i++) {
        assert_near(name, i, (double)got[i], want[i], tolerance);
    }
}

/* Finds the line of `name` and gives what follows the name; the caller frees *line. */
static char *find_line(const char *name, char **line) {
    FILE *file = fopen(MUSTER_PYTORCH_VALUES, "re");
    assert_non_null(file);
    size_t room = 0, length = strlen(name);
    char *values = NULL;
    while (values == NULL && getline(line, &room, file) > 0) {
        if (strncmp(*line, name, length) == 0 && (*line)[length] == ' ') {
            values = *line + length;
        }
    }
    assert_int_equal(fclose(file), 0);
    if (values == NULL) {
        fail_msg("nothing is recorded under %s", name);
    }
    return values;
}

void numbers_assert_recorded(const char *name, const float *got, size_t count, double tolerance) {
    char *line = NULL, *next = find_line(name, &line);
    size_t stride = strtoul(next, &next, 10);
    assert_int_equal(strtoul(next, &next, 10), count);
    for (size_t i = 0; i < count; i += stride) {
        char *end = NULL;
        double want = strtod(next, &end);
        assert_ptr_not_equal(end, next); /* the line is as long as it should be */
        next = end;
        assert_near(name, i, (double)got[i], want, tolerance);
    }
    assert_string_equal(next, "\n");
    free(line);
}
