/* Nodes for the coordinator's tests; see the header. */
#include "rendezvous/coordinator/coordinator_peers_test_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

static void copy(char *to, size_t size, struct kv_slice from) {
    assert_true(from.len < size);
    memcpy(to, from.data ? (const char *)from.data : "", from.len);
    to[from.len] = '\0';
}

static void on_send(void *ctx, void *session, const struct coordinator_message *message) {
    struct peer *peer = session;
    (void)ctx;
    if (message->kind == COORDINATOR_PROPOSE) {
        peer->proposal = message->proposal;
        peer->is_asked = true;
        return;
    }
    assert_true(peer->heard_count < PEER_HEARD_MAX);
    struct heard *heard = &peer->heard[peer->heard_count++];
    *heard = (struct heard){.kind = message->kind,
                            .world = message->world,
                            .change = message->change,
                            .status = message->status,
                            .grace_ms = message->grace_ms,
                            .has_failed = message->has_failed};
    copy(heard->text, sizeof heard->text, message->text);
    copy(heard->cause, sizeof heard->cause, message->cause);
    copy(heard->master, sizeof heard->master, message->world.master_addr);
    if (message->kind == COORDINATOR_WORLD) {
        peer->round = message->world.round;
        peer->author = message->world.author;
    }
}

static void on_fence(void *ctx, const struct coordinator_record *record) {
    struct peers *f = ctx;
    f->record = *record;
    f->record_count++;
}

static void peers_begin_again(struct peers *f, uint32_t min_nodes, uint32_t max_nodes, bool last_call_given) {
    struct coordinator_settings settings = {.run_id = "job",
                                            .min_nodes = min_nodes,
                                            .max_nodes = max_nodes,
                                            .last_call_timeout_ms = PEERS_LAST_CALL_MS,
                                            .last_call_given = last_call_given,
                                            .places = f->places,
                                            .limits = f->limits,
                                            .limits_spares = f->limits_spares,
                                            .max_spares = f->max_spares,
                                            .hash_seed = {1, 2},
                                            .fence = on_fence,
                                            .fence_ctx = f};
    f->record_count = 0;
    coordinator_free(f->coordinator);
    assert_int_equal(coordinator_create(&settings, on_send, f, &f->coordinator), MUSTER_OK);
    f->now_ms = 1000;
    for (size_t i = 0; i < PEERS; i++) {
        struct peer *peer = &f->list[i];
        *peer = (struct peer){.node = {.run_id = kv_slice_text("job"),
                                       .role = kv_slice_text("default"),
                                       .pid = 7,
                                       .identity = {100 + i, 5},
                                       .endpoints = f->places.endpoints,
                                       .min_nodes = min_nodes,
                                       .max_nodes = max_nodes,
                                       .local_world_size = 2,
                                       .store_port = (uint16_t)(29500 + i),
                                       .uses_agent_store = true}};
        (void)snprintf(peer->addr, sizeof peer->addr, "host%zu", i);
        peer->node.addr = kv_slice_text(peer->addr);
    }
}

void peers_begin(struct peers *f, uint32_t min_nodes, uint32_t max_nodes, bool last_call_given) {
    f->places = (struct coordinator_places){.count = 1};
    peers_begin_again(f, min_nodes, max_nodes, last_call_given);
}

void peers_begin_place(struct peers *f, uint32_t min_nodes, uint32_t max_nodes, uint32_t place) {
    f->places = (struct coordinator_places){.place = place,
                                            .count = 3,
                                            .endpoints = 77,
                                            .author = PEERS_AUTHOR,
                                            .silence_ms = PEERS_SILENCE_MS,
                                            .stop_ms = PEERS_STOP_MS};
    peers_begin_again(f, min_nodes, max_nodes, false);
}

void peers_begin_leased(struct peers *f, uint32_t min_nodes, uint32_t max_nodes) {
    f->places = (struct coordinator_places){.count = 1,
                                            .author = PEERS_AUTHOR,
                                            .silence_ms = PEERS_SILENCE_MS,
                                            .stop_ms = PEERS_STOP_MS,
                                            .is_leased = true};
    peers_begin_again(f, min_nodes, max_nodes, false);
}

int peers_setup(void **state) {
    *state = calloc(1, sizeof(struct peers));
    return *state ? 0 : -1;
}

int peers_teardown(void **state) {
    struct peers *f = *state;
    coordinator_free(f->coordinator);
    free(f);
    return 0;
}

/* ---- what nodes do ---- */

