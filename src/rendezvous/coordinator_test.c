/* Every rule of the coordinator, on nodes that say what the test has them say, and a virtual clock. */
#include "rendezvous/coordinator.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "rendezvous/coordinator_impl.h"

enum { NODES = 8, HEARD_MAX = 16, LAST_CALL_MS = 30000 };

/* A message as a node got it; its strings are copied. */
struct heard {
    enum coordinator_kind kind;
    struct coordinator_world world;
    enum coordinator_change change;
    int status;
    char text[COORDINATOR_TEXT_BYTES_MAX + 1];
    char master[64];
};

struct peer {
    struct coordinator_node node;
    char addr[32];
    struct coordinator_member *member;
    struct heard heard[HEARD_MAX];
    size_t heard_count, looked_at;
    uint64_t round;
};

struct fixture {
    struct coordinator *coordinator;
    int64_t now_ms;
    struct peer peers[NODES];
};

static void copy(char *to, size_t size, struct kv_slice from) {
    assert_true(from.len < size);
    memcpy(to, from.data ? (const char *)from.data : "", from.len);
    to[from.len] = '\0';
}

static void on_send(void *ctx, void *session, const struct coordinator_message *message) {
    struct peer *peer = session;
    (void)ctx;
    assert_true(peer->heard_count < HEARD_MAX);
    struct heard *heard = &peer->heard[peer->heard_count++];
    *heard = (struct heard){
        .kind = message->kind, .world = message->world, .change = message->change, .status = message->status};
    copy(heard->text, sizeof heard->text, message->text);
    copy(heard->master, sizeof heard->master, message->world.master_addr);
    if (message->kind == COORDINATOR_WORLD) {
        peer->round = message->world.round;
    }
}

static void begin(struct fixture *f, uint32_t min_nodes, uint32_t max_nodes, bool last_call_given) {
    struct coordinator_settings settings = {.run_id = "job",
                                            .min_nodes = min_nodes,
                                            .max_nodes = max_nodes,
                                            .last_call_timeout_ms = LAST_CALL_MS,
                                            .last_call_given = last_call_given,
                                            .hash_seed = {1, 2}};
    coordinator_free(f->coordinator);
    assert_int_equal(coordinator_create(&settings, on_send, f, &f->coordinator), MUSTER_OK);
    f->now_ms = 1000;
    for (size_t i = 0; i < NODES; i++) {
        struct peer *peer = &f->peers[i];
        *peer = (struct peer){.node = {.run_id = kv_slice_text("job"),
                                       .role = kv_slice_text("default"),
                                       .pid = 7,
                                       .identity = {100 + i, 5},
                                       .min_nodes = min_nodes,
                                       .max_nodes = max_nodes,
                                       .local_world_size = 2,
                                       .store_port = (uint16_t)(29500 + i),
                                       .uses_agent_store = true}};
        (void)snprintf(peer->addr, sizeof peer->addr, "host%zu", i);
        peer->node.addr = kv_slice_text(peer->addr);
    }
}

static int setup(void **state) {
    *state = calloc(1, sizeof(struct fixture));
    return *state ? 0 : -1;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    coordinator_free(f->coordinator);
    free(f);
    return 0;
}

/* ---- what nodes do ---- */

static void join(struct fixture *f, size_t i) {
    struct peer *peer = &f->peers[i];
    peer->node.last_round = peer->round;
    peer->member = coordinator_join(f->coordinator, peer->member, peer, &peer->node, f->now_ms);
}

static void join_many(struct fixture *f, size_t count) {
    for (size_t i = 0; i < count; i++) {
        join(f, i);
    }
}

static void leave(struct fixture *f, size_t i, const char *why) {
    coordinator_gone(f->coordinator, f->peers[i].member, kv_slice_text(why), f->now_ms);
    f->peers[i].member = NULL;
}

static void lose(struct fixture *f, size_t i) {
    leave(f, i, "");
}

static void report_failure(struct fixture *f, size_t i) {
    coordinator_failed(f->coordinator, f->peers[i].member, kv_slice_text("rank 3 has died"), f->now_ms);
}

static void done(struct fixture *f, size_t i) {
    coordinator_done(f->coordinator, f->peers[i].member, f->now_ms);
}

