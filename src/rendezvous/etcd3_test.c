/* The agent's side of etcd-v3 (etcd3.c), with a board and a client of the test's own in the places of
 * etcd3_board.c and etcd3_client.c: what the agent is told, and what the leader, in every phase. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/log.h"
#include "base/status.h"
#include "base/str.h"
#include "rendezvous/etcd3_board.h"
#include "rendezvous/rdzv_impl.h"

enum { SENT_MAX = 16, TURNS = 8, LONG_MS = 3600000 };

/* ---- the board that is not one ---- */

struct etcd3_board {
    struct etcd3_board_options options;
    int open_count;
    bool is_open, has_ended, leads;
    void (*done)(void *ctx);
    uint64_t identity[2];
    struct coordinator_message sent[SENT_MAX];
    size_t sent_count;
};

static struct etcd3_board board;

int etcd3_board_create(uv_loop_t *loop, const struct etcd3_board_options *options, struct etcd3_board **out) {
    (void)loop;
    board = (struct etcd3_board){.options = *options, .identity = {7, 8}};
    *out = &board;
    return MUSTER_OK;
}

void etcd3_board_open(struct etcd3_board *b) {
    b->open_count++;
}

int etcd3_board_send(struct etcd3_board *b, const struct coordinator_message *message) {
    assert_true(b->is_open);
    assert_true(b->sent_count < SENT_MAX);
    b->sent[b->sent_count++] = *message;
    return MUSTER_OK;
}

const uint64_t *etcd3_board_identity(const struct etcd3_board *b) {
    return b->identity;
}

bool etcd3_board_leads(const struct etcd3_board *b) {
    return b->leads;
}

void etcd3_board_end(struct etcd3_board *b, void (*done)(void *ctx)) {
    assert_false(b->has_ended);
    b->has_ended = true;
    b->done = done;
}

void etcd3_board_close(struct etcd3_board *b) {
    (void)b;
}

int etcd3_client_create(uv_loop_t *loop, const struct etcd3_client_options *options, struct etcd3_client **out) {
    (void)loop;
    (void)options;
    *out = NULL;
    return MUSTER_OK;
}

void etcd3_client_close(struct etcd3_client *client) {
    (void)client;
}

const char *etcd3_client_describe(const struct etcd3_client *client, char *out, size_t size) {
    (void)client;
    (void)str_copy(out, size, "http://etcd:2379");
    return out;
}

const char *etcd3_client_local_address(const struct etcd3_client *client) {
    (void)client;
    return "10.0.0.1";
}

/* ---- the agent ---- */

struct fixture {
    uv_loop_t loop;
    struct rdzv *rdzv;
    unsigned worlds, changes, stops, spares, releases, barriers, shutdowns;
    uint64_t round;
    int failed;
    char why[1024];
    char log[1024];
};

static struct fixture *logged;

static void keep_log(enum log_level level, const char *file, int line, const char *text) {
    (void)level;
    (void)file;
    (void)line;
    (void)str_format(logged->log, sizeof logged->log, "%s", text);
}

static void on_world(void *ctx, const struct rdzv_world *world) {
    struct fixture *f = ctx;
    f->worlds++;
    f->round = world->round;
}

static void on_change(void *ctx, enum rdzv_change change, const char *why) {
    struct fixture *f = ctx;
    (void)change;
    f->changes++;
    (void)str_copy(f->why, sizeof f->why, why);
}

static void on_stop(void *ctx, uint64_t grace_ms, const char *why) {
    struct fixture *f = ctx;
    (void)grace_ms;
    (void)why;
    f->stops++;
}

static void on_spare(void *ctx) {
    ((struct fixture *)ctx)->spares++;
}

static void on_released(void *ctx) {
    ((struct fixture *)ctx)->releases++;
}

static void on_failed(void *ctx, int status, const char *why) {
    struct fixture *f = ctx;
    f->failed = status;
    (void)str_copy(f->why, sizeof f->why, why);
}

static void on_barrier(void *ctx) {
    ((struct fixture *)ctx)->barriers++;
}

