/* A model of copies on peer hosts (peer_copies.h): ranks on hosts of their own, each with the program's thread and the
 * one that copies, in every order in which their actions can follow each other. At any moment all processes may be
 * started again, with or without another host in the place of one; a host that was replaced may come back with what it
 * had; or the program may give up what is in memory.
 *
 * The program's thread, for each step: meets the others; writes the copy that is not committed, when no thread reads
 * it; commits; decides with the others whether to copy. The other thread: takes the label off a slot; copies its share
 * there; sends it to its server; receives the share that it serves; labels the slot. All have done so when the program
 * decides to copy again.
 *
 * Contents carry the life in which they were made: a job that goes back makes steps again, and they may differ. Of
 * every order is asked: no share is of another step or life than its label says; once a generation was whole on all
 * ranks, one is at every moment until a host is lost, and then one is found; the job never goes on from what was given
 * up; nobody waits for ever. Each rule that is taken out must be missed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "train/model/visited_test_support.h"
#include "train/peers/peer_labels.h"

enum { RANKS_MOST = 3, NOTHING = -1, STATES_MOST = 1 << 21, LIFE = 8, COPIES = 2 };

enum rule {
    KEEPS_THE_OLD,  /* writes into the slot that is not the newest */
    LABELS_LAST,    /* after both shares are there */
    NAMES_THE_LIFE, /* labels do */
    WAITS,          /* the optimizer, for the thread that reads the copy it wants to write */
    AGREES,         /* all copy, or none does: and all have the generation before */
    DROPS,          /* what was given up */
    NOTES,          /* that it was, for when a host comes back with it */
    RULES,
    NONE_IS_MISSING = RULES
};

enum main_stage { STEPS_BEGIN, WRITES, COMMITS, DECIDES, ENDED };
enum thread_stage { IDLE, BEGINS, COPIES_OWN, SENDS, RECEIVES, HAS_RECEIVED, CONCLUDES };

struct slot {
    int16_t step, life;            /* the label */
    int16_t contents[PEER_SHARES]; /* step + LIFE * life of the values */
};

struct process {
    int16_t stage, step, current, calls, was_busy; /* the program's thread */
    int16_t thread, slot, next_slot, read_copy, copied_step;
    bool has_called, is_running, is_reading;
};

struct state {
    struct process processes[RANKS_MOST];
    int16_t labels[RANKS_MOST][COPIES], values[RANKS_MOST][COPIES]; /* committed memory */
    struct slot slots[RANKS_MOST][PEER_SLOTS];
    int16_t messages[RANKS_MOST]; /* from that rank to its server; NOTHING: none under way */
    int16_t life, given_up;       /* given_up: lives up to it are abandoned */
    int16_t restarts, away_rank;  /* whose first host has been replaced, and lives on elsewhere; NOTHING */
    struct slot away[PEER_SLOTS];
    int16_t notes[RANKS_MOST], away_note; /* what each host's memory says of lives that were given up */
    bool was_whole;                       /* since a host was lost: a generation on all ranks */
};

static struct {
    enum rule missing;
    int ranks, steps, restarts_most;
    struct visited visited;
    const char *fault;
} search;

static bool has(enum rule rule) {
    return search.missing != rule;
}

static void fault(const char *what) {
    search.fault = search.fault ? search.fault : what;
}

static int served_by(int rank) {
    return (rank + search.ranks - 1) % search.ranks;
}

/* ---- the program's thread ---- */

/* True: all have made their call of that number. */
static bool meet(struct state *s, struct process *p) {
    if (!p->has_called) {
        p->calls++;
        p->was_busy = p->stage == DECIDES ? p->is_running : p->was_busy;
        p->has_called = true;
    }
    for (int other = 0; other < search.ranks; other++) {
        if (s->processes[other].calls < p->calls) {
            return false;
        }
    }
    p->has_called = false;
    return true;
}

static void start(struct process *p) {
    p->is_running = p->is_reading = true;
    p->thread = BEGINS;
    p->read_copy = p->current;
    p->copied_step = p->step;
}

static bool any_was_busy(const struct state *s) {
    bool any = false;
    for (int rank = 0; rank < search.ranks; rank++) {
        any = any || s->processes[rank].was_busy;
    }
    return any;
}

