/* How the generators write their actions down, and what those need; see schedule_impl.h. */
#include <assert.h>

#include "comm/schedule/schedule_impl.h"

static void emit(struct schedule *schedule, const struct schedule_action *action) {
    assert(action->peer < schedule->size);
    if (schedule->result == 0) {
        schedule->result = schedule->sink(schedule->context, action);
    }
}

void schedule_send(struct schedule *schedule, uint32_t to, struct schedule_place at, size_t count) {
    emit(schedule, &(struct schedule_action){
                       .kind = SCHEDULE_DO_SEND, .step = schedule->step, .peer = to, .at = at, .count = count});
}

void schedule_receive(struct schedule *schedule, uint32_t from, struct schedule_place at, size_t count) {
    emit(schedule, &(struct schedule_action){
                       .kind = SCHEDULE_DO_RECEIVE, .step = schedule->step, .peer = from, .at = at, .count = count});
}

void schedule_receive_reduce(struct schedule *schedule, uint32_t peer, struct schedule_place at,
                             struct schedule_place operand, size_t count, bool incoming_first) {
    emit(schedule, &(struct schedule_action){.kind = SCHEDULE_DO_RECEIVE_REDUCE,
                                             .step = schedule->step,
                                             .peer = peer,
                                             .at = at,
                                             .from = operand,
                                             .count = count,
                                             .incoming_first = incoming_first});
}

static void emit_local(struct schedule *schedule, enum schedule_kind kind, struct schedule_place at,
                       struct schedule_place from, size_t count) {
    if (count > 0) {
        emit(schedule,
             &(struct schedule_action){.kind = kind, .step = schedule->step, .at = at, .from = from, .count = count});
    }
}

void schedule_copy(struct schedule *schedule, struct schedule_place at, struct schedule_place from, size_t count) {
    emit_local(schedule, SCHEDULE_DO_COPY, at, from, count);
}

void schedule_reduce(struct schedule *schedule, struct schedule_place at, struct schedule_place from, size_t count) {
    emit_local(schedule, SCHEDULE_DO_REDUCE, at, from, count);
}

void schedule_keep(struct schedule *schedule, struct schedule_place at, struct schedule_place from, size_t count) {
    if (!schedule->in_place) {
        schedule_copy(schedule, at, from, count);
    }
}

/* ---- scratch ---- */

static size_t scratch_end(struct schedule_place place, size_t count) {
    return place.buffer == SCHEDULE_SCRATCH && count > 0 ? place.offset + count : 0;
}

size_t schedule_action_scratch(const struct schedule_action *action) {
    size_t at = scratch_end(action->at, action->count), from = scratch_end(action->from, action->count);
    return at > from ? at : from;
}
