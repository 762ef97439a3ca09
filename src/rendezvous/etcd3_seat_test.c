/* An agent's place on etcd: what it does when it gets a lease, when leaders come and go, and when etcd forgets. Over an
 * etcd in memory, which carries out the requests' bodies. */
#include "rendezvous/etcd3_seat.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "rendezvous/etcd3_fake_test_support.h"

enum { LEASE = 7, OTHERS_LEASE = 8, INTERVAL_MS = 5000, TTL_S = 15 };

enum {
    NO_LEADER = ETCD3_SEAT_DROP_LEADER | ETCD3_SEAT_LOST,
    NO_LEASE = ETCD3_SEAT_DROP_LEADER | ETCD3_SEAT_DROP_LEASE | ETCD3_SEAT_LOST,
    GIVEN_BACK = ETCD3_SEAT_DROP_LEADER | ETCD3_SEAT_DROP_LEASE | ETCD3_SEAT_REVOKE,
    OVER = ETCD3_SEAT_DROP_LEADER | ETCD3_SEAT_DROP_LEASE | ETCD3_SEAT_ENDED,
};

struct fixture {
    struct fake_etcd etcd;
    struct etcd3_seat seat;
};

static int setup(void **state) {
    struct fixture *f = calloc(1, sizeof *f);
    struct etcd3_keys keys;
    assert_int_equal(etcd3_keys_init(&keys, "/muster", "job"), 0);
    etcd3_seat_init(&f->seat, &keys, INTERVAL_MS);
    fake_etcd_begin(&f->etcd, 100);
    *state = f;
    return 0;
}

static int teardown(void **state) {
    struct fixture *f = *state;
    etcd3_seat_done(&f->seat);
    fake_etcd_end(&f->etcd);
    free(f);
    return 0;
}

/* ---- what happens ---- */

static unsigned get_lease(struct fixture *f) {
    static const uint64_t identity[2] = {1, 2};
    const struct etcd3_reply reply = {.lease_id = LEASE, .ttl_s = TTL_S, .revision = f->etcd.revision};
    assert_int_equal(etcd3_seat_want(&f->seat), ETCD3_SEAT_GRANT);
    return etcd3_seat_granted(&f->seat, MUSTER_OK, &reply, identity);
}

/* The transaction for the leader's key is carried out, and answered. */
static unsigned stand(struct fixture *f) {
    struct etcd3_reply reply;
    struct buf body;
    buf_init(&body, (size_t)1 << 20);
    assert_int_equal(etcd3_keys_put_stand(&f->seat.keys, f->seat.lease_id, &body), 0);
    fake_etcd_transaction(&f->etcd, &body, &reply);
    unsigned actions = etcd3_seat_stood(&f->seat, MUSTER_OK, &reply);
    etcd3_reply_done(&reply);
    buf_done(&body);
    return actions;
}

static unsigned look(struct fixture *f, struct etcd3_reply *reply) {
    struct buf body;
    buf_init(&body, (size_t)1 << 20);
    assert_int_equal(etcd3_keys_put_look(&f->seat.keys, f->seat.epoch, &body), 0);
    fake_etcd_transaction(&f->etcd, &body, reply);
    buf_done(&body);
    return etcd3_seat_looked(&f->seat, MUSTER_OK, reply);
}

static void lead_elsewhere(struct fixture *f) {
    fake_etcd_put(&f->etcd, kv_slice_text(f->seat.keys.leader), kv_slice_text("another"), OTHERS_LEASE);
}

static unsigned hear(struct fixture *f, const struct etcd3_pair *pair, struct etcd3_letter *letter) {
    struct etcd3_letter none;
    return etcd3_seat_hear(&f->seat, pair, letter ? letter : &none);
}

/* The last event, which the watch brings. */
static unsigned hear_last(struct fixture *f) {
    return hear(f, &f->etcd.events[f->etcd.event_count - 1].pair, NULL);
}

/* Open, with another agent as the leader. */
static void follow(struct fixture *f) {
    lead_elsewhere(f);
    assert_int_equal(get_lease(f), ETCD3_SEAT_BEAT | ETCD3_SEAT_STAND);
    assert_int_equal(stand(f), ETCD3_SEAT_WATCH | ETCD3_SEAT_OPENED);
}

