/* The job's budgets; see the header. */
#include "rendezvous/coordinator/coordinator_budget.h"

#include <assert.h>
#include <inttypes.h>

#include "base/str.h"

#define RING (COORDINATOR_WINDOW_CHARGES_MAX + 1) /* the one too many has its place */
#define MS_PER_S INT64_C(1000)

static const struct {
    const char *one, *many, *option;
} words[COORDINATOR_CHARGE_COUNT] = {
    [COORDINATOR_CHARGE_FAILURE] = {"failure", "failures", "--max-restarts"},
    [COORDINATOR_CHARGE_CHANGE] = {"membership change", "membership changes", "--rdzv-conf max_membership_changes"},
    [COORDINATOR_CHARGE_PREEMPTION] = {"pre-emption", "pre-emptions", "--rdzv-conf max_preemptions"},
};

void coordinator_budget_init(struct coordinator_budget *b, const struct coordinator_limits *limits) {
    for (size_t i = 0; limits->window_ms > 0 && i < COORDINATOR_CHARGE_COUNT; i++) {
        assert(!limits->is_limited[i] || limits->allowed[i] <= COORDINATOR_WINDOW_CHARGES_MAX);
    }
    b->limits = *limits;
    for (size_t i = 0; i < COORDINATOR_CHARGE_COUNT; i++) { /* the rings (24 kB) are not read before they are written */
        struct coordinator_account *account = &b->accounts[i];
        account->total = account->here = 0;
        account->first_ms = 0;
    }
}

static void learn(struct coordinator_account *account, uint32_t total) {
    account->total = total > account->total ? total : account->total;
}

void coordinator_budget_learn(struct coordinator_budget *b, const struct coordinator_charges *charges) {
    learn(&b->accounts[COORDINATOR_CHARGE_FAILURE], charges->failures);
    learn(&b->accounts[COORDINATOR_CHARGE_CHANGE], charges->changes);
    learn(&b->accounts[COORDINATOR_CHARGE_PREEMPTION], charges->preemptions);
}

/* The oldest charge that the window still holds, as how many charges ago; 0: none. */
static uint32_t count_in_window(const struct coordinator_budget *b, const struct coordinator_account *account,
                                int64_t now_ms) {
    uint32_t count = 0;
    while (count < account->here && count < RING &&
           account->at_ms[(account->here - 1 - count) % RING] > now_ms - b->limits.window_ms) {
        count++;
    }
    return count;
}

/* How many count against the limit. */
static uint32_t count_used(const struct coordinator_budget *b, enum coordinator_charge charge, int64_t now_ms) {
    const struct coordinator_account *account = &b->accounts[charge];
    return b->limits.window_ms > 0 ? count_in_window(b, account, now_ms) : account->total;
}

bool coordinator_budget_charge(struct coordinator_budget *b, enum coordinator_charge charge, int64_t now_ms) {
    struct coordinator_account *account = &b->accounts[charge];
    if (account->total == UINT32_MAX) { /* only what nodes have said can have come so far */
        return !b->limits.is_limited[charge];
    }
    account->first_ms = account->here == 0 ? now_ms : account->first_ms;
    account->at_ms[account->here % RING] = now_ms;
    account->here++;
    account->total++;
    return !b->limits.is_limited[charge] || count_used(b, charge, now_ms) <= b->limits.allowed[charge];
}

bool coordinator_budget_allows(const struct coordinator_budget *b, enum coordinator_charge charge, int64_t now_ms) {
    return !b->limits.is_limited[charge] || count_used(b, charge, now_ms) < b->limits.allowed[charge];
}

struct coordinator_charges coordinator_budget_charges(const struct coordinator_budget *b) {
    return (struct coordinator_charges){.failures = b->accounts[COORDINATOR_CHARGE_FAILURE].total,
                                        .changes = b->accounts[COORDINATOR_CHARGE_CHANGE].total,
                                        .preemptions = b->accounts[COORDINATOR_CHARGE_PREEMPTION].total};
}

void coordinator_budget_describe(const struct coordinator_budget *b, enum coordinator_charge charge, int64_t now_ms,
                                 char out[COORDINATOR_BUDGET_TEXT_SIZE]) {
    uint32_t allowed = b->limits.allowed[charge];
    if (!b->limits.is_limited[charge]) {
        (void)str_format(out, COORDINATOR_BUDGET_TEXT_SIZE, "charged 1 %s (%" PRIu32 " so far)", words[charge].one,
                         b->accounts[charge].total);
    } else if (b->limits.window_ms > 0) {
        (void)str_format(out, COORDINATOR_BUDGET_TEXT_SIZE,
                         "charged 1 %s (%" PRIu32 " of %" PRIu32 " within %" PRId64 " s)", words[charge].one,
                         count_used(b, charge, now_ms), allowed, b->limits.window_ms / MS_PER_S);
    } else {
        (void)str_format(out, COORDINATOR_BUDGET_TEXT_SIZE, "charged 1 %s (%" PRIu32 " of %" PRIu32 ")",
                         words[charge].one, b->accounts[charge].total, allowed);
    }
}

/* When the oldest of those that count was charged; -1: some were, by another coordinator. */
static int64_t since_ms(const struct coordinator_budget *b, const struct coordinator_account *account,
                        uint32_t used_count) {
    if (b->limits.window_ms > 0) {
        return account->at_ms[(account->here - used_count) % RING];
    }
    return account->here == account->total ? account->first_ms : -1;
}

void coordinator_budget_explain(const struct coordinator_budget *b, enum coordinator_charge charge, int64_t now_ms,
                                char out[COORDINATOR_BUDGET_TEXT_SIZE]) {
    const struct coordinator_account *account = &b->accounts[charge];
    uint32_t used = count_used(b, charge, now_ms), allowed = b->limits.allowed[charge];
    int64_t since = used > 0 ? since_ms(b, account, used) : -1;
    char when[64] = "";
    if (since >= 0 && used > 1) {
        (void)str_format(when, sizeof when, " within %" PRId64 " s", (now_ms - since + MS_PER_S - 1) / MS_PER_S);
    }
    (void)str_format(out, COORDINATOR_BUDGET_TEXT_SIZE, "%" PRIu32 " %s%s, and %" PRIu32 " %s allowed (%s raises that)",
                     used, used == 1 ? words[charge].one : words[charge].many, when, allowed,
                     allowed == 1 ? "is" : "are", words[charge].option);
}
