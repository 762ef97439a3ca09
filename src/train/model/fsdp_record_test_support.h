/* For tests: what one rank of an fsdp does in the memory that it shares with others, as a list of events.
 *
 * The code of fsdp_step.c, fsdp_reduce.c and fsdp_gather.c runs here, over groups that answer at once, so one rank can
 * be recorded alone. That says what this rank does in every run: nothing in that code may depend on when others do
 * something. (What may, whether a reduction is done already, is recorded both ways.) interleaving_test_support.h then
 * tries all orders in which recorded ranks can go on. */
#ifndef TRAIN_FSDP_RECORD_TEST_SUPPORT_H
#define TRAIN_FSDP_RECORD_TEST_SUPPORT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/fsdp.h>

enum {
    RECORD_EVENTS_MAX = 250,
    RECORD_UNITS_MAX = 4,
    RECORD_SLOTS_MAX = 4,
    RECORD_STORE = 255, /* in place of a slot: the memory in which the host stores its parts */
};

enum record_group { RECORD_ALL, RECORD_ROW, RECORD_COLUMN, RECORD_GROUPS };

enum record_kind {
    RECORD_CALL,        /* a collective: this rank has come to it */
    RECORD_RETURN,      /* and has its result */
    RECORD_HOLD,        /* reads the unit from now on */
    RECORD_RELEASE,     /* until now */
    RECORD_WRITE_FIRST, /* the optimizer has written half of this rank's part of the unit */
    RECORD_WRITE_LAST,  /* and all of it */
};

enum record_call { RECORD_MEETING, RECORD_REDUCTION, RECORD_GATHER };

struct record_event {
    uint8_t kind;   /* enum record_kind */
    uint8_t call;   /* enum record_call, of CALL and RETURN */
    uint8_t group;  /* enum record_group, of these */
    uint8_t number; /* of the call in its group */
    uint8_t unit;
    uint8_t slot;      /* of HOLD, RELEASE and the CALL of a gather */
    uint8_t version;   /* times that the optimizer has written, before this step began */
    bool gets_nothing; /* of a RETURN: this rank's part is empty, so it need not wait for others */
};

struct record {
    uint32_t rows, columns, row, column;
    bool is_part_empty[RECORD_UNITS_MAX];
    struct record_event events[RECORD_EVENTS_MAX];
    uint32_t count;
};

/* The program that all ranks run. */
struct record_program {
    uint32_t rows, columns; /* hosts, and ranks of each */
    uint32_t unit_count;
    const size_t *counts; /* per unit: elements */
    struct muster_fsdp_options options;
    const char *steps;           /* their kinds: S(TEP), A(CCUMULATE), N(O_SYNC), E(VALUATE) */
    const char *uses;            /* numbers of units in the forward pass: "010"; the backward pass has them reversed */
    bool is_uneven;              /* one rank runs out of data: it keeps the others company */
    uint32_t out_of_data;        /* which: its number, in the order of rows */
    uint32_t data_steps;         /* it has data for so many steps */
    bool holds_two;              /* the next unit is acquired before the one before is released */
    bool holds_over;             /* the last unit stays held from the forward pass to the end of the backward pass */
    bool are_reductions_done;    /* whoever asks is told so: it then waits for them at once */
    bool writes_after_all_steps; /* wrong: the optimizer writes after steps of every kind */
    bool keeps_gathered;         /* wrong: what was gathered before the optimizer wrote is used after it */
};

/* Records the rank at a place of the mesh. Fails the test if the fsdp refuses something. */
void record_rank(const struct record_program *program, uint32_t row, uint32_t column, struct record *out);

/* "holds unit 1 in slot 0"; cut to `size`. */
void record_describe(const struct record_event *event, char *text, size_t size);

#endif
