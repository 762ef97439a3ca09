/* The leader's decisions over an etcd in memory: who is in, who is waited for, what is written when. */
#include "rendezvous/etcd3_office.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "base/str.h"
#include "rendezvous/etcd3_fake_test_support.h"

#define ROOT "/muster/job"
enum { AGENTS = 210, LAST_CALL_MS = 30000, LEADERS_LEASE = 1 };

struct agent {
    char identity[ETCD3_IDENTITY_CHARS + 1];
    char addr[16];
    struct etcd3_mail mail;
    uint64_t last_round;
};

struct fixture {
    struct fake_etcd etcd;
    struct etcd3_office *office;
    int64_t now_ms, epoch;
    int64_t revision; /* the next that the office is to hear of */
    struct agent agents[AGENTS];
    struct etcd3_pair pairs[FAKE_EVENTS_MAX];
    char text[COORDINATOR_TEXT_BYTES_MAX + 1];
    unsigned refused_count;
};

/* ---- the leader ---- */

static void on_refused(void *ctx, const char *identity, const char *why) {
    struct fixture *f = ctx;
    f->refused_count++;
    (void)identity;
    (void)why;
}

/* Takes the leader's key, and reads who is there. */
static void take_over(struct fixture *f, uint32_t min_nodes, uint32_t max_nodes) {
    fake_etcd_delete(&f->etcd, kv_slice_text(ROOT "/leader"));
    fake_etcd_put(&f->etcd, kv_slice_text(ROOT "/leader"), kv_slice_text("it"), LEADERS_LEASE);
    f->epoch = f->etcd.revision;
    const struct etcd3_office_settings settings = {
        .root = ROOT,
        .epoch = f->epoch,
        .lease_id = LEADERS_LEASE,
        .coordinator = {.run_id = "job",
                        .min_nodes = min_nodes,
                        .max_nodes = max_nodes,
                        .last_call_timeout_ms = LAST_CALL_MS},
        .on_refused = on_refused,
        .ctx = f,
    };
    etcd3_office_free(f->office);
    assert_int_equal(etcd3_office_create(&settings, &f->office), 0);
}

static void read_all(struct fixture *f) {
    size_t count = fake_etcd_read(&f->etcd, etcd3_office_agents(f->office), f->pairs);
    assert_int_equal(etcd3_office_read(f->office, f->pairs, count, f->now_ms), 0);
    f->revision = f->etcd.revision + 1;
}

static void lead(struct fixture *f, uint32_t min_nodes, uint32_t max_nodes) {
    take_over(f, min_nodes, max_nodes);
    read_all(f);
}

/* What has happened since. */
static void hear_events(struct fixture *f) {
    size_t count = fake_etcd_watch(&f->etcd, etcd3_office_agents(f->office), &f->revision, f->pairs);
    assert_int_equal(etcd3_office_hear(f->office, f->pairs, count, f->now_ms), 0);
}

/* Asks for a transaction, and carries it out: the number of its operations, 0 if there is none. */
static size_t write_once(struct fixture *f) {
    struct etcd3_reply reply;
    struct buf body;
    buf_init(&body, ETCD3_TRANSACTION_BYTES_MAX);
    assert_int_equal(etcd3_office_write(f->office, &body), 0);
    if (body.len == 0) {
        return 0;
    }
    fake_etcd_transaction(&f->etcd, &body, &reply);
    buf_done(&body);
    assert_int_equal(etcd3_office_written(f->office, reply.has_succeeded, f->now_ms),
                     reply.has_succeeded ? 0 : MUSTER_ECLOSED);
    etcd3_reply_done(&reply);
    return f->etcd.operation_count;
}

static void write_all(struct fixture *f) {
    while (write_once(f) > 0) {
    }
}

/* ---- agents ---- */

static struct kv_slice key_of(const struct agent *agent, const char *folder, char out[ETCD3_KEY_MAX]) {
    (void)str_format(out, ETCD3_KEY_MAX, ROOT "/%s/%s", folder, agent->identity);
    return kv_slice_text(out);
}

