/* A model of checkpoints in the background (background.h): two ranks, each with the program's thread and the one
 * that saves, in every order in which their actions can follow each other, and a death at every moment.
 *
 * The program's thread, for each step: meets the others; writes the copy that is not committed, when no thread reads
 * it; commits; decides with the others whether to save, and starts it. The other thread: meets those of the other
 * ranks; reads the copy piece by piece; says so; meets them again with its part on the disk; rank 0 writes the record;
 * they meet once more. A group's calls are numbered on each rank, and those of one number must be the same.
 *
 * After a death all ranks are started again. What they find is the labels of the copies and the disk, nothing else.
 *
 * Of every order is asked: no thread reads what is written, or of another step than it saves; calls of a group fit
 * together; a record has parts of all ranks of one step; all ranks have a step in common that the memory holds whole;
 * nobody waits for ever. Each rule that is taken out must be missed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "train/model/visited_test_support.h"

enum { RANKS = 2, STEPS = 4, PIECES = 2, NOTHING = -1, STATES_MOST = 1 << 21 };

enum rule {
    WAITS,             /* the optimizer, for the thread that reads the copy it wants to write */
    AGREES_TO_SAVE,    /* all save, or none does */
    AGREES_ON_PARTS,   /* the record is written when all parts are on the disk */
    READS_TO_THE_END,  /* before it says that it has */
    HAS_ITS_OWN_GROUP, /* the threads' calls are not the training's */
    FORGETS_WITH_ITS_PROCESS,
    RULES,
    NONE_IS_MISSING = RULES
};

enum main_stage { MEETS, WRITES, COMMITS, DECIDES, STARTS, ENDED };
enum thread_stage { IDLE, BEGINS, READS, SAYS_SO, HAS_WRITTEN, RECORDS, CONCLUDES };
enum call { NO_CALL, CALL_STEP, CALL_DECIDE, CALL_BEGIN, CALL_WRITTEN, CALL_END };
enum { TRAINING, SAVING, GROUPS };

/* A rank's calls of a group: how many, and the last one. */
struct calls {
    int count, last, was_busy;
};

struct process {
    int stage, step, current, is_writing; /* the program's thread; is_writing: a copy, or NOTHING */
    int thread, piece, saved_step, saved_copy;
    bool is_running, is_reading;
    bool main_has_called, thread_has_called;
};

struct state {
    struct process processes[RANKS];
    struct calls calls[RANKS][GROUPS];
    int labels[RANKS][2];        /* in memory that outlives the processes */
    bool reads_in_memory[RANKS]; /* there as well, without the last rule */
    int read_in_memory[RANKS];
    int parts[RANKS]; /* the newest step of which the disk has this rank's part */
    int record;
    bool has_died;
};

static struct {
    enum rule missing;
    struct visited visited;
    const char *fault;
} search;

static bool has(enum rule rule) {
    return search.missing != rule;
}

static void fault(const char *what) {
    search.fault = search.fault ? search.fault : what;
}

/* ---- calls ---- */

/* True: all have made the call, and this rank goes on. */
static bool call(struct state *s, int rank, int group, enum call which, bool *has_called) {
    struct calls *own = &s->calls[rank][group];
    if (!*has_called) {
        own->count++;
        own->last = (int)which;
        own->was_busy = which == CALL_DECIDE ? s->processes[rank].is_running : own->was_busy;
        *has_called = true;
    }
    for (int other = 0; other < RANKS; other++) {
        const struct calls *theirs = &s->calls[other][group];
        if (theirs->count == own->count && theirs->last != own->last) {
            fault("calls of one number differ");
        }
        if (theirs->count < own->count) {
            return false;
        }
    }
    *has_called = false;
    return true;
}

static int thread_group(void) {
    return has(HAS_ITS_OWN_GROUP) ? SAVING : TRAINING;
}

/* ---- the program's thread ---- */

