/* The end of a c10d job over real sockets: a node that is done and goes is not missed, whatever it hosted; a restart
 * that would need it fails at once. */
#include <limits.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include <muster/status.h>

#include "base/log.h"
#include "base/str.h"
#include "rendezvous/rdzv_nodes_test_support.h"
#include "rendezvous/torch/c10d_impl.h"

static const struct c10d *c10d_of(const struct fixture *f, int i) {
    return f->nodes[i].rdzv->state;
}

static bool first_has_excused_the_second(const struct fixture *f) {
    return c10d_of(f, 0)->machine.joined_count == 1;
}

static bool second_has_excused_the_first(const struct fixture *f) {
    return c10d_of(f, 1)->machine.joined_count == 1;
}

static bool second_is_detached(const struct fixture *f) {
    return c10d_of(f, 1)->end.is_detached;
}

static bool second_knows_that_the_host_is_done(const struct fixture *f) {
    return c10d_of(f, 1)->end.is_host_done;
}

static bool first_is_over_the_barrier(const struct fixture *f) {
    return f->nodes[0].barrier_done;
}

static bool second_is_over_the_barrier(const struct fixture *f) {
    return f->nodes[1].barrier_done;
}

static bool second_has_left(const struct fixture *f) {
    return f->nodes[1].shut_down;
}

static void form_fixed_pair(struct fixture *f) {
    nodes_start(f, 0);
    nodes_start(f, 1);
    nodes_run_until(f, nodes_two_together);
}

static bool second_is_counted(const struct fixture *f) {
    return c10d_of(f, 1)->barrier.is_counted;
}

static void second_is_done(struct fixture *f) {
    rdzv_exit_barrier(f->nodes[1].rdzv, true, nodes_on_barrier);
    nodes_run_until(f, second_is_counted);
}

/* The one that is left ends as if nothing had been. */
static void assert_first_ends_well(struct fixture *f) {
    assert_int_equal(f->nodes[0].changes, 0);
    rdzv_exit_barrier(f->nodes[0].rdzv, true, nodes_on_barrier);
    nodes_run_until(f, first_is_over_the_barrier);
    assert_int_equal(f->nodes[0].changes + f->nodes[0].failed, 0);
}

static void done_node_that_dies_is_not_missed(void **state) {
    struct fixture *f = *state;
    form_fixed_pair(f);
    second_is_done(f);
    nodes_vanish(f, 1);
    nodes_run_until(f, first_has_excused_the_second);
    assert_first_ends_well(f);
    assert_true(c10d_of(f, 0)->barrier_passed);
}

static void done_node_that_leaves_is_not_missed(void **state) {
    struct fixture *f = *state;
    form_fixed_pair(f);
    second_is_done(f);
    rdzv_shutdown(f->nodes[1].rdzv, false, nodes_on_shutdown);
    nodes_run_until(f, second_has_left);
    nodes_run_until(f, first_has_excused_the_second);
    assert_false(c10d_of(f, 0)->machine.state.closed);
    assert_first_ends_well(f);
}

/* It has waited for as long as it may. */
static void done_node_closes_no_job_of_others(void **state) {
    struct fixture *f = *state;
    form_fixed_pair(f);
    second_is_done(f);
    rdzv_shutdown(f->nodes[1].rdzv, true, nodes_on_shutdown);
    nodes_run_until(f, second_has_left);
    nodes_run_until(f, first_has_excused_the_second);
    assert_false(c10d_of(f, 0)->machine.state.closed);
    assert_first_ends_well(f);
}

static void elastic_job_goes_on_without_a_done_node(void **state) {
    struct fixture *f = *state;
    nodes_form_pair(f, 2);
    second_is_done(f);
    nodes_vanish(f, 1);
    nodes_run_until(f, first_has_excused_the_second);
    assert_int_equal(f->nodes[0].changes, 0);
    f->nodes[0].worlds = 0;
    rdzv_join(f->nodes[0].rdzv); /* a worker has failed */
    nodes_run_until(f, nodes_one_alone);
}

static bool third_waits(const struct fixture *f) {
    return rdzv_state_is(&c10d_of(f, 2)->machine.state, &c10d_of(f, 2)->machine.self, RDZV_SPARE);
}

static bool third_is_barred(const struct fixture *f) {
    return f->nodes[2].failed || c10d_of(f, 2)->machine.barred_round >= 0;
}

