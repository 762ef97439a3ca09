/* Rings: each rank sends to the next and receives from the one before, one block a step, so that no link carries more
 * than it must. P is the size, n the bytes of the whole buffer in all_reduce, reduce and broadcast, of one block
 * elsewhere; bytes are those that a rank sends.
 *
 * Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009; broadcast
 * as scatter and all_gather: Barnett, Gupta, Payne, Shuler, van de Geijn and Watts, "Interprocessor collective
 * communication library", 1994. Pure. */
#include "comm/schedule/schedule_impl.h"

static uint32_t next_of(const struct schedule *schedule) {
    return schedule_after(schedule, schedule->rank, 1);
}

static uint32_t previous_of(const struct schedule *schedule) {
    return schedule_before(schedule, schedule->rank, 1);
}

/* P-1 steps; each rank sends all blocks but its own. Block b sets out at rank b+1 as that rank's operand, and is
 * combined with each further rank's: x[b+1] op x[b+2] op ... op x[b], from the left, by one rank each. The sums on the
 * way lie in their place of the receive buffer (`is_whole`), or in two blocks of scratch in turns; the last one at
 * `last`, which is where the rank's own block belongs. */
static void reduce_around(struct schedule *schedule, const struct blocks *blocks, bool is_whole,
                          struct schedule_place last) {
    struct block block = blocks_before(blocks, blocks_at(blocks, schedule->rank));
    struct schedule_place sum = schedule_at(SCHEDULE_SEND, block.begin);
    size_t longest = is_whole ? 0 : blocks_longest(blocks);
    for (uint32_t turn = 0; turn + 1 < schedule->size; turn++, schedule->step++) {
        schedule_send(schedule, next_of(schedule), sum, block.count);
        block = blocks_before(blocks, block);
        sum = is_whole ? schedule_at(SCHEDULE_RECEIVE, block.begin) : schedule_at(SCHEDULE_SCRATCH, turn % 2 * longest);
        if (turn + 2 == schedule->size) {
            sum = last;
        }
        schedule_receive_reduce(schedule, previous_of(schedule), sum, schedule_at(SCHEDULE_SEND, block.begin),
                                block.count, true);
    }
}

/* P-1 steps: each rank passes on what it got last, beginning with its own block at `own`. */
static void gather_around(struct schedule *schedule, const struct blocks *blocks, struct schedule_place own) {
    struct block block = blocks_at(blocks, schedule->rank);
    struct schedule_place at = own;
    for (uint32_t turn = 0; turn + 1 < schedule->size; turn++, schedule->step++) {
        schedule_send(schedule, next_of(schedule), at, block.count);
        block = blocks_before(blocks, block);
        at = schedule_at(SCHEDULE_RECEIVE, block.begin);
        schedule_receive(schedule, previous_of(schedule), at, block.count);
    }
}

/* 2(P-1) steps, 2n(P-1)/P bytes, no scratch. */
void schedule_ring_all_reduce(struct schedule *schedule) {
    struct blocks parts = blocks_parted(schedule->size, schedule->call->count);
    struct schedule_place own = schedule_at(SCHEDULE_RECEIVE, blocks_begin(&parts, schedule->rank));
    reduce_around(schedule, &parts, true, own);
    gather_around(schedule, &parts, own);
}

/* P-1 steps, (P-1)n bytes, scratch 2n. Any counts. */
void schedule_ring_reduce_scatter(struct schedule *schedule) {
    reduce_around(schedule, &schedule->blocks, false, schedule_at(SCHEDULE_RECEIVE, 0));
}

/* P-1 steps, (P-1)n bytes, no scratch. Any counts. */
void schedule_ring_all_gather(struct schedule *schedule) {
    struct block own = blocks_at(&schedule->blocks, schedule->rank);
    gather_around(schedule, &schedule->blocks, schedule_at(SCHEDULE_SEND, 0));
    schedule_keep(schedule, schedule_at(SCHEDULE_RECEIVE, own.begin), schedule_at(SCHEDULE_SEND, 0), own.count);
}

/* P steps, n bytes (n + n(P-1)/P to the root), scratch 2n/P: a reduce_scatter, then everybody's part to the root. */
void schedule_ring_reduce(struct schedule *schedule) {
    struct blocks parts = blocks_parted(schedule->size, schedule->call->count);
    struct block own = blocks_at(&parts, schedule->rank), part = own;
    bool is_root = schedule->rank == schedule->call->root;
    struct schedule_place sum = is_root ? schedule_at(SCHEDULE_RECEIVE, own.begin)
                                        : schedule_at(SCHEDULE_SCRATCH, schedule->size % 2 * blocks_longest(&parts));
    reduce_around(schedule, &parts, false, sum);
    if (!is_root) {
        schedule_send(schedule, schedule->call->root, sum, own.count);
        return;
    }
    for (uint32_t distance = 1; distance < schedule->size; distance++) {
        part = blocks_before(&parts, part);
        schedule_receive(schedule, part.index, schedule_at(SCHEDULE_RECEIVE, part.begin), part.count);
    }
}

/* ceil(log2 P) + P-1 steps, at most 2n(P-1)/P bytes, no scratch: parts are scattered along a binomial tree, then go
 * round the ring. What the tree has left with a rank on the way is not sent to it again. Ranks and parts are counted
 * from the root. */
void schedule_ring_broadcast(struct schedule *schedule) {
    struct blocks parts = blocks_parted(schedule->size, schedule->call->count);
    uint32_t relative = schedule_before(schedule, schedule->rank, schedule->call->root);
    uint32_t next = (relative + 1) % schedule->size;
    schedule_binomial_spread(schedule, &parts);
    struct block block = blocks_at(&parts, relative);
    for (uint32_t turn = 0; turn + 1 < schedule->size; turn++, schedule->step++) {
        if (block.index < next || block.index >= schedule_binomial_end(schedule, next)) {
            schedule_send(schedule, next_of(schedule), schedule_at(SCHEDULE_RECEIVE, block.begin), block.count);
        }
        block = blocks_before(&parts, block);
        if (block.index < relative || block.index >= schedule_binomial_end(schedule, relative)) {
            schedule_receive(schedule, previous_of(schedule), schedule_at(SCHEDULE_RECEIVE, block.begin), block.count);
        }
    }
}
