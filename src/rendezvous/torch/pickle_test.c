/* The pickle of the rendezvous state: bytes written by PyTorch are read, bytes written here are pinned, hostile
 * bytes are refused. (tests/peer/test_pickle.py has real PyTorch read what is written here.) */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/base64.h"
#include "rendezvous/torch/civil_time.h"
#include "rendezvous/torch/pickle.h"

#include <muster/status.h>

/* Written by PyTorch 2.13: an empty state; one participant with a deadline; round 3 with two; the same with a wait
 * list and a redundancy list; and a hand-made stream without memo that PyTorch loads. */
static const char golden_empty[] =
    "800495cb000000000000008c37746f7263682e64697374726962757465642e656c61737469632e72656e64657a766f75732e"
    "64796e616d69635f72656e64657a766f7573948c105f52656e64657a766f757353746174659493942981947d94288c05726f"
    "756e64944b008c08636f6d706c65746594898c08646561646c696e65944e8c06636c6f73656494898c0c7061727469636970"
    "616e7473947d948c09776169745f6c697374948f948c0f726564756e64616e63795f6c697374948f948c0f6c6173745f6865"
    "6172746265617473947d9475622e";
static const char golden_one[] =
    "80049578010000000000008c37746f7263682e64697374726962757465642e656c61737469632e72656e64657a766f75732e"
    "64796e616d69635f72656e64657a766f7573948c105f52656e64657a766f757353746174659493942981947d94288c05726f"
    "756e64944b008c08636f6d706c65746594898c08646561646c696e65948c086461746574696d65948c086461746574696d65"
    "949394430a07ea03040506250d950b9468088c0874696d657a6f6e6594939468088c0974696d6564656c74619493944b004b"
    "004b008794529485945294869452948c06636c6f73656494898c0c7061727469636970616e7473947d9468008c095f4e6f64"
    "65446573639493942981947d94288c0461646472948c05686f737441948c03706964944de1108c086c6f63616c5f6964944b"
    "0075624b00738c09776169745f6c697374948f948c0f726564756e64616e63795f6c697374948f948c0f6c6173745f686561"
    "72746265617473947d94681b680a430a07ea03040506070d950b946813869452947375622e";
static const char golden_two[] =
    "8004958b010000000000008c37746f7263682e64697374726962757465642e656c61737469632e72656e64657a766f75732e"
    "64796e616d69635f72656e64657a766f7573948c105f52656e64657a766f757353746174659493942981947d94288c05726f"
    "756e64944b038c08636f6d706c65746594888c08646561646c696e65944e8c06636c6f73656494898c0c7061727469636970"
    "616e7473947d942868008c095f4e6f6465446573639493942981947d94288c0461646472948c05686f737441948c03706964"
    "944de1108c086c6f63616c5f6964944b0075624b00680c2981947d9428680f8c05686f7374429468114a7011010068124b00"
    "75624b01758c09776169745f6c697374948f948c0f726564756e64616e63795f6c697374948f948c0f6c6173745f68656172"
    "746265617473947d9428680d8c086461746574696d65948c086461746574696d65949394430a07ea03040506070d950b9468"
    "1c8c0874696d657a6f6e65949394681c8c0974696d6564656c74619493944b004b004b008794529485945294869452946813"
    "68297575622e";
static const char golden_lists[] =
    "800495e3010000000000008c37746f7263682e64697374726962757465642e656c61737469632e72656e64657a766f75732e"
    "64796e616d69635f72656e64657a766f7573948c105f52656e64657a766f757353746174659493942981947d94288c05726f"
    "756e64944b038c08636f6d706c65746594888c08646561646c696e65944e8c06636c6f73656494898c0c7061727469636970"
    "616e7473947d942868008c095f4e6f6465446573639493942981947d94288c0461646472948c05686f737441948c03706964"
    "944de1108c086c6f63616c5f6964944b0075624b00680c2981947d9428680f8c05686f7374429468114a7011010068124b00"
    "75624b01758c09776169745f6c697374948f9428680c2981947d9428680f8c05686f7374439468114bff68124b017562908c"
    "0f726564756e64616e63795f6c697374948f9428680c2981947d9428680f8c05686f7374449468114d000168124b00756290"
    "8c0f6c6173745f68656172746265617473947d9428680d8c086461746574696d65948c086461746574696d65949394430a07"
    "ea03040506070d950b9468228c0874696d657a6f6e6594939468228c0974696d6564656c74619493944b004b004b00879452"
    "9485945294869452946813682f6818682f681d6824430a07ea03040506080d950b94682d869452947575622e";
