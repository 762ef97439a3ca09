/* Letters between an agent and a leader: nothing is lost or heard twice, whichever values the other side sees. */
#include "rendezvous/etcd3_mail.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "base/str.h"

enum { EPOCH = 77 };

struct pair {
    struct etcd3_mail agent, leader;
    struct buf value;
};

static int setup(void **state) {
    static struct pair pair;
    etcd3_mail_init(&pair.agent, EPOCH, true);
    etcd3_mail_init(&pair.leader, EPOCH, false);
    buf_init(&pair.value, ETCD3_MAIL_BYTES_MAX);
    *state = &pair;
    return 0;
}

static int teardown(void **state) {
    struct pair *pair = *state;
    etcd3_mail_done(&pair->agent);
    etcd3_mail_done(&pair->leader);
    buf_done(&pair->value);
    return 0;
}

static void say(struct etcd3_mail *mail, enum coordinator_kind kind, unsigned number) {
    char text[16];
    (void)str_format(text, sizeof text, "%u", number);
    const struct coordinator_message message = {
        .kind = kind, .text = kv_slice_text(text), .change = kind == COORDINATOR_CHANGE ? COORDINATOR_NODE_LEFT : 0};
    assert_int_equal(etcd3_mail_add(mail, &message), 0);
}

/* What `from` writes now reaches `to`, who hears `count` messages: number `first` and those after it. */
static void deliver(struct pair *p, const struct etcd3_mail *from, struct etcd3_mail *to, unsigned first,
                    unsigned count) {
    struct etcd3_letter letter;
    struct coordinator_message message;
    char text[16];
    int status = 0;
    buf_clear(&p->value);
    assert_int_equal(etcd3_mail_put(from, &p->value), 0);
    assert_int_equal(etcd3_letter_open(kv_slice_of(buf_bytes(&p->value), p->value.len), &letter), 0);
    assert_int_equal(letter.epoch, EPOCH);
    assert_int_equal(etcd3_mail_receive(to, &letter), 0);
    for (unsigned i = 0; i < count; i++) {
        assert_true(etcd3_mail_next(to, &letter, &message, &status));
        (void)str_format(text, sizeof text, "%u", first + i);
        assert_true(kv_slice_equal(message.text, kv_slice_text(text)));
    }
    assert_false(etcd3_mail_next(to, &letter, &message, &status));
    assert_int_equal(status, 0);
}

static void each_message_is_heard_once(void **state) {
    struct pair *p = *state;
    say(&p->agent, COORDINATOR_FAILED, 1);
    deliver(p, &p->agent, &p->leader, 1, 1);
    deliver(p, &p->agent, &p->leader, 0, 0); /* the same value again */
    say(&p->agent, COORDINATOR_FAILED, 2);
    say(&p->agent, COORDINATOR_FAILED, 3);
    deliver(p, &p->agent, &p->leader, 2, 2);
    say(&p->leader, COORDINATOR_CHANGE, 1);
    deliver(p, &p->leader, &p->agent, 1, 1);
    assert_int_equal(p->agent.frames.len, 0); /* the leader has said that it has them */
    say(&p->agent, COORDINATOR_FAILED, 4);
    deliver(p, &p->agent, &p->leader, 4, 1);
    assert_int_equal(p->leader.frames.len, 0);
}

/* A value in between that nobody has seen. */
static void values_may_be_missed(void **state) {
    struct pair *p = *state;
    for (unsigned i = 1; i <= 9; i++) {
        say(&p->agent, COORDINATOR_FAILED, i);
        if (i % 3 == 0) {
            deliver(p, &p->agent, &p->leader, i - 2, 3);
        }
    }
}

static void empty_letter_says_what_was_read(void **state) {
    struct pair *p = *state;
    say(&p->agent, COORDINATOR_FAILED, 1);
    deliver(p, &p->agent, &p->leader, 1, 1);
    deliver(p, &p->leader, &p->agent, 0, 0);
    assert_int_equal(p->agent.frames.len, 0);
    assert_int_equal(p->agent.first, 2);
}

static int receive(struct etcd3_mail *to, uint64_t taken, uint64_t first) {
    const struct etcd3_letter letter = {.epoch = EPOCH, .taken = taken, .first = first};
    return etcd3_mail_receive(to, &letter);
}

