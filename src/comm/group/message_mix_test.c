/* Messages and collectives mixed at random, from a seed: messages of all lengths by handles and in batches, waited for
 * before or after collectives of the whole group and of parts of it, on one host, on several, and on hosts of several
 * ranks, while ranks come late or are stopped. Whatever the order: all ends, and every byte is right.
 *
 *     message_mix_test [rounds [seed]]     rounds of each layout; each dozen has a seed of its own; make soak-messages
 *
 * A round. Each rank posts the messages that it has chosen to have handles for, then its batch. Only then it waits for
 * anything. So both sides of a message are posted before a rank waits for it, but for the late ones: their receives are
 * posted after the round's collectives, and their sends are waited for after those, too. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <muster/collective.h>
#include <muster/memory.h>

#include "comm/group/ranks_test_support.h"

/* A sender may have 1 MiB at a receiver who asks for something else. */
enum { UNASKED_BYTES_MAX = 1 << 20, LETTER_COST = 128 };
enum { LETTERS_MAX = 320, ROUND_BYTES_MAX = 5 << 20, PLAYERS_MAX = 5, SUMS_MAX = 40000, ROUNDS = 12, MARK_OVER = 1 };

struct mix {
    uint64_t seed;
    uint32_t rounds;
    bool has_cma; /* may ranks read each other's memory? */
};

