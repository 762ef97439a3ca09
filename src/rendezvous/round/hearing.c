/* Hearing nodes out; see hearing.h. */
#include "rendezvous/round/hearing.h"

#include <assert.h>

static bool is_same_worker(const struct rdzv_cause *one, const struct rdzv_cause *other) {
    return one->rank == other->rank && one->pid == other->pid;
}

static void put_first(struct hearing *h, const struct rdzv_cause *cause, bool is_own, int64_t now_ms) {
    h->first = *cause;
    h->death = rdzv_cause_death(cause, now_ms);
    h->is_own = is_own;
}

static void complete(struct hearing *h, const struct rdzv_cause *again, int64_t now_ms) {
    const struct rdzv_death death = rdzv_cause_death(again, now_ms);
    bool is_told = h->first.is_told || again->is_told;
    rdzv_death_refine(&h->death, &death);
    h->first = *again;
    h->first.is_told = is_told;
}

void hearing_begin(struct hearing *h, const struct rdzv_cause *own, uint32_t owed, int64_t now_ms) {
    *h = (struct hearing){.has_others = owed > 0, .owed = owed};
    put_first(h, own, true, now_ms);
}

void hearing_take(struct hearing *h, const struct rdzv_cause *cause, int64_t now_ms) {
    const struct rdzv_death death = rdzv_cause_death(cause, now_ms);
    if (is_same_worker(cause, &h->first)) {
        complete(h, cause, now_ms);
    } else if (rdzv_death_is_older(&death, &h->death)) {
        put_first(h, cause, false, now_ms);
    }
}

/* Which of its own failed first a node knows better than by these clocks. */
void hearing_own(struct hearing *h, const struct rdzv_cause *own, int64_t now_ms) {
    const struct rdzv_death death = rdzv_cause_death(own, now_ms);
    if (h->is_own && is_same_worker(own, &h->first)) {
        complete(h, own, now_ms);
    } else if (h->is_own || rdzv_death_is_older(&death, &h->death)) {
        put_first(h, own, true, now_ms);
    }
}

void hearing_excuse(struct hearing *h, uint32_t count) {
    h->owed -= count < h->owed ? count : h->owed;
}

bool hearing_is_over(const struct hearing *h) {
    assert(h->has_others || h->owed == 0); /* nobody is awaited who is not there */
    /* A victim is not the first: the node of the rank by which it fails may not know yet that this one has ended. */
    bool awaits_culprit = h->has_others && h->death.is_victim;
    bool are_all_heard = (h->owed == 0 && !awaits_culprit) || h->is_silent_now;
    return are_all_heard && (h->first.is_told || (h->is_silent_now && !h->is_own));
}

struct rdzv_cause hearing_verdict(const struct hearing *h, int64_t now_ms) {
    struct rdzv_cause verdict = h->first;
    verdict.is_final = verdict.is_told = true;
    verdict.age_us = h->death.is_known ? (now_ms - h->death.at_ms) * 1000 : -1;
    return verdict;
}
