/* TLS that is set up wrongly on one rank: all ranks learn why, none waits for the time-out. */
#include <muster/group.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "comm/group/ranks_test_support.h"
#include "net/tls_test_support.h"

enum { SIZE = 2, WRONG = 1, MARK_OVER = 1, TIMEOUT_MS = 8000 };

/* The wrong rank's key is another certificate's: it knows at once, and who would connect to it hears of it. All go on
 * living, so that nobody learns it from a death. */
static int meet_with_a_wrong_key(struct rank *rank, void *argument) {
    struct tls_files files = tls_test_member(&tls_test_files);
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    struct muster_group *group = NULL;
    (void)argument;
    files.key = rank->rank == WRONG ? tls_test_stranger(&tls_test_files).key : files.key;
    rank_check(rank, setenv("MUSTER_TLS_CERT", files.certificate, 1) == 0);
    rank_check(rank, setenv("MUSTER_TLS_KEY", files.key, 1) == 0);
    rank_check(rank, setenv("MUSTER_TLS_CA", files.authority, 1) == 0);
    options.timeout_ms = TIMEOUT_MS;
    int code = muster_group_create_store(rank_store(rank), rank->rank, rank->size, &options, &group);
    rank_report(rank, muster_detail());
    rank_check(rank, code != 0 && code != MUSTER_ETIMEOUT);
    rank_mark(rank, MARK_OVER);
    rank_await_signal(rank, 1);
    return 0;
}

static void a_key_that_does_not_match_is_told_to_all(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(SIZE, meet_with_a_wrong_key, NULL, &(struct ranks_options){.ranks_per_host = 1});
    ranks_await_all(ranks, MARK_OVER);
    ranks_signal(ranks, 1);
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        assert_int_equal(ranks_wait(ranks, rank), 0);
        assert_non_null(strstr(ranks_report(ranks, rank), "TLS: "));
        assert_true(rank == WRONG || strstr(ranks_report(ranks, rank), "rank 1"));
    }
    ranks_free(ranks);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_that_does_not_match_is_told_to_all),
    };
    return cmocka_run_group_tests(tests, tls_test_begin, tls_test_end);
}
