/* Common ground of the tests that kill launchers in the middle of anything: chance, waiting for the last orphan, and
 * how long that took. */
#ifndef TESTS_PROC_KILLING_H
#define TESTS_PROC_KILLING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Reads ROUNDS and SEED from a test's arguments (argv[1] and argv[2], either may be missing), prints them, and makes
 * this process the subreaper of everything that loses its parent. */
void killing_start(int argc, char **argv);

unsigned killing_rounds(void);

/* A number below `below`, and a pause of up to `max_us` microseconds: the moment of a kill is left to chance. */
uint64_t killing_draw(uint64_t below);
void killing_pause(long max_us);

/* Whatever loses its parent falls to this process, so the kernel itself says when nothing is left, also of processes
 * too short-lived for a look at /proc. False when something was left after 20 s. */
bool killing_reap_orphans(void);

/* One measured clean-up, and what all of them since the last report looked like: median, 99th percentile, the slowest,
 * how many took longer than 200 ms. killing_end() prints the same for all together. */
void killing_note(double took_ms);
void killing_report(const char *name);
void killing_end(void);

#endif
