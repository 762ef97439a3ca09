/* Ranks that end, or go on, with sends and receives posted that nobody waits for: who frees a handle or a group does
 * not wait for the other side, what was sent is delivered if somebody asks for it, and the others get the right error.
 * On one host and between hosts. The time-out is one that no test reaches.
 *
 *     group_ends_test [ends [seed]]        so many ends at random, of ranks of each layout; make soak-posted */
#include <muster/collective.h>
#include <muster/group.h>

#include <poll.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/clock.h"
#include "comm/group/ranks_test_support.h"
#include "comm/p2p/p2p.h"

enum { LONG = 300000, READY = 1, LEFT, OVER, TAG = 5 };

static const struct ranks_options layouts[] = {{.ranks_per_host = 0}, {.ranks_per_host = 1}, {.ranks_per_host = 2}};
enum { LAYOUT_COUNT = sizeof layouts / sizeof *layouts };

/* Around every length at which messages take another way. */
static const size_t lengths[] = {4, 2000, 4096, 40000, 65536, 300000, 1 << 20, 5 << 20, 64 << 20};
enum { LENGTH_COUNT = sizeof lengths / sizeof *lengths };

static uint8_t *filled(struct rank *rank, size_t bytes, int filling) {
    uint8_t *buffer = malloc(bytes);
    rank_check(rank, buffer != NULL);
    memset(buffer, filling, bytes);
    return buffer;
}

static bool is_filled(const uint8_t *buffer, size_t bytes, int filling) {
    return buffer[0] == (uint8_t)filling && memcmp(buffer, buffer + 1, bytes - 1) == 0;
}

static void post_send(struct rank *rank, struct muster_group *group, const uint8_t *buffer, size_t bytes, uint32_t tag,
                      struct muster_work **work) {
    rank_check_code(rank, muster_send(group, buffer, bytes, MUSTER_UINT8, 1 - rank->rank, tag, work), 0);
}

static void post_receive(struct rank *rank, struct muster_group *group, uint8_t *buffer, size_t bytes, uint32_t tag,
                         struct muster_work **work) {
    rank_check_code(rank, muster_receive(group, buffer, bytes, MUSTER_UINT8, 1 - rank->rank, tag, NULL, work), 0);
}

/* ---- handles that are freed ---- */

/* A send of each length is freed, and its buffer written to; the receiver comes before that or afterwards. */
static int free_sends(struct rank *rank, void *comes_before) {
    struct muster_group *group = rank_group(rank, NULL);
    for (size_t i = 0; i < LENGTH_COUNT; i++) {
        size_t bytes = lengths[i];
        uint8_t *buffer = filled(rank, bytes, rank->rank == 0 ? (int)i + 1 : 0);
        struct muster_work *work = NULL;
        bool waits = rank->rank == 1 && *(bool *)comes_before;
        if (waits) {
            post_receive(rank, group, buffer, bytes, TAG, &work);
        }
        rank_check_code(rank, muster_barrier(group, NULL), 0);
        if (rank->rank == 0) {
            post_send(rank, group, buffer, bytes, TAG, &work);
            muster_work_free(&work);
            rank_check(rank, work == NULL);
            memset(buffer, 0xee, bytes);
        }
        if (!*(bool *)comes_before) {
            rank_check_code(rank, muster_barrier(group, NULL), 0);
        }
        if (rank->rank == 1 && !waits) {
            post_receive(rank, group, buffer, bytes, TAG, NULL);
        }
        rank_check_code(rank, muster_work_wait(&work), 0);
        rank_check_code(rank, muster_barrier(group, NULL), 0);
        rank_check(rank, rank->rank == 0 || is_filled(buffer, bytes, (int)i + 1));
        free(buffer);
    }
    muster_group_free(group);
    return 0;
}

static void a_send_that_is_freed_goes_on(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        bool comes_before = i % 2 == 0;
        ranks_run_with(2, free_sends, &comes_before, &layouts[i / 2]);
    }
}

/* A receive is freed before its message comes, and in the middle of it; the next receive and the sender are none the
 * worse. */