static void gaps_are_noticed(void **state) {
    struct pair *p = *state;
    assert_int_equal(receive(&p->leader, 0, 1), 0);
    assert_int_equal(receive(&p->leader, 0, 2), MUSTER_EPROTOCOL);
    assert_int_equal(receive(&p->leader, 1, 1), MUSTER_EPROTOCOL);
    say(&p->leader, COORDINATOR_CHANGE, 1);
    assert_int_equal(receive(&p->leader, 1, 1), 0);
    assert_int_equal(receive(&p->leader, 2, 1), MUSTER_EPROTOCOL);
}

static void who_reads_nothing_is_told_no_more(void **state) {
    struct pair *p = *state;
    static char text[COORDINATOR_TEXT_BYTES_MAX];
    memset(text, 'x', sizeof text);
    const struct coordinator_message message = {
        .kind = COORDINATOR_CHANGE, .change = COORDINATOR_NODE_LEFT, .text = kv_slice_of(text, sizeof text)};
    int rc = 0, count = 0;
    while ((rc = etcd3_mail_add(&p->leader, &message)) == 0) {
        count++;
    }
    assert_int_equal(rc, MUSTER_ELIMIT);
    assert_in_range(count, 50, 64);
    buf_clear(&p->value);
    assert_int_equal(etcd3_mail_put(&p->leader, &p->value), 0); /* what it was told before is whole */
    struct etcd3_letter letter;
    assert_int_equal(etcd3_letter_open(kv_slice_of(buf_bytes(&p->value), p->value.len), &letter), 0);
}

static void strange_values_are_refused(void **state) {
    struct pair *p = *state;
    struct etcd3_letter letter;
    struct coordinator_message message;
    int status = 0;
    say(&p->agent, COORDINATOR_FAILED, 1);
    assert_int_equal(etcd3_mail_put(&p->agent, &p->value), 0);
    uint8_t *bytes = buf_bytes(&p->value);
    for (size_t len = 0; len < 32; len++) {
        assert_int_equal(etcd3_letter_open(kv_slice_of(bytes, len), &letter), MUSTER_EPROTOCOL);
    }
    assert_int_equal(etcd3_letter_open(kv_slice_of(bytes, p->value.len - 1), &letter), 0);
    assert_false(etcd3_mail_next(&p->leader, &letter, &message, &status)); /* cut off */
    assert_int_equal(status, MUSTER_EPROTOCOL);
    bytes[0] ^= 1;
    assert_int_equal(etcd3_letter_open(kv_slice_of(bytes, p->value.len), &letter), MUSTER_EPROTOCOL);
    bytes[0] ^= 1;
    bytes[24] = 0; /* messages count from 1 */
    assert_int_equal(etcd3_letter_open(kv_slice_of(bytes, p->value.len), &letter), MUSTER_EPROTOCOL);
}

/* The example of docs/formats/etcd-v3.md. */
static void value_has_these_bytes(void **state) {
    static const uint8_t golden[] = {'M',
                                     'U',
                                     'S',
                                     'T',
                                     'E',
                                     'R',
                                     '3',
                                     '\n',
                                     EPOCH,
                                     0,
                                     0,
                                     0,
                                     0,
                                     0,
                                     0,
                                     0,
                                     0,
                                     0,
                                     0,
                                     0,
                                     0,
                                     0,
                                     0,
                                     0,
                                     1,
                                     0,
                                     0,
                                     0,
                                     0,
                                     0,
                                     0,
                                     0,
                                     1,
                                     0,
                                     0,
                                     0,
                                     COORDINATOR_DONE};
    struct pair *p = *state;
    const struct coordinator_message message = {.kind = COORDINATOR_DONE};
    assert_int_equal(etcd3_mail_add(&p->agent, &message), 0);
    assert_int_equal(etcd3_mail_put(&p->agent, &p->value), 0);
    assert_int_equal(p->value.len, sizeof golden);
    assert_memory_equal(buf_bytes(&p->value), golden, sizeof golden);
}

int main(void) {
#define CASE(f) cmocka_unit_test_setup_teardown(f, setup, teardown)
    const struct CMUnitTest tests[] = {
        CASE(each_message_is_heard_once),
        CASE(values_may_be_missed),
        CASE(empty_letter_says_what_was_read),
        CASE(gaps_are_noticed),
        CASE(who_reads_nothing_is_told_no_more),
        CASE(strange_values_are_refused),
        CASE(value_has_these_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