static void pass_ms(struct fixture *f, int64_t ms) {
    f->now_ms += ms;
    coordinator_tick(f->coordinator, f->now_ms);
}

/* ---- what they hear ---- */

static const struct heard *hear(struct fixture *f, size_t i, enum coordinator_kind kind) {
    struct peer *peer = &f->peers[i];
    assert_true(peer->looked_at < peer->heard_count);
    const struct heard *heard = &peer->heard[peer->looked_at++];
    assert_int_equal(heard->kind, kind);
    return heard;
}

static void hear_nothing(struct fixture *f) {
    for (size_t i = 0; i < NODES; i++) {
        assert_int_equal(f->peers[i].looked_at, f->peers[i].heard_count);
    }
}

static void hear_world(struct fixture *f, size_t i, uint64_t round, uint32_t rank, uint32_t size) {
    const struct coordinator_world *world = &hear(f, i, COORDINATOR_WORLD)->world;
    assert_int_equal(world->round, round);
    assert_int_equal(world->group_rank, rank);
    assert_int_equal(world->group_world_size, size);
}

static void hear_change(struct fixture *f, size_t i, enum coordinator_change change, const char *text) {
    const struct heard *heard = hear(f, i, COORDINATOR_CHANGE);
    assert_int_equal(heard->change, change);
    assert_string_equal(heard->text, text);
}

static void hear_refusal(struct fixture *f, size_t i, int status, const char *words) {
    const struct heard *heard = hear(f, i, COORDINATOR_REFUSED);
    assert_int_equal(heard->status, status);
    if (!strstr(heard->text, words)) {
        fail_msg("\"%s\" is not in: %s", words, heard->text);
    }
    assert_null(f->peers[i].member);
}

static struct coordinator_view look(const struct fixture *f) {
    struct coordinator_view view;
    coordinator_look(f->coordinator, &view);
    return view;
}

/* A world of the first `count` nodes, heard by all. */
static void form(struct fixture *f, uint32_t min_nodes, uint32_t max_nodes, uint32_t count) {
    begin(f, min_nodes, max_nodes, false);
    join_many(f, count);
    if (count < max_nodes) {
        pass_ms(f, LAST_CALL_MS);
    }
    for (uint32_t i = 0; i < count; i++) {
        hear_world(f, i, 1, i, count);
    }
    assert_int_equal(look(f).phase, COORDINATOR_RUNNING);
    hear_nothing(f);
}

/* ---- the first round ---- */

static void first_round_closes_when_all_are_there(void **state) {
    struct fixture *f = *state;
    begin(f, 2, 3, false);
    join_many(f, 2);
    hear_nothing(f);
    join(f, 2);
    for (uint32_t i = 0; i < 3; i++) {
        hear_world(f, i, 1, i, 3);
    }
    hear_nothing(f);
    assert_int_equal(coordinator_wake_ms(f->coordinator), INT64_MAX);
    assert_int_equal(look(f).active_count, 3);
}

static void first_round_closes_after_the_last_call(void **state) {
    struct fixture *f = *state;
    begin(f, 2, 4, false);
    join(f, 0);
    assert_int_equal(coordinator_wake_ms(f->coordinator), INT64_MAX);
    pass_ms(f, 100000);
    join(f, 1);
    assert_int_equal(coordinator_wake_ms(f->coordinator), f->now_ms + LAST_CALL_MS);
    pass_ms(f, 20000);
    join(f, 2);
    pass_ms(f, LAST_CALL_MS - 20001);
    hear_nothing(f);
    pass_ms(f, 1);
    for (uint32_t i = 0; i < 3; i++) {
        hear_world(f, i, 1, i, 3);
    }
}

static void last_call_begins_anew_when_too_few_remain(void **state) {
    struct fixture *f = *state;
    begin(f, 2, 4, false);
    join_many(f, 2);
    lose(f, 1);
    assert_int_equal(coordinator_wake_ms(f->coordinator), INT64_MAX);
    pass_ms(f, LAST_CALL_MS);
    hear_nothing(f);
    join(f, 2);
    assert_int_equal(coordinator_wake_ms(f->coordinator), f->now_ms + LAST_CALL_MS);
    pass_ms(f, LAST_CALL_MS);
    hear_world(f, 0, 1, 0, 2);
    hear_world(f, 2, 1, 1, 2);
    hear_nothing(f);
}