static bool first_has_left(const struct fixture *f) {
    return f->nodes[0].shut_down;
}

static bool third_is_released(const struct fixture *f) {
    return f->nodes[2].failed || f->nodes[2].spare_released;
}

/* The place of a node that is done is nobody's: a spare that wants it stays one, for as long as the job lasts. */
static void spare_waits_outside_when_a_node_is_done(void **state) {
    struct fixture *f = *state;
    f->options.conf.join_timeout_ms = 2000;
    f->options.conf.keep_alive_interval_ms = 500;
    nodes_form_pair(f, 2);
    nodes_start(f, 2);
    nodes_run_until(f, third_waits);
    second_is_done(f);
    nodes_vanish(f, 1);
    nodes_run_until(f, first_has_excused_the_second);
    nodes_run_until(f, third_is_barred);
    assert_int_equal(f->nodes[0].changes + f->nodes[2].failed, 0);
    assert_first_ends_well(f);
    rdzv_shutdown(f->nodes[0].rdzv, true, nodes_on_shutdown);
    nodes_run_until(f, third_is_released);
    assert_int_equal(f->nodes[2].failed, 0);
    nodes_run_until(f, first_has_left);
}

static void store_of_a_done_host_is_not_missed(void **state) {
    struct fixture *f = *state;
    form_fixed_pair(f);
    rdzv_exit_barrier(f->nodes[0].rdzv, true, nodes_on_barrier);
    nodes_run_until(f, second_knows_that_the_host_is_done);
    nodes_vanish(f, 0);
    nodes_run_until(f, second_is_detached);
    assert_int_equal(f->nodes[1].changes + f->nodes[1].failed, 0);
    rdzv_exit_barrier(f->nodes[1].rdzv, true, nodes_on_barrier);
    while (!f->nodes[1].barrier_done) { /* no socket wakes the loop */
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    }
    rdzv_shutdown(f->nodes[1].rdzv, true, nodes_on_shutdown);
    while (!f->nodes[1].shut_down) {
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    }
    assert_int_equal(f->nodes[1].changes + f->nodes[1].failed, 0);
}

/* The store's process gets no time: its sockets tell it of nothing, or of all that has come meanwhile. */
static void pause_store(const struct fixture *f, bool is_paused) {
    enum { DESCRIPTORS_MAX = 256 };
    int least_bytes = is_paused ? INT_MAX : 1;
    for (int fd = 0; fd < DESCRIPTORS_MAX; fd++) {
        struct sockaddr_in own = {.sin_family = AF_UNSPEC};
        socklen_t len = sizeof own;
        if (getsockname(fd, (struct sockaddr *)&own, &len) == 0 && own.sin_family == AF_INET &&
            own.sin_port == htons(f->port)) {
            (void)setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &least_bytes, sizeof least_bytes);
        }
    }
}

static void run_for(struct fixture *f, uint64_t ms) {
    uint64_t until_ms = uv_now(&f->loop) + ms;
    while (uv_now(&f->loop) < until_ms) {
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    }
}

/* Whose workers run needs nothing of it, and would look dead to it afterwards. */
/* ---- the line that says that a node is done ---- */

static const struct fixture *said_by; /* a log has no context */
static bool is_said, was_known;

static bool host_knows_that_one_is_done(const struct fixture *f) {
    for (int i = 0; i < 2; i++) {
        char introduction[C10D_INTRODUCTION_MAX];
        char key[C10D_INTRODUCTION_MAX + 1];
        struct kv_slice value;
        c10d_introduction(c10d_of(f, 0), &c10d_of(f, i)->machine.self, introduction);
        (void)str_format(key, sizeof key, "/%s", introduction);
        if (kv_server_get(c10d_store_server(c10d_of(f, 0)), kv_slice_text(key), &value) &&
            kv_slice_equal(value, kv_slice_text("done"))) {
            return true;
        }
    }
    return false;
}

static void hear_that_it_is_said(enum log_level level, const char *file, int line, const char *text) {
    (void)level;
    (void)file;
    (void)line;
    if (strstr(text, "workers have succeeded; waiting for the other nodes")) {
        is_said = true;
        was_known = host_knows_that_one_is_done(said_by);
    }
}

static bool done_is_said(const struct fixture *f) {
    (void)f;
    return is_said;
}

