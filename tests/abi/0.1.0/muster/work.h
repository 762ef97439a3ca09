/* Handles of calls that go on while the program computes (muster/collective.h). */
#ifndef MUSTER_WORK_H
#define MUSTER_WORK_H

#include <stdbool.h>

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

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
