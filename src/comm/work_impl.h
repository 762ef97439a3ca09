/* The inside of a work handle, for work.c, group_message.c and group_coalesce.c: a collective or a batch on the
 * progress thread's queue, or a message, which the links carry on their own. */
#ifndef COMM_WORK_IMPL_H
#define COMM_WORK_IMPL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/call.h"
#include "comm/group_impl.h"
#include "comm/p2p.h"

/* A send or a receive as the caller asked for it. */
struct message_call {
    enum comm_operation operation;
    enum muster_type type;
    uint32_t peer; /* rank of the group, or MUSTER_ANY_RANK */
    uint32_t tag;
    size_t count;
    void *buffer; /* only read by a send */
    struct muster_message *out;
};

/* Under way. */
struct message {
    struct message_call call;
    struct p2p_request request;
    int64_t begin_ns, deadline_ns;
    uint64_t record; /* the recorder's number */
};

enum work_kind { WORK_COLLECTIVE, WORK_BATCH, WORK_MESSAGE };

struct muster_work {
    enum work_kind kind;
    struct muster_group *group;
    struct comm_call call;
    size_t *counts;          /* owned copies behind call's arrays; NULL without */
    struct coalesced *batch; /* owned */
    struct message message;
    int64_t timeout_ns, queued_ns;
    int status;
    char *detail; /* owned; of a failure */
    _Atomic bool is_done;
    struct muster_work *next;
};

/* ---- group_message.c ---- */

/* 0, or MUSTER_EINVAL. */
int message_check(const struct muster_group *group, const struct message_call *call);
/* Posts it; `message` must stay where it is until message_finish(). Errors have failed the group. */
int message_post(struct muster_group *group, const struct message_call *call, struct message *message);
/* What has become of it: `code` is p2p_wait()'s, with its detail. Writes what came. */
int message_finish(struct muster_group *group, struct message *message, int code);
/* Of a handle. */
int message_work_wait(struct muster_work *work);
bool message_work_done(const struct muster_work *work);

/* ---- group_coalesce.c ---- */

int coalesced_note_call(struct muster_group *group, const struct comm_call *call);
int coalesced_note_message(struct muster_group *group, const struct message_call *call);
/* Runs a batch in this thread. */
int coalesced_run(struct muster_group *group, struct coalesced *batch, int64_t timeout_ns);
void coalesced_free(struct coalesced *batch);

/* ---- work.c ---- */

/* Queues a batch, which the work then owns. */
int work_submit_batch(struct muster_group *group, struct coalesced *batch, struct muster_work **out);
/* Copies the call's arrays of counts; *out_counts is malloc'd, or NULL. */
int work_copy_counts(struct comm_call *call, uint32_t size, size_t **out_counts);

#endif
