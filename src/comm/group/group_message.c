/* Sends and receives under way, carried by the group's engine. They need no progress thread: whoever waits for anything
 * in the group brings them forward. See work_impl.h. */
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

/* Appends which tags have come instead; returns the new length. Some have been sent with another one by mistake. */
static size_t tell_arrived(struct muster_group *group, const struct message *message, char *out, size_t used,
                           size_t max) {
    const struct engine_messages *messages = group->engine->table->messages;
    struct comm_arrived arrived[COMM_ARRIVED_MAX];
    size_t count =
        messages->list_arrived ? messages->list_arrived(group->engine, &message->body, arrived, COMM_ARRIVED_MAX) : 0;
    for (size_t i = 0; i < count && used < max; i++) {
        used += (size_t)snprintf(out + used, max - used, "%stag %u from rank %u",
                                 i == 0 ? "; what waits for a receive: " : ", ", arrived[i].tag, arrived[i].rank);
    }
    return used < max ? used : max - 1;
}

/* The deadline has passed: what the other side has not done. Returns the length. */
static size_t describe_late(struct muster_group *group, const struct message *message, const char *what, char *out,
                            size_t max) {
    const struct message_call *call = &message->call;
    bool is_send = call->operation == COMM_SEND;
    int used = snprintf(out, max, "%s: not done within %.3f s; ", what, (double)group->timeout_ns / 1e9);
    used += is_send ? snprintf(out + used, max - (size_t)used,
                               "rank %u has not received it: that takes a receive from rank %u with tag %u", call->peer,
                               group->rank, call->tag)
                    : snprintf(out + used, max - (size_t)used, "no message with tag %u has come", call->tag);
    return is_send ? (size_t)used : tell_arrived(group, message, out, (size_t)used, max);
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
    code = group_seek_reason(group, code, GROUP_NEED_MESSAGE);
    note(group, message, message->call.peer, bytes_of(&message->call), code);
    if (failure_is_set(&group->failure)) {
        return failure_tell(&group->failure);
    }
    message_describe(group, message, what, sizeof what);
    if (code == MUSTER_ETIMEOUT && clock_monotonic_ns() >= message->deadline_ns) {
        size_t used = describe_late(group, message, what, sentence, sizeof sentence);
        (void)group_tell_held(group, sentence, used, sizeof sentence, NULL);
        record = status_no_failure();
        if (message->call.peer != MUSTER_ANY_RANK) {
            status_add_missing(&record, message->call.peer);
        }
    } else { /* a time-out of another rank's among others: the links have told this rank */
        (void)snprintf(sentence, sizeof sentence, "%s: %s", what, detail);
        if (code == MUSTER_EPEER && record.rank == MUSTER_NO_RANK && message->call.peer != MUSTER_ANY_RANK) {
            group_blame(group, message->call.peer, &record); /* it has left */
        }
    }
    (void)group_fail(group, code, sentence, &record);
    return failure_tell(&group->failure);
}

/* ---- one message ---- */

static void begin(struct muster_group *group, const struct message_call *call, struct message *message,
                  int64_t begin_ns) {
    struct comm_call recorded = {.operation = call->operation, .type = call->type, .count = call->count};
    struct recorder_place place = {group->id, group->size, 0, call->peer};
    message->call = *call;
    message->begin_ns = begin_ns;
    message->deadline_ns = begin_ns + group->timeout_ns;
    message->record = recorder_begin(group->context->recorder, &recorded, &place, begin_ns);
}

/* All but `own`, which is the engine's to fill in. */
static void describe_body(const struct message_call *call, bool is_blocking, struct comm_message *out) {
    out->is_send = call->operation == COMM_SEND;
    out->is_blocking = is_blocking;
    out->type = call->type;
    out->peer = call->peer;
    out->tag = call->tag;
    out->buffer = call->buffer;
    out->bytes = bytes_of(call);
}

