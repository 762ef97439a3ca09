/* Flat schedules: everybody straight to everybody it concerns. Few steps, many messages: for few ranks, and what the
 * others are checked against. P is the size, n the bytes of one block (of the whole buffer in all_reduce, reduce and
 * broadcast). "Steps" are those on the longest way, bytes those that the busiest rank sends, or receives if more. Pure.
 */
#include "comm/schedule/schedule_impl.h"

/* P-1 steps, (P-1)n bytes to `root`; order: the root's operand, then the others by rank. In one step each, since all go
 * to the same place; the messages may well be on their way before. Without scratch. */
static void reduce_to(struct schedule *schedule, uint32_t root) {
    size_t count = schedule->call->count;
    struct schedule_place send = schedule_at(SCHEDULE_SEND, 0), receive = schedule_at(SCHEDULE_RECEIVE, 0);
    uint32_t turn = 0;
    for (uint32_t peer = 0; peer < schedule->size; peer++) {
        if (peer == root) {
            continue;
        }
        schedule->step = turn++;
        if (schedule->rank == root) {
            schedule_receive_reduce(schedule, peer, receive, turn == 1 ? send : receive, count, false);
        } else if (schedule->rank == peer) {
            schedule_send(schedule, root, send, count);
        }
    }
    schedule->step = turn;
}

/* 1 step, (P-1)n bytes from `root`. */
static void broadcast_from(struct schedule *schedule, uint32_t root) {
    struct schedule_place buffer = schedule_at(SCHEDULE_RECEIVE, 0);
    if (schedule->rank != root) {
        schedule_receive(schedule, root, buffer, schedule->call->count);
        return;
    }
    for (uint32_t distance = 1; distance < schedule->size; distance++) {
        schedule_send(schedule, schedule_after(schedule, root, distance), buffer, schedule->call->count);
    }
}

/* P steps, (P-1)n bytes to rank 0 and as many from it. */
void schedule_flat_all_reduce(struct schedule *schedule) {
    reduce_to(schedule, 0);
    broadcast_from(schedule, 0);
}

void schedule_flat_reduce(struct schedule *schedule) {
    reduce_to(schedule, schedule->call->root);
}

void schedule_flat_broadcast(struct schedule *schedule) {
    broadcast_from(schedule, schedule->call->root);
}

/* 1 step, (P-1)n bytes. Each rank begins with its neighbour, so that not all send to the same. */
void schedule_flat_all_gather(struct schedule *schedule) {
    struct block own = blocks_at(&schedule->blocks, schedule->rank), block = own;
    for (uint32_t distance = 1; distance < schedule->size; distance++) {
        block = blocks_before(&schedule->blocks, block);
        schedule_receive(schedule, block.index, schedule_at(SCHEDULE_RECEIVE, block.begin), block.count);
        schedule_send(schedule, schedule_after(schedule, schedule->rank, distance), schedule_at(SCHEDULE_SEND, 0),
                      own.count);
    }
    schedule_keep(schedule, schedule_at(SCHEDULE_RECEIVE, own.begin), schedule_at(SCHEDULE_SEND, 0), own.count);
}

/* 1 step, (P-1)n bytes to the root. */
void schedule_flat_gather(struct schedule *schedule) {
    struct block own = blocks_at(&schedule->blocks, schedule->rank), block = own;
    if (schedule->rank != schedule->call->root) {
        schedule_send(schedule, schedule->call->root, schedule_at(SCHEDULE_SEND, 0), own.count);
        return;
    }
    for (uint32_t distance = 1; distance < schedule->size; distance++) {
        block = blocks_before(&schedule->blocks, block);
        schedule_receive(schedule, block.index, schedule_at(SCHEDULE_RECEIVE, block.begin), block.count);
    }
    schedule_keep(schedule, schedule_at(SCHEDULE_RECEIVE, own.begin), schedule_at(SCHEDULE_SEND, 0), own.count);
}

/* 1 step, (P-1)n bytes from the root. */
void schedule_flat_scatter(struct schedule *schedule) {
    struct block own = blocks_at(&schedule->blocks, schedule->rank), block = own;
    if (schedule->rank != schedule->call->root) {
        schedule_receive(schedule, schedule->call->root, schedule_at(SCHEDULE_RECEIVE, 0), own.count);
        return;
    }
    for (uint32_t distance = 1; distance < schedule->size; distance++) {
        block = blocks_before(&schedule->blocks, block);
        schedule_send(schedule, block.index, schedule_at(SCHEDULE_SEND, block.begin), block.count);
    }
    schedule_keep(schedule, schedule_at(SCHEDULE_RECEIVE, 0), schedule_at(SCHEDULE_SEND, own.begin), own.count);
}

/* 1 step, (P-1)n bytes, scratch (P-1)n. Each block is reduced by its owner alone: its own operand, then those of the
 * ranks before it, round the corner. */
void schedule_flat_reduce_scatter(struct schedule *schedule) {
    struct block own = blocks_at(&schedule->blocks, schedule->rank), block = own;
    for (uint32_t distance = 1; distance < schedule->size; distance++) {
        block = blocks_before(&schedule->blocks, block);
        schedule_send(schedule, block.index, schedule_at(SCHEDULE_SEND, block.begin), block.count);
        schedule_receive(schedule, block.index, schedule_at(SCHEDULE_SCRATCH, (distance - 1) * own.count), own.count);
    }
    schedule_keep(schedule, schedule_at(SCHEDULE_RECEIVE, 0), schedule_at(SCHEDULE_SEND, own.begin), own.count);
    for (uint32_t distance = 1; distance < schedule->size; distance++) {
        schedule_reduce(schedule, schedule_at(SCHEDULE_RECEIVE, 0),
                        schedule_at(SCHEDULE_SCRATCH, (distance - 1) * own.count), own.count);
    }
}
