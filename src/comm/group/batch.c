/* A batch of calls, noted first and run together: messages all at once, collectives in order, and neighbouring
 * all_reduces of one type and reduction as one, through a buffer that the group keeps. See work_impl.h. */
#include <muster/collective.h>

#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "base/str.h"
#include "comm/group/work_impl.h"

/* All_reduces are put together up to this size: above it copying costs more than a call. */
#define FUSED_BYTES_MAX ((size_t)1 << 20)

struct noted {
    bool is_message;
    struct comm_call call;
    size_t *counts; /* owned */
    struct message_call message;
};

struct batch {
    struct noted *calls;
    size_t count, capacity, message_count;
};

/* ---- noting ---- */

struct batch *batch_create(void) {
    return calloc(1, sizeof(struct batch));
}

static struct noted *note(struct batch *batch) {
    if (batch->count == MUSTER_COALESCED_MAX) {
        (void)status_fail(MUSTER_ELIMIT, "more than %u calls between coalesce_begin and coalesce_end",
                          MUSTER_COALESCED_MAX);
        return NULL;
    }
    if (batch->count == batch->capacity) {
        size_t capacity = batch->capacity ? 2 * batch->capacity : 16;
        struct noted *grown = realloc(batch->calls, capacity * sizeof *grown);
        if (!grown) {
            (void)status_fail(MUSTER_ENOMEM, "no memory to note calls");
            return NULL;
        }
        batch->calls = grown;
        batch->capacity = capacity;
    }
    struct noted *noted = &batch->calls[batch->count++];
    memset(noted, 0, sizeof *noted);
    return noted;
}

static int code_of_full(const struct batch *batch) {
    return batch->count == MUSTER_COALESCED_MAX ? MUSTER_ELIMIT : MUSTER_ENOMEM;
}

int batch_note_call(struct muster_group *group, const struct comm_call *call) {
    struct noted *noted = note(group->coalesced);
    if (!noted) {
        return code_of_full(group->coalesced);
    }
    noted->call = *call;
    int code = comm_call_copy_counts(&noted->call, group->size, &noted->counts);
    if (code) {
        group->coalesced->count--;
    }
    return code;
}

int batch_note_message(struct muster_group *group, const struct message_call *call) {
    struct noted *noted = note(group->coalesced);
    if (!noted) {
        return code_of_full(group->coalesced);
    }
    noted->is_message = true;
    noted->message = *call;
    group->coalesced->message_count++;
    return 0;
}

void batch_free(struct batch *batch) {
    if (!batch) {
        return;
    }
    for (size_t i = 0; i < batch->count; i++) {
        free(batch->calls[i].counts);
    }
    free(batch->calls);
    free(batch);
}

/* ---- all_reduces as one ---- */

static bool is_alike(const struct noted *a, const struct noted *b) {
    return !b->is_message && b->call.operation == COMM_ALL_REDUCE && b->call.type == a->call.type &&
           b->call.reduction == a->call.reduction;
}

/* They are copied into one buffer, by this thread. */
static bool may_be_fused(const struct muster_group *group, const struct noted *noted) {
    return !engine_is_foreign(group->engine, noted->call.send) &&
           !engine_is_foreign(group->engine, noted->call.receive);
}

/* How many calls from `first` on go together: all_reduces alike, with nothing between them. *out_count: their elements.
 */
static size_t find_alike(const struct muster_group *group, const struct batch *batch, size_t first, size_t *out_count) {
    const struct noted *noted = &batch->calls[first];
    size_t most = FUSED_BYTES_MAX / noted->call.type_bytes, end = first + 1;
    *out_count = noted->call.count;
    while (*out_count <= most && end < batch->count && is_alike(noted, &batch->calls[end]) &&
           batch->calls[end].call.count <= most - *out_count && may_be_fused(group, noted) &&
           may_be_fused(group, &batch->calls[end])) {
        *out_count += batch->calls[end++].call.count;
    }
    return end - first;
}