static bool may_write(const struct state *s, int rank) {
    const struct process *p = &s->processes[rank];
    int other = 1 - p->current;
    bool is_read = p->is_reading && p->saved_copy == other;
    if (!has(FORGETS_WITH_ITS_PROCESS)) {
        is_read = is_read || (s->reads_in_memory[rank] && s->read_in_memory[rank] == other);
    }
    return !is_read || !has(WAITS);
}

static void start(struct state *s, int rank) {
    struct process *p = &s->processes[rank];
    p->is_running = p->is_reading = true;
    p->thread = BEGINS;
    p->piece = 0;
    p->saved_step = p->step;
    p->saved_copy = p->current;
    s->reads_in_memory[rank] = true;
    s->read_in_memory[rank] = p->current;
}

static bool any_was_busy(const struct state *s) {
    bool any = false;
    for (int rank = 0; rank < RANKS; rank++) {
        any = any || s->calls[rank][TRAINING].was_busy;
    }
    return any;
}

/* One action; false: it must wait. */
static bool act_main(struct state *s, int rank) {
    struct process *p = &s->processes[rank];
    switch (p->stage) {
    case MEETS:
        if (!call(s, rank, TRAINING, CALL_STEP, &p->main_has_called)) {
            return false;
        }
        p->stage = WRITES;
        return true;
    case WRITES:
        if (!may_write(s, rank)) {
            return false;
        }
        p->is_writing = (1 - p->current);
        s->labels[rank][p->is_writing] = NOTHING;
        p->stage = COMMITS;
        return true;
    case COMMITS:
        p->step++;
        p->current = p->is_writing;
        s->labels[rank][p->current] = p->step;
        p->is_writing = NOTHING;
        p->stage = has(AGREES_TO_SAVE) ? DECIDES : STARTS;
        return true;
    case DECIDES:
        if (!call(s, rank, TRAINING, CALL_DECIDE, &p->main_has_called)) {
            return false;
        }
        if (!any_was_busy(s)) {
            start(s, rank);
        }
        p->stage = p->step == STEPS ? ENDED : MEETS;
        return true;
    case STARTS: /* each for itself */
        if (!p->is_running) {
            start(s, rank);
        }
        p->stage = p->step == STEPS ? ENDED : MEETS;
        return true;
    default:
        return false;
    }
}

/* ---- the thread that saves ---- */

static void read_piece(struct state *s, int rank) {
    const struct process *p = &s->processes[rank];
    if (p->is_writing == p->saved_copy || s->labels[rank][p->saved_copy] != p->saved_step) {
        fault("what is read is written");
    }
}

static void stop_reading(struct state *s, int rank) {
    s->processes[rank].is_reading = s->reads_in_memory[rank] = false;
}

static void record(struct state *s, int rank) {
    int step = s->processes[rank].saved_step;
    if (rank != 0) {
        return;
    }
    for (int other = 0; other < RANKS; other++) {
        if (s->parts[other] != step) {
            fault("a record without all parts");
        }
    }
    s->record = step;
}

static bool act_thread(struct state *s, int rank) {
    struct process *p = &s->processes[rank];
    switch (p->thread) {
    case BEGINS:
        if (!call(s, rank, thread_group(), CALL_BEGIN, &p->thread_has_called)) {
            return false;
        }
        p->thread = has(READS_TO_THE_END) ? READS : SAYS_SO;
        return true;
    case READS:
        read_piece(s, rank);
        if (++p->piece == PIECES) {
            p->thread = has(READS_TO_THE_END) ? SAYS_SO : HAS_WRITTEN;
        }
        return true;
    case SAYS_SO:
        stop_reading(s, rank);
        p->thread = has(READS_TO_THE_END) ? HAS_WRITTEN : READS;
        return true;
    case HAS_WRITTEN:
        s->parts[rank] = p->saved_step;
        if (has(AGREES_ON_PARTS) && !call(s, rank, thread_group(), CALL_WRITTEN, &p->thread_has_called)) {
            return false;
        }
        p->thread = RECORDS;
        return true;
    case RECORDS:
        record(s, rank);
        p->thread = CONCLUDES;
        return true;
    case CONCLUDES:
        if (!call(s, rank, thread_group(), CALL_END, &p->thread_has_called)) {
            return false;
        }
        p->is_running = false;
        p->thread = IDLE;
        return true;
    default:
        return false;
    }
}