/* Node i is done, and dies as soon as it has said so. */
static void say_and_die(struct fixture *f, int i) {
    said_by = f;
    is_said = was_known = false;
    log_set_sink(hear_that_it_is_said);
    log_set_level(LOG_LEVEL_INFO);
    rdzv_exit_barrier(f->nodes[i].rdzv, true, nodes_on_barrier);
    nodes_run_until(f, done_is_said);
    log_set_sink(NULL);
    nodes_vanish(f, i);
    assert_true(was_known);
}

static void done_node_is_known_when_it_says_so(void **state) {
    struct fixture *f = *state;
    form_fixed_pair(f);
    say_and_die(f, 1);
    nodes_run_until(f, first_has_excused_the_second);
    assert_int_equal(f->nodes[0].changes + f->nodes[0].failed, 0);
}

static void done_host_is_known_when_it_says_so(void **state) {
    struct fixture *f = *state;
    form_fixed_pair(f);
    say_and_die(f, 0);
    nodes_run_until(f, second_is_detached);
    assert_int_equal(f->nodes[1].changes + f->nodes[1].failed, 0);
}

static void done_host_that_is_away_is_not_given_up(void **state) {
    enum { INTERVAL_MS = 50, ATTEMPTS = 3 };
    struct fixture *f = *state;
    f->options.conf.keep_alive_interval_ms = INTERVAL_MS;
    f->options.conf.keep_alive_max_attempt = ATTEMPTS;
    form_fixed_pair(f);
    rdzv_exit_barrier(f->nodes[0].rdzv, true, nodes_on_barrier);
    nodes_run_until(f, second_knows_that_the_host_is_done);
    pause_store(f, true);
    run_for(f, UINT64_C(4) * INTERVAL_MS * ATTEMPTS);
    assert_false(second_is_detached(f));
    pause_store(f, false);
    run_for(f, UINT64_C(2) * INTERVAL_MS);
    assert_int_equal(f->nodes[1].changes + f->nodes[1].failed, 0);
    pause_store(f, true);
    rdzv_exit_barrier(f->nodes[1].rdzv, true, nodes_on_barrier);
    nodes_run_until(f, second_is_over_the_barrier); /* long before read_timeout */
    pause_store(f, false);
}

static void done_host_that_leaves_is_not_missed(void **state) {
    struct fixture *f = *state;
    form_fixed_pair(f);
    rdzv_exit_barrier(f->nodes[0].rdzv, true, nodes_on_barrier);
    nodes_run_until(f, second_knows_that_the_host_is_done);
    rdzv_shutdown(f->nodes[0].rdzv, false, nodes_on_shutdown);
    nodes_run_until(f, second_has_excused_the_first);
    nodes_vanish(f, 0);
    nodes_run_until(f, second_is_detached);
    assert_int_equal(f->nodes[1].changes + f->nodes[1].failed, 0);
    rdzv_join(f->nodes[1].rdzv); /* a worker has failed */
    while (!f->nodes[1].failed) {
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    }
    assert_non_null(strstr(f->nodes[1].why, "store has succeeded"));
}

static void restart_that_needs_a_done_node_fails_at_once(void **state) {
    struct fixture *f = *state;
    form_fixed_pair(f);
    second_is_done(f);
    rdzv_join(f->nodes[0].rdzv); /* a worker has failed */
    nodes_run_until(f, nodes_first_failed);
    char name[RDZV_NODE_TEXT_MAX];
    (void)rdzv_node_format(&c10d_of(f, 1)->machine.self, name);
    assert_non_null(strstr(f->nodes[0].why, name));
    assert_non_null(strstr(f->nodes[0].why, "1 of the 2 nodes"));
    assert_int_equal(f->nodes[1].changes, 0);
}

/* The first node left its round before the second was done: it hears of that while it waits. */
static void restart_fails_when_the_missing_node_turns_out_to_be_done(void **state) {
    struct fixture *f = *state;
    form_fixed_pair(f);
    f->nodes[1].rejoin = false;
    rdzv_join(f->nodes[0].rdzv);
    second_is_done(f);
    nodes_run_until(f, second_is_over_the_barrier);
    rdzv_shutdown(f->nodes[1].rdzv, false, nodes_on_shutdown);
    nodes_run_until(f, nodes_first_failed);
    assert_non_null(strstr(f->nodes[0].why, "succeeded already"));
}

static bool somebody_waits(const struct fixture *f) {
    return rdzv_state_count(&c10d_of(f, 0)->machine.state, RDZV_WAITING) > 0;
}

