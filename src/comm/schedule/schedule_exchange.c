/* Schedules in which every rank has something for every other: barriers and all_to_all. P is the size, n the bytes of
 * one block; bytes are those that a rank sends. Pure. */
#include "comm/schedule/schedule_impl.h"

/* ceil(log2 P) steps, no bytes. Whoever leaves step k has heard, over others, of the 2^(k+1) ranks up to itself.
 * Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988. */
void schedule_dissemination(struct schedule *schedule) {
    struct schedule_place nothing = schedule_at(SCHEDULE_SEND, 0);
    for (uint64_t distance = 1; distance < schedule->size; distance *= 2) {
        schedule_send(schedule, schedule_after(schedule, schedule->rank, (uint32_t)distance), nothing, 0);
        schedule_receive(schedule, schedule_before(schedule, schedule->rank, (uint32_t)distance), nothing, 0);
        schedule->step++;
    }
}

/* (P-1)n bytes. In place the blocks are copied aside first: scratch for all of them, and one more step. */
static void all_to_all(struct schedule *schedule, uint32_t step_per_distance) {
    const struct comm_call *call = schedule->call;
    struct blocks sent = blocks_equal(schedule->size, call->count, call->send_counts);
    struct block to = blocks_at(&sent, schedule->rank), from = blocks_at(&schedule->blocks, schedule->rank);
    struct schedule_place kept = schedule_at(SCHEDULE_RECEIVE, from.begin), own = schedule_at(SCHEDULE_SEND, to.begin);
    size_t own_count = to.count;
    enum schedule_buffer source = SCHEDULE_SEND;
    if (schedule->in_place) {
        source = SCHEDULE_SCRATCH;
        schedule_copy(schedule, schedule_at(source, 0), schedule_at(SCHEDULE_SEND, 0), sent.total);
        schedule->step++;
    }
    /* Receives walk down the ranks while sends walk up, so that each step is a permutation of the ranks. */
    for (uint32_t distance = 1; distance < schedule->size; distance++) {
        from = blocks_before(&schedule->blocks, from);
        schedule_receive(schedule, from.index, schedule_at(SCHEDULE_RECEIVE, from.begin), from.count);
        to = blocks_after(&sent, to);
        schedule_send(schedule, to.index, schedule_at(source, to.begin), to.count);
        schedule->step += step_per_distance;
    }
    schedule_keep(schedule, kept, own, own_count);
}

/* 1 step. */
void schedule_flat_all_to_all(struct schedule *schedule) {
    all_to_all(schedule, 0);
}

/* P-1 steps: in step k to the k-th rank after and from the k-th before, one message each way at a time.
 * Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005, section 4.4. */
void schedule_pairwise_all_to_all(struct schedule *schedule) {
    all_to_all(schedule, 1);
}

static struct schedule_place block_in(enum schedule_buffer buffer, const struct schedule *schedule, uint64_t index) {
    return schedule_at(buffer, (size_t)index * schedule->call->count);
}

/* Copies the blocks whose number has the bit between their places and a dense row that begins at `dense`. Returns how
 * many there are. */
static uint32_t pack(struct schedule *schedule, uint64_t bit, uint32_t dense, bool unpack) {
    uint32_t packed = 0;
    for (uint32_t index = 0; index < schedule->size; index++) {
        if (index & bit) {
            struct schedule_place loose = block_in(SCHEDULE_SCRATCH, schedule, index);
            struct schedule_place row = block_in(SCHEDULE_SCRATCH, schedule, (uint64_t)dense + packed++);
            schedule_copy(schedule, unpack ? loose : row, unpack ? row : loose, schedule->call->count);
        }
    }
    return packed;
}

/* ceil(log2 P) steps and one of copying, each of up to nP/2 bytes; scratch 2nP: blocks are
 * passed on by others, packed together. Block i of scratch is on its way to the rank i places on; in the step of a bit
 * the blocks with that bit in i travel. At the end block i has come from the rank i places back.
 * Bruck et al., "Efficient algorithms for all-to-all communications in multiport message-passing systems", 1997. */
void schedule_bruck_all_to_all(struct schedule *schedule) {
    uint32_t size = schedule->size, rank = schedule->rank;
    size_t count = schedule->call->count;
    uint32_t row_out = size, row_in = size + size / 2;
    schedule_copy(schedule, block_in(SCHEDULE_SCRATCH, schedule, 0), block_in(SCHEDULE_SEND, schedule, rank),
                  (size - rank) * count);
    schedule_copy(schedule, block_in(SCHEDULE_SCRATCH, schedule, size - rank), block_in(SCHEDULE_SEND, schedule, 0),
                  rank * count);
    uint32_t packed = pack(schedule, 1, row_out, false);
    for (uint64_t bit = 1; bit < size; bit *= 2) {
        schedule->step++;
        schedule_send(schedule, schedule_after(schedule, rank, (uint32_t)bit),
                      block_in(SCHEDULE_SCRATCH, schedule, row_out), packed * count);
        schedule_receive(schedule, schedule_before(schedule, rank, (uint32_t)bit),
                         block_in(SCHEDULE_SCRATCH, schedule, row_in), packed * count);
        pack(schedule, bit, row_in, true);
        packed = bit * 2 < size ? pack(schedule, bit * 2, row_out, false) : 0;
    }
    for (uint32_t index = 0; index < size; index++) {
        schedule_copy(schedule, block_in(SCHEDULE_RECEIVE, schedule, schedule_before(schedule, rank, index)),
                      block_in(SCHEDULE_SCRATCH, schedule, index), count);
    }
}