static void joining_twice_counts_once(void **state) {
    struct fixture *f = *state;
    begin(f, 2, 2, false);
    join(f, 0);
    f->peers[0].node.local_world_size = 5;
    join(f, 0);
    assert_int_equal(look(f).joined_count, 1);
    hear_nothing(f);
    join(f, 1);
    assert_int_equal(hear(f, 0, COORDINATOR_WORLD)->world.global_world_size, 7);
    /* One that was on its way when the world was told breaks nothing. */
    f->peers[0].round = 0;
    join(f, 0);
    hear_world(f, 1, 1, 1, 2);
    hear_nothing(f);
    assert_int_equal(look(f).phase, COORDINATOR_RUNNING);
}

static void round_numbers_go_on_after_another_coordinator(void **state) {
    struct fixture *f = *state;
    begin(f, 2, 2, false);
    f->peers[1].round = 41;
    join_many(f, 2);
    hear_world(f, 0, 42, 0, 2);
    hear_world(f, 1, 42, 1, 2);
}

/* ---- later rounds ---- */

static void failure_is_told_at_once_and_once(void **state) {
    struct fixture *f = *state;
    form(f, 2, 3, 3);
    report_failure(f, 1);
    hear_change(f, 0, COORDINATOR_NODE_FAILED, "node host1 (pid 7) failed: rank 3 has died");
    hear_change(f, 2, COORDINATOR_NODE_FAILED, "node host1 (pid 7) failed: rank 3 has died");
    hear_nothing(f);
    report_failure(f, 2);
    join(f, 2);
    join(f, 0);
    hear_nothing(f);
    assert_int_equal(coordinator_wake_ms(f->coordinator), INT64_MAX);
    join(f, 1); /* the last answer: no timer */
    hear_world(f, 0, 2, 0, 3);
    hear_world(f, 1, 2, 1, 3);
    assert_string_equal(hear(f, 2, COORDINATOR_WORLD)->text, "node host1 (pid 7) failed: rank 3 has died; "
                                                             "node host2 (pid 7) failed: rank 3 has died");
    hear_nothing(f);
}

static void departure_and_loss_are_told(void **state) {
    struct fixture *f = *state;
    form(f, 1, 3, 3);
    leave(f, 0, "SIGTERM");
    hear_change(f, 1, COORDINATOR_NODE_LEFT, "node host0 (pid 7) has left: SIGTERM");
    hear(f, 2, COORDINATOR_CHANGE);
    join(f, 2);
    hear_nothing(f);
    lose(f, 1);
    assert_string_equal(hear(f, 2, COORDINATOR_WORLD)->text,
                        "node host0 (pid 7) has left: SIGTERM; node host1 (pid 7) is lost (its connection has ended)");
    hear_nothing(f);
    assert_int_equal(look(f).active_count, 1);
    assert_int_equal(look(f).member_count, 1);
}

static void unasked_join_is_a_change(void **state) {
    struct fixture *f = *state;
    form(f, 2, 2, 2);
    join(f, 1);
    hear_change(f, 0, COORDINATOR_NODE_LEFT, "node host1 (pid 7) joins anew");
    hear_nothing(f);
    join(f, 0);
    hear_world(f, 0, 2, 0, 2);
    hear_world(f, 1, 2, 1, 2);
}

/* Whatever else happens while a round is open. */
static void later_troubles_are_the_same_change(void **state) {
    struct fixture *f = *state;
    form(f, 1, 5, 5);
    lose(f, 4);
    for (size_t i = 0; i < 4; i++) {
        hear(f, i, COORDINATOR_CHANGE);
    }
    join(f, 0);
    report_failure(f, 1);
    leave(f, 2, "SIGINT");
    lose(f, 0); /* had answered */
    join(f, 5);
    join(f, 1);
    hear_nothing(f);
    join(f, 3);
    hear_world(f, 1, 2, 0, 3);
    hear_world(f, 3, 2, 1, 3);
    hear_world(f, 5, 2, 2, 3);
}

