/* How a job ends for its coordinator: nodes that are done, failures, and what all are told of them; see coordinator.h
 * and docs/rendezvous.md, "How a job ends". Pure. */
#include <assert.h>
#include <string.h>

#include "base/str.h"
#include "rendezvous/coordinator/coordinator_impl.h"

/* ---- what all are told ---- */

void coordinator_end_let_go(struct coordinator *c, enum coordinator_place place,
                            const struct coordinator_message *message) {
    while (c->places[place].first) {
        struct coordinator_member *member = c->places[place].first;
        coordinator_member_move(c, member, COORDINATOR_OUT);
        c->send(c->send_ctx, member->session, message);
    }
}

static struct coordinator_message word_closed(const struct coordinator *c, struct kv_slice why) {
    size_t len = c->has_failed && c->failure.is_known ? c->failure.len : 0;
    return (struct coordinator_message){.kind = COORDINATOR_CLOSED,
                                        .has_failed = c->has_failed,
                                        .cause = kv_slice_of(c->failure.record, len),
                                        .text = why};
}

static void await_answers(struct coordinator *c) {
    if (!c->has_failed || !c->failure.is_known) {
        return;
    }
    for (struct coordinator_member *m = c->places[COORDINATOR_ACTIVE].first; m; m = m->next) {
        m->owes_answer = !m->has_failed;
        c->owing_count += m->owes_answer;
    }
    c->asks_others = c->owing_count > 0;
}

void coordinator_end_job(struct coordinator *c, struct kv_slice why, bool has_failed) {
    c->phase = COORDINATOR_OVER;
    c->has_failed = has_failed;
    c->news.omitted_count = 0;
    struct kv_slice short_why = coordinator_text_clip(why, COORDINATOR_WHY_BYTES_MAX);
    memmove(c->news.text, short_why.data, short_why.len);
    c->news.len = short_why.len;
    const struct coordinator_message closed = word_closed(c, why);
    c->failure.is_untold = false;
    await_answers(c);
    for (size_t place = 0; place < COORDINATOR_OUT; place++) {
        coordinator_end_let_go(c, (enum coordinator_place)place, &closed);
    }
}

void coordinator_end_forget(struct coordinator *c) {
    c->any_done = false;
    c->done_count = c->done_away_count = 0;
    c->done_news.len = c->done_news.omitted_count = 0;
    c->failure = (struct coordinator_first_failure){.is_known = false};
    c->engine_len = 0;
}

void coordinator_close(struct coordinator *c, struct coordinator_member *member, struct kv_slice why, bool has_failed) {
    char text[COORDINATOR_TEXT_BYTES_MAX];
    struct coordinator_news who = {.len = 0};
    if (member->place != COORDINATOR_OUT) {
        coordinator_news_add(&who, member, "has ended it", why);
        coordinator_end_job(c, why.len > 0 ? why : coordinator_news_text(&who, text), has_failed);
    }
}

/* ---- failures ---- */

static bool is_of(const struct coordinator_first_failure *failure, const struct coordinator_member *member) {
    return failure->is_known && memcmp(failure->identity, member->identity, sizeof failure->identity) == 0;
}

static void take_record(struct coordinator_first_failure *failure, struct kv_slice cause) {
    if (cause.len > 0 && cause.len <= sizeof failure->record) {
        memcpy(failure->record, cause.data, cause.len);
        failure->len = cause.len;
        failure->is_untold = true;
    }
}

static struct rdzv_death death_of(const struct coordinator_failure *failure, int64_t now_ms) {
    return (struct rdzv_death){.is_known = failure->has_age,
                               .is_victim = failure->is_victim,
                               .at_ms = now_ms - failure->age_ms,
                               .early_ms = failure->early_ms};
}

/* Of all nodes the one whose worker died first. */
static void note_failure(struct coordinator_first_failure *first, const struct coordinator_member *member,
                         const struct coordinator_failure *failure, int64_t now_ms) {
    const struct rdzv_death death = death_of(failure, now_ms);
    if (!first->is_known || rdzv_death_is_older(&death, &first->death)) {
        *first = (struct coordinator_first_failure){.is_known = true, .death = death};
        memcpy(first->identity, member->identity, sizeof first->identity);
        take_record(first, failure->cause);
    }
}