static unsigned send(struct fixture *f, int wanted) {
    const struct coordinator_message message = {.kind = COORDINATOR_DONE};
    unsigned actions;
    assert_int_equal(etcd3_seat_send(&f->seat, &message, &actions), wanted);
    return actions;
}

/* A letter of the leader's with `count` messages, as a value. */
static void put_letter(struct buf *value, int64_t epoch, unsigned count, uint64_t first) {
    const struct coordinator_message message = {.kind = COORDINATOR_ALL_DONE};
    struct etcd3_mail mail;
    etcd3_mail_init(&mail, (uint64_t)epoch, false);
    mail.first = first;
    for (unsigned i = 0; i < count; i++) {
        assert_int_equal(etcd3_mail_add(&mail, &message), 0);
    }
    buf_init(value, ETCD3_MAIL_BYTES_MAX);
    assert_int_equal(etcd3_mail_put(&mail, value), 0);
    etcd3_mail_done(&mail);
}

/* Such a letter comes: the number of messages in it that are heard, or -1 with *actions. */
static int hear_letter(struct fixture *f, int64_t epoch, unsigned count, uint64_t first, unsigned *actions) {
    struct coordinator_message message;
    struct etcd3_letter letter;
    struct buf value;
    int heard = 0;
    put_letter(&value, epoch, count, first);
    const struct etcd3_pair pair = {.key = kv_slice_text(f->seat.keys.to),
                                    .value = kv_slice_of(buf_bytes(&value), value.len),
                                    .mod_revision = f->etcd.revision};
    *actions = hear(f, &pair, &letter);
    while (*actions == 0 && letter.frames.len > 0 && etcd3_seat_next(&f->seat, &letter, &message, actions)) {
        heard++;
    }
    buf_done(&value);
    return *actions ? -1 : heard;
}

/* ---- leases ---- */

static void first_to_come_leads(void **state) {
    struct fixture *f = *state;
    assert_int_equal(get_lease(f), ETCD3_SEAT_BEAT | ETCD3_SEAT_STAND);
    assert_int_equal(f->seat.beat_ms, INTERVAL_MS);
    assert_int_equal(stand(f), ETCD3_SEAT_WATCH | ETCD3_SEAT_LEAD | ETCD3_SEAT_OPENED);
    assert_int_equal(f->seat.epoch, 101);
    assert_int_equal(f->seat.watch_revision, 102);
    assert_int_equal(etcd3_seat_want(&f->seat), 0);
}

/* The first answer was lost on its way, and the transaction is carried out again. */
static void standing_twice_finds_its_own_key(void **state) {
    struct fixture *f = *state;
    struct etcd3_reply lost;
    struct buf body;
    (void)get_lease(f);
    buf_init(&body, (size_t)1 << 20);
    assert_int_equal(etcd3_keys_put_stand(&f->seat.keys, LEASE, &body), 0);
    fake_etcd_transaction(&f->etcd, &body, &lost);
    etcd3_reply_done(&lost);
    buf_done(&body);
    assert_int_equal(stand(f), ETCD3_SEAT_WATCH | ETCD3_SEAT_LEAD | ETCD3_SEAT_OPENED);
    assert_int_equal(f->seat.epoch, 101);
}

static void short_lease_is_renewed_in_time(void **state) {
    struct fixture *f = *state;
    static const uint64_t identity[2] = {1, 2};
    const struct etcd3_reply reply = {.lease_id = LEASE, .ttl_s = 2};
    (void)etcd3_seat_want(&f->seat);
    (void)etcd3_seat_granted(&f->seat, MUSTER_OK, &reply, identity);
    assert_int_equal(f->seat.beat_ms, 666);
}

static void lease_that_is_not_granted_is_lost(void **state) {
    struct fixture *f = *state;
    static const uint64_t identity[2] = {1, 2};
    const struct etcd3_reply nameless = {.ttl_s = 2};
    (void)etcd3_seat_want(&f->seat);
    assert_int_equal(etcd3_seat_granted(&f->seat, MUSTER_ETIMEOUT, NULL, identity), NO_LEASE);
    assert_int_equal(f->seat.lost_status, MUSTER_ETIMEOUT);
    assert_false(f->seat.has_reached);
    assert_int_equal(etcd3_seat_want(&f->seat), ETCD3_SEAT_GRANT);
    assert_int_equal(etcd3_seat_granted(&f->seat, MUSTER_OK, &nameless, identity), NO_LEASE);
    assert_int_equal(f->seat.lost_status, MUSTER_EPROTOCOL);
}

