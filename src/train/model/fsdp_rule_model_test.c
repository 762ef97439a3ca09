/* The rules by which the ranks of an fsdp read and write shared memory, checked in every order of events. What a rank
 * does is recorded from the code itself; the model has the other ranks, memory and time. Each rule is then broken in
 * turn: the model must find out, or it would prove nothing.
 *
 *     fsdp_rule_model_test RULE    prints how breaking it goes wrong, by a shortest way */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/testing/parts_test_support.h"
#include "train/model/interleaving_test_support.h"

enum rule {
    RULE_NONE,
    RULE_BEGIN_MEETS,
    RULE_COMPLETION_WAITS,
    RULE_COMPLETE_IS_COMPLETE,
    RULE_HELD_IS_INCOMPLETE,
    RULE_WRITES_AFTER_STEP,
    RULE_SAME_KINDS,
    RULE_MEETS_AFTER_GATHER,
    RULE_MEETS_BEFORE_REUSE,
    RULE_WAITS_AT_END,
    RULE_FORGETS_AT_BEGIN,
    RULE_SAME_ORDER,
    RULE_COUNT
};

static const struct {
    const char *name;
    bool between_hosts; /* about what is gathered */
} rules[RULE_COUNT] = {
    [RULE_NONE] = {"none", false},
    [RULE_BEGIN_MEETS] = {"begin-meets", false},                   /* a step begins when all ranks have come to it */
    [RULE_COMPLETION_WAITS] = {"completion-waits", false},         /* gradients come from all before one may write */
    [RULE_COMPLETE_IS_COMPLETE] = {"complete-is-complete", false}, /* who gave its gradients does not look again */
    [RULE_HELD_IS_INCOMPLETE] = {"held-is-incomplete", false},     /* nor does it still look when it gives them */
    [RULE_WRITES_AFTER_STEP] = {"writes-after-step", false},       /* and not after steps of other kinds */
    [RULE_SAME_KINDS] = {"same-kinds", false},                     /* all ranks begin a step of the same kind */
    [RULE_MEETS_AFTER_GATHER] = {"meets-after-gather", true},      /* the row, before it reads a slot */
    [RULE_MEETS_BEFORE_REUSE] = {"meets-before-reuse", true},      /* the row, before it overwrites one */
    [RULE_WAITS_AT_END] = {"waits-at-end", true},                  /* for gathers that nobody asked for */
    [RULE_FORGETS_AT_BEGIN] = {"forgets-at-begin", true},          /* what the optimizer has changed since */
    [RULE_SAME_ORDER] = {"same-order", true},                      /* ranks hold the same units at the same time */
};

enum { MUTANT = 1 }; /* the rank that is different where one is */

/* ---- broken records ---- */

static bool is_call(const struct record_event *event, enum record_kind kind, enum record_call call) {
    return event->kind == kind && event->call == call;
}

/* Is it waiting that the broken rule asks for? Without it the rank comes to the call and does not stay. */
static bool is_dropped(const struct record *record, uint32_t at, enum rule broken) {
    const struct record_event *event = &record->events[at];
    bool meets_row = is_call(event, RECORD_RETURN, RECORD_MEETING) && event->group == RECORD_ROW;
    /* Before its CALL. */
    bool is_after_gather = at >= 2 && is_call(event - 2, RECORD_RETURN, RECORD_GATHER);
    bool is_before_meeting = at + 1 < record->count && is_call(event + 1, RECORD_CALL, RECORD_MEETING);
    switch (broken) {
    case RULE_BEGIN_MEETS:
        return is_call(event, RECORD_RETURN, RECORD_MEETING) && event->group == RECORD_ALL;
    case RULE_COMPLETION_WAITS:
        return is_call(event, RECORD_RETURN, RECORD_REDUCTION);
    case RULE_MEETS_AFTER_GATHER:
        return meets_row && is_after_gather;
    case RULE_MEETS_BEFORE_REUSE:
        return meets_row && !is_after_gather;
    case RULE_WAITS_AT_END:
        return is_call(event, RECORD_RETURN, RECORD_GATHER) && (!is_before_meeting || (event + 1)->group != RECORD_ROW);
    default:
        return false;
    }
}

static void copy_event(struct record *to, const struct record_event *event) {
    assert_true(to->count < RECORD_EVENTS_MAX);
    to->events[to->count++] = *event;
}

/* Looks at the unit once more after giving its gradients. */
static void look_again(struct record *to, const struct record_event *given) {
    struct record_event event = {
        .kind = RECORD_HOLD, .unit = given->unit, .slot = RECORD_STORE, .version = given->version};
    copy_event(to, &event);
    event.kind = RECORD_RELEASE;
    copy_event(to, &event);
}