static void answered(struct coordinator *c, struct coordinator_member *member) {
    assert(c->owing_count >= member->owes_answer);
    c->owing_count -= member->owes_answer;
    member->owes_answer = false;
}

void coordinator_end_answered(struct coordinator *c, struct coordinator_member *member, int64_t now_ms) {
    answered(c, member);
    coordinator_end_settle(c, now_ms);
}

/* A victim is not the first: the node of the rank by which it fails may not know yet that this one has ended. */
static bool is_hearing(const struct coordinator *c) {
    return c->owing_count > 0 || (c->asks_others && c->failure.is_untold && c->failure.death.is_victim);
}

static int64_t hears_until_ms(const struct coordinator *c) {
    return c->answers_by_ms + (c->failure.death.is_victim ? RDZV_CULPRIT_MS : 0);
}

void coordinator_end_settle(struct coordinator *c, int64_t now_ms) {
    char text[COORDINATOR_TEXT_BYTES_MAX];
    if (c->phase != COORDINATOR_OVER || !c->has_failed) {
        return;
    }
    c->answers_by_ms = c->answers_by_ms > 0 ? c->answers_by_ms : now_ms + RDZV_OTHERS_MS;
    if (c->failure.is_untold && (!is_hearing(c) || now_ms >= hears_until_ms(c))) {
        const struct coordinator_message closed = word_closed(c, coordinator_news_text(&c->news, text));
        c->failure.is_untold = false;
        for (struct coordinator_member *m = c->places[COORDINATOR_OUT].first; m; m = m->next) {
            c->send(c->send_ctx, m->session, &closed);
        }
    }
}

int64_t coordinator_end_wake_ms(const struct coordinator *c) {
    return c->phase == COORDINATOR_OVER && is_hearing(c) && c->answers_by_ms > 0 ? hears_until_ms(c) : INT64_MAX;
}

static void end_by_failure(struct coordinator *c, const struct coordinator_member *member, struct kv_slice why) {
    char text[COORDINATOR_TEXT_BYTES_MAX];
    struct coordinator_news who = {.len = 0};
    if (c->phase != COORDINATOR_OVER && !c->is_stopping && !c->settings.survivors_continue) {
        coordinator_news_add(&who, member, "has failed for good", why);
        coordinator_end_job(c, coordinator_news_text(&who, text), true);
    }
}

/* The worker's last words. Those who report the failure wait for them. */
static void complete_failure(struct coordinator_first_failure *first, const struct coordinator_failure *failure,
                             int64_t now_ms) {
    const struct rdzv_death again = death_of(failure, now_ms);
    take_record(first, failure->cause);
    first->is_complete = true;
    rdzv_death_refine(&first->death, &again);
}

/* Of a node that was at work when the job ended. Once all have been told the complete cause they report it. */
static void note_late_failure(struct coordinator *c, const struct coordinator_member *member,
                              const struct coordinator_failure *failure, int64_t now_ms) {
    bool is_told = c->failure.is_complete && !c->failure.is_untold;
    if (c->phase == COORDINATOR_OVER && c->has_failed && c->failure.is_known && !is_told &&
        member->last_round == c->round && failure->cause.len > 0) {
        note_failure(&c->failure, member, failure, now_ms);
    }
}

void coordinator_failed(struct coordinator *c, struct coordinator_member *member,
                        const struct coordinator_failure *failure, int64_t now_ms) {
    if (c->phase != COORDINATOR_RUNNING && is_of(&c->failure, member)) {
        complete_failure(&c->failure, failure, now_ms);
    } else if (member->place == COORDINATOR_ACTIVE && !member->has_failed) {
        member->has_failed = true;
        note_failure(&c->failure, member, failure, now_ms);
        coordinator_news_add(&c->news, member, "failed", failure->why);
        coordinator_begin_change(c, COORDINATOR_NODE_FAILED, COORDINATOR_CHARGE_FAILURE, member, now_ms);
        if (failure->is_final) {
            end_by_failure(c, member, failure->why);
        }
    } else {
        note_late_failure(c, member, failure, now_ms);
    }
    answered(c, member);
    coordinator_settle(c, now_ms);
}

/* ---- nodes that are done ---- */

