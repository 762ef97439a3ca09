/* Sends and receives under way, over comm/p2p/p2p.h. They need no progress thread: whoever waits for anything in the
 * group brings them forward. See work_impl.h. */
#include <stdio.h>

#include "base/clock.h"
#include "base/status.h"
#include "base/str.h"
#include "comm/group/work_impl.h"
#include "comm/observe/recorder.h"

static size_t bytes_of(const struct message_call *call) {
    return call->count * muster_type_bytes(call->type);
}

/* ---- sentences ---- */

void message_describe(const struct muster_group *group, const struct message *message, char *out, size_t max) {
    const struct message_call *call = &message->call;
    bool is_send = call->operation == COMM_SEND;
    char peer[32] = "any rank";
    if (call->peer != MUSTER_ANY_RANK) {
        (void)str_format(peer, sizeof peer, "rank %u", call->peer);
    }
    (void)snprintf(out, max, "%s of %zu %s %s %s, tag %u (group '%s', begun %.3f s ago)",
                   comm_operation_name(call->operation), call->count, muster_type_name(call->type),
                   is_send ? "to" : "from", peer, call->tag, group->name,
                   (double)(clock_monotonic_ns() - message->begin_ns) / 1e9);
}

/* For the trace and the log: it has ended. */
static inline void note(const struct muster_group *group, const struct message *message, uint32_t peer, size_t bytes,
                        int status) {
    if (__builtin_expect(group->context->notes_messages, 0)) {
        const struct message_call *call = &message->call;
        struct message_note done = {.group = group,
                                    .operation = call->operation,
                                    .type = call->type,
                                    .peer = peer,
                                    .tag = call->tag,
                                    .count = bytes / muster_type_bytes(call->type),
                                    .begin_ns = message->begin_ns,
                                    .status = status};
        group_note_message(&done);
    }
}

static int fail(struct muster_group *group, const struct message *message, int code) {
    char sentence[MUSTER_DETAIL_MAX], what[256], detail[MUSTER_DETAIL_MAX];
    struct muster_failure record = status_failure();
    (void)str_format(detail, sizeof detail, "%s", muster_detail());
    if (code == MUSTER_EPEER || code == MUSTER_ECONNECT) {
        group_await_deaths(group);
        (void)group_examine(group, GROUP_NEED_MESSAGE); /* perhaps more is known than that a link broke */
        code = MUSTER_EPEER;
    }
    note(group, message, message->call.peer, bytes_of(&message->call), code);
    if (failure_is_set(&group->failure)) {
        return failure_tell(&group->failure);
    }
    message_describe(group, message, what, sizeof what);
    if (code == MUSTER_ETIMEOUT && clock_monotonic_ns() >= message->deadline_ns) {
        int used =
            snprintf(sentence, sizeof sentence, "%s: not done within %.3f s; the other side has not %s", what,
                     (double)group->timeout_ns / 1e9, message->call.operation == COMM_SEND ? "received it" : "sent it");
        (void)group_tell_held(group, sentence, (size_t)used, sizeof sentence, NULL);
        record = status_no_failure();
        if (message->call.peer != MUSTER_ANY_RANK) {
            status_add_missing(&record, message->call.peer);
        }
    } else { /* a time-out of another rank's among others: the links have told this rank */
        (void)snprintf(sentence, sizeof sentence, "%s: %s", what, detail);
    }
    (void)group_fail(group, code, sentence, &record);
    return failure_tell(&group->failure);
}

/* ---- one message ---- */

static struct p2p_envelope envelope_of(const struct muster_group *group, const struct message_call *call) {
    return (struct p2p_envelope){
        .group = group->id,
        .lane = P2P_MESSAGES,
        .peer = call->peer == MUSTER_ANY_RANK ? P2P_ANY_PEER : group->root_ranks[call->peer],
        .tag = call->tag,
        .fingerprint = (uint64_t)call->type,
        .members = group->root_ranks,
        .member_count = group->size,
    };
}

static void begin(struct muster_group *group, const struct message_call *call, struct message *message,
                  int64_t begin_ns) {
    struct comm_call recorded = {.operation = call->operation, .type = call->type, .count = call->count};
    struct recorder_place place = {group->id, group->size, 0, call->peer};
    message->call = *call;
    message->begin_ns = begin_ns;
    message->deadline_ns = begin_ns + group->timeout_ns;
    message->record = recorder_begin(group->context->recorder, &recorded, &place, begin_ns);
}

