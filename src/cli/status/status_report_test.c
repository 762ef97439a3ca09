/* Reports as people read them, and a c10d rendezvous as a report. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "base/str.h"
#include "cli/status/status_report.h"

static const char running[] =
    "{\"backend\":\"muster\",\"run_id\":\"job7\",\"phase\":\"running\",\"phase_ms\":3200,\"stopping\":false,"
    "\"round\":2,\"news\":\"\",\"engine\":\"mpi (as asked "
    "for)\",\"nodes\":{\"min\":2,\"max\":4,\"active\":2,\"joined\":0,\"spare\":1,\"done\":0,"
    "\"world\":2},\"workers\":4,\"charges\":{\"failures\":1,\"changes\":0,\"preemptions\":0},"
    "\"limits\":{\"failures\":3,\"changes\":null,\"preemptions\":null,\"window_ms\":0},"
    "\"rounds\":[{\"round\":1,\"nodes\":2,\"workers\":4,\"forming_ms\":12,\"running_ms\":61000,\"ended\":true,"
    "\"last\":false,\"cause\":\"failure\",\"why\":\"node a (pid 7) failed\"},"
    "{\"round\":2,\"nodes\":2,\"workers\":4,\"forming_ms\":3,\"running_ms\":3200,\"ended\":false,\"last\":false,"
    "\"cause\":\"\",\"why\":\"\"}],"
    "\"members\":[{\"place\":\"active\",\"addr\":\"a\",\"role\":\"default\",\"topology\":\"rack1\",\"rank\":0,"
    "\"first_worker\":0,\"pid\":7,\"workers\":2,\"host\":true},"
    "{\"place\":\"active\",\"addr\":\"b\",\"role\":\"default\",\"topology\":\"\",\"rank\":1,\"first_worker\":2,"
    "\"pid\":8,\"workers\":2,\"host\":false},"
    "{\"place\":\"spare\",\"addr\":\"c\",\"role\":\"eval\",\"topology\":\"\",\"pid\":9,\"workers\":2,"
    "\"host\":false}],\"omitted\":0}";

static void assert_text(const json_t *report, size_t members_max, const char *expected) {
    struct buf out;
    buf_init(&out, STATUS_TEXT_BYTES_MAX);
    assert_int_equal(status_text(&out, report, members_max), 0);
    assert_int_equal(buf_append(&out, "", 1), 0);
    assert_string_equal((char *)buf_bytes(&out), expected);
    buf_done(&out);
}

static void a_job_that_runs(void **state) {
    (void)state;
    json_t *report = json_loads(running, 0, NULL);
    assert_non_null(report);
    assert_text(report, 2,
                "job \"job7\": running, round 2, for 3.2 s; 2 nodes, 1 spare, 4 workers\n"
                "engine: mpi (as asked for), of rank 0's process group\n"
                "charged: 1 failure of 3, 0 changes of nodes, 0 pre-emptions\n"
                "rounds\n"
                "  1    2 nodes, 4 workers; formed in 12 ms, ran for 1 min 1 s; failure: node a (pid 7) failed\n"
                "  2    2 nodes, 4 workers; formed in 3 ms, has run for 3.2 s\n"
                "nodes\n"
                "  rank  workers   place    node\n"
                "  0     0-1       active   a (pid 7)                      at rack1 serves the rendezvous\n"
                "  1     2-3       active   b (pid 8)\n"
                "  and 1 more\n");
    json_decref(report);
}

static void a_change_is_one_line(void **state) {
    (void)state;
    json_t *report = json_loads(running, 0, NULL);
    struct buf out;
    buf_init(&out, STATUS_TEXT_BYTES_MAX);
    assert_int_equal(status_text_line(&out, report), 0);
    assert_int_equal(buf_append(&out, "", 1), 0);
    assert_string_equal((char *)buf_bytes(&out),
                        "job \"job7\": running, round 2, for 3.2 s; 2 nodes, 1 spare, 4 workers; "
                        "engine mpi (as asked for)\n");
    buf_done(&out);
    json_decref(report);
}

static void changes_are_what_people_want_to_know(void **state) {
    (void)state;
    json_t *before = json_loads(running, 0, NULL), *after = json_loads(running, 0, NULL);
    (void)json_object_set_new(after, "phase_ms", json_integer(9999));
    assert_false(status_differs(before, after));
    assert_false(status_is_over(after));
    (void)json_object_set_new(after, "engine", json_string("muster (as asked for)"));
    assert_true(status_differs(before, after));
    (void)json_object_set_new(after, "engine", json_string("mpi (as asked for)"));
    assert_false(status_differs(before, after));
    (void)json_object_set_new(after, "phase", json_string("over"));
    assert_true(status_differs(before, after));
    assert_true(status_is_over(after));
    json_decref(before);
    json_decref(after);
}

static void anything_can_be_printed(void **state) {
    (void)state;
    static const char *const texts[] = {"{}", "[]", "{\"members\":[1,{}],\"rounds\":[{}],\"nodes\":7,\"charges\":[]}"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct buf out;
        json_t *report = json_loads(texts[i], 0, NULL);
        buf_init(&out, STATUS_TEXT_BYTES_MAX);
        assert_int_equal(status_text(&out, report, SIZE_MAX), 0);
        buf_done(&out);
        json_decref(report);
    }
}

static void a_rendezvous_of_c10d(void **state) {
    (void)state;
    struct rdzv_state rdzv;
    rdzv_state_init(&rdzv);
    assert_int_equal(rdzv_state_reserve(&rdzv, 3), 0);
    for (int i = 0; i < 3; i++) {
        struct rdzv_node node = {.pid = 10 + i};
        (void)str_format(node.addr, sizeof node.addr, "node%d", i);
        struct rdzv_member *member = rdzv_state_insert(&rdzv, &node);
        member->lists = (i < 2 ? RDZV_PARTICIPANT : RDZV_WAITING) | RDZV_HEARTBEAT;
        member->heartbeat_us = 1000000;
    }
    rdzv_state_complete(&rdzv);
    json_t *report = NULL;
    assert_int_equal(status_report_c10d(&rdzv, "job", 3000000, &report), 0);
    assert_text(report, SIZE_MAX,
                "job \"job\": running, round 0; 2 nodes, 1 waiting\n"
                "nodes\n"
                "  rank  workers   place    node\n"
                "  0     -         active   node0 (pid 10)                 heard 2.0 s ago\n"
                "  1     -         active   node1 (pid 11)                 heard 2.0 s ago\n"
                "  -     -         waiting  node2 (pid 12)                 heard 2.0 s ago\n");
    json_decref(report);
    rdzv_state_done(&rdzv);
}

/* A coordinator may be hostile, and a terminal obeys what it shows. */
static void control_characters_are_not_passed_on(void **state) {
    (void)state;
    json_t *report = json_pack("{s:s, s:s, s:[{s:s, s:s}]}", "run_id", "\x1b[2Jj\xc2\x9b", "phase", "run\nning",
                               "members", "addr", "a\x07", "place", "active");
    struct buf out;
    assert_int_equal(status_report_clean(report), 0);
    buf_init(&out, STATUS_TEXT_BYTES_MAX);
    assert_int_equal(status_text(&out, report, SIZE_MAX), 0);
    assert_int_equal(buf_append(&out, "", 1), 0);
    assert_non_null(strstr((const char *)buf_bytes(&out), "job \"?[2Jj\?\?\": run?ning"));
    assert_null(strpbrk((const char *)buf_bytes(&out), "\x1b\x07"));
    buf_done(&out);
    json_decref(report);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(control_characters_are_not_passed_on),
        cmocka_unit_test(a_job_that_runs),
        cmocka_unit_test(a_change_is_one_line),
        cmocka_unit_test(changes_are_what_people_want_to_know),
        cmocka_unit_test(anything_can_be_printed),
        cmocka_unit_test(a_rendezvous_of_c10d),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
