/* The map of a checkpoint (docs/formats/checkpoint.md): what its tensors and values are, and which part has what. Pure:
 * bytes in, facts out.
 *
 * What is read has ranges within their tensors, and each element in exactly one part. */
#ifndef TRAIN_CHECKPOINT_MAP_H
#define TRAIN_CHECKPOINT_MAP_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "train/checkpoint/checkpoint_layout.h"

#define CHECKPOINT_MAP_BYTES_MAX ((size_t)64 << 20)
/* Of all tensors that are not even. A few bytes can tell of many. */
#define CHECKPOINT_MAP_RANGES_MAX ((size_t)16 << 20)
#define CHECKPOINT_BLOCK_BYTES ((uint64_t)1 << 20)
#define CHECKPOINT_BLOCK_BYTES_MAX ((uint64_t)64 << 20)

/* What one rank has written. */
struct checkpoint_part {
    uint64_t bytes;                  /* of the file */
    uint64_t data_at;                /* where its data begins */
    uint64_t digest;                 /* checksum of its header (all before the data) and of its table of checksums */
    struct checkpoint_ranges listed; /* of tensors that are not even; items within the map's */
};

struct checkpoint_map {
    int64_t step;
    uint64_t token;
    uint64_t block_bytes;
    struct checkpoint_tensor *tensors;
    size_t tensor_count;
    struct checkpoint_part *parts;
    uint32_t part_count;
    struct checkpoint_range *ranges; /* all that are listed, part by part */
    size_t range_count;
    struct json_t *tree; /* of a map that was read: owns names, and has the values */
};

/* Appends the map with these values. MUSTER_EINVAL: a value, or an element that is not in exactly one part;
 * MUSTER_ELIMIT: a value, or there is too much of all; MUSTER_ENOMEM. */
int checkpoint_map_encode(const struct checkpoint_map *map, const struct muster_value *values, size_t value_count,
                          struct buf *out);

/* The map's checksum, of a text that checkpoint_map_encode() has made or that is as long as the record says.
 * MUSTER_ECORRUPT: the text is damaged. */
int checkpoint_map_id(const uint8_t *bytes, size_t count, uint64_t *out_id);

/* Reads a map. MUSTER_ECORRUPT, MUSTER_EUNSUPPORTED (as it was written, but not by this version), MUSTER_ENOMEM. */
int checkpoint_map_decode(const uint8_t *bytes, size_t count, struct checkpoint_map *out);

/* Frees what the map owns; a map that was not read owns its arrays, not the names. */
void checkpoint_map_done(struct checkpoint_map *map);

/* Makes room for `range_count` ranges of `part_count` parts. MUSTER_ENOMEM. */
int checkpoint_map_make_room(struct checkpoint_map *map, uint32_t part_count, size_t range_count);

/* Does each element belong to exactly one part? MUSTER_EINVAL, MUSTER_ENOMEM. */
int checkpoint_map_check(const struct checkpoint_map *map);

/* Checks that all values are there and fit (MUSTER_EINVAL); with `copy`, copies them. */
int checkpoint_map_values(const struct checkpoint_map *map, const struct muster_value *values, size_t count, bool copy);

#endif
