/* A state of training as everything sees it that keeps it: tensors, of which a rank has all or some ranges, and small
 * values. Ddp, where every rank has everything, and sharded training, where no rank has, describe themselves alike.
 *
 * All ranks describe the same tensors and values; the chunks are each rank's own. */
#ifndef TRAIN_STATE_DESCRIPTION_H
#define TRAIN_STATE_DESCRIPTION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/snapshot.h>

/* Elements [first, first + count) of a tensor, row-major, and where they lie. A count of 0 is a chunk, too. */
struct state_chunk {
    size_t tensor; /* its index in the list */
    uint64_t first, count;
    void *data;
};

/* All memory is borrowed. */
struct state_description {
    const struct muster_tensor *tensors; /* data: every rank has all of it there; NULL: ranks have chunks of it */
    size_t tensor_count;
    const struct state_chunk *chunks; /* this rank's, in any order; none of a tensor that has data */
    size_t chunk_count;
    const struct muster_value *values; /* the same on every rank */
    size_t value_count;
};

/* Does every rank have all of this tensor? One without elements is such a one. */
bool state_is_whole(const struct muster_tensor *tensor);
/* Elements of a tensor that has been checked. */
uint64_t state_element_count(const struct muster_tensor *tensor);

/* The regular split of `count` elements into `parts` parts, which is a rule and needs no list: where part `part`
 * begins. Parts differ by one element at most, the larger ones first. part == parts gives the end. */
static inline uint64_t state_even_first(uint64_t count, uint32_t part, uint32_t parts) {
    uint64_t rest = count % parts;
    return count / parts * part + (part < rest ? part : rest);
}

/* Could this be saved? Names, types and sizes of tensors, names of values, ranges of chunks. MUSTER_EINVAL,
 * MUSTER_ELIMIT (naming what is wrong), MUSTER_ENOMEM. */
int state_description_check(const struct state_description *state);

/* A number that differs, as good as surely, where descriptions differ in what all ranks must agree upon. */
uint64_t state_description_hash(const struct state_description *state);

#endif
