/* The curve of losses that the trainers draw: bounded, whatever the number of steps, and true to its mean. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "curve.h"

static void keeps_each_step_while_there_is_room(void **state) {
    (void)state;
    struct curve curve = CURVE_INIT;
    for (int i = 0; i < CURVE_POINTS; i++) {
        curve_add(&curve, i);
    }
    assert_int_equal(curve.point_count, CURVE_POINTS);
    assert_int_equal(curve.steps_per_point, 1);
    assert_true(curve.points[CURVE_POINTS - 1] == CURVE_POINTS - 1);
}

/* After n steps with the losses 0, 1, 2 ...: points are means of equal parts, in order, and no step is lost. */
static void joins_neighbours_when_full(void **state) {
    (void)state;
    struct curve curve = CURVE_INIT;
    for (int n = 1; n <= 5 * CURVE_POINTS + 3; n++) {
        curve_add(&curve, n - 1);
        assert_in_range(curve.point_count, 0, CURVE_POINTS);
        assert_int_equal(curve.point_count * curve.steps_per_point + curve.open_count, n);
    }
    double width = (double)curve.steps_per_point;
    for (int i = 0; i < curve.point_count; i++) {
        assert_true(fabs(curve.points[i] - (i * width + (width - 1) / 2)) < 1e-9);
    }
}

static void prints_rows_and_columns(void **state) {
    (void)state;
    struct curve curve = CURVE_INIT;
    char *text = NULL;
    size_t length = 0;
    FILE *out = open_memstream(&text, &length);
    assert_non_null(out);
    curve_print(&curve, out); /* nothing yet: nothing printed */
    assert_int_equal(fflush(out), 0);
    assert_int_equal(length, 0);
    curve_add(&curve, 2.5);
    curve_add(&curve, NAN); /* a run that diverged must not break the picture */
    curve_add(&curve, 0);
    curve_print(&curve, out);
    assert_int_equal(fclose(out), 0);
    assert_non_null(strstr(text, "loss of steps 1 to 3:\n"));
    assert_non_null(strstr(text, "  2.50 |█  \n"));
    assert_non_null(strstr(text, "  0.00 |█  \n"));
    free(text);
}

static void an_unwritable_picture_is_an_error(void **state) {
    (void)state;
    struct curve curve = CURVE_INIT;
    curve_add(&curve, 1);
    assert_int_equal(curve_save_svg(&curve, "/dev/full"), -1);
    assert_int_equal(curve_save_svg(&curve, "/dev/null/picture.svg"), -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keeps_each_step_while_there_is_room),
        cmocka_unit_test(joins_neighbours_when_full),
        cmocka_unit_test(prints_rows_and_columns),
        cmocka_unit_test(an_unwritable_picture_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