static void on_shutdown(void *ctx) {
    ((struct fixture *)ctx)->shutdowns++;
}

/* Callbacks come from timers of zero: a few turns deliver all, without waiting for anything. */
static void turn(struct fixture *f) {
    for (int i = 0; i < TURNS; i++) {
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    }
}

static int setup(void **state) {
    static const struct rdzv_callbacks callbacks = {.on_world = on_world,
                                                    .on_change = on_change,
                                                    .on_stop = on_stop,
                                                    .on_spare = on_spare,
                                                    .on_spare_released = on_released,
                                                    .on_failed = on_failed};
    struct rdzv_options options = {.backend = RDZV_BACKEND_ETCD_V3,
                                   .run_id = "job",
                                   .endpoint = "etcd",
                                   .min_nodes = 2,
                                   .max_nodes = 2,
                                   .local_world_size = 1,
                                   .max_restarts = 3};
    struct fixture *f = calloc(1, sizeof *f);
    assert_int_equal(uv_loop_init(&f->loop), 0);
    logged = f;
    log_set_sink(keep_log);
    rdzv_conf_init(&options.conf);
    assert_int_equal(rdzv_create(&f->loop, &options, &callbacks, f, &f->rdzv), 0);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    rdzv_free(f->rdzv);
    (void)uv_run(&f->loop, UV_RUN_DEFAULT); /* ends: nothing is left open */
    assert_int_equal(uv_loop_close(&f->loop), 0);
    log_set_sink(NULL);
    free(f);
    return 0;
}

/* ---- what happens to it ---- */

static void open_board(struct fixture *f) {
    board.is_open = true;
    board.options.on_open(board.options.ctx);
    turn(f);
}

static void lose_board(struct fixture *f, int status) {
    board.is_open = false;
    board.options.on_lost(board.options.ctx, status_fail(status, "for the test"));
    turn(f);
}

static void hear(struct fixture *f, struct coordinator_message message) {
    board.options.on_message(board.options.ctx, &message);
    turn(f);
}

static void hear_kind(struct fixture *f, enum coordinator_kind kind) {
    hear(f, (struct coordinator_message){.kind = kind, .text = kv_slice_text("so it is")});
}

static void hear_world(struct fixture *f, uint64_t round) {
    hear(f, (struct coordinator_message){.kind = COORDINATOR_WORLD,
                                         .world = {.round = round,
                                                   .group_rank = 1,
                                                   .group_world_size = 2,
                                                   .global_world_size = 2,
                                                   .base_global_rank = 1,
                                                   .role_world_size = 2,
                                                   .master_addr = kv_slice_text("10.0.0.2"),
                                                   .master_port = 5}});
}

static void hear_change(struct fixture *f) {
    hear(f, (struct coordinator_message){
                .kind = COORDINATOR_CHANGE, .change = COORDINATOR_NODE_LEFT, .text = kv_slice_text("B is gone")});
}

static const struct coordinator_message *last_sent(void) {
    static const struct coordinator_message none;
    return board.sent_count > 0 ? &board.sent[board.sent_count - 1] : &none;
}

static void join(struct fixture *f) {
    rdzv_join(f->rdzv);
    if (!board.is_open) {
        open_board(f);
    }
    assert_int_equal(last_sent()->kind, COORDINATOR_JOIN);
}

static void become_member(struct fixture *f) {
    join(f);
    hear_world(f, 1);
    assert_int_equal(f->worlds, 1);
}

static void enter_barrier(struct fixture *f) {
    rdzv_exit_barrier(f->rdzv, on_barrier);
    turn(f);
    assert_int_equal(last_sent()->kind, COORDINATOR_DONE);
}

static void shut_down(struct fixture *f, bool close_job) {
    rdzv_shutdown(f->rdzv, close_job, on_shutdown);
    turn(f);
}

/* The board's last letter is written. */
static void end_board(struct fixture *f) {
    assert_true(board.has_ended);
    board.done(board.options.ctx);
    turn(f);
    assert_int_equal(f->shutdowns, 1);
}

