/* Connections of ranks, found by their numbers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "rendezvous/torch/static_peers.h"

static void each_connection_has_its_rank(void **state) {
    (void)state;
    struct static_peer peers[4] = {{0}};
    assert_int_equal(static_peers_rank_of(peers, 4, 0), -1); /* nobody's, though all hold zero */
    static_peers_set(peers, 4, 2, 0);
    assert_int_equal(static_peers_rank_of(peers, 4, 0), 2);
    for (uint32_t rank = 0; rank < 4; rank++) {
        static_peers_set(peers, 4, rank, 8 + 4 * rank); /* all in one list */
    }
    assert_int_equal(static_peers_rank_of(peers, 4, 0), -1); /* replaced */
    for (uint32_t rank = 0; rank < 4; rank++) {
        assert_int_equal(static_peers_rank_of(peers, 4, 8 + 4 * rank), rank);
        assert_int_equal(static_peers_rank_of(peers, 4, 9 + rank * 4), -1);
    }
    static_peers_set(peers, 4, 1, 1);
    static_peers_set(peers, 4, 1, 1);
    assert_int_equal(static_peers_rank_of(peers, 4, 1), 1);
    assert_int_equal(static_peers_rank_of(peers, 4, 12), -1);
    assert_int_equal(static_peers_rank_of(peers, 4, 20), 3);
}

/* Against a plain array, over many replacements. */
static void replacements_leave_nothing_behind(void **state) {
    (void)state;
    enum { RANKS = 7, STEPS = 20000, NUMBERS = 40 };
    struct static_peer peers[RANKS] = {{0}};
    int64_t owner[NUMBERS];
    uint32_t random = 1;
    for (int i = 0; i < NUMBERS; i++) {
        owner[i] = -1;
    }
    for (int step = 0; step < STEPS; step++) {
        random = random * 1664525u + 1013904223u;
        uint32_t rank = (random >> 16) % RANKS, connection = (random >> 8) % NUMBERS;
        if (owner[connection] >= 0) { /* a number is given once */
            continue;
        }
        for (int i = 0; i < NUMBERS; i++) {
            owner[i] = owner[i] == rank ? -1 : owner[i];
        }
        owner[connection] = rank;
        static_peers_set(peers, RANKS, rank, connection);
        for (uint32_t i = 0; i < NUMBERS; i++) {
            assert_int_equal(static_peers_rank_of(peers, RANKS, i), owner[i]);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_connection_has_its_rank),
        cmocka_unit_test(replacements_leave_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
