/* Memory that the ranks of one host share: collectives, messages and data parallelism on it copy less. And memory of
 * GPUs. */
#ifndef MUSTER_MEMORY_H
#define MUSTER_MEMORY_H

#include <stddef.h>

#include <muster/group.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/* Memory that the other ranks of this host can read and write directly: collectives on it copy less (see
 * docs/performance.md). Aligned to 64 bytes at least, zeroed. Not a collective call: ranks may allocate what they
 * like. Where ranks share no memory it is ordinary memory. At most MUSTER_ALLOCATIONS_MAX live at a time, and each
 * holds a file descriptor (ulimit -n). It is yours until muster_free(), which must come before the root group is
 * freed. Waits for no other rank, but reserves the pages, which takes the kernel a while for many; any thread.
 * Errors: MUSTER_EINVAL, MUSTER_ENOMEM, MUSTER_ELIMIT, MUSTER_ESYSTEM. */
#define MUSTER_ALLOCATIONS_MAX 1024u
int muster_alloc(struct muster_group *group, size_t bytes, void **out);
/* No call that uses the memory may be running. NULL is accepted. */
void muster_free(struct muster_group *group, void *memory);

/* Memory of this rank's GPU, zeroed, for a group with the engine "nccl" (docs/engines.md): NCCL reaches it more
 * directly than memory from elsewhere, which works as well. Not a collective call. It is yours until
 * muster_device_free(), which must come before the group is freed. Any thread. Errors: MUSTER_EINVAL,
 * MUSTER_EUNSUPPORTED (another engine), MUSTER_ENOMEM, MUSTER_ESYSTEM. */
int muster_device_alloc(struct muster_group *group, size_t bytes, void **out);
/* No call that uses the memory may be running. NULL is accepted. */
void muster_device_free(struct muster_group *group, void *memory);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
