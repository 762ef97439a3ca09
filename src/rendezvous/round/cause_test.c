/* The record of a failure: there and back, and shortened to what a message takes. */
#include "rendezvous/round/cause.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
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

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(there_and_back),
        cmocka_unit_test(last_words_lose_their_beginning),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
