/* MPI in this process: begun once, shared by all groups that stand on it, and ended with the process.
 *
 * MPI waits for ever for a process that is gone, and nothing can end a call of it. So what blocks runs in a thread of
 * its own, which is left behind when the time is up; everything else only looks. From the first failure on MPI is not
 * called any more (mpi_world_break()): the rank may report, and end. It then ends without MPI_Finalize(), which would
 * wait for those that are gone, too.
 *
 * Threads: any. Where MPI allows one thread at a time, mpi_world_enter() keeps them apart. */
#ifndef COMM_MPI_MPI_WORLD_H
#define COMM_MPI_MPI_WORLD_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/host/bell.h"
#include "comm/mpi/mpi_library.h"

struct mpi_world {
    const struct mpi *mpi;
    int rank, size;   /* in MPI_COMM_WORLD */
    bool takes_turns; /* one thread at a time may be in MPI */
};

/* Opens and begins MPI, unless that was done before. Blocks: MPI_Init() waits for all processes that the starter has
 * started. waiter: of the caller, who gives up when it says so. Errors: those of mpi_open() and mpi_begin();
 * MUSTER_ETIMEOUT, without a detail; what the waiter says. */
int mpi_world_begin(struct comm_waiter *waiter, int64_t deadline_ns, const struct mpi_world **out);

bool mpi_world_has_begun(void);

/* Rank 0's `bytes` bytes of `text` to all processes of MPI_COMM_WORLD, which all call this. Errors as of
 * mpi_world_begin(). */
enum { MPI_WORLD_SHARED_MAX = 256 };
int mpi_world_share(const struct mpi_world *world, char *text, size_t bytes, struct comm_waiter *waiter,
                    int64_t deadline_ns);

/* Would MPI find other processes, as far as the environment tells? If not, each process would be a world of one, and
 * *out_why names what would help. */
bool mpi_world_is_served(void);

/* Around each call of MPI, but those in mpi_world_run(). false: MPI has been given up; it must not be called. */
bool mpi_world_enter(const struct mpi_world *world);
void mpi_world_leave(const struct mpi_world *world);

/* Another process of this host that takes part; when MPI ends, nobody waits long for one that is gone. */
void mpi_world_note_neighbour(int32_t pid, uint64_t start_time);
bool mpi_world_has_lost_neighbour(void);

/* A group stands on MPI, or does not any more; one has failed. When the process ends, it waits in MPI_Finalize() for
 * the other ranks, but not long if one of its groups has failed or is not freed: others may be in a call of it for
 * ever. */
void mpi_world_add_user(void);
void mpi_world_drop_user(void);
void mpi_world_note_failure(void);

/* Nobody in this process calls MPI any more. */
void mpi_world_break(void);
bool mpi_world_is_broken(void);
/* Leaves the sentence that says so; MUSTER_EUNSUPPORTED. */
int mpi_world_fail_broken(void);

/* Runs `task` in a thread of its own and waits for it. task: 0 or a code with its detail, which becomes the caller's;
 * it may block in MPI. argument: malloc'd; freed by the caller on success or failure of the task. If the caller gives
 * up (MUSTER_ETIMEOUT, or what the waiter says, which the task is given a moment to outrun), *out_left_behind is true:
 * MPI has been broken, and the argument is the thread's for ever. */
int mpi_world_run(int (*task)(void *argument), void *argument, struct comm_waiter *waiter, int64_t deadline_ns,
                  bool *out_left_behind);

/* How long to look before giving the core away, and before sleeping: MPI can only be asked again and again. */
struct mpi_patience {
    uint32_t looks, yields, naps; /* of the wait that is under way */
    uint32_t waits, shared;       /* of all before: how often others wanted this core when it was given away */
};
/* Before a wait, with what the last ones have taught: a rank that the kernel has put on the core of one that it waits
 * for gives the core away at once. */
void mpi_patience_renew(struct mpi_patience *patience);
/* Between two looks. True if the core was given away: then there is time for other questions, too. */
bool mpi_patience_wait(struct mpi_patience *patience, const struct comm_waiter *waiter);

#endif
