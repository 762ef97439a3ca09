/* Memory that outlives this process: its launcher holds the descriptors of it, and gives them to the process that comes
 * after this one. What is in the memory is not the launcher's business.
 *
 * Names belong to all workers of one launcher, that is of one node. A name is 1 to 127 bytes. Everything is gone when
 * the job ends, or the node's launcher does.
 *
 * Without a launcher of ours (MUSTER_HELD_SOCKET is not set) this process holds them itself, as long as it lives: its
 * descriptors are those of all its holders. That serves groups that form again without new processes.
 *
 * Calls block, for HOLDER_PATIENCE_MS at most. One thread at a time for one holder. Beside the errors that are named,
 * all but holder_close(): MUSTER_ECONNECT (the launcher has ended, or cannot be reached from here), MUSTER_ETIMEOUT (it
 * does not answer), MUSTER_EPROTOCOL (it is of another version), MUSTER_ESYSTEM, MUSTER_ENOMEM. */
#ifndef TRAIN_HOLDER_H
#define TRAIN_HOLDER_H

#include <stdbool.h>
#include <stdint.h>

#define HOLDER_PATIENCE_MS 5000

struct holder;

/* Also looks whether the launcher can be reached. */
int holder_open(struct holder **out);

/* Keeps the memory of `fd`, a memfd that stays the caller's, under `name` (copied), in the place of what had that name.
 * Memory is kept as long as a descriptor is, whoever maps it. MUSTER_EINVAL (no name; no memfd), MUSTER_ELIMIT (names,
 * or descriptors of the launcher). */
int holder_put(struct holder *holder, const char *name, int fd);

/* *out_fd: the caller's, closed on exec. MUSTER_ENOENT: nothing of that name. MUSTER_EINVAL, MUSTER_ELIMIT (descriptors
 * of this process). */
int holder_get(struct holder *holder, const char *name, int *out_fd);

/* Nothing has that name afterwards; no error if nothing had it. MUSTER_EINVAL. */
int holder_drop(struct holder *holder, const char *name);

/* Does what is held outlive this process? */
bool holder_is_agent(const struct holder *holder);

/* This process's number among those of its launcher, as a text, and how many there are: names of theirs are apart.
 * "0" and 1 without a launcher. */
const char *holder_local_rank(void);
uint32_t holder_local_size(void);
/* Does this process look after what others of the launcher have left? One of them does; without a launcher, each. */
bool holder_looks_after_others(const struct holder *holder);

/* What is held stays held. NULL is fine. */
void holder_close(struct holder *holder);

#endif
