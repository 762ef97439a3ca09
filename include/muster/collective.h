/* Collectives and messages of a process group (muster/group.h).
 *
 * What all calls share:
 * - The last parameter: with NULL the call blocks until it is done here. Otherwise it returns at once, and *work is a
 *   handle for muster_work_wait(). A progress thread then runs the calls of one group, in the order in which they were
 *   made. "Done" means done for this rank: its buffers may be reused and its results are there.
 * - Buffers are borrowed until the call is done. They must not overlap those of another call under way. A call that has
 *   failed has given them back, with whatever they hold (engine "mpi": not always, see docs/engines.md). With
 *   MUSTER_TCP_ZERO_COPY the kernel may go on reading what a failed call was to send, until the group is freed and the
 *   peer has read it or ended. You may write there, or free it: no call of the peer ever succeeds with such data.
 * - Counts are elements of `type`, not bytes. A rank with a count of 0 still takes part; its buffers may be NULL.
 * - All ranks of the group make the same calls in the same order. Counts, types, reductions and roots are equal, unless
 *   a call says otherwise. Calls that do not match fail with MUSTER_EMISMATCH on the ranks that notice. The sentence
 *   names both calls, and the group has failed.
 * - Results of a reduction have the same bits on every rank. They have the same bits in every run with the same inputs,
 *   world size and layout of hosts.
 * - Each call says if it works in place. Other overlaps of send and receive buffers give MUSTER_EINVAL.
 * - Errors: MUSTER_EINVAL (arguments; the group has not failed), MUSTER_ENOMEM, MUSTER_EPEER (a rank died),
 *   MUSTER_ETIMEOUT (the group's deadline; the sentence lists the ranks that did not come), MUSTER_EMISMATCH,
 *   MUSTER_EABORTED. MUSTER_EGROUP: the group had failed before the call. With a handle, muster_work_wait() gives all
 *   of these except the first. MUSTER_EUNSUPPORTED: a buffer is in memory of a GPU, and the engine takes that of the
 *   host (docs/engines.md; the group has not failed).
 *
 * A reduction that goes on while the program computes. Example:
 *
 *     struct muster_group *group = NULL;
 *     static float sums[1000];
 *     struct muster_work *work = NULL;
 *     if (muster_group_create_env(NULL, &group) == MUSTER_OK &&
 *         muster_all_reduce(group, sums, sums, 1000, MUSTER_FLOAT32, MUSTER_OP_SUM, &work) == MUSTER_OK &&
 *         muster_work_wait(&work) == MUSTER_OK) {
 *         printf("%f\n", sums[0]);
 *     }
 *     muster_group_free(group);
 *
 * P is the group's size below, n a count. */
#ifndef MUSTER_COLLECTIVE_H
#define MUSTER_COLLECTIVE_H

#include <stddef.h>
#include <stdint.h>

#include <muster/group.h>
#include <muster/types.h>
#include <muster/work.h>

