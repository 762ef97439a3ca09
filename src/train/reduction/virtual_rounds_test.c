/* Rounds of virtual ranks: whoever adds up has the sum of the tree in the end, on every layout of hosts and by every
 * way. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "train/reduction/virtual_rounds.h"

enum { RANKS_MAX = 12, VIRTUAL_MOST = 40, WIDTH = 64 };

/* Stands for an addition, in which neither order nor brackets may be changed. */
static uint64_t add(uint64_t left, uint64_t right) {
    uint64_t x = left * UINT64_C(0x9e3779b97f4a7c15) + (right ^ (right >> 31)) + 1;
    return (x ^ (x >> 29)) * UINT64_C(0xbf58476d1ce4e5b9);
}

static uint64_t leaf(uint32_t v) {
    return v * UINT64_C(0x94d049bb133111eb) + 12345;
}

static uint64_t tree(uint32_t begin, uint32_t width, uint32_t virtual_ranks) {
    if (width == 1) {
        return leaf(begin);
    }
    uint64_t left = tree(begin, width / 2, virtual_ranks);
    uint32_t middle = begin + width / 2;
    return middle >= virtual_ranks ? left : add(left, tree(middle, width / 2, virtual_ranks));
}

/* A job: one plan for each host. */
struct job {
    uint32_t hosts, each;
    uint32_t host_of[RANKS_MAX];
    struct virtual_rounds rounds[RANKS_MAX];
};

static uint64_t value_of(const struct virtual_rounds *rounds, uint32_t rank) {
    assert_true(rank < rounds->present);
    return leaf(rounds->round * rounds->ranks + rank);
}

/* What the ranks of a host pass on. Returns how many values. */
static uint32_t add_up_host(const struct virtual_rounds *rounds, uint64_t *values) {
    uint32_t depth = 0;
    for (uint32_t i = 0; i < rounds->own_host.count; i++) {
        values[depth++] = value_of(rounds, rounds->members[rounds->own_host.list[i].place]);
        for (uint32_t n = 0; n < rounds->own_host.list[i].additions; n++, depth--) {
            values[depth - 2] = add(values[depth - 2], values[depth - 1]);
        }
    }
    return depth;
}

/* Everything that arrives in a round, as it lies in memory. */
static uint32_t receive(const struct job *job, uint64_t *values) {
    const struct virtual_rounds *rounds = &job->rounds[0];
    uint32_t count = 0;
    for (uint32_t member = 0; rounds->way == VIRTUAL_STRAIGHT && member < rounds->member_count; member++) {
        if (rounds->members[member] < rounds->present) {
            values[count++] = value_of(rounds, rounds->members[member]);
        }
    }
    for (uint32_t host = 0; rounds->way != VIRTUAL_STRAIGHT && host < job->hosts; host++) {
        uint64_t sums[RANKS_MAX];
        uint32_t sum_count = add_up_host(&job->rounds[host], sums);
        assert_int_equal(sum_count, rounds->host_counts[host]);
        for (uint32_t i = 0; i < sum_count; i++, count++) {
            values[virtual_rounds_place(rounds, host, i)] = sums[i];
        }
    }
    return count;
}

/* A step, from what every host plans. */
static uint64_t step(struct job *job, uint32_t *most) {
    uint64_t stack[VIRTUAL_NODES_MAX] = {0};
    bool is_over = false;
    while (!is_over) {
        uint64_t values[RANKS_MAX];
        for (uint32_t host = 0; host < job->hosts; host++) {
            virtual_rounds_begin(&job->rounds[host]);
        }
        const struct virtual_rounds *rounds = &job->rounds[0];
        uint32_t count = receive(job, values), depth = rounds->waiting.count;
        assert_int_equal(count, rounds->arrivals.count);
        *most = count > *most ? count : *most;
        for (uint32_t i = 0; i < count; i++) {
            stack[depth++] = values[rounds->arrivals.list[i].place];
            for (uint32_t n = 0; n < rounds->arrivals.list[i].additions; n++, depth--) {
                stack[depth - 2] = add(stack[depth - 2], stack[depth - 1]);
            }
        }
        assert_int_equal(depth, rounds->after.count);
        assert_true(virtual_rounds_is_last(rounds) ||
                    depth <= virtual_rounds_deepest(rounds->virtual_ranks, rounds->ranks));
        for (uint32_t host = 0; host < job->hosts; host++) {
            is_over = virtual_rounds_end(&job->rounds[host]);
        }
    }
    return stack[0];
}