/* Gives the gradients, which are the last event, before it releases the unit. */
static void release_late(struct record *record) {
    struct record_event *call = &record->events[record->count - 1], given = *call;
    if (call[-1].kind == RECORD_RELEASE) {
        call[0] = call[-1];
        call[-1] = given;
    }
}

static void break_record(struct record *record, enum rule broken) {
    const struct record whole = *record;
    record->count = 0;
    for (uint32_t at = 0; at < whole.count; at++) {
        const struct record_event *event = &whole.events[at];
        if (!is_dropped(&whole, at, broken)) {
            copy_event(record, event);
        }
        if (broken == RULE_HELD_IS_INCOMPLETE && is_call(event, RECORD_CALL, RECORD_REDUCTION)) {
            release_late(record);
        }
        if (broken == RULE_COMPLETE_IS_COMPLETE && is_call(event, RECORD_CALL, RECORD_REDUCTION)) {
            look_again(record, event);
        }
    }
}

/* ---- cases ---- */

static struct interleaving try_case(const struct record_program *program, enum rule broken, bool prints_trace) {
    static struct record records[INTERLEAVING_RANKS_MAX];
    uint32_t count = program->rows * program->columns;
    for (uint32_t rank = 0; rank < count; rank++) {
        struct record_program own = *program;
        own.writes_after_all_steps = broken == RULE_WRITES_AFTER_STEP;
        own.keeps_gathered = broken == RULE_FORGETS_AT_BEGIN;
        own.holds_two = program->holds_two != (broken == RULE_SAME_ORDER && rank == MUTANT);
        if (broken == RULE_SAME_KINDS && rank == MUTANT) {
            own.steps = strchr(program->steps, 'S') ? "N" : "S";
        }
        record_rank(&own, rank / program->columns, rank % program->columns, &records[rank]);
        break_record(&records[rank], broken);
    }
    return interleave(records, count, prints_trace);
}

/* How many cases were tried, and what the first fault was. */
struct survey {
    enum rule broken;
    bool prints_trace;
    size_t cases, states;
    unsigned stride, skipped; /* every so-manieth case is tried */
    struct interleaving first;
};

static void add_case(struct survey *survey, const struct record_program *program) {
    if (survey->first.fault || survey->skipped++ % survey->stride != 0) {
        return;
    }
    struct interleaving found = try_case(program, survey->broken, survey->prints_trace);
    survey->cases++;
    survey->states += found.state_count;
    survey->first = found;
    if (found.fault && survey->prints_trace) {
        printf("%u hosts of %u ranks, steps %s, units %s%s, prefetch %u\n", program->rows, program->columns,
               program->steps, program->uses, program->holds_two ? " (two at a time)" : "", program->options.prefetch);
    }
}

/* All sequences of kinds up to so many steps. */
static void add_sequences(struct survey *survey, struct record_program program, size_t steps_max) {
    static const char kinds[] = "SANE";
    char steps[4];
    for (uint32_t number = 1; number < 1U << (2 * steps_max + 2); number++) {
        size_t length = 0;
        uint32_t rest = number;
        for (; rest > 3; rest >>= 2) { /* two bits a step; a 1 at the top */
            steps[length++] = kinds[rest & 3];
        }
        steps[length] = '\0';
        program.steps = steps;
        if (rest == 1 && length > 0) {
            add_case(survey, &program);
        }
    }
}

/* Of the second unit some ranks have nothing. */
static const size_t counts[RECORD_UNITS_MAX] = {64, 32, 64, 32}, few[RECORD_UNITS_MAX] = {64, 16};

static void add_one_host(struct survey *survey) {
    static const char *const uses[] = {"010", "10", "0101"};
    enum { ALONE, TWO, OVER, HOLDS, USES = sizeof uses / sizeof *uses };
    for (uint32_t i = 0; i < 2 * 2 * HOLDS * USES; i++) {
        uint32_t holds = i / 4 % HOLDS, use = i / 4 / HOLDS;
        struct record_program program = {.rows = 1,
                                         .columns = 2 + i % 2,
                                         .unit_count = 2,
                                         .counts = few,
                                         .options = MUSTER_FSDP_OPTIONS_INIT,
                                         .holds_two = holds == TWO,
                                         .holds_over = holds == OVER,
                                         .are_reductions_done = i / 2 % 2,
                                         .uses = uses[use]};
        size_t most = use == 0 && holds != OVER && part_is_wanted("sequences_of_three") ? 3 : 2;
        add_sequences(survey, program, most);
    }
}