/* ---- joining ---- */

static void join_says_who_it_is_and_what_it_was_in(void **state) {
    struct fixture *f = *state;
    board.leads = true;
    become_member(f);
    assert_int_equal(board.open_count, 1);
    assert_int_equal(board.sent[0].node.last_round, 0);
    assert_int_equal(board.sent[0].node.identity[1], 8);
    assert_true(board.sent[0].node.is_host);
    assert_true(board.sent[0].node.store_port > 0);
    hear_change(f);
    join(f); /* over the board that is open */
    assert_int_equal(board.open_count, 1);
    assert_int_equal(last_sent()->node.last_round, 1);
    assert_int_equal(last_sent()->node.last_world_size, 2);
    assert_int_equal(last_sent()->node.last_group_rank, 1);
    hear_world(f, 2);
    assert_int_equal(f->worlds, 2);
    assert_int_equal(f->round, 2);
}

static void leader_lost_while_joining_is_joined_anew(void **state) {
    struct fixture *f = *state;
    join(f);
    lose_board(f, MUSTER_ECLOSED);
    assert_int_equal(board.open_count, 2);
    open_board(f);
    assert_int_equal(board.sent_count, 2);
    assert_int_equal(last_sent()->kind, COORDINATOR_JOIN);
    lose_board(f, MUSTER_ETIMEOUT); /* no etcd: that is for nobody to wait for */
    assert_int_equal(f->failed, MUSTER_ETIMEOUT);
    assert_string_equal(f->why, "for the test");
}

static void refusal_fails_with_the_leaders_words(void **state) {
    struct fixture *f = *state;
    join(f);
    hear(f, (struct coordinator_message){
                .kind = COORDINATOR_REFUSED, .status = MUSTER_EINVAL, .text = kv_slice_text("other node counts")});
    assert_int_equal(f->failed, MUSTER_EINVAL);
    assert_string_equal(f->why, "other node counts");
    shut_down(f, true); /* to it the job is over: nothing is said */
    assert_int_equal(last_sent()->kind, COORDINATOR_JOIN);
    end_board(f);
}

/* A timer's time has come, once. */
static void hasten(struct fixture *f, enum rdzv_timer which) {
    uv_timer_t *timer = rdzv_timer(f->rdzv, which);
    uv_timer_set_repeat(timer, 1);
    (void)uv_timer_again(timer);
    uv_timer_set_repeat(timer, LONG_MS); /* from then on */
    while (uv_is_active((uv_handle_t *)timer) && uv_timer_get_due_in(timer) <= 1) {
        (void)uv_run(&f->loop, UV_RUN_NOWAIT);
    }
}

static void who_is_missing_is_asked_and_said(void **state) {
    struct fixture *f = *state;
    join(f);
    hasten(f, RDZV_TIMER_REPORT);
    assert_int_equal(last_sent()->kind, COORDINATOR_ALIVE);
    assert_string_equal(f->log, "");
    hear(f, (struct coordinator_message){.kind = COORDINATOR_HEARD, .text = kv_slice_text("1 of 2 nodes have joined")});
    assert_non_null(strstr(f->log, "still waiting for a world of 2 nodes"));
    assert_non_null(strstr(f->log, ": 1 of 2 nodes have joined"));
    f->log[0] = '\0';
    hasten(f, RDZV_TIMER_REPORT);
    assert_string_equal(f->log, "");
    hasten(f, RDZV_TIMER_REPORT); /* the leader has not answered since */
    assert_non_null(strstr(f->log, ": 1 of 2 nodes have joined"));
    hasten(f, RDZV_TIMER_WAKE);
    turn(f);
    assert_int_equal(f->failed, MUSTER_ETIMEOUT);
    assert_non_null(strstr(f->why, "within join_timeout"));
    assert_non_null(strstr(f->why, ": 1 of 2 nodes have joined"));
}