static const char golden_memo_free[] =
    "80048c37746f7263682e64697374726962757465642e656c61737469632e72656e64657a766f75732e64796e616d69635f72"
    "656e64657a766f75738c105f52656e64657a766f757353746174659329817d288c05726f756e644b008c08636f6d706c6574"
    "65898c08646561646c696e654e8c06636c6f736564898c0c7061727469636970616e74737d8c37746f7263682e6469737472"
    "6962757465642e656c61737469632e72656e64657a766f75732e64796e616d69635f72656e64657a766f75738c095f4e6f64"
    "65446573639329817d288c04616464728c05686f7374418c037069644ae11000008c086c6f63616c5f69644b0075624b0073"
    "8c09776169745f6c6973748f8c0f726564756e64616e63795f6c6973748f8c0f6c6173745f686561727462656174737d8c37"
    "746f7263682e64697374726962757465642e656c61737469632e72656e64657a766f75732e64796e616d69635f72656e6465"
    "7a766f75738c095f4e6f6465446573639329817d288c04616464728c05686f7374418c037069644ae11000008c086c6f6361"
    "6c5f69644b0075628c086461746574696d658c086461746574696d6593430a07ea03040506070d950b8c086461746574696d"
    "658c0874696d657a6f6e65938c086461746574696d658c0974696d6564656c7461934b004b004b008752855286527375622e";

/* Written here; PyTorch loads them. */
static const char written_empty[] =
    "80048c37746f7263682e64697374726962757465642e656c61737469632e72656e64657a766f75732e64796e616d69635f72"
    "656e64657a766f7573948c105f52656e64657a766f757353746174659329817d288c05726f756e644b008c08636f6d706c65"
    "7465898c08646561646c696e654e8c06636c6f736564898c0c7061727469636970616e74737d8c09776169745f6c6973748f"
    "8c0f726564756e64616e63795f6c6973748f8c0f6c6173745f686561727462656174737d75622e";
static const char written_lists[] =
    "80048c37746f7263682e64697374726962757465642e656c61737469632e72656e64657a766f75732e64796e616d69635f72"
    "656e64657a766f7573948c105f52656e64657a766f757353746174659329817d288c05726f756e644b038c08636f6d706c65"
    "7465888c08646561646c696e654e8c06636c6f736564898c0c7061727469636970616e74737d2868008c095f4e6f64654465"
    "736393942981947d288c0461646472948c05686f7374418c03706964944de1108c086c6f63616c5f6964944b0075624b0068"
    "012981947d2868038c05686f73744268044a7011010068054b0075624b01758c09776169745f6c6973748f2868012981947d"
    "2868038c05686f73744368044bff68054b017562908c0f726564756e64616e63795f6c6973748f2868012981947d2868038c"
    "05686f73744468044d000168054b007562908c0f6c6173745f686561727462656174737d2868028c086461746574696d658c"
    "086461746574696d659394430a07ea03040506070d950b8c086461746574696d658c0874696d657a6f6e65938c0864617465"
    "74696d658c0974696d6564656c7461934b004b004b008752855294865268066809430a07ea03040506070d950b680a865268"
    "076809430a07ea03040506070d950b680a865268086809430a07ea03040506080d950b680a86527575622e";

#define HEARTBEAT_US INT64_C(1772600767890123) /* 2026-03-04 05:06:07.890123 UTC */
#define SECOND_US INT64_C(1000000)

struct fixture {
    struct rdzv_state state;
    struct buf bytes;
};

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    rdzv_state_init(&f->state);
    buf_init(&f->bytes, PICKLE_BYTES_MAX);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    rdzv_state_done(&f->state);
    buf_done(&f->bytes);
    free(f);
    return 0;
}

