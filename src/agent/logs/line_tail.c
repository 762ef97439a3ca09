/* A ring of a stream's last bytes; see line_tail.h. */
#include "agent/logs/line_tail.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 512 };

void line_tail_init(struct line_tail *tail) {
    *tail = (struct line_tail){0};
}

void line_tail_done(struct line_tail *tail) {
    free(tail->ring);
    line_tail_init(tail);
}

/* Growing happens before the ring has wrapped, so the bytes stay where they are. */
static void grow(struct line_tail *tail, size_t count) {
    size_t wanted = tail->capacity ? tail->capacity : FIRST_CAPACITY;
    while (wanted < LINE_TAIL_BYTES_MAX && wanted - tail->written_bytes < count) {
        wanted *= 2;
    }
    uint8_t *grown = wanted > tail->capacity ? realloc(tail->ring, wanted) : NULL;
    if (grown) {
        tail->ring = grown;
        tail->capacity = wanted;
    }
}

void line_tail_add(struct line_tail *tail, const uint8_t *bytes, size_t count) {
    if (tail->capacity < LINE_TAIL_BYTES_MAX && tail->written_bytes <= tail->capacity &&
        tail->capacity - tail->written_bytes < count) {
        grow(tail, count);
    }
    if (tail->capacity == 0) {
        return;
    }
    if (count > tail->capacity) { /* only its end will be left */
        tail->written_bytes += count - tail->capacity;
        bytes += count - tail->capacity;
        count = tail->capacity;
    }
    size_t at = tail->written_bytes % tail->capacity;
    size_t first = count < tail->capacity - at ? count : tail->capacity - at;
    memcpy(tail->ring + at, bytes, first);
    memcpy(tail->ring, bytes + first, count - first);
    tail->written_bytes += count;
}

/* Where the last `lines` lines of the bytes begin. */
static size_t find_start(const uint8_t *bytes, size_t count, size_t lines) {
    size_t at = count;
    if (at > 0 && bytes[at - 1] == '\n') {
        at--; /* ends the last line; begins none */
    }
    for (size_t seen = 0; at > 0; at--) {
        if (bytes[at - 1] == '\n' && ++seen == lines) {
            break;
        }
    }
    return at;
}

size_t line_tail_of_bytes(const uint8_t *bytes, size_t count, size_t lines, char *out, size_t size) {
    if (size == 0) {
        return 0;
    }
    size_t start = count > 0 && lines > 0 ? find_start(bytes, count, lines) : count;
    if (count - start >= size) {
        size_t cut = count - size + 1;
        const uint8_t *next = memchr(bytes + cut - 1, '\n', count - cut);
        start = next ? (size_t)(next - bytes) + 1 : cut;
    }
    if (count > start) {
        memcpy(out, bytes + start, count - start);
    }
    out[count - start] = '\0';
    return count - start;
}

size_t line_tail_read(const struct line_tail *tail, size_t lines, char *out, size_t size) {
    size_t kept = tail->written_bytes < tail->capacity ? tail->written_bytes : tail->capacity;
    if (tail->written_bytes <= tail->capacity) {
        return line_tail_of_bytes(tail->ring, kept, lines, out, size);
    }
    uint8_t straight[LINE_TAIL_BYTES_MAX];
    size_t at = tail->written_bytes % tail->capacity;
    memcpy(straight, tail->ring + at, kept - at);
    memcpy(straight + kept - at, tail->ring, at);
    return line_tail_of_bytes(straight, kept, lines, out, size);
}
