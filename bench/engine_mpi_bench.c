/* What the engine on MPI adds to MPI: the same calls by libmuster and straight from the same library, in turns, in the
 * same processes.
 *
 *     MUSTER_ENGINE=mpi mpirun -n 2 engine_mpi_bench [rounds]
 *
 * "direct" is the nonblocking call that the engine makes, and MPI_Test until it has ended; "blocking" the blocking call
 * of MPI. Medians over the rounds of rank 0, in microseconds. A message goes there and back: half of the time is shown.
 */
#include <muster/muster.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "comm/mpi/mpi_library.h"
#include "quantile.h"

enum { ROUNDS = 15, ROUND_MS = 20, CALLS_MIN = 3 };

static const struct mpi *mpi;
static mpi_handle world;
static struct muster_group *group;
static uint32_t rank, size;
static float *send_buffer, *receive_buffer;

static void fail(const char *what) {
    (void)fprintf(stderr, "engine_mpi_bench: %s: %s\n", what, muster_detail());
    exit(1);
}

static void need(int code, const char *what) {
    if (code != 0) {
        fail(what);
    }
}

static void finish(mpi_handle request) {
    bool done = false;
    while (!done) {
        need(mpi->calls->test(mpi, &request, &done, NULL), "MPI_Test");
    }
}

/* ---- the calls, of `count` floats ---- */

static void muster_reduce_all(size_t count) {
    need(muster_all_reduce(group, send_buffer, receive_buffer, count, MUSTER_FLOAT32, MUSTER_OP_SUM, NULL),
         "all_reduce");
}

static void direct_reduce_all(size_t count) {
    mpi_handle request = 0;
    need(mpi->calls->iallreduce(mpi, send_buffer, receive_buffer, (int64_t)count, mpi->types[MUSTER_FLOAT32],
                                mpi->ops[MUSTER_OP_SUM], world, &request),
         "MPI_Iallreduce");
    finish(request);
}

static void blocking_reduce_all(size_t count) {
    need(mpi->calls->allreduce(mpi, send_buffer, receive_buffer, (int64_t)count, mpi->types[MUSTER_FLOAT32],
                               mpi->ops[MUSTER_OP_SUM], world),
         "MPI_Allreduce");
}

static void muster_cast(size_t count) {
    need(muster_broadcast(group, send_buffer, count, MUSTER_FLOAT32, 0, NULL), "broadcast");
}

static void direct_cast(size_t count) {
    mpi_handle request = 0;
    need(mpi->calls->ibcast(mpi, send_buffer, (int64_t)count, mpi->types[MUSTER_FLOAT32], 0, world, &request),
         "MPI_Ibcast");
    finish(request);
}

static void blocking_cast(size_t count) {
    need(mpi->calls->bcast(mpi, send_buffer, (int64_t)count, mpi->types[MUSTER_FLOAT32], 0, world), "MPI_Bcast");
}

static void muster_gather_all(size_t count) {
    need(muster_all_gather(group, send_buffer, receive_buffer, count / size, MUSTER_FLOAT32, NULL), "all_gather");
}

static void direct_gather_all(size_t count) {
    mpi_handle request = 0;
    need(mpi->calls->iallgather(mpi, send_buffer, receive_buffer, (int64_t)(count / size), mpi->types[MUSTER_FLOAT32],
                                world, &request),
         "MPI_Iallgather");
    finish(request);
}

static void muster_meet(size_t count) {
    (void)count;
    need(muster_barrier(group, NULL), "barrier");
}

static void direct_meet(size_t count) {
    mpi_handle request = 0;
    (void)count;
    need(mpi->calls->ibarrier(mpi, world, &request), "MPI_Ibarrier");
    finish(request);
}

static void blocking_meet(size_t count) {
    (void)count;
    need(mpi->calls->barrier(mpi, world), "MPI_Barrier");
}

static void muster_ping(size_t count) {
    for (uint32_t turn = 0; turn < 2 && rank < 2; turn++) {
        need(turn == rank ? muster_send(group, send_buffer, count, MUSTER_FLOAT32, 1 - rank, 1, NULL)
                          : muster_receive(group, receive_buffer, count, MUSTER_FLOAT32, 1 - rank, 1, NULL, NULL),
             "a message");
    }
}

static void direct_ping(size_t count) {
    for (uint32_t turn = 0; turn < 2 && rank < 2; turn++) {
        mpi_handle request = 0;
        need(turn == rank ? mpi->calls->isend(mpi, send_buffer, (int64_t)count, mpi->types[MUSTER_FLOAT32],
                                              (int)(1 - rank), 1, world, &request)
                          : mpi->calls->irecv(mpi, receive_buffer, (int64_t)count, mpi->types[MUSTER_FLOAT32],
                                              (int)(1 - rank), 1, world, &request),
             "a message of MPI");
        finish(request);
    }
}

struct kind {
    const char *name, *direct_name;
    void (*muster)(size_t count), (*direct)(size_t count), (*blocking)(size_t count);
    double share; /* of a turn that is shown */
};