/* ---- chance ---- */

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t next_of(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static uint32_t below(uint64_t *state, uint32_t bound) {
    return (uint32_t)(next_of(state) % bound);
}

static bool one_in(uint64_t *state, uint32_t count) {
    return below(state, count) == 0;
}

/* ---- what all ranks know of a round ---- */

struct letter {
    uint32_t from, to;
    size_t bytes;
    uint8_t filling;
    bool is_late;
};

struct plan {
    size_t count;
    struct letter letters[LETTERS_MAX];
    uint32_t first_tag; /* no other round has the same ones */
    uint32_t batched_sums, collectives;
    uint64_t chance; /* for the kinds of the collectives */
};

/* Around every length at which messages take another way. */
static size_t choose_bytes(uint64_t *chance, bool is_flood) {
    static const size_t some[] = {
        0,     1,     8,     64,    1000,  2088,  2089,   4096,          8192,          16384,
        30000, 32767, 32768, 65535, 65536, 65537, 131071, 131072,        262147,        524288,
        0,     4,     4,     40,    40,    2000,  5000,   (1 << 20) + 3, (2 << 20) + 9, 4};
    return is_flood ? below(chance, 2) * 28000 + below(chance, 3000) : some[below(chance, sizeof some / sizeof *some)];
}

static void make_plan(struct plan *plan, uint64_t seed, uint32_t round, uint32_t size) {
    uint64_t chance = seed * 1000003 + round;
    bool is_flood = one_in(&chance, 3); /* two ranks, more than a sender may have at the other side unasked */
    uint32_t most = is_flood ? LETTERS_MAX : 1 + below(&chance, 40), pair = below(&chance, size);
    size_t total = 0, unasked[PLAYERS_MAX][PLAYERS_MAX] = {{0}};
    plan->count = 0;
    plan->first_tag = round * LETTERS_MAX;
    while (plan->count < most && total < ROUND_BYTES_MAX) {
        struct letter *letter = &plan->letters[plan->count++];
        letter->from = is_flood && !one_in(&chance, 8) ? pair : below(&chance, size);
        letter->to = is_flood ? (pair + 1) % size : below(&chance, size);
        letter->to = letter->to == letter->from ? (letter->from + 1) % size : letter->to;
        letter->bytes = choose_bytes(&chance, is_flood);
        letter->filling = (uint8_t)next_of(&chance);
        size_t *late = &unasked[letter->from][letter->to];
        letter->is_late = one_in(&chance, 4) && *late + letter->bytes + LETTER_COST < UNASKED_BYTES_MAX;
        *late += letter->is_late ? letter->bytes + LETTER_COST : 0;
        total += letter->bytes;
    }
    plan->batched_sums = below(&chance, 3);
    plan->collectives = 1 + below(&chance, 3);
    plan->chance = next_of(&chance);
}

/* ---- a rank ---- */

struct player {
    struct rank *rank;
    struct muster_group *group, *part; /* part: every second rank */
    uint64_t chance;                   /* its own */
    uint8_t *memory[2];                /* private, shared; for sends, and behind them for receives */
    struct muster_work *early[LETTERS_MAX], *late[LETTERS_MAX], *batch;
    size_t early_count, late_count;
    bool is_batched[LETTERS_MAX];
    uint8_t *places[LETTERS_MAX]; /* of what it receives */
    struct muster_message came[LETTERS_MAX];
    int32_t sums[2][2], *data, *all;
};

/* Others meanwhile go to sleep, or do not. */
static void dawdle(struct player *player) {
    uint32_t way = below(&player->chance, 12);
    for (uint32_t i = 0; way == 1 && i < 100; i++) {
        (void)sched_yield();
    }
    if (way == 0) {
        (void)poll(NULL, 0, 1);
    }
}

static void post(struct player *player, const struct plan *plan, size_t i, uint8_t *place, struct muster_work **work) {
    const struct letter *letter = &plan->letters[i];
    struct rank *rank = player->rank;
    uint32_t tag = plan->first_tag + (uint32_t)i;
    if (letter->from == rank->rank) {
        memset(place, letter->filling, letter->bytes);
        rank_check_code(rank, muster_send(player->group, place, letter->bytes, MUSTER_UINT8, letter->to, tag, work), 0);
    } else {
        bool is_any = one_in(&player->chance, 6);
        size_t room = letter->bytes + (one_in(&player->chance, 2) ? 8 : 0);
        player->places[i] = place;
        rank_check_code(rank,
                        muster_receive(player->group, place, room, MUSTER_UINT8,
                                       is_any ? MUSTER_ANY_RANK : letter->from, tag, &player->came[i], work),
                        0);
    }
}

/* Where message i lies; the same, whoever asks in whatever order. */
static uint8_t *place_of(struct player *player, const struct plan *plan, size_t i) {
    size_t at = 0;
    for (size_t k = 0; k < i; k++) {
        at += (plan->letters[k].bytes + 63) / 64 * 64 + 64;
    }
    return player->memory[(plan->letters[i].filling ^ player->rank->rank) & 1] + at;
}

static bool is_mine(const struct player *player, const struct letter *letter) {
    return letter->from == player->rank->rank || letter->to == player->rank->rank;
}

static void post_with_handles(struct player *player, const struct plan *plan) {
    for (size_t i = 0; i < plan->count; i++) {
        const struct letter *letter = &plan->letters[i];
        bool receives_late = letter->is_late && letter->to == player->rank->rank;
        player->is_batched[i] = !letter->is_late && one_in(&player->chance, 2);
        if (!is_mine(player, letter) || receives_late || player->is_batched[i]) {
            continue;
        }
        bool waits_late = letter->is_late || one_in(&player->chance, 2);
        post(player, plan, i, place_of(player, plan, i),
             waits_late ? &player->late[player->late_count++] : &player->early[player->early_count++]);
    }
}

static void run_batch(struct player *player, const struct plan *plan) {
    struct rank *rank = player->rank;
    bool by_handle = one_in(&player->chance, 3);
    rank_check_code(rank, muster_coalesce_begin(player->group), 0);
    for (size_t k = 0; k < plan->count; k++) {
        size_t i = rank->rank % 2 ? plan->count - 1 - k : k;
        if (is_mine(player, &plan->letters[i]) && player->is_batched[i]) {
            post(player, plan, i, place_of(player, plan, i), NULL);
        }
    }
    for (uint32_t i = 0; i < plan->batched_sums; i++) {
        player->sums[i][0] = (int32_t)(rank->rank + i);
        rank_check_code(rank,
                        muster_all_reduce(player->group, &player->sums[i][0], &player->sums[i][1], 1, MUSTER_INT32,
                                          MUSTER_OP_SUM, NULL),
                        0);
    }
    rank_check_code(rank, muster_coalesce_end(player->group, by_handle ? &player->batch : NULL), 0);
    if (one_in(&player->chance, 2)) {
        rank_check_code(rank, muster_work_wait(&player->batch), 0);
    }
}

static void await(struct player *player, struct muster_work **works, size_t count) {
    struct rank *rank = player->rank;
    uint32_t way = below(&player->chance, 3);
    for (size_t i = 0; way == 0 && i < count; i++) {
        while (!muster_work_done(works[i])) {
            dawdle(player);
        }
    }
    if (way == 1) {
        rank_check_code(rank, muster_work_wait_all(works, count, -1), 0);
    }
    for (size_t i = 0; i < count; i++) {
        rank_check_code(rank, muster_work_wait(&works[i]), 0);
    }
}

static void sum_up(struct player *player, struct muster_group *group, size_t count, struct muster_work **work) {
    struct rank *rank = player->rank;
    for (size_t i = 0; i < count; i++) {
        player->data[i] = (int32_t)(muster_group_rank(group) + i);
    }
    rank_check_code(rank, muster_all_reduce(group, player->data, player->all, count, MUSTER_INT32, MUSTER_OP_SUM, work),
                    0);
}

static void check_sum(struct player *player, struct muster_group *group, size_t count) {
    uint32_t size = muster_group_size(group);
    for (size_t i = 0; i < count; i++) {
        rank_check(player->rank, player->all[i] == (int32_t)(size * (size - 1) / 2 + size * i));
    }
}

static void run_collective(struct player *player, uint64_t *chance) {
    struct rank *rank = player->rank;
    struct muster_group *group = one_in(chance, 3) ? player->part : player->group;
    struct muster_work *work = NULL, **maybe = one_in(&player->chance, 3) ? &work : NULL;
    uint32_t root = below(chance, muster_group_size(group));
    size_t count = one_in(chance, 3) ? below(chance, SUMS_MAX) : below(chance, 20);
    switch (below(chance, 4)) {
    case 0:
        rank_check_code(rank, muster_barrier(group, maybe), 0);
        break;
    case 1:
        player->data[0] = (int32_t)root;
        rank_check_code(rank, muster_broadcast(group, player->data, 1, MUSTER_INT32, root, maybe), 0);
        break;
    default:
        sum_up(player, group, count, maybe);
        rank_check_code(rank, muster_work_wait(&work), 0);
        check_sum(player, group, count);
        break;
    }
    rank_check_code(rank, muster_work_wait(&work), 0);
}

static void check_letters(const struct player *player, const struct plan *plan) {
    struct rank *rank = player->rank;
    for (size_t i = 0; i < plan->count; i++) {
        const struct letter *letter = &plan->letters[i];
        const uint8_t *place = player->places[i];
        if (letter->to != rank->rank) {
            continue;
        }
        rank_check(rank, player->came[i].rank == letter->from && player->came[i].count == letter->bytes);
        rank_check(rank, letter->bytes == 0 ||
                             (place[0] == letter->filling && memcmp(place, place + 1, letter->bytes - 1) == 0));
    }
    for (uint32_t i = 0; i < plan->batched_sums; i++) {
        rank_check(rank, player->sums[i][1] == (int32_t)(rank->size * (rank->size - 1) / 2 + rank->size * i));
    }
}

static void play(struct player *player, const struct plan *plan) {
    uint64_t chance = plan->chance;
    player->early_count = player->late_count = 0;
    post_with_handles(player, plan);
    dawdle(player);
    run_batch(player, plan);
    dawdle(player);
    await(player, player->early, player->early_count);
    for (uint32_t i = 0; i < plan->collectives; i++) {
        dawdle(player);
        run_collective(player, &chance);
    }
    for (size_t i = 0; i < plan->count; i++) {
        if (plan->letters[i].is_late && plan->letters[i].to == player->rank->rank) {
            post(player, plan, i, place_of(player, plan, i), &player->late[player->late_count++]);
        }
    }
    await(player, player->late, player->late_count);
    rank_check_code(player->rank, muster_work_wait(&player->batch), 0);
    check_letters(player, plan);
}

static int be_player(struct rank *rank, void *argument) {
    const struct mix *mix = argument;
    static struct player player;
    static struct plan plan;
    size_t bytes = 2 * ROUND_BYTES_MAX;
    if (!mix->has_cma) {
        rank_check(rank, setenv("MUSTER_CMA", "0", 1) == 0);
    }
    player.rank = rank;
    player.chance = mix->seed * 65537 + rank->rank;
    player.group = rank_group(rank, NULL);
    rank_check_code(rank, muster_group_split(player.group, (int32_t)rank->rank % 2, 0, NULL, &player.part), 0);
    player.memory[0] = malloc(bytes);
    player.data = calloc(SUMS_MAX, sizeof *player.data);
    player.all = calloc(SUMS_MAX, sizeof *player.all);
    rank_check(rank, player.memory[0] && player.data && player.all);
    rank_check_code(rank, muster_alloc(player.group, bytes, (void **)&player.memory[1]), 0);
    for (uint32_t round = 0; round < mix->rounds; round++) {
        char report[64];
        (void)snprintf(report, sizeof report, "seed %llu, round %u", (unsigned long long)mix->seed, round);
        rank_report(rank, report);
        make_plan(&plan, mix->seed, round, rank->size);
        play(&player, &plan);
    }
    muster_free(player.group, player.memory[1]);
    muster_group_free(player.part);
    muster_group_free(player.group);
    free(player.memory[0]);
    free(player.data);
    free(player.all);
    rank_mark(rank, MARK_OVER);
    return 0;
}

/* ---- the test's side ---- */

static bool is_over(const struct ranks *ranks, uint32_t rank) {
    siginfo_t info = {0};
    return ranks_mark_time_ns(ranks, rank, MARK_OVER) != 0 ||
           waitid(P_PID, (id_t)ranks_pid(ranks, rank), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0;
}

/* Stops now this rank, now that one, for a moment, until one is over. */
static void disturb(const struct ranks *ranks, uint32_t size, uint64_t *chance) {
    for (uint32_t rank = below(chance, size); !is_over(ranks, rank); rank = below(chance, size)) {
        (void)kill(ranks_pid(ranks, rank), SIGSTOP);
        (void)poll(NULL, 0, (int)below(chance, 4));
        (void)kill(ranks_pid(ranks, rank), SIGCONT);
        (void)poll(NULL, 0, (int)below(chance, 4));
    }
}

struct layout {
    uint32_t size;
    struct ranks_options options;
    bool has_cma;
};

static const struct layout layouts[] = {
    {.size = 4, .has_cma = true},
    {.size = 4, .options.ranks_per_host = 2, .has_cma = true},
    {.size = 3, .options.ranks_per_host = 1, .has_cma = true},
    {.size = 5, .options.ranks_per_host = 3},
    {.size = 2},
};
enum { LAYOUT_COUNT = sizeof layouts / sizeof *layouts };

static void run_layout(const struct layout *layout, uint32_t rounds, uint64_t seed) {
    struct mix mix = {.seed = seed, .rounds = rounds, .has_cma = layout->has_cma};
    uint64_t chance = seed;
    struct ranks *ranks = ranks_start(layout->size, be_player, &mix, &layout->options);
    if (seed % 2 == 0) {
        disturb(ranks, layout->size, &chance);
    }
    for (uint32_t rank = 0; rank < layout->size; rank++) {
        int result = ranks_wait(ranks, rank);
        if (result != 0) {
            fail_msg("rank %u of %u ended with %d: %s", rank, layout->size, result, ranks_report(ranks, rank));
        }
    }
    ranks_free(ranks);
}

static uint32_t wanted_rounds = 2 * ROUNDS; /* with an even seed ranks are stopped, which also wakes them */
static uint64_t wanted_seed = 3;

static void all_ends_whatever_the_order(void **state) {
    (void)state;
    for (uint32_t begun = 0; begun < wanted_rounds; begun += ROUNDS) { /* new processes now and then */
        for (size_t i = 0; i < LAYOUT_COUNT; i++) {
            run_layout(&layouts[i], ROUNDS, wanted_seed + begun / ROUNDS);
        }
    }
}

int main(int argc, char **argv) {
    wanted_rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : wanted_rounds;
    wanted_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : wanted_seed;
    const struct CMUnitTest tests[] = {cmocka_unit_test(all_ends_whatever_the_order)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
