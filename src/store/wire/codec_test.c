/* Golden bytes of the protocol, and the limits of its decoder. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "store/wire/codec.h"

/* Requests as PyTorch 2.13 sends them (docs/formats/tcpstore.md), and how they are to be read. */
static const struct golden {
    const char *hex;
    enum codec_command command;
    const char *key, *value, *desired; /* NULL: empty */
    int64_t number;
    size_t item_count;
    const char *items[4];
} golden_requests[] = {
    {"00cef7853c", CODEC_VALIDATE, NULL, NULL, NULL, CODEC_MAGIC, 0, {0}},
    {"0d884f0000", CODEC_PING, NULL, NULL, NULL, 0x4f88, 0, {0}},
    {"0103000000000000002f6b3102000000000000007631", CODEC_SET, "/k1", "v1", NULL, 0, 0, {0}},
    {"06010000000000000003000000000000002f6b31", CODEC_WAIT, NULL, NULL, NULL, 0, 1, {"/k1"}},
    {"0303000000000000002f6b31", CODEC_GET, "/k1", NULL, NULL, 0, 0, {0}},
    {"0404000000000000002f636e740500000000000000", CODEC_ADD, "/cnt", NULL, NULL, 5, 0, {0}},
    {"0404000000000000002f636e74f9ffffffffffffff", CODEC_ADD, "/cnt", NULL, NULL, -7, 0, {0}},
    {"0203000000000000002f6373030000000000000062616406000000000000007365636f6e64",
     CODEC_COMPARE_SET,
     "/cs",
     "bad",
     "second",
     0,
     0,
     {0}},
    {"05020000000000000003000000000000002f6b3103000000000000002f6373",
     CODEC_CHECK,
     NULL,
     NULL,
     NULL,
     0,
     2,
     {"/k1", "/cs"}},
    {"0c", CODEC_CANCEL_WAIT, NULL, NULL, NULL, 0, 0, {0}},
    {"07", CODEC_GETNUMKEYS, NULL, NULL, NULL, 0, 0, {0}},
    {"0803000000000000002f6b31", CODEC_DELETE_KEY, "/k1", NULL, NULL, 0, 0, {0}},
    {"0903000000000000002f617002000000000000006162", CODEC_APPEND, "/ap", "ab", NULL, 0, 0, {0}},
    {"0a020000000000000003000000000000002f637303000000000000002f6170",
     CODEC_MULTI_GET,
     NULL,
     NULL,
     NULL,
     0,
     2,
     {"/cs", "/ap"}},
    {"0b020000000000000003000000000000002f6d3101000000000000007803000000000000002f6d3202000000000000007979",
     CODEC_MULTI_SET,
     NULL,
     NULL,
     NULL,
     0,
     4,
     {"/m1", "x", "/m2", "yy"}},
    {"0e02000000000000002f7105000000000000006974656d31", CODEC_QUEUE_PUSH, "/q", "item1", NULL, 0, 0, {0}},
    {"1002000000000000002f71", CODEC_QUEUE_LEN, "/q", NULL, NULL, 0, 0, {0}},
    {"0f02000000000000002f71", CODEC_QUEUE_POP, "/q", NULL, NULL, 0, 0, {0}},
    {"11", CODEC_LIST_KEYS, NULL, NULL, NULL, 0, 0, {0}},
    {"1204000000000000002f6261720100000000000000", CODEC_BARRIER, "/bar", NULL, NULL, 1, 0, {0}},
    {"0106000000000000002f656d7074790000000000000000", CODEC_SET, "/empty", NULL, NULL, 0, 0, {0}},
    {"040500000000000000696e69742f0100000000000000", CODEC_ADD, "init/", NULL, NULL, 1, 0, {0}},
    {"4002000000000000002f7701000000000000006b", CODEC_WATCH, "/w", "k", NULL, 0, 0, {0}},
    {"418877665544332211", CODEC_CLIENT, NULL, NULL, NULL, 0x1122334455667788, 0, {0}},
    {"428877665544332211", CODEC_RETURN, NULL, NULL, NULL, 0x1122334455667788, 0, {0}},
    {"4304000000000000002f636e7405000000000000000300000000000000", CODEC_ADD_ONCE, "/cnt", NULL, NULL, 5, 0, {0}},
};

