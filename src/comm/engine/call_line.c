/* Comparing what two members of a group have called; see call_line.h. */
#include "comm/engine/call_line.h"

uint64_t call_line_difference(const struct call_line *own, const struct call_line *other) {
    uint64_t ours = call_line_begun(own), theirs = call_line_begun(other);
    uint64_t last = theirs < ours ? theirs : ours;
    uint64_t newest = theirs > ours ? theirs : ours;
    uint64_t oldest =
        newest >= CALL_LINE_HISTORY ? newest - CALL_LINE_HISTORY + 2 : 1; /* the next may be being noted */
    for (uint64_t number = oldest; number <= last; number++) {
        if (call_line_fingerprint(own, number) != call_line_fingerprint(other, number)) {
            return number;
        }
    }
    return 0;
}