static void lease_that_has_expired_is_lost(void **state) {
    struct fixture *f = *state;
    const struct etcd3_reply alive = {.ttl_s = TTL_S}, dead = {.ttl_s = 0};
    follow(f);
    assert_int_equal(etcd3_seat_beaten(&f->seat, MUSTER_OK, &alive), 0);
    assert_int_equal(etcd3_seat_beaten(&f->seat, MUSTER_OK, &dead), NO_LEASE);
    assert_int_equal(f->seat.lost_status, MUSTER_ECLOSED);
    assert_non_null(strstr(muster_detail(), "this node was given up"));
    assert_int_equal(get_lease(f), ETCD3_SEAT_BEAT | ETCD3_SEAT_STAND);
    assert_true(f->seat.has_reached); /* so etcd is waited for without end */
}

/* Whichever request finds it out: the same for the agent. */
static void write_without_a_lease_loses_it(void **state) {
    struct fixture *f = *state;
    follow(f);
    assert_int_equal(send(f, 0), ETCD3_SEAT_WRITE);
    assert_int_equal(etcd3_seat_written(&f->seat, MUSTER_ENOENT, true), NO_LEASE);
    assert_int_equal(f->seat.lost_status, MUSTER_ECLOSED);
    (void)get_lease(f);
    assert_int_equal(etcd3_seat_stood(&f->seat, MUSTER_ENOENT, NULL), NO_LEASE);
    assert_int_equal(f->seat.lost_status, MUSTER_ECLOSED);
}

static void other_trouble_is_told_as_it_is(void **state) {
    struct fixture *f = *state;
    follow(f);
    assert_int_equal(send(f, 0), ETCD3_SEAT_WRITE);
    assert_int_equal(etcd3_seat_written(&f->seat, MUSTER_ELIMIT, true), NO_LEASE);
    assert_int_equal(f->seat.lost_status, MUSTER_ELIMIT);
}

/* ---- leaders ---- */

static void leader_that_goes_is_followed_by_another(void **state) {
    struct fixture *f = *state;
    follow(f);
    fake_etcd_expire(&f->etcd, OTHERS_LEASE);
    assert_int_equal(hear_last(f), NO_LEADER);
    assert_int_equal(f->seat.lost_status, MUSTER_ECLOSED);
    (void)send(f, MUSTER_ECLOSED);
    assert_int_equal(etcd3_seat_want(&f->seat), ETCD3_SEAT_STAND); /* with the lease that it has */
    assert_int_equal(stand(f), ETCD3_SEAT_LEAD | ETCD3_SEAT_OPENED);
}

/* Its deletion and the next one's key come in one go, or the deletion was compacted away. */
static void leader_that_was_followed_already_is_lost(void **state) {
    struct fixture *f = *state;
    follow(f);
    fake_etcd_expire(&f->etcd, OTHERS_LEASE);
    lead_elsewhere(f);
    assert_int_equal(hear_last(f), NO_LEADER);
    assert_int_equal(etcd3_seat_want(&f->seat), ETCD3_SEAT_STAND);
    assert_int_equal(stand(f), ETCD3_SEAT_OPENED);
}

static void leader_that_writes_its_key_again_stays(void **state) {
    struct fixture *f = *state;
    follow(f);
    lead_elsewhere(f);
    assert_int_equal(hear_last(f), 0);
    assert_int_equal(f->seat.state, ETCD3_SEAT_OPEN);
}

/* The watch has told of a leader's end before the answer came that it leads. */
static void leader_that_went_meanwhile_is_not_followed(void **state) {
    struct fixture *f = *state;
    follow(f);
    fake_etcd_expire(&f->etcd, OTHERS_LEASE);
    (void)hear_last(f);
    lead_elsewhere(f);
    (void)etcd3_seat_want(&f->seat);
    const struct etcd3_pair leader = *fake_etcd_get(&f->etcd, kv_slice_text(f->seat.keys.leader));
    struct etcd3_pair pairs[1] = {leader};
    const struct etcd3_reply reply = {.revision = f->etcd.revision, .pairs = pairs, .pair_count = 1};
    fake_etcd_expire(&f->etcd, OTHERS_LEASE);
    assert_int_equal(hear_last(f), 0);
    assert_int_equal(etcd3_seat_stood(&f->seat, MUSTER_OK, &reply), ETCD3_SEAT_STAND); /* and no data are lost */
    assert_int_equal(stand(f), ETCD3_SEAT_LEAD | ETCD3_SEAT_OPENED);
}