/* A repeated JOIN that was on its way when the world was told does not answer the change that follows. */
static void stale_join_is_no_answer(void **state) {
    struct fixture *f = *state;
    form(f, 1, 3, 3);
    lose(f, 2);
    hear(f, 0, COORDINATOR_CHANGE);
    hear(f, 1, COORDINATOR_CHANGE);
    f->peers[0].round = 0;
    join(f, 0);
    join(f, 1);
    hear_nothing(f);
    f->peers[0].round = 1;
    join(f, 0);
    hear_world(f, 0, 2, 0, 2);
    hear_world(f, 1, 2, 1, 2);
}

static void round_waits_for_enough(void **state) {
    struct fixture *f = *state;
    form(f, 2, 2, 2);
    lose(f, 0);
    hear(f, 1, COORDINATOR_CHANGE);
    join(f, 1);
    pass_ms(f, 10 * LAST_CALL_MS);
    hear_nothing(f);
    join(f, 2);
    hear_world(f, 1, 2, 0, 2);
    hear_world(f, 2, 2, 1, 2);
}

static void given_last_call_is_obeyed_in_every_round(void **state) {
    struct fixture *f = *state;
    begin(f, 2, 3, true);
    join_many(f, 3);
    lose(f, 2);
    join_many(f, 2);
    assert_int_equal(coordinator_wake_ms(f->coordinator), f->now_ms + LAST_CALL_MS);
    pass_ms(f, LAST_CALL_MS - 1);
    assert_int_equal(look(f).phase, COORDINATOR_FORMING);
    pass_ms(f, 1);
    assert_int_equal(look(f).round, 2);
    lose(f, 1);
    join(f, 0);
    join(f, 1);
    join(f, 2); /* full: nobody else can come */
    assert_int_equal(look(f).round, 3);
}

static void round_to_which_nobody_came_back_is_like_a_first_one(void **state) {
    struct fixture *f = *state;
    form(f, 1, 3, 3);
    for (size_t i = 0; i < 3; i++) {
        lose(f, i);
    }
    assert_int_equal(look(f).phase, COORDINATOR_FORMING);
    f->peers[1].looked_at = f->peers[1].heard_count;
    f->peers[2].looked_at = f->peers[2].heard_count;
    join(f, 1);
    hear_nothing(f);
    pass_ms(f, 1000);
    join(f, 2);
    hear_nothing(f);
    pass_ms(f, LAST_CALL_MS - 1000);
    hear_world(f, 1, 2, 0, 2);
    hear_world(f, 2, 2, 1, 2);
}

static void round_whose_last_veteran_goes_needs_a_last_call(void **state) {
    struct fixture *f = *state;
    begin(f, 3, 4, false);
    join_many(f, 4);
    lose(f, 3);
    lose(f, 2);
    join_many(f, 2); /* two of three that are needed */
    lose(f, 0);
    join(f, 4);
    lose(f, 1); /* only newcomers are left */
    for (size_t i = 5; i < 7; i++) {
        join(f, i);
    }
    assert_int_equal(look(f).phase, COORDINATOR_FORMING);
    assert_int_equal(coordinator_wake_ms(f->coordinator), f->now_ms + LAST_CALL_MS);
    pass_ms(f, LAST_CALL_MS);
    assert_int_equal(look(f).round, 2);
}

/* ---- newcomers and spares ---- */

static void newcomer_with_a_free_place_is_a_change(void **state) {
    struct fixture *f = *state;
    form(f, 1, 4, 2);
    join(f, 2);
    hear_change(f, 0, COORDINATOR_NODE_ARRIVED, "node host2 (pid 7) has come");
    hear(f, 1, COORDINATOR_CHANGE);
    join(f, 3); /* part of the same change */
    hear_nothing(f);
    join_many(f, 2);
    for (uint32_t i = 0; i < 4; i++) {
        hear_world(f, i, 2, i, 4);
    }
}

static void spares_are_let_in_in_their_order(void **state) {
    struct fixture *f = *state;
    form(f, 2, 2, 2);
    join(f, 5);
    join(f, 4);
    join(f, 3);
    for (size_t i = 3; i < 6; i++) {
        hear(f, i, COORDINATOR_SPARE);
    }
    hear_nothing(f);
    assert_int_equal(look(f).spare_count, 3);
    lose(f, 0);
    hear(f, 1, COORDINATOR_CHANGE);
    assert_int_equal(look(f).spare_count, 2);
    join(f, 1);
    hear_world(f, 1, 2, 0, 2);
    hear_world(f, 5, 2, 1, 2);
    leave(f, 4, "not needed");
    lose(f, 1);
    hear(f, 5, COORDINATOR_CHANGE);
    lose(f, 3); /* had been let in, and goes before the round closes */
    join(f, 5);
    hear_nothing(f);
    join(f, 6);
    hear_world(f, 5, 3, 0, 2);
    hear_world(f, 6, 3, 1, 2);
}

