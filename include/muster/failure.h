/* What is known of a failure, for programs: who is to blame, where, in which call. The sentence of muster_detail() says
 * the same to people.
 *
 * A failed call leaves such a record for its thread, beside the sentence. Failures of groups fill it in; those of other
 * calls (files, stores, arguments) have a cause and nothing else. What is not known is empty: MUSTER_NO_RANK, 0, or "".
 *
 * Example:
 *
 *     static void meet(struct muster_group *group) {
 *         struct muster_failure failure;
 *         if (muster_barrier(group, NULL) != MUSTER_OK) {
 *             muster_last_failure(&failure);
 *             if (failure.cause == MUSTER_EPEER && failure.rank != MUSTER_NO_RANK) {
 *                 fprintf(stderr, "lost rank %u on host %s\n", failure.rank, failure.host);
 *             }
 *         }
 *     } */
#ifndef MUSTER_FAILURE_H
#define MUSTER_FAILURE_H

#include <stddef.h>
#include <stdint.h>

#include <muster/group.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

#define MUSTER_FAILURE_HOST_MAX 64      /* bytes of a host's name, terminator included; a longer one is cut */
#define MUSTER_FAILURE_OPERATION_MAX 32 /* the same of an operation's */
#define MUSTER_FAILURE_RUNS_MAX 16      /* of missing ranks */

/* The ranks `first` to `first` + `count` - 1. */
struct muster_rank_run {
    uint32_t first, count;
};

/* Ranks are numbers in the group; of one that could not be made, in the group that it would have been. */
struct muster_failure {
    /* What has failed the group, or the call: a code of muster/status.h. Calls on a group that had failed before
     * return MUSTER_EGROUP, and this stays. MUSTER_OK: nothing has failed. */
    int cause;
    char group[MUSTER_GROUP_NAME_MAX];
    /* The collective that this rank was in, as "all_reduce", and its number, from 1. "" and 0: none; sends and receives
     * do not count. */
    char operation[MUSTER_FAILURE_OPERATION_MAX];
    uint64_t call;
    /* Who: the rank that is gone (MUSTER_EPEER), that made another call (MUSTER_EMISMATCH), that aborted the group
     * (MUSTER_EABORTED), or the only one that is missing (MUSTER_ETIMEOUT). */
    uint32_t rank;
    uint32_t root_rank; /* its number in the root group */
    int32_t pid;        /* on its host; 0: not known */
    int32_t signal;     /* that has killed it; 0: none, or not known */
    char host[MUSTER_FAILURE_HOST_MAX];
    /* MUSTER_ETIMEOUT: the ranks that did not come into the call, or, where all have come, those that hold it up (they
     * are stopped, say). run_count runs, rising; missing_count ranks in all, of which the runs may lack the last. A
     * rank that hears of a time-out between two calls knows only that it is late itself. */
    uint32_t missing_count;
    uint32_t run_count;
    struct muster_rank_run missing[MUSTER_FAILURE_RUNS_MAX];
};

/* The record of this thread's last failed call; in a function that was given to muster_work_then(), that of its call.
 * Valid as long as muster_detail() is. *out is filled in whole. Does not block. MUSTER_EINVAL: out is NULL. */
int muster_last_failure_sized(struct muster_failure *out, size_t out_bytes);
static inline int muster_last_failure(struct muster_failure *out) {
    return muster_last_failure_sized(out, sizeof *out);
}

/* What has failed the group: returns muster_group_status(), with its sentence, and fills *out in; while the group works
 * its cause is MUSTER_OK. Any thread. MUSTER_EINVAL. */
int muster_group_failure_sized(struct muster_group *group, struct muster_failure *out, size_t out_bytes);
static inline int muster_group_failure(struct muster_group *group, struct muster_failure *out) {
    return muster_group_failure_sized(group, out, sizeof *out);
}

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
