/* etcd's JSON: requests byte by byte, answers as etcd 3.4 gives them, and what no etcd says. */
#include "rendezvous/etcd/etcd3_wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

/* ---- requests ---- */

static void assert_body(struct buf *body, int code, const char *text) {
    assert_int_equal(code, 0);
    assert_int_equal(body->len, strlen(text));
    assert_memory_equal(buf_bytes(body), text, body->len);
    buf_done(body);
}

static struct etcd3_range key(const char *text, const char *end) {
    return (struct etcd3_range){.key = kv_slice_text(text), .end = kv_slice_text(end)};
}

static void requests_are_etcds(void **state) {
    struct buf b;
    (void)state;
    buf_init(&b, 4096);
    assert_body(&b, etcd3_wire_put_grant(&b, 15), "{\"TTL\":\"15\"}");
    assert_body(&b, etcd3_wire_put_lease(&b, INT64_MAX), "{\"ID\":\"9223372036854775807\"}");
    struct etcd3_operation operation = {.kind = ETCD3_RANGE, .range = key("foo", "fop")};
    assert_body(&b, etcd3_wire_put_operation(&b, &operation), "{\"key\":\"Zm9v\",\"range_end\":\"Zm9w\"}");
    operation = (struct etcd3_operation){
        .kind = ETCD3_PUT, .range = key("foo", ""), .value = kv_slice_of("\0\xff", 2), .lease_id = 7};
    assert_body(&b, etcd3_wire_put_operation(&b, &operation), "{\"key\":\"Zm9v\",\"value\":\"AP8=\",\"lease\":\"7\"}");
}

static void transaction_and_watch_are_etcds(void **state) {
    struct buf b;
    (void)state;
    buf_init(&b, 4096);
    const struct etcd3_operation success[] = {
        {.kind = ETCD3_PUT, .range = key("a", ""), .value = kv_slice_text("v"), .lease_id = 1},
        {.kind = ETCD3_DELETE, .range = key("b", "")},
    };
    const struct etcd3_operation failure = {.kind = ETCD3_RANGE, .range = key("c", "")};
    const struct etcd3_transaction transaction = {.key = kv_slice_text("k"),
                                                  .create_revision = 9,
                                                  .success = success,
                                                  .success_count = 2,
                                                  .failure = &failure,
                                                  .failure_count = 1};
    assert_body(&b, etcd3_wire_put_transaction(&b, &transaction),
                "{\"compare\":[{\"target\":\"CREATE\",\"key\":\"aw==\",\"create_revision\":\"9\"}],\"success\":["
                "{\"request_put\":{\"key\":\"YQ==\",\"value\":\"dg==\",\"lease\":\"1\"}},"
                "{\"request_delete_range\":{\"key\":\"Yg==\"}}],\"failure\":[{\"request_range\":{\"key\":\"Yw==\"}}]}");
    const struct etcd3_range ranges[] = {key("a", ""), key("b", "c")};
    const int64_t revisions[] = {5, 6};
    assert_body(
        &b, etcd3_wire_put_watch(&b, ranges, revisions, 2),
        "{\"create_request\":{\"key\":\"YQ==\",\"start_revision\":\"5\",\"watch_id\":\"1\"}}"
        "{\"create_request\":{\"key\":\"Yg==\",\"range_end\":\"Yw==\",\"start_revision\":\"6\",\"watch_id\":\"2\"}}");
}

static void passwords_are_quoted(void **state) {
    struct buf b;
    (void)state;
    buf_init(&b, 4096);
    assert_body(&b, etcd3_wire_put_authenticate(&b, "root", "a\"b\\c\n"),
                "{\"name\":\"root\",\"password\":\"a\\\"b\\\\c\\n\"}");
    assert_int_equal(etcd3_wire_put_authenticate(&b, "root", "\xff"), MUSTER_EINVAL);
    buf_done(&b);
}

static void requests_are_bounded(void **state) {
    struct buf b;
    (void)state;
    for (size_t max = 0; max < 60; max++) {
        const struct etcd3_operation put = {
            .kind = ETCD3_PUT, .range = key("foo", ""), .value = kv_slice_text("0123456789"), .lease_id = 12345678};
        buf_init(&b, max);
        assert_int_equal(etcd3_wire_put_operation(&b, &put), MUSTER_ELIMIT);
        buf_done(&b);
    }
}

/* ---- answers ---- */

#define HEADER "\"header\":{\"cluster_id\":\"1\",\"member_id\":\"2\",\"revision\":\"41\",\"raft_term\":\"2\"}"

