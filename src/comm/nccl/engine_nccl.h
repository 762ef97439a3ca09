/* NCCL as an engine of a group: calls on memory of GPUs go to NCCL, calls on memory of the host, and barriers, to the
 * engine for that memory, which it has inside. So one group carries both: gradients on GPUs, and all that a program
 * agrees about besides.
 *
 * A call is put onto a stream of the engine's own, behind what the caller's stream has been given so far, and has ended
 * when that stream has got past it. The communicator does not block (ncclConfig_t.blocking = 0): no call of NCCL can
 * hold the group's thread beyond the deadline. After a failure the communicator is aborted, or stopped where NCCL can
 * do that, and the group can only be freed, or shrunk.
 *
 * Communicators of groups that are made from a group come from that of the group (nccl_derive.c), by ncclCommSplit() or
 * ncclCommShrink(); where that does not work, their ranks connect anew.
 *
 * What NCCL has no collective for (nccl_plan.h) is carried out by the inner engine, on copies in pinned memory; so are
 * messages, which NCCL has without tags, of known senders and lengths alone. Memory of the GPU that the engine gives
 * out is known to the communicator (ncclCommRegister) where NCCL can do that. */
#ifndef COMM_ENGINE_NCCL_H
#define COMM_ENGINE_NCCL_H

#include "comm/engine/call_line.h"
#include "comm/engine/engine.h"
#include "comm/engine/failure.h"
#include "comm/host/bell.h"

struct engine_nccl_config {
    struct engine *host;           /* taken, if the engine is made */
    struct comm_waiter *waiter;    /* borrowed: tells while ranks connect that something is wrong. NULL: nobody does */
    const struct failure *failure; /* borrowed: the group's. Others are not waited for after it. NULL: it never fails */
    uint32_t rank, size;
    uint32_t local;   /* the process's place on its host: which GPU it has, unless it has chosen one */
    const char *name; /* the group's, for sentences; borrowed */
    /* The lines of this host's members, whose calls are compared with this rank's while and after NCCL carries them
     * out; the array is copied. */
    const struct call_line *const *lines;
    uint32_t line_count;
    const struct call_line *own_line;
    bool compares_calls; /* all ranks tell each other before each call what it is, and where their buffers are */
    /* Of the survivors of a failed group: its engine, of this kind, borrowed until this one is connected, and the ranks
     * in it that are left out (copied). NULL: of any other group. */
    struct engine *failed;
    const int *left_out;
    uint32_t left_out_count;
};

/* Opens the driver and NCCL, and what the engine needs of this rank's GPU. Waits for nobody; connect() then makes the
 * communicator, whose id goes through the inner engine. MUSTER_EUNSUPPORTED (no
 * driver, no GPU, no NCCL: the sentence says what to do), MUSTER_ENOMEM, MUSTER_ESYSTEM. */
int engine_nccl_create(const struct engine_nccl_config *config, struct engine **out);

#endif
