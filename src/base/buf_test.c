/* The bounded buffer: limits, reuse of consumed space, memory given back. */
#include "base/buf.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"

static void holds(const struct buf *b, const char *text) {
    assert_int_equal(b->len, strlen(text));
    if (b->len > 0) {
        assert_memory_equal(buf_bytes(b), text, b->len);
    }
}

static void allocates_nothing_before_the_first_byte(void **state) {
    (void)state;
    struct buf b;
    buf_init(&b, 10);
    assert_null(buf_bytes(&b));
    assert_int_equal(buf_append(&b, NULL, 0), MUSTER_OK);
    assert_int_equal(b.capacity, 0);
    buf_done(&b);
}

static void takes_its_maximum_and_not_a_byte_more(void **state) {
    (void)state;
    struct buf b;
    buf_init(&b, 5);
    assert_int_equal(buf_append(&b, "abc", 3), MUSTER_OK);
    assert_int_equal(buf_append(&b, "def", 3), MUSTER_ELIMIT);
    holds(&b, "abc");
    assert_non_null(strstr(muster_detail(), "at most 5 bytes"));
    assert_int_equal(buf_append(&b, "de", 2), MUSTER_OK);
    assert_int_equal(buf_append(&b, "f", 1), MUSTER_ELIMIT);
    holds(&b, "abcde");
    assert_null(buf_reserve(&b, SIZE_MAX));
    buf_done(&b);
}

static void maximum_counts_held_bytes_only(void **state) {
    (void)state;
    struct buf b;
    buf_init(&b, 4);
    for (int i = 0; i < 1000; i++) {
        assert_int_equal(buf_append(&b, "wxyz", 4), MUSTER_OK);
        buf_consume(&b, 1);
        assert_int_equal(buf_append(&b, "!", 1), MUSTER_OK);
        holds(&b, "xyz!");
        assert_int_equal(buf_append(&b, "?", 1), MUSTER_ELIMIT);
        buf_consume(&b, 4);
    }
    buf_done(&b);
}

static void consumed_space_is_reused_before_it_grows(void **state) {
    (void)state;
    struct buf b;
    buf_init(&b, 1 << 20);
    uint8_t chunk[200];
    memset(chunk, 'c', sizeof chunk);
    assert_int_equal(buf_append(&b, chunk, sizeof chunk), MUSTER_OK);
    size_t capacity = b.capacity;
    for (int i = 0; i < 100; i++) {
        buf_consume(&b, 150);
        assert_int_equal(buf_append(&b, chunk, 150), MUSTER_OK);
    }
    assert_int_equal(b.capacity, capacity);
    assert_int_equal(b.len, sizeof chunk);
    buf_done(&b);
}

static void order_survives_growing_and_wrapping(void **state) {
    (void)state;
    struct buf b;
    buf_init(&b, 1 << 16);
    uint32_t written = 0, read = 0;
    for (uint32_t round = 0; round < 2000; round++) {
        for (uint32_t i = 0; i < round % 7; i++, written++) {
            assert_int_equal(buf_append(&b, &written, sizeof written), MUSTER_OK);
        }
        for (uint32_t i = 0; i < round % 5 && b.len > 0; i++, read++) {
            uint32_t value;
            memcpy(&value, buf_bytes(&b), sizeof value);
            assert_int_equal(value, read);
            buf_consume(&b, sizeof value);
        }
    }
    assert_int_equal(b.len, (written - read) * sizeof written);
    buf_done(&b);
}

static void emptied_large_buffer_gives_memory_back(void **state) {
    (void)state;
    struct buf b;
    buf_init(&b, 1 << 20);
    assert_non_null(buf_reserve(&b, 1 << 20));
    buf_commit(&b, 1 << 20);
    buf_consume(&b, 1 << 20);
    assert_int_equal(b.capacity, 0);
    assert_int_equal(buf_append(&b, "again", 5), MUSTER_OK);
    holds(&b, "again");
    buf_clear(&b);
    assert_int_not_equal(b.capacity, 0); /* a small one is kept for the next use */
    buf_done(&b);
}

static void reserve_then_commit_less(void **state) {
    (void)state;
    struct buf b;
    buf_init(&b, 100);
    uint8_t *at = buf_reserve(&b, 50);
    assert_non_null(at);
    memcpy(at, "hello", 5);
    buf_commit(&b, 5);
    holds(&b, "hello");
    buf_done(&b);
}

static void printf_appends_or_leaves_unchanged(void **state) {
    (void)state;
    struct buf b;
    buf_init(&b, 8);
    assert_int_equal(buf_printf(&b, "%d-%s", 12, "ab"), MUSTER_OK);
    holds(&b, "12-ab");
    assert_int_equal(buf_printf(&b, "%s", "toolong"), MUSTER_ELIMIT);
    holds(&b, "12-ab");
    assert_int_equal(buf_printf(&b, "%s", ""), MUSTER_OK);
    holds(&b, "12-ab");
    buf_done(&b);
}

static void printf_can_fill_it_to_the_maximum(void **state) {
    (void)state;
    struct buf b;
    buf_init(&b, 5);
    assert_int_equal(buf_printf(&b, "%s", "12345"), MUSTER_OK);
    holds(&b, "12345");
    assert_int_equal(buf_printf(&b, "%s", "6"), MUSTER_ELIMIT);
    buf_done(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(allocates_nothing_before_the_first_byte),
        cmocka_unit_test(takes_its_maximum_and_not_a_byte_more),
        cmocka_unit_test(maximum_counts_held_bytes_only),
        cmocka_unit_test(consumed_space_is_reused_before_it_grows),
        cmocka_unit_test(order_survives_growing_and_wrapping),
        cmocka_unit_test(emptied_large_buffer_gives_memory_back),
        cmocka_unit_test(reserve_then_commit_less),
        cmocka_unit_test(printf_appends_or_leaves_unchanged),
        cmocka_unit_test(printf_can_fill_it_to_the_maximum),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
