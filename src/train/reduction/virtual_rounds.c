/* See virtual_rounds.h. */
#include "train/reduction/virtual_rounds.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"

/* ---- who is where ---- */

static void number_rows(struct virtual_rounds *rounds, const uint32_t *host_of) {
    uint32_t *seen = rounds->host_counts;
    rounds->are_neighbours = true;
    for (uint32_t rank = 0; rank < rounds->ranks; rank++) {
        uint32_t host = host_of[rank];
        rounds->row_ranks[host * rounds->each + seen[host]++] = rank;
        rounds->are_neighbours = rounds->are_neighbours && host == rank / rounds->each;
    }
    memset(seen, 0, rounds->hosts * sizeof *seen);
}

/* The order of mesh.h: column by column, or those of a row. */
void virtual_rounds_choose(struct virtual_rounds *rounds, enum virtual_way way) {
    rounds->way = way;
    rounds->member_count = way == VIRTUAL_STRAIGHT ? rounds->ranks : rounds->each;
    for (uint32_t member = 0; member < rounds->member_count; member++) {
        uint32_t host = way == VIRTUAL_STRAIGHT ? member % rounds->hosts : rounds->host;
        uint32_t column = way == VIRTUAL_STRAIGHT ? member / rounds->hosts : member;
        rounds->members[member] = rounds->row_ranks[host * rounds->each + column];
    }
}

int virtual_rounds_init(struct virtual_rounds *rounds, uint32_t virtual_ranks, const uint32_t *host_of, uint32_t hosts,
                        uint32_t each, uint32_t host) {
    uint32_t ranks = hosts * each;
    *rounds = (struct virtual_rounds){.virtual_ranks = virtual_ranks,
                                      .ranks = ranks,
                                      .rounds = virtual_turns_of(virtual_ranks, 0, ranks),
                                      .hosts = hosts,
                                      .each = each,
                                      .host = host,
                                      .row_ranks = calloc(ranks, sizeof *rounds->row_ranks),
                                      .members = calloc(ranks, sizeof *rounds->members),
                                      .host_counts = calloc(ranks, sizeof *rounds->host_counts),
                                      .places = calloc(ranks, sizeof *rounds->places)};
    rounds->arrivals.list = calloc(ranks, sizeof *rounds->arrivals.list);
    rounds->own_host.list = calloc(ranks, sizeof *rounds->own_host.list);
    if (!rounds->row_ranks || !rounds->members || !rounds->host_counts || !rounds->places || !rounds->arrivals.list ||
        !rounds->own_host.list) {
        virtual_rounds_done(rounds);
        return status_fail(MUSTER_ENOMEM, "no memory to plan %u virtual ranks", virtual_ranks);
    }
    number_rows(rounds, host_of);
    virtual_rounds_choose(rounds, VIRTUAL_STRAIGHT);
    return MUSTER_OK;
}

void virtual_rounds_done(struct virtual_rounds *rounds) {
    free(rounds->row_ranks);
    free(rounds->members);
    free(rounds->host_counts);
    free(rounds->places);
    free(rounds->arrivals.list);
    free(rounds->own_host.list);
    *rounds = (struct virtual_rounds){.round = 0};
}

/* ---- who comes when ---- */

static struct virtual_node leaf_of(const struct virtual_rounds *rounds, uint32_t rank) {
    return (struct virtual_node){0, rounds->round * rounds->ranks + rank};
}

static void arrive(struct virtual_arrivals *arrivals, uint32_t place, uint32_t additions) {
    arrivals->list[arrivals->count++] = (struct virtual_arrival){place, additions};
}

/* All that comes is of one virtual rank each, at the places that have been found. */
static void plan_leaves(struct virtual_rounds *rounds) {
    for (uint32_t rank = 0; rank < rounds->present; rank++) {
        arrive(&rounds->arrivals, rounds->places[rank], virtual_stack_push(&rounds->after, leaf_of(rounds, rank)));
    }
}

static void plan_straight(struct virtual_rounds *rounds) {
    uint32_t next = 0;
    for (uint32_t member = 0; member < rounds->member_count; member++) {
        if (rounds->members[member] < rounds->present) {
            rounds->places[rounds->members[member]] = next++;
        }
    }
    plan_leaves(rounds);
}

