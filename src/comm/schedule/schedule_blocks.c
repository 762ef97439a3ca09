/* How buffers are divided into blocks. Pure. */
#include <assert.h>

#include "comm/schedule/schedule_impl.h"

struct blocks blocks_equal(uint32_t size, size_t count, const size_t *counts) {
    size_t total = counts ? comm_counts_sum(counts, size) : count * size;
    return (struct blocks){.size = size, .counts = counts, .count = count, .total = total};
}

struct blocks blocks_parted(uint32_t size, size_t total) {
    return (struct blocks){.size = size, .total = total, .is_parted = true};
}

size_t blocks_begin(const struct blocks *blocks, uint32_t index) {
    assert(index <= blocks->size);
    if (blocks->is_parted) { /* total * index / size, which does not overflow */
        return blocks->total / blocks->size * index + blocks->total % blocks->size * index / blocks->size;
    }
    return blocks->counts ? comm_counts_sum(blocks->counts, index) : blocks->count * index;
}

static size_t count_at(const struct blocks *blocks, uint32_t index) {
    if (blocks->is_parted) {
        return blocks_begin(blocks, index + 1) - blocks_begin(blocks, index);
    }
    return blocks->counts ? blocks->counts[index] : blocks->count;
}

struct block blocks_at(const struct blocks *blocks, uint32_t index) {
    assert(index < blocks->size);
    return (struct block){.index = index, .begin = blocks_begin(blocks, index), .count = count_at(blocks, index)};
}

struct block blocks_before(const struct blocks *blocks, struct block block) {
    bool is_first = block.index == 0;
    uint32_t index = is_first ? blocks->size - 1 : block.index - 1;
    size_t count = count_at(blocks, index);
    return (struct block){.index = index, .begin = (is_first ? blocks->total : block.begin) - count, .count = count};
}

struct block blocks_after(const struct blocks *blocks, struct block block) {
    bool is_last = block.index == blocks->size - 1;
    uint32_t index = is_last ? 0 : block.index + 1;
    return (struct block){
        .index = index, .begin = is_last ? 0 : block.begin + block.count, .count = count_at(blocks, index)};
}

size_t blocks_longest(const struct blocks *blocks) {
    if (blocks->is_parted) {
        return blocks->total / blocks->size + (blocks->total % blocks->size != 0);
    }
    return blocks->counts ? comm_counts_longest(blocks->counts, blocks->size) : blocks->count;
}
