/* How a job ends: every kind of departure, and the record of a failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "base/str.h"
#include "rendezvous/round/cause.h"
#include "rendezvous/round/job_end.h"

/* X(what happens, nodes, arrived, missing, of these done, of these mute, of all done by record, closed, verdict) */
#define LOSSES(X)                                                                                                      \
    X("a node is lost", 2, 0, 1, 0, 0, 0, false, REFORM)                                                               \
    X("... and the job is closed", 2, 0, 1, 0, 0, 0, true, FAILED)                                                     \
    X("a node that was done has gone", 2, 1, 1, 1, 0, 1, false, GO_ON)                                                 \
    X("... and has closed the job", 2, 1, 1, 1, 0, 1, true, GO_ON)                                                     \
    X("one was done, and one is lost", 3, 1, 2, 1, 0, 1, false, REFORM)                                                \
    X("all others were done", 4, 3, 3, 3, 0, 3, false, GO_ON)                                                          \
    X("one is done and here, another is lost", 3, 1, 1, 0, 0, 1, false, REFORM)                                        \
    X("PyTorch's node is silent in the barrier", 2, 1, 1, 0, 1, 0, false, GO_ON)                                       \
    X("PyTorch's node is lost", 2, 0, 1, 0, 1, 0, false, REFORM)                                                       \
    X("PyTorch's node has failed for good", 2, 0, 1, 0, 1, 0, true, FAILED)                                            \
    X("ours is done, PyTorch's is lost", 3, 1, 1, 0, 1, 1, false, REFORM)                                              \
    X("ours is done and gone, PyTorch's is silent in the barrier", 3, 2, 2, 1, 1, 1, false, GO_ON)                     \
    X("of two of PyTorch's one is in the barrier, both are silent", 3, 1, 2, 0, 2, 0, false, REFORM)                   \
    X("of two of PyTorch's one is in the barrier, one is silent", 3, 1, 1, 0, 1, 0, false, GO_ON)                      \
    X("PyTorch's is in the barrier, ours is lost", 3, 1, 1, 0, 0, 0, false, REFORM)

static void a_departure_is_judged(void **state) {
    (void)state;
#define CHECK_LOSS(what, nodes, came, gone, gone_done, gone_mute, done, is_closed, verdict)                            \
    do {                                                                                                               \
        struct job_end_view view = {.world_size = (nodes),                                                             \
                                    .arrived = (came),                                                                 \
                                    .missing = (gone),                                                                 \
                                    .missing_done = (gone_done),                                                       \
                                    .missing_mute = (gone_mute),                                                       \
                                    .recorded_done = (done),                                                           \
                                    .min_nodes = (nodes),                                                              \
                                    .closed = (is_closed)};                                                            \
        if (job_end_judge(&view) != JOB_END_##verdict) {                                                               \
            fail_msg("%s: not %s", what, #verdict);                                                                    \
        }                                                                                                              \
    } while (0);
    LOSSES(CHECK_LOSS)
}

static bool can_reform(uint32_t nodes, uint32_t arrived, uint32_t reserve, uint32_t min_nodes) {
    struct job_end_view view = {.world_size = nodes, .arrived = arrived, .reserve = reserve, .min_nodes = min_nodes};
    return job_end_can_reform(&view);
}

static void a_round_needs_its_minimum_without_those_that_are_done(void **state) {
    (void)state;
    assert_true(can_reform(2, 0, 0, 2));
    assert_false(can_reform(2, 1, 0, 2));
    assert_true(can_reform(2, 1, 0, 1));
    assert_true(can_reform(2, 1, 1, 2)); /* a spare takes the place */
    assert_false(can_reform(4, 2, 1, 4));
    assert_false(can_reform(2, 3, 0, 1)); /* counted twice */
    assert_true(can_reform(1, 0, 0, 2));  /* nobody is done: more may come */
}

static void a_cause_is_read_as_it_was_written(void **state) {
    (void)state;
    struct rdzv_cause cause = {.rank = 3, .local_rank = 1, .pid = 77, .wait_status = 11, .time_s = 5, .is_final = true};
    struct rdzv_cause back;
    char text[RDZV_CAUSE_TEXT_MAX];
    (void)str_copy(cause.host, sizeof cause.host, "node-b");
    (void)str_copy(cause.how, sizeof cause.how, "killed by SIGSEGV");
    (void)str_copy(cause.words, sizeof cause.words, "line \"one\"\nl\xc3\xb6st\n");
    char *json = rdzv_cause_write(&cause);
    assert_non_null(json);
    assert_int_equal(rdzv_cause_read(json, strlen(json), &back), 0);
    char *again = rdzv_cause_write(&back);
    assert_string_equal(again, json);
    free(again);
    assert_string_equal(rdzv_cause_describe(&back, text), "rank 3 (pid 77) on host node-b: killed by SIGSEGV");
    free(json);
}

static int read_cause(const char *text, struct rdzv_cause *out) {
    return rdzv_cause_read(text, strlen(text), out);
}

#define FIELDS "\"local_rank\":0,\"pid\":7,\"time\":0,\"final\":true,\"told\":true,"

static void what_is_no_cause_is_refused(void **state) {
    (void)state;
    struct rdzv_cause cause;
    assert_int_equal(read_cause("", &cause), MUSTER_ECORRUPT);
    assert_int_equal(read_cause("[]", &cause), MUSTER_ECORRUPT);
    assert_int_equal(read_cause("{\"rank\": 1}", &cause), MUSTER_ECORRUPT);
    assert_int_equal(
        read_cause("{\"host\":\"b\",\"rank\":-1,\"wait_status\":1," FIELDS "\"how\":\"\",\"words\":\"\"}", &cause),
        MUSTER_ECORRUPT);
    assert_int_equal(
        read_cause("{\"host\":\"b\",\"rank\":1,\"wait_status\":0," FIELDS "\"how\":\"\",\"words\":\"\"}", &cause),
        MUSTER_ECORRUPT);
}

static void what_would_harm_a_terminal_is_not_taken(void **state) {
    (void)state;
    struct rdzv_cause cause;
    assert_int_equal(read_cause("{\"host\":\"b\\u001b[2J\",\"rank\":1,\"wait_status\":1," FIELDS
                                "\"how\":\"a\\u009bb\\n\",\"words\":\"two\\nlines\"}",
                                &cause),
                     0);
    assert_string_equal(cause.host, "b?[2J");
    assert_string_equal(cause.how, "a??b?");
    assert_string_equal(cause.words, "two\nlines");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_departure_is_judged),
        cmocka_unit_test(a_round_needs_its_minimum_without_those_that_are_done),
        cmocka_unit_test(a_cause_is_read_as_it_was_written),
        cmocka_unit_test(what_is_no_cause_is_refused),
        cmocka_unit_test(what_would_harm_a_terminal_is_not_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