enum { GOLDEN_COUNT = sizeof golden_requests / sizeof *golden_requests, BYTES_MAX = 256 };

static size_t unhex(const char *hex, uint8_t *out) {
    size_t len = strlen(hex) / 2;
    assert_true(len <= BYTES_MAX);
    for (size_t i = 0; i < len; i++) {
        unsigned byte = 0;
        assert_int_equal(sscanf(hex + 2 * i, "%2x", &byte), 1);
        out[i] = (uint8_t)byte;
    }
    return len;
}

static void assert_slice(struct kv_slice slice, const char *text) {
    text = text ? text : "";
    assert_int_equal(slice.len, strlen(text));
    assert_true(slice.len == 0 || memcmp(slice.data, text, slice.len) == 0);
}

static void assert_golden(const struct golden *golden, const uint8_t *bytes, size_t len) {
    struct codec_request request;
    struct kv_slice item;
    codec_request_decode(bytes, len, &request);
    assert_int_equal(request.command, golden->command);
    assert_slice(request.key, golden->key);
    assert_slice(request.value, golden->value);
    assert_slice(request.desired, golden->desired);
    assert_int_equal(request.number, golden->number);
    for (size_t i = 0; i < golden->item_count; i++) {
        assert_true(codec_list_next(&request.list, &item));
        assert_slice(item, golden->items[i]);
    }
    assert_false(codec_list_next(&request.list, &item));
}

static void golden_requests_are_understood(void **state) {
    (void)state;
    for (size_t i = 0; i < GOLDEN_COUNT; i++) {
        uint8_t bytes[BYTES_MAX];
        struct codec_scan scan;
        size_t len = unhex(golden_requests[i].hex, bytes);
        codec_scan_request(&scan);
        assert_int_equal(codec_scan_step(&scan, bytes, len), CODEC_COMPLETE);
        assert_int_equal(scan.at, len);
        assert_golden(&golden_requests[i], bytes, len);
    }
}

/* Every prefix asks for more, never for fewer bytes than are missing, and the walk goes on from where it was. */
static void requests_arrive_byte_by_byte(void **state) {
    (void)state;
    for (size_t i = 0; i < GOLDEN_COUNT; i++) {
        uint8_t bytes[BYTES_MAX];
        struct codec_scan scan;
        size_t len = unhex(golden_requests[i].hex, bytes);
        codec_scan_request(&scan);
        for (size_t have = 0; have < len; have++) {
            uint8_t *moved = malloc(have + 1); /* exact, so that a read too far is seen; and never at the same place */
            assert_non_null(moved);
            memcpy(moved, bytes, have);
            assert_int_equal(codec_scan_step(&scan, moved, have), CODEC_MORE);
            assert_true(scan.need > have && scan.need <= len);
            free(moved);
        }
        assert_int_equal(codec_scan_step(&scan, bytes, len), CODEC_COMPLETE);
        assert_int_equal(scan.at, len);
    }
}

static void the_number_of_an_addition_is_apart_from_what_it_adds(void **state) {
    uint8_t bytes[BYTES_MAX];
    struct codec_request request;
    size_t len = unhex("4304000000000000002f636e7405000000000000000300000000000000", bytes);
    (void)state;
    codec_request_decode(bytes, len, &request);
    assert_int_equal(request.number, 5);
    assert_int_equal(request.turn, 3);
}

