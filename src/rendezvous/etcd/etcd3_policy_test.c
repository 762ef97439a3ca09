/* Which etcd is asked, what its answers mean, and when it is asked again: tables. */
#include "rendezvous/etcd/etcd3_policy.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

#include "base/str.h"

#define URL "http://a:2379"

/* ---- endpoints ---- */

static void endpoints_have_the_port_of_etcd(void **state) {
    struct net_url_list endpoints;
    (void)state;
    assert_int_equal(etcd3_endpoints_read(&endpoints, "a,https://b:7"), 0);
    assert_int_equal(endpoints.turn.count, 2);
    assert_string_equal(endpoints.urls[0], "http://a:2379");
    assert_string_equal(endpoints.urls[1], "https://b:7");
}

static void endpoints_that_are_none_are_refused(void **state) {
    struct net_url_list endpoints;
    (void)state;
    assert_int_equal(etcd3_endpoints_read(&endpoints, "ftp://a"), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "--rdzv-endpoint=ftp://a"));
}

/* ---- answers ---- */

static void errors_of_etcd_are_told_apart(void **state) {
    static const struct {
        int error;
        const char *text;
        enum etcd3_verdict verdict;
        int status;
        const char *words;
    } rows[] = {
        {ETCD3_UNAUTHENTICATED, "etcdserver: invalid auth token", ETCD3_RENEW, MUSTER_EINVAL, "invalid auth token"},
        {ETCD3_UNKNOWN, "auth: revision of auth store is old", ETCD3_RENEW, MUSTER_EINVAL, "auth store"},
        {ETCD3_NOT_FOUND, "etcdserver: requested lease not found", ETCD3_FINAL, MUSTER_ENOENT, "lease not found"},
        {ETCD3_RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", ETCD3_FINAL, MUSTER_ELIMIT,
         "etcdctl alarm disarm"},
        {ETCD3_RESOURCE_EXHAUSTED, "etcdserver: too many requests", ETCD3_ELSEWHERE, MUSTER_ECONNECT, "too many"},
        {ETCD3_INVALID_ARGUMENT, "etcdserver: user name is empty", ETCD3_FINAL, MUSTER_EINVAL, "user=NAME"},
        {ETCD3_PERMISSION_DENIED, "etcdserver: permission denied", ETCD3_FINAL, MUSTER_EINVAL, "grant the user's role"},
        {ETCD3_INVALID_ARGUMENT, "etcdserver: authentication failed, invalid user ID or password", ETCD3_FINAL,
         MUSTER_EINVAL, "invalid user ID"},
        {ETCD3_INVALID_ARGUMENT, "etcdserver: key is not provided", ETCD3_FINAL, MUSTER_EPROTOCOL, "refuses a request"},
        {ETCD3_UNAVAILABLE, "etcdserver: no leader", ETCD3_ELSEWHERE, MUSTER_ECONNECT, "no leader"},
        {999, "what no etcd says today", ETCD3_ELSEWHERE, MUSTER_ECONNECT, "today"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct etcd3_reply reply = {.error = rows[i].error};
        int status = 0;
        (void)str_copy(reply.error_text, sizeof reply.error_text, rows[i].text);
        assert_int_equal(etcd3_judge_reply(URL, true, &reply, &status), rows[i].verdict);
        assert_int_equal(status, rows[i].status);
        assert_non_null(strstr(muster_detail(), rows[i].words));
        assert_non_null(strstr(muster_detail(), URL));
    }
}

static void without_a_user_no_token_can_be_renewed(void **state) {
    const struct etcd3_reply reply = {.error = ETCD3_UNAUTHENTICATED, .error_text = "invalid auth token"};
    int status = 0;
    (void)state;
    assert_int_equal(etcd3_judge_reply(URL, false, &reply, &status), ETCD3_FINAL);
    assert_int_equal(status, MUSTER_EINVAL);
}

static enum etcd3_verdict judge(int failure, long code, const char *body, int *status) {
    struct etcd3_reply reply = {.error = 0};
    enum etcd3_verdict verdict = etcd3_judge_answer(URL, failure, code, kv_slice_text(body), &reply, status);
    etcd3_reply_done(&reply);
    return verdict;
}

static void what_is_no_answer_of_etcds_is_told_apart(void **state) {
    int status;
    (void)state;
    assert_int_equal(judge(0, 200, "{\"header\":{\"revision\":\"7\"}}", &status), ETCD3_FINE);
    assert_int_equal(judge(0, 503, "{\"error\":\"no leader\",\"code\":14}", &status), ETCD3_FINE); /* etcd's word */
    assert_int_equal(judge(0, 404, "<html>", &status), ETCD3_STRANGE);
    assert_int_equal(status, MUSTER_EPROTOCOL);
    assert_non_null(strstr(muster_detail(), "is no etcd of version 3.4 or later (HTTP 404"));
    assert_int_equal(judge(0, 502, "<html>", &status), ETCD3_ELSEWHERE);
    assert_int_equal(judge(0, 400, "CommonName of client sending a request against gateway", &status), ETCD3_FINAL);
    assert_int_equal(status, MUSTER_EINVAL);
}

static void what_the_network_says_is_told_apart(void **state) {
    int status;
    (void)state;
    assert_int_equal(judge(MUSTER_ECONNECT, 0, "", &status), ETCD3_ELSEWHERE);
    assert_int_equal(judge(MUSTER_ETIMEOUT, 0, "", &status), ETCD3_ELSEWHERE);
    assert_int_equal(judge(MUSTER_ERESOLVE, 0, "", &status), ETCD3_ELSEWHERE);
    assert_int_equal(judge(MUSTER_EPROTOCOL, 0, "", &status), ETCD3_STRANGE);
    assert_int_equal(judge(MUSTER_EINVAL, 0, "", &status), ETCD3_FINAL); /* a certificate's file */
    assert_int_equal(judge(MUSTER_ELIMIT, 0, "", &status), ETCD3_FINAL);
    assert_int_equal(status, MUSTER_ELIMIT);
}

/* ---- asking again ---- */

static void all_endpoints_are_asked_before_a_pause(void **state) {
    struct etcd3_tries tries = {.deadline_ms = UINT64_MAX};
    static const uint64_t pauses[] = {0, 0, 100, 0, 0, 200, 0, 0, 400, 0, 0, 800, 0, 0, 1000, 0, 0, 1000};
    uint64_t pause_ms;
    (void)state;
    for (size_t i = 0; i < sizeof pauses / sizeof *pauses; i++) {
        assert_int_equal(etcd3_tries_next(&tries, ETCD3_ELSEWHERE, 3, i, &pause_ms), ETCD3_ASK_AGAIN);
        assert_int_equal(pause_ms, pauses[i]);
    }
    etcd3_tries_answered(&tries); /* begins anew */
    (void)etcd3_tries_next(&tries, ETCD3_ELSEWHERE, 3, 0, &pause_ms);
    (void)etcd3_tries_next(&tries, ETCD3_ELSEWHERE, 3, 0, &pause_ms);
    (void)etcd3_tries_next(&tries, ETCD3_ELSEWHERE, 3, 0, &pause_ms);
    assert_int_equal(pause_ms, 100);
}

static void dead_endpoints_are_asked_until_the_deadline(void **state) {
    struct etcd3_tries tries = {.deadline_ms = 1000};
    uint64_t pause_ms;
    (void)state;
    assert_int_equal(etcd3_tries_next(&tries, ETCD3_ELSEWHERE, 2, 999, &pause_ms), ETCD3_ASK_AGAIN);
    assert_false(etcd3_tries_is_late(&tries, 999));
    assert_int_equal(etcd3_tries_next(&tries, ETCD3_ELSEWHERE, 2, 1000, &pause_ms), ETCD3_TOO_LATE);
    assert_true(etcd3_tries_is_late(&tries, 1000));
}

static void strangers_alone_are_given_up(void **state) {
    struct etcd3_tries tries = {.deadline_ms = UINT64_MAX};
    uint64_t pause_ms;
    (void)state;
    assert_int_equal(etcd3_tries_next(&tries, ETCD3_STRANGE, 2, 0, &pause_ms), ETCD3_ASK_AGAIN);
    assert_int_equal(etcd3_tries_next(&tries, ETCD3_ELSEWHERE, 2, 0, &pause_ms), ETCD3_ASK_AGAIN);
    assert_int_equal(etcd3_tries_next(&tries, ETCD3_STRANGE, 2, 0, &pause_ms), ETCD3_GIVE_UP);
}

static void token_is_renewed_a_few_times(void **state) {
    struct etcd3_tries tries = {.deadline_ms = UINT64_MAX};
    uint64_t pause_ms;
    (void)state;
    for (int i = 0; i < 3; i++) {
        assert_int_equal(etcd3_tries_next(&tries, ETCD3_RENEW, 1, 0, &pause_ms), ETCD3_GET_TOKEN);
    }
    assert_int_equal(etcd3_tries_next(&tries, ETCD3_RENEW, 1, 0, &pause_ms), ETCD3_GIVE_UP);
    etcd3_tries_answered(&tries);
    assert_int_equal(etcd3_tries_next(&tries, ETCD3_RENEW, 1, 0, &pause_ms), ETCD3_GET_TOKEN);
    assert_int_equal(etcd3_tries_next(&tries, ETCD3_FINAL, 1, 0, &pause_ms), ETCD3_GIVE_UP);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(endpoints_have_the_port_of_etcd),
        cmocka_unit_test(endpoints_that_are_none_are_refused),
        cmocka_unit_test(errors_of_etcd_are_told_apart),
        cmocka_unit_test(without_a_user_no_token_can_be_renewed),
        cmocka_unit_test(what_is_no_answer_of_etcds_is_told_apart),
        cmocka_unit_test(what_the_network_says_is_told_apart),
        cmocka_unit_test(all_endpoints_are_asked_before_a_pause),
        cmocka_unit_test(dead_endpoints_are_asked_until_the_deadline),
        cmocka_unit_test(strangers_alone_are_given_up),
        cmocka_unit_test(token_is_renewed_a_few_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