static int free_receives(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    for (size_t i = 0; i < LENGTH_COUNT; i++) {
        size_t bytes = lengths[i];
        uint8_t *buffer = filled(rank, bytes, 1), *other = filled(rank, bytes, 0);
        struct muster_work *work = NULL, *second = NULL;
        if (rank->rank == 1) {
            post_receive(rank, group, other, bytes, TAG, &work);
            muster_work_free(&work);
            post_receive(rank, group, other, bytes, TAG, &work);
        }
        rank_check_code(rank, muster_barrier(group, NULL), 0);
        if (rank->rank == 0) {
            post_send(rank, group, buffer, bytes, TAG, &work);
            post_send(rank, group, buffer, bytes, TAG + 1, &second);
        } else {
            for (int looks = 0; looks < 3; looks++) {
                (void)muster_work_done(work);
            }
            muster_work_free(&work); /* perhaps in the middle */
            memset(other, 2, bytes);
            post_receive(rank, group, buffer, bytes, TAG + 1, NULL);
            rank_check(rank, is_filled(buffer, bytes, 1) && is_filled(other, bytes, 2));
            post_receive(rank, group, other, bytes, TAG, &work); /* of what came, if it is not lost */
            muster_work_free(&work);
        }
        rank_check_code(rank, muster_work_wait(&second), 0);
        muster_work_free(&work);
        rank_check_code(rank, muster_barrier(group, NULL), 0);
        free(buffer);
        free(other);
    }
    muster_group_free(group);
    return 0;
}

static void a_receive_that_is_freed_is_taken_back(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        ranks_run_with(2, free_receives, NULL, &layouts[i]);
    }
}

/* ---- groups that are freed ---- */

/* Rank 0 frees a part, or the whole, with everything posted. */
static int free_a_group(struct rank *rank, void *is_whole) {
    struct muster_group *group = rank_group(rank, NULL), *part = group;
    static uint8_t out[LONG], in[LONG];
    struct muster_work *works[2] = {NULL};
    static const uint32_t both[] = {0, 1};
    if (!*(bool *)is_whole) {
        rank_check_code(rank, muster_group_subset(group, both, 2, NULL, &part), 0);
    }
    post_send(rank, part, out, LONG, 1, &works[0]);
    post_receive(rank, part, in, LONG, 2, &works[1]);
    rank_mark(rank, READY);
    rank_await(rank, 1 - rank->rank, READY);
    if (rank->rank == 0) {
        muster_group_free(part);
        rank_mark(rank, LEFT);
        rank_check(rank, muster_work_done(works[0]) && muster_work_done(works[1]));
        rank_check_code(rank, muster_work_wait(&works[0]), MUSTER_EINVAL);
        rank_check(rank, strstr(muster_detail(), "has been freed"));
        muster_work_free(&works[1]);
    } else {
        rank_check_code(rank, muster_work_wait(&works[0]), MUSTER_EPEER);
        rank_check(rank, strstr(muster_detail(), "send of 300000 uint8 to rank 0, tag 1"));
        rank_check(rank, strstr(muster_detail(), "has left: it has freed its group"));
        muster_group_free(part);
        muster_work_free(&works[1]);
    }
    if (!*(bool *)is_whole) {
        rank_check_code(rank, muster_barrier(group, NULL), 0);
        muster_group_free(group);
    }
    return 0;
}

static void a_group_is_freed_with_all_that_is_posted(void **state) {
    (void)state;
    for (int i = 0; i < 4; i++) {
        bool is_whole = i % 2 == 0;
        ranks_run_with(2, free_a_group, &is_whole, &layouts[i / 2]);
    }
}

/* Rank 0 ends well, with one send of which nobody knows whether it has gone; rank 1 waits for it. */
static int send_and_end(struct rank *rank, void *argument) {
    size_t bytes = *(size_t *)argument;
    struct muster_group *group = rank_group(rank, NULL);
    uint8_t *buffer = filled(rank, bytes, rank->rank == 0 ? 9 : 0);
    struct muster_work *work = NULL;
    if (rank->rank == 0) {
        rank_await(rank, 1, READY);
        post_send(rank, group, buffer, bytes, TAG, &work);
        muster_group_free(group);
        muster_work_free(&work);
    } else {
        post_receive(rank, group, buffer, bytes, TAG, &work);
        rank_mark(rank, READY);
        rank_check_code(rank, muster_work_wait(&work), 0);
        rank_check(rank, is_filled(buffer, bytes, 9));
        muster_group_free(group);
    }
    free(buffer);
    return 0;
}

static void who_ends_well_delivers(void **state) {
    (void)state;
    for (size_t i = 0; i < 2 * LENGTH_COUNT; i++) {
        size_t bytes = lengths[i / 2];
        ranks_run_with(2, send_and_end, &bytes, &layouts[i % 2]);
    }
}

