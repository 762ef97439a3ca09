/* Which elements of which tensors a part has, and where they lie in its file (docs/formats/checkpoint.md). Pure.
 *
 * A part is what one rank has written. Its file is a safetensors file: each range as a tensor of one dimension, then
 * the checksums of all blocks. A block is `block_bytes` bytes of a range, the last one of a range what is left. */
#ifndef TRAIN_CHECKPOINT_LAYOUT_H
#define TRAIN_CHECKPOINT_LAYOUT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "train/state/state_description.h"

/* A tensor of a checkpoint. The list of them has those with larger elements first, so that all ranges are aligned. */
struct checkpoint_tensor {
    const char *name;
    enum muster_type type;
    uint32_t dim_count;
    uint64_t shape[MUSTER_TENSOR_DIMS_MAX];
    uint64_t count;         /* of elements */
    uint64_t element_bytes; /* of one */
    bool is_even;           /* parts have it by the rule state_even_first(); else they list their ranges */
    size_t number;          /* in the state that is saved; 0 in a map that was read */
};

/* Elements [first, first + count) of a tensor; count > 0. data: where they are, or belong; NULL in tables. */
struct checkpoint_range {
    uint32_t tensor;
    uint64_t first, count;
    void *data;
};

/* Ranges sorted by tensor, then by first element. Owned. */
struct checkpoint_ranges {
    struct checkpoint_range *items;
    size_t count;
};
void checkpoint_ranges_done(struct checkpoint_ranges *ranges);

/* All that part `part` of `part_count` has: its shares of even tensors, and `listed`, which are sorted and of other
 * tensors. MUSTER_ENOMEM. */
int checkpoint_ranges_of_part(const struct checkpoint_tensor *tensors, size_t tensor_count, uint32_t part,
                              uint32_t part_count, const struct checkpoint_ranges *listed,
                              struct checkpoint_ranges *out);

/* A range and the part that has it. */
struct checkpoint_owned {
    struct checkpoint_range range;
    uint32_t part;
};
/* By tensor, then by first element. */
void checkpoint_sort_owned(struct checkpoint_owned *owned, size_t count);
/* Does each element of each tensor that is not even belong to exactly one of the ranges? They get sorted. MUSTER_EINVAL
 * names the first that does not. */
int checkpoint_check_tiling(const struct checkpoint_tensor *tensors, size_t tensor_count,
                            struct checkpoint_owned *owned, size_t count);

/* ---- a part's file ---- */

/* Where a range lies. */
struct checkpoint_place {
    uint64_t offset; /* from the beginning of the data */
    uint64_t block;  /* number of its first block in the table of checksums */
};

struct checkpoint_layout {
    struct checkpoint_place *places; /* of each range, in order */
    size_t count;
    uint64_t table_at; /* the checksums, from the beginning of the data */
    uint64_t block_count;
};

/* MUSTER_ENOMEM, MUSTER_ELIMIT (the ranges are longer than a file can be). */
int checkpoint_layout_create(const struct checkpoint_tensor *tensors, const struct checkpoint_ranges *ranges,
                             uint64_t block_bytes, struct checkpoint_layout *out);
void checkpoint_layout_done(struct checkpoint_layout *layout);

static inline uint64_t checkpoint_layout_data_bytes(const struct checkpoint_layout *layout) {
    return layout->table_at + layout->block_count * sizeof(uint64_t);
}

/* The beginning of the file: length and header. It tells of the ranges alone, so that parts of the same content are the
 * same file. MUSTER_ELIMIT: too many ranges; MUSTER_ENOMEM. */
int checkpoint_layout_header(const struct checkpoint_layout *layout, const struct checkpoint_tensor *tensors,
                             const struct checkpoint_ranges *ranges, struct buf *out);

#endif