static void newcomer_takes_no_place_of_a_member_that_will_come_back(void **state) {
    struct fixture *f = *state;
    form(f, 1, 2, 2);
    report_failure(f, 0);
    hear(f, 1, COORDINATOR_CHANGE);
    join(f, 2);
    hear(f, 2, COORDINATOR_SPARE);
    join_many(f, 2);
    hear_world(f, 0, 2, 0, 2);
    hear_world(f, 1, 2, 1, 2);
    hear_nothing(f);
}

/* ---- the end ---- */

static void all_done_ends_the_job(void **state) {
    struct fixture *f = *state;
    form(f, 2, 3, 3);
    join(f, 3);
    hear(f, 3, COORDINATOR_SPARE);
    done(f, 0);
    done(f, 2);
    hear_nothing(f);
    assert_int_equal(look(f).done_count, 2);
    done(f, 1);
    for (size_t i = 0; i < 3; i++) {
        hear(f, i, COORDINATOR_ALL_DONE);
    }
    assert_string_equal(hear(f, 3, COORDINATOR_CLOSED)->text, "all nodes that took part are done");
    assert_int_equal(look(f).phase, COORDINATOR_OVER);
    assert_int_equal(look(f).member_count, 4);
    coordinator_close(f->coordinator, f->peers[0].member, kv_slice_text("late"));
    for (size_t i = 0; i < 4; i++) {
        lose(f, i);
    }
    assert_int_equal(look(f).member_count, 0);
    hear_nothing(f);
}

static void the_gone_are_not_waited_for_by_the_done(void **state) {
    struct fixture *f = *state;
    form(f, 1, 4, 4);
    done(f, 0);
    done(f, 1);
    lose(f, 1); /* a node that is done harms nobody by going */
    hear_nothing(f);
    done(f, 2);
    join(f, 4); /* nor does a newcomer, though there is a place */
    hear(f, 4, COORDINATOR_SPARE);
    lose(f, 3);
    hear(f, 0, COORDINATOR_ALL_DONE);
    hear(f, 2, COORDINATOR_ALL_DONE);
    hear(f, 4, COORDINATOR_CLOSED);
    hear_nothing(f);
}

static void the_done_have_no_part_in_the_next_world(void **state) {
    struct fixture *f = *state;
    form(f, 1, 4, 4);
    join(f, 4);
    hear(f, 4, COORDINATOR_SPARE);
    done(f, 0);
    report_failure(f, 1);
    for (size_t i = 0; i < 4; i += i == 0 ? 2 : 1) {
        hear(f, i, COORDINATOR_CHANGE);
    }
    done(f, 2); /* its word and the change have crossed */
    hear_nothing(f);
    join(f, 3);
    join(f, 1);
    hear_world(f, 1, 2, 0, 3);
    hear_world(f, 3, 2, 1, 3);
    hear_world(f, 4, 2, 2, 3);
    hear_nothing(f);
    join(f, 0);
    hear_refusal(f, 0, MUSTER_EPROTOCOL, "is done");
    assert_int_equal(look(f).active_count, 3);
}

/* A member is lost, the others had all succeeded by then: nothing remains to be done. */
static void change_that_finds_everybody_done_ends_the_job(void **state) {
    struct fixture *f = *state;
    form(f, 1, 3, 3);
    join(f, 3);
    hear(f, 3, COORDINATOR_SPARE);
    lose(f, 2);
    hear(f, 0, COORDINATOR_CHANGE);
    hear(f, 1, COORDINATOR_CHANGE);
    done(f, 0);
    hear_nothing(f);
    done(f, 1);
    hear(f, 3, COORDINATOR_CLOSED);
    hear_nothing(f);
    assert_int_equal(look(f).phase, COORDINATOR_OVER);
}

