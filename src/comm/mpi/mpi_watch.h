/* Threads that MPI does not give back.
 *
 * A process that is killed while it writes to memory which it shares with others can leave one of these waiting within
 * a call of MPI, for ever. The thread that made the call can then neither report nor end, and nobody can call it back.
 * So from the first death on a thread of Muster's looks on. When the program's threads have been in MPI for
 * MUSTER_MPI_STUCK_S seconds, and none has come back or gone in, it says so and aborts the process.
 *
 * Threads: any. */
#ifndef COMM_MPI_MPI_WATCH_H
#define COMM_MPI_MPI_WATCH_H

#include <stdbool.h>

/* Around each call of MPI that the program's threads make. is_alone: the caller sees to it that one thread at a time
 * does so, which then costs less. */
void mpi_watch_enter(bool is_alone);
void mpi_watch_leave(bool is_alone);

/* A rank has died; `death` says which one, and how. The first death counts, others change nothing. Does not block. */
void mpi_watch_begin(const char *death);

#endif
