/* Finding the ends of lines, and what goes between pieces of different streams; see line_splitter.h. */
#include "agent/logs/line_splitter.h"

#include <assert.h>
#include <string.h>

void line_splitter_init(struct line_splitter *splitter, size_t piece_max, bool carriage_return_cuts) {
    assert(piece_max > 0);
    *splitter = (struct line_splitter){.piece_max = piece_max, .carriage_return_cuts = carriage_return_cuts};
}

/* Bytes up to and including the first '\n' of [from, count), or 0. */
static size_t find_newline(const uint8_t *bytes, size_t from, size_t count) {
    const uint8_t *at = memchr(bytes + from, '\n', count - from);
    return at ? (size_t)(at - bytes) + 1 : 0;
}

/* Bytes up to and including the first '\r' of [from, count) that no '\n' follows, or 0. A '\r' which is the last
 * byte known does not count: its '\n' may be on the way. */
static size_t find_carriage_return(const uint8_t *bytes, size_t from, size_t count) {
    while (from + 1 < count) {
        const uint8_t *at = memchr(bytes + from, '\r', count - from - 1);
        if (!at) {
            return 0;
        }
        if (at[1] != '\n') {
            return (size_t)(at - bytes) + 1;
        }
        from = (size_t)(at - bytes) + 2;
    }
    return 0;
}

static size_t nearer(size_t a, size_t b) {
    return a == 0 || (b != 0 && b < a) ? b : a;
}

size_t line_splitter_next(struct line_splitter *splitter, const uint8_t *bytes, size_t count, bool at_end) {
    assert(splitter->scanned_bytes <= count);
    if (count == 0) {
        return 0;
    }
    size_t limit = count < splitter->piece_max ? count : splitter->piece_max;
    size_t found = find_newline(bytes, splitter->scanned_bytes < limit ? splitter->scanned_bytes : limit, limit);
    if (splitter->carriage_return_cuts) {
        /* One byte is looked at again: a '\r' that was the last one known. */
        size_t from = splitter->scanned_bytes > 0 ? splitter->scanned_bytes - 1 : 0;
        found = nearer(found, find_carriage_return(bytes, from < limit ? from : limit, found ? found : limit));
    }
    if (found == 0 && limit == splitter->piece_max) {
        found = limit;
    }
    if (found == 0 && at_end) {
        found = count;
    }
    splitter->scanned_bytes = found ? 0 : count;
    return found;
}

size_t line_splitter_run(struct line_splitter *splitter, const uint8_t *bytes, size_t count, bool at_end) {
    if (at_end || count == 0) {
        splitter->scanned_bytes = 0;
        return count;
    }
    const uint8_t *newline = memrchr(bytes + splitter->scanned_bytes, '\n', count - splitter->scanned_bytes);
    size_t found = newline ? (size_t)(newline - bytes) + 1 : 0;
    if (splitter->carriage_return_cuts && count > 1) {
        /* After the last newline every '\r' but one in the last place is a lone one. */
        const uint8_t *lone = count - 1 > found ? memrchr(bytes + found, '\r', count - 1 - found) : NULL;
        found = lone ? (size_t)(lone - bytes) + 1 : found;
    }
    if (found == 0 && count >= splitter->piece_max) {
        found = splitter->piece_max;
    }
    splitter->scanned_bytes = found ? 0 : count;
    return found;
}

unsigned line_joint_before(const struct line_joint *joint, const void *owner) {
    if (!joint->open) {
        return LINE_JOINT_PREFIX;
    }
    return joint->owner == owner ? 0 : LINE_JOINT_NEWLINE | LINE_JOINT_PREFIX;
}

void line_joint_after(struct line_joint *joint, const void *owner, const uint8_t *piece, size_t count) {
    assert(count > 0);
    joint->owner = owner;
    joint->open = piece[count - 1] != '\n';
}