static void check(struct job *job, enum virtual_way way, bool are_neighbours) {
    uint32_t ranks = job->hosts * job->each;
    for (uint32_t virtual_ranks = ranks; virtual_ranks <= VIRTUAL_MOST; virtual_ranks++) {
        uint32_t most = 0;
        for (uint32_t host = 0; host < job->hosts; host++) {
            assert_int_equal(
                virtual_rounds_init(&job->rounds[host], virtual_ranks, job->host_of, job->hosts, job->each, host), 0);
            assert_int_equal(job->rounds[host].are_neighbours, are_neighbours);
            virtual_rounds_choose(&job->rounds[host], way);
        }
        for (int i = 0; i < 2; i++) { /* nothing is left of the step before */
            assert_true(step(job, &most) == tree(0, WIDTH, virtual_ranks));
        }
        if (way != VIRTUAL_STRAIGHT && are_neighbours) {
            assert_int_equal(most, virtual_rounds_most(virtual_ranks, job->hosts, job->each));
        }
        for (uint32_t host = 0; host < job->hosts; host++) {
            virtual_rounds_done(&job->rounds[host]);
        }
    }
}

static void check_layout(uint32_t hosts, uint32_t each) {
    struct job job = {.hosts = hosts, .each = each};
    for (int is_crossed = 0; is_crossed < 2; is_crossed++) {
        for (uint32_t rank = 0; rank < hosts * each; rank++) {
            job.host_of[rank] = is_crossed ? rank % hosts : rank / each;
        }
        bool are_neighbours = !is_crossed || hosts == 1 || each == 1;
        check(&job, VIRTUAL_STRAIGHT, are_neighbours);
        check(&job, VIRTUAL_BY_HOST, are_neighbours);
        check(&job, VIRTUAL_BY_SUM, are_neighbours);
    }
}

static void sums_are_those_of_the_tree(void **state) {
    (void)state;
    for (uint32_t hosts = 1; hosts <= RANKS_MAX; hosts++) {
        for (uint32_t each = 1; hosts * each <= RANKS_MAX; each++) {
            check_layout(hosts, each);
        }
    }
}

static void aligned_hosts_pass_on_one_sum(void **state) {
    (void)state;
    assert_int_equal(virtual_rounds_most(64, 4, 8), 4);
    assert_int_equal(virtual_rounds_most(4096, 64, 64), 64);
    assert_int_equal(virtual_rounds_most(6, 2, 3), 4); /* 0+1 and 2; 3 and 4+5 */
}

static void who_ends_early(void **state) {
    (void)state;
    const uint32_t host_of[3] = {0, 0, 0};
    struct virtual_rounds rounds;
    assert_int_equal(virtual_rounds_init(&rounds, 7, host_of, 1, 3, 0), 0);
    assert_true(!virtual_rounds_ends_early(&rounds, 0) && virtual_rounds_ends_early(&rounds, 1));
    virtual_rounds_done(&rounds);
    assert_int_equal(virtual_rounds_init(&rounds, 6, host_of, 1, 3, 0), 0);
    assert_false(virtual_rounds_ends_early(&rounds, 2));
    virtual_rounds_done(&rounds);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_those_of_the_tree),
        cmocka_unit_test(aligned_hosts_pass_on_one_sum),
        cmocka_unit_test(who_ends_early),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