static void own_leader_that_is_deposed_is_lost(void **state) {
    struct fixture *f = *state;
    (void)get_lease(f);
    (void)stand(f);
    assert_int_equal(etcd3_seat_deposed(&f->seat, MUSTER_ECLOSED), NO_LEADER);
    assert_false(f->seat.leads);
    (void)etcd3_seat_want(&f->seat);
    (void)stand(f);
    assert_int_equal(etcd3_seat_deposed(&f->seat, MUSTER_ENOMEM), NO_LEASE); /* that is not for standing again */
    assert_int_equal(f->seat.lost_status, MUSTER_ENOMEM);
}

static void answer_that_contradicts_itself_is_refused(void **state) {
    struct fixture *f = *state;
    const struct etcd3_reply reply = {.revision = 200};
    (void)get_lease(f);
    assert_int_equal(etcd3_seat_stood(&f->seat, MUSTER_OK, &reply), NO_LEASE);
    assert_int_equal(f->seat.lost_status, MUSTER_EPROTOCOL);
}

/* ---- etcd forgets ---- */

static void compacted_history_is_read_anew(void **state) {
    struct fixture *f = *state;
    struct etcd3_reply reply;
    struct buf value;
    follow(f);
    put_letter(&value, f->seat.epoch, 2, 1);
    fake_etcd_put(&f->etcd, kv_slice_text(f->seat.keys.to), kv_slice_of(buf_bytes(&value), value.len), OTHERS_LEASE);
    buf_done(&value);
    assert_int_equal(etcd3_seat_miss(&f->seat), ETCD3_SEAT_LOOK);
    assert_int_equal(look(f, &reply), ETCD3_SEAT_WATCH);
    assert_int_equal(f->seat.watch_revision, reply.revision + 1);
    assert_int_equal(reply.pair_count, 1);
    struct etcd3_letter letter;
    assert_int_equal(hear(f, &reply.pairs[0], &letter), 0);
    assert_true(letter.frames.len > 0);
    etcd3_reply_done(&reply);
}

static void compacted_history_may_have_lost_the_leader(void **state) {
    struct fixture *f = *state;
    struct etcd3_reply reply;
    follow(f);
    fake_etcd_expire(&f->etcd, OTHERS_LEASE);
    assert_int_equal(etcd3_seat_miss(&f->seat), ETCD3_SEAT_LOOK);
    assert_int_equal(look(f, &reply), ETCD3_SEAT_WATCH | NO_LEADER);
    etcd3_reply_done(&reply);
    assert_int_equal(etcd3_seat_want(&f->seat), ETCD3_SEAT_STAND);
    assert_int_equal(etcd3_seat_miss(&f->seat), 0); /* once more: the answer to STAND will say it */
    assert_int_equal(stand(f), ETCD3_SEAT_WATCH | ETCD3_SEAT_LEAD | ETCD3_SEAT_OPENED);
}

/* The revision goes backwards: all that was known of leaders is void, and it is said. */
static void lost_data_begin_anew(void **state) {
    struct fixture *f = *state;
    const struct etcd3_reply dead = {.ttl_s = 0};
    follow(f);
    fake_etcd_expire(&f->etcd, OTHERS_LEASE);
    (void)hear_last(f);
    fake_etcd_end(&f->etcd);
    fake_etcd_begin(&f->etcd, 3);
    assert_int_equal(etcd3_seat_beaten(&f->seat, MUSTER_OK, &dead) & ETCD3_SEAT_DROP_LEASE, ETCD3_SEAT_DROP_LEASE);
    assert_int_equal(get_lease(f), ETCD3_SEAT_BEAT | ETCD3_SEAT_STAND);
    int64_t before = f->seat.last_revision;
    assert_int_equal(stand(f), ETCD3_SEAT_WARN | ETCD3_SEAT_WATCH | ETCD3_SEAT_LEAD | ETCD3_SEAT_OPENED);
    assert_int_equal(f->seat.epoch, 4);
    assert_int_equal(f->seat.last_revision, 4);
    assert_int_equal(f->seat.former_revision, before);
}