static void closed_job_tells_all_and_refuses(void **state) {
    struct fixture *f = *state;
    form(f, 2, 2, 2);
    join(f, 2);
    hear(f, 2, COORDINATOR_SPARE);
    coordinator_close(f->coordinator, f->peers[1].member, kv_slice_text("no restart is left"));
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(hear(f, i, COORDINATOR_CLOSED)->text, "no restart is left");
    }
    join(f, 3);
    hear_refusal(f, 3, MUSTER_ECLOSED, "the job is over (no restart is left)");
    join(f, 0); /* crossed with CLOSED */
    lose(f, 1);
    report_failure(f, 0);
    done(f, 0);
    pass_ms(f, LAST_CALL_MS);
    hear_nothing(f);
}

static void long_reason_is_told_whole_and_cut_where_it_is_a_part(void **state) {
    enum { REPEATS = 300 };
    struct fixture *f = *state;
    char why[3 * REPEATS + 1];
    for (size_t i = 0; i < REPEATS; i++) {
        memcpy(why + 3 * i, "\xe2\x82\xac", 4);
    }
    form(f, 1, 1, 1);
    coordinator_close(f->coordinator, f->peers[0].member, kv_slice_text(why));
    assert_string_equal(hear(f, 0, COORDINATOR_CLOSED)->text, why);
    join(f, 1);
    hear_refusal(f, 1, MUSTER_ECLOSED, "\xe2\x82\xac): start it anew");
}

/* ---- refusals ---- */

static void strangers_are_refused_in_words(void **state) {
    struct fixture *f = *state;
    begin(f, 2, 3, false);
    f->peers[0].node.run_id = kv_slice_text("other");
    f->peers[1].node.min_nodes = 1;
    f->peers[2].node.local_world_size = 0;
    f->peers[3].node.last_round = UINT64_MAX;
    join(f, 0);
    hear_refusal(f, 0, MUSTER_EINVAL, "serves the job \"job\": give all nodes the same --rdzv-id");
    join(f, 1);
    hear_refusal(f, 1, MUSTER_EINVAL, "--nnodes=1:3, the job has 2:3: start all nodes with the same");
    join(f, 2);
    hear_refusal(f, 2, MUSTER_EPROTOCOL, "without workers");
    f->peers[3].round = UINT64_MAX;
    join(f, 3);
    hear_refusal(f, 3, MUSTER_EPROTOCOL, "rounds");
    assert_int_equal(look(f).member_count, 0);
}

static void identity_that_is_there_is_refused_until_it_goes(void **state) {
    struct fixture *f = *state;
    begin(f, 2, 2, false);
    join(f, 0);
    f->peers[1].node.identity[0] = f->peers[0].node.identity[0];
    join(f, 1);
    hear_refusal(f, 1, MUSTER_ECONNECT, "try again");
    lose(f, 0);
    join(f, 1);
    assert_non_null(f->peers[1].member);
    hear_nothing(f);
}

static void member_that_becomes_another_is_refused_and_gone(void **state) {
    struct fixture *f = *state;
    form(f, 1, 2, 2);
    f->peers[0].node.topology = kv_slice_text("rack1");
    join(f, 0);
    hear_refusal(f, 0, MUSTER_EPROTOCOL, "connect anew");
    assert_int_equal(hear(f, 1, COORDINATOR_CHANGE)->change, COORDINATOR_NODE_LEFT);
    assert_int_equal(look(f).member_count, 1);
}

static void world_of_too_many_workers_is_refused(void **state) {
    struct fixture *f = *state;
    begin(f, 2, 2, false);
    f->peers[0].node.local_world_size = INT32_MAX - 2;
    f->peers[1].node.local_world_size = 3;
    join_many(f, 2);
    hear_refusal(f, 1, MUSTER_ELIMIT, "more than 2^31: give it fewer nodes");
    f->peers[1].node.local_world_size = 2;
    join(f, 1);
    assert_int_equal(hear(f, 0, COORDINATOR_WORLD)->world.global_world_size, INT32_MAX);
    f->peers[1].round = 1;
    f->peers[1].node.local_world_size = UINT32_MAX;
    hear_world(f, 1, 1, 1, 2);
    join(f, 1);
    hear_refusal(f, 1, MUSTER_ELIMIT, "2^31");
}