/* Rank 1 has asked for a message, takes a part of it, and nothing more. Rank 0 leaves, and waits for it. */
static int ask_and_stop(struct rank *rank, void *argument) {
    (void)argument;
    size_t bytes = lengths[LENGTH_COUNT - 2];
    (void)setenv("MUSTER_CMA", "0", 1); /* through the ring, in parts */
    struct muster_group *group = rank_group(rank, NULL);
    uint8_t *buffer = filled(rank, bytes, rank->rank == 0 ? 9 : 0);
    const volatile uint8_t *first = buffer;
    struct muster_work *work = NULL;
    if (rank->rank == 0) {
        post_send(rank, group, buffer, bytes, TAG, &work);
        muster_work_free(&work);
        muster_group_free(group);
        free(buffer);
        return 0;
    }
    post_receive(rank, group, buffer, bytes, TAG, &work);
    while (*first == 0) {
        rank_check(rank, !muster_work_done(work));
    }
    rank_mark(rank, READY);
    rank_await_signal(rank, OVER);
    return 1;
}

static void who_waits_for_a_neighbour_sees_its_death(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(2, ask_and_stop, NULL, NULL);
    ranks_await(ranks, 1, READY);
    (void)poll(NULL, 0, 200); /* so that rank 0 has begun to wait; if not, it has less to see */
    ranks_kill(ranks, 1);
    int64_t killed_ns = clock_monotonic_ns();
    assert_int_equal(ranks_wait(ranks, 0), 0);
    assert_true(clock_monotonic_ns() - killed_ns < P2P_NEIGHBOUR_MS * 3 / 4 * CLOCK_NS_PER_MS); /* its patience */
    ranks_free(ranks);
}

/* ---- ends at random ---- */

enum way { RAISES, RETURNS, IS_KILLED, DROPS, WAY_COUNT };
enum { LETTERS_MAX = 8, PLAYERS_MAX = 4, RAISED = 3 };

struct letter {
    uint32_t other; /* than the victim */
    size_t bytes;
    bool is_to_victim, is_asked_for /* posted on both sides */;
};

struct plan {
    enum way way;
    uint32_t victim;
    size_t count;
    struct letter letters[LETTERS_MAX];
    bool all_match; /* nothing but sends of the victim that are waited for */
    bool has_cma;
    uint64_t chance;
};

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint32_t below(uint64_t *state, uint32_t bound) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return (uint32_t)((z ^ z >> 31) % bound);
}

static struct plan make_plan(uint64_t seed, uint32_t size) {
    struct plan plan = {.chance = seed * 1000003};
    uint64_t *chance = &plan.chance;
    plan.way = (enum way)below(chance, WAY_COUNT);
    plan.victim = below(chance, size);
    plan.count = 1 + below(chance, LETTERS_MAX);
    plan.all_match = below(chance, 2) == 0;
    plan.has_cma = below(chance, 2) == 0;
    for (size_t i = 0; i < plan.count; i++) {
        uint32_t length = below(chance, 12) == 0 ? LENGTH_COUNT - 1 : below(chance, LENGTH_COUNT - 1);
        plan.letters[i] = (struct letter){.other = (plan.victim + 1 + below(chance, size - 1)) % size,
                                          .bytes = lengths[length],
                                          .is_to_victim = !plan.all_match && below(chance, 2) == 0,
                                          .is_asked_for = plan.all_match || below(chance, 2) == 0};
    }
    return plan;
}

struct player {
    struct rank *rank;
    const struct plan *plan;
    struct muster_group *group;
    struct muster_work *works[LETTERS_MAX];
    uint8_t *buffers[LETTERS_MAX];
    uint64_t chance;
    bool has_failed;
};

static void post(struct player *player, size_t i) {
    const struct letter *letter = &player->plan->letters[i];
    struct rank *rank = player->rank;
    uint32_t victim = player->plan->victim;
    bool is_victim = rank->rank == victim, sends = letter->is_to_victim != is_victim;
    /* What is posted on one side alone: either the send or the receive. */
    if ((!is_victim && letter->other != rank->rank) || (!letter->is_asked_for && is_victim == (i % 2 == 0))) {
        return;
    }
    uint32_t peer = is_victim ? letter->other : victim;
    player->buffers[i] = filled(rank, letter->bytes, sends ? (int)i + 1 : 0);
    rank_check_code(rank,
                    sends ? muster_send(player->group, player->buffers[i], letter->bytes, MUSTER_UINT8, peer,
                                        (uint32_t)i, &player->works[i])
                          : muster_receive(player->group, player->buffers[i], letter->bytes, MUSTER_UINT8, peer,
                                           (uint32_t)i, NULL, &player->works[i]),
                    0);
}

static void free_all(struct player *player) {
    for (size_t i = 0; i < player->plan->count; i++) {
        muster_work_free(&player->works[i]);
        if (player->buffers[i]) {
            memset(player->buffers[i], 0xee, player->plan->letters[i].bytes);
        }
        free(player->buffers[i]);
        player->buffers[i] = NULL;
    }
}