static void watch_that_fails_for_good_is_told(void **state) {
    struct fixture *f = *state;
    follow(f);
    assert_int_equal(etcd3_seat_break(&f->seat, MUSTER_EINVAL), NO_LEASE);
    assert_int_equal(f->seat.lost_status, MUSTER_EINVAL);
}

/* ---- letters ---- */

static void letters_are_heard_once(void **state) {
    struct fixture *f = *state;
    unsigned actions;
    follow(f);
    assert_int_equal(hear_letter(f, f->seat.epoch, 2, 1, &actions), 2);
    assert_int_equal(hear_letter(f, f->seat.epoch, 3, 1, &actions), 1);
    assert_int_equal(hear_letter(f, f->seat.epoch - 1, 9, 1, &actions), 0); /* an earlier leader's */
}

static void letter_that_skips_messages_is_refused(void **state) {
    struct fixture *f = *state;
    unsigned actions;
    follow(f);
    assert_int_equal(hear_letter(f, f->seat.epoch, 1, 3, &actions), -1);
    assert_int_equal(actions, NO_LEASE);
    assert_int_equal(f->seat.lost_status, MUSTER_EPROTOCOL);
    assert_non_null(strstr(muster_detail(), f->seat.keys.to));
}

/* The agent gives its place up over the first of two messages. */
static void nothing_is_heard_after_the_end(void **state) {
    struct fixture *f = *state;
    struct coordinator_message message;
    struct etcd3_letter letter;
    struct buf value;
    unsigned actions;
    follow(f);
    put_letter(&value, f->seat.epoch, 2, 1);
    const struct etcd3_pair pair = {.key = kv_slice_text(f->seat.keys.to),
                                    .value = kv_slice_of(buf_bytes(&value), value.len)};
    assert_int_equal(hear(f, &pair, &letter), 0);
    assert_true(etcd3_seat_next(&f->seat, &letter, &message, &actions));
    assert_int_equal(etcd3_seat_end(&f->seat, true), GIVEN_BACK);
    assert_false(etcd3_seat_next(&f->seat, &letter, &message, &actions));
    assert_int_equal(actions, 0);
    buf_done(&value);
}

static void what_is_said_while_writing_is_written_next(void **state) {
    struct fixture *f = *state;
    follow(f);
    assert_int_equal(send(f, 0), ETCD3_SEAT_WRITE);
    assert_int_equal(send(f, 0), 0);
    assert_int_equal(send(f, 0), 0);
    assert_int_equal(etcd3_seat_written(&f->seat, MUSTER_OK, true), ETCD3_SEAT_WRITE); /* both at once */
    assert_int_equal(etcd3_seat_written(&f->seat, MUSTER_OK, true), 0);
    assert_int_equal(send(f, 0), ETCD3_SEAT_WRITE);
}

/* ---- the end ---- */

static void last_letter_is_written_first(void **state) {
    struct fixture *f = *state;
    follow(f);
    assert_int_equal(send(f, 0), ETCD3_SEAT_WRITE);
    assert_int_equal(etcd3_seat_end(&f->seat, true), ETCD3_SEAT_LINGER);
    assert_int_equal(f->seat.linger_ms, ETCD3_LINGER_MAX_MS);
    assert_int_equal(etcd3_seat_written(&f->seat, MUSTER_OK, true), GIVEN_BACK);
    assert_int_equal(f->seat.lease_id, LEASE); /* to be given back */
    assert_int_equal(etcd3_seat_revoked(&f->seat), OVER);
}

static void leader_stays_until_the_others_have_heard(void **state) {
    struct fixture *f = *state;
    (void)get_lease(f);
    (void)stand(f);
    assert_int_equal(etcd3_seat_end(&f->seat, false), ETCD3_SEAT_LINGER);
    assert_int_equal(etcd3_seat_quiet(&f->seat), GIVEN_BACK);
}

static void nobody_is_waited_for_too_long(void **state) {
    struct fixture *f = *state;
    (void)get_lease(f);
    (void)stand(f);
    (void)etcd3_seat_end(&f->seat, false);
    assert_int_equal(etcd3_seat_lingered(&f->seat), GIVEN_BACK);
    assert_int_equal(etcd3_seat_break(&f->seat, MUSTER_ENOMEM), OVER); /* it cannot even be given back */
}