/* ---- ranks ---- */

static void compare(const char *a, const char *b, int way) {
    assert_int_equal(coordinator_compare_natural(kv_slice_text(a), kv_slice_text(b)), way);
    assert_int_equal(coordinator_compare_natural(kv_slice_text(b), kv_slice_text(a)), -way);
}

static void names_compare_naturally(void **state) {
    (void)state;
    compare("host2", "host10", -1);
    compare("10.0.0.9", "10.0.0.10", -1);
    compare("9.255.0.1", "10.0.0.1", -1);
    compare("host", "host0", -1);
    compare("a", "a", 0);
    compare("", "", 0);
    compare("", "a", -1);
    compare("a1b2", "a1b2", 0);
    compare("1", "01", -1);
    compare("01a", "1c", 1); /* or else "1b" would lie between texts that begin with "01" */
    compare("0", "00", -1);
    compare("host1", "hostA", -1);
    compare("99999999999999999999998", "99999999999999999999999", -1);
    compare("\xff", "a", 1);
}

static void ranks_follow_topology_address_pid_and_identity(void **state) {
    static const struct {
        const char *topology, *addr;
        int64_t pid;
        uint64_t identity[2];
    } in_order[NODES] = {
        {"", "z", 9, {9, 9}},
        {"sw2/rack1", "b", 9, {9, 1}},
        {"sw2/rack3", "a", 1, {8, 8}},
        {"sw10/rack1", "c2", 5, {7, 7}},
        {"sw10/rack1", "c10", 4, {6, 1}},
        {"sw10/rack1", "c10", 5, {1, 2}},
        {"sw10/rack1", "c10", 5, {1, 3}},
        {"sw10/rack1", "c10", 5, {2, 0}},
    };
    struct fixture *f = *state;
    begin(f, NODES, NODES, false);
    for (size_t i = 0; i < NODES; i++) {
        f->peers[i].node.topology = kv_slice_text(in_order[i].topology);
        f->peers[i].node.addr = kv_slice_text(in_order[i].addr);
        f->peers[i].node.pid = in_order[i].pid;
        memcpy(f->peers[i].node.identity, in_order[i].identity, sizeof in_order[i].identity);
    }
    for (size_t i = 0; i < NODES; i++) {
        join(f, i * 5 % NODES);
    }
    for (uint32_t i = 0; i < NODES; i++) {
        assert_int_equal(f->peers[i].heard[0].world.master_port, 29500);
        assert_string_equal(f->peers[i].heard[0].master, "z");
        hear_world(f, i, 1, i, NODES);
    }
    report_failure(f, 3);
    for (size_t i = NODES; i-- > 0;) {
        join(f, i);
    }
    for (uint32_t i = 0; i < NODES; i++) {
        if (i != 3) {
            hear(f, i, COORDINATOR_CHANGE);
        }
        hear_world(f, i, 2, i, NODES); /* the same members, the same ranks */
    }
}

static void workers_count_by_node_and_role(void **state) {
    static const uint32_t sizes[] = {4, 1, 8, 2};
    static const char *const roles[] = {"trainer", "reader", "trainer", "reader"};
    static const uint32_t globals[] = {0, 4, 5, 13};
    static const uint32_t in_role[] = {0, 0, 4, 1};
    static const uint32_t of_role[] = {12, 3, 12, 3};
    struct fixture *f = *state;
    begin(f, 4, 4, false);
    for (size_t i = 0; i < 4; i++) {
        f->peers[i].node.local_world_size = sizes[i];
        f->peers[i].node.role = kv_slice_text(roles[i]);
    }
    f->peers[0].node.uses_agent_store = false;
    join_many(f, 4);
    for (size_t i = 0; i < 4; i++) {
        const struct heard *heard = hear(f, i, COORDINATOR_WORLD);
        assert_int_equal(heard->world.global_world_size, 15);
        assert_int_equal(heard->world.base_global_rank, globals[i]);
        assert_int_equal(heard->world.base_role_rank, in_role[i]);
        assert_int_equal(heard->world.role_world_size, of_role[i]);
        assert_false(heard->world.uses_agent_store); /* rank 0 says where it is */
    }
}