static void write_value(struct fixture *f, size_t i, struct kv_slice value) {
    char key[ETCD3_KEY_MAX];
    fake_etcd_put(&f->etcd, key_of(&f->agents[i], "from", key), value, 100 + (int64_t)i);
}

static void write_letter(struct fixture *f, size_t i) {
    struct buf value;
    buf_init(&value, ETCD3_MAIL_BYTES_MAX);
    assert_int_equal(etcd3_mail_put(&f->agents[i].mail, &value), 0);
    write_value(f, i, kv_slice_of(buf_bytes(&value), value.len));
    buf_done(&value);
}

/* The agent has seen that this leader leads. */
static void meet(struct fixture *f, size_t i) {
    struct agent *agent = &f->agents[i];
    etcd3_mail_done(&agent->mail);
    etcd3_mail_init(&agent->mail, (uint64_t)f->epoch, true);
}

static void say(struct fixture *f, size_t i, enum coordinator_kind kind) {
    const struct coordinator_message message = {.kind = kind, .text = kv_slice_text("words"), .grace_ms = 5};
    assert_int_equal(etcd3_mail_add(&f->agents[i].mail, &message), 0);
    write_letter(f, i);
    hear_events(f);
}

static void add_join(struct fixture *f, size_t i, uint32_t min_nodes, uint32_t max_nodes) {
    struct agent *agent = &f->agents[i];
    const struct coordinator_message message = {
        .kind = COORDINATOR_JOIN,
        .node = {.run_id = kv_slice_text("job"),
                 .addr = kv_slice_text(agent->addr),
                 .role = kv_slice_text("default"),
                 .pid = 1 + (int64_t)i,
                 .identity = {i + 1, i + 1},
                 .min_nodes = min_nodes,
                 .max_nodes = max_nodes,
                 .local_world_size = 1,
                 .store_port = 1,
                 .last_round = agent->last_round,
                 .last_world_size = agent->last_round > 0 ? 2 : 0,
                 .last_host_rank = agent->last_round > 0 ? COORDINATOR_NO_RANK : 0},
    };
    assert_int_equal(etcd3_mail_add(&agent->mail, &message), 0);
}

static void join(struct fixture *f, size_t i, uint32_t min_nodes, uint32_t max_nodes) {
    add_join(f, i, min_nodes, max_nodes);
    write_letter(f, i);
    hear_events(f);
}

static void vanish(struct fixture *f, size_t i) {
    fake_etcd_expire(&f->etcd, 100 + (int64_t)i);
    hear_events(f);
}

/* The next message in the agent's key below to/, its words in f->text; 0: no further one. */
static unsigned hear(struct fixture *f, size_t i) {
    struct agent *agent = &f->agents[i];
    struct coordinator_message message;
    struct etcd3_letter letter;
    char key[ETCD3_KEY_MAX];
    int status = 0;
    const struct etcd3_pair *pair = fake_etcd_get(&f->etcd, key_of(agent, "to", key));
    if (!pair) {
        return 0;
    }
    assert_int_equal(etcd3_letter_open(pair->value, &letter), 0);
    if (letter.epoch != agent->mail.epoch) {
        return 0;
    }
    assert_int_equal(etcd3_mail_receive(&agent->mail, &letter), 0);
    bool has_one = etcd3_mail_next(&agent->mail, &letter, &message, &status);
    assert_int_equal(status, 0);
    if (has_one && message.kind == COORDINATOR_WORLD) {
        agent->last_round = message.world.round;
    }
    (void)str_format(f->text, sizeof f->text, "%.*s", has_one ? (int)message.text.len : 0,
                     has_one ? (const char *)message.text.data : "");
    return has_one ? message.kind : 0;
}

