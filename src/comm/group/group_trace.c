/* What a finished collective or message leaves in this process's trace (comm/observe/trace.h). Runs only when there is
 * one. */
#include "comm/group/group_impl.h"

#include "base/clock.h"
#include "base/str.h"
#include "comm/group/debug.h"
#include "comm/observe/trace.h"

/* Elements of the largest buffer of a rank. */
static size_t elements_of(const struct muster_group *group, const struct comm_call *call) {
    switch (call->operation) {
    case COMM_ALL_GATHER:
    case COMM_GATHER:
    case COMM_REDUCE_SCATTER:
    case COMM_SCATTER:
    case COMM_ALL_TO_ALL:
        break;
    default:
        return call->count;
    }
    const size_t *counts = call->send_counts != NULL ? call->send_counts : call->receive_counts;
    return counts != NULL ? comm_counts_sum(counts, group->size) : call->count * group->size;
}

/* Must this rank wait for `member` (a local one) to come? */
static bool needs(const struct muster_group *group, const struct comm_call *call, uint32_t member) {
    uint32_t rank = group->locals[member];
    switch (call->operation) {
    case COMM_BROADCAST:
    case COMM_SCATTER:
        return rank == call->root;
    case COMM_REDUCE:
    case COMM_GATHER:
        return group->rank == call->root;
    case COMM_SCAN:
    case COMM_EXSCAN:
        return rank < group->rank;
    default:
        return true;
    }
}

/* When the last of those it needs had come; 0: not known. The others' times are theirs: all on this host read one
 * clock. Other hosts have come when the first of their messages has. */
static int64_t all_had_come_ns(const struct muster_group *group, const struct comm_call *call, uint64_t sequence,
                               int64_t begin_ns, int64_t end_ns) {
    int64_t last_ns = begin_ns;
    if (group->local_count != group->size) {
        last_ns = engine_arrived_ns(group->engine);
        if (last_ns == 0) {
            return 0; /* of other hosts this rank has heard through a neighbour, or nothing */
        }
    }
    for (uint32_t i = 0; i < group->local_count; i++) {
        if (!needs(group, call, i)) {
            continue;
        }
        int64_t begun_ns = call_time_of(&group->lines[i].traced[sequence % GROUP_TRACED], sequence);
        if (begun_ns == 0) {
            return 0; /* that rank is not traced, or far ahead */
        }
        last_ns = begun_ns > last_ns ? begun_ns : last_ns;
    }
    return last_ns <= end_ns ? last_ns : 0; /* else that rank reads another clock (a time namespace) */
}

/* What the group is called in all traces. */
static void name_group(const struct muster_group *group, char out[MUSTER_TRACE_NAME_MAX]) {
    if (group->id == 0) {
        (void)str_copy(out, MUSTER_TRACE_NAME_MAX, group->name);
    } else { /* several groups may be called the same */
        (void)str_format(out, MUSTER_TRACE_NAME_MAX, "%.40s #%u of %u", group->name, group->id, group->root_ranks[0]);
    }
}

int64_t group_trace_begin(struct muster_group *group, uint64_t sequence) {
    int64_t now_ns = clock_monotonic_ns();
    call_time_note(&group->line->traced[sequence % GROUP_TRACED], sequence, now_ns);
    return now_ns;
}

void group_trace_end(struct muster_group *group, const struct comm_call *call, uint64_t sequence, int64_t begin_ns,
                     int64_t queued_ns, int status) {
    char name[MUSTER_TRACE_NAME_MAX], root[32];
    int64_t end_ns = clock_monotonic_ns();
    size_t elements = elements_of(group, call);
    name_group(group, name);
    if (group->id == 0) {
        trace_rank(group->rank, group->size);
    }
    (void)str_format(root, sizeof root, "root %u", call->root);
    struct trace_collective mark = {
        .name = comm_call_name(call),
        .group = name,
        .sequence = sequence,
        .is_synchronizing = !comm_has_root(call->operation) && !comm_is_prefix(call->operation),
        .type = call->operation == COMM_BARRIER || call->operation == COMM_MONITORED_BARRIER
                    ? NULL
                    : muster_type_name(call->type),
        .count = call->count > 0 ? call->count : elements,
        .bytes = elements * call->type_bytes,
        .algorithm = engine_algorithm(group->engine),
        .peer = comm_has_root(call->operation) ? root : NULL,
        .queued_ns = queued_ns,
        .begin_ns = begin_ns,
        .transfer_ns = status == MUSTER_OK ? all_had_come_ns(group, call, sequence, begin_ns, end_ns) : 0,
        .end_ns = end_ns,
        .status = status,
    };
    trace_collective(&mark);
    if (status != MUSTER_OK) {
        (void)trace_flush(); /* what follows may be the end of the process */
    }
}

void group_note_message(const struct message_note *note) {
    int64_t end_ns = clock_monotonic_ns();
    if (note->group->context->logs_calls) {
        debug_message(note, end_ns - note->begin_ns);
    }
    if (trace_enabled()) {
        char name[MUSTER_TRACE_NAME_MAX], peer[24] = "any";
        name_group(note->group, name);
        if (note->group->id == 0) {
            trace_rank(note->group->rank, note->group->size);
        }
        if (note->peer != MUSTER_ANY_RANK) {
            (void)str_format(peer, sizeof peer, "%s %u", note->operation == COMM_SEND ? "to" : "from", note->peer);
        }
        struct trace_message mark = {.name = comm_operation_name(note->operation),
                                     .group = name,
                                     .peer = peer,
                                     .tag = note->tag,
                                     .type = muster_type_name(note->type),
                                     .count = note->count,
                                     .bytes = note->count * muster_type_bytes(note->type),
                                     .begin_ns = note->begin_ns,
                                     .end_ns = end_ns,
                                     .status = note->status};
        trace_message(&mark);
        if (note->status != MUSTER_OK) {
            (void)trace_flush();
        }
    }
}