static uint8_t digit(char c) {
    return (uint8_t)(c <= '9' ? c - '0' : c - 'a' + 10);
}

static void from_hex(struct fixture *f, const char *hex) {
    buf_clear(&f->bytes);
    for (; *hex; hex += 2) {
        uint8_t byte = (uint8_t)(digit(hex[0]) << 4 | digit(hex[1]));
        assert_int_equal(buf_append(&f->bytes, &byte, 1), 0);
    }
}

static int read_hex(struct fixture *f, const char *hex) {
    from_hex(f, hex);
    return pickle_read(buf_bytes(&f->bytes), f->bytes.len, &f->state);
}

static void assert_member(const struct rdzv_state *state, size_t index, const char *addr, int64_t pid, int64_t local_id,
                          unsigned lists, int64_t rank, int64_t heartbeat_us) {
    const struct rdzv_member *m = &state->members[index];
    assert_string_equal(m->node.addr, addr);
    assert_int_equal(m->node.pid, pid);
    assert_int_equal(m->node.local_id, local_id);
    assert_int_equal(m->lists, lists);
    assert_int_equal(m->rank, rank);
    assert_int_equal(m->heartbeat_us, heartbeat_us);
}

/* What is in f->state, written and read again, is the same. */
static void assert_round_trip(struct fixture *f) {
    struct rdzv_state again;
    rdzv_state_init(&again);
    buf_clear(&f->bytes);
    assert_int_equal(pickle_write_text(&f->state, &f->bytes), 0);
    assert_int_equal(pickle_read_text(buf_bytes(&f->bytes), f->bytes.len, &again), 0);
    assert_true(rdzv_state_equal(&f->state, &again));
    rdzv_state_done(&again);
}

static void reads_empty_state(void **state) {
    struct fixture *f = *state;
    assert_int_equal(read_hex(f, golden_empty), 0);
    assert_int_equal(f->state.round, 0);
    assert_int_equal(f->state.member_count, 0);
    assert_false(f->state.complete || f->state.closed || f->state.has_deadline);
    assert_round_trip(f);
}

static void reads_one_participant(void **state) {
    struct fixture *f = *state;
    assert_int_equal(read_hex(f, golden_one), 0);
    assert_int_equal(f->state.member_count, 1);
    assert_true(f->state.has_deadline);
    assert_int_equal(f->state.deadline_us, HEARTBEAT_US + 30 * SECOND_US);
    assert_member(&f->state, 0, "hostA", 4321, 0, RDZV_PARTICIPANT | RDZV_HEARTBEAT, 0, HEARTBEAT_US);
    assert_round_trip(f);
}

static void reads_complete_round(void **state) {
    struct fixture *f = *state;
    assert_int_equal(read_hex(f, golden_two), 0);
    assert_int_equal(f->state.round, 3);
    assert_true(f->state.complete);
    assert_int_equal(f->state.member_count, 2);
    assert_member(&f->state, 0, "hostA", 4321, 0, RDZV_PARTICIPANT | RDZV_HEARTBEAT, 0, HEARTBEAT_US);
    assert_member(&f->state, 1, "hostB", 70000, 0, RDZV_PARTICIPANT | RDZV_HEARTBEAT, 1, HEARTBEAT_US);
    assert_round_trip(f);
}

static void reads_all_lists(void **state) {
    struct fixture *f = *state;
    assert_int_equal(read_hex(f, golden_lists), 0);
    assert_int_equal(f->state.member_count, 4);
    assert_member(&f->state, 2, "hostC", 255, 1, RDZV_WAITING | RDZV_HEARTBEAT, 0, HEARTBEAT_US);
    assert_member(&f->state, 3, "hostD", 256, 0, RDZV_SPARE | RDZV_HEARTBEAT, 0, HEARTBEAT_US + SECOND_US);
    assert_round_trip(f);
}

static void reads_stream_without_memo(void **state) {
    struct fixture *f = *state;
    assert_int_equal(read_hex(f, golden_memo_free), 0);
    assert_int_equal(f->state.member_count, 1);
    assert_member(&f->state, 0, "hostA", 4321, 0, RDZV_PARTICIPANT | RDZV_HEARTBEAT, 0, HEARTBEAT_US);
}

