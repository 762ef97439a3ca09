/* Where the copies lie in their memory: behind the table, each from a page on. See copies_impl.h. */
#include <unistd.h>

#include "train/commit/copies_impl.h"

enum { LINE_BYTES = 64 };

static size_t round_up(size_t bytes, size_t unit) {
    return (bytes + unit - 1) / unit * unit;
}

static size_t page_bytes(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t stride_of(const struct commit_kind *kind) {
    return round_up(round_up(kind->copy_bytes, LINE_BYTES) + kind->extra_bytes, page_bytes());
}

/* With a page more: copies begin on one. */
size_t copies_region_bytes(const struct commit_kind *kind, uint32_t writer_count) {
    return commit_table_bytes(writer_count) + page_bytes() + COMMIT_COPIES * stride_of(kind);
}

void copies_lay_out(void *memory, const struct commit_kind *kind, uint32_t room, struct copies_layout *out) {
    out->stride = stride_of(kind);
    out->extra_offset = round_up(kind->copy_bytes, LINE_BYTES);
    uintptr_t behind = (uintptr_t)memory + commit_table_bytes(room);
    char *first = (char *)memory + (round_up(behind, page_bytes()) - (uintptr_t)memory);
    for (uint32_t i = 0; i < COMMIT_COPIES; i++) {
        out->bases[i] = first + i * out->stride;
    }
}
