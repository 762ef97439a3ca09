/* Handles of calls that go on while the program computes (muster/collective.h). */
#ifndef MUSTER_WORK_H
#define MUSTER_WORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/status.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/* A call under way. */
struct muster_work;

/* Waits until the call is done, frees the handle, sets *work to NULL and gives the call's result; the group's deadline
 * bounds it. NULL, in *work or as work, gives MUSTER_OK. One thread for one handle. */
int muster_work_wait(struct muster_work **work);
/* Is it done (well or badly)? Does not block. muster_work_wait() is still due. Any thread. NULL counts as done. */
bool muster_work_done(const struct muster_work *work);

/* Gives the handle away: `then` is called once when the call is done, with its result and its sentence ("" after a
 * success), and the handle is freed. *work is NULL afterwards. It is called in the progress thread, or before this
 * returns if the call is done already. It must not block for long, since the group's next calls wait for it, and must
 * not free the group. Errors: MUSTER_EINVAL for sends and receives, which no thread of the library carries on (*work
 * stays). NULL, in *work or as work, gives MUSTER_OK, and nothing is called. One thread for one handle. */
typedef void muster_work_then_fn(void *context, int code, const char *detail);
int muster_work_then(struct muster_work **work, muster_work_then_fn *then, void *context);

/* Frees a handle that nobody waits for, sets *work to NULL, and waits for no other rank. The call's result is lost.
 * - A receive that is not done is taken back: its buffer is yours again at once, and `message` is not written. If its
 *   message has begun to come, that is lost; else a later receive gets it.
 * - A send that is not done goes on with a copy of its buffer, which is yours again at once, until the receiver has it
 *   or the group is freed. The library keeps up to 1 GiB of copies. A send that it cannot copy (no memory; the kernel
 *   still reads the buffer, with MUSTER_TCP_ZERO_COPY) fails the group, since its receiver would wait.
 * - A collective, or the calls of muster_coalesce_end(), go on; their buffers are borrowed until they are done.
 * With the engine 'mpi', messages that MPI has begun to move get a second to end; then the group fails. Leaves
 * muster_detail() alone. NULL, in *work or as work, is accepted. One thread for one handle. */
void muster_work_free(struct muster_work **work);

/* Several handles, of groups that have one root group; the same one only once; entries that are NULL are left out.
 * timeout_ms: how long to wait; 0: only look; negative: as long as the calls may take. It changes nothing for the
 * calls: after MUSTER_ETIMEOUT they go on, their buffers are still theirs, and the handles can be waited for again. */

/* Waits until one of them is done, well or badly. *out_index: which (the first in the array, if several are), or
 * `count` if all entries are NULL. The handle stays: muster_work_wait() is still due for it, gives the call's result,
 * and does not block any more. MUSTER_ETIMEOUT, MUSTER_EINVAL. */
int muster_work_wait_any(struct muster_work *const *works, size_t count, int64_t timeout_ms, size_t *out_index);
/* Waits until all of them are done, frees them, sets the entries to NULL, and gives the result of the first in the
 * array that has failed; if that is MUSTER_ETIMEOUT, the group's deadline, it gives MUSTER_EGROUP, with the sentence of
 * the time-out. MUSTER_ETIMEOUT, which is this call's own, and MUSTER_EINVAL: nothing has been freed. */
int muster_work_wait_all(struct muster_work **works, size_t count, int64_t timeout_ms);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