static void decide(const struct state *s, struct process *p) {
    if (has(AGREES) ? !any_was_busy(s) : !p->is_running) {
        start(p);
    }
    p->stage = p->step == search.steps ? ENDED : STEPS_BEGIN;
}

static bool act_main(struct state *s, int rank) {
    struct process *p = &s->processes[rank];
    int other = 1 - p->current;
    switch (p->stage) {
    case STEPS_BEGIN:
        if (!meet(s, p)) {
            return false;
        }
        p->stage = WRITES;
        return true;
    case WRITES:
        if (has(WAITS) && p->is_reading && p->read_copy == other) {
            return false;
        }
        s->labels[rank][other] = s->values[rank][other] = NOTHING;
        p->stage = COMMITS;
        return true;
    case COMMITS:
        p->step++;
        p->current = (int16_t)other;
        s->labels[rank][other] = p->step;
        s->values[rank][other] = (int16_t)(p->step + LIFE * s->life);
        p->stage = DECIDES;
        return true;
    case DECIDES:
        if (!meet(s, p)) {
            return false;
        }
        decide(s, p);
        return true;
    default:
        return false;
    }
}

/* ---- the thread that copies ---- */

static void label(struct state *s, int rank) {
    const struct process *p = &s->processes[rank];
    struct slot *slot = &s->slots[rank][p->slot];
    slot->step = p->copied_step;
    slot->life = s->life;
}

static bool act_thread(struct state *s, int rank) {
    struct process *p = &s->processes[rank];
    struct slot *slot = &s->slots[rank][p->slot];
    switch (p->thread) {
    case BEGINS:
        p->slot = has(KEEPS_THE_OLD) ? p->next_slot : 0;
        s->slots[rank][p->slot].step = NOTHING;
        p->thread = COPIES_OWN;
        return true;
    case COPIES_OWN:
        slot->contents[0] = s->values[rank][p->read_copy];
        p->is_reading = false;
        p->thread = SENDS;
        return true;
    case SENDS:
        if (!has(LABELS_LAST)) {
            label(s, rank);
        }
        if (s->messages[rank] != NOTHING) {
            return false;
        }
        s->messages[rank] = slot->contents[0];
        p->thread = RECEIVES;
        return true;
    case RECEIVES:
        if (s->messages[served_by(rank)] == NOTHING) {
            return false;
        }
        slot->contents[1] = s->messages[served_by(rank)];
        s->messages[served_by(rank)] = NOTHING;
        p->thread = HAS_RECEIVED;
        return true;
    case HAS_RECEIVED:
        label(s, rank);
        p->thread = CONCLUDES;
        return true;
    case CONCLUDES:
        p->next_slot = (int16_t)(1 - p->slot);
        p->is_running = false;
        p->thread = IDLE;
        return true;
    default:
        return false;
    }
}

/* ---- what is in memory ---- */

static void offer_of(const struct state *s, int rank, struct peer_offer *out) {
    out->part_count = (uint32_t)search.ranks;
    out->given_up = has(NOTES) ? (uint64_t)s->notes[rank] : 0;
    for (int slot = 0; slot < PEER_SLOTS; slot++) {
        const struct slot *from = &s->slots[rank][slot];
        out->labels[slot].step = from->step;
        out->labels[slot].life = has(NAMES_THE_LIFE) ? (uint64_t)from->life : UINT8_MAX;
        out->parts[slot][0] = (uint32_t)rank;
        out->parts[slot][1] = (uint32_t)served_by(rank);
    }
}

static bool is_whole_on_all(const struct state *s, const struct slot *wanted) {
    for (int rank = 0; rank < search.ranks; rank++) {
        bool has_it = false;
        for (int i = 0; i < PEER_SLOTS; i++) {
            const struct slot *slot = &s->slots[rank][i];
            has_it = has_it || (slot->step == wanted->step && slot->life == wanted->life);
        }
        if (!has_it) {
            return false;
        }
    }
    return wanted->step != NOTHING;
}

static bool any_is_whole(const struct state *s) {
    return is_whole_on_all(s, &s->slots[0][0]) || is_whole_on_all(s, &s->slots[0][1]);
}

