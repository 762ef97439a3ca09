/* The peer of the collectives benchmark on MPI (see peer.h); the transport is chosen on mpirun's command line. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "peer.h"

static int own_rank, rank_count;

void peer_start(int *argc, char ***argv, bool wants_own_memory, int *out_rank, int *out_size) {
    MPI_Init(argc, argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &own_rank);
    MPI_Comm_size(MPI_COMM_WORLD, &rank_count);
    if (wants_own_memory) {
        peer_die("MPI has no memory of its own here");
    }
    *out_rank = own_rank;
    *out_size = rank_count;
}

void peer_stop(void) {
    MPI_Finalize();
}

float *peer_alloc(size_t bytes) {
    void *buffer = NULL;
    if (posix_memalign(&buffer, 4096, bytes) != 0) {
        peer_die("out of memory");
    }
    memset(buffer, 0, bytes);
    return buffer;
}

void peer_free(float *buffer) {
    free(buffer);
}

static void ping_pong(float *send, float *receive, int count) {
    int other = own_rank ^ 1;
    if (other >= rank_count) {
        return;
    }
    if (own_rank < other) {
        MPI_Send(send, count, MPI_FLOAT, other, 0, MPI_COMM_WORLD);
        MPI_Recv(receive, count, MPI_FLOAT, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    } else {
        MPI_Recv(receive, count, MPI_FLOAT, other, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Send(send, count, MPI_FLOAT, other, 0, MPI_COMM_WORLD);
    }
}

void peer_run(enum peer_operation operation, float *send, float *receive, size_t count) {
    int n = (int)count;
    MPI_Comm all = MPI_COMM_WORLD;
    void *source = send == receive && (operation == PEER_all_reduce || own_rank == 0) ? MPI_IN_PLACE : send;
    switch (operation) {
    case PEER_all_reduce:
        MPI_Allreduce(source, receive, n, MPI_FLOAT, MPI_SUM, all);
        break;
    case PEER_broadcast:
        MPI_Bcast(receive, n, MPI_FLOAT, 0, all);
        break;
    case PEER_reduce:
        MPI_Reduce(source, receive, n, MPI_FLOAT, MPI_SUM, 0, all);
        break;
    case PEER_all_gather:
        MPI_Allgather(send, n, MPI_FLOAT, receive, n, MPI_FLOAT, all);
        break;
    case PEER_gather:
        MPI_Gather(send, n, MPI_FLOAT, receive, n, MPI_FLOAT, 0, all);
        break;
    case PEER_scatter:
        MPI_Scatter(send, n, MPI_FLOAT, receive, n, MPI_FLOAT, 0, all);
        break;
    case PEER_reduce_scatter:
        MPI_Reduce_scatter_block(send, receive, n, MPI_FLOAT, MPI_SUM, all);
        break;
    case PEER_all_to_all:
        MPI_Alltoall(send, n, MPI_FLOAT, receive, n, MPI_FLOAT, all);
        break;
    case PEER_barrier:
        MPI_Barrier(all);
        break;
    case PEER_sendrecv:
        ping_pong(send, receive, n);
        break;
    default:
        peer_die("unknown operation");
    }
}

double peer_max(double value) {
    double largest = 0;
    MPI_Allreduce(&value, &largest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return largest;
}

const char *peer_version(void) {
    static char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(text, &length);
    text[strcspn(text, ",\n\"")] = '\0';
    return text;
}
