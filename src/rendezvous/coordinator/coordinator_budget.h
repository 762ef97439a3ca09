/* What a job has been charged with, and how much of it is allowed: failures, membership changes and pre-emptions, each
 * kept for itself (docs/rendezvous.md, "Budgets"). A world that ends before its job is charged once, to what ended it.
 * Pure: no clock, no memory of its own. */
#ifndef RENDEZVOUS_COORDINATOR_BUDGET_H
#define RENDEZVOUS_COORDINATOR_BUDGET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "rendezvous/wire/coordinator_wire.h"

enum coordinator_charge {
    COORDINATOR_CHARGE_FAILURE,
    COORDINATOR_CHARGE_CHANGE,
    COORDINATOR_CHARGE_PREEMPTION,
    COORDINATOR_CHARGE_COUNT,
};

#define COORDINATOR_WINDOW_CHARGES_MAX ((uint32_t)1024) /* of a limit, where there is a window */

struct coordinator_limits {
    bool is_limited[COORDINATOR_CHARGE_COUNT];
    uint32_t allowed[COORDINATOR_CHARGE_COUNT]; /* where it is */
    int64_t window_ms;                          /* only charges that are younger count; 0: all of the job's */
};

struct coordinator_account {
    uint32_t total; /* of the job; stays at its maximum */
    uint32_t here;  /* of them, charged by this coordinator */
    int64_t first_ms;
    int64_t at_ms[COORDINATOR_WINDOW_CHARGES_MAX + 1]; /* a ring of the last ones; unused without a window */
};

struct coordinator_budget {
    struct coordinator_limits limits;
    struct coordinator_account accounts[COORDINATOR_CHARGE_COUNT];
};

/* With a window, no limit is above COORDINATOR_WINDOW_CHARGES_MAX. */
void coordinator_budget_init(struct coordinator_budget *budget, const struct coordinator_limits *limits);

/* What an earlier coordinator of the job has charged, as a node says: the highest number of each counts. Nobody knows
 * when that was, so a window holds none of it. */
void coordinator_budget_learn(struct coordinator_budget *budget, const struct coordinator_charges *charges);

/* False when that is one more than is allowed. */
bool coordinator_budget_charge(struct coordinator_budget *budget, enum coordinator_charge charge, int64_t now_ms);

/* Whether one more would be allowed. */
bool coordinator_budget_allows(const struct coordinator_budget *budget, enum coordinator_charge charge, int64_t now_ms);

struct coordinator_charges coordinator_budget_charges(const struct coordinator_budget *budget);

#define COORDINATOR_BUDGET_TEXT_SIZE 160

/* "charged 1 failure (2 of 3 within 600 s)": the last charge. */
void coordinator_budget_describe(const struct coordinator_budget *budget, enum coordinator_charge charge,
                                 int64_t now_ms, char out[COORDINATOR_BUDGET_TEXT_SIZE]);

/* "4 failures within 523 s, and 3 are allowed (--max-restarts)": why charge() has said no. */
void coordinator_budget_explain(const struct coordinator_budget *budget, enum coordinator_charge charge, int64_t now_ms,
                                char out[COORDINATOR_BUDGET_TEXT_SIZE]);

#endif
