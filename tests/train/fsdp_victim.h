/* A rank of a sharded training in which one rank meets its end at any instant: what is trained, how, and what the rank
 * notes of it. fsdp_deaths.c draws the cases and judges them. */
#ifndef TESTS_FSDP_VICTIM_H
#define TESTS_FSDP_VICTIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/fsdp.h>

#include "comm/group/ranks_test_support.h"

/* killed; stopped; ends without a word; frees what it has and ends. The last two by itself, after some of its calls. */
enum harm { HARM_KILL, HARM_STOP, HARM_EXIT, HARM_LEAVE, HARM_COUNT };
enum {
    FSDP_RANKS_MAX = 6,
    MARK_MADE = 1,  /* has its fsdp */
    MARK_GOES = 2,  /* the victim: its end may come from now on */
    MARK_HEARD = 3, /* a survivor: has the sentence */
    MARK_ENDED = 4, /* the victim: ends by itself, now */
    EXIT_CODE = 7,
};

struct plan {
    uint32_t index, size, victim, hosts;
    enum harm harm;
    struct muster_fsdp_options options;
    size_t count;                      /* elements of a parameter, two a unit */
    enum muster_fsdp_step_kind before; /* what every other step of the optimizer begins with; STEP: nothing */
    uint32_t calls_before;             /* with HARM_EXIT and HARM_LEAVE */
    uint32_t steps_before;
    int64_t timeout_ms; /* of the group's calls */
    const uint32_t *host_of;
};

/* What a survivor tells. */
struct outcome {
    int code;
    int64_t ended_ns;
    char detail[MUSTER_DETAIL_MAX];
    char problem[MUSTER_DETAIL_MAX + 128];
};

struct board {
    struct plan plan;
    struct outcome outcomes[FSDP_RANKS_MAX];
};

/* A rank's function; argument: the board, shared by all. */
int fsdp_live(struct rank *rank, void *argument);

#endif
