/* Prefixes: rank r gets the reduction over ranks 0 to r (scan), or 0 to r-1 (exscan). P is the size, n the bytes of the
 * buffer.
 *
 * After the step of distance d a rank has the reduction over the 2d ranks up to itself, or over all from rank 0 on. It
 * sends what it had before the step to the rank d above it, and puts what comes from d below before its own: operands
 * stay in the order of ranks. In exscan all hand their inputs to the next rank first, and what follows is the scan of
 * these, without rank 0, which is given nothing.
 *
 * Source: Hillis and Steele, "Data parallel algorithms", Communications of the ACM 29 (12), 1986. Pure. */
#include "comm/schedule/schedule_impl.h"

/* Steps in which this one, of all that take part, is sent something: as many as its place has bits. */
static uint32_t bits_of(uint32_t place) {
    uint32_t bits = 0;
    while (place >> bits != 0) {
        bits++;
    }
    return bits;
}

/* Where the next of `left` results lands. What a step sends may not be written in it: results go to the receive buffer
 * and to scratch in turns, the last one to the receive buffer, unless the first would be written where the input is
 * still being sent from. */
static struct schedule_place next_place(const struct schedule *schedule, struct schedule_place now, uint32_t left) {
    bool is_first = now.buffer == SCHEDULE_SEND;
    bool to_receive = is_first ? left % 2 == 1 && !schedule->in_place : now.buffer == SCHEDULE_SCRATCH;
    return schedule_at(to_receive ? SCHEDULE_RECEIVE : SCHEDULE_SCRATCH, 0);
}

/* ceil(log2 P) steps (exscan: one more, of one rank less), n bytes in each; scratch n. */
void schedule_doubling_scan(struct schedule *schedule) {
    bool is_shifted = schedule->call->operation == COMM_EXSCAN;
    size_t count = schedule->call->count;
    uint32_t rank = schedule->rank, first = is_shifted ? 1 : 0;
    struct schedule_place now = schedule_at(SCHEDULE_SEND, 0);
    uint32_t left = (is_shifted && rank > 0) + bits_of(rank - (rank > 0 ? first : 0));
    if (is_shifted) {
        struct schedule_place to = next_place(schedule, now, left);
        if (rank + 1 < schedule->size) {
            schedule_send(schedule, rank + 1, now, count);
        }
        if (rank == 0) {
            return;
        }
        schedule_receive(schedule, rank - 1, to, count);
        schedule->step++;
        now = to;
        left--;
    }
    for (uint32_t distance = 1; distance < schedule->size - first; distance *= 2, schedule->step++) {
        struct schedule_place to = next_place(schedule, now, left);
        if (rank + distance < schedule->size) {
            schedule_send(schedule, rank + distance, now, count);
        }
        if (rank >= first + distance) {
            schedule_receive_reduce(schedule, rank - distance, to, now, count, true);
            now = to;
            left--;
        }
    }
    if (now.buffer == SCHEDULE_SEND) {
        schedule_keep(schedule, schedule_at(SCHEDULE_RECEIVE, 0), now, count); /* rank 0 of a scan */
    } else if (now.buffer == SCHEDULE_SCRATCH) {
        schedule->step--;
        schedule_copy(schedule, schedule_at(SCHEDULE_RECEIVE, 0), now, count);
    }
}