/* However much happens in a round, it is told in one bounded sentence, cut between characters. */
static void news_are_bounded(void **state) {
    enum { REPEATS = 40, WHY_BYTES = 300 };
    struct fixture *f = *state;
    char why[WHY_BYTES + 1];
    for (size_t i = 0; i < WHY_BYTES; i += 3) {
        memcpy(why + i, "\xe2\x82\xac", 4);
    }
    form(f, 2, 2, 2);
    coordinator_failed(f->coordinator, f->peers[0].member, kv_slice_text(why), f->now_ms);
    const char *text = hear(f, 1, COORDINATOR_CHANGE)->text;
    assert_true(strlen(text) < WHY_BYTES);
    assert_string_equal(text + strlen(text) - 3, "\xe2\x82\xac");
    for (int i = 0; i < REPEATS; i++) {
        report_failure(f, 1);
    }
    join_many(f, 2);
    text = hear(f, 0, COORDINATOR_WORLD)->text;
    assert_non_null(strstr(text, "failed: rank 3 has died; and 2"));
    assert_string_equal(text + strlen(text) - 5, " more");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(first_round_closes_when_all_are_there, setup, teardown),
        cmocka_unit_test_setup_teardown(first_round_closes_after_the_last_call, setup, teardown),
        cmocka_unit_test_setup_teardown(last_call_begins_anew_when_too_few_remain, setup, teardown),
        cmocka_unit_test_setup_teardown(joining_twice_counts_once, setup, teardown),
        cmocka_unit_test_setup_teardown(round_numbers_go_on_after_another_coordinator, setup, teardown),
        cmocka_unit_test_setup_teardown(failure_is_told_at_once_and_once, setup, teardown),
        cmocka_unit_test_setup_teardown(departure_and_loss_are_told, setup, teardown),
        cmocka_unit_test_setup_teardown(unasked_join_is_a_change, setup, teardown),
        cmocka_unit_test_setup_teardown(later_troubles_are_the_same_change, setup, teardown),
        cmocka_unit_test_setup_teardown(stale_join_is_no_answer, setup, teardown),
        cmocka_unit_test_setup_teardown(round_waits_for_enough, setup, teardown),
        cmocka_unit_test_setup_teardown(given_last_call_is_obeyed_in_every_round, setup, teardown),
        cmocka_unit_test_setup_teardown(round_to_which_nobody_came_back_is_like_a_first_one, setup, teardown),
        cmocka_unit_test_setup_teardown(round_whose_last_veteran_goes_needs_a_last_call, setup, teardown),
        cmocka_unit_test_setup_teardown(newcomer_with_a_free_place_is_a_change, setup, teardown),
        cmocka_unit_test_setup_teardown(spares_are_let_in_in_their_order, setup, teardown),
        cmocka_unit_test_setup_teardown(newcomer_takes_no_place_of_a_member_that_will_come_back, setup, teardown),
        cmocka_unit_test_setup_teardown(all_done_ends_the_job, setup, teardown),
        cmocka_unit_test_setup_teardown(the_gone_are_not_waited_for_by_the_done, setup, teardown),
        cmocka_unit_test_setup_teardown(the_done_have_no_part_in_the_next_world, setup, teardown),
        cmocka_unit_test_setup_teardown(change_that_finds_everybody_done_ends_the_job, setup, teardown),
        cmocka_unit_test_setup_teardown(closed_job_tells_all_and_refuses, setup, teardown),
        cmocka_unit_test_setup_teardown(long_reason_is_told_whole_and_cut_where_it_is_a_part, setup, teardown),
        cmocka_unit_test_setup_teardown(strangers_are_refused_in_words, setup, teardown),
        cmocka_unit_test_setup_teardown(identity_that_is_there_is_refused_until_it_goes, setup, teardown),
        cmocka_unit_test_setup_teardown(member_that_becomes_another_is_refused_and_gone, setup, teardown),
        cmocka_unit_test_setup_teardown(world_of_too_many_workers_is_refused, setup, teardown),
        cmocka_unit_test(names_compare_naturally),
        cmocka_unit_test_setup_teardown(ranks_follow_topology_address_pid_and_identity, setup, teardown),
        cmocka_unit_test_setup_teardown(workers_count_by_node_and_role, setup, teardown),
        cmocka_unit_test_setup_teardown(news_are_bounded, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
