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
    peer_table_init(table, FINGERPRINT, 4, UINT64_MAX / 4 + 1); /* four times as much is nothing */
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
        peer_table_init(table, FINGERPRINT, cases[i].part_count, ROOM);
        assert_int_equal(peer_table_is_of(table, bytes, FINGERPRINT), cases[i].is);
    }
    free(table);
}

/* Wherever a program writes into the words before the slots, the table is none, or says what it said before. */
static void a_wild_write_is_seen(void **state) {
    (void)state;
    static const uint64_t values[] = {0, 1, 3, 0x4141414141414141, UINT64_MAX};
    size_t bytes = 0, words = offsetof(struct peer_table, slots) / sizeof(uint64_t);
    struct peer_table *table = make_table(&bytes);
    uint64_t *word = (uint64_t *)table;
    peer_table_give_up(table, 7);
    for (size_t at = 0; at < words; at++) {
        uint64_t before = word[at];
        for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
            struct peer_offer offer = {.part_count = 0};
            word[at] = values[i];
            if (peer_table_is_of(table, bytes, FINGERPRINT)) {
                peer_table_offer(table, &offer);
                assert_int_equal(offer.part_count, 4);
                assert_int_equal(offer.given_up, 7);
                assert_int_equal(table->room, ROOM);
            } else {
                assert_true(values[i] != before && at * sizeof before < offsetof(struct peer_table, given_up));
            }
        }
        word[at] = before;
    }
    free(table);
}

/* Who writes it is killed after each word. */
static void a_life_is_given_up_or_not(void **state) {
    (void)state;
    size_t bytes = 0;
    struct peer_table *table = make_table(&bytes), *next = make_table(&bytes);
    peer_table_give_up(table, 7);
    peer_table_give_up(next, 9);
    for (size_t done = 0; done <= sizeof table->given_up / (sizeof(uint64_t)); done++) {
        struct peer_offer offer = {.part_count = 0};
        memcpy(table->given_up, next->given_up, done * sizeof(uint64_t));
        assert_true(peer_table_is_of(table, bytes, FINGERPRINT));
        peer_table_offer(table, &offer);
        assert_true(offer.given_up == 7 || offer.given_up == 9);
    }
    free(table);
    free(next);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_table_is_of_one_state_and_whole),
        cmocka_unit_test(there_are_no_more_parts_than_ranks_can_be),
        cmocka_unit_test(a_wild_write_is_seen),
        cmocka_unit_test(a_life_is_given_up_or_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