#ifdef __cplusplus
extern "C" {
#endif

#pragma GCC visibility push(default)

/* Largest number of bytes of one buffer. */
#define MUSTER_COLLECTIVE_BYTES_MAX ((size_t)1 << 40)

/* Returns when every rank has called it. */
int muster_barrier(struct muster_group *group, struct muster_work **work);

/* A barrier with its own deadline that tells who is missing. At the time-out every rank that came gets MUSTER_ETIMEOUT
 * and a sentence that lists all ranks that did not come; the group has failed. Between hosts this takes half a second
 * longer, in which ranks compare whom they missed. Blocks; there is no form with a handle. MUSTER_EINVAL between
 * muster_coalesce_begin() and _end(). */
int muster_monitored_barrier(struct muster_group *group, int64_t timeout_ms);

/* receive[i] = send_0[i] op send_1[i] op ... for i < count, on every rank. In place: receive == send. */
int muster_all_reduce(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                      enum muster_reduction reduction, struct muster_work **work);

/* The same, but only `root` gets the result; on other ranks `receive` is not used and may be NULL. In place on
 * the root: receive == send. */
int muster_reduce(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                  enum muster_reduction reduction, uint32_t root, struct muster_work **work);

/* The root's `buffer` is copied to all others. */
int muster_broadcast(struct muster_group *group, void *buffer, size_t count, enum muster_type type, uint32_t root,
                     struct muster_work **work);

/* receive holds P*count elements: those of rank r begin at r*count. In place: send == receive + rank*count. */
int muster_all_gather(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                      struct muster_work **work);

/* The same, but only the root receives; elsewhere `receive` may be NULL. In place on the root as above. */
int muster_gather(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                  uint32_t root, struct muster_work **work);

/* The root's `send` holds P*count elements; rank r gets those at r*count. Elsewhere `send` may be NULL. In place
 * on the root: receive == send + root*count. */
int muster_scatter(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                   uint32_t root, struct muster_work **work);

/* send holds P*count elements; rank r gets the reduction of everybody's elements at r*count. In place: receive == send
 * + rank*count (the rest of send is then undefined). */
int muster_reduce_scatter(struct muster_group *group, const void *send, void *receive, size_t count,
                          enum muster_type type, enum muster_reduction reduction, struct muster_work **work);

/* send holds P blocks of `count` elements, block r for rank r; receive gets block r from rank r. In place: receive ==
 * send. */
int muster_all_to_all(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                      struct muster_work **work);

/* Prefixes, in the order of ranks. muster_scan() is inclusive: rank r gets send_0[i] op ... op send_r[i], its own
 * elements included. muster_exscan() is exclusive: rank r gets send_0[i] op ... op send_(r-1)[i], without its own. Rank
 * 0 has nobody before it: in muster_exscan() its `receive` is left as it is, and may be NULL. Not for
 * MUSTER_OP_AVERAGE. A rank waits for those before it alone. In place: receive == send. Cost: between hosts ceil(log2
 * P) messages of n elements for a rank, in exscan one more. */
int muster_scan(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                enum muster_reduction reduction, struct muster_work **work);
int muster_exscan(struct muster_group *group, const void *send, void *receive, size_t count, enum muster_type type,
                  enum muster_reduction reduction, struct muster_work **work);

/* Forms in which counts differ from rank to rank. The arrays have P entries, in elements, and are copied. Blocks lie
 * one after the other in rank order: block r begins after the sum of the counts before it. Every rank passes
 * the same `counts`, all_to_all excepted: there what rank a sends to b must be what b expects from a. In place as above
 * (a rank's own block then lies where it belongs in the whole), all_to_all excepted: there send and receive may not
 * overlap (MUSTER_EINVAL). */
int muster_all_gather_v(struct muster_group *group, const void *send, void *receive, const size_t *counts,
                        enum muster_type type, struct muster_work **work);
int muster_gather_v(struct muster_group *group, const void *send, void *receive, const size_t *counts,
                    enum muster_type type, uint32_t root, struct muster_work **work);
int muster_scatter_v(struct muster_group *group, const void *send, void *receive, const size_t *counts,
                     enum muster_type type, uint32_t root, struct muster_work **work);
int muster_reduce_scatter_v(struct muster_group *group, const void *send, void *receive, const size_t *counts,
                            enum muster_type type, enum muster_reduction reduction, struct muster_work **work);
int muster_all_to_all_v(struct muster_group *group, const void *send, const size_t *send_counts, void *receive,
                        const size_t *receive_counts, enum muster_type type, struct muster_work **work);

/* Messages. One between two ranks is matched by tag, in the order of sending. They are independent of the collectives:
 * only sends and receives need to correspond. A rank cannot send to itself (copy instead). They move while a thread of
 * the process waits for anything in a group, or asks muster_work_done(). */
#define MUSTER_ANY_RANK UINT32_MAX
#define MUSTER_TAG_MAX UINT32_C(0x7fffffff)

/* What a receive got. */
struct muster_message {
    uint32_t rank; /* who sent it */
    uint32_t tag;
    size_t count;
};

/* Done when `buffer` may be reused: the message may still be on its way. Short ones do not wait for the receiver, long
 * ones may. A receiver keeps 1 MiB of what one sender has sent and nobody has asked for. Behind that, further messages
 * of this sender wait, also those that are asked for. */
int muster_send(struct muster_group *group, const void *buffer, size_t count, enum muster_type type, uint32_t to,
                uint32_t tag, struct muster_work **work);
/* Receives at most `count` elements from rank `from`, or from MUSTER_ANY_RANK. A longer message is MUSTER_EMISMATCH, as
 * is one of another type. The receiver notices, and the group fails: a sender whose message was short has its MUSTER_OK
 * by then, and gets the sentence with its next call. message: NULL, or where the call, when it is done, writes what
 * came. */
int muster_receive(struct muster_group *group, void *buffer, size_t count, enum muster_type type, uint32_t from,
                   uint32_t tag, struct muster_message *message, struct muster_work **work);

/* Between these two, on one group and by one thread, calls with a `work` of NULL are only noted. They run when the end
 * is called: all sends and receives at the same time, so that an exchange cannot lock up; collectives in order;
 * neighbouring all_reduces of one type and reduction as one. Their buffers are borrowed until the end is done. At most
 * MUSTER_COALESCED_MAX calls. A failure of any of them is the result of the end. */
#define MUSTER_COALESCED_MAX 4096u
int muster_coalesce_begin(struct muster_group *group);
int muster_coalesce_end(struct muster_group *group, struct muster_work **work);

#pragma GCC visibility pop

#ifdef __cplusplus
}
#endif
#endif
