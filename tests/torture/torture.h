/* What torture.c (runs, lanes, totals) and torture_judge.c (was this run as it must be?) share. */
#ifndef TESTS_TORTURE_H
#define TESTS_TORTURE_H

#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { FAULTS_MAX = 10, LEFT_BEHIND_MS = 20000, TEXT_MAX = 512, LANES_MAX = 64, STATUS_COUNT = 256 };

/* What the lanes count together, in memory that they share. */
struct tally {
    atomic_ulong runs;
    atomic_ulong gave_up; /* ended by a library's abort() */
    atomic_ulong statuses[STATUS_COUNT];
    atomic_ulong slowest_ms;
    atomic_int faults;
    atomic_int untouched; /* lanes that met a run without an n-th call */
};

struct torture {
    const char *kind;
    char preload[PATH_MAX];
    bool forever;
    bool libraries;
    bool quick;
    unsigned long last;
    unsigned long lines;
    int status;
    unsigned lanes;
    int64_t limit_ms;
    const char *kept;
    char *const *command;
    char top[64];    /* one folder a lane, and `places` */
    char folder[96]; /* of this lane: holds tmp/, report, stdout, stderr */
    FILE *places;    /* "FUNCTION at +OFFSET in PROGRAM", one line a failure dealt out */
    struct tally *tally;
};

enum outcome { OUTCOME_FINE, OUTCOME_UNTOUCHED, OUTCOME_FAULT };

/* Ends this process, with errno's text. */
_Noreturn void torture_fail(const char *what);

/* The path of one of the lane's files. */
void torture_path(const struct torture *t, const char *name, char out[TEXT_MAX]);

/* Prints what was wrong with run `n`, and how to repeat it; counts it. */
void torture_fault(struct torture *t, unsigned long n, const char *what);

/* Looks at what a run that has ended left behind, printed and returned; empties its TMPDIR. */
enum outcome torture_judge(struct torture *t, unsigned long n, int status);

/* Empties TMPDIR. Writes to `found` the name of something that should not have been there; untouched if there is none.
 */
void torture_empty_tmp(const struct torture *t, char found[TEXT_MAX]);

/* Empties a folder. Writes to `found`, if there is none yet, the name of something that should not have been there:
 * anything, or, where files are `kept`, whatever is neither a file nor a folder that holds one. The number of files. */
unsigned torture_empty_folder(const char *path, bool kept, char found[TEXT_MAX]);

#endif
