/* The list of a host's processes: who watches whom, what is read of it, and the alarm. */
#include "comm/context/roster.h"

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/status.h>

enum { MOST = 1024, WATCHED_MAX = 8 };

static struct roster *make_roster(uint32_t count) {
    struct roster *roster = aligned_alloc(64, roster_bytes(count));
    assert_non_null(roster);
    memset(roster, 0, roster_bytes(count));
    return roster;
}

static void on_small_hosts_everybody_watches_everybody(void **state) {
    (void)state;
    for (uint32_t count = 1; count <= ROSTER_SMALL; count++) {
        for (uint32_t local = 0; local < count; local++) {
            uint32_t watched[ROSTER_SMALL];
            uint64_t seen = 0;
            assert_int_equal(roster_watched(local, count, watched), count - 1);
            for (uint32_t i = 0; i < count - 1; i++) {
                seen |= UINT64_C(1) << watched[i];
            }
            assert_true(seen == (((UINT64_C(1) << count) - 1) & ~(UINT64_C(1) << local)));
        }
    }
}

/* A few each, however many they are; the next one among them; and each is watched by as many as it watches. */
static void on_large_hosts_a_few_watch_each(void **state) {
    (void)state;
    static const uint32_t counts[] = {ROSTER_SMALL + 1, 64, 65, 100, 513, MOST};
    for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
        uint32_t times[MOST] = {0}, most = 0;
        for (uint32_t local = 0; local < counts[c]; local++) {
            uint32_t watched[ROSTER_SMALL];
            most = roster_watched(local, counts[c], watched);
            assert_in_range(most, 2, WATCHED_MAX);
            assert_int_equal(watched[0], (local + 1) % counts[c]);
            for (uint32_t i = 0; i < most; i++) {
                assert_int_not_equal(watched[i], local);
                times[watched[i]]++;
            }
        }
        for (uint32_t local = 0; local < counts[c]; local++) {
            assert_int_equal(times[local], most);
        }
    }
}

static void what_the_first_has_put_down_the_others_read(void **state) {
    (void)state;
    struct bootstrap_local first[3] = {{.rank = 2, .pid = 7, .start_time = 70},
                                       {.rank = 5, .pid = (int32_t)getpid(), .start_time = 71},
                                       {.rank = 6, .pid = 9, .start_time = 72}};
    struct bootstrap_local own[3] = {{.rank = 2}, {.rank = 5}, {.rank = 6}};
    struct bootstrap bootstrap = {.locals = own, .local_count = 3, .local = 1};
    struct roster *roster = make_roster(3);
    roster_fill(roster, first, 3);
    assert_int_equal(roster_read(roster, &bootstrap), 0);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(own[i].pid, first[i].pid);
        assert_int_equal(own[i].start_time, first[i].start_time);
    }
    bootstrap.local = 2; /* another process has come in this one's place */
    assert_int_equal(roster_read(roster, &bootstrap), MUSTER_EPROTOCOL);
    free(roster);
}

static void an_end_keeps_its_status(void **state) {
    (void)state;
    static const int statuses[] = {0, 9, 3 << 8, -1};
    struct roster *roster = make_roster(5);
    int status = 0;
    for (uint32_t i = 0; i < 4; i++) {
        roster_note_end(roster, i, statuses[i]);
        assert_true(roster_has_ended(roster, i, &status));
        assert_int_equal(status, statuses[i]);
    }
    assert_false(roster_has_ended(roster, 4, &status));
    free(roster);
}

static int watch(int fd) {
    int epoll = epoll_create1(0);
    struct epoll_event event = {.events = EPOLLIN | EPOLLET};
    assert_true(epoll >= 0);
    assert_int_equal(epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event), 0);
    return epoll;
}

static bool is_woken(int epoll) {
    struct epoll_event event;
    return epoll_wait(epoll, &event, 1, 0) == 1;
}

/* Also when it has never been emptied, and when it is full. */
static void each_alarm_wakes_everybody_once(void **state) {
    (void)state;
    enum { OPENERS = 3, ALARMS = 70000 /* more than a pipe holds */ };
    struct roster *roster = make_roster(OPENERS);
    struct roster_alarm alarms[OPENERS];
    int epolls[OPENERS];
    alarms[0] = roster_no_alarm();
    assert_int_equal(roster_alarm_create(roster, &alarms[0]), 0);
    for (int i = 1; i < OPENERS; i++) {
        alarms[i] = roster_no_alarm();
        assert_int_equal(roster_alarm_open(roster, (int32_t)getpid(), &alarms[i]), 0);
    }
    for (int i = 0; i < OPENERS; i++) {
        roster_alarm_seal(&alarms[i]);
        epolls[i] = watch(alarms[i].fd);
        assert_false(is_woken(epolls[i]));
    }
    for (int alarm = 0; alarm < ALARMS; alarm++) {
        roster_alarm_raise(&alarms[alarm % OPENERS]);
        for (int i = 0; i < OPENERS; i++) {
            assert_true(is_woken(epolls[i]));
            assert_false(is_woken(epolls[i]));
        }
    }
    for (int i = 0; i < OPENERS; i++) {
        (void)close(epolls[i]);
        roster_alarm_close(&alarms[i]);
        assert_int_equal(alarms[i].fd, -1);
    }
    assert_int_equal(roster_alarm_open(roster, (int32_t)getpid(), &alarms[0]), MUSTER_ESYSTEM);
    free(roster);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_small_hosts_everybody_watches_everybody),
        cmocka_unit_test(on_large_hosts_a_few_watch_each),
        cmocka_unit_test(what_the_first_has_put_down_the_others_read),
        cmocka_unit_test(an_end_keeps_its_status),
        cmocka_unit_test(each_alarm_wakes_everybody_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
