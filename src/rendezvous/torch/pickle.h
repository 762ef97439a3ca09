/* The rendezvous state on the wire: base64 of a Python pickle (docs/formats/rendezvous-state.md).
 *
 * The reader treats the pickle as data: it knows the opcodes that such a state consists of and the five classes
 * that occur in it, builds nothing else and calls nothing. Everything is bounded. */
#ifndef RENDEZVOUS_PICKLE_H
#define RENDEZVOUS_PICKLE_H

#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "rendezvous/torch/state.h"

#define PICKLE_BYTES_MAX (8u << 20) /* of a pickle or its text: no store takes larger values */

/* Replaces `out` (initialised) by the state in `bytes`; unchanged on failure. MUSTER_ECORRUPT with the offset and
 * what was wrong, MUSTER_ELIMIT, MUSTER_ENOMEM. */
int pickle_read(const uint8_t *bytes, size_t len, struct rdzv_state *out);

/* Appends a protocol 4 pickle that PyTorch loads. MUSTER_ENOMEM, MUSTER_ELIMIT. */
int pickle_write(const struct rdzv_state *state, struct buf *out);

/* The same as base64 text, which is what the store holds. */
int pickle_read_text(const uint8_t *text, size_t len, struct rdzv_state *out);
int pickle_write_text(const struct rdzv_state *state, struct buf *out);

#endif