static void end_is_never_lost(void **state) {
    struct fixture *f = *state;
    const struct etcd3_reply dead = {.ttl_s = 0};
    follow(f);
    (void)send(f, 0);
    (void)etcd3_seat_end(&f->seat, true);
    fake_etcd_expire(&f->etcd, OTHERS_LEASE);
    assert_int_equal(hear_last(f), 0); /* who would have heard it is gone */
    assert_int_equal(etcd3_seat_beaten(&f->seat, MUSTER_OK, &dead), OVER);
}

static void end_without_a_lease_comes_from_the_loop(void **state) {
    struct fixture *f = *state;
    (void)etcd3_seat_want(&f->seat);
    assert_int_equal(etcd3_seat_end(&f->seat, true),
                     ETCD3_SEAT_DROP_LEADER | ETCD3_SEAT_DROP_LEASE | ETCD3_SEAT_LINGER);
    assert_int_equal(f->seat.linger_ms, 0);
    assert_int_equal(etcd3_seat_lingered(&f->seat), OVER);
}

/* ---- names ---- */

static void slashes_in_a_run_id_are_escaped(void **state) {
    struct etcd3_keys keys;
    char long_id[ETCD3_ROOT_MAX + 1];
    (void)state;
    assert_int_equal(etcd3_keys_init(&keys, "/muster", "a/b%c"), 0);
    assert_string_equal(keys.leader, "/muster/a%2Fb%25c/leader");
    memset(long_id, '/', sizeof long_id - 1);
    long_id[sizeof long_id - 1] = '\0';
    assert_int_equal(etcd3_keys_init(&keys, "/muster", long_id), MUSTER_EINVAL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(first_to_come_leads, setup, teardown),
        cmocka_unit_test_setup_teardown(standing_twice_finds_its_own_key, setup, teardown),
        cmocka_unit_test_setup_teardown(short_lease_is_renewed_in_time, setup, teardown),
        cmocka_unit_test_setup_teardown(lease_that_is_not_granted_is_lost, setup, teardown),
        cmocka_unit_test_setup_teardown(lease_that_has_expired_is_lost, setup, teardown),
        cmocka_unit_test_setup_teardown(write_without_a_lease_loses_it, setup, teardown),
        cmocka_unit_test_setup_teardown(other_trouble_is_told_as_it_is, setup, teardown),
        cmocka_unit_test_setup_teardown(leader_that_goes_is_followed_by_another, setup, teardown),
        cmocka_unit_test_setup_teardown(leader_that_was_followed_already_is_lost, setup, teardown),
        cmocka_unit_test_setup_teardown(leader_that_writes_its_key_again_stays, setup, teardown),
        cmocka_unit_test_setup_teardown(leader_that_went_meanwhile_is_not_followed, setup, teardown),
        cmocka_unit_test_setup_teardown(own_leader_that_is_deposed_is_lost, setup, teardown),
        cmocka_unit_test_setup_teardown(answer_that_contradicts_itself_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(compacted_history_is_read_anew, setup, teardown),
        cmocka_unit_test_setup_teardown(compacted_history_may_have_lost_the_leader, setup, teardown),
        cmocka_unit_test_setup_teardown(lost_data_begin_anew, setup, teardown),
        cmocka_unit_test_setup_teardown(watch_that_fails_for_good_is_told, setup, teardown),
        cmocka_unit_test_setup_teardown(letters_are_heard_once, setup, teardown),
        cmocka_unit_test_setup_teardown(letter_that_skips_messages_is_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(nothing_is_heard_after_the_end, setup, teardown),
        cmocka_unit_test_setup_teardown(what_is_said_while_writing_is_written_next, setup, teardown),
        cmocka_unit_test_setup_teardown(last_letter_is_written_first, setup, teardown),
        cmocka_unit_test_setup_teardown(leader_stays_until_the_others_have_heard, setup, teardown),
        cmocka_unit_test_setup_teardown(nobody_is_waited_for_too_long, setup, teardown),
        cmocka_unit_test_setup_teardown(end_is_never_lost, setup, teardown),
        cmocka_unit_test_setup_teardown(end_without_a_lease_comes_from_the_loop, setup, teardown),
        cmocka_unit_test_setup_teardown(slashes_in_a_run_id_are_escaped, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
