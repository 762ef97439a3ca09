/* Findings written down: columns, wrapping, colours, JSON. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "cli/doctor/doctor_text.h"

static struct doctor_findings *two(void) {
    struct doctor_findings *findings = calloc(1, sizeof *findings);
    assert_non_null(findings);
    (void)doctor_find(findings, DOCTOR_CLOCK, DOCTOR_OK, "synchronised");
    doctor_advise(doctor_find(findings, DOCTOR_MEMORY, DOCTOR_WARNING, "/dev/shm has 64 MiB"),
                  "Start the container with --shm-size=8g or --ipc=host");
    return findings;
}

static void text_is_aligned(void **state) {
    (void)state;
    struct buf out;
    struct doctor_findings *findings = two();
    buf_init(&out, DOCTOR_TEXT_BYTES_MAX);
    assert_int_equal(doctor_text(&out, findings, 60, false), 0);
    assert_int_equal(buf_append(&out, "", 1), 0);
    assert_string_equal((char *)buf_bytes(&out), "  ok       clock        synchronised\n"
                                                 "  warning  memory       /dev/shm has 64 MiB\n"
                                                 "                        -> Start the container with\n"
                                                 "                        --shm-size=8g or --ipc=host\n"
                                                 "1 ok, 0 notes, 1 warning, 0 errors\n");
    buf_done(&out);
    free(findings);
}

static void colours_surround_the_level(void **state) {
    (void)state;
    struct buf out;
    struct doctor_findings *findings = two();
    buf_init(&out, DOCTOR_TEXT_BYTES_MAX);
    assert_int_equal(doctor_text(&out, findings, 80, true), 0);
    assert_int_equal(buf_append(&out, "", 1), 0);
    assert_non_null(strstr((char *)buf_bytes(&out), "  \x1b[33mwarning  \x1b[0mmemory "));
    buf_done(&out);
    free(findings);
}

static void json_holds_everything(void **state) {
    (void)state;
    struct buf out;
    struct doctor_findings *findings = two();
    (void)doctor_find(findings, DOCTOR_NAMES, DOCTOR_NOTE, "a name of no UTF-8: \xff");
    buf_init(&out, DOCTOR_TEXT_BYTES_MAX);
    assert_int_equal(doctor_json(&out, "node7", findings, NULL), 0);
    json_t *tree = json_loadb((char *)buf_bytes(&out), out.len, 0, NULL);
    assert_non_null(tree);
    assert_string_equal(json_string_value(json_object_get(tree, "node")), "node7");
    json_t *list = json_object_get(tree, "findings"), *second = json_array_get(list, 1);
    assert_int_equal(json_array_size(list), 3);
    assert_string_equal(json_string_value(json_object_get(second, "check")), "memory");
    assert_string_equal(json_string_value(json_object_get(second, "level")), "warning");
    assert_non_null(strstr(json_string_value(json_object_get(second, "advice")), "--shm-size"));
    assert_int_equal(json_integer_value(json_object_get(json_object_get(tree, "counts"), "warning")), 1);
    json_decref(tree);
    buf_done(&out);
    free(findings);
}

static void pairs_are_a_matrix(void **state) {
    (void)state;
    struct buf out;
    struct doctor_node nodes[2] = {{.host = "a", .addr = "10.0.0.1"}, {.host = "b", .addr = "10.0.0.2"}};
    struct doctor_pair pair = {
        .to = 1, .is_measured = true, .latency_us = 51.4, .forward_mbps = 1200, .backward_mbps = 900};
    struct meeting meeting = {.nodes = nodes, .node_count = 2, .pairs = &pair, .pair_count = 1};
    buf_init(&out, DOCTOR_TEXT_BYTES_MAX);
    assert_int_equal(doctor_text_matrix(&out, &meeting), 0);
    pair.is_measured = false;
    assert_int_equal(doctor_text_matrix(&out, &meeting), 0);
    meeting.node_count = DOCTOR_MATRIX_NODES_MAX + 1;
    assert_int_equal(doctor_text_matrix(&out, &meeting), 0);
    assert_int_equal(buf_append(&out, "", 1), 0);
    assert_string_equal((char *)buf_bytes(&out), "  us, there and back                     0       1\n"
                                                 "  0 a (10.0.0.1)                         .      51\n"
                                                 "  1 b (10.0.0.2)                        51       .\n"
                                                 "  MB/s, from row to column               0       1\n"
                                                 "  0 a (10.0.0.1)                         .    1200\n"
                                                 "  1 b (10.0.0.2)                       900       .\n"
                                                 "  us, there and back                     0       1\n"
                                                 "  0 a (10.0.0.1)                         .  failed\n"
                                                 "  1 b (10.0.0.2)                    failed       .\n"
                                                 "  MB/s, from row to column               0       1\n"
                                                 "  0 a (10.0.0.1)                         .  failed\n"
                                                 "  1 b (10.0.0.2)                    failed       .\n");
    buf_done(&out);
}

static void the_list_names_every_check(void **state) {
    (void)state;
    struct buf out;
    buf_init(&out, DOCTOR_TEXT_BYTES_MAX);
    assert_int_equal(doctor_text_list(&out), 0);
    assert_int_equal(buf_append(&out, "", 1), 0);
    for (unsigned i = 0; i < DOCTOR_CHECK_COUNT; i++) {
        assert_non_null(strstr((char *)buf_bytes(&out), doctor_check_names[i]));
    }
    buf_done(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_is_aligned),
        cmocka_unit_test(colours_surround_the_level),
        cmocka_unit_test(json_holds_everything),
        cmocka_unit_test(pairs_are_a_matrix),
        cmocka_unit_test(the_list_names_every_check),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