/* A failure names the victim. */
static void take_failure(struct player *player, int code) {
    char who[32];
    (void)snprintf(who, sizeof who, "rank %u", player->plan->victim);
    rank_check(player->rank, code == MUSTER_EPEER || (code == MUSTER_EGROUP && player->has_failed));
    rank_check(player->rank, strstr(muster_detail(), who));
    player->has_failed = true;
}

/* Waits for what may come, and frees what cannot. */
static void await_all(struct player *player) {
    const struct plan *plan = player->plan;
    struct rank *rank = player->rank;
    for (size_t i = 0; i < plan->count; i++) {
        const struct letter *letter = &plan->letters[i];
        bool may_come = letter->is_asked_for && !letter->is_to_victim;
        if (!player->works[i] || (plan->way == DROPS && !may_come)) {
            continue;
        }
        int code = muster_work_wait(&player->works[i]);
        if (code) {
            rank_check(rank, plan->way != DROPS && !(plan->way == RETURNS && plan->all_match));
            take_failure(player, code);
        } else {
            rank_check(rank, letter->is_to_victim || is_filled(player->buffers[i], letter->bytes, (int)i + 1));
        }
    }
    rank_mark(rank, OVER);
    for (uint32_t other = 0; plan->way == RETURNS && plan->all_match && other < rank->size; other++) {
        if (other != plan->victim) {
            rank_await(rank, other, OVER); /* before the group fails */
        }
    }
    if (plan->way != DROPS) {
        uint8_t byte;
        take_failure(player,
                     muster_receive(player->group, &byte, 1, MUSTER_UINT8, plan->victim, LETTERS_MAX, NULL, NULL));
    }
}

static int be_player(struct rank *rank, void *argument) {
    const struct plan *plan = argument;
    struct player player = {.rank = rank, .plan = plan, .chance = plan->chance + rank->rank};
    bool is_victim = rank->rank == plan->victim;
    if (!plan->has_cma) {
        rank_check(rank, setenv("MUSTER_CMA", "0", 1) == 0);
    }
    player.group = rank_group(rank, NULL);
    for (size_t i = 0; i < plan->count; i++) {
        post(&player, i);
    }
    rank_mark(rank, READY);
    for (uint32_t other = 0; other < rank->size; other++) {
        rank_await(rank, other, READY);
    }
    for (uint32_t looks = below(&player.chance, 20); looks > 0; looks--) {
        (void)muster_work_done(player.works[looks % plan->count]);
    }
    if (is_victim && plan->way == IS_KILLED) {
        (void)raise(SIGKILL);
    }
    if (!is_victim) {
        await_all(&player);
    }
    bool frees_first = plan->way == DROPS || below(&player.chance, 2) == 0;
    if (frees_first) {
        free_all(&player);
    }
    if (plan->way == DROPS) {
        rank_check_code(rank, muster_barrier(player.group, NULL), 0);
    }
    muster_group_free(player.group);
    free_all(&player);
    return is_victim && plan->way == RAISES ? RAISED : 0;
}

static void run_plan(uint64_t seed, const struct ranks_options *options) {
    uint64_t chance = seed;
    uint32_t size = 2 + below(&chance, PLAYERS_MAX - 1);
    struct plan plan = make_plan(seed, size);
    struct ranks *ranks = ranks_start(size, be_player, &plan, options);
    for (uint32_t rank = 0; rank < size; rank++) {
        bool is_victim = rank == plan.victim;
        int expected = is_victim && plan.way == IS_KILLED ? RANKS_KILLED - SIGKILL
                       : is_victim && plan.way == RAISES  ? RAISED
                                                          : 0;
        if (ranks_wait(ranks, rank) != expected) {
            fail_msg("seed %llu, way %d: rank %u of %u (victim %u) ended with %d", (unsigned long long)seed,
                     (int)plan.way, rank, size, plan.victim, ranks_wait(ranks, rank));
        }
    }
    ranks_free(ranks);
}

static uint32_t wanted_ends = 24;
static uint64_t wanted_seed = 1;

static void all_ends_at_once_and_with_the_right_error(void **state) {
    (void)state;
    for (uint32_t i = 0; i < wanted_ends; i++) {
        run_plan(wanted_seed + i, &layouts[i % LAYOUT_COUNT]);
    }
}

int main(int argc, char **argv) {
    wanted_ends = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : wanted_ends;
    wanted_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : wanted_seed;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_send_that_is_freed_goes_on),
        cmocka_unit_test(a_receive_that_is_freed_is_taken_back),
        cmocka_unit_test(a_group_is_freed_with_all_that_is_posted),
        cmocka_unit_test(who_ends_well_delivers),
        cmocka_unit_test(who_waits_for_a_neighbour_sees_its_death),
        cmocka_unit_test(all_ends_at_once_and_with_the_right_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