static struct etcd3_reply get(const char *text) {
    struct etcd3_reply reply;
    assert_int_equal(etcd3_wire_get((const uint8_t *)text, strlen(text), &reply), 0);
    return reply;
}

static void assert_pair(const struct etcd3_pair *pair, const char *name, const char *value) {
    assert_true(kv_slice_equal(pair->key, kv_slice_text(name)));
    assert_true(kv_slice_equal(pair->value, kv_slice_text(value)));
}

static void leases_are_read(void **state) {
    (void)state;
    struct etcd3_reply reply = get("{" HEADER ",\"ID\":\"2324035536318825221\",\"TTL\":\"10\"}");
    assert_int_equal(reply.revision, 41);
    assert_int_equal(reply.lease_id, INT64_C(2324035536318825221));
    assert_int_equal(reply.ttl_s, 10);
    etcd3_reply_done(&reply);
    reply = get("{\"result\":{" HEADER ",\"ID\":\"78\"}}\n"); /* a keepalive of a lease that has expired */
    assert_int_equal(reply.lease_id, 78);
    assert_int_equal(reply.ttl_s, 0);
    etcd3_reply_done(&reply);
}

static void transactions_are_read(void **state) {
    (void)state;
    struct etcd3_reply reply =
        get("{" HEADER ",\"succeeded\":true,\"responses\":[{\"response_put\":{\"header\":{}}}]}");
    assert_true(reply.has_succeeded);
    assert_int_equal(reply.pair_count, 0);
    etcd3_reply_done(&reply);
    reply = get("{" HEADER ",\"responses\":[{\"response_range\":{\"kvs\":[{\"key\":\"Zm9v\",\"create_revision\":\"3\","
                "\"mod_revision\":\"4\",\"version\":\"1\",\"value\":\"YmFy\",\"lease\":\"77\"}],\"count\":\"1\"}},"
                "{\"response_range\":{\"kvs\":[{\"key\":\"YQ==\"}]}}]}");
    assert_false(reply.has_succeeded);
    assert_int_equal(reply.pair_count, 2);
    assert_pair(&reply.pairs[0], "foo", "bar");
    assert_int_equal(reply.pairs[0].create_revision, 3);
    assert_int_equal(reply.pairs[0].mod_revision, 4);
    assert_pair(&reply.pairs[1], "a", "");
    etcd3_reply_done(&reply);
}

static void events_are_read(void **state) {
    (void)state;
    struct etcd3_reply reply =
        get("{\"result\":{" HEADER ",\"watch_id\":\"2\",\"events\":[{\"kv\":{\"key\":\"Zm9v\",\"value\":\"YmFy\"}},"
            "{\"type\":\"DELETE\",\"kv\":{\"key\":\"Zm9v\",\"mod_revision\":\"5\"}}]}}");
    assert_int_equal(reply.watch_index, 1);
    assert_int_equal(reply.pair_count, 2);
    assert_false(reply.pairs[0].is_deleted);
    assert_pair(&reply.pairs[0], "foo", "bar");
    assert_true(reply.pairs[1].is_deleted);
    assert_int_equal(reply.pairs[1].mod_revision, 5);
    etcd3_reply_done(&reply);
    reply = get("{\"result\":{" HEADER ",\"canceled\":true,\"compact_revision\":\"4\"}}");
    assert_true(reply.is_canceled);
    assert_int_equal(reply.compact_revision, 4);
    assert_true(reply.watch_index == SIZE_MAX);
    etcd3_reply_done(&reply);
    reply = get("{\"result\":{" HEADER ",\"canceled\":true,\"cancel_reason\":\"etcdserver: no leader\"}}");
    assert_string_equal(reply.error_text, "etcdserver: no leader");
    assert_int_equal(reply.error, 0);
    etcd3_reply_done(&reply);
}