static void a_second_request_is_left_alone(void **state) {
    uint8_t bytes[BYTES_MAX];
    struct codec_scan scan;
    size_t first = unhex(golden_requests[5].hex, bytes);
    size_t second = unhex(golden_requests[3].hex, bytes + first);
    (void)state;
    codec_scan_request(&scan);
    assert_int_equal(codec_scan_step(&scan, bytes, first + second), CODEC_COMPLETE);
    assert_int_equal(scan.at, first);
}

static void encoders_make_the_golden_bytes(void **state) {
    struct buf out;
    uint8_t bytes[BYTES_MAX];
    size_t len = unhex("00cef7853c0d884f0000"
                       "0203000000000000002f6373030000000000000062616406000000000000007365636f6e64",
                       bytes);
    (void)state;
    buf_init(&out, BYTES_MAX);
    assert_int_equal(codec_put_u8(&out, CODEC_VALIDATE), 0);
    assert_int_equal(codec_put_u32(&out, CODEC_MAGIC), 0);
    assert_int_equal(codec_put_u8(&out, CODEC_PING), 0);
    assert_int_equal(codec_put_u32(&out, 0x4f88), 0);
    assert_int_equal(codec_put_u8(&out, CODEC_COMPARE_SET), 0);
    assert_int_equal(codec_put_key(&out, "/", kv_slice_text("cs")), 0);
    assert_int_equal(codec_put_value(&out, kv_slice_text("bad")), 0);
    assert_int_equal(codec_put_bytes(&out, kv_slice_text("second")), 0);
    assert_int_equal(out.len, len);
    assert_memory_equal(buf_bytes(&out), bytes, len);
    buf_done(&out);
}

static void encoders_refuse_what_is_too_large(void **state) {
    struct buf out;
    uint8_t *large = calloc(1, CODEC_VALUE_BYTES_MAX + 1);
    (void)state;
    assert_non_null(large);
    buf_init(&out, 2 * CODEC_VALUE_BYTES_MAX);
    assert_int_equal(codec_put_key(&out, "/", kv_slice_of(large, CODEC_KEY_BYTES_MAX)), MUSTER_ELIMIT);
    assert_int_equal(codec_put_key(&out, "/", kv_slice_of(large, CODEC_KEY_BYTES_MAX - 1)), 0);
    assert_int_equal(codec_put_value(&out, kv_slice_of(large, CODEC_VALUE_BYTES_MAX + 1)), MUSTER_ELIMIT);
    assert_int_equal(codec_put_value(&out, kv_slice_of(large, CODEC_VALUE_BYTES_MAX)), 0);
    assert_int_equal(codec_put_value(&out, kv_slice_of(large, CODEC_VALUE_BYTES_MAX)),
                     MUSTER_ELIMIT); /* the buffer's */
    buf_done(&out);
    free(large);
}

/* Just the command and a length: enough to refuse, long before any content could come. */
static enum codec_result scan_length(const char *command_hex, uint64_t length) {
    uint8_t bytes[BYTES_MAX];
    struct codec_scan scan;
    size_t len = unhex(command_hex, bytes);
    for (size_t i = 0; i < 8; i++) {
        bytes[len++] = (uint8_t)(length >> (8 * i));
    }
    codec_scan_request(&scan);
    return codec_scan_step(&scan, bytes, len);
}

