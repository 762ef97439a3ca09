/* Where a member of a group is in the group's calls: one line a member, in memory that all members on one host map. Its
 * owner alone writes it, once a call; neighbours read it to notice that they make different calls, and to say in a
 * sentence who is late. Pure. */
#ifndef COMM_CALL_LINE_H
#define COMM_CALL_LINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/engine/call.h"

/* Calls whose fingerprints are kept: more than one member can be ahead of another (NODE_LINES), so that the first call
 * that differs can be named. */
enum { CALL_LINE_HISTORY = 256 };

struct call_line {
    _Alignas(64) _Atomic uint64_t begun; /* number of the last call; after its fingerprint */
    _Atomic uint64_t finished;           /* the member needs nothing more of it, and gives nothing more */
    _Atomic int64_t begun_ns;            /* monotonic */
    _Alignas(64) _Atomic uint64_t fingerprints[CALL_LINE_HISTORY]; /* of call n at n % CALL_LINE_HISTORY */
};

/* The owner begins call `number`, the one after its last. The fingerprint comes after `begun` of the last one: so at
 * most one call that is not counted yet has taken the place of an old one. */
static inline void call_line_begin(struct call_line *line, uint64_t number, uint64_t fingerprint, int64_t now_ns) {
    atomic_store_explicit(&line->fingerprints[number % CALL_LINE_HISTORY], fingerprint, memory_order_release);
    atomic_store_explicit(&line->begun_ns, now_ns, memory_order_relaxed);
    atomic_store_explicit(&line->begun, number, memory_order_release);
}

static inline void call_line_finish(struct call_line *line, uint64_t number) {
    atomic_store_explicit(&line->finished, number, memory_order_release);
}

static inline uint64_t call_line_begun(const struct call_line *line) {
    return atomic_load_explicit(&line->begun, memory_order_acquire);
}

static inline uint64_t call_line_finished(const struct call_line *line) {
    return atomic_load_explicit(&line->finished, memory_order_acquire);
}

/* 0 for number 0. Only meaningful for one of the last CALL_LINE_HISTORY calls that the line has begun, and while its
 * owner does not go on: whoever looks afterwards how far that is has loaded the fingerprint before. */
static inline uint64_t call_line_fingerprint(const struct call_line *line, uint64_t number) {
    return number == 0 ? 0
                       : atomic_load_explicit(&line->fingerprints[number % CALL_LINE_HISTORY], memory_order_acquire);
}

/* The fingerprint with which another member has begun call `number`; 0: it has not, or its line has it no more. The
 * line tells how far its owner is before, so that the call is there, and after, so that none has taken its place. */
static inline uint64_t call_line_known_print(const struct call_line *line, uint64_t number) {
    if (call_line_begun(line) < number) {
        return 0;
    }
    uint64_t print = call_line_fingerprint(line, number);
    return call_line_begun(line) - number < CALL_LINE_HISTORY - 1 ? print : 0;
}

/* The first call that both have begun, that both lines still keep, and that differs; 0: none. */
uint64_t call_line_difference(const struct call_line *own, const struct call_line *other);

/* Has the owner of one of `count` lines begun call `number` with another fingerprint than `own`, which has begun it?
 * `own` may be one of them, and NULL if there are none. Any time: an owner that has not begun it may do so at once, and
 * one that is far ahead may put another call in its place. */
bool call_line_is_mismatched(const struct call_line *own, const struct call_line *const *lines, uint32_t count,
                             uint64_t number);

#endif