static const struct kind kinds[] = {
    {"barrier", "MPI_Ibarrier", muster_meet, direct_meet, blocking_meet, 1},
    {"all_reduce", "MPI_Iallreduce", muster_reduce_all, direct_reduce_all, blocking_reduce_all, 1},
    {"broadcast", "MPI_Ibcast", muster_cast, direct_cast, blocking_cast, 1},
    {"all_gather", "MPI_Iallgather", muster_gather_all, direct_gather_all, NULL, 1},
    {"send, receive", "MPI_Isend, MPI_Irecv", muster_ping, direct_ping, NULL, 0.5},
};

/* ---- measuring ---- */

/* Microseconds of a call. Each ends in a barrier, so that no rank is ahead. */
static double time_calls(void (*call)(size_t count), size_t count, uint32_t calls) {
    blocking_meet(0);
    int64_t begin_ns = clock_monotonic_ns();
    for (uint32_t i = 0; i < calls; i++) {
        call(count);
    }
    int64_t end_ns = clock_monotonic_ns();
    blocking_meet(0);
    return (double)(end_ns - begin_ns) / 1e3 / calls;
}

/* As many calls as fit into a round; the same on all ranks. */
static uint32_t count_calls(const struct kind *kind, size_t count) {
    double once = time_calls(kind->direct, count, CALLS_MIN);
    int32_t calls = once * CALLS_MIN < ROUND_MS * 1e3 ? (int32_t)(ROUND_MS * 1e3 / once) : CALLS_MIN;
    need(mpi->calls->bcast(mpi, &calls, 1, mpi->types[MUSTER_INT32], 0, world), "MPI_Bcast");
    return (uint32_t)calls;
}

static void measure(const struct kind *kind, size_t count, uint32_t rounds) {
    double *times[3] = {calloc(rounds, sizeof(double)), calloc(rounds, sizeof(double)), calloc(rounds, sizeof(double))};
    double *extra = calloc(rounds, sizeof *extra);
    uint32_t calls = count_calls(kind, count);
    void (*const ways[])(size_t count) = {kind->muster, kind->direct, kind->blocking};
    for (uint32_t round = 0; round < rounds; round++) {
        for (uint32_t turn = 0; turn < 3; turn++) {
            uint32_t way = (round + turn) % 3; /* in turns: who goes first finds other caches and clocks */
            times[way][round] = ways[way] ? time_calls(ways[way], count, calls) * kind->share : 0;
        }
        extra[round] = times[0][round] - times[1][round];
    }
    double muster = quantile(times[0], rounds, 0.5), direct = quantile(times[1], rounds, 0.5),
           more = quantile(extra, rounds, 0.5);
    if (rank == 0) {
        (void)printf("| %s | %zu B | %s | %.2f | %.2f | ", kind->name, count * sizeof(float), kind->direct_name, muster,
                     direct);
        (void)(kind->blocking ? printf("%.2f", quantile(times[2], rounds, 0.5)) : printf("-"));
        (void)printf(" | %+.2f us, %+.1f %%%s |\n", more, more / direct * 100,
                     more <= 1 || more <= direct * 0.02 ? "" : " (over)");
        (void)fflush(stdout);
    }
    free(extra);
    for (int i = 0; i < 3; i++) {
        free(times[i]);
    }
}

int main(int argc, char **argv) {
    static const size_t bytes[] = {32, 1024, 4096, 65536, 1 << 20, 16 << 20, 64 << 20};
    uint32_t rounds = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : ROUNDS;
    need(muster_group_create_env(NULL, &group), "the group");
    rank = muster_group_rank(group);
    size = muster_group_size(group);
    need(mpi_open(&mpi), "MPI");
    if (strcmp(muster_group_engine(group), "mpi") != 0) {
        (void)fprintf(stderr, "engine_mpi_bench: the engine is '%s' (%s), not 'mpi'\n", muster_group_engine(group),
                      muster_group_engine_reason(group));
        return 1;
    }
    need(mpi->calls->comm_dup(mpi, mpi->comm_world, &world), "MPI_Comm_dup");
    send_buffer = calloc(64 << 20, 1);
    receive_buffer = calloc(64 << 20, 1);
    if (!send_buffer || !receive_buffer) {
        fail("no memory");
    }
    if (rank == 0) {
        (void)printf("%s, %u ranks; medians of %u rounds\n\n| call | bytes | direct call | muster, us | direct, us | "
                     "blocking, us | more than direct |\n|---|---|---|---|---|---|---|\n",
                     mpi->version, size, rounds);
    }
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        bool has_data = kinds[k].muster != muster_meet;
        for (size_t i = 0; i < (has_data ? sizeof bytes / sizeof *bytes : 1); i++) {
            measure(&kinds[k], has_data ? bytes[i] / sizeof(float) : 0, rounds);
        }
    }
    free(send_buffer);
    free(receive_buffer);
    (void)mpi->calls->comm_free(mpi, &world);
    muster_group_free(group);
    return 0;
}