void peers_accept(struct peers *f, size_t i) {
    struct peer *peer = &f->list[i];
    assert_true(peer->is_asked);
    peer->is_asked = false;
    if (peer->member) {
        coordinator_accepted(f->coordinator, peer->member, peer->proposal.world.round, f->now_ms);
    }
}

static void accept_all(struct peers *f) {
    for (size_t i = 0; i < PEERS;) { /* an answer may be followed by another question */
        bool answers = f->list[i].is_asked && !f->list[i].is_mute;
        if (answers) {
            peers_accept(f, i);
        }
        i = answers ? 0 : i + 1;
    }
}

void peers_join(struct peers *f, size_t i) {
    struct peer *peer = &f->list[i];
    peer->node.last_round = peer->round;
    peer->node.last_author = peer->author;
    peer->member = coordinator_join(f->coordinator, peer->member, peer, &peer->node, f->now_ms);
    accept_all(f);
}

void peers_join_many(struct peers *f, size_t count) {
    for (size_t i = 0; i < count; i++) {
        peers_join(f, i);
    }
}

void peers_leave(struct peers *f, size_t i, const char *why) {
    coordinator_leave(f->coordinator, f->list[i].member, kv_slice_text(why), f->now_ms);
    f->list[i].member = NULL;
    accept_all(f);
}

void peers_lose(struct peers *f, size_t i) {
    coordinator_gone(f->coordinator, f->list[i].member, kv_slice_text(""), f->now_ms);
    f->list[i].member = NULL;
    accept_all(f);
}

void peers_report_failure(struct peers *f, size_t i) {
    const struct coordinator_failure failure = {.why = kv_slice_text("rank 3 has died")};
    coordinator_failed(f->coordinator, f->list[i].member, &failure, f->now_ms);
    accept_all(f);
}

void peers_done(struct peers *f, size_t i) {
    coordinator_done(f->coordinator, f->list[i].member, f->now_ms);
    accept_all(f);
}

void peers_preempt(struct peers *f, size_t i, uint64_t grace_ms) {
    coordinator_preempt(f->coordinator, f->list[i].member, grace_ms, kv_slice_text("SIGUSR1"), f->now_ms);
    accept_all(f);
}

void peers_pass_ms(struct peers *f, int64_t ms) {
    f->now_ms += ms;
    coordinator_tick(f->coordinator, f->now_ms);
    accept_all(f);
}

/* ---- what they hear ---- */

const struct heard *peers_hear(struct peers *f, size_t i, enum coordinator_kind kind) {
    struct peer *peer = &f->list[i];
    accept_all(f);
    assert_true(peer->looked_at < peer->heard_count);
    const struct heard *heard = &peer->heard[peer->looked_at++];
    assert_int_equal(heard->kind, kind);
    return heard;
}

void peers_hear_nothing(struct peers *f) {
    accept_all(f);
    for (size_t i = 0; i < PEERS; i++) {
        assert_int_equal(f->list[i].looked_at, f->list[i].heard_count);
    }
}

void peers_hear_world(struct peers *f, size_t i, uint64_t round, uint32_t rank, uint32_t size) {
    const struct coordinator_world *world = &peers_hear(f, i, COORDINATOR_WORLD)->world;
    assert_int_equal(world->round, round);
    assert_int_equal(world->group_rank, rank);
    assert_int_equal(world->group_world_size, size);
}

void peers_hear_change(struct peers *f, size_t i, enum coordinator_change change, const char *text) {
    const struct heard *heard = peers_hear(f, i, COORDINATOR_CHANGE);
    assert_int_equal(heard->change, change);
    assert_string_equal(heard->text, text);
}

void peers_hear_refusal(struct peers *f, size_t i, int status, const char *words) {
    const struct heard *heard = peers_hear(f, i, COORDINATOR_REFUSED);
    assert_int_equal(heard->status, status);
    if (!strstr(heard->text, words)) {
        fail_msg("\"%s\" is not in: %s", words, heard->text);
    }
    assert_null(f->list[i].member);
}

struct coordinator_view peers_look(const struct peers *f) {
    struct coordinator_view view;
    coordinator_look(f->coordinator, &view);
    return view;
}

void peers_form(struct peers *f, uint32_t min_nodes, uint32_t max_nodes, uint32_t count) {
    peers_begin(f, min_nodes, max_nodes, false);
    peers_join_many(f, count);
    if (count < max_nodes) {
        peers_pass_ms(f, PEERS_LAST_CALL_MS);
    }
    for (uint32_t i = 0; i < count; i++) {
        peers_hear_world(f, i, 1, i, count);
    }
    assert_int_equal(peers_look(f).phase, COORDINATOR_RUNNING);
    peers_hear_nothing(f);
}
