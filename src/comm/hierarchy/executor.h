/* Runs a schedule (comm/schedule/schedule.h) over messages (comm/p2p/p2p.h): one collective among processes that share
 * no memory.
 *
 * Elements are combined in the order that the schedule states, whatever order bytes arrive in. Incoming operands are
 * reduced while they arrive, without a copy of the message. Large element-wise calls (all_reduce, reduce, broadcast,
 * scan) are cut into pieces, of which several are under way at once, so that ranks in the middle of a tree pass on the
 * first while they receive the second.
 *
 * Runs in the calling thread. Memory (scratch and the list of actions) is kept from call to call. */
#ifndef COMM_EXECUTOR_H
#define COMM_EXECUTOR_H

#include <stdint.h>

#include "comm/engine/call.h"
#include "comm/host/bell.h"
#include "comm/p2p/p2p.h"
#include "comm/schedule/schedule.h"

#define EXECUTOR_PIECES_MAX 4u /* under way at once */

struct executor;

/* Into which a large element-wise call of `size` ranks is cut where its table says nothing: of an all_reduce, which the
 * ranks divide among themselves, larger ones. */
size_t executor_piece_bytes(enum comm_operation operation, uint32_t size);

struct executor_config {
    struct p2p *p2p;             /* borrowed */
    struct comm_waiter *waiter;  /* borrowed */
    struct p2p_group_info group; /* of whose calls these are parts; what it points to is borrowed */
    uint32_t rank, size;         /* in the numbering of the calls it runs */
    const uint32_t *peers;       /* their root ranks; copied */
};

int executor_create(const struct executor_config *config, struct executor **out);
void executor_free(struct executor *executor);

/* From the next call on, `rank` is another process. All who take part must say so. */
void executor_set_peer(struct executor *executor, uint32_t rank, uint32_t peer);
uint32_t executor_peer(const struct executor *executor, uint32_t rank);

/* One call, to its end. piece_bytes: into which large element-wise calls are cut, 0: executor_piece_bytes(); it must be
 * the same on all ranks, like `algorithm`. `number` is that of the group's call, the same on all ranks, and the call
 * has been prepared: its fingerprint is the group's call's. AVERAGE divides by this executor's size. Errors:
 * MUSTER_EINVAL (no such algorithm), MUSTER_EMISMATCH, MUSTER_EPEER, MUSTER_ETIMEOUT (without a detail: the caller
 * knows the call), MUSTER_ENOMEM, what the waiter's stopped() gave. After an error the buffers hold anything. */
int executor_run(struct executor *executor, const struct comm_call *call, enum schedule_algorithm algorithm,
                 size_t piece_bytes, uint64_t number, int64_t deadline_ns);

/* A call whose pieces the caller hands over one after the other, each with a place of its own: while the first are
 * under way, the caller makes the next. All ranks hand over as many, with equal counts. Messages move in these calls
 * alone, and when the waiter of another call brings p2p forward.
 *
 * executor_open() begins an element-wise call of which `call` tells all but buffers and count; borrowed until
 * executor_close(). executor_hand() begins the next piece (they count from 0); it waits for the one EXECUTOR_PIECES_MAX
 * before. executor_await() waits until that piece is done. executor_close() ends the call, whose pieces are all done,
 * or which has failed with `code`: then nothing refers to the buffers any more. It returns `code`. Else errors and
 * AVERAGE as for executor_run(), but that AVERAGE is left a sum. */
int executor_open(struct executor *executor, const struct comm_call *call, enum schedule_algorithm algorithm,
                  uint64_t number, int64_t deadline_ns);
int executor_hand(struct executor *executor, const void *send, void *receive, size_t count);
int executor_await(struct executor *executor, size_t piece);
int executor_close(struct executor *executor, int code);

/* For the sentence after a time-out: was the last call, when it failed, still waiting for a message from `rank`? */
bool executor_awaits(const struct executor *executor, uint32_t rank);

/* When the first message of the last call had come, where this process is traced; 0: none did, or it is not. */
int64_t executor_arrived_ns(const struct executor *executor);

#endif
