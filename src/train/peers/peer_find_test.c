/* What a table in memory must say to be one: programs may have written into it by mistake. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/group.h>

#include "train/peers/peer_copies_impl.h"

enum { FINGERPRINT = 77, ROOM = 2 * PEER_PAGE_BYTES };

static struct peer_table *make_table(size_t *out_bytes) {
    *out_bytes = peer_region_bytes(ROOM);
    struct peer_table *table = aligned_alloc(PEER_PAGE_BYTES, *out_bytes);
    assert_non_null(table);
    memset(table, 0, *out_bytes);
    peer_table_init(table, FINGERPRINT, 4, ROOM);
    return table;
}

static void a_table_is_of_one_state_and_whole(void **state) {
    (void)state;
    size_t bytes = 0;
    struct peer_table *table = make_table(&bytes);
    assert_true(peer_table_is_of(table, bytes, FINGERPRINT));
    assert_false(peer_table_is_of(table, bytes, FINGERPRINT + 1));
    assert_false(peer_table_is_of(table, bytes - 1, FINGERPRINT));
    table->room = UINT64_MAX / 4 + 1; /* four times as much is nothing */
    assert_false(peer_table_is_of(table, bytes, FINGERPRINT));
    free(table);
}

/* Laying a state out in so many parts would take all memory. */
static void there_are_no_more_parts_than_ranks_can_be(void **state) {
    (void)state;
    static const struct {
        uint32_t part_count;
        bool is;
    } cases[] = {
        {0, false}, {1, true}, {MUSTER_GROUP_SIZE_MAX, true}, {MUSTER_GROUP_SIZE_MAX + 1, false}, {UINT32_MAX, false}};
    size_t bytes = 0;
    struct peer_table *table = make_table(&bytes);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        table->part_count = cases[i].part_count;
        assert_int_equal(peer_table_is_of(table, bytes, FINGERPRINT), cases[i].is);
    }
    free(table);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_table_is_of_one_state_and_whole),
        cmocka_unit_test(there_are_no_more_parts_than_ranks_can_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
