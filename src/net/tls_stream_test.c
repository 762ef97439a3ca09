/* Two streams without a network: what each makes is handed to the other, in pieces, damaged, or not at all. */
#include "net/tls_stream.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "net/tls_test_support.h"

enum { BUFFER_BYTES = 1 << 20, CALLER = 0, CALLED = 1 };

struct end {
    struct tls_context *context;
    struct tls_stream *stream;
    struct buf wire, plain; /* to be handed to the other end; what that one has said */
    int status;
    char why[256];
};

struct pair {
    struct end ends[2];
};

static void pair_make(struct pair *pair, struct tls_files caller, struct tls_files called) {
    const struct tls_files *files[] = {&caller, &called};
    memset(pair, 0, sizeof *pair);
    for (int i = 0; i < 2; i++) {
        struct end *end = &pair->ends[i];
        assert_int_equal(tls_context_create(files[i], &end->context), 0);
        assert_int_equal(tls_stream_create(end->context, i == CALLER, &end->stream), 0);
        tls_context_free(end->context); /* streams outlive it */
        buf_init(&end->wire, BUFFER_BYTES);
        buf_init(&end->plain, BUFFER_BYTES);
    }
    assert_int_equal(tls_stream_begin(pair->ends[CALLER].stream, &pair->ends[CALLER].wire), 0);
    assert_int_equal(buf_bytes(&pair->ends[CALLER].wire)[0], TLS_STREAM_FIRST_BYTE);
}

static void pair_free(struct pair *pair) {
    for (int i = 0; i < 2; i++) {
        tls_stream_free(pair->ends[i].stream);
        buf_done(&pair->ends[i].wire);
        buf_done(&pair->ends[i].plain);
    }
}

/* Up to `piece` bytes of what one end has made go to the other. */
static bool hand_over(struct pair *pair, int from, size_t piece) {
    struct end *giver = &pair->ends[from], *taker = &pair->ends[!from];
    size_t len = giver->wire.len < piece ? giver->wire.len : piece;
    if (len == 0 || taker->status != 0) {
        return false;
    }
    taker->status = tls_stream_take(taker->stream, buf_bytes(&giver->wire), len, &taker->plain, &taker->wire);
    if (taker->status != 0) {
        (void)strncpy(taker->why, muster_detail(), sizeof taker->why - 1);
    }
    buf_consume(&giver->wire, len);
    return true;
}

static void settle(struct pair *pair, size_t piece) {
    bool moved = true;
    while (moved) {
        moved = hand_over(pair, CALLER, piece);
        moved = hand_over(pair, CALLED, piece) || moved;
    }
}

static void say(struct pair *pair, int from, const void *bytes, size_t len) {
    assert_int_equal(tls_stream_put(pair->ends[from].stream, bytes, len, &pair->ends[from].wire), 0);
}

static void both_hear_each_other(void **state) {
    static uint8_t much[100000];
    static const size_t pieces[] = {1, 7, 1000, 5000, 100000};
    (void)state;
    for (size_t i = 0; i < sizeof much; i++) {
        much[i] = (uint8_t)(i * 31);
    }
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        struct pair pair;
        pair_make(&pair, tls_test_member(&tls_test_files), tls_test_member(&tls_test_files));
        assert_false(tls_stream_is_open(pair.ends[CALLER].stream) || tls_stream_is_open(pair.ends[CALLED].stream));
        settle(&pair, pieces[i]);
        for (int from = 0; from < 2; from++) {
            assert_true(tls_stream_is_open(pair.ends[from].stream));
            say(&pair, from, "hello", 5);
            say(&pair, from, much, sizeof much);
        }
        assert_null(memmem(buf_bytes(&pair.ends[0].wire), pair.ends[0].wire.len, "hello", 5));
        settle(&pair, pieces[i]);
        for (int to = 0; to < 2; to++) {
            assert_int_equal(pair.ends[to].status, 0);
            assert_int_equal(pair.ends[to].plain.len, 5 + sizeof much);
            assert_memory_equal(buf_bytes(&pair.ends[to].plain), "hello", 5);
            assert_memory_equal(buf_bytes(&pair.ends[to].plain) + 5, much, sizeof much);
        }
        pair_free(&pair);
    }
}

