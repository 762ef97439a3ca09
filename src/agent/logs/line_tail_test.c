/* The last lines of a stream, whatever its length and however it arrives. */
#include "agent/logs/line_tail.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static void add_text(struct line_tail *tail, const char *text) {
    line_tail_add(tail, (const uint8_t *)text, strlen(text));
}

static void assert_tail(const struct line_tail *tail, size_t lines, const char *expected) {
    char out[256];
    assert_int_equal(line_tail_read(tail, lines, out, sizeof out), strlen(expected));
    assert_string_equal(out, expected);
}

static void an_empty_tail_reads_as_nothing(void **state) {
    (void)state;
    struct line_tail tail;
    line_tail_init(&tail);
    assert_tail(&tail, 5, "");
    line_tail_add(&tail, (const uint8_t *)"", 0);
    assert_tail(&tail, 5, "");
    line_tail_done(&tail);
}

static void the_last_lines_are_kept(void **state) {
    (void)state;
    struct line_tail tail;
    line_tail_init(&tail);
    add_text(&tail, "a\nb");
    add_text(&tail, "b\n\nc\n");
    assert_tail(&tail, 1, "c\n");
    assert_tail(&tail, 2, "\nc\n");
    assert_tail(&tail, 3, "bb\n\nc\n");
    assert_tail(&tail, 9, "a\nbb\n\nc\n");
    assert_tail(&tail, 0, "");
    add_text(&tail, "unfinished");
    assert_tail(&tail, 2, "c\nunfinished");
    line_tail_done(&tail);
}

/* Against the whole stream, for many lengths around the sizes at which the ring grows and wraps. */
static void wrapping_keeps_exactly_the_end(void **state) {
    (void)state;
    enum { STREAM = 60000 };
    char *stream = malloc(STREAM + 1), *expected = malloc(STREAM), *found = malloc(STREAM);
    for (int i = 0; i < STREAM; i++) {
        stream[i] = (char)(i % 37 == 36 ? '\n' : 'a' + i % 23);
    }
    for (size_t step = 1; step < 40000; step = step * 3 + 7) {
        struct line_tail tail;
        line_tail_init(&tail);
        for (size_t at = 0; at < STREAM; at += step) {
            size_t n = STREAM - at < step ? STREAM - at : step;
            line_tail_add(&tail, (const uint8_t *)stream + at, n);
            if ((at / step) % 50 == 0 || at + n == STREAM) {
                size_t a = line_tail_read(&tail, 20, found, STREAM);
                size_t b = line_tail_of_bytes((const uint8_t *)stream, at + n, 20, expected, STREAM);
                assert_int_equal(a, b);
                assert_memory_equal(found, expected, a);
            }
        }
        assert_int_equal(tail.capacity, LINE_TAIL_BYTES_MAX);
        line_tail_done(&tail);
    }
    free(stream);
    free(expected);
    free(found);
}

static void a_small_reader_gets_whole_last_lines(void **state) {
    (void)state;
    struct line_tail tail;
    char out[8];
    line_tail_init(&tail);
    add_text(&tail, "first\nsecond\nlast\n");
    assert_int_equal(line_tail_read(&tail, 3, out, sizeof out), 5);
    assert_string_equal(out, "last\n");
    add_text(&tail, "0123456789"); /* longer than the reader's room: its end */
    assert_int_equal(line_tail_read(&tail, 1, out, sizeof out), 7);
    assert_string_equal(out, "3456789");
    line_tail_done(&tail);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_tail_reads_as_nothing),
        cmocka_unit_test(the_last_lines_are_kept),
        cmocka_unit_test(wrapping_keeps_exactly_the_end),
        cmocka_unit_test(a_small_reader_gets_whole_last_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