static void lengths_over_the_limit_are_refused_at_once(void **state) {
    static const char *const key_commands[] = {"01", "02", "03", "04", "08", "09", "0e", "0f", "10", "12", "40", "43"};
    static const char *const list_commands[] = {"05", "06", "0a", "0b"};
    static const char *const value_commands[] = {"01", "02", "09", "0e", "40"};
    (void)state;
    for (size_t i = 0; i < sizeof key_commands / sizeof *key_commands; i++) {
        assert_int_equal(scan_length(key_commands[i], CODEC_KEY_BYTES_MAX), CODEC_MORE);
        assert_int_equal(scan_length(key_commands[i], CODEC_KEY_BYTES_MAX + 1), CODEC_MALFORMED);
        assert_int_equal(scan_length(key_commands[i], UINT64_MAX), CODEC_MALFORMED);
        assert_int_equal(scan_length(key_commands[i], UINT64_MAX - 7), CODEC_MALFORMED);
    }
    for (size_t i = 0; i < sizeof list_commands / sizeof *list_commands; i++) {
        assert_int_equal(scan_length(list_commands[i], CODEC_KEYS_MAX), CODEC_MORE);
        assert_int_equal(scan_length(list_commands[i], CODEC_KEYS_MAX + 1), CODEC_MALFORMED);
        assert_int_equal(scan_length(list_commands[i], UINT64_MAX), CODEC_MALFORMED);
        assert_int_equal(scan_length(list_commands[i], 0), CODEC_COMPLETE);
    }
    for (size_t i = 0; i < sizeof value_commands / sizeof *value_commands; i++) {
        char hex[64]; /* command and an empty key, then the value's length */
        (void)snprintf(hex, sizeof hex, "%s0000000000000000", value_commands[i]);
        assert_int_equal(scan_length(hex, CODEC_VALUE_BYTES_MAX), CODEC_MORE);
        assert_int_equal(scan_length(hex, CODEC_VALUE_BYTES_MAX + 1), CODEC_MALFORMED);
        assert_int_equal(scan_length(hex, (uint64_t)1 << 63), CODEC_MALFORMED);
    }
}

static void items_of_a_list_have_the_same_limits(void **state) {
    (void)state;
    assert_int_equal(scan_length("060100000000000000", CODEC_KEY_BYTES_MAX), CODEC_MORE);
    assert_int_equal(scan_length("060100000000000000", CODEC_KEY_BYTES_MAX + 1), CODEC_MALFORMED);
    assert_int_equal(scan_length("0b0100000000000000", CODEC_KEY_BYTES_MAX + 1), CODEC_MALFORMED);
    assert_int_equal(scan_length("0b01000000000000000000000000000000", CODEC_VALUE_BYTES_MAX), CODEC_MORE);
    assert_int_equal(scan_length("0b01000000000000000000000000000000", CODEC_VALUE_BYTES_MAX + 1), CODEC_MALFORMED);
}

static void unknown_commands_are_refused(void **state) {
    (void)state;
    for (unsigned command = 0; command < 256; command++) {
        uint8_t byte = (uint8_t)command;
        struct codec_scan scan;
        bool known = command <= CODEC_BARRIER || (command >= CODEC_WATCH && command <= CODEC_ADD_ONCE);
        codec_scan_request(&scan);
        assert_int_equal(codec_scan_step(&scan, &byte, 1) != CODEC_MALFORMED, known);
        assert_int_equal(strcmp(codec_command_name(command), "?") != 0, known);
    }
}

static void a_wrong_magic_is_seen_at_its_first_wrong_byte(void **state) {
    static const uint8_t right[] = {0x00, 0xce, 0xf7, 0x85, 0x3c};
    (void)state;
    for (size_t wrong = 1; wrong < sizeof right; wrong++) {
        uint8_t bytes[sizeof right];
        struct codec_scan scan;
        memcpy(bytes, right, sizeof right);
        bytes[wrong] ^= 1;
        codec_scan_request(&scan);
        assert_int_equal(codec_scan_step(&scan, bytes, wrong), CODEC_MORE);
        assert_int_equal(codec_scan_step(&scan, bytes, wrong + 1), CODEC_MALFORMED);
    }
}

static void scan_reply(enum codec_command command, size_t value_count, const char *hex, struct codec_reply *out) {
    static uint8_t bytes[BYTES_MAX]; /* the reply's slices point here */
    struct codec_scan scan;
    size_t len = unhex(hex, bytes);
    codec_scan_reply(&scan, command, value_count);
    for (size_t have = 0; have < len; have++) {
        assert_int_equal(codec_scan_step(&scan, bytes, have), CODEC_MORE);
    }
    assert_int_equal(codec_scan_step(&scan, bytes, len), CODEC_COMPLETE);
    assert_int_equal(scan.at, len);
    codec_reply_decode(command, bytes, len, out);
}

