/* Which of several nodes' failures is the cause of the job's end, where nodes meet in a store (failures.h): one node
 * hears the others out, and judges. Pure. */
#ifndef RENDEZVOUS_HEARING_H
#define RENDEZVOUS_HEARING_H

#include "rendezvous/round/cause.h"

struct hearing {
    struct rdzv_cause first; /* the failure that counts so far */
    struct rdzv_death death;
    bool is_own;        /* it is the judge's own */
    bool has_others;    /* nodes at work beside the judge's */
    uint32_t owed;      /* of these, how many have not said all they have to say */
    bool is_silent_now; /* those have had their time */
};

/* With the judge's own failure; `owed` other nodes are at work. */
void hearing_begin(struct hearing *hearing, const struct rdzv_cause *own, uint32_t owed, int64_t now_ms);
/* The judge's own again: its last words, or another of its workers, which turned out to have failed first. */
void hearing_own(struct hearing *hearing, const struct rdzv_cause *own, int64_t now_ms);
/* Another node's. */
void hearing_take(struct hearing *hearing, const struct rdzv_cause *cause, int64_t now_ms);
/* One node more has said all: its last words, or that it has no failure; or it is known to say nothing. */
void hearing_excuse(struct hearing *hearing, uint32_t count);
/* Is it time to tell? All have been heard, or have had their time. The judge's own last words are always waited for. */
bool hearing_is_over(const struct hearing *hearing);
/* The record for all nodes. */
struct rdzv_cause hearing_verdict(const struct hearing *hearing, int64_t now_ms);

#endif