static void add_two_hosts(struct survey *survey) {
    static const struct {
        uint32_t columns, unit_count, prefetch;
        const char *uses;
        bool keeps, skips, holds_two, is_hybrid, is_short;
    } shapes[] = {
        {2, 3, 0, "012", .keeps = false},    {2, 4, 1, "0123", .keeps = false},   {2, 3, 1, "012", .keeps = true},
        {2, 3, 1, "0120", .keeps = false},   {2, 3, 1, "02", .skips = true},      {2, 4, 0, "0123", .holds_two = true},
        {1, 4, 1, "0123", .keeps = false},   {2, 2, 1, "010", .is_hybrid = true}, {2, 4, 1, "0213", .keeps = false},
        {2, 4, 2, "0123", .is_short = true},
    };
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        struct record_program program = {.rows = 2,
                                         .columns = shapes[i].columns,
                                         .unit_count = shapes[i].unit_count,
                                         .counts = counts,
                                         .options = MUSTER_FSDP_OPTIONS_INIT,
                                         .holds_two = shapes[i].holds_two,
                                         .uses = shapes[i].uses};
        program.options.sharding = shapes[i].is_hybrid ? MUSTER_FSDP_HYBRID : MUSTER_FSDP_FULL;
        program.options.prefetch = shapes[i].prefetch;
        program.options.reshard_after_forward = !shapes[i].keeps;
        program.options.find_unused = shapes[i].skips;
        add_sequences(survey, program, shapes[i].is_short ? 1 : 2);
    }
}

/* A rank runs out of data, at once or after a step, and keeps the others company until they end with a step STEP. */
static void add_uneven(struct survey *survey) {
    static const char *const steps[] = {"S", "SS", "NS", "SNS"};
    for (uint32_t i = 0; i < 2 * 2 * 2 * 2 * 4; i++) {
        struct record_program program = {.rows = 1 + i % 2,
                                         .columns = 2,
                                         .unit_count = 3,
                                         .counts = counts,
                                         .options = MUSTER_FSDP_OPTIONS_INIT,
                                         .is_uneven = true,
                                         .out_of_data = i / 2 % 2 == 0 ? MUTANT : 0,
                                         .data_steps = i / 4 % 2,
                                         .steps = steps[i / 16],
                                         .uses = "012"};
        program.options.uneven_inputs = true;
        program.options.prefetch = i / 8 % 2;
        add_case(survey, &program);
    }
}

static struct survey look_everywhere(enum rule broken, bool prints_trace) {
    struct survey survey = {.broken = broken, .prints_trace = prints_trace, .stride = 1};
    if (broken == RULE_NONE) { /* of the others the first fault ends it */
        survey.stride = part_stride("whole_matrix", 3);
    }
    if (!rules[broken].between_hosts) {
        add_one_host(&survey);
    }
    if (rules[broken].between_hosts || broken == RULE_NONE) {
        add_two_hosts(&survey);
    }
    if (broken == RULE_NONE) {
        add_uneven(&survey);
    }
    return survey;
}

/* ---- tests ---- */

static void memory_is_read_and_written_by_the_rules(void **state) {
    (void)state;
    struct survey survey = look_everywhere(RULE_NONE, true);
    printf("%zu cases, %zu states\n", survey.cases, survey.states);
    if (survey.first.fault) {
        fail_msg("%s", survey.first.fault);
    }
}

static void each_rule_is_needed(void **state) {
    (void)state;
    for (enum rule rule = RULE_NONE + 1; rule < RULE_COUNT; rule++) {
        struct survey survey = look_everywhere(rule, false);
        if (!survey.first.fault) {
            fail_msg("without %s nothing goes wrong", rules[rule].name);
        }
        printf("without %-22s %s, after %zu moves (case %zu)\n", rules[rule].name, survey.first.fault,
               survey.first.length, survey.cases);
    }
}

static int show(const char *name) {
    for (enum rule rule = RULE_NONE; rule < RULE_COUNT; rule++) {
        if (strcmp(rules[rule].name, name) == 0) {
            return look_everywhere(rule, true).first.fault ? 0 : 1;
        }
    }
    (void)fprintf(stderr, "there is no rule %s\n", name);
    return 2;
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(memory_is_read_and_written_by_the_rules),
        cmocka_unit_test(each_rule_is_needed),
    };
    return argc > 1 ? show(argv[1]) : cmocka_run_group_tests(tests, NULL, NULL);
}
