/* When a member of a group began a call, for its neighbours' traces: in memory that all members on one host map. Its
 * owner alone writes it; a place is used again for later calls, so the number of the call stands beside the time, and
 * is looked at before and after. Pure. */
#ifndef COMM_CALL_TIME_H
#define COMM_CALL_TIME_H

#include <stdatomic.h>
#include <stdint.h>

struct call_time {
    _Atomic uint64_t number; /* of the call; 0 while the time changes */
    _Atomic int64_t begun_ns;
};

static inline void call_time_note(struct call_time *place, uint64_t number, int64_t now_ns) {
    atomic_store_explicit(&place->number, 0, memory_order_relaxed);
    atomic_store_explicit(&place->begun_ns, now_ns, memory_order_release); /* who sees it sees the 0, or what follows */
    atomic_store_explicit(&place->number, number, memory_order_release);
}

/* 0: it is not that call's. */
static inline int64_t call_time_of(const struct call_time *place, uint64_t number) {
    if (atomic_load_explicit(&place->number, memory_order_acquire) != number) {
        return 0;
    }
    int64_t begun_ns =
        atomic_load_explicit(&place->begun_ns, memory_order_acquire); /* before it is asked whose it was */
    return atomic_load_explicit(&place->number, memory_order_relaxed) == number ? begun_ns : 0;
}

#endif