/* `judge` does not accept the other one, and both hear why. */
static void check_refused(struct tls_files caller, struct tls_files called, int judge, const char *reason) {
    struct pair pair;
    pair_make(&pair, caller, called);
    settle(&pair, SIZE_MAX);
    assert_int_equal(pair.ends[judge].status, MUSTER_EPROTOCOL);
    assert_non_null(strstr(pair.ends[judge].why, reason));
    assert_false(tls_stream_is_open(pair.ends[judge].stream));
    assert_int_equal(pair.ends[!judge].status, MUSTER_EPROTOCOL);
    assert_non_null(strstr(pair.ends[!judge].why, "it does not accept this side"));
    assert_int_equal(pair.ends[0].plain.len + pair.ends[1].plain.len, 0);
    pair_free(&pair);
}

static void strangers_are_refused(void **state) {
    const struct tls_files member = tls_test_member(&tls_test_files), stranger = tls_test_stranger(&tls_test_files);
    const struct tls_files expired = tls_test_expired(&tls_test_files);
    (void)state;
    check_refused(stranger, member, CALLED, "unable to get local issuer certificate");
    check_refused(member, stranger, CALLER, "unable to get local issuer certificate");
    check_refused(expired, member, CALLED, "certificate has expired");
    check_refused(member, expired, CALLER, "certificate has expired");
}

/* Each byte of a good beginning changed, with what follows it; and each beginning cut short. */
static void damage_is_no_way_in(void **state) {
    struct pair pair;
    struct buf good;
    (void)state;
    pair_make(&pair, tls_test_member(&tls_test_files), tls_test_member(&tls_test_files));
    buf_init(&good, BUFFER_BYTES);
    assert_int_equal(buf_append(&good, buf_bytes(&pair.ends[CALLER].wire), pair.ends[CALLER].wire.len), 0);
    for (size_t at = 0; at < good.len; at++) {
        struct end called = {.status = 0};
        const struct tls_files files = tls_test_member(&tls_test_files);
        assert_int_equal(tls_context_create(&files, &called.context), 0);
        assert_int_equal(tls_stream_create(called.context, false, &called.stream), 0);
        buf_init(&called.wire, BUFFER_BYTES);
        buf_init(&called.plain, BUFFER_BYTES);
        buf_bytes(&good)[at] ^= 0xff;
        int status = tls_stream_take(called.stream, buf_bytes(&good), at + 1, &called.plain, &called.wire);
        if (status == 0) {
            status = tls_stream_take(called.stream, buf_bytes(&good) + at + 1, good.len - at - 1, &called.plain,
                                     &called.wire);
        }
        buf_bytes(&good)[at] ^= 0xff;
        assert_true(status == 0 || status == MUSTER_EPROTOCOL);
        assert_false(tls_stream_is_open(called.stream));
        assert_int_equal(called.plain.len, 0);
        tls_stream_free(called.stream);
        tls_context_free(called.context);
        buf_done(&called.wire);
        buf_done(&called.plain);
    }
    buf_done(&good);
    pair_free(&pair);
}

/* Whoever sits between two that are open can only end it. */
static void changed_records_end_it(void **state) {
    (void)state;
    for (int how = 0; how < 3; how++) {
        struct pair pair;
        pair_make(&pair, tls_test_member(&tls_test_files), tls_test_member(&tls_test_files));
        settle(&pair, SIZE_MAX);
        struct buf *wire = &pair.ends[CALLER].wire;
        say(&pair, CALLER, "one", 3);
        size_t len = wire->len;
        if (how == 0) { /* changed */
            buf_bytes(wire)[len - 1] ^= 1;
        } else if (how == 1) { /* said twice */
            uint8_t copy[64];
            assert_in_range(len, 1, sizeof copy);
            memcpy(copy, buf_bytes(wire), len);
            assert_int_equal(buf_append(wire, copy, len), 0);
        } else { /* left out */
            buf_clear(wire);
            say(&pair, CALLER, "two", 3);
        }
        settle(&pair, SIZE_MAX);
        assert_int_equal(pair.ends[CALLED].status, MUSTER_EPROTOCOL);
        assert_int_equal(pair.ends[CALLED].plain.len, how == 1 ? 3 : 0);
        pair_free(&pair);
    }
}

