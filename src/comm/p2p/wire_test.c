/* The links' bytes: golden examples (docs/formats/wire.md has the same), and everything that a decoder must refuse. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#include "base/status.h"
#include "comm/p2p/wire.h"

/* ---- frames ---- */

static const struct wire_frame begin = {.kind = WIRE_BEGIN,
                                        .lane = 1,
                                        .payload = 16,
                                        .group = 0x01020304,
                                        .credit = 0x11121314,
                                        .tag = 0x2122232425262728,
                                        .fingerprint = 0x3132333435363738,
                                        .bytes = 0x40,
                                        .number = 0x51525354};

static void a_frame_has_these_bytes(void **state) {
    (void)state;
    static const uint8_t golden[WIRE_HEADER_BYTES] = {
        1,    1,    0,    0,                            /* kind, lane, flags, reserved */
        16,   0,    0,    0,                            /* payload */
        4,    3,    2,    1,                            /* group */
        0x14, 0x13, 0x12, 0x11,                         /* credit */
        0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21, /* tag */
        0x38, 0x37, 0x36, 0x35, 0x34, 0x33, 0x32, 0x31, /* fingerprint */
        0x40, 0,    0,    0,    0,    0,    0,    0,    /* bytes of the message */
        0x54, 0x53, 0x52, 0x51, 0,    0,    0,    0};   /* number */
    uint8_t bytes[WIRE_HEADER_BYTES];
    struct wire_frame back;
    wire_frame_encode(&begin, bytes);
    assert_memory_equal(bytes, golden, sizeof golden);
    assert_int_equal(wire_frame_decode(golden, &back), 0);
    assert_memory_equal(&back, &begin, sizeof begin);
}

/* Fields that the decoder looks at, and whether it takes them. */
static const struct {
    uint8_t kind, lane, flags;
    uint32_t payload;
    uint64_t bytes, tag;
    int expected;
} frames[] = {
    {WIRE_BEGIN, 1, 0, 16, 64, 0, 0},
    {0, 1, 0, 16, 64, 0, MUSTER_EPROTOCOL},
    {10, 1, 0, 0, 0, 0, MUSTER_EPROTOCOL},
    {WIRE_BEGIN, 2, 0, 16, 64, 0, MUSTER_EPROTOCOL},
    {WIRE_BEGIN, 1, 4, 16, 64, 0, MUSTER_EPROTOCOL},
    {WIRE_BEGIN, 1, WIRE_SHARED, 24, 64, 0, MUSTER_EPROTOCOL}, /* shared, but not readable */
    {WIRE_BEGIN, 1, WIRE_READABLE | WIRE_SHARED, 24, 64, 0, 0},
    {WIRE_BEGIN, 1, WIRE_READABLE | WIRE_SHARED, 16, 64, 0, MUSTER_EPROTOCOL},
    {WIRE_BEGIN, 1, 0, 65, 64, 0, MUSTER_EPROTOCOL}, /* more than the message */
    {WIRE_BEGIN, 1, 0, 65, 65, 0, 0},                /* all of it */
    {WIRE_BEGIN, 1, 0, 9, 64, 0, MUSTER_EPROTOCOL},  /* cuts an element */
    {WIRE_BEGIN, 1, 0, 8, WIRE_MESSAGE_BYTES_MAX, 0, 0},
    {WIRE_BEGIN, 1, 0, 8, WIRE_MESSAGE_BYTES_MAX + 1, 0, MUSTER_EPROTOCOL},
    {WIRE_BEGIN, 1, 0, 8, UINT64_MAX, 0, MUSTER_EPROTOCOL},
    {WIRE_BEGIN, 1, 0, WIRE_PIECE_BYTES_MAX, 1 << 30, 0, 0},
    {WIRE_BEGIN, 1, 0, WIRE_PIECE_BYTES_MAX + 8, 1 << 30, 0, MUSTER_EPROTOCOL},
    {WIRE_BEGIN, 1, WIRE_READABLE, 16, 64, 0, 0},
    {WIRE_BEGIN, 1, WIRE_READABLE, 8, 64, 0, MUSTER_EPROTOCOL},
    {WIRE_DATA, 0, 0, 5, 0, 8, 0},
    {WIRE_DATA, 0, 0, 5, 0, 9, MUSTER_EPROTOCOL}, /* begins inside an element */
    {WIRE_DATA, 0, 0, 0, 0, 8, MUSTER_EPROTOCOL},
    {WIRE_DATA, 0, WIRE_READABLE, 16, 0, 8, MUSTER_EPROTOCOL},
    {WIRE_DATA, 0, WIRE_AWAITED, 16, 0, 8, 0},
    {WIRE_CLEAR, 0, WIRE_AWAITED, 0, 0, 8, MUSTER_EPROTOCOL}, /* has nothing that could be awaited */
    {WIRE_NOTICE, 0, 0, WIRE_NOTICE_BYTES_MAX, 1, 0, 0},
    {WIRE_NOTICE, 0, 0, WIRE_NOTICE_BYTES_MAX + 1, 1, 0, MUSTER_EPROTOCOL},
    {WIRE_CLEAR, 0, 0, 0, 0, 0, 0},
    {WIRE_CLEAR, 0, 0, 0, 0, 8, 0},
    {WIRE_CLEAR, 0, 0, 0, 0, 9, MUSTER_EPROTOCOL},
    {WIRE_CLEAR, 0, 0, 8, 0, 0, MUSTER_EPROTOCOL}, /* these have no payload */
    {WIRE_FINISHED, 0, 0, 8, 0, 0, MUSTER_EPROTOCOL},
    {WIRE_CREDIT, 0, 0, 8, 0, 0, MUSTER_EPROTOCOL},
    {WIRE_GOODBYE, 0, 0, 8, 0, 0, MUSTER_EPROTOCOL},
    {WIRE_CALL, 1, 0, 0, 0, 1, 0},
    {WIRE_CALL, 1, 0, 8, 0, 1, MUSTER_EPROTOCOL},
    {WIRE_LEFT, 0, 0, 0, 0, 0, 0},
    {WIRE_LEFT, 0, 0, 8, 0, 0, MUSTER_EPROTOCOL},
};