/* The newest step that all have committed. */
static int common_step(const struct state *s) {
    int newest = NOTHING;
    for (int copy = 0; copy < COPIES; copy++) {
        int step = s->labels[0][copy];
        bool is_common = step > newest;
        for (int rank = 1; rank < search.ranks; rank++) {
            is_common = is_common && (s->labels[rank][0] == step || s->labels[rank][1] == step);
        }
        newest = is_common ? step : newest;
    }
    return newest;
}

/* ---- another life ---- */

static void begin_life(struct state *s, int step) {
    s->life++;
    s->restarts++;
    for (int rank = 0; rank < search.ranks; rank++) {
        struct process *p = &s->processes[rank];
        int current = s->labels[rank][0] == step ? 0 : 1;
        memset(p, 0, sizeof *p);
        p->step = (int16_t)step;
        p->current = (int16_t)current;
        p->read_copy = NOTHING;
        p->stage = step == search.steps ? ENDED : STEPS_BEGIN;
        s->labels[rank][1 - current] = NOTHING;
        s->messages[rank] = NOTHING;
    }
}

/* All ranks get their part of that generation, and commit it. */
static void restore(struct state *s, const struct peer_offer *offers, const struct peer_label *chosen) {
    struct peer_owner owners[RANKS_MOST];
    int first = NOTHING;
    peer_owners(offers, (uint32_t)search.ranks, chosen, (uint32_t)search.ranks, owners);
    for (int rank = 0; rank < search.ranks; rank++) {
        uint32_t owner = owners[rank].offer;
        int content = s->slots[owner][peer_slot_of(&offers[owner], chosen)].contents[owners[rank].share];
        first = rank == 0 ? content : first;
        if (content != first || content % LIFE != chosen->step) {
            fault("old and new are mixed");
        }
        s->labels[rank][0] = (int16_t)chosen->step;
        s->values[rank][0] = (int16_t)content;
        s->labels[rank][1] = NOTHING;
    }
    if (first / LIFE <= s->given_up) {
        fault("what was given up is back");
    }
}

/* The slot of the generation that stays; without one, or with a new one, nothing stays. */
static void settle(struct state *s, const struct peer_offer *offers, const struct peer_label *chosen) {
    for (int rank = 0; rank < search.ranks; rank++) {
        uint32_t stays = peer_slot_of(&offers[rank], chosen);
        s->processes[rank].next_slot = (int16_t)(stays == 0);
        for (uint32_t slot = 0; has(DROPS) && slot < PEER_SLOTS; slot++) {
            s->slots[rank][slot].step = (int16_t)(slot == stays ? s->slots[rank][slot].step : NOTHING);
        }
    }
}

/* Another host has this rank now, without memory, or with that of an earlier life. */
static void replace(struct state *s, int rank) {
    bool returns = s->away_rank == rank, may_return = search.restarts_most > 1;
    s->was_whole = false;
    for (int i = 0; i < PEER_SLOTS; i++) {
        struct slot old = s->slots[rank][i];
        s->labels[rank][i] = s->slots[rank][i].step = NOTHING;
        s->slots[rank][i] = returns ? s->away[i] : s->slots[rank][i];
        s->away[i] = may_return ? old : s->away[i];
    }
    int16_t note = s->notes[rank];
    s->notes[rank] = returns ? s->away_note : 0;
    s->away_note = may_return ? note : 0;
    s->away_rank = (int16_t)(may_return ? rank : NOTHING);
}

static void restart(struct state *s, int lost, bool gives_up) {
    struct peer_offer offers[RANKS_MOST];
    uint32_t part_count = 0;
    bool expects = s->was_whole;
    if (lost != NOTHING) {
        replace(s, lost);
    }
    int step = gives_up ? NOTHING : common_step(s);
    for (int rank = 0; rank < search.ranks; rank++) {
        offer_of(s, rank, &offers[rank]);
    }
    struct peer_label chosen =
        gives_up ? (struct peer_label){.step = PEER_NOTHING}
                 : peer_choose(offers, (uint32_t)search.ranks, step == NOTHING ? INT64_MAX : step, &part_count);
    if (step == NOTHING && chosen.step >= 0) {
        restore(s, offers, &chosen);
        step = (int)chosen.step;
    } else if (step == NOTHING && !gives_up && expects) {
        fault("no generation is found");
    }
    if (step == NOTHING) { /* from a checkpoint: here, the beginning */
        s->given_up = s->life;
        s->was_whole = false;
        for (int rank = 0; rank < search.ranks; rank++) {
            s->notes[rank] = s->life;
            s->labels[rank][0] = 0;
            s->values[rank][0] = (int16_t)(LIFE * (s->life + 1));
        }
        step = 0;
    }
    begin_life(s, step);
    settle(s, offers, &chosen);
}