static int post(struct muster_group *group, struct message *message, bool is_blocking) {
    struct engine *engine = group->engine;
    describe_body(&message->call, is_blocking, &message->body);
    message->forget = engine->table->messages->forget;
    atomic_store_explicit(&group->context->uses_links, true, memory_order_relaxed);
    int code = engine->table->messages->post(engine, &message->body, message->deadline_ns);
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

int message_finish(struct muster_group *group, struct message *message, int code) {
    const struct comm_message *body = &message->body;
    recorder_end(group->context->recorder, message->record, clock_monotonic_ns(), code);
    if (code) {
        return fail(group, message, code);
    }
    if (message->call.out) {
        *message->call.out =
            (struct muster_message){body->peer, message->call.tag, body->bytes / muster_type_bytes(message->call.type)};
    }
    if (__builtin_expect(group->context->notes_messages, 0)) {
        note(group, message, body->peer, body->bytes, 0);
    }
    return 0;
}

int messages_wait(struct muster_group *group, struct comm_message *const *messages, size_t count, int64_t deadline_ns) {
    return group->engine->table->messages->wait(group->engine, messages, count, deadline_ns);
}

static int wait_for(struct muster_group *group, struct message *message) {
    struct comm_message *messages[] = {&message->body};
    int code = messages_wait(group, messages, 1, message->deadline_ns);
    return message_finish(group, message, code);
}

/* ---- blocking calls ---- */

/* Recorded once it has gone: it has not waited for anything. false: it takes the long way. */
static bool send_short(struct muster_group *group, struct message *message, const struct message_call *call) {
    const struct engine_messages *messages = group->engine->table->messages;
    int64_t now_ns;
    describe_body(call, true, &message->body);
    if (!messages->send_now || !messages->send_now(group->engine, &message->body, &now_ns)) {
        return false;
    }
    begin(group, call, message, now_ns);
    recorder_end(group->context->recorder, message->record, now_ns, 0);
    note(group, message, call->peer, bytes_of(call), 0);
    return true;
}

/* Looks for a short message before anything is posted. false: it has not come; `message` has begun. */
static bool receive_short(struct muster_group *group, struct message *message, const struct message_call *call) {
    const struct engine_messages *messages = group->engine->table->messages;
    int64_t now_ns = 0;
    describe_body(call, true, &message->body);
    void *expected = messages->expect ? messages->expect(group->engine, &message->body, &now_ns) : NULL;
    begin(group, call, message, expected ? now_ns : clock_monotonic_ns());
    if (!expected || !messages->take_now(group->engine, &message->body, expected, &now_ns)) {
        return false;
    }
    recorder_end(group->context->recorder, message->record, now_ns, 0);
    if (call->out) {
        *call->out =
            (struct muster_message){call->peer, call->tag, message->body.bytes / muster_type_bytes(call->type)};
    }
    note(group, message, call->peer, message->body.bytes, 0);
    return true;
}

int message_run(struct muster_group *group, const struct message_call *call) {
    struct message message;
    int code = group_check_message(group);
    if (code) {
        return code;
    }
    if (call->operation == COMM_SEND) {
        if (send_short(group, &message, call)) {
            return 0;
        }
        begin(group, call, &message, clock_monotonic_ns());
    } else if (receive_short(group, &message, call)) {
        return 0;
    }
    code = post(group, &message, true);
    return code ? code : wait_for(group, &message);
}

/* ---- handles ---- */

/* The group may have been freed, which has ended its messages. */
static bool has_group(const struct muster_work *work) {
    return context_is_alive(work->group->context);
}

static void forget(struct message *message) {
    if (message->forget) {
        message->forget(&message->body);
    }
}

int message_work_wait(struct muster_work *work) {
    if (!has_group(work)) {
        forget(&work->message);
        return group_refuse(work->group);
    }
    return wait_for(work->group, &work->message);
}

/* It could not go on, and the other side would wait. */
static void fail_freed(struct muster_group *group, const struct message *message, int code) {
    char what[256], sentence[MUSTER_DETAIL_MAX];
    message_describe(group, message, what, sizeof what);
    (void)str_format(sentence, sizeof sentence, "%s: its handle was freed before it was done: %s", what,
                     muster_detail());
    (void)group_fail(group, code, sentence, NULL);
}

void message_work_let_go(struct muster_work *work) {
    struct muster_group *group = work->group;
    struct message *message = &work->message;
    struct status_kept kept;
    if (!has_group(work)) {
        forget(message);
        return;
    }
    status_keep(&kept);
    bool is_lost = !message->body.is_send && !message_work_is_over(work);
    int code = group->engine->table->messages->let_go(group->engine, &message->body);
    int status = code ? code : is_lost ? MUSTER_ECANCELED : 0;
    recorder_end(group->context->recorder, message->record, clock_monotonic_ns(), status);
    note(group, message, message->call.peer, bytes_of(&message->call), status);
    if (code) {
        fail_freed(group, message, code);
    }
    status_put_back(&kept);
}

bool message_work_is_over(const struct muster_work *work) {
    return !has_group(work) || work->group->engine->table->messages->has_ended(&work->message.body) ||
           failure_is_set(&work->group->failure);
}

void message_work_progress(const struct muster_work *work) {
    if (!has_group(work)) {
        return;
    }
    const struct engine_messages *messages = work->group->engine->table->messages;
    if (!messages->has_ended(&work->message.body)) {
        messages->progress(work->group->engine);
    }
}

bool message_work_done(const struct muster_work *work) {
    struct status_kept kept;
    status_keep(&kept);
    if (!message_work_is_over(work) &&
        group_is_uneasy(work->group)) { /* else the neighbours' lines stay where they are */
        group_tell_left(work->group);
    }
    message_work_progress(work);
    status_put_back(&kept); /* what has gone wrong is the wait's to tell */
    return message_work_is_over(work);
}