/* A message that is announced as very long, and comes and comes. */
static void endless_handshakes_end(void **state) {
    static uint8_t record[5 + 16384] = {0x16, 3, 1, 0x40, 0};
    static const uint8_t hello[] = {1, 1, 0, 0}; /* a ClientHello of 64 KiB */
    struct pair pair;
    int status = 0;
    size_t fed = 0;
    (void)state;
    pair_make(&pair, tls_test_member(&tls_test_files), tls_test_member(&tls_test_files));
    struct end *called = &pair.ends[CALLED];
    for (int i = 0; i < 64 && status == 0; i++) {
        memset(record + 5, 0, sizeof record - 5);
        memcpy(record + 5, hello, i == 0 ? sizeof hello : 0);
        status = tls_stream_take(called->stream, record, sizeof record, &called->plain, &called->wire);
        fed += sizeof record;
    }
    assert_true(status == MUSTER_ELIMIT || status == MUSTER_EPROTOCOL);
    assert_true(fed <= TLS_STREAM_HANDSHAKE_BYTES_MAX + 2 * sizeof record);
    pair_free(&pair);
}

static void other_protocols_are_none(void **state) {
    struct pair pair;
    (void)state;
    pair_make(&pair, tls_test_member(&tls_test_files), tls_test_member(&tls_test_files));
    struct end *caller = &pair.ends[CALLER];
    assert_false(tls_stream_is_answer((const uint8_t *)"MUSTER", 6));
    assert_false(tls_stream_is_answer((const uint8_t *)"\0\0", 2));
    assert_true(tls_stream_is_answer((const uint8_t *)"\x16\3", 2));
    buf_clear(&caller->wire);
    assert_int_equal(
        tls_stream_take(caller->stream, (const uint8_t *)"HTTP/1.1 400", 12, &caller->plain, &caller->wire),
        MUSTER_EPROTOCOL);
    assert_non_null(strstr(muster_detail(), "TLS: "));
    pair_free(&pair);
}

static void what_is_taken_is_bounded_by_its_buffers(void **state) {
    static uint8_t much[30000];
    struct pair pair;
    struct buf small;
    (void)state;
    pair_make(&pair, tls_test_member(&tls_test_files), tls_test_member(&tls_test_files));
    settle(&pair, SIZE_MAX);
    buf_init(&small, 1000);
    assert_int_equal(tls_stream_put(pair.ends[CALLER].stream, much, sizeof much, &small), MUSTER_ELIMIT);
    buf_done(&small);
    pair_free(&pair);
}

static void files_of_no_use_are_named(void **state) {
    struct tls_files good = tls_test_member(&tls_test_files), files = good;
    struct tls_context *context;
    (void)state;
    files.certificate = "/nowhere/at/all.pem";
    assert_int_equal(tls_context_create(&files, &context), MUSTER_EINVAL);
    assert_string_equal(muster_detail(), "TLS: the certificate in /nowhere/at/all.pem: No such file or directory");
    files = good;
    files.authority = "/nowhere/at/all.pem";
    assert_int_equal(tls_context_create(&files, &context), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "the authority's certificates in /nowhere/at/all.pem: No such file"));
    files = good;
    files.key = tls_test_files.stranger_key;
    assert_int_equal(tls_context_create(&files, &context), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "key values mismatch"));
    files = good;
    files.certificate = tls_test_files.member_key;
    assert_int_equal(tls_context_create(&files, &context), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), tls_test_files.member_key));
    assert_non_null(strstr(muster_detail(), "there is none in PEM form"));
    files.certificate = "/";
    assert_int_equal(tls_context_create(&files, &context), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "it is not a file"));
    files.certificate = "/dev/zero"; /* endless */
    assert_int_equal(tls_context_create(&files, &context), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "it is not a file"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(both_hear_each_other),
        cmocka_unit_test(strangers_are_refused),
        cmocka_unit_test(damage_is_no_way_in),
        cmocka_unit_test(changed_records_end_it),
        cmocka_unit_test(endless_handshakes_end),
        cmocka_unit_test(other_protocols_are_none),
        cmocka_unit_test(what_is_taken_is_bounded_by_its_buffers),
        cmocka_unit_test(files_of_no_use_are_named),
    };
    return cmocka_run_group_tests(tests, tls_test_begin, tls_test_end);
}
