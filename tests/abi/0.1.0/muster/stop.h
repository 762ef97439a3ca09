/* Is the job to stop before its end? How the ranks of a job hear of pre-emption, and stop at one point.
 *
 * When a node will be taken away, the launcher asks its workers to stop (muster run --preempt-signal;
 * docs/schedulers.md) and gives them some time. Ranks must not stop one by one: those that go on would wait for the
 * others in their next collective call, and a snapshot needs all of them. So they ask together, at the end of a step,
 * and all get one answer.
 *
 * Example:
 *
 *     int train(struct muster_group *group, int steps, int (*step)(int), int (*save)(int)) {
 *         bool stop = false;
 *         int done = 0, status = MUSTER_OK;
 *         while (status == MUSTER_OK && !stop && done < steps) {
 *             status = step(done++);
 *             status = status != MUSTER_OK ? status : muster_stop_requested(group, &stop);
 *         }
 *         return status != MUSTER_OK ? status : save(done);
 *     } */
#ifndef MUSTER_STOP_H
#define MUSTER_STOP_H

#include <stdbool.h>

#include <muster/group.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/* *stop: has the launcher of any rank asked its workers to stop? The same answer on all ranks of `group`, which all
 * call it at the same place: it is an all_reduce of four bytes, and a look at the file system (MUSTER_STOP_PATH). With
 * group NULL only this rank's launcher is asked, and nobody need call it with this one. Blocks as collective calls do.
 * Errors: those of muster_all_reduce(). */
int muster_stop_requested(struct muster_group *group, bool *stop);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif

#endif
