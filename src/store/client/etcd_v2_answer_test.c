/* Answers of etcd's v2 API: what etcd 3.4 sends, byte for byte, and what it never should. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "store/client/etcd_v2_answer.h"

static int read_text(long code, const char *text, const char *index, struct etcd_v2_answer *out) {
    return etcd_v2_answer_read(code, (const uint8_t *)text, strlen(text), index, out);
}

static void a_node_is_read(void **state) {
    struct etcd_v2_answer answer;
    (void)state;
    assert_int_equal(read_text(200,
                               "{\"action\":\"get\",\"node\":{\"key\":\"/torch/a\",\"value\":\"Zm9v\",\"expiration\":"
                               "\"2026-11-22T08:03:59.5Z\",\"ttl\":7200,\"modifiedIndex\":17,\"createdIndex\":5}}\n",
                               "23", &answer),
                     0);
    assert_int_equal(answer.error, 0);
    assert_string_equal(answer.action, "get");
    assert_string_equal(answer.node.key, "/torch/a");
    assert_string_equal(answer.node.value, "Zm9v");
    assert_int_equal(answer.node.modified_index, 17);
    assert_int_equal(answer.index, 23);
    assert_false(answer.node.is_folder);
    etcd_v2_answer_done(&answer);
}

static void a_folder_has_children(void **state) {
    struct etcd_v2_answer answer;
    (void)state;
    assert_int_equal(read_text(200,
                               "{\"action\":\"get\",\"node\":{\"key\":\"/v_1\",\"dir\":true,\"nodes\":[{\"key\":"
                               "\"/v_1/rank_0\",\"value\":\"\",\"modifiedIndex\":9},{\"key\":\"/v_1/kv\",\"dir\":true,"
                               "\"modifiedIndex\":10}],\"modifiedIndex\":6}}",
                               "", &answer),
                     0);
    assert_true(answer.node.is_folder);
    assert_null(answer.node.value);
    assert_int_equal(answer.child_count, 2);
    assert_string_equal(answer.children[0].key, "/v_1/rank_0");
    assert_string_equal(answer.children[0].value, "");
    assert_true(answer.children[1].is_folder);
    etcd_v2_answer_done(&answer);
}

static void the_root_has_no_key(void **state) {
    struct etcd_v2_answer answer;
    (void)state;
    assert_int_equal(read_text(200, "{\"action\":\"get\",\"node\":{\"dir\":true}}", "1", &answer), 0);
    assert_string_equal(answer.node.key, "/");
    etcd_v2_answer_done(&answer);
}

static void a_deleted_node_has_no_value(void **state) {
    struct etcd_v2_answer answer;
    (void)state;
    assert_int_equal(read_text(200,
                               "{\"action\":\"expire\",\"node\":{\"key\":\"/a\",\"modifiedIndex\":12,\"createdIndex\":"
                               "9},\"prevNode\":{\"key\":\"/a\",\"value\":\"x\",\"modifiedIndex\":9}}",
                               "11", &answer),
                     0);
    assert_string_equal(answer.action, "expire");
    assert_null(answer.node.value);
    assert_int_equal(answer.node.modified_index, 12);
    etcd_v2_answer_done(&answer);
}

static void an_error_is_an_answer(void **state) {
    struct etcd_v2_answer answer;
    (void)state;
    assert_int_equal(read_text(404, "{\"errorCode\":100,\"message\":\"Key not found\",\"cause\":\"/a\",\"index\":31}\n",
                               "", &answer),
                     0);
    assert_int_equal(answer.error, ETCD_V2_KEY_NOT_FOUND);
    assert_string_equal(answer.message, "Key not found");
    assert_int_equal(answer.index, 31);
    assert_null(answer.node.value);
    etcd_v2_answer_done(&answer);
}

static void an_etcd_without_v2_is_told_apart(void **state) {
    struct etcd_v2_answer answer;
    (void)state;
    assert_int_equal(read_text(404, "404 page not found\n", "", &answer), MUSTER_EUNSUPPORTED);
    assert_non_null(strstr(muster_detail(), "--enable-v2"));
    assert_non_null(strstr(muster_detail(), "404 page not found"));
}

static void what_is_no_answer_is_refused(void **state) {
    static const char *const texts[] = {
        "",
        "null",
        "[]",
        "{}",
        "{\"action\":\"get\"}",
        "{\"action\":\"get\",\"node\":7}",
        "{\"action\":7,\"node\":{\"key\":\"/\"}}",
        "{\"action\":\"get\",\"node\":{\"key\":\"/\",\"nodes\":[1]}}",
        "{\"errorCode\":-1}",
        "{\"errorCode\":\"100\"}",
        "{\"action\":\"get\",\"action\":\"get\",\"node\":{}}",
        "\x01\x02\xff<html>\n",
    };
    struct etcd_v2_answer answer;
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_int_equal(read_text(200, texts[i], "", &answer), MUSTER_EPROTOCOL);
    }
}

static void odd_values_are_left_out(void **state) {
    struct etcd_v2_answer answer;
    (void)state;
    /* A value that is no text, indices that are none. */
    assert_int_equal(read_text(200, "{\"action\":\"get\",\"node\":{\"key\":\"/a\",\"value\":17,\"modifiedIndex\":-4}}",
                               "-1", &answer),
                     0);
    assert_null(answer.node.value);
    assert_int_equal(answer.node.modified_index, 0);
    assert_int_equal(answer.index, 0);
    etcd_v2_answer_done(&answer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_is_read),
        cmocka_unit_test(a_folder_has_children),
        cmocka_unit_test(the_root_has_no_key),
        cmocka_unit_test(a_deleted_node_has_no_value),
        cmocka_unit_test(an_error_is_an_answer),
        cmocka_unit_test(an_etcd_without_v2_is_told_apart),
        cmocka_unit_test(what_is_no_answer_is_refused),
        cmocka_unit_test(odd_values_are_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