/* When it goes, the coordinator goes with it, and nobody can say any more that it was done. */
void coordinator_end_tell_host_done(const struct coordinator *c) {
    const struct coordinator_message message = {.kind = COORDINATOR_HOST_DONE};
    if (!coordinator_quorum_needs_all(c)) {
        return;
    }
    for (struct coordinator_member *m = c->places[COORDINATOR_ACTIVE].first; m; m = m->next) {
        c->send(c->send_ctx, m->session, &message);
    }
}

/* It is counted already. */
static bool has_come_again(struct coordinator *c, const struct coordinator_member *member) {
    for (size_t i = 0; i < c->done_away_count; i++) {
        if (memcmp(c->done_away[i], member->identity, sizeof member->identity) == 0) {
            memmove(c->done_away[i], c->done_away[--c->done_away_count], sizeof member->identity);
            return true;
        }
    }
    return false;
}

void coordinator_end_lost_done(struct coordinator *c, const struct coordinator_member *member) {
    if (c->round > 0 || c->is_stopping || member->is_lasting_loss) { /* it is not counted again, or does not come */
        return;
    }
    if (c->done_away_count < COORDINATOR_DONE_AWAY_MAX) {
        memcpy(c->done_away[c->done_away_count++], member->identity, sizeof member->identity);
    } else {
        assert(c->done_count > 0); /* it waits as one that is done, so it was counted */
        c->done_count--;
    }
}

void coordinator_end_note_done(struct coordinator *c, const struct coordinator_member *member) {
    c->any_done = true;
    if (has_come_again(c, member)) {
        return;
    }
    c->done_count++;
    coordinator_news_add(&c->done_news, member, "has succeeded", kv_slice_of(NULL, 0));
}

void coordinator_done(struct coordinator *c, struct coordinator_member *member, int64_t now_ms) {
    if (member->place != COORDINATOR_ACTIVE) {
        coordinator_end_answered(c, member, now_ms);
        return;
    }
    coordinator_end_note_done(c, member);
    /* While a round is open it has been told that the world has ended: it need not wait for anybody. */
    bool waits = c->phase == COORDINATOR_RUNNING || c->is_stopping;
    coordinator_member_move(c, member, waits ? COORDINATOR_DONE_WAITS : COORDINATOR_OUT);
    if (waits && member->is_host) {
        c->is_host_done = true;
        coordinator_end_tell_host_done(c);
    }
    coordinator_settle(c, now_ms);
}

/* Of the last world. */
static size_t count_of_world(const struct coordinator *c) {
    const struct coordinator_past *prior = &c->prior.list[0].past;
    bool is_known = c->prior.count > 0 && prior->is_confirmed; /* another coordinator has told it */
    return c->round > 0 ? c->world_size : is_known ? prior->size : c->done_count + c->settings.min_nodes;
}

/* As job_end_can_reform(): a node that is dead, and not done, may come back. */
static size_t count_left(const struct coordinator *c) {
    size_t size = count_of_world(c), joined = coordinator_count_of(c, COORDINATOR_JOINED);
    size_t reserve = coordinator_count_of(c, COORDINATOR_SPARED) + joined - c->returning_count;
    return (size > c->done_count ? size - c->done_count : 0) + reserve;
}

bool coordinator_end_without_done(struct coordinator *c) {
    enum { NAMED_BYTES_MAX = 512 };
    char text[COORDINATOR_TEXT_BYTES_MAX], why[COORDINATOR_TEXT_BYTES_MAX];
    size_t left = count_left(c);
    if (c->phase != COORDINATOR_FORMING || c->done_count == 0 || left >= c->settings.min_nodes ||
        c->settings.survivors_continue || !coordinator_quorum_can_end(c)) {
        return false;
    }
    struct kv_slice done = coordinator_text_clip(coordinator_news_text(&c->done_news, text), NAMED_BYTES_MAX);
    (void)str_format(why, sizeof why,
                     "no further round can be formed: %.*s, and %zu of the %u nodes that it needs %s left",
                     (int)done.len, (const char *)done.data, left, c->settings.min_nodes, left == 1 ? "is" : "are");
    coordinator_end_job(c, kv_slice_text(why), true);
    return true;
}
