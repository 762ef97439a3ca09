/* The safetensors format (docs/formats/snapshot.md): where each tensor lies in a file. Pure: bytes in, tables out.
 *
 *   u64 little-endian: length of the header; the header, JSON; the tensors' bytes, without gaps
 *
 * The reader trusts nothing: what it accepts has names that are unique, and extents that fit their shapes and tile the
 * file exactly. */
#ifndef TRAIN_SAFETENSORS_H
#define TRAIN_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#include <muster/snapshot.h>

enum { SAFETENSORS_PREFIX_BYTES = 8 };
#define SAFETENSORS_HEADER_BYTES_MAX ((size_t)8 << 20)
#define SAFETENSORS_DATA_BYTES_MAX ((uint64_t)1 << 60)

/* PyTorch has two elements of 4 bits as one of 8. */
#define SAFETENSORS_F4_NAME "float4_e2m1fn_x2"

/* A type of the format's. */
struct safetensors_type {
    const char *dtype;     /* as headers have it; NULL ends the table */
    enum muster_type type; /* MUSTER_TYPE_COUNT: Muster has none */
    uint32_t bits;
    const char *name; /* PyTorch's; NULL: muster_type_name(), or PyTorch has none */
};

/* The type that has PyTorch's name; NULL: the format has none. */
const struct safetensors_type *safetensors_type_named(const char *name);

/* One tensor in a file. */
struct safetensors_entry {
    const char *name;
    enum muster_type type;
    const struct safetensors_type *other; /* where `type` is MUSTER_TYPE_COUNT; NULL: `unread` says why it has none */
    const char *unread;                   /* "more than 8 dimensions"; its shape is not told then */
    uint32_t dim_count;
    uint64_t shape[MUSTER_TENSOR_DIMS_MAX];
    uint64_t offset; /* from the end of the header */
    uint64_t bytes;
    size_t index; /* of the tensor in the list that was laid out */
};

struct safetensors {
    struct safetensors_entry *entries;
    size_t count;
    uint64_t data_bytes;
    struct json_t *tree; /* owns the names of a decoded header */
};

/* Gives each entry of the table its place, as safetensors_layout() does, by type, shape and index; sets their bytes.
 * MUSTER_ELIMIT. */
int safetensors_place(struct safetensors *table);

/* Checks the list (MUSTER_EINVAL or MUSTER_ELIMIT, naming the tensor) and gives each tensor its place: larger elements
 * first, so that all are aligned, else in the list's order. `tensors` must outlive *out. */
int safetensors_layout(const struct muster_tensor *tensors, size_t count, struct safetensors *out);

/* The bytes before the data: length and header, with one pair of metadata, or none if the key is NULL. MUSTER_ELIMIT,
 * MUSTER_ENOMEM. */
int safetensors_encode_with(const struct safetensors *table, const char *key, const char *value, struct buf *out);
/* The same with `step` as metadata if it is >= 0. */
int safetensors_encode(const struct safetensors *table, int64_t step, struct buf *out);

/* The header's length from the first 8 bytes of a file of `file_bytes`. MUSTER_ECORRUPT, MUSTER_ELIMIT. */
int safetensors_header_length(const uint8_t prefix[SAFETENSORS_PREFIX_BYTES], uint64_t file_bytes, size_t *out);

/* Reads a header; data_bytes is what follows it in the file. Entries are sorted by name. What is valid and of another
 * dtype, or has more dimensions, is listed as unread. MUSTER_ECORRUPT,
 * MUSTER_ELIMIT, MUSTER_ENOMEM. */
int safetensors_decode(const uint8_t *header, size_t length, uint64_t data_bytes, struct safetensors *out);

/* The entry of a decoded table, or NULL. */
const struct safetensors_entry *safetensors_find(const struct safetensors *table, const char *name);

/* Is the entry of this type and shape? Else MUSTER_EINVAL, naming both. */
int safetensors_match(const struct safetensors_entry *entry, const struct muster_tensor *tensor);

/* Bytes of the tensor's data; false when they are too many to count. */
bool safetensors_bytes(enum muster_type type, const uint64_t *shape, uint32_t dim_count, uint64_t *out);

void safetensors_done(struct safetensors *table);

#endif
