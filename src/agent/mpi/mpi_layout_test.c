/* What nodes say of themselves, and the texts for PMI-1 and PMIx. */
#include "agent/mpi/mpi_layout.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

typedef int text_fn(const struct mpi_node *nodes, size_t count, struct buf *out);

static void expect_text(text_fn *text, const struct mpi_node *nodes, size_t count, const char *expected) {
    struct buf out;
    buf_init(&out, MPI_LAYOUT_TEXT_MAX);
    assert_int_equal(text(nodes, count, &out), 0);
    assert_int_equal(buf_append(&out, "", 1), 0);
    assert_string_equal((const char *)buf_bytes(&out), expected);
    buf_done(&out);
}

static void a_node_is_read_as_it_was_written(void **state) {
    (void)state;
    struct mpi_node node = {.base = 12, .count = 3, .token = 4000000000U}, again;
    char record[MPI_LAYOUT_RECORD_MAX];
    (void)snprintf(node.host, sizeof node.host, "rack1,n 7");
    mpi_node_write(&node, record);
    assert_string_equal(record, "12 3 4000000000 rack1-n-7");
    assert_true(mpi_node_read(record, strlen(record), &again));
    assert_int_equal(again.base, 12);
    assert_int_equal(again.count, 3);
    assert_int_equal(again.token, 4000000000U);
    assert_string_equal(again.host, "rack1-n-7");
}

static void the_longest_name_fits(void **state) {
    (void)state;
    struct mpi_node node = {.base = UINT32_MAX, .count = UINT32_MAX, .token = UINT32_MAX}, again;
    char record[MPI_LAYOUT_RECORD_MAX];
    memset(node.host, 'h', sizeof node.host - 1);
    mpi_node_write(&node, record);
    assert_true(mpi_node_read(record, strlen(record), &again));
    assert_string_equal(again.host, node.host);
}

static void what_is_no_node_is_refused(void **state) {
    (void)state;
    static const char *const texts[] = {
        "",          "1",        "1 2",       "1 2 3",     "1 2 3 ",          "x 2 3 h",
        "-1 2 3 h",  "1 x 3 h",  "1 2 x h",   "1 2 3 a b", "1 2 3 a,b",       "1 2 3 a;b",
        "1 2 3 a\n", "1  2 3 h", "1 2 3 a=b", "1 2 h",     "4294967296 1 3 h"};
    struct mpi_node node;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        assert_false(mpi_node_read(texts[i], strlen(texts[i]), &node));
    }
    assert_false(mpi_node_read("1 2 3 a\0b", 9, &node));
    char room[MPI_LAYOUT_RECORD_MAX + 1];
    memset(room, 'h', sizeof room);
    memcpy(room, "1 2 3 ", 6);
    assert_false(mpi_node_read(room, sizeof room, &node));
}

static void ranks_must_be_without_a_gap(void **state) {
    (void)state;
    struct mpi_node right[] = {{0, 3, 0, false, "a"}, {3, 1, 0, false, "b"}};
    struct mpi_node gap[] = {{0, 3, 0, false, "a"}, {4, 1, 0, false, "b"}};
    struct mpi_node empty[] = {{0, 4, 0, false, "a"}, {4, 0, 0, false, "b"}};
    struct mpi_node swapped[] = {{3, 1, 0, false, "a"}, {0, 3, 0, false, "b"}};
    assert_int_equal(mpi_layout_settle(right, 2, 4), 0);
    assert_int_equal(mpi_layout_settle(right, 2, 5), MUSTER_EPROTOCOL);
    assert_int_equal(mpi_layout_settle(gap, 2, 5), MUSTER_EPROTOCOL);
    assert_int_equal(mpi_layout_settle(empty, 2, 4), MUSTER_EPROTOCOL);
    assert_int_equal(mpi_layout_settle(swapped, 2, 4), MUSTER_EPROTOCOL);
}

static void agents_of_one_host_are_nodes_of_their_own(void **state) {
    (void)state;
    struct mpi_node nodes[] = {
        {0, 1, 0, false, "a"}, {1, 1, 0, false, "b"}, {2, 1, 0, false, "a"}, {3, 1, 0, false, "c"}};
    assert_int_equal(mpi_layout_settle(nodes, 4, 4), 0);
    expect_text(mpi_layout_hosts, nodes, 4, "a.0,b,a.2,c");
    assert_true(nodes[0].shares_host && nodes[2].shares_host);
    assert_false(nodes[1].shares_host || nodes[3].shares_host);
}

static void equal_nodes_are_one_block(void **state) {
    (void)state;
    const struct mpi_node even[] = {{0, 2, 0, false, "a"}, {2, 2, 0, false, "b"}, {4, 2, 0, false, "c"}};
    const struct mpi_node uneven[] = {
        {0, 3, 0, false, "a"}, {3, 1, 0, false, "b"}, {4, 1, 0, false, "c"}, {5, 3, 0, false, "d"}};
    expect_text(mpi_layout_mapping, even, 1, "(vector,(0,1,2))");
    expect_text(mpi_layout_mapping, even, 3, "(vector,(0,3,2))");
    expect_text(mpi_layout_mapping, uneven, 4, "(vector,(0,1,3),(1,2,1),(3,1,3))");
    expect_text(mpi_layout_ranks, uneven, 4, "0,1,2;3;4;5,6,7");
}

static void each_rank_has_its_node(void **state) {
    (void)state;
    const struct mpi_node nodes[] = {
        {0, 3, 0, false, "a"}, {3, 1, 0, false, "b"}, {4, 1, 0, false, "c"}, {5, 3, 0, false, "d"}};
    static const size_t expected[] = {0, 0, 0, 1, 2, 3, 3, 3};
    for (uint32_t rank = 0; rank < sizeof expected / sizeof *expected; rank++) {
        assert_int_equal(mpi_layout_node_of(nodes, 4, rank), expected[rank]);
    }
}

static void a_text_has_its_limit(void **state) {
    (void)state;
    const struct mpi_node nodes[] = {{0, 1, 0, false, "a"}, {1, 2, 0, false, "b"}, {3, 1, 0, false, "c"}};
    struct buf out;
    buf_init(&out, 20);
    assert_int_equal(mpi_layout_mapping(nodes, 3, &out), MUSTER_ELIMIT);
    buf_done(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_node_is_read_as_it_was_written),
        cmocka_unit_test(the_longest_name_fits),
        cmocka_unit_test(what_is_no_node_is_refused),
        cmocka_unit_test(ranks_must_be_without_a_gap),
        cmocka_unit_test(agents_of_one_host_are_nodes_of_their_own),
        cmocka_unit_test(equal_nodes_are_one_block),
        cmocka_unit_test(each_rank_has_its_node),
        cmocka_unit_test(a_text_has_its_limit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