/* Two agents, 0 and 1, in round 1, which they have heard. */
static void form(struct fixture *f, uint32_t min_nodes) {
    lead(f, min_nodes, 2);
    for (size_t i = 0; i < 2; i++) {
        meet(f, i);
        join(f, i, min_nodes, 2);
    }
    write_all(f);
    assert_int_equal(hear(f, 0), COORDINATOR_WORLD);
    assert_int_equal(hear(f, 1), COORDINATOR_WORLD);
}

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    f->now_ms = 1000;
    fake_etcd_begin(&f->etcd, 10);
    for (size_t i = 0; i < AGENTS; i++) {
        (void)str_format(f->agents[i].identity, sizeof f->agents[i].identity, "%032zx", i);
        (void)str_format(f->agents[i].addr, sizeof f->agents[i].addr, "host%zu", i);
        etcd3_mail_init(&f->agents[i].mail, 0, true);
    }
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    for (size_t i = 0; i < AGENTS; i++) {
        etcd3_mail_done(&f->agents[i].mail);
    }
    etcd3_office_free(f->office);
    fake_etcd_end(&f->etcd);
    free(f);
    return 0;
}

/* ---- worlds ---- */

static void world_is_written_to_all_at_once(void **state) {
    struct fixture *f = *state;
    lead(f, 2, 2);
    meet(f, 0);
    meet(f, 1);
    join(f, 0, 2, 2);
    assert_int_equal(write_once(f), 0);
    join(f, 1, 2, 2);
    assert_int_equal(write_once(f), 2);
    assert_int_equal(hear(f, 0), COORDINATOR_WORLD);
    assert_int_equal(hear(f, 1), COORDINATOR_WORLD);
    assert_int_equal(write_once(f), 0);
}

static void change_reaches_the_others(void **state) {
    struct fixture *f = *state;
    form(f, 1);
    say(f, 0, COORDINATOR_FAILED);
    write_all(f);
    assert_int_equal(hear(f, 1), COORDINATOR_CHANGE);
    assert_int_equal(hear(f, 0), 0);
    join(f, 0, 1, 2);
    vanish(f, 1);
    write_all(f);
    assert_int_equal(hear(f, 0), COORDINATOR_WORLD);
    assert_int_equal(f->agents[0].last_round, 2);
}

static void last_call_is_a_timer(void **state) {
    struct fixture *f = *state;
    lead(f, 1, 2);
    assert_true(etcd3_office_wake_ms(f->office) == INT64_MAX);
    meet(f, 0);
    join(f, 0, 1, 2);
    assert_int_equal(etcd3_office_wake_ms(f->office), f->now_ms + LAST_CALL_MS);
    f->now_ms += LAST_CALL_MS;
    etcd3_office_tick(f->office, f->now_ms);
    write_all(f);
    assert_int_equal(hear(f, 0), COORDINATOR_WORLD);
}

static void messages_of_all_kinds_are_heard(void **state) {
    struct fixture *f = *state;
    form(f, 2);
    say(f, 0, COORDINATOR_PREEMPT);
    write_all(f);
    assert_int_equal(hear(f, 0), COORDINATOR_STOP);
    assert_int_equal(hear(f, 1), COORDINATOR_STOP);
    say(f, 0, COORDINATOR_DONE);
    say(f, 1, COORDINATOR_DONE);
    write_all(f);
    assert_int_equal(hear(f, 0), COORDINATOR_ALL_DONE);
    assert_int_equal(hear(f, 1), COORDINATOR_ALL_DONE);
}

static void who_waits_is_told_for_whom(void **state) {
    struct fixture *f = *state;
    lead(f, 2, 2);
    meet(f, 0);
    join(f, 0, 2, 2);
    say(f, 0, COORDINATOR_ALIVE);
    write_all(f);
    assert_int_equal(hear(f, 0), COORDINATOR_HEARD);
    assert_string_equal(f->text, "1 of 2 nodes have joined: host0 (pid 1); 1 more must come");
}

/* More answers than a letter holds, of which it has taken none. */
static void who_does_not_read_is_given_up(void **state) {
    struct fixture *f = *state;
    const struct coordinator_message alive = {.kind = COORDINATOR_ALIVE};
    form(f, 1);
    while (etcd3_mail_add(&f->agents[1].mail, &alive) == 0) { /* as many as a letter holds: answers are longer */
    }
    write_letter(f, 1);
    hear_events(f);
    write_all(f);
    assert_int_equal(hear(f, 0), COORDINATOR_CHANGE);
    assert_non_null(strstr(f->text, "does not read what it is told"));
}

