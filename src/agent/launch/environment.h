/* A worker's environment and command line: what torchrun's workers find in theirs, name by name. Pure: the
 * agent's own environment comes in as an array. */
#ifndef AGENT_ENVIRONMENT_H
#define AGENT_ENVIRONMENT_H

#include "agent/launch/launch.h"
#include "rendezvous/rdzv.h"

struct environment_worker {
    uint32_t local_rank;
    uint32_t restart_count;
    const char *error_file;  /* path or "" */
    const char *timer_file;  /* watchdog FIFO, or NULL */
    const char *stop_path;   /* what comes into being when the workers are to stop, or NULL: nobody asks them */
    const char *held_socket; /* where memory is held for them, or NULL: nowhere, whatever is inherited */
    const struct launch_strings *mpi; /* what MPI's libraries read ("NAME=value"), in place of what is inherited of that
                                       * kind; NULL: what is inherited stays */
    const char *failed_by; /* how the program made the attempt before fail, or NULL: it did not, or not on this node */
};

/* Where it is told that a rank of this round's world is lost, for --survivors=continue: MUSTER_LOST_KEY. Returns `out`.
 */
enum { ENVIRONMENT_LOST_KEY_MAX = 40 };
const char *environment_lost_key(uint64_t round, char out[ENVIRONMENT_LOST_KEY_MAX]);

/* Fills `out` with "NAME=value" strings: `inherited` (NULL-terminated, borrowed) with the worker's own variables
 * in place of old values. MUSTER_ENOMEM; MUSTER_EINVAL when --virtual-local-rank finds too short a
 * CUDA_VISIBLE_DEVICES. `out` must be empty; free it with launch_strings_done(). The array ends with a NULL item that
 * is not counted. */
int environment_build(const struct launch_config *config, const struct rdzv_world *world,
                      const struct environment_worker *worker, const char *const *inherited,
                      struct launch_strings *out);

/* What only a world decides: X(NAME) for each variable. */
#define ENVIRONMENT_OF_A_WORLD(X)                                                                                      \
    X("RANK")                                                                                                          \
    X("GROUP_RANK")                                                                                                    \
    X("ROLE_RANK")                                                                                                     \
    X("WORLD_SIZE")                                                                                                    \
    X("GROUP_WORLD_SIZE")                                                                                              \
    X("ROLE_WORLD_SIZE")                                                                                               \
    X("MASTER_ADDR")                                                                                                   \
    X("MASTER_PORT")                                                                                                   \
    X("TORCHELASTIC_RESTART_COUNT")                                                                                    \
    X("TORCHELASTIC_MAX_RESTARTS")                                                                                     \
    X("TORCHELASTIC_USE_AGENT_STORE")                                                                                  \
    X("TORCHELASTIC_ERROR_FILE")                                                                                       \
    X("MUSTER_LOST_KEY")

/* The environment of a process that waits to become the worker: without what only a world decides (ranks, sizes, where
 * the workers meet, restarts, the error file), also where it is inherited. Same ownership and errors as above. */
int environment_build_early(const struct launch_config *config, const struct environment_worker *worker,
                            const char *const *inherited, struct launch_strings *out);

/* argv of a worker: config->command with ${local_rank} and $local_rank replaced in every item but the first, "$$"
 * becoming "$" and other names left alone. Same ownership as above. MUSTER_ENOMEM. */
int environment_command(const struct launch_config *config, uint32_t local_rank, struct launch_strings *out);

#endif
