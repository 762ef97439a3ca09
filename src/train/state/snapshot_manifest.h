/* The manifest of a snapshot, and the names of its files (docs/formats/snapshot.md). Pure: bytes in, facts out.
 *
 * The manifest is JSON and ends with its own checksum, so that damage anywhere in it is seen. */
#ifndef TRAIN_SNAPSHOT_MANIFEST_H
#define TRAIN_SNAPSHOT_MANIFEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#include <muster/snapshot.h>

/* ---- names ---- */

enum { SNAPSHOT_NAME_MAX = 64 }; /* the longest is 57 bytes */

enum snapshot_kind {
    SNAPSHOT_OTHER, /* not ours */
    SNAPSHOT_DATA,
    SNAPSHOT_MANIFEST,
    SNAPSHOT_TEMPORARY,
};

struct snapshot_name {
    enum snapshot_kind kind;
    int64_t step;
    uint64_t checksum; /* DATA only */
};

struct snapshot_name snapshot_name_parse(const char *name);
void snapshot_name_data(char out[SNAPSHOT_NAME_MAX], int64_t step, uint64_t checksum);
void snapshot_name_manifest(char out[SNAPSHOT_NAME_MAX], int64_t step);
/* While they are written: "step-10.safetensors.tmp", "step-10.json.tmp". */
void snapshot_name_temporary(char out[SNAPSHOT_NAME_MAX], int64_t step, enum snapshot_kind kind);

/* ---- the manifest ---- */

#define SNAPSHOT_MANIFEST_BYTES_MAX ((size_t)16 << 20)

/* What a manifest says; `tree` has the rest. */
struct snapshot_manifest {
    int64_t step;
    uint64_t id;       /* checksum of the manifest */
    uint64_t bytes;    /* of the data file */
    uint64_t checksum; /* of the data file, and in its name */
    struct json_t *tree;
};

/* What the writer found out about the data file. tensor_checksums: one for each tensor of the state, in its order. */
struct snapshot_data {
    uint64_t bytes;
    uint64_t checksum;
    const uint64_t *tensor_checksums;
};

/* Appends the manifest to `out`. MUSTER_EINVAL, MUSTER_ELIMIT: the values; MUSTER_ENOMEM. */
int snapshot_manifest_encode(int64_t step, const struct muster_snapshot_state *state, const struct snapshot_data *data,
                             struct buf *out);

/* MUSTER_ECORRUPT (damaged), MUSTER_EUNSUPPORTED (as it was written, but not by this version), MUSTER_ELIMIT,
 * MUSTER_ENOMEM. */
int snapshot_manifest_decode(const uint8_t *bytes, size_t count, struct snapshot_manifest *out);

/* False: the manifest has no such tensor. */
bool snapshot_manifest_tensor(const struct snapshot_manifest *manifest, const char *name, uint64_t *out_checksum);

/* Checks that all values are there and fit (MUSTER_EINVAL names the one that does not); with `copy`, copies them. */
int snapshot_manifest_values(const struct snapshot_manifest *manifest, const struct muster_value *values, size_t count,
                             bool copy);

void snapshot_manifest_done(struct snapshot_manifest *manifest);

#endif