static void who_has_left_is_told_nothing(void **state) {
    struct fixture *f = *state;
    form(f, 1);
    say(f, 1, COORDINATOR_LEAVE);
    say(f, 1, COORDINATOR_FAILED); /* means nothing any more */
    write_all(f);
    assert_int_equal(hear(f, 0), COORDINATOR_CHANGE);
    assert_int_equal(hear(f, 1), 0);
}

/* ---- writing ---- */

static void what_is_said_meanwhile_goes_with_the_next(void **state) {
    struct fixture *f = *state;
    struct etcd3_reply reply;
    struct buf first, second;
    lead(f, 2, 2);
    meet(f, 0);
    meet(f, 1);
    join(f, 0, 2, 2);
    join(f, 1, 2, 2);
    buf_init(&first, ETCD3_TRANSACTION_BYTES_MAX);
    buf_init(&second, ETCD3_TRANSACTION_BYTES_MAX);
    assert_int_equal(etcd3_office_write(f->office, &first), 0);
    say(f, 0, COORDINATOR_FAILED);
    assert_int_equal(etcd3_office_write(f->office, &second), 0);
    assert_int_equal(second.len, 0); /* an older value must not come after a newer one */
    assert_false(etcd3_office_is_quiet(f->office));
    fake_etcd_transaction(&f->etcd, &first, &reply);
    etcd3_reply_done(&reply);
    assert_int_equal(etcd3_office_written(f->office, true, f->now_ms), 0);
    assert_int_equal(write_once(f), 1);
    assert_int_equal(hear(f, 1), COORDINATOR_WORLD);
    assert_int_equal(hear(f, 1), COORDINATOR_CHANGE);
    assert_true(etcd3_office_is_quiet(f->office));
    buf_done(&first);
    buf_done(&second);
}

static void many_are_written_in_batches(void **state) {
    struct fixture *f = *state;
    lead(f, AGENTS, AGENTS);
    for (size_t i = 0; i < AGENTS; i++) {
        meet(f, i);
        join(f, i, AGENTS, AGENTS);
    }
    assert_int_equal(write_once(f), ETCD3_BATCH_MAX);
    assert_int_equal(write_once(f), ETCD3_BATCH_MAX);
    assert_int_equal(write_once(f), AGENTS - 2 * ETCD3_BATCH_MAX);
    for (size_t i = 0; i < AGENTS; i++) {
        assert_int_equal(hear(f, i), COORDINATOR_WORLD);
    }
}

static void transaction_that_loses_ends_the_leader(void **state) {
    struct fixture *f = *state;
    form(f, 1);
    say(f, 0, COORDINATOR_FAILED);
    fake_etcd_delete(&f->etcd, kv_slice_text(ROOT "/leader"));
    fake_etcd_put(&f->etcd, kv_slice_text(ROOT "/leader"), kv_slice_text("another"), 2);
    (void)write_once(f); /* it says MUSTER_ECLOSED */
    assert_int_equal(hear(f, 1), 0);
}

static void keys_of_the_gone_are_removed(void **state) {
    struct fixture *f = *state;
    char key[ETCD3_KEY_MAX];
    form(f, 1);
    assert_non_null(fake_etcd_get(&f->etcd, key_of(&f->agents[1], "to", key)));
    vanish(f, 1);
    assert_int_equal(write_once(f), 2); /* a CHANGE, and a key less */
    assert_null(fake_etcd_get(&f->etcd, key_of(&f->agents[1], "to", key)));
    meet(f, 2);
    join(f, 2, 1, 3); /* refused: other counts. Gone before it could be told */
    vanish(f, 2);
    assert_int_equal(write_once(f), 0); /* no key was ever there */
}

