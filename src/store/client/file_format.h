/* The records of a FileStore file (docs/formats/filestore.md): PyTorch's format, byte for byte.
 *
 * Record = u32 length, key, u32 length, value, little-endian; later records win; a record of "-" + key deletes that
 * key. Pure. */
#ifndef STORE_FILE_FORMAT_H
#define STORE_FILE_FORMAT_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "store/server/kv_table.h"
#include "store/wire/codec.h" /* the limits */

#define FILE_FORMAT_DELETE_PREFIX "-"

/* Applies the whole records at the beginning of `bytes` to `table`; *out_used: their size. What follows them is the
 * beginning of a record that is not complete. MUSTER_ECORRUPT for a length that no FileStore writes, MUSTER_ENOMEM,
 * MUSTER_ELIMIT; *out_used is then what was applied before. */
int file_format_apply(const uint8_t *bytes, size_t len, struct kv_table *table, size_t *out_used);

/* Appends one record; the key is `prefix` + `key`. MUSTER_ELIMIT, MUSTER_ENOMEM. */
int file_format_put(struct buf *out, const char *prefix, const char *key, struct kv_slice value);

#endif