/* ---- deaths ---- */

/* The newest step that all ranks hold. */
static int common_step(const struct state *s) {
    int newest = NOTHING;
    for (int copy = 0; copy < 2; copy++) {
        int step = s->labels[0][copy];
        if (step > newest && (s->labels[1][0] == step || s->labels[1][1] == step)) {
            newest = step;
        }
    }
    return newest;
}

/* Their parts of a save that was cut off are leftovers. The record names whole ones. */
static void start_again(struct state *s) {
    int step = common_step(s);
    s->has_died = true;
    memset(s->calls, 0, sizeof s->calls);
    for (int rank = 0; rank < RANKS; rank++) {
        struct process *p = &s->processes[rank];
        int current = s->labels[rank][0] == step ? 0 : 1;
        memset(p, 0, sizeof *p);
        p->step = step;
        p->current = current;
        p->is_writing = p->saved_copy = p->saved_step = NOTHING;
        p->stage = step == STEPS ? ENDED : MEETS;
        s->labels[rank][1 - current] = NOTHING;
        s->parts[rank] = NOTHING;
    }
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
    for (int rank = 0; rank < RANKS; rank++) {
        if (s->processes[rank].stage != ENDED || s->processes[rank].is_running) {
            return false;
        }
    }
    return true;
}

/* What may come next, up to one action of each thread and a death. */
static size_t list_next(const struct state *s, struct state *out) {
    size_t count = 0;
    for (int actor = 0; actor < 2 * RANKS; actor++) {
        struct state next;
        memcpy(&next, s, sizeof next);
        bool acts = actor % 2 == 0 ? act_main(&next, actor / 2) : act_thread(&next, actor / 2);
        if (acts || memcmp(&next, s, sizeof next) != 0) { /* NOLINT: a call was made, and waits */
            memcpy(&out[count++], &next, sizeof next);
        }
    }
    if (count == 0 && !is_over(s)) {
        fault("all wait for ever");
    }
    if (!s->has_died && common_step(s) == NOTHING) {
        fault("no step that all have");
    }
    if (!s->has_died) {
        memcpy(&out[count], s, sizeof *s);
        start_again(&out[count++]);
    }
    return count;
}

static void explore(const struct state *s) {
    struct state next[2 * RANKS + 1];
    if (search.fault || !take(s)) {
        return;
    }
    size_t count = list_next(s, next);
    for (size_t i = 0; i < count; i++) {
        explore(&next[i]);
    }
}

static const char *search_without(enum rule missing) {
    struct state first;
    memset(&first, 0, sizeof first);
    search.missing = missing;
    search.fault = NULL;
    visited_clear(&search.visited);
    for (int rank = 0; rank < RANKS; rank++) { /* step 0 is committed */
        first.processes[rank].is_writing = NOTHING;
        first.processes[rank].saved_copy = first.processes[rank].saved_step = NOTHING;
        first.labels[rank][1] = NOTHING;
        first.parts[rank] = NOTHING;
    }
    first.record = NOTHING;
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
    const char *found = search_without(NONE_IS_MISSING);
    print_message("%zu states\n", search.visited.count);
    if (found) {
        fail_msg("%s", found);
    }
    assert_true(search.visited.count > 1000);
}

static void each_rule_is_needed(void **state) {
    (void)state;
    for (int rule = 0; rule < RULES; rule++) {
        const char *found = search_without((enum rule)rule);
        print_message("without rule %d: %s\n", rule, found ? found : "nothing");
        assert_non_null(found);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_order_does_harm),
        cmocka_unit_test(each_rule_is_needed),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