/* The ranks of a host, neighbours, add up what they can: *nodes. own: how, or NULL. */
static void add_up(const struct virtual_rounds *rounds, uint32_t host, struct virtual_stack *nodes,
                   struct virtual_arrivals *own) {
    const uint32_t *ranks = rounds->row_ranks + (size_t)host * rounds->each;
    nodes->count = 0;
    for (uint32_t column = 0; column < rounds->each && ranks[column] < rounds->present; column++) {
        uint32_t additions = virtual_stack_push(nodes, leaf_of(rounds, ranks[column]));
        if (own) {
            arrive(own, column, additions);
        }
    }
}

uint32_t virtual_rounds_givers(const struct virtual_rounds *rounds, uint32_t number, uint32_t host) {
    uint32_t count = 0;
    for (uint32_t other = 0; other < host; other++) {
        count += rounds->host_counts[other] > number;
    }
    return count;
}

uint32_t virtual_rounds_place(const struct virtual_rounds *rounds, uint32_t host, uint32_t number) {
    uint32_t place = 0;
    if (rounds->way == VIRTUAL_BY_SUM) {
        for (uint32_t before = 0; before < number; before++) {
            place += virtual_rounds_givers(rounds, before, rounds->hosts);
        }
        return place + virtual_rounds_givers(rounds, number, host);
    }
    for (uint32_t other = 0; other < host; other++) {
        place += rounds->host_counts[other];
    }
    return place + number;
}

static void plan_sums(struct virtual_rounds *rounds) {
    struct virtual_stack nodes;
    for (uint32_t host = 0; host < rounds->hosts; host++) {
        add_up(rounds, host, &nodes, host == rounds->host ? &rounds->own_host : NULL);
        rounds->host_counts[host] = nodes.count;
    }
    for (uint32_t host = 0; host < rounds->hosts; host++) {
        add_up(rounds, host, &nodes, NULL);
        for (uint32_t i = 0; i < nodes.count; i++) {
            arrive(&rounds->arrivals, virtual_rounds_place(rounds, host, i),
                   virtual_stack_push(&rounds->after, nodes.nodes[i]));
        }
    }
}

/* Between the ranks of a host there are others: all values are passed on as they are. */
static void plan_strangers(struct virtual_rounds *rounds) {
    for (uint32_t host = 0; host < rounds->hosts; host++) {
        const uint32_t *ranks = rounds->row_ranks + (size_t)host * rounds->each;
        uint32_t count = 0;
        while (count < rounds->each && ranks[count] < rounds->present) {
            count++;
        }
        rounds->host_counts[host] = count;
    }
    for (uint32_t host = 0; host < rounds->hosts; host++) {
        for (uint32_t i = 0; i < rounds->host_counts[host]; i++) {
            rounds->places[rounds->row_ranks[host * rounds->each + i]] = virtual_rounds_place(rounds, host, i);
            if (host == rounds->host) {
                arrive(&rounds->own_host, i, 0);
            }
        }
    }
    plan_leaves(rounds);
}

void virtual_rounds_begin(struct virtual_rounds *rounds) {
    uint32_t left = rounds->virtual_ranks - rounds->round * rounds->ranks;
    rounds->present = left < rounds->ranks ? left : rounds->ranks;
    rounds->after = rounds->waiting;
    rounds->arrivals.count = rounds->own_host.count = 0;
    if (rounds->way == VIRTUAL_STRAIGHT) {
        plan_straight(rounds);
    } else if (rounds->are_neighbours) {
        plan_sums(rounds);
    } else {
        plan_strangers(rounds);
    }
    if (virtual_rounds_is_last(rounds)) {
        rounds->arrivals.list[rounds->arrivals.count - 1].additions += virtual_stack_close(&rounds->after);
    }
}

bool virtual_rounds_end(struct virtual_rounds *rounds) {
    bool is_last = virtual_rounds_is_last(rounds);
    rounds->waiting = rounds->after;
    rounds->waiting.count = is_last ? 0 : rounds->waiting.count;
    rounds->round = is_last ? 0 : rounds->round + 1;
    return is_last;
}

/* ---- beforehand ---- */

uint32_t virtual_rounds_most(uint32_t virtual_ranks, uint32_t hosts, uint32_t each) {
    uint32_t most = 0;
    for (uint32_t begin = 0; begin < virtual_ranks; begin += hosts * each) {
        uint32_t end = virtual_ranks - begin < hosts * each ? virtual_ranks : begin + hosts * each, count = 0;
        for (uint32_t v = begin; v < end;) {
            struct virtual_stack nodes = {.count = 0};
            for (uint32_t i = 0; i < each && v < end; i++) {
                (void)virtual_stack_push(&nodes, (struct virtual_node){0, v++});
            }
            count += nodes.count;
        }
        most = count > most ? count : most;
    }
    return most;
}
