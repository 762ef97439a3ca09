/* Comparing what two members of a group have called; see call_line.h. */
#include "comm/engine/call_line.h"

/* Both lines keep the calls from this one on; the next may be being noted. */
static uint64_t oldest_kept(uint64_t ours, uint64_t theirs) {
    uint64_t newest = theirs > ours ? theirs : ours;
    return newest >= CALL_LINE_HISTORY ? newest - CALL_LINE_HISTORY + 2 : 1;
}

/* What was read of call `number` is of that call, and not of a later one that has taken its place: members go on while
 * they are compared. */
static bool was_kept(const struct call_line *own, const struct call_line *other, uint64_t number) {
    return number >= oldest_kept(atomic_load_explicit(&own->begun, memory_order_relaxed),
                                 atomic_load_explicit(&other->begun, memory_order_relaxed));
}

uint64_t call_line_difference(const struct call_line *own, const struct call_line *other) {
    uint64_t ours = call_line_begun(own), theirs = call_line_begun(other);
    uint64_t last = theirs < ours ? theirs : ours;
    for (uint64_t number = oldest_kept(ours, theirs); number <= last; number++) {
        if (call_line_fingerprint(own, number) != call_line_fingerprint(other, number) &&
            was_kept(own, other, number)) {
            return number;
        }
    }
    return 0;
}

bool call_line_is_mismatched(const struct call_line *own, const struct call_line *const *lines, uint32_t count,
                             uint64_t number) {
    for (uint32_t i = 0; i < count; i++) {
        uint64_t theirs = call_line_known_print(lines[i], number);
        if (theirs != 0 && theirs != call_line_fingerprint(own, number)) {
            return true;
        }
    }
    return false;
}
