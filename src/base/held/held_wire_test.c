/* Requests and answers byte by byte, and what is none. */
#include "base/held/held_wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static void requests_have_these_bytes(void **state) {
    (void)state;
    uint8_t bytes[HELD_REQUEST_BYTES];
    struct held_request read;
    const struct held_request put = {.kind = HELD_PUT, .name = "state"};
    held_request_encode(&put, bytes);
    assert_memory_equal(bytes, "MUSTHELD\1\0\0\0\1\0\0\0state\0", 22);
    for (size_t i = 22; i < sizeof bytes; i++) {
        assert_int_equal(bytes[i], 0);
    }
    assert_true(held_request_decode(bytes, sizeof bytes, &read));
    assert_int_equal(read.kind, HELD_PUT);
    assert_string_equal(read.name, "state");
}

static void all_kinds_and_the_longest_name_come_back(void **state) {
    (void)state;
    struct held_request request = {.kind = HELD_PUT}, read;
    uint8_t bytes[HELD_REQUEST_BYTES];
    memset(request.name, 'x', HELD_NAME_BYTES - 1);
    for (int kind = HELD_PUT; kind <= HELD_DROP; kind++) {
        request.kind = (enum held_kind)kind;
        held_request_encode(&request, bytes);
        assert_true(held_request_decode(bytes, sizeof bytes, &read));
        assert_int_equal(read.kind, kind);
        assert_string_equal(read.name, request.name);
    }
}

static void names_have_a_length(void **state) {
    (void)state;
    char name[HELD_NAME_BYTES + 1];
    memset(name, 'x', sizeof name);
    name[HELD_NAME_BYTES] = '\0';
    assert_false(held_name_is_valid(name));
    name[HELD_NAME_BYTES - 1] = '\0';
    assert_true(held_name_is_valid(name));
    assert_false(held_name_is_valid(""));
    assert_true(held_name_is_valid("x"));
}

/* Every byte of the head, the length, and what stands behind the name. */
static void what_is_no_request_is_refused(void **state) {
    (void)state;
    const struct held_request put = {.kind = HELD_PUT, .name = "state"};
    uint8_t bytes[HELD_REQUEST_BYTES + 1] = {0};
    struct held_request read;
    held_request_encode(&put, bytes);
    for (size_t len = 0; len <= sizeof bytes; len++) {
        assert_int_equal(held_request_decode(bytes, len, &read), len == HELD_REQUEST_BYTES);
    }
    for (size_t i = 0; i < HELD_REQUEST_BYTES; i++) {
        bool is_of_name = i >= 16 && i <= 16 + strlen("state"); /* with one more letter it is another name */
        uint8_t old = bytes[i];
        bytes[i] ^= 0x40;
        assert_int_equal(held_request_decode(bytes, HELD_REQUEST_BYTES, &read), is_of_name);
        bytes[i] = old;
    }
    for (int kind = 0; kind < 256; kind++) {
        bytes[12] = (uint8_t)kind;
        assert_int_equal(held_request_decode(bytes, HELD_REQUEST_BYTES, &read), kind >= HELD_PUT && kind <= HELD_DROP);
    }
    bytes[12] = HELD_GET;
    memset(bytes + 16, 'x', HELD_NAME_BYTES);
    assert_false(held_request_decode(bytes, HELD_REQUEST_BYTES, &read)); /* no end */
    memset(bytes + 16, 0, HELD_NAME_BYTES);
    assert_false(held_request_decode(bytes, HELD_REQUEST_BYTES, &read)); /* no name */
}

static void answers_come_back_and_others_are_refused(void **state) {
    (void)state;
    uint8_t bytes[HELD_ANSWER_BYTES + 1] = {0};
    enum held_verdict read;
    for (int verdict = HELD_DONE; verdict <= HELD_NOT_A_REQUEST; verdict++) {
        held_answer_encode((enum held_verdict)verdict, bytes);
        assert_true(held_answer_decode(bytes, HELD_ANSWER_BYTES, &read));
        assert_int_equal(read, verdict);
    }
    assert_memory_equal(bytes, "MUSTHELD\1\0\0\0\4\0\0\0", HELD_ANSWER_BYTES);
    for (size_t len = 0; len <= sizeof bytes; len++) {
        assert_int_equal(held_answer_decode(bytes, len, &read), len == HELD_ANSWER_BYTES);
    }
    for (size_t i = 0; i < HELD_ANSWER_BYTES; i++) {
        bytes[i] ^= 0x80;
        assert_false(held_answer_decode(bytes, HELD_ANSWER_BYTES, &read));
        bytes[i] ^= 0x80;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_have_these_bytes),
        cmocka_unit_test(all_kinds_and_the_longest_name_come_back),
        cmocka_unit_test(names_have_a_length),
        cmocka_unit_test(what_is_no_request_is_refused),
        cmocka_unit_test(answers_come_back_and_others_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
