/* What the timing loop (timing.c) asks of a library that is measured. mpi_peer.c and muster_peer.c implement it, one
 * program each; gloo_peer.py does the same in Python.
 *
 * The size of a case is the number of bytes of the largest buffer of a rank, as in nccl-tests: all_gather and gather
 * receive that much in all (at the root), reduce_scatter, scatter and all_to_all send it. `count` below is the number
 * of floats of one block: the whole buffer of all_reduce, broadcast, reduce and sendrecv, the part of one rank of the
 * others (at least one float, so the smallest cases are a little larger than asked for). */
#ifndef BENCH_PEER_H
#define BENCH_PEER_H

#include <stdbool.h>
#include <stddef.h>

#define PEER_OPERATIONS(X)                                                                                             \
    X(all_reduce)                                                                                                      \
    X(broadcast)                                                                                                       \
    X(reduce)                                                                                                          \
    X(all_gather)                                                                                                      \
    X(gather)                                                                                                          \
    X(scatter)                                                                                                         \
    X(reduce_scatter)                                                                                                  \
    X(all_to_all)                                                                                                      \
    X(barrier)                                                                                                         \
    X(sendrecv)

enum peer_operation {
#define PEER_ENUM(name) PEER_##name,
    PEER_OPERATIONS(PEER_ENUM)
#undef PEER_ENUM
        PEER_OPERATION_COUNT
};

/* Joins the other ranks; ends the program with a message when that fails, as all of them do. `wants_own_memory`:
 * buffers as the library's own allocator gives them. */
void peer_start(int *argc, char ***argv, bool wants_own_memory, int *out_rank, int *out_size);
void peer_stop(void);

/* A buffer, touched; in the library's own memory if that was asked for. */
float *peer_alloc(size_t bytes);
void peer_free(float *buffer);

/* Runs the operation once and blocks until it is done here: sums, root 0, out of place, or where `send` == `receive`
 * (all_reduce and reduce) in place. sendrecv: ranks 2i and 2i + 1 send `send` to each other in turn, the even one
 * first. */
void peer_run(enum peer_operation operation, float *send, float *receive, size_t count);

/* The largest `value` of all ranks. */
double peer_max(double value);

/* "Open MPI 4.1.4", for the report. */
const char *peer_version(void);

/* Prints to stderr and ends this process with a failure; the launcher ends the others. */
_Noreturn void peer_die(const char *what);

#endif