static void assert_written(struct fixture *f, const char *hex) {
    struct buf got;
    buf_init(&got, PICKLE_BYTES_MAX);
    assert_int_equal(pickle_write(&f->state, &got), 0);
    from_hex(f, hex);
    assert_int_equal(got.len, f->bytes.len);
    assert_memory_equal(buf_bytes(&got), buf_bytes(&f->bytes), got.len);
    buf_done(&got);
}

/* The form on the wire may change only on purpose. */
static void writes_pinned_bytes(void **state) {
    struct fixture *f = *state;
    assert_written(f, written_empty);
    assert_int_equal(read_hex(f, golden_lists), 0);
    assert_written(f, written_lists);
}

static void reads_other_protocol_and_opcodes(void **state) {
    struct fixture *f = *state;
    from_hex(f, golden_two);
    buf_bytes(&f->bytes)[1] = 5; /* as Python 3.14 writes it */
    assert_int_equal(pickle_read(buf_bytes(&f->bytes), f->bytes.len, &f->state), 0);
    buf_bytes(&f->bytes)[1] = 6;
    assert_int_equal(pickle_read(buf_bytes(&f->bytes), f->bytes.len, &f->state), MUSTER_ECORRUPT);
    /* BINPUT, LONG_BINPUT, POP, BINUNICODE8, TUPLE and LONG1 where the golden bytes have others. */
    static const char other[] =
        "80048d3700000000000000746f7263682e64697374726962757465642e656c61737469632e72656e64657a766f75732e64796e616d6963"
        "5f72656e64657a766f757371008c105f52656e64657a766f757353746174657201000000932874817d288c05726f756e648a00"
        "8c08636f6d706c657465898c08646561646c696e654e308c00304e8c06636c6f736564888c0c7061727469636970616e74737d"
        "8c09776169745f6c6973748f8c0f726564756e64616e63795f6c6973748f8c0f6c6173745f686561727462656174737d75622e";
    assert_int_equal(read_hex(f, other), 0);
    assert_true(f->state.closed);
}

static void refuses_every_cut(void **state) {
    struct fixture *f = *state;
    from_hex(f, golden_lists);
    for (size_t len = 0; len < f->bytes.len; len++) {
        /* Exact allocation: a read beyond the end is seen by the sanitizers. */
        uint8_t *copy = malloc(len ? len : 1);
        memcpy(copy, buf_bytes(&f->bytes), len);
        assert_int_equal(pickle_read(copy, len, &f->state), MUSTER_ECORRUPT);
        free(copy);
    }
    assert_int_equal(f->state.member_count, 0); /* failures leave the target alone */
}

/* Any single wrong byte is refused or gives some state, and never more than that. While allocations fail (make
 * torture), a hundred times over, every 16th byte: all of them were seen without. */
static void survives_every_wrong_byte(void **state) {
    struct fixture *f = *state;
    size_t step = getenv("FAIL_AT") ? 16 : 1;
    from_hex(f, golden_lists);
    for (size_t at = 0; at < f->bytes.len; at += step) {
        uint8_t right = buf_bytes(&f->bytes)[at];
        for (unsigned wrong = 0; wrong < 256; wrong++) {
            buf_bytes(&f->bytes)[at] = (uint8_t)wrong;
            int rc = pickle_read(buf_bytes(&f->bytes), f->bytes.len, &f->state);
            assert_true(rc == 0 || rc == MUSTER_ECORRUPT || rc == MUSTER_ELIMIT);
        }
        buf_bytes(&f->bytes)[at] = right;
    }
}

static void refuses_foreign_classes(void **state) {
    struct fixture *f = *state;
    /* os.system("id") in protocol 4, then in protocol 2's GLOBAL. */
    assert_int_equal(read_hex(f, "80048c026f738c0673797374656d938c02696485522e"), MUSTER_ECORRUPT);
    assert_non_null(strstr(muster_detail(), "class"));
    assert_int_equal(read_hex(f, "8002636f730a73797374656d0a58020000006964"
                                 "85522e"),
                     MUSTER_ECORRUPT);
    assert_non_null(strstr(muster_detail(), "class"));
}

