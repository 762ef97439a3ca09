/* The record of a failure: there and back, and shortened to what a message takes. */
#include "rendezvous/round/cause.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

static const struct rdzv_cause cause = {.host = "b",
                                        .rank = 3,
                                        .local_rank = 1,
                                        .pid = 77,
                                        .wait_status = 9 << 8,
                                        .is_told = true,
                                        .how = "exited with code 9",
                                        .words = "one\ntwo\n"};

static void there_and_back(void **state) {
    struct rdzv_cause read;
    char *text = rdzv_cause_write_within(&cause, 4096), *whole = rdzv_cause_write(&cause);
    (void)state;
    assert_string_equal(text, whole);
    assert_int_equal(rdzv_cause_read(text, strlen(text), &read), MUSTER_OK);
    assert_int_equal(read.rank, 3);
    assert_true(read.is_told);
    assert_false(read.is_final);
    assert_string_equal(read.words, "one\ntwo\n");
    free(text);
    free(whole);
}

/* Each of these characters takes six bytes in the record. What was said last is kept. */
static void last_words_lose_their_beginning(void **state) {
    enum { BYTES_MAX = 4096 };
    struct rdzv_cause said = cause, read;
    (void)state;
    size_t len = 0;
    while (len + 8 < sizeof said.words) {
        memcpy(said.words + len, "\xe2\x82\xac", 3);
        len += 3;
    }
    memcpy(said.words + len, "end", 4);
    char *text = rdzv_cause_write_within(&said, BYTES_MAX);
    assert_non_null(text);
    assert_true(strlen(text) <= BYTES_MAX);
    assert_int_equal(rdzv_cause_read(text, strlen(text), &read), MUSTER_OK);
    assert_memory_equal(read.words, "\xe2\x82\xac", 3);
    assert_string_equal(read.words + strlen(read.words) - 3, "end");
    free(text);
    text = rdzv_cause_write_within(&said, 1); /* without any */
    assert_int_equal(rdzv_cause_read(text, strlen(text), &read), MUSTER_OK);
    assert_string_equal(read.words, "");
    free(text);
}

static int64_t age_in(const char *age) {
    struct rdzv_cause read;
    char text[512];
    int len = snprintf(text, sizeof text,
                       "{\"host\":\"b\",\"rank\":3,\"local_rank\":1,\"pid\":77,\"wait_status\":9,\"time\":1,"
                       "\"final\":true,\"told\":true,\"how\":\"\",\"words\":\"\"%s}",
                       age);
    assert_int_equal(rdzv_cause_read(text, (size_t)len, &read), MUSTER_OK);
    assert_int_equal(read.rank, 3);
    return read.age_us;
}

/* Of an older agent, and of one that makes no sense: the record counts, its age does not. */
static void age_may_be_missing_or_nonsense(void **state) {
    static const char *const unknown[] = {"",
                                          ",\"age_us\":-5",
                                          ",\"age_us\":\"7\"",
                                          ",\"age_us\":1.5",
                                          ",\"age_us\":null",
                                          ",\"age_us\":3600000001",
                                          ",\"age_us\":9223372036854775807"};
    struct rdzv_cause said = cause, read;
    (void)state;
    for (size_t i = 0; i < sizeof unknown / sizeof *unknown; i++) {
        assert_true(age_in(unknown[i]) < 0);
    }
    assert_int_equal(age_in(",\"age_us\":0"), 0);
    assert_int_equal(age_in(",\"age_us\":3600000000"), 3600000000);
    for (said.age_us = -1; said.age_us <= 15000; said.age_us += 15001) {
        char *text = rdzv_cause_write(&said);
        assert_int_equal(strstr(text, "age_us") != NULL, said.age_us >= 0);
        assert_int_equal(rdzv_cause_read(text, strlen(text), &read), MUSTER_OK);
        assert_int_equal(read.age_us, said.age_us);
        free(text);
    }
}

