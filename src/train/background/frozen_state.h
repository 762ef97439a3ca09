/* A state that is being saved while the program goes on: the description of a checkpoint, with a copy of all that the
 * program may change.
 *
 * What lies in committed memory stays where it is, because nobody writes it for now: chunks, and tensors that every
 * rank has whole. Of such a tensor a rank saves its share alone (state_even_first()). All else is copied: names,
 * values, and the program's own tensors, which are small. Those on a GPU are copied to ordinary memory of the host. */
#ifndef TRAIN_BACKGROUND_FROZEN_STATE_H
#define TRAIN_BACKGROUND_FROZEN_STATE_H

#include <stddef.h>
#include <stdint.h>

#include <muster/checkpoint.h>

struct frozen_state {
    struct muster_checkpoint_state state;
    struct muster_tensor *tensors;
    struct muster_checkpoint_chunk *chunks;
    struct muster_value *values;
    char *bytes; /* names, data of tensors and values */
    uint32_t rank, size;
    const char *memory; /* committed: [memory, memory + memory_bytes) */
    size_t memory_bytes;
};

/* Memory that nobody writes for now, and who saves. */
struct frozen_place {
    const void *memory;
    size_t bytes;
    uint32_t rank, size;
    void *stream; /* the caller's: what is copied from a GPU is so after its work so far; NULL: the default one */
};

/* Copies a description of this version's structs, which has been checked. Its chunks lie in committed memory; tensors
 * do if they are in `place`. MUSTER_ENOMEM, MUSTER_ESYSTEM (a GPU's); then `out` is zeroed. */
int frozen_state_init(struct frozen_state *out, const struct muster_checkpoint_state *state,
                      const struct frozen_place *place);
/* Zeroes it. Accepts a zeroed one. */
void frozen_state_done(struct frozen_state *frozen);

/* Bytes in committed memory that this rank is to save. */
size_t frozen_state_committed_bytes(const struct frozen_state *frozen);

/* Copies these bytes to `room`, which is large enough and aligned to 64: from now on they are read there. */
void frozen_state_move(struct frozen_state *frozen, void *room);

#endif
