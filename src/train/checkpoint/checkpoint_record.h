/* The record of a checkpoint (docs/formats/checkpoint.md): a few hundred bytes, whatever the number of ranks, that make
 * it complete, and with which the newest is found. Pure: bytes in, facts out. */
#ifndef TRAIN_CHECKPOINT_RECORD_H
#define TRAIN_CHECKPOINT_RECORD_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define CHECKPOINT_RECORD_BYTES_MAX ((size_t)65536)

struct checkpoint_record {
    int64_t step;
    uint64_t token;
    uint32_t part_count; /* ranks that saved; > 0 */
    uint64_t map_bytes;
    uint64_t map_id; /* checksum of the map */
    uint64_t bytes;  /* of all parts */
    uint64_t id;     /* checksum of the record; found by decoding */
};

/* Appends the record. MUSTER_ENOMEM. */
int checkpoint_record_encode(const struct checkpoint_record *record, struct buf *out);

/* MUSTER_ECORRUPT (damaged), MUSTER_EUNSUPPORTED (as it was written, but not by this version), MUSTER_ENOMEM. */
int checkpoint_record_decode(const uint8_t *bytes, size_t count, struct checkpoint_record *out);

#endif