/* ---- all orders ---- */

/* Was the state new? */
static bool take(const struct state *s) {
    bool is_new = visited_add(&search.visited, s);
    if (search.visited.is_full) {
        fault("too many states");
    }
    return is_new;
}

static bool is_over(const struct state *s) {
    for (int rank = 0; rank < search.ranks; rank++) {
        if (s->processes[rank].stage != ENDED || s->processes[rank].is_running) {
            return false;
        }
    }
    return true;
}

static void judge(struct state *s) {
    bool is_whole = any_is_whole(s);
    if (s->was_whole && !is_whole) {
        fault("no generation is whole");
    }
    s->was_whole = s->was_whole || is_whole;
}

static size_t list_next(const struct state *s, struct state *out) {
    size_t count = 0;
    for (int actor = 0; actor < 2 * search.ranks; actor++) {
        struct state *next = &out[count];
        memcpy(next, s, sizeof *next);
        bool acts = actor % 2 == 0 ? act_main(next, actor / 2) : act_thread(next, actor / 2);
        count += acts || memcmp(next, s, sizeof *next) != 0; /* NOLINT: a call was made, and waits */
    }
    if (count == 0 && !is_over(s)) {
        fault("all wait for ever");
    }
    for (int lost = NOTHING; s->restarts < search.restarts_most && lost < search.ranks; lost++) {
        memcpy(&out[count], s, sizeof *s);
        restart(&out[count++], lost, false);
    }
    if (s->restarts < search.restarts_most) {
        memcpy(&out[count], s, sizeof *s);
        restart(&out[count++], NOTHING, true);
    }
    return count;
}

static void explore(struct state *s) {
    struct state next[3 * RANKS_MOST + 2];
    judge(s);
    if (search.fault || !take(s)) {
        return;
    }
    size_t count = list_next(s, next);
    for (size_t i = 0; i < count; i++) {
        explore(&next[i]);
    }
}

static const char *search_without(enum rule missing, int ranks, int steps, int restarts) {
    struct state first;
    memset(&first, 0, sizeof first);
    search.missing = missing;
    search.ranks = ranks;
    search.steps = steps;
    search.restarts_most = restarts;
    search.fault = NULL;
    visited_clear(&search.visited);
    first.away_rank = NOTHING;
    first.life = 1;
    for (int rank = 0; rank < RANKS_MOST; rank++) { /* step 0 is committed */
        first.processes[rank].read_copy = NOTHING;
        first.labels[rank][1] = first.messages[rank] = NOTHING;
        first.slots[rank][0].step = first.slots[rank][1].step = NOTHING;
    }
    explore(&first);
    return search.fault;
}

/* ---- tests ---- */

static int set_up(void **state) {
    (void)state;
    return visited_init(&search.visited, sizeof(struct state), STATES_MOST) ? 0 : -1;
}

static int tear_down(void **state) {
    (void)state;
    visited_done(&search.visited);
    return 0;
}

static void no_order_does_harm(void **state) {
    (void)state;
    const int jobs[][3] = {{2, 3, 1}, {2, 2, 2}, {3, 2, 1}}; /* ranks, steps, restarts */
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        const char *found = search_without(NONE_IS_MISSING, jobs[i][0], jobs[i][1], jobs[i][2]);
        print_message("%d ranks: %zu states\n", jobs[i][0], search.visited.count);
        if (found) {
            fail_msg("%s", found);
        }
        assert_true(search.visited.count > 1000);
    }
}

static void each_rule_is_needed(void **state) {
    (void)state;
    for (int rule = 0; rule < RULES; rule++) {
        const char *found = search_without((enum rule)rule, 2, 3, 2);
        print_message("without rule %d: %s\n", rule, found ? found : "nothing");
        assert_non_null(found);
    }
}