static void etcd_that_is_missing_is_said(void **state) {
    struct fixture *f = *state;
    rdzv_join(f->rdzv);
    hasten(f, RDZV_TIMER_REPORT);
    assert_non_null(strstr(f->log, "still waiting for a leader of rendezvous 'job' (etcd http://etcd:2379)"));
    assert_int_equal(board.sent_count, 0);
}

static void spare_is_let_in_or_let_go(void **state) {
    struct fixture *f = *state;
    join(f);
    hear_kind(f, COORDINATOR_SPARE);
    assert_int_equal(f->spares, 1); /* its workers can be warmed */
    hear_kind(f, COORDINATOR_LET_IN);
    hear_world(f, 4);
    assert_int_equal(f->worlds, 1);
    hear_change(f);
    join(f);
    hear_kind(f, COORDINATOR_SPARE);
    hear_kind(f, COORDINATOR_CLOSED);
    assert_int_equal(f->releases, 1);
    assert_int_equal(f->failed, 0);
}

/* The leader before knew it as a spare; the next one refuses whoever comes to a job that is over. */
static void spare_that_comes_too_late_is_let_go(void **state) {
    struct fixture *f = *state;
    join(f);
    hear_kind(f, COORDINATOR_SPARE);
    lose_board(f, MUSTER_ECLOSED);
    open_board(f);
    hear(f, (struct coordinator_message){
                .kind = COORDINATOR_REFUSED, .status = MUSTER_ECLOSED, .text = kv_slice_text("the job is over")});
    assert_int_equal(f->releases, 1);
    assert_int_equal(f->failed, 0);
}

static void job_that_is_closed_fails_who_waits_for_a_world(void **state) {
    struct fixture *f = *state;
    join(f);
    hear_kind(f, COORDINATOR_CLOSED);
    assert_int_equal(f->failed, MUSTER_ECLOSED);
    assert_string_equal(f->why, "the job has ended: so it is");
}

/* ---- as a member ---- */

static void failure_is_told_once_a_round(void **state) {
    struct fixture *f = *state;
    become_member(f);
    rdzv_worker_failed(f->rdzv, "exit code 3");
    rdzv_worker_failed(f->rdzv, "exit code 4");
    assert_int_equal(board.sent_count, 2);
    assert_int_equal(last_sent()->kind, COORDINATOR_FAILED);
    join(f);
    hear_world(f, 2);
    rdzv_worker_failed(f->rdzv, "exit code 3");
    assert_int_equal(last_sent()->kind, COORDINATOR_FAILED);
}

static void change_and_stop_reach_the_agent(void **state) {
    struct fixture *f = *state;
    become_member(f);
    hear_change(f);
    assert_int_equal(f->changes, 1);
    assert_string_equal(f->why, "B is gone");
    assert_true(rdzv_preempt(f->rdzv, 1000, "taken away"));
    assert_int_equal(last_sent()->kind, COORDINATOR_PREEMPT);
    hear_kind(f, COORDINATOR_STOP);
    assert_int_equal(f->stops, 1);
}

static void leader_lost_ends_the_world(void **state) {
    struct fixture *f = *state;
    become_member(f);
    lose_board(f, MUSTER_ECLOSED);
    assert_int_equal(f->changes, 1);
    assert_int_equal(f->failed, 0);
    assert_int_equal(board.open_count, 1); /* until the workers have ended, and the agent joins */
    rdzv_join(f->rdzv);
    assert_int_equal(board.open_count, 2);
}

static void etcd_of_no_use_fails_a_member(void **state) {
    struct fixture *f = *state;
    become_member(f);
    lose_board(f, MUSTER_ELIMIT);
    assert_int_equal(f->failed, MUSTER_ELIMIT);
}

/* ---- the end ---- */

static void barrier_waits_for_all(void **state) {
    struct fixture *f = *state;
    become_member(f);
    enter_barrier(f);
    assert_int_equal(f->barriers, 0);
    hear_kind(f, COORDINATOR_ALL_DONE);
    assert_int_equal(f->barriers, 1);
    shut_down(f, true); /* the leader needs nothing more of it */
    assert_int_equal(last_sent()->kind, COORDINATOR_DONE);
    end_board(f);
}

