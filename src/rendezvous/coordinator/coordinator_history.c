/* Telling from two looks at a coordinator what has happened between them; see coordinator_history.h. */
#include "rendezvous/coordinator/coordinator_history.h"

#include <string.h>

#include "base/utf8.h"

size_t coordinator_history_count(const struct coordinator_history *history) {
    return history->count < COORDINATOR_HISTORY_ROUNDS_MAX ? history->count : COORDINATOR_HISTORY_ROUNDS_MAX;
}

const struct coordinator_past_round *coordinator_history_at(const struct coordinator_history *history, size_t i) {
    size_t first = history->count - coordinator_history_count(history);
    return &history->rounds[(first + i) % COORDINATOR_HISTORY_ROUNDS_MAX];
}

static struct coordinator_past_round *last_round(struct coordinator_history *history) {
    return history->count > 0 ? &history->rounds[(history->count - 1) % COORDINATOR_HISTORY_ROUNDS_MAX] : NULL;
}

/* As much as fits; no sequence of UTF-8 is cut through. */
static void copy_why(char out[COORDINATOR_HISTORY_WHY_MAX], struct kv_slice why) {
    size_t used = 0;
    while (used < why.len) {
        size_t n = utf8_length(why.data + used, why.len - used);
        if (n == 0 || used + n >= COORDINATOR_HISTORY_WHY_MAX) {
            break;
        }
        memcpy(out + used, why.data + used, n);
        used += n;
    }
    out[used] = '\0';
}

/* What the job was charged with since the last look. */
static enum coordinator_cause cause_of(const struct coordinator_charges *before,
                                       const struct coordinator_charges *after) {
    return after->failures > before->failures         ? COORDINATOR_CAUSE_FAILURE
           : after->preemptions > before->preemptions ? COORDINATOR_CAUSE_PREEMPTION
           : after->changes > before->changes         ? COORDINATOR_CAUSE_CHANGE
                                                      : COORDINATOR_CAUSE_NONE;
}

static void end_round(struct coordinator_history *history, const struct coordinator_view *view, struct kv_slice why,
                      int64_t now_ms) {
    struct coordinator_past_round *round = last_round(history);
    if (round && round->ended_ms < 0) {
        round->ended_ms = now_ms;
        round->cause = cause_of(&history->charges, &view->charges);
        copy_why(round->why, why);
        history->opened_ms = now_ms;
    }
    if (round) {
        round->is_last = view->phase == COORDINATOR_OVER;
    }
}

static void begin_round(struct coordinator_history *history, const struct coordinator_view *view, int64_t now_ms) {
    history->count++;
    *last_round(history) = (struct coordinator_past_round){.round = view->round,
                                                           .node_count = view->world_node_count,
                                                           .worker_count = view->world_worker_count,
                                                           .opened_ms = history->opened_ms,
                                                           .formed_ms = now_ms,
                                                           .ended_ms = -1};
}

void coordinator_history_note(struct coordinator_history *history, const struct coordinator_view *view,
                              struct kv_slice why, int64_t now_ms) {
    const struct coordinator_past_round *last = last_round(history);
    bool is_new = view->round > 0 && (!last || last->round != view->round);
    if (!history->is_begun && view->member_count > 0) {
        history->is_begun = true;
        history->opened_ms = history->phase_ms = now_ms;
    }
    if (is_new) { /* the one before may have ended in the same event */
        end_round(history, view, why, now_ms);
        begin_round(history, view, now_ms);
    }
    if (view->phase != history->phase || is_new) {
        if (view->phase != COORDINATOR_RUNNING) {
            end_round(history, view, why, now_ms);
        }
        history->phase = view->phase;
        history->phase_ms = now_ms;
    }
    history->charges = view->charges;
}