static void newcomer_stays_outside_when_a_node_is_done(void **state) {
    struct fixture *f = *state;
    nodes_form_pair(f, 3);
    second_is_done(f);
    nodes_start(f, 2);
    nodes_run_until(f, somebody_waits);
    for (int i = 0; i < 20; i++) {
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    }
    assert_int_equal(f->nodes[0].changes, 0);
    nodes_vanish(f, 2);
    nodes_vanish(f, 1);
    nodes_run_until(f, first_has_excused_the_second);
    assert_first_ends_well(f);
}

static void node_that_is_not_done_is_missed(void **state) {
    struct fixture *f = *state;
    form_fixed_pair(f);
    f->nodes[0].rejoin = false;
    rdzv_exit_barrier(f->nodes[1].rdzv, false, nodes_on_barrier); /* it was told to stop */
    nodes_run_until(f, second_is_counted);
    nodes_vanish(f, 1);
    while (f->nodes[0].changes == 0) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    assert_int_equal(f->nodes[0].change, RDZV_NODE_LEFT);
}

static bool first_is_a_spare(const struct fixture *f) {
    return rdzv_state_count(&c10d_of(f, 0)->machine.state, RDZV_SPARE) > 0;
}

static bool third_has_failed(const struct fixture *f) {
    return f->nodes[2].failed != 0;
}

/* A scheduler is not to take its node for one of a job that has succeeded. */
static void spare_of_a_failed_job_fails_with_the_cause(void **state) {
    struct fixture *f = *state;
    const struct rdzv_cause cause = {
        .rank = 2, .pid = 7, .wait_status = 9, .is_final = true, .is_told = true, .how = "was killed"};
    form_fixed_pair(f);
    nodes_start(f, 2);
    nodes_run_until(f, first_is_a_spare);
    rdzv_worker_failed(f->nodes[1].rdzv, &cause);
    nodes_run_until(f, third_has_failed);
    assert_int_equal(f->nodes[2].failed, MUSTER_ECLOSED);
    assert_non_null(strstr(f->nodes[2].why, "was killed"));
    assert_false(f->nodes[2].spare_released);
}

static bool knows_the_cause(const struct node *node) {
    const struct rdzv_cause *cause = rdzv_cause(node->rdzv);
    return cause && cause->is_final && cause->is_told;
}

static bool both_know_the_cause(const struct fixture *f) {
    return knows_the_cause(&f->nodes[0]) && knows_the_cause(&f->nodes[1]);
}

static void done_waiting(void *ctx) {
    (void)ctx;
}

/* The nodes tell one after the other: the test may pause between them. */
enum { OLDER_MS = 60000 };

/* A worker of node i has died that long ago, of which node i hears now. */
static void fail_worker(struct fixture *f, int i, int64_t age_ms, bool is_final) {
    struct rdzv_cause cause = {.rank = f->nodes[i].world.base_global_rank,
                               .pid = 7,
                               .wait_status = 9,
                               .age_us = age_ms * 1000,
                               .is_final = is_final};
    rdzv_worker_failed(f->nodes[i].rdzv, &cause);
    cause.is_told = true;
    rdzv_worker_failed(f->nodes[i].rdzv, &cause);
}

static void expect_cause_of(struct fixture *f, int i) {
    for (int node = 0; node < 2; node++) {
        rdzv_await_cause(f->nodes[node].rdzv, done_waiting);
    }
    nodes_run_until(f, both_know_the_cause);
    for (int node = 0; node < 2; node++) {
        assert_int_equal(rdzv_cause(f->nodes[node].rdzv)->rank, f->nodes[i].world.base_global_rank);
    }
}

/* Node 0 tells of its victim first. */
static void older_death_of_another_node_is_the_cause(void **state) {
    struct fixture *f = *state;
    form_fixed_pair(f);
    fail_worker(f, 0, 1, true);
    fail_worker(f, 1, OLDER_MS, true);
    expect_cause_of(f, 1);
}

static void younger_death_of_another_node_is_not_the_cause(void **state) {
    struct fixture *f = *state;
    form_fixed_pair(f);
    fail_worker(f, 0, OLDER_MS, true);
    fail_worker(f, 1, 1, true);
    expect_cause_of(f, 0);
}