static void refuses_hostile_streams(void **state) {
    struct fixture *f = *state;
    static const char *const streams[] = {
        "2e",                       /* STOP with nothing */
        "4e2e",                     /* None */
        "7d2e",                     /* a dict */
        "80044b012e",               /* a number */
        "7562",                     /* SETITEMS without mark */
        "2875",                     /* SETITEMS without dict */
        "7d284e75",                 /* half a pair */
        "7d287d7d75",               /* an unhashable key */
        "30",                       /* POP of nothing */
        "6800",                     /* BINGET of an empty memo */
        "4e94680168",               /* BINGET beyond it */
        "4e72ffffff7f",             /* LONG_BINPUT far beyond it */
        "2894",                     /* MEMOIZE of a mark */
        "2885",                     /* a mark inside a tuple */
        "8d00000000000000802e",     /* a text of 2^63 bytes */
        "58ffffffff2e",             /* of 2^32 */
        "8aff2e",                   /* a number of 255 bytes */
        "8a09ffffffffffffffffff2e", /* of nine */
        "2952",                     /* REDUCE without callable */
        "628c",                     /* BUILD of nothing */
    };
    for (size_t i = 0; i < sizeof streams / sizeof *streams; i++) {
        assert_int_equal(read_hex(f, streams[i]), MUSTER_ECORRUPT);
    }
}

/* Appends `bytes` over and over, until there are more values than a state may have. */
static void fill(struct fixture *f, const char *bytes) {
    enum { REPEATED = 4096, VALUES = 1100000 };
    uint8_t chunk[2 * REPEATED];
    size_t length = strlen(bytes);
    for (size_t i = 0; i < REPEATED; i++) {
        memcpy(chunk + i * length, bytes, length);
    }
    buf_clear(&f->bytes);
    for (int i = 0; i < VALUES; i += REPEATED) {
        assert_int_equal(buf_append(&f->bytes, chunk, REPEATED * length), 0);
    }
}

static void bounds_what_it_builds(void **state) {
    struct fixture *f = *state;
    fill(f, "("); /* marks: deeper than any state */
    assert_int_equal(pickle_read(buf_bytes(&f->bytes), f->bytes.len, &f->state), MUSTER_ELIMIT);
    fill(f, "}0"); /* a dict, dropped: more containers than any state */
    assert_int_equal(pickle_read(buf_bytes(&f->bytes), f->bytes.len, &f->state), MUSTER_ELIMIT);
    assert_int_equal(pickle_read(NULL, PICKLE_BYTES_MAX + 1, &f->state), MUSTER_ELIMIT);
}

static void thousands_of_nodes(void **state) {
    struct fixture *f = *state;
    enum { NODES = 3000 };
    assert_int_equal(rdzv_state_reserve(&f->state, NODES), 0);
    for (int i = 0; i < NODES; i++) {
        struct rdzv_node node = {.pid = i * 1000, .local_id = i % 3 - 1};
        memset(node.addr, 'a' + i % 26, (size_t)(i % (RDZV_ADDR_MAX - 1)));
        struct rdzv_member *m = rdzv_state_insert(&f->state, &node);
        m->lists = (uint8_t)(i % 5 == 4 ? RDZV_WAITING | RDZV_HEARTBEAT : RDZV_PARTICIPANT | RDZV_HEARTBEAT);
        m->heartbeat_us = HEARTBEAT_US + i;
    }
    rdzv_state_complete(&f->state);
    assert_int_equal(f->state.member_count, NODES);
    assert_round_trip(f);
}

