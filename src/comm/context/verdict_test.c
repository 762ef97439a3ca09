/* Verdicts: what was encoded is read back, and bytes that are none are refused. */
#include "comm/context/verdict.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"

enum { SIZE = 3 };

static void topologies_are_read_back(void **state) {
    (void)state;
    static const uint32_t tokens[SIZE] = {7, 0, 0xfffffffe};
    struct identity identities[SIZE];
    struct topology topology;
    struct verdict verdict;
    uint8_t *bytes = NULL;
    size_t len = 0;
    for (uint32_t rank = 0; rank < SIZE; rank++) {
        identity_of_this_process(&identities[rank]);
    }
    assert_int_equal(topology_compute(identities, SIZE, &topology), 0);
    assert_int_equal(verdict_encode_topology(&topology, tokens, &bytes, &len), 0);
    assert_int_equal(verdict_decode(bytes, len, SIZE, &verdict), 0);
    assert_int_equal(verdict.kind, VERDICT_TOPOLOGY);
    assert_memory_equal(verdict.tokens, tokens, sizeof tokens);
    assert_int_equal(verdict.topology.host_count, topology.host_count);
    verdict_done(&verdict);
    for (size_t cut = 0; cut < len; cut++) {
        uint8_t *part = malloc(cut + 1); /* so that a sanitizer sees what is read beyond it */
        assert_non_null(part);
        memcpy(part, bytes, cut);
        assert_int_equal(verdict_decode(part, cut, SIZE, &verdict), MUSTER_EPROTOCOL);
        free(part);
    }
    assert_int_equal(verdict_decode(bytes, len, SIZE + 1, &verdict), MUSTER_EPROTOCOL);
    topology_done(&topology);
    free(bytes);
}

static void failures_are_told(void **state) {
    (void)state;
    uint8_t bytes[VERDICT_FAILURE_BYTES_MAX];
    struct verdict verdict;
    struct muster_failure record = status_no_failure(), heard;
    record.rank = 2;
    record.pid = 4711;
    (void)snprintf(record.host, sizeof record.host, "a host");
    for (uint32_t rank = 2; rank < 2 + 2 * (MUSTER_FAILURE_RUNS_MAX + 1); rank += rank == 2 ? 1 : 2) {
        status_add_missing(&record, rank); /* 2 and 3 in a row, then every other one, and one more than are kept */
    }
    size_t len = verdict_encode_failure(MUSTER_ETIMEOUT, "nobody came", &record, bytes);
    assert_int_equal(verdict_decode(bytes, len, SIZE, &verdict), MUSTER_ETIMEOUT);
    assert_string_equal(muster_detail(), "rank 0: nobody came");
    heard = status_failure();
    assert_int_equal(heard.cause, MUSTER_ETIMEOUT);
    assert_true(heard.rank == 2 && heard.pid == 4711 && strcmp(heard.host, "a host") == 0);
    assert_int_equal(heard.missing_count, MUSTER_FAILURE_RUNS_MAX + 2);
    assert_int_equal(heard.run_count, MUSTER_FAILURE_RUNS_MAX);
    assert_memory_equal(heard.missing, record.missing, sizeof record.missing);
    assert_true(heard.missing[0].first == 2 && heard.missing[0].count == 2 && heard.missing[1].first == 5);
    size_t whole = len - strlen("nobody came");
    for (size_t cut = 1; cut < whole; cut++) {
        assert_int_equal(verdict_decode(bytes, cut, SIZE, &verdict), MUSTER_EPROTOCOL);
    }
    (void)verdict_encode_failure(0, "no failure", &record, bytes);
    assert_int_equal(verdict_decode(bytes, len, SIZE, &verdict), MUSTER_EPROTOCOL);
    bytes[0] = VERDICT_REPLACED;
    assert_int_equal(verdict_decode(bytes, 1, SIZE, &verdict), 0);
    assert_int_equal(verdict.kind, VERDICT_REPLACED);
    bytes[0] = VERDICT_REPLACED + 1;
    assert_int_equal(verdict_decode(bytes, len, SIZE, &verdict), MUSTER_EPROTOCOL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(topologies_are_read_back),
        cmocka_unit_test(failures_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