/* The one with restarts left came first, and is older. */
static void failure_for_good_is_judged_with_one_that_is_restarted(void **state) {
    struct fixture *f = *state;
    form_fixed_pair(f);
    fail_worker(f, 0, OLDER_MS, false);
    fail_worker(f, 1, 1, true);
    expect_cause_of(f, 0);
}

static void failure_that_is_restarted_makes_way_for_an_older_one_for_good(void **state) {
    struct fixture *f = *state;
    form_fixed_pair(f);
    fail_worker(f, 0, 1, false);
    fail_worker(f, 1, OLDER_MS, true);
    expect_cause_of(f, 1);
}

/* Nobody reports it: no restart is to wait for others. */
static void failure_that_is_restarted_waits_for_nobody(void **state) {
    struct fixture *f = *state;
    form_fixed_pair(f);
    fail_worker(f, 0, 1, false);
    const struct failures *failures = &f->nodes[0].rdzv->failures;
    while (failures->is_writing) {
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    assert_true(failures->is_ours);
    assert_false(failures->is_judging);
    assert_true(rdzv_cause(f->nodes[0].rdzv)->is_told);
}

/* The agent asks for another round in the same turn of the loop in which it would have been told that the job has
 * failed.
 */
static void cause_of_a_job_that_has_failed_outlives_a_join(void **state) {
    struct fixture *f = *state;
    struct rdzv_cause cause = {.rank = 1, .pid = 7, .wait_status = 9, .is_final = true, .is_told = true};
    form_fixed_pair(f);
    rdzv_note_cause(f->nodes[0].rdzv, &cause);
    rdzv_tell_failed(f->nodes[0].rdzv, MUSTER_ECLOSED);
    rdzv_join(f->nodes[0].rdzv);
    assert_non_null(rdzv_cause(f->nodes[0].rdzv));
    /* A restart was to follow, and the store was lost. */
    cause.is_final = false;
    rdzv_note_cause(f->nodes[0].rdzv, &cause);
    rdzv_join(f->nodes[0].rdzv);
    assert_null(rdzv_cause(f->nodes[0].rdzv));
}

/* The report and the outcome of one agent are to name the same worker, also where others speak late. */
static void cause_stays_as_it_was_reported(void **state) {
    struct fixture *f = *state;
    struct rdzv_cause own = {.rank = 0, .pid = 5, .wait_status = 9, .is_final = true, .how = "was killed"};
    struct rdzv_cause late = {.rank = 1, .pid = 7, .wait_status = 9, .is_final = true, .is_told = true};
    form_fixed_pair(f);
    struct rdzv *rdzv = f->nodes[0].rdzv;
    rdzv_note_cause(rdzv, &own);
    rdzv_cause_reported(rdzv);
    rdzv_note_cause(rdzv, &late);
    assert_int_equal(rdzv_cause(rdzv)->rank, 0);
    assert_true(rdzv_cause(rdzv)->is_told);
    rdzv_join(f->nodes[1].rdzv); /* another round has another cause */
    rdzv_join(rdzv);
    assert_null(rdzv_cause(rdzv));
    rdzv_note_cause(rdzv, &late);
    assert_int_equal(rdzv_cause(rdzv)->rank, 1);
    rdzv_join(rdzv);
    rdzv_cause_reported(rdzv); /* nothing was known */
    rdzv_note_cause(rdzv, &late);
    assert_null(rdzv_cause(rdzv));
}

static void run_some_turns(struct fixture *f) {
    for (int i = 0; i < 20; i++) {
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    }
}

/* Both join again, and node i tells its last words after so many turns of the loop; false: the round stood before. */
static bool tells_while_forming(struct fixture *f, int i, const struct rdzv_cause *words, int turns) {
    bool has_told = false;
    nodes_be_patient(f);
    f->nodes[0].worlds = f->nodes[1].worlds = 0;
    rdzv_join(f->nodes[0].rdzv);
    rdzv_join(f->nodes[1].rdzv);
    while (!nodes_two_together(f) && !f->out_of_patience) {
        if (!has_told && turns-- == 0) {
            rdzv_worker_failed(f->nodes[i].rdzv, words);
            has_told = true;
        }
        (void)uv_run(&f->loop, UV_RUN_ONCE);
    }
    (void)uv_timer_stop(&f->patience);
    assert_false(f->out_of_patience);
    run_some_turns(f);
    return has_told;
}

/* The store's answer to what was said in the old round may come in the next one. */
static void last_words_may_be_answered_in_the_next_round(void **state) {
    struct fixture *f = *state;
    bool has_told = true;
    form_fixed_pair(f);
    for (int turn = 0; has_told; turn++) {
        int i = turn % 2;
        struct rdzv_cause words = {
            .rank = f->nodes[i].world.base_global_rank, .pid = 7, .wait_status = 9, .age_us = 1000};
        rdzv_worker_failed(f->nodes[i].rdzv, &words);
        run_some_turns(f);
        words.is_told = true;
        has_told = tells_while_forming(f, i, &words, turn / 2);
    }
    assert_null(rdzv_cause(f->nodes[0].rdzv));
    fail_worker(f, 0, 1, true);
    expect_cause_of(f, 0);
}

/* Node 2 is done, and node 1's agent does not get the processor: it is waited for. */
static void judge_waits_for_nodes_at_work_where_others_are_done(void **state) {
    struct fixture *f = *state;
    (void)str_format(f->endpoint, sizeof f->endpoint, "127.0.0.1:%u", (unsigned)f->port);
    f->options.backend = RDZV_BACKEND_STATIC;
    f->options.min_nodes = f->options.max_nodes = 3;
    for (uint32_t i = 0; i < 3; i++) {
        f->options.node_rank = i;
        nodes_start(f, (int)i);
    }
    nodes_run_until(f, nodes_three_together);
    rdzv_exit_barrier(f->nodes[2].rdzv, true, nodes_on_barrier);
    run_some_turns(f);
    fail_worker(f, 0, 1, true);
    const struct failures *failures = &f->nodes[0].rdzv->failures;
    while (!failures->has_judged) {
        (void)uv_timer_stop(rdzv_timer(f->nodes[1].rdzv, RDZV_TIMER_ANSWER));
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    }
    assert_true(failures->hearing.is_silent_now);
}

/* The judge is the only one that knows it. */
static void verdict_outlives_the_store(void **state) {
    struct fixture *f = *state;
    form_fixed_pair(f);
    int host = c10d_store_server(c10d_of(f, 0)) ? 0 : 1, judge = 1 - host;
    const struct failures *failures = &f->nodes[judge].rdzv->failures;
    fail_worker(f, judge, 1, true);
    fail_worker(f, host, 31, true);
    while (!failures->has_judged) {
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    }
    assert_true(failures->is_writing);
    uint32_t first = f->nodes[host].world.base_global_rank;
    nodes_vanish(f, host);
    run_some_turns(f);
    const struct rdzv_cause *cause = rdzv_cause(f->nodes[judge].rdzv);
    assert_int_equal(cause->rank, first);
    assert_true(cause->is_told);
}

int main(void) {
#define TEST(name) cmocka_unit_test_setup_teardown(name, nodes_setup, nodes_teardown)
    const struct CMUnitTest tests[] = {
        TEST(done_node_that_dies_is_not_missed),
        TEST(done_node_that_leaves_is_not_missed),
        TEST(done_node_closes_no_job_of_others),
        TEST(elastic_job_goes_on_without_a_done_node),
        TEST(spare_waits_outside_when_a_node_is_done),
        TEST(store_of_a_done_host_is_not_missed),
        TEST(done_node_is_known_when_it_says_so),
        TEST(done_host_is_known_when_it_says_so),
        TEST(done_host_that_is_away_is_not_given_up),
        TEST(done_host_that_leaves_is_not_missed),
        TEST(restart_that_needs_a_done_node_fails_at_once),
        TEST(restart_fails_when_the_missing_node_turns_out_to_be_done),
        TEST(newcomer_stays_outside_when_a_node_is_done),
        TEST(node_that_is_not_done_is_missed),
        TEST(spare_of_a_failed_job_fails_with_the_cause),
        TEST(older_death_of_another_node_is_the_cause),
        TEST(younger_death_of_another_node_is_not_the_cause),
        TEST(failure_for_good_is_judged_with_one_that_is_restarted),
        TEST(failure_that_is_restarted_makes_way_for_an_older_one_for_good),
        TEST(failure_that_is_restarted_waits_for_nobody),
        TEST(cause_of_a_job_that_has_failed_outlives_a_join),
        TEST(cause_stays_as_it_was_reported),
        TEST(last_words_may_be_answered_in_the_next_round),
        TEST(judge_waits_for_nodes_at_work_where_others_are_done),
        TEST(verdict_outlives_the_store),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