/* One that goes while it is written to, and before it could be written to. */
static void who_goes_while_written_to_is_forgotten(void **state) {
    struct fixture *f = *state;
    struct etcd3_reply reply;
    struct buf body;
    char key[ETCD3_KEY_MAX];
    lead(f, 2, 2);
    meet(f, 0);
    meet(f, 1);
    join(f, 0, 2, 2);
    join(f, 1, 2, 2);
    buf_init(&body, ETCD3_TRANSACTION_BYTES_MAX);
    assert_int_equal(etcd3_office_write(f->office, &body), 0);
    vanish(f, 1);
    fake_etcd_transaction(&f->etcd, &body, &reply);
    etcd3_reply_done(&reply);
    buf_done(&body);
    assert_int_equal(etcd3_office_written(f->office, true, f->now_ms), 0);
    write_all(f);
    assert_null(fake_etcd_get(&f->etcd, key_of(&f->agents[1], "to", key)));
    assert_int_equal(hear(f, 0), COORDINATOR_WORLD);
    assert_int_equal(hear(f, 0), COORDINATOR_CHANGE);
}

/* ---- new leaders, and histories that are lost ---- */

static void new_leader_waits_for_those_who_live(void **state) {
    struct fixture *f = *state;
    form(f, 1);
    lead(f, 1, 2); /* another one */
    meet(f, 0);
    join(f, 0, 1, 2);
    f->now_ms += 2 * LAST_CALL_MS;
    etcd3_office_tick(f->office, f->now_ms);
    assert_int_equal(write_once(f), 0); /* agent 1 has yet to speak */
    meet(f, 1);
    join(f, 1, 1, 2);
    write_all(f);
    assert_int_equal(hear(f, 0), COORDINATOR_WORLD);
    assert_int_equal(hear(f, 1), COORDINATOR_WORLD);
    assert_int_equal(f->agents[1].last_round, 2); /* numbers go on */
}

static void new_leader_waits_for_nobody_who_is_gone(void **state) {
    struct fixture *f = *state;
    form(f, 1);
    lead(f, 1, 2);
    meet(f, 0);
    join(f, 0, 1, 2);
    assert_int_equal(write_once(f), 0);
    vanish(f, 1);
    assert_int_equal(write_once(f), 1);
    assert_int_equal(hear(f, 0), COORDINATOR_WORLD);
}

static void who_has_spoken_already_is_not_waited_for(void **state) {
    struct fixture *f = *state;
    form(f, 1);
    take_over(f, 1, 2);
    meet(f, 0);
    add_join(f, 0, 1, 2);
    write_letter(f, 0); /* before the new leader has read */
    fake_etcd_expire(&f->etcd, 101);
    read_all(f);
    assert_int_equal(write_once(f), 1);
    assert_int_equal(hear(f, 0), COORDINATOR_WORLD);
}

/* Events are missing: those of agent 1's end, and of agent 0's new letter. */
static void what_was_compacted_is_read_anew(void **state) {
    struct fixture *f = *state;
    form(f, 1);
    fake_etcd_expire(&f->etcd, 101);
    add_join(f, 0, 1, 2);
    write_letter(f, 0);
    read_all(f);
    write_all(f);
    assert_int_equal(hear(f, 0), COORDINATOR_WORLD);
    assert_int_equal(f->agents[0].last_round, 2);
    read_all(f); /* nothing new: nothing is heard twice */
    assert_int_equal(write_once(f), 0);
}

static void letter_of_another_epoch_is_not_read(void **state) {
    struct fixture *f = *state;
    form(f, 1);
    int64_t before = f->epoch;
    lead(f, 1, 2);
    f->agents[0].mail.epoch = (uint64_t)before;
    say(f, 0, COORDINATOR_CLOSE);
    assert_int_equal(write_once(f), 0);
    meet(f, 0);
    f->agents[0].mail.epoch++; /* a leader that this one has not heard of */
    say(f, 0, COORDINATOR_CLOSE);
    assert_int_equal(write_once(f), 0);
}

/* ---- what no agent of ours writes ---- */

static void who_skips_messages_is_refused(void **state) {
    struct fixture *f = *state;
    form(f, 1);
    f->agents[1].mail.first += 2;
    say(f, 1, COORDINATOR_DONE);
    write_all(f);
    assert_int_equal(hear(f, 1), COORDINATOR_REFUSED);
    assert_int_equal(hear(f, 0), COORDINATOR_CHANGE);
    assert_int_equal(f->refused_count, 1);
}

