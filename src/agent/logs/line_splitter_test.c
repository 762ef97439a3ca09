/* Cutting lines: every split position of hostile bytes gives the same pieces; joining streams on one output. */
#include "agent/logs/line_splitter.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* NUL, invalid UTF-8, "\r\n", lone '\r', empty lines, no newline at the end. */
static const uint8_t hostile[] = "one\n\ntwo\r\nbar 1%\rbar 2%\r\r\n\x00\xff\xc3\n\r\rlonger than the limit\nend";
enum { HOSTILE_BYTES = sizeof hostile - 1, PIECES_MAX = 128 };

struct pieces {
    size_t length[PIECES_MAX];
    size_t count;
};

/* Feeds the bytes in parts that end at `first` and `second`, as a reader would. */
static struct pieces cut(size_t piece_max, bool returns_cut, size_t first, size_t second) {
    struct line_splitter splitter;
    line_splitter_init(&splitter, piece_max, returns_cut);
    struct pieces pieces = {.count = 0};
    size_t consumed = 0, ends[3] = {first, second, HOSTILE_BYTES};
    for (int part = 0; part < 3; part++) {
        for (;;) {
            size_t n = line_splitter_next(&splitter, hostile + consumed, ends[part] - consumed, part == 2);
            if (n == 0) {
                break;
            }
            assert_true(pieces.count < PIECES_MAX);
            pieces.length[pieces.count++] = n;
            consumed += n;
        }
    }
    assert_int_equal(consumed, HOSTILE_BYTES);
    return pieces;
}

/* The definition, byte by byte. */
static struct pieces cut_naively(size_t piece_max, bool returns_cut) {
    struct pieces pieces = {.count = 0};
    size_t length = 0;
    for (size_t i = 0; i < HOSTILE_BYTES; i++) {
        length++;
        bool lone = hostile[i] == '\r' && i + 1 < HOSTILE_BYTES && hostile[i + 1] != '\n';
        if (hostile[i] == '\n' || (returns_cut && lone) || length == piece_max) {
            pieces.length[pieces.count++] = length;
            length = 0;
        }
    }
    if (length > 0) {
        pieces.length[pieces.count++] = length;
    }
    return pieces;
}

static void every_split_position_gives_the_same_pieces(void **state) {
    (void)state;
    const size_t limits[] = {1, 2, 3, 5, 8, 1000};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        for (int returns_cut = 0; returns_cut < 2; returns_cut++) {
            struct pieces expected = cut_naively(limits[i], returns_cut);
            for (size_t first = 0; first <= HOSTILE_BYTES; first++) {
                for (size_t second = first; second <= HOSTILE_BYTES; second++) {
                    struct pieces found = cut(limits[i], returns_cut, first, second);
                    assert_int_equal(found.count, expected.count);
                    assert_memory_equal(found.length, expected.length, found.count * sizeof *found.length);
                }
            }
        }
    }
}

static void only_newline_ends_a_line(void **state) {
    (void)state;
    struct pieces pieces = cut(1000, false, 0, 0);
    const size_t expected[] = {4, 1, 5, 16, 4, 24, 3};
    assert_int_equal(pieces.count, sizeof expected / sizeof *expected);
    assert_memory_equal(pieces.length, expected, sizeof expected);
}

static void a_run_is_made_of_whole_pieces(void **state) {
    (void)state;
    for (int returns_cut = 0; returns_cut < 2; returns_cut++) {
        for (size_t end = 0; end <= HOSTILE_BYTES; end++) {
            struct line_splitter by_run, by_piece;
            line_splitter_init(&by_run, 1000, returns_cut);
            line_splitter_init(&by_piece, 1000, returns_cut);
            size_t total = 0, n;
            while ((n = line_splitter_next(&by_piece, hostile + total, end - total, false)) > 0) {
                total += n;
            }
            assert_int_equal(line_splitter_run(&by_run, hostile, end, false), total);
            line_splitter_init(&by_run, 1000, returns_cut);
            assert_int_equal(line_splitter_run(&by_run, hostile, end, true), end);
        }
    }
}

static void a_run_stops_at_the_limit_of_a_piece(void **state) {
    (void)state;
    uint8_t bytes[64];
    memset(bytes, 'x', sizeof bytes);
    struct line_splitter splitter;
    line_splitter_init(&splitter, 32, false);
    assert_int_equal(line_splitter_run(&splitter, bytes, 31, false), 0);
    assert_int_equal(line_splitter_run(&splitter, bytes, 64, false), 32);
}

static void a_line_of_eight_megabytes_stays_whole(void **state) {
    (void)state;
    uint8_t *bytes = malloc(LINE_PIECE_MAX + 10);
    memset(bytes, 'y', LINE_PIECE_MAX + 10);
    bytes[LINE_PIECE_MAX - 1] = '\n';
    struct line_splitter splitter;
    line_splitter_init(&splitter, LINE_PIECE_MAX, false);
    for (size_t end = 0; end < LINE_PIECE_MAX; end += 65536) {
        assert_int_equal(line_splitter_next(&splitter, bytes, end, false), 0);
    }
    assert_int_equal(line_splitter_next(&splitter, bytes, LINE_PIECE_MAX + 10, false), LINE_PIECE_MAX);
    free(bytes);
}

static void streams_are_never_glued_together(void **state) {
    (void)state;
    char a = 0, b = 0;
    struct line_joint joint = {0};
    assert_int_equal(line_joint_before(&joint, &a), LINE_JOINT_PREFIX);
    line_joint_after(&joint, &a, (const uint8_t *)"x\n", 2);
    assert_int_equal(line_joint_before(&joint, &a), LINE_JOINT_PREFIX);
    assert_int_equal(line_joint_before(&joint, &b), LINE_JOINT_PREFIX);
    line_joint_after(&joint, &b, (const uint8_t *)"half", 4);
    assert_int_equal(line_joint_before(&joint, &b), 0);
    assert_int_equal(line_joint_before(&joint, &a), LINE_JOINT_NEWLINE | LINE_JOINT_PREFIX);
    line_joint_after(&joint, &a, (const uint8_t *)"y\n", 2);
    assert_int_equal(line_joint_before(&joint, &b), LINE_JOINT_PREFIX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_position_gives_the_same_pieces),
        cmocka_unit_test(only_newline_ends_a_line),
        cmocka_unit_test(a_run_is_made_of_whole_pieces),
        cmocka_unit_test(a_run_stops_at_the_limit_of_a_piece),
        cmocka_unit_test(a_line_of_eight_megabytes_stays_whole),
        cmocka_unit_test(streams_are_never_glued_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
