/* What a client is still owed, in order: bytes copied here, and values that stay where the store keeps them.
 *
 * Pure. A long value is not copied for each client that is to have it: the output holds a reference to its entry, which
 * lives until the last reference is gone, whatever becomes of the key. So a thousand clients that are owed one long
 * value cost the memory of one. */
#ifndef STORE_KV_OUTPUT_H
#define STORE_KV_OUTPUT_H

#include <stddef.h>

#include "base/buf.h"
#include "store/server/kv_table.h"

/* From this length on a value is referenced. A reference takes 32 bytes, and sending it a piece of its own. */
#define KV_REFERENCED_BYTES_MIN ((size_t)512)

struct kv_output {
    struct buf bytes;        /* what was copied; encoders may append to it */
    struct buf references;   /* struct kv_reference, in order */
    size_t passed_bytes;     /* of `bytes`: gone from its front, ever */
    size_t referenced_bytes; /* owed through `references` */
    struct kv_table *table;  /* borrowed */
};

/* `max`: of the bytes that may be copied into it; and of all that is owed, when a reference is added. */
void kv_output_init(struct kv_output *output, struct kv_table *table, size_t max);
/* Forgets what is owed; can be used again. */
void kv_output_done(struct kv_output *output);

/* Bytes owed. */
size_t kv_output_len(const struct kv_output *output);
/* Memory held beside the entries. */
size_t kv_output_memory(const struct kv_output *output);

/* The bytes of an entry's value, without its length in front. MUSTER_ENOMEM, MUSTER_ELIMIT. */
int kv_output_put(struct kv_output *output, struct kv_entry *entry);
/* Its length and its bytes, as most answers have it; NULL: an empty one. On failure a part may have been added. */
int kv_output_put_value(struct kv_output *output, struct kv_entry *entry);

/* The next pieces to send, at most `max`; returns how many. They live until the next call on `output`. */
size_t kv_output_peek(const struct kv_output *output, struct kv_slice *pieces, size_t max);
/* So many bytes of it have been sent. */
void kv_output_consume(struct kv_output *output, size_t len);

#endif
