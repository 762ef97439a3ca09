/* For tests of engines that need ranks started by somebody else: the test goes on forking its ranks itself, and each
 * borrows what a starter (mpirun, srun, muster run --mpi) has given one of its processes.
 *
 * MUSTER_TEST_STARTER is a command that runs a program N times when " N PROGRAM ARGUMENT" is appended:
 * "mpirun.mpich -n". The program (tests/engines/starter_relay.c) sends its environment, and the socket to its process
 * manager, to the test, and stays until the test closes the connection. The variables that say which rank of the job it
 * is stay the test's. */
#ifndef COMM_STARTER_TEST_SUPPORT_H
#define COMM_STARTER_TEST_SUPPORT_H

#include <stdint.h>

struct starter;

/* Starts `size` processes; NULL: the variable is not set. Fails the test if they do not come. */
struct starter *starter_start(uint32_t size);
/* In a forked rank: takes what the starter's process of that rank has. */
void starter_take(struct starter *starter, uint32_t rank);
/* Lets the starter's processes end, and waits for it. NULL is accepted. */
void starter_stop(struct starter *starter);

#endif