static void who_takes_what_was_never_written_is_refused(void **state) {
    struct fixture *f = *state;
    form(f, 1);
    f->agents[1].mail.taken += 7;
    say(f, 1, COORDINATOR_DONE);
    write_all(f);
    assert_int_equal(hear(f, 0), COORDINATOR_CHANGE);
    assert_int_equal(f->refused_count, 1);
}

static void strange_values_and_keys_are_refused(void **state) {
    struct fixture *f = *state;
    form(f, 1);
    write_value(f, 1, kv_slice_text("what is this?"));
    fake_etcd_put(&f->etcd, kv_slice_text(ROOT "/from/me"), kv_slice_text("x"), 0);
    hear_events(f);
    write_all(f);
    assert_int_equal(hear(f, 1), COORDINATOR_REFUSED);
    assert_int_equal(hear(f, 0), COORDINATOR_CHANGE);
    assert_int_equal(f->refused_count, 1);
}

static void kinds_that_are_not_served_are_refused(void **state) {
    struct fixture *f = *state;
    form(f, 1);
    say(f, 1, COORDINATOR_STATUS);
    write_all(f);
    assert_int_equal(hear(f, 1), COORDINATOR_REFUSED);
    assert_int_equal(hear(f, 0), COORDINATOR_CHANGE);
    assert_int_equal(f->refused_count, 1);
}

/* ---- the end ---- */

static void closed_job_is_quiet_when_the_others_are_gone(void **state) {
    struct fixture *f = *state;
    form(f, 1);
    assert_true(etcd3_office_is_quiet(f->office)); /* a world that runs has nothing to write */
    say(f, 0, COORDINATOR_CLOSE);
    assert_false(etcd3_office_is_quiet(f->office));
    write_all(f);
    assert_int_equal(hear(f, 1), COORDINATOR_CLOSED);
    assert_false(etcd3_office_is_quiet(f->office)); /* agent 1 has not shown that it has heard */
    vanish(f, 1);
    write_all(f);
    assert_true(etcd3_office_is_quiet(f->office));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(world_is_written_to_all_at_once, setup, teardown),
        cmocka_unit_test_setup_teardown(change_reaches_the_others, setup, teardown),
        cmocka_unit_test_setup_teardown(last_call_is_a_timer, setup, teardown),
        cmocka_unit_test_setup_teardown(messages_of_all_kinds_are_heard, setup, teardown),
        cmocka_unit_test_setup_teardown(who_waits_is_told_for_whom, setup, teardown),
        cmocka_unit_test_setup_teardown(who_does_not_read_is_given_up, setup, teardown),
        cmocka_unit_test_setup_teardown(who_has_left_is_told_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_said_meanwhile_goes_with_the_next, setup, teardown),
        cmocka_unit_test_setup_teardown(many_are_written_in_batches, setup, teardown),
        cmocka_unit_test_setup_teardown(transaction_that_loses_ends_the_leader, setup, teardown),
        cmocka_unit_test_setup_teardown(keys_of_the_gone_are_removed, setup, teardown),
        cmocka_unit_test_setup_teardown(who_goes_while_written_to_is_forgotten, setup, teardown),
        cmocka_unit_test_setup_teardown(new_leader_waits_for_those_who_live, setup, teardown),
        cmocka_unit_test_setup_teardown(new_leader_waits_for_nobody_who_is_gone, setup, teardown),
        cmocka_unit_test_setup_teardown(who_has_spoken_already_is_not_waited_for, setup, teardown),
        cmocka_unit_test_setup_teardown(what_was_compacted_is_read_anew, setup, teardown),
        cmocka_unit_test_setup_teardown(letter_of_another_epoch_is_not_read, setup, teardown),
        cmocka_unit_test_setup_teardown(who_skips_messages_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(who_takes_what_was_never_written_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(strange_values_and_keys_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(kinds_that_are_not_served_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(closed_job_is_quiet_when_the_others_are_gone, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
