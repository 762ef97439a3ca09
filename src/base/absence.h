/* Time that a process spent away: stopped, frozen, swapped out, on a virtual machine that was moved. Pure.
 *
 * Whoever judges others by time must not count the time in which it could not listen itself. An event loop says before
 * it waits by when it will go on at the latest, and after it when it did. What is later than that was spent away. Two
 * things follow for who judges:
 *
 * - its clock, the judge's clock, does not count the time away, so that all deadlines move by it;
 * - after an absence it listens again first: for as long as it was away, one interval of the others' signs of life at
 *   most. They may have been away as well, and what they have sent is still to be read. A machine that is so busy that
 *   it is late in every turn listens once only, so that it still judges.
 *
 * An absence that ends before the next turn is due is not seen. So who is about to judge stays awake for the last
 * interval before: it asks for the time again and again (absence_ask_ms()). What it missed earlier does not matter,
 * since the others had an interval since. Nobody ticks while all is well. Times are milliseconds of the monotonic
 * clock, which does not run while a machine is suspended: then nothing is noted, and nothing has to be. */
#ifndef BASE_ABSENCE_H
#define BASE_ABSENCE_H

#include <stdbool.h>
#include <stdint.h>

/* Turns are late by as much as that on a busy machine, and nobody's silence is judged as finely. */
#define ABSENCE_TOLERANCE_MS INT64_C(250)

/* Shorter ones are those of a busy machine. */
#define ABSENCE_LONG_MS INT64_C(1000)

struct absence {
    int64_t away_ms;   /* in all */
    int64_t due_ms;    /* when the process should have looked at its clock by; INT64_MAX: nothing says */
    int64_t woke_ms;   /* by the judge's clock: when the last absence ended */
    int64_t length_ms; /* for how long it is to be listened then; 0: there was none */
    bool was_short;    /* the last turn was late, too, by less than a long absence */
};

void absence_init(struct absence *absence, int64_t now_ms);

/* The process looks at its clock: at the beginning of a turn, at its end, and in between wherever somebody judges. */
void absence_look(struct absence *absence, int64_t now_ms);

/* A turn ends: the next one is due by `due_ms`, or INT64_MAX, when something happens. */
void absence_wait(struct absence *absence, int64_t now_ms, int64_t due_ms);

/* The judge's clock, after absence_look(). */
int64_t absence_clock_ms(const struct absence *absence, int64_t now_ms);

/* From when on, by the judge's clock, those may be judged who give a sign of life every `interval_ms`. It has passed
 * unless there was an absence. */
int64_t absence_judges_from_ms(const struct absence *absence, int64_t interval_ms);

/* Somebody will be judged in `left_ms`, who gives a sign of life every `interval_ms`: after how long the clock is to be
 * looked at again. */
int64_t absence_ask_ms(int64_t left_ms, int64_t interval_ms);

#endif