static void impossible_frames_are_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof frames / sizeof *frames; i++) {
        const struct wire_frame frame = {.kind = frames[i].kind,
                                         .lane = frames[i].lane,
                                         .flags = frames[i].flags,
                                         .payload = frames[i].payload,
                                         .bytes = frames[i].bytes,
                                         .tag = frames[i].tag};
        uint8_t bytes[WIRE_HEADER_BYTES];
        struct wire_frame back;
        wire_frame_encode(&frame, bytes);
        assert_int_equal(wire_frame_decode(bytes, &back), frames[i].expected);
    }
}

/* ---- handshake ---- */

static void a_greeting_has_these_bytes(void **state) {
    (void)state;
    struct wire_hello hello = {.from = 0x0a0b0c0d, .to = 7, .purpose = 0, .stream = 2, .stream_count = 4}, back;
    uint8_t bytes[WIRE_HELLO_BYTES], golden[WIRE_HELLO_BYTES] = "MUSTERh\001";
    memset(hello.secret, 0xab, sizeof hello.secret);
    memset(golden + 8, 0xab, 16);
    memcpy(golden + 24, "\x0d\x0c\x0b\x0a\x07\0\0\0\0\x02\x04", 11);
    wire_hello_encode(&hello, bytes);
    assert_memory_equal(bytes, golden, sizeof golden);
    assert_int_equal(wire_hello_decode(bytes, &back), 0);
    assert_memory_equal(back.secret, hello.secret, sizeof hello.secret);
    assert_true(back.from == hello.from && back.to == 7 && back.purpose == 0 && back.stream == 2);
    assert_int_equal(back.stream_count, 4);
    for (size_t i = 0; i < 8; i++) { /* another program, another version */
        bytes[i] ^= 1;
        assert_int_equal(wire_hello_decode(bytes, &back), MUSTER_EPROTOCOL);
        bytes[i] ^= 1;
    }
    bytes[33] = 4; /* stream 4 of 4 */
    assert_int_equal(wire_hello_decode(bytes, &back), MUSTER_EPROTOCOL);
    bytes[33] = 0, bytes[32] = 2; /* no such purpose */
    assert_int_equal(wire_hello_decode(bytes, &back), MUSTER_EPROTOCOL);
    bytes[32] = 0, bytes[47] = 1; /* not zero */
    assert_int_equal(wire_hello_decode(bytes, &back), MUSTER_EPROTOCOL);
}

