/* For tests: which parts of a program are left out of this run. MUSTER_TEST_EXCEPT names files, with ':' between them,
 * of lines "PROGRAM PART  # why": tests/tiers, which says what `make test` leaves to `make test-all`, and
 * tests/engines/except-mpi. A part is a test of cmocka (left out by itself) or whatever a program asks about. */
#ifndef BASE_TESTING_PARTS_TEST_SUPPORT_H
#define BASE_TESTING_PARTS_TEST_SUPPORT_H

#include <stdbool.h>

/* Is this part of the running program to be played? Prints the line's reason if not. MUSTER_TEST_ONLY names one test,
 * which is played alone. Ends the process if a file cannot be read. Allocates nothing. */
bool part_is_wanted(const char *part);

/* For loops: 1, or `sparse` if the part is left out and every so-manieth turn stands for all. */
unsigned part_stride(const char *part, unsigned sparse);

#endif