static int post(struct muster_group *group, struct message *message, bool is_blocking) {
    struct p2p *p2p = group->context->p2p;
    const struct message_call *call = &message->call;
    struct p2p_envelope envelope = envelope_of(group, call);
    envelope.is_blocking = is_blocking;
    atomic_store_explicit(&group->context->uses_links, true, memory_order_relaxed);
    int code = call->operation == COMM_SEND
                   ? p2p_send(p2p, &message->request, &envelope, call->buffer, bytes_of(call), message->deadline_ns)
                   : p2p_receive(p2p, &message->request, &envelope, call->buffer, bytes_of(call), message->deadline_ns);
    if (code) {
        recorder_end(group->context->recorder, message->record, clock_monotonic_ns(), code);
        return fail(group, message, code);
    }
    return 0;
}

int message_post(struct muster_group *group, const struct message_call *call, struct message *message) {
    int code = group_check_message(group);
    if (code) {
        return code;
    }
    begin(group, call, message, clock_monotonic_ns());
    return post(group, message, false);
}

static uint32_t rank_of_root(const struct muster_group *group, uint32_t root_rank) {
    uint32_t rank = 0;
    while (rank < group->size && group->root_ranks[rank] != root_rank) {
        rank++;
    }
    return rank;
}

int message_finish(struct muster_group *group, struct message *message, int code) {
    const struct p2p_request *request = &message->request;
    recorder_end(group->context->recorder, message->record, clock_monotonic_ns(), code);
    if (code) {
        return fail(group, message, code);
    }
    if (message->call.out) {
        *message->call.out = (struct muster_message){rank_of_root(group, request->envelope.peer), message->call.tag,
                                                     request->bytes / muster_type_bytes(message->call.type)};
    }
    if (__builtin_expect(group->context->notes_messages, 0)) {
        note(group, message, rank_of_root(group, request->envelope.peer), request->bytes, 0);
    }
    return 0;
}

static int wait_for(struct muster_group *group, struct message *message) {
    struct p2p_request *requests[] = {&message->request};
    int code = p2p_wait(group->context->p2p, &group->message_waiter, requests, 1, message->deadline_ns);
    return message_finish(group, message, code);
}

/* ---- blocking calls ---- */

/* Recorded once it has gone: it has not waited for anything. false: it takes the long way. */
static bool send_short(struct muster_group *group, const struct message_call *call) {
    struct p2p_envelope envelope = envelope_of(group, call);
    struct message message;
    int64_t now_ns;
    if (!p2p_send_short(group->context->p2p, &envelope, call->buffer, bytes_of(call), &now_ns)) {
        return false;
    }
    begin(group, call, &message, now_ns);
    recorder_end(group->context->recorder, message.record, now_ns, 0);
    note(group, &message, call->peer, bytes_of(call), 0);
    return true;
}

/* Looks for a short message before anything is posted. false: it has not come; `message` has begun. */
static bool receive_short(struct muster_group *group, const struct message_call *call, struct message *message) {
    struct p2p *p2p = group->context->p2p;
    struct p2p_envelope envelope = envelope_of(group, call);
    struct p2p_short came;
    int64_t now_ns = 0;
    struct p2p_link *link =
        call->peer == MUSTER_ANY_RANK ? NULL : p2p_expect_short(p2p, envelope.peer, bytes_of(call), &now_ns);
    begin(group, call, message, link ? now_ns : clock_monotonic_ns());
    if (!link ||
        !p2p_receive_short(p2p, &group->message_waiter, link, &envelope, call->buffer, bytes_of(call), &came)) {
        return false;
    }
    recorder_end(group->context->recorder, message->record, came.end_ns, 0);
    if (call->out) {
        *call->out = (struct muster_message){call->peer, call->tag, came.bytes / muster_type_bytes(call->type)};
    }
    note(group, message, call->peer, came.bytes, 0);
    return true;
}

int message_run(struct muster_group *group, const struct message_call *call) {
    struct message message;
    int code = group_check_message(group);
    if (code) {
        return code;
    }
    if (call->operation == COMM_SEND) {
        if (send_short(group, call)) {
            return 0;
        }
        begin(group, call, &message, clock_monotonic_ns());
    } else if (receive_short(group, call, &message)) {
        return 0;
    }
    code = post(group, &message, true);
    return code ? code : wait_for(group, &message);
}

/* ---- handles ---- */

int message_work_wait(struct muster_work *work) {
    return wait_for(work->group, &work->message);
}

bool message_work_is_over(const struct muster_work *work) {
    return atomic_load_explicit(&work->message.request.done, memory_order_acquire) ||
           failure_is_set(&work->group->failure);
}

bool message_work_done(const struct muster_work *work) {
    const struct p2p_request *request = &work->message.request;
    if (!atomic_load_explicit(&request->done, memory_order_acquire)) {
        if (group_is_uneasy(work->group)) { /* else the neighbours' lines stay where they are */
            group_tell_left(work->group);
        }
        (void)p2p_progress(work->group->context->p2p);
    }
    return message_work_is_over(work);
}