static void an_answer_has_these_bytes(void **state) {
    (void)state;
    struct wire_answer answer = {.verdict = WIRE_USE_MINE}, back;
    uint8_t bytes[WIRE_HELLO_BYTES], golden[WIRE_HELLO_BYTES] = "MUSTERa\001";
    memset(answer.proof, 0xcd, sizeof answer.proof);
    memset(golden + 8, 0xcd, 16);
    golden[24] = 1;
    wire_answer_encode(&answer, bytes);
    assert_memory_equal(bytes, golden, sizeof golden);
    assert_int_equal(wire_answer_decode(bytes, &back), 0);
    assert_memory_equal(back.proof, answer.proof, sizeof answer.proof);
    assert_int_equal(back.verdict, WIRE_USE_MINE);
    bytes[24] = 2;
    assert_int_equal(wire_answer_decode(bytes, &back), MUSTER_EPROTOCOL);
    bytes[24] = 0, bytes[40] = 1;
    assert_int_equal(wire_answer_decode(bytes, &back), MUSTER_EPROTOCOL);
}

/* ---- contact ---- */

static size_t example(uint8_t out[WIRE_CONTACT_BYTES_MAX], struct wire_contact *contact) {
    memset(contact, 0, sizeof *contact);
    memset(contact->secret, 1, sizeof contact->secret);
    memset(contact->proof, 2, sizeof contact->proof);
    contact->host = 0x99;
    contact->port = 4711;
    contact->address_count = 2;
    struct sockaddr_in *v4 = (struct sockaddr_in *)&contact->addresses[0].sockaddr;
    v4->sin_family = AF_INET;
    v4->sin_port = htons(4711);
    assert_int_equal(inet_pton(AF_INET, "10.1.2.3", &v4->sin_addr), 1);
    contact->addresses[0].len = sizeof *v4;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&contact->addresses[1].sockaddr;
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(4711);
    assert_int_equal(inet_pton(AF_INET6, "2001:db8::7", &v6->sin6_addr), 1);
    contact->addresses[1].len = sizeof *v6;
    contact->interfaces[1] = 3;
    return wire_contact_encode(contact, out);
}

static void a_contact_comes_back(void **state) {
    (void)state;
    uint8_t bytes[WIRE_CONTACT_BYTES_MAX];
    struct wire_contact contact, back;
    size_t len = example(bytes, &contact);
    assert_int_equal(len, 48 + 6 + 18);
    assert_memory_equal(bytes, "MC\0\002", 4);
    assert_memory_equal(bytes + 36, "\x99\0\0\0\0\0\0\0\x67\x12\x02\0\x04\x0a\x01\x02\x03\0\x06\x20\x01\x0d\xb8", 23);
    assert_int_equal(bytes[len - 1], 3);
    assert_int_equal(wire_contact_decode(bytes, len, &back), 0);
    assert_memory_equal(&back, &contact, sizeof contact);
    for (size_t cut = 0; cut < len; cut++) {
        assert_int_equal(wire_contact_decode(bytes, cut, &back), MUSTER_EPROTOCOL);
    }
    assert_int_equal(wire_contact_decode(bytes, len + 1, &back), MUSTER_EPROTOCOL);
    bytes[46] = 9; /* addresses */
    assert_int_equal(wire_contact_decode(bytes, len, &back), MUSTER_EPROTOCOL);
    bytes[46] = 2, bytes[48] = 5; /* no such family */
    assert_int_equal(wire_contact_decode(bytes, len, &back), MUSTER_EPROTOCOL);
    bytes[48] = 4, bytes[len - 1] = WIRE_ADDRESSES_MAX; /* no such interface */
    assert_int_equal(wire_contact_decode(bytes, len, &back), MUSTER_EPROTOCOL);
    bytes[len - 1] = 3, bytes[44] = bytes[45] = 0; /* no port */
    assert_int_equal(wire_contact_decode(bytes, len, &back), MUSTER_EPROTOCOL);
}

static void secrets_are_compared_whole(void **state) {
    (void)state;
    uint8_t a[WIRE_SECRET_BYTES] = {0}, b[WIRE_SECRET_BYTES] = {0};
    assert_true(wire_secret_equal(a, b));
    for (size_t i = 0; i < WIRE_SECRET_BYTES; i++) {
        b[i] = 1;
        assert_false(wire_secret_equal(a, b));
        b[i] = 0;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_frame_has_these_bytes),    cmocka_unit_test(impossible_frames_are_refused),
        cmocka_unit_test(a_greeting_has_these_bytes), cmocka_unit_test(an_answer_has_these_bytes),
        cmocka_unit_test(a_contact_comes_back),       cmocka_unit_test(secrets_are_compared_whole),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
