/* What the kernel says of a connection, and since when its peer has been silent. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <linux/tcp.h>
#include <stdlib.h>

#include "base/clock.h"
#include "comm/p2p/p2p_impl.h"

static void what_was_sent_after_the_last_answer_is_unanswered(void **state) {
    (void)state;
    const struct {
        struct tcp_info info;
        bool is_unanswered;
    } cases[] = {
        {{.tcpi_last_ack_recv = 90000, .tcpi_last_data_sent = 90000}, false},                    /* nothing to answer */
        {{.tcpi_unacked = 3, .tcpi_last_ack_recv = 40, .tcpi_last_data_sent = 0}, true},         /* on its way */
        {{.tcpi_unacked = 3, .tcpi_last_ack_recv = 90000, .tcpi_last_data_sent = 20000}, true},  /* sent again */
        {{.tcpi_unacked = 3, .tcpi_last_ack_recv = 20000, .tcpi_last_data_sent = 20001}, false}, /* no room there */
        {{.tcpi_probes = 0, .tcpi_last_ack_recv = 90000, .tcpi_last_data_sent = 200000}, false}, /* closed window */
        {{.tcpi_probes = 1, .tcpi_last_ack_recv = 90000, .tcpi_last_data_sent = 200000}, true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(silence_is_unanswered(&cases[i].info), cases[i].is_unanswered);
    }
}

static int64_t since_ms(const struct tcp_info *info, int64_t since_ms, int64_t now_ms) {
    return silence_since_ns(info, since_ms * CLOCK_NS_PER_MS, now_ms * CLOCK_NS_PER_MS) / CLOCK_NS_PER_MS;
}

static void silence_begins_where_an_answer_is_missed(void **state) {
    (void)state;
    struct tcp_info probed = {.tcpi_probes = 1, .tcpi_last_ack_recv = 110000};
    assert_int_equal(since_ms(&probed, 0, 200000), 200000); /* the pause before the probe was no silence */
    probed.tcpi_last_ack_recv = 112000;
    assert_int_equal(since_ms(&probed, 200000, 202000), 200000);
    probed.tcpi_probes = 0;
    assert_int_equal(since_ms(&probed, 200000, 204000), 0);
    const struct tcp_info busy = {.tcpi_unacked = 40, .tcpi_last_ack_recv = 8, .tcpi_last_data_sent = 4};
    assert_int_equal(since_ms(&busy, 0, 200000), 200000);
    assert_int_equal(since_ms(&busy, 200000, 230000), 229992); /* answered in between */
}

static void the_kernel_is_to_send_again_soon(void **state) {
    (void)state;
    const struct {
        struct tcp_info info;
        int64_t silent_for_ms;
        uint32_t pause_ms;
    } cases[] = {
        {{.tcpi_unacked = 1, .tcpi_snd_wnd = 1, .tcpi_retransmits = 3}, 1500, 1000},
        {{.tcpi_unacked = 1, .tcpi_snd_wnd = 1, .tcpi_retransmits = 2}, 600, 0}, /* a packet was lost */
        {{.tcpi_unacked = 1, .tcpi_retransmits = 9}, 60000, 0},                  /* the window has shrunk */
        {{.tcpi_unacked = 0}, 0, 5000},                                          /* it is closed ... */
        {{.tcpi_unacked = 0, .tcpi_probes = 9}, 40000, 40000}, /* ... and nobody says so: 15 tries are to last */
        {{.tcpi_unacked = 0, .tcpi_probes = 9}, 400000, 120000},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(silence_pause_ms(&cases[i].info, cases[i].silent_for_ms * CLOCK_NS_PER_MS), cases[i].pause_ms);
    }
}

static void who_goes_on_alone_does_not_wait_for_long(void **state) {
    (void)state;
    const struct {
        const char *hold, *lost_key; /* NULL: not set */
        uint32_t lost_after_ms;
        const char *name;
    } cases[] = {{NULL, NULL, 180000, "MUSTER_HOLD_TIMEOUT"},
                 {"240", NULL, 240000, "MUSTER_HOLD_TIMEOUT"},
                 {"240", "", 240000, "MUSTER_HOLD_TIMEOUT"},
                 {NULL, "muster/lost/1", 30000, "--survivors=continue"},
                 {"2.5", "muster/lost/1", 2500, "MUSTER_HOLD_TIMEOUT"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct p2p_config config = {0};
        assert_int_equal(unsetenv("MUSTER_HOLD_TIMEOUT"), 0);
        assert_int_equal(unsetenv("MUSTER_LOST_KEY"), 0);
        assert_true(!cases[i].hold || setenv("MUSTER_HOLD_TIMEOUT", cases[i].hold, 1) == 0);
        assert_true(!cases[i].lost_key || setenv("MUSTER_LOST_KEY", cases[i].lost_key, 1) == 0);
        p2p_hold_from_env(&config);
        assert_int_equal(config.lost_after_ms, cases[i].lost_after_ms);
        assert_string_equal(config.lost_after_name, cases[i].name);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_sent_after_the_last_answer_is_unanswered),
        cmocka_unit_test(silence_begins_where_an_answer_is_missed),
        cmocka_unit_test(the_kernel_is_to_send_again_soon),
        cmocka_unit_test(who_goes_on_alone_does_not_wait_for_long),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
