/* Private to schedule*.c: how the generators write actions down, and how buffers are divided into blocks. Pure. */
#ifndef COMM_SCHEDULE_IMPL_H
#define COMM_SCHEDULE_IMPL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/schedule/schedule.h"

/* A buffer in `size` blocks, one after the other: of equal counts, of counts of their own, or a total in parts as equal
 * as they can be. */
struct blocks {
    uint32_t size;
    const size_t *counts; /* NULL: equal, or parts */
    size_t count;         /* of one, if equal */
    size_t total;
    bool is_parted;
};

struct block {
    uint32_t index;
    size_t begin, count;
};

struct blocks blocks_equal(uint32_t size, size_t count, const size_t *counts);
struct blocks blocks_parted(uint32_t size, size_t total);
/* Elements before block `index` (<= size). Walks over `counts`: where all blocks are visited, go from one to the next.
 */
size_t blocks_begin(const struct blocks *blocks, uint32_t index);
struct block blocks_at(const struct blocks *blocks, uint32_t index);
/* The block before, and after, round the corner. */
struct block blocks_before(const struct blocks *blocks, struct block block);
struct block blocks_after(const struct blocks *blocks, struct block block);
size_t blocks_longest(const struct blocks *blocks);

struct schedule {
    const struct comm_call *call;
    uint32_t rank, size;  /* size >= 2 */
    struct blocks blocks; /* of the buffer that holds one block per rank, if the operation has such */
    bool in_place;        /* this rank's input is where its result goes (for each operation: muster/collective.h) */
    uint32_t step;        /* of the actions that come */
    schedule_sink *sink;
    void *context;
    int result; /* of the sink; once it is not 0, nothing more is written */
};

static inline struct schedule_place schedule_at(enum schedule_buffer buffer, size_t offset) {
    return (struct schedule_place){.buffer = buffer, .offset = offset};
}

/* schedule_actions.c: */
void schedule_send(struct schedule *schedule, uint32_t to, struct schedule_place at, size_t count);
void schedule_receive(struct schedule *schedule, uint32_t from, struct schedule_place at, size_t count);
/* at = operand op incoming, or incoming op operand. */
void schedule_receive_reduce(struct schedule *schedule, uint32_t peer, struct schedule_place at,
                             struct schedule_place operand, size_t count, bool incoming_first);
/* Local; nothing for a count of 0. */
void schedule_copy(struct schedule *schedule, struct schedule_place at, struct schedule_place from, size_t count);
void schedule_reduce(struct schedule *schedule, struct schedule_place at, struct schedule_place from, size_t count);
/* A copy that a call in place does not need. */
void schedule_keep(struct schedule *schedule, struct schedule_place at, struct schedule_place from, size_t count);

/* `rank` moved by `distance` <= size round the ring. */
static inline uint32_t schedule_after(const struct schedule *schedule, uint32_t rank, uint32_t distance) {
    return (uint32_t)(((uint64_t)rank + distance) % schedule->size);
}
static inline uint32_t schedule_before(const struct schedule *schedule, uint32_t rank, uint32_t distance) {
    return (uint32_t)(((uint64_t)rank + schedule->size - distance) % schedule->size);
}

/* One function a method; each writes this rank's actions. schedule_flat.c: */
void schedule_flat_all_reduce(struct schedule *schedule);
void schedule_flat_reduce(struct schedule *schedule);
void schedule_flat_broadcast(struct schedule *schedule);
void schedule_flat_all_gather(struct schedule *schedule);
void schedule_flat_gather(struct schedule *schedule);
void schedule_flat_scatter(struct schedule *schedule);
void schedule_flat_reduce_scatter(struct schedule *schedule);
/* schedule_exchange.c: */
void schedule_dissemination(struct schedule *schedule);
void schedule_flat_all_to_all(struct schedule *schedule);
void schedule_pairwise_all_to_all(struct schedule *schedule);
void schedule_bruck_all_to_all(struct schedule *schedule);
/* schedule_binomial.c: */
void schedule_binomial_reduce(struct schedule *schedule);
void schedule_binomial_broadcast(struct schedule *schedule);
void schedule_binomial_gather(struct schedule *schedule);
void schedule_binomial_scatter(struct schedule *schedule);
/* The scatter of `blocks` of one buffer from the root, blocks and ranks both counted from the root: each rank ends up
 * with the blocks [it, schedule_binomial_end(it)), in their places of SCHEDULE_RECEIVE. */
void schedule_binomial_spread(struct schedule *schedule, const struct blocks *blocks);
uint32_t schedule_binomial_end(const struct schedule *schedule, uint32_t relative);
/* schedule_doubling.c: */
void schedule_doubling_all_reduce(struct schedule *schedule);
void schedule_doubling_all_gather(struct schedule *schedule);
void schedule_halving_reduce_scatter(struct schedule *schedule);
void schedule_rabenseifner_all_reduce(struct schedule *schedule);
/* schedule_scan.c: */
void schedule_doubling_scan(struct schedule *schedule);
/* schedule_ring.c: */
void schedule_ring_all_reduce(struct schedule *schedule);
void schedule_ring_reduce(struct schedule *schedule);
void schedule_ring_broadcast(struct schedule *schedule);
void schedule_ring_all_gather(struct schedule *schedule);
void schedule_ring_reduce_scatter(struct schedule *schedule);

#endif
