/* What the files of the double of NCCL share; see nccl_double_test_support.h. */
#ifndef COMM_NCCL_DOUBLE_PARTS_TEST_SUPPORT_H
#define COMM_NCCL_DOUBLE_PARTS_TEST_SUPPORT_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "comm/device/fault_test_support.h"
#include "comm/nccl/nccl_double_test_support.h"

enum {
    MEMBERS_MAX = 64,
    ENTRIES = 8, /* messages of a pair that may wait at a time */
    OPS_MAX = 16,
    OPS_FIRST = 16, /* reductions that were made; below are NCCL's own */
    LOOK_NS = 20000000,
};

extern struct faults double_faults;
extern _Atomic unsigned double_live; /* communicators */

/* ---- what the ranks share ---- */

enum kind { ALL_REDUCE = 1, REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, GATHER, SCATTER, ALL_TO_ALL, SEND, RECEIVE };

struct operation {
    enum kind kind;
    unsigned type, op;
    int root; /* or the other rank of a message */
    size_t count;
    uint64_t send, receive; /* addresses in the rank's own memory */
};

/* Where the ranks of a communicator meet: a memfd of one of them. */
struct place {
    int32_t pid, fd;
    uint64_t cookie;
};

enum { HAS_COME = 1, HAS_MAPPED }; /* steps of joining */

struct member {
    _Atomic uint32_t joined, finalized, left;
    int32_t pid, fd; /* of its device memory */
    uint64_t base;
    uint64_t bytes;
    struct operation operation;
    _Atomic uint64_t published, read; /* numbers of collectives */
    struct {
        int color, key;
    } wishes[2]; /* of split n at n % 2 */
    struct place places[2];
    _Atomic uint64_t wished, placed;
};

struct channel { /* from one to another */
    _Atomic uint64_t posted, taken;
    struct {
        uint64_t address, bytes;
    } entries[ENTRIES];
};

struct world {
    uint64_t cookie;
    _Atomic uint32_t news;
    struct member members[MEMBERS_MAX];
    struct channel channels[MEMBERS_MAX][MEMBERS_MAX];
};

/* ---- communicators ---- */

struct task {
    void (*run)(struct ncclComm *comm, void *argument);
    void *argument;
    struct task *next;
};

struct scale {
    bool is_used;
    double scalar;
};

struct ncclComm {
    uint64_t id; /* in this process; what is registered has it in its handle */
    struct place place;
    struct world *world;
    uint32_t rank, size;
    const char *contents[MEMBERS_MAX]; /* of the members' device memory */
    bool is_blocking;
    _Atomic unsigned error;
    _Atomic bool is_aborted, is_stopped; /* for good; for a while: what it carries out ends */
    _Atomic bool is_revoked;
    bool is_left_out[MEMBERS_MAX]; /* by a shrink: they are not missed any more */
    struct ncclComm *parent;       /* while it is made of that, whose abort ends it, too */
    _Atomic unsigned users;        /* the program, and work on streams */
    _Atomic unsigned pending;
    uint64_t collectives, splits, sent[MEMBERS_MAX], received[MEMBERS_MAX];
    struct scale scales[OPS_MAX];
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    pthread_t worker;
    struct task *tasks;
    bool is_busy, is_closing, has_worker;
};

/* ---- nccl_double_comm_test_support.c ---- */

unsigned double_number_of(const char *variable, unsigned otherwise);
_Noreturn void double_die(const char *why);
void *double_zeroed(size_t bytes);
/* Returns `result`, and keeps why for ncclGetLastError(). */
unsigned double_refuse(unsigned result, const char *why);
const char *double_last_error(void);

/* Wakes all ranks that wait in the world. */
void world_announce(struct world *world);
void place_make(struct place *out);

/* Frees it with its last user. */
void comm_release(struct ncclComm *comm);
/* The first error stays. */
void comm_fail(struct ncclComm *comm, unsigned error);
/* Waits until ready(); false: the communicator was aborted, or stopped. */
bool comm_await(struct ncclComm *comm, bool (*ready)(struct ncclComm *comm, void *argument), void *argument);
/* For comm_await(). */
bool comm_never(struct ncclComm *comm, void *argument);
/* Does it now, or has the worker of a communicator that does not block do it: ncclInProgress. */
unsigned comm_do(struct ncclComm *comm, void (*run)(struct ncclComm *comm, void *argument), void *argument);
unsigned comm_state(struct ncclComm *comm);
struct ncclComm *comm_new(bool is_blocking);
unsigned comm_init(struct ncclComm **out, int size, const struct nccl_id *id, int rank, bool is_blocking);
/* From another one, which must be ready: by color and key, without those that are excluded. *out stays NULL until the
 * parent is in progress no more. */
struct derivation {
    int color, key;
    bool is_excluded[MEMBERS_MAX];
    bool is_blocking;
    struct fault fault;
    /* By comm_derive(). */
    uint64_t number;
    uint32_t leader;
    struct ncclComm **out;
};
unsigned comm_derive(struct ncclComm *parent, const struct derivation *wanted, struct ncclComm **out);
/* Waits until nothing of it is on a stream any more. */
void comm_await_quiet(struct ncclComm *comm);
/* Ends what it carries out, and waits for that; then it can go on. */
void comm_stop(struct ncclComm *comm);
unsigned comm_revoke(struct ncclComm *comm);
void comm_end(struct ncclComm *comm);

/* ---- nccl_double_run_test_support.c ---- */

/* Puts an operation onto the stream, or into the group that is open in this thread. */
unsigned double_submit(const char *function, struct ncclComm *comm, struct CUstream_st *stream, struct operation o);
void double_group_start(void);
unsigned double_group_end(void);

#endif