static void numbers_of_every_width(void **state) {
    struct fixture *f = *state;
    static const int64_t values[] = {
        0, 255, 256, 65535, 65536, INT32_MAX, INT32_MIN, INT64_C(1) << 31, INT64_C(1) << 40, INT64_MAX, INT64_MIN, -1};
    enum { COUNT = sizeof values / sizeof *values };
    assert_int_equal(rdzv_state_reserve(&f->state, COUNT), 0);
    for (size_t i = 0; i < COUNT; i++) {
        rdzv_state_insert(&f->state, &(struct rdzv_node){.addr = "h", .pid = values[i]})->lists = RDZV_WAITING;
    }
    f->state.round = INT64_C(1) << 33;
    assert_int_equal(f->state.member_count, COUNT);
    assert_round_trip(f);
}

static void civil_times(void **state) {
    (void)state;
    static const int64_t times[] = {0,
                                    HEARTBEAT_US,
                                    INT64_C(951782400) * SECOND_US,           /* 2000-02-29 */
                                    INT64_C(4107542399) * SECOND_US + 999999, /* 2100-02-28, no leap year */
                                    INT64_C(-62135596800) * SECOND_US,        /* year 1 */
                                    INT64_C(253402300799) * SECOND_US + 999999 /* end of year 9999 */};
    uint8_t bytes[CIVIL_TIME_BYTES];
    int64_t back;
    for (size_t i = 0; i < sizeof times / sizeof *times; i++) {
        civil_time_write(times[i], bytes);
        assert_true(civil_time_read(bytes, &back));
        assert_int_equal(back, times[i]);
    }
    civil_time_write(INT64_MAX, bytes);
    assert_true(civil_time_read(bytes, &back));
    assert_int_equal(back, times[5]);
    civil_time_write(INT64_C(1772600767890123), bytes);
    static const uint8_t expected[] = {0x07, 0xea, 3, 4, 5, 6, 7, 0x0d, 0x95, 0x0b};
    assert_memory_equal(bytes, expected, sizeof expected);
    static const uint8_t wrong[][CIVIL_TIME_BYTES] = {
        {0, 0, 1, 1},           {0x07, 0xea, 13, 1},       {0x07, 0xea, 2, 29},
        {0x07, 0xea, 1, 1, 24}, {0x07, 0xea, 1, 1, 0, 60}, {0x07, 0xea, 1, 1, 0, 0, 0, 0x0f, 0x42, 0x40},
        {0x27, 0x10, 1, 1},     {0x07, 0xea, 0x81, 1}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_false(civil_time_read(wrong[i], &back));
    }
}

static void decodes_base64_as_python(void **state) {
    struct fixture *f = *state;
    static const struct {
        const char *text;
        const char *bytes; /* NULL: refused */
    } cases[] = {{"", ""},          {"QQ==", "A"},       {"QUI=", "AB"},
                 {"QUJD", "ABC"},   {"Q U\nJ-D", "ABC"}, {"QUJD====", "ABC"},
                 {"QQ==QUJD", "A"}, {"=QUJD", "ABC"},    {"Q=UJD", "ABC"},
                 {"QQ", NULL},      {"QQ=", NULL},       {"Q", NULL},
                 {"QUJDQ", NULL},   {"QQ=Q=", "A\x04"},  {"====", ""}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        buf_clear(&f->bytes);
        int rc = base64_decode((const uint8_t *)cases[i].text, strlen(cases[i].text), &f->bytes);
        assert_int_equal(rc, cases[i].bytes ? 0 : MUSTER_ECORRUPT);
        if (cases[i].bytes) {
            assert_int_equal(f->bytes.len, strlen(cases[i].bytes));
            if (f->bytes.len > 0) {
                assert_memory_equal(buf_bytes(&f->bytes), cases[i].bytes, f->bytes.len);
            }
        }
    }
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(reads_empty_state),
        TEST(reads_one_participant),
        TEST(reads_complete_round),
        TEST(reads_all_lists),
        TEST(reads_stream_without_memo),
        TEST(writes_pinned_bytes),
        TEST(reads_other_protocol_and_opcodes),
        TEST(refuses_every_cut),
        TEST(survives_every_wrong_byte),
        TEST(refuses_foreign_classes),
        TEST(refuses_hostile_streams),
        TEST(bounds_what_it_builds),
        TEST(thousands_of_nodes),
        TEST(numbers_of_every_width),
        TEST(civil_times),
        TEST(decodes_base64_as_python),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