/* The world ended between the workers' success and DONE: the others go on without this node, and nobody tells it
 * anything more. */
static void barrier_of_a_world_that_has_ended_waits_for_nobody(void **state) {
    struct fixture *f = *state;
    become_member(f);
    hear_change(f);
    enter_barrier(f);
    assert_int_equal(f->barriers, 1);
}

static void barrier_of_a_later_world_waits(void **state) {
    struct fixture *f = *state;
    become_member(f);
    hear_change(f);
    join(f);
    hear_world(f, 2);
    enter_barrier(f);
    assert_int_equal(f->barriers, 0);
    hear_change(f); /* and goes when the others go on without it */
    assert_int_equal(f->barriers, 1);
    assert_int_equal(f->changes, 1); /* it has no workers that would have to stop */
}

static void barrier_ends_with_the_leader(void **state) {
    struct fixture *f = *state;
    become_member(f);
    enter_barrier(f);
    lose_board(f, MUSTER_ECLOSED);
    assert_int_equal(f->barriers, 1);
    assert_int_equal(f->failed, 0);
}

static void close_is_waited_for_and_leave_is_not(void **state) {
    struct fixture *f = *state;
    become_member(f);
    shut_down(f, true);
    assert_int_equal(last_sent()->kind, COORDINATOR_CLOSE);
    assert_false(board.has_ended); /* the others have not heard it yet */
    hear_kind(f, COORDINATOR_CLOSED);
    end_board(f);
}

static void leave_gives_the_place_back(void **state) {
    struct fixture *f = *state;
    become_member(f);
    shut_down(f, false);
    assert_int_equal(last_sent()->kind, COORDINATOR_LEAVE);
    end_board(f);
}

static void leader_lost_while_closing_is_not_waited_for(void **state) {
    struct fixture *f = *state;
    become_member(f);
    shut_down(f, true);
    lose_board(f, MUSTER_ECLOSED);
    end_board(f);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(join_says_who_it_is_and_what_it_was_in, setup, teardown),
        cmocka_unit_test_setup_teardown(leader_lost_while_joining_is_joined_anew, setup, teardown),
        cmocka_unit_test_setup_teardown(refusal_fails_with_the_leaders_words, setup, teardown),
        cmocka_unit_test_setup_teardown(who_is_missing_is_asked_and_said, setup, teardown),
        cmocka_unit_test_setup_teardown(etcd_that_is_missing_is_said, setup, teardown),
        cmocka_unit_test_setup_teardown(spare_is_let_in_or_let_go, setup, teardown),
        cmocka_unit_test_setup_teardown(spare_that_comes_too_late_is_let_go, setup, teardown),
        cmocka_unit_test_setup_teardown(job_that_is_closed_fails_who_waits_for_a_world, setup, teardown),
        cmocka_unit_test_setup_teardown(failure_is_told_once_a_round, setup, teardown),
        cmocka_unit_test_setup_teardown(change_and_stop_reach_the_agent, setup, teardown),
        cmocka_unit_test_setup_teardown(leader_lost_ends_the_world, setup, teardown),
        cmocka_unit_test_setup_teardown(etcd_of_no_use_fails_a_member, setup, teardown),
        cmocka_unit_test_setup_teardown(barrier_waits_for_all, setup, teardown),
        cmocka_unit_test_setup_teardown(barrier_of_a_world_that_has_ended_waits_for_nobody, setup, teardown),
        cmocka_unit_test_setup_teardown(barrier_of_a_later_world_waits, setup, teardown),
        cmocka_unit_test_setup_teardown(barrier_ends_with_the_leader, setup, teardown),
        cmocka_unit_test_setup_teardown(close_is_waited_for_and_leave_is_not, setup, teardown),
        cmocka_unit_test_setup_teardown(leave_gives_the_place_back, setup, teardown),
        cmocka_unit_test_setup_teardown(leader_lost_while_closing_is_not_waited_for, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