static void errors_are_read(void **state) {
    static const struct {
        const char *text;
        int code;
        const char *words;
    } errors[] = {
        {"{\"error\":\"lease not\\nfound\",\"message\":\"lease not\\nfound\",\"code\":5}", 5, "lease not found"},
        {"{\"code\":16, \"message\":\"etcdserver: invalid auth token\", \"details\":[]}", 16,
         "etcdserver: invalid auth token"}, /* 3.6 */
        {"{\"error\":{\"grpc_code\":14,\"http_code\":503,\"message\":\"no leader\",\"http_status\":\"\"}}", 14,
         "no leader"},
        {"{\"error\":{}}", ETCD3_UNKNOWN, "without a reason"},
        {"{\"error\":\"x\",\"code\":-7}", ETCD3_UNKNOWN, "x"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        struct etcd3_reply reply = get(errors[i].text);
        assert_int_equal(reply.error, errors[i].code);
        assert_string_equal(reply.error_text, errors[i].words);
        etcd3_reply_done(&reply);
    }
}

static void long_errors_are_cut_between_characters(void **state) {
    char text[2048] = "{\"code\":2,\"message\":\"x";
    (void)state;
    for (int i = 0; i < 300; i++) {
        strncat(text, "\xc3\xa4", sizeof text - strlen(text) - 1);
    }
    strncat(text, "\"}", sizeof text - strlen(text) - 1);
    struct etcd3_reply reply = get(text);
    size_t len = strlen(reply.error_text);
    assert_in_range(len, ETCD3_ERROR_MAX - 4, ETCD3_ERROR_MAX - 1);
    assert_int_equal(len % 2, 1);
    etcd3_reply_done(&reply);
}

static void tokens_are_bounded(void **state) {
    struct etcd3_reply reply = get("{" HEADER ",\"token\":\"abc.17\"}");
    static char text[2 * ETCD3_TOKEN_MAX];
    (void)state;
    assert_string_equal(reply.token, "abc.17");
    etcd3_reply_done(&reply);
    (void)snprintf(text, sizeof text, "{" HEADER ",\"token\":\"%0*d\"}", ETCD3_TOKEN_MAX, 0);
    assert_int_equal(etcd3_wire_get((const uint8_t *)text, strlen(text), &reply), MUSTER_EPROTOCOL);
}

static void what_no_etcd_says_is_refused(void **state) {
    static const char bad_key[] = "{" HEADER ",\"kvs\":[{\"key\":\"Z\"}]}";
    static const char *const texts[] = {
        "",     "Not Found\n", "[]",    "{", "{}", "{\"kvs\":[]}", "{\"result\":{}}", "{\"header\":3}",
        "null", "{} {}",       bad_key,
    };
    struct etcd3_reply reply;
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(etcd3_wire_get((const uint8_t *)texts[i], strlen(texts[i]), &reply), MUSTER_EPROTOCOL);
    }
}

/* ---- streams ---- */

static void objects_end_where_they_end(void **state) {
    static const char stream[] = "{\"a\":\"}{\\\"\"} \n{\"b\":[{},{\"c\":\"\\\\\"}]}{}";
    static const size_t ends[] = {12, 35, 37};
    (void)state;
    for (size_t piece = 1; piece < sizeof stream; piece++) {
        struct etcd3_splitter splitter = {.seen = 0};
        size_t begin = 0, found = 0, used = 0;
        for (size_t have = piece; begin < sizeof stream - 1; have += piece) {
            have = have < sizeof stream ? have : sizeof stream - 1;
            while (etcd3_wire_split(&splitter, (const uint8_t *)stream + begin, have - begin, &used) ==
                   ETCD3_COMPLETE) {
                begin += used;
                assert_in_range(found, 0, sizeof ends / sizeof *ends - 1);
                assert_int_equal(begin, found < sizeof ends / sizeof *ends ? ends[found] : 0);
                found++;
                splitter = (struct etcd3_splitter){.seen = 0};
            }
        }
        assert_int_equal(found, 3);
    }
}

static void what_is_no_object_is_malformed(void **state) {
    static const char *const texts[] = {"x", " \n4", "[{}]", "\"{}\"", "}"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct etcd3_splitter splitter = {.seen = 0};
        size_t used = 0;
        assert_int_equal(etcd3_wire_split(&splitter, (const uint8_t *)texts[i], strlen(texts[i]), &used),
                         ETCD3_MALFORMED);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(requests_are_etcds),
        cmocka_unit_test(transaction_and_watch_are_etcds),
        cmocka_unit_test(passwords_are_quoted),
        cmocka_unit_test(requests_are_bounded),
        cmocka_unit_test(leases_are_read),
        cmocka_unit_test(transactions_are_read),
        cmocka_unit_test(events_are_read),
        cmocka_unit_test(errors_are_read),
        cmocka_unit_test(long_errors_are_cut_between_characters),
        cmocka_unit_test(tokens_are_bounded),
        cmocka_unit_test(what_no_etcd_says_is_refused),
        cmocka_unit_test(objects_end_where_they_end),
        cmocka_unit_test(what_is_no_object_is_malformed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