/* Four milliseconds are no difference, five are. */
static void older_death_is_the_cause(void **state) {
    const struct rdzv_death first = {.is_known = true, .at_ms = 1000}, unknown = {.at_ms = 0};
    struct rdzv_cause told = {.age_us = 4900};
    struct rdzv_death death = rdzv_cause_death(&told, 1000);
    (void)state;
    assert_int_equal(death.at_ms, 996);
    assert_false(rdzv_death_is_older(&death, &first));
    told.age_us = 5000;
    death = rdzv_cause_death(&told, 1000);
    assert_true(rdzv_death_is_older(&death, &first));
    assert_false(rdzv_death_is_older(&first, &death));
    assert_false(rdzv_death_is_older(&unknown, &first));
    assert_false(rdzv_death_is_older(&first, &unknown));
    told.age_us = -1;
    assert_false(rdzv_cause_death(&told, 1000).is_known);
}

/* A rank of libmuster ends within a millisecond of the one by which it fails, and its node may speak first. */
static void victim_is_not_the_cause(void **state) {
    struct rdzv_cause victim = cause, culprit = cause, read;
    (void)state;
    victim.is_victim = true;
    victim.age_us = 60000;
    culprit.age_us = 1000;
    char *text = rdzv_cause_write(&victim);
    assert_int_equal(rdzv_cause_read(text, strlen(text), &read), MUSTER_OK);
    free(text);
    assert_true(read.is_victim);
    struct rdzv_death first = rdzv_cause_death(&read, 1000), death = rdzv_cause_death(&culprit, 1000);
    assert_true(rdzv_death_is_older(&death, &first));
    assert_false(rdzv_death_is_older(&first, &death));
    culprit.age_us = -1;
    death = rdzv_cause_death(&culprit, 1000);
    assert_true(rdzv_death_is_older(&death, &first));
}

static void who_is_killed_at_the_same_moment_is_the_cause(void **state) {
    struct rdzv_cause raised = {.wait_status = 1 << 8, .age_us = 100000}, killed = {.wait_status = SIGKILL};
    struct rdzv_death first = rdzv_cause_death(&raised, 1000), death = rdzv_cause_death(&killed, 1000);
    (void)state;
    assert_true(rdzv_death_is_older(&death, &first));
    assert_false(rdzv_death_is_older(&first, &death));
    raised.age_us = 101000;
    first = rdzv_cause_death(&raised, 1000);
    assert_false(rdzv_death_is_older(&death, &first));
    assert_true(rdzv_death_is_older(&first, &death));
    /* Of two that were killed it is the age that counts. */
    killed.age_us = 5000;
    const struct rdzv_death earlier = rdzv_cause_death(&killed, 1000);
    assert_true(rdzv_death_is_older(&earlier, &death));
    assert_false(rdzv_death_is_older(&death, &earlier));
    assert_true(rdzv_cause_early_ms(SIGSEGV) < rdzv_cause_early_ms(SIGKILL));
    assert_int_equal(rdzv_cause_early_ms(SIGABRT), 0);
    assert_int_equal(rdzv_cause_early_ms(SIGTERM), 0);
    assert_int_equal(rdzv_cause_early_ms(9 << 8), 0);
}

static void of_two_records_of_one_death_the_older_counts(void **state) {
    const struct rdzv_death earlier = {.is_known = true, .at_ms = 990}, later = {.is_known = true, .at_ms = 1010};
    const struct rdzv_death unknown = {.at_ms = 0};
    struct rdzv_death death = {.is_known = true, .at_ms = 1000};
    (void)state;
    rdzv_death_refine(&death, &later);
    rdzv_death_refine(&death, &unknown);
    assert_int_equal(death.at_ms, 1000);
    rdzv_death_refine(&death, &earlier);
    assert_int_equal(death.at_ms, 990);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back),
        cmocka_unit_test(age_may_be_missing_or_nonsense),
        cmocka_unit_test(last_words_lose_their_beginning),
        cmocka_unit_test(older_death_is_the_cause),
        cmocka_unit_test(victim_is_not_the_cause),
        cmocka_unit_test(who_is_killed_at_the_same_moment_is_the_cause),
        cmocka_unit_test(of_two_records_of_one_death_the_older_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
