/* Event lines, byte for byte as PyTorch 2.13 writes them. */
#include "agent/report/events.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"

static void assert_line(const struct event *event, const char *expected) {
    struct buf out;
    buf_init(&out, 1 << 16);
    assert_int_equal(event_format(event, &out), 0);
    assert_int_equal(buf_append(&out, "", 1), 0);
    assert_string_equal((const char *)buf_bytes(&out), expected);
    buf_done(&out);
}

static struct event agent_event(const char *state) {
    return (struct event){.source = EVENT_SOURCE_AGENT,
                          .state = state,
                          .run_id = "none",
                          .role = "default",
                          .host = "localhost",
                          .backend = "static",
                          .entry_point = "python3",
                          .group_world_size = 1,
                          .has_group_rank = true};
}

static void the_agent_reports_a_duration(void **state) {
    (void)state;
    struct event event = agent_event("RENDEZVOUS");
    event.has_duration = true;
    event.duration_ms = 2.125;
    assert_line(&event,
                "{\"name\": \"torchelastic.worker.status.RENDEZVOUS\", \"source\": \"AGENT\", \"timestamp\": 0, "
                "\"metadata\": {\"run_id\": \"none\", \"global_rank\": null, \"group_rank\": 0, \"worker_id\": null, "
                "\"role\": \"default\", \"hostname\": \"localhost\", \"state\": \"RENDEZVOUS\", \"total_run_time\": 0, "
                "\"rdzv_backend\": \"static\", \"raw_error\": null, \"metadata\": \"{\\\"group_world_size\\\": 1, "
                "\\\"entry_point\\\": \\\"python3\\\"}\", \"agent_restarts\": 0, \"duration_ms\": 2.125}}\n");
}

static void a_failed_worker_carries_its_error(void **state) {
    (void)state;
    struct event event = agent_event("FAILED");
    event.source = EVENT_SOURCE_WORKER;
    event.raw_error = "{\"message\": \"<NONE>\"}";
    event.total_run_time_s = 12;
    event.restart_count = 2;
    event.worker.global_rank = 3;
    event.worker.local_rank = 1;
    event.worker.role_rank = 3;
    event.worker.role_world_size = 4;
    event.worker.pid = 4711;
    event.worker.failed = true;
    event.worker.exit_code = -11;
    assert_line(&event,
                "{\"name\": \"torchelastic.worker.status.FAILED\", \"source\": \"WORKER\", \"timestamp\": 0, "
                "\"metadata\": {\"run_id\": \"none\", \"global_rank\": 3, \"group_rank\": 0, \"worker_id\": \"4711\", "
                "\"role\": \"default\", \"hostname\": \"localhost\", \"state\": \"FAILED\", \"total_run_time\": 12, "
                "\"rdzv_backend\": \"static\", \"raw_error\": \"{\\\"message\\\": \\\"<NONE>\\\"}\", \"metadata\": "
                "\"{\\\"group_world_size\\\": 1, \\\"entry_point\\\": \\\"python3\\\", \\\"local_rank\\\": [1], "
                "\\\"role_rank\\\": [3], \\\"role_world_size\\\": [4], \\\"exit_code\\\": [-11], \\\"worker_pid\\\": "
                "[4711]}\", \"agent_restarts\": 2, \"duration_ms\": null}}\n");
}

static void a_started_worker_has_no_exit_code(void **state) {
    (void)state;
    struct event event = agent_event("START");
    struct buf out;
    event.source = EVENT_SOURCE_WORKER;
    buf_init(&out, 1 << 16);
    assert_int_equal(event_format(&event, &out), 0);
    assert_int_equal(buf_append(&out, "", 1), 0);
    assert_non_null(strstr((const char *)buf_bytes(&out), "\\\"exit_code\\\": [null], \\\"worker_pid\\\": [null]}"));
    buf_done(&out);
}

/* Text of any kind comes out as ASCII JSON, the way json.dumps() writes it. */
static void text_is_escaped(void **state) {
    (void)state;
    struct event event = agent_event("START");
    event.role = "q\" b\\ \b\f\n\r\t \x01 \x7f \xc3\xa9 \xf0\x9f\x98\x80 \xff/";
    struct buf out;
    buf_init(&out, 1 << 16);
    assert_int_equal(event_format(&event, &out), 0);
    assert_int_equal(buf_append(&out, "", 1), 0);
    assert_non_null(strstr((const char *)buf_bytes(&out),
                           "\"role\": \"q\\\" b\\\\ \\b\\f\\n\\r\\t \\u0001 \x7f \\u00e9 \\ud83d\\ude00 \\ufffd/\""));
    buf_done(&out);
}

static void durations_read_back_exactly(void **state) {
    (void)state;
    const double values[] = {0, 1, 0.1, 1e-7, 123456789.123, 1.0 / 3, 1e22};
    const char *const texts[] = {"0.0}", "1.0}", "0.1}", "1e-07}", "123456789.123}", "0.3333333333333333}", "1e+22}"};
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        struct event event = agent_event("RENDEZVOUS");
        struct buf out;
        event.has_duration = true;
        event.duration_ms = values[i];
        buf_init(&out, 1 << 16);
        assert_int_equal(event_format(&event, &out), 0);
        assert_int_equal(buf_append(&out, "", 1), 0);
        assert_non_null(strstr((const char *)buf_bytes(&out), texts[i]));
        buf_done(&out);
    }
}

static void a_line_that_does_not_fit_is_an_error(void **state) {
    (void)state;
    struct event event = agent_event("START");
    struct buf out;
    buf_init(&out, 100);
    assert_int_equal(event_format(&event, &out), MUSTER_ELIMIT);
    buf_done(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_agent_reports_a_duration),      cmocka_unit_test(a_failed_worker_carries_its_error),
        cmocka_unit_test(a_started_worker_has_no_exit_code), cmocka_unit_test(text_is_escaped),
        cmocka_unit_test(durations_read_back_exactly),       cmocka_unit_test(a_line_that_does_not_fit_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
