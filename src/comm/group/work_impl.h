/* The inside of a work handle: a collective or a batch on the progress thread's queue, or a message, which the links
 * carry on their own. Calls go one way: the public calls (collective.c, send_receive.c, group_coalesce.c, work_many.c)
 * to work.c, that to batch.c, that to group_message.c and group_run.c. */
#ifndef COMM_WORK_IMPL_H
#define COMM_WORK_IMPL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/engine/call.h"
#include "comm/engine/message.h"
#include "comm/group/group_impl.h"

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
    struct comm_message body; /* as the engine has it */
    int64_t begin_ns, deadline_ns;
    uint64_t record;                           /* the recorder's number */
    void (*forget)(struct comm_message *body); /* the engine's, which may be freed before the handle; or NULL */
};

enum work_kind { WORK_COLLECTIVE, WORK_BATCH, WORK_MESSAGE };

struct muster_work {
    enum work_kind kind;
    struct muster_group *group;
    struct comm_call call;
    size_t *counts;      /* owned copies behind call's arrays; NULL without */
    struct batch *batch; /* owned */
    struct message message;
    int64_t timeout_ns, queued_ns;
    int status;
    char *detail; /* owned; of a failure */
    struct muster_failure failure;
    muster_work_then_fn *then; /* of a handle that was given away, else NULL; under the queue's mutex until is_done */
    void *then_context;
    _Atomic bool is_done;
    struct muster_work *next;
};

/* ---- group_message.c ---- */

/* Posts it; `message` must stay where it is until message_finish(). Errors have failed the group. */
int message_post(struct muster_group *group, const struct message_call *call, struct message *message);
/* What has become of it: `code` is that of the engine's wait(), with its detail. Writes what came. */
int message_finish(struct muster_group *group, struct message *message, int code);
/* Those that were posted: the engine's wait(). */
int messages_wait(struct muster_group *group, struct comm_message *const *messages, size_t count, int64_t deadline_ns);
/* A whole call in this thread. */
int message_run(struct muster_group *group, const struct message_call *call);
/* Of a handle. */
int message_work_wait(struct muster_work *work);
void message_work_let_go(struct muster_work *work); /* nobody waits for it */
bool message_work_done(const struct muster_work *work);
void message_work_progress(const struct muster_work *work);
/* The same as message_work_done(), without bringing it forward. */
bool message_work_is_over(const struct muster_work *work);
/* "receive of 4 float32 from rank 2, tag 7 (group 'world', begun 0.250 s ago)". */
void message_describe(const struct muster_group *group, const struct message *message, char *out, size_t max);

/* ---- batch.c ---- */

struct batch;
/* NULL: out of memory. */
struct batch *batch_create(void);
/* Into the batch of a group that is between begin and end. */
int batch_note_call(struct muster_group *group, const struct comm_call *call);
int batch_note_message(struct muster_group *group, const struct message_call *call);
/* Runs a batch in this thread. */
int batch_run(struct muster_group *group, struct batch *batch, int64_t timeout_ns);
void batch_free(struct batch *batch);

/* ---- work.c ---- */

/* Queues a batch, which the work then owns. */
int work_submit_batch(struct muster_group *group, struct batch *batch, struct muster_work **out);

#endif