static int run_alike(struct muster_group *group, const struct noted *calls, size_t count, size_t elements,
                     int64_t timeout_ns) {
    size_t bytes = calls->call.type_bytes, at = 0;
    if (!group->fused) {
        int code = group->engine->table->allocate(group->engine, FUSED_BYTES_MAX, &group->fused);
        if (code) {
            return code;
        }
    }
    uint8_t *all = group->fused;
    for (size_t i = 0; i < count; at += bytes * calls[i++].call.count) {
        if (calls[i].call.count > 0) {
            memcpy(all + at, calls[i].call.send, bytes * calls[i].call.count);
        }
    }
    struct comm_call call = calls->call;
    call.send = call.receive = all;
    call.count = elements;
    comm_call_prepare(&call, group->size);
    int code = group_run(group, &call, timeout_ns, 0);
    at = 0;
    for (size_t i = 0; code == 0 && i < count; at += bytes * calls[i++].call.count) {
        if (calls[i].call.count > 0) {
            memcpy(calls[i].call.receive, all + at, bytes * calls[i].call.count);
        }
    }
    return code;
}

static int run_collectives(struct muster_group *group, struct batch *batch, int64_t timeout_ns) {
    int code = 0;
    for (size_t i = 0, alike; code == 0 && i < batch->count; i += alike) {
        size_t elements = 0;
        struct noted *noted = &batch->calls[i];
        alike = 1;
        if (!noted->is_message && noted->call.operation == COMM_ALL_REDUCE) {
            alike = find_alike(group, batch, i, &elements);
        }
        if (alike > 1) {
            code = run_alike(group, noted, alike, elements, timeout_ns);
        } else if (!noted->is_message) {
            code = group_run(group, &noted->call, timeout_ns, 0);
        }
    }
    return code;
}

/* ---- the batch ---- */

/* Posts every message. *out_count: how many are under way, also after a failure. */
static int post_messages(struct muster_group *group, const struct batch *batch, struct message *messages,
                         struct comm_message **bodies, size_t *out_count) {
    int code = 0;
    *out_count = 0;
    for (size_t i = 0; code == 0 && i < batch->count; i++) {
        if (batch->calls[i].is_message) {
            bodies[*out_count] = &messages[*out_count].body;
            code = message_post(group, &batch->calls[i].message, &messages[*out_count]);
            *out_count += code ? 0 : 1;
        }
    }
    return code;
}

static int finish_messages(struct muster_group *group, struct message *messages, struct comm_message *const *bodies,
                           size_t count) {
    int code = messages_wait(group, bodies, count, messages[count - 1].deadline_ns);
    int first = 0;
    for (size_t i = 0; i < count; i++) {
        int finished = message_finish(group, &messages[i], code);
        first = first ? first : finished;
    }
    return first;
}

/* A failure of this rank alone (no memory): the others, and its own messages, would wait in vain. */
static int fail_alone(struct muster_group *group, int code) {
    char sentence[MUSTER_DETAIL_MAX];
    (void)str_format(sentence, sizeof sentence, "calls between coalesce_begin and coalesce_end: %s", muster_detail());
    (void)group_fail(group, code, sentence, NULL);
    return failure_tell(&group->failure);
}

int batch_run(struct muster_group *group, struct batch *batch, int64_t timeout_ns) {
    size_t room = batch->message_count ? batch->message_count : 1, posted = 0;
    struct message *messages = calloc(room, sizeof *messages);
    struct comm_message **bodies = calloc(room, sizeof(struct comm_message *));
    int code = messages && bodies ? 0 : status_fail(MUSTER_ENOMEM, "no memory for %zu messages", room);
    code = code ? code : post_messages(group, batch, messages, bodies, &posted);
    code = code ? code : run_collectives(group, batch, timeout_ns);
    if (code && !failure_is_set(&group->failure)) {
        code = fail_alone(group, code);
    }
    if (posted > 0) {
        /* After a failure the group has failed: the wait ends at once, and withdraws them. */
        char detail[MUSTER_DETAIL_MAX];
        (void)str_copy(detail, sizeof detail, muster_detail());
        const struct muster_failure record = status_failure();
        int finished = finish_messages(group, messages, bodies, posted);
        code = code ? status_restore(code, detail, &record) : finished;
    }
    free(bodies);
    free(messages);
    return code;
}