/* ---- large jobs ---- */

enum { MANY = 4096 };

/* Each rank keeps its own part and that of the next one. */
static void offer_all(struct peer_offer *offers, int64_t older, int64_t newer) {
    for (uint32_t rank = 0; rank < MANY; rank++) {
        offers[rank] = (struct peer_offer){.part_count = MANY,
                                           .labels = {{7, older}, {7, newer}},
                                           .parts = {{rank, (rank + 1) % MANY}, {rank, (rank + 1) % MANY}}};
    }
}

/* A bound on time is in bench/; a cubic search would not end here. */
static void thousands_of_ranks_choose_at_once(void **state) {
    (void)state;
    static struct peer_offer offers[MANY];
    static struct peer_owner owners[MANY];
    uint32_t part_count = 0;
    offer_all(offers, 10, 20);
    assert_int_equal(peer_choose(offers, MANY, INT64_MAX, &part_count).step, 20);
    assert_int_equal(part_count, MANY);
    assert_int_equal(peer_choose(offers, MANY, 19, &part_count).step, 10);
    offers[MANY - 1].labels[1].step = PEER_NOTHING; /* it was receiving: the one before it has its part */
    assert_int_equal(peer_choose(offers, MANY, INT64_MAX, &part_count).step, 10);
    offers[MANY - 1].labels[0].step = PEER_NOTHING; /* its memory is lost */
    struct peer_label chosen = peer_choose(offers, MANY, INT64_MAX, &part_count);
    assert_int_equal(chosen.step, 20);
    peer_owners(offers, MANY, &chosen, MANY, owners);
    assert_int_equal(owners[MANY - 1].offer, MANY - 2);
    assert_int_equal(owners[MANY - 1].share, 1);
    assert_int_equal(owners[5].offer, 4);           /* the first that has it */
    offers[MANY - 2].labels[1].step = PEER_NOTHING; /* and two in a row */
    offers[MANY - 2].labels[0].step = PEER_NOTHING;
    assert_int_equal(peer_choose(offers, MANY, INT64_MAX, &part_count).step, PEER_NOTHING);
    offer_all(offers, 10, 20);
    for (uint32_t rank = 0; rank < MANY; rank++) { /* no two are of one step */
        offers[rank].labels[0].step = 2 * rank;
        offers[rank].labels[1].step = 2 * rank + 1;
    }
    assert_int_equal(peer_choose(offers, MANY, INT64_MAX, &part_count).step, PEER_NOTHING);
}

/* ---- who serves whom ---- */

static uint32_t host_of(const void *context, uint32_t rank) {
    return ((const uint32_t *)context)[rank];
}

static void shares_lie_on_another_host(void **state) {
    (void)state;
    const uint32_t hosts[][6] = {{0, 0, 1, 1, 2, 2}, {0, 1, 0, 1, 0, 1}, {0, 1, 2, 0, 1, 1}, {2, 2, 2, 0, 1, 1}};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        const struct peer_hosts job = {6, host_of, hosts[i]};
        uint32_t served_by_rank[6] = {0};
        for (uint32_t rank = 0; rank < 6; rank++) {
            uint32_t server = 6, served = 6, other = 6, back = 6;
            assert_true(peer_server_of(&job, rank, &server, &served));
            assert_true(hosts[i][server] != hosts[i][rank] && hosts[i][served] != hosts[i][rank]);
            assert_true(peer_server_of(&job, server, &other, &back));
            assert_int_equal(back, rank);
            served_by_rank[server]++;
        }
        for (uint32_t rank = 0; rank < 6; rank++) {
            assert_int_equal(served_by_rank[rank], 1);
        }
    }
    const uint32_t lopsided[] = {0, 0, 1}, alone[] = {0, 0};
    uint32_t server, served;
    assert_false(peer_server_of(&(struct peer_hosts){3, host_of, lopsided}, 0, &server, &served));
    assert_false(peer_server_of(&(struct peer_hosts){2, host_of, alone}, 0, &server, &served));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_order_does_harm),
        cmocka_unit_test(each_rule_is_needed),
        cmocka_unit_test(thousands_of_ranks_choose_at_once),
        cmocka_unit_test(shares_lie_on_another_host),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