static void golden_replies_are_understood(void **state) {
    struct codec_reply reply;
    struct kv_slice item;
    (void)state;
    scan_reply(CODEC_PING, 0, "884f0000", &reply);
    assert_int_equal(reply.number, 0x4f88);
    scan_reply(CODEC_WAIT, 0, "01", &reply);
    assert_int_equal(reply.number, CODEC_WAIT_CANCELED);
    scan_reply(CODEC_ADD, 0, "feffffffffffffff", &reply);
    assert_int_equal(reply.number, -2);
    scan_reply(CODEC_RETURN, 0, "ffffffffffffffff", &reply);
    assert_int_equal(reply.number, CODEC_UNKNOWN);
    scan_reply(CODEC_ADD_ONCE, 0, "feffffffffffffff", &reply);
    assert_int_equal(reply.number, -2);
    scan_reply(CODEC_GET, 0, "02000000000000007631", &reply);
    assert_true(codec_list_next(&reply.list, &item));
    assert_slice(item, "v1");
    scan_reply(CODEC_MULTI_GET, 2, "06000000000000007365636f6e64040000000000000061626364", &reply);
    assert_true(codec_list_next(&reply.list, &item));
    assert_slice(item, "second");
    assert_true(codec_list_next(&reply.list, &item));
    assert_slice(item, "abcd");
    assert_false(codec_list_next(&reply.list, &item));
    scan_reply(CODEC_QUEUE_POP, 0, "010000000000000005000000000000006974656d31", &reply);
    assert_int_equal(reply.number, 1);
    assert_true(codec_list_next(&reply.list, &item));
    assert_slice(item, "item1");
    scan_reply(CODEC_QUEUE_POP, 0, "0000000000000000", &reply);
    assert_int_equal(reply.number, 0);
    assert_false(codec_list_next(&reply.list, &item));
    scan_reply(CODEC_LIST_KEYS, 0, "020000000000000003000000000000002f6d3203000000000000002f6d31", &reply);
    assert_int_equal(reply.number, 2);
    assert_true(codec_list_next(&reply.list, &item));
    assert_slice(item, "/m2");
}

static void replies_without_measure_are_refused(void **state) {
    static const uint8_t endless[8] = {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f};
    struct codec_scan scan;
    (void)state;
    codec_scan_reply(&scan, CODEC_GET, 0);
    assert_int_equal(codec_scan_step(&scan, endless, 8), CODEC_MALFORMED);
    codec_scan_reply(&scan, CODEC_LIST_KEYS, 0);
    assert_int_equal(codec_scan_step(&scan, endless, 8), CODEC_MALFORMED);
    codec_scan_reply(&scan, CODEC_MULTI_GET, 1);
    assert_int_equal(codec_scan_step(&scan, endless, 8), CODEC_MALFORMED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_requests_are_understood),
        cmocka_unit_test(requests_arrive_byte_by_byte),
        cmocka_unit_test(the_number_of_an_addition_is_apart_from_what_it_adds),
        cmocka_unit_test(a_second_request_is_left_alone),
        cmocka_unit_test(encoders_make_the_golden_bytes),
        cmocka_unit_test(encoders_refuse_what_is_too_large),
        cmocka_unit_test(lengths_over_the_limit_are_refused_at_once),
        cmocka_unit_test(items_of_a_list_have_the_same_limits),
        cmocka_unit_test(unknown_commands_are_refused),
        cmocka_unit_test(a_wrong_magic_is_seen_at_its_first_wrong_byte),
        cmocka_unit_test(golden_replies_are_understood),
        cmocka_unit_test(replies_without_measure_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
