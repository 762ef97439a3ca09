/* A described state as one run of bytes: for memory that holds it until it is asked for. Pure but for the state's own
 * memory.
 *
 *   u64 checksum of the rest; the tensors' bytes; the values: 8 bytes of a number, all the room of a text
 *
 * Everything begins at a multiple of 8. Names and shapes are not in it: whoever reads it describes the same state
 * (state_hash()). */
#ifndef TRAIN_STATE_BYTES_H
#define TRAIN_STATE_BYTES_H

#include <stddef.h>
#include <stdint.h>

#include <muster/snapshot.h>

/* Of what must be equal to read it: names, types, shapes, kinds and their order. The state has been checked
 * (snapshot_state_check()). */
uint64_t state_hash(const struct muster_snapshot_state *state);

/* How many bytes it takes. */
size_t state_bytes(const struct muster_snapshot_state *state);

/* Into `out`, aligned to 8. stream: the caller's, whose work so far comes before tensors on a GPU are read, or written;
 * NULL: the default one. Errors are the GPU's; without tensors there, there is none. */
int state_bytes_write(const struct muster_snapshot_state *state, void *stream, void *out);

/* Into the state's tensors and values. MUSTER_ECORRUPT: the checksum is another; nothing was written. */
int state_bytes_read(const struct muster_snapshot_state *state, void *stream, const void *bytes);

#endif
