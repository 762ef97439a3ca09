/* The peer of the collectives benchmark on a node alone (see peer.h): what shared memory can do, without the group, its
 * recorder and its launcher above it. It forks its ranks itself:
 *
 *     NODE_RANKS=2 node_peer [--own-memory] all_reduce 4,64K,1M
 *
 * NODE_BIND=0: ranks are not bound to a core each (they are, where there are enough, as Open MPI's). NODE_TABLE=FILE: a
 * table of algorithms to try. No sendrecv. */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/node/node.h"
#include "comm/schedule/choice.h"
#include "peer.h"

enum { RANKS_MAX = 64 };

struct common {
    struct call_line lines[RANKS_MAX];
    struct comm_bell bells[RANKS_MAX];
    _Atomic int32_t pids[RANKS_MAX];
    double values[RANKS_MAX];
};

static struct common *common;
static struct node *node;
static struct memory *memory;
static struct comm_waiter waiter;
static uint32_t own_rank, rank_count;
static bool own_memory;

static void bind_to_core(uint32_t rank) {
    const char *wish = getenv("NODE_BIND");
    if ((wish && *wish == '0') || (long)rank_count > sysconf(_SC_NPROCESSORS_ONLN)) {
        return;
    }
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(rank, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
}

static const struct choice *table(void) {
    struct choice *choice = NULL;
    const char *path = getenv("NODE_TABLE");
    if (path && choice_load(path, &choice) != 0) {
        peer_die(muster_detail());
    }
    return choice; /* lives as long as the process */
}

void peer_start(int *argc, char ***argv, bool wants_own_memory, int *out_rank, int *out_size) {
    (void)argc, (void)argv;
    const char *wish = getenv("NODE_RANKS");
    rank_count = wish ? (uint32_t)strtoul(wish, NULL, 10) : 2;
    if (rank_count < 1 || rank_count > RANKS_MAX) {
        peer_die("NODE_RANKS");
    }
    size_t common_bytes = (sizeof *common + 4095) / 4096 * 4096, directory_bytes = memory_directory_bytes(rank_count);
    char *shared = mmap(NULL, common_bytes + directory_bytes + node_segment_bytes(rank_count), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED) {
        peer_die("mmap");
    }
    common = (struct common *)(void *)shared;
    for (own_rank = rank_count - 1; own_rank > 0; own_rank--) {
        if (fork() == 0) {
            (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
            break;
        }
    }
    struct node_member members[RANKS_MAX];
    int32_t pids[RANKS_MAX];
    bind_to_core(own_rank);
    common->pids[own_rank] = getpid();
    for (uint32_t i = 0; i < rank_count; i++) {
        while ((pids[i] = common->pids[i]) == 0) {
            sched_yield();
        }
        members[i] =
            (struct node_member){.local = i, .pid = pids[i], .bell = &common->bells[i], .line = &common->lines[i]};
    }
    waiter.bell = &common->bells[own_rank];
    comm_waiter_tune(&waiter, pids, rank_count);
    if (memory_create(shared + common_bytes, own_rank, pids, rank_count, &memory) != 0) {
        peer_die(muster_detail());
    }
    const struct node_config config = {.segment = shared + common_bytes + directory_bytes,
                                       .size = rank_count,
                                       .index = own_rank,
                                       .members = members,
                                       .waiter = &waiter,
                                       .memory = memory,
                                       .may_read_peers = true,
                                       .choice = table()};
    if (node_create(&config, &node) != 0) {
        peer_die(muster_detail());
    }
    own_memory = wants_own_memory;
    *out_rank = (int)own_rank;
    *out_size = (int)rank_count;
}

void peer_stop(void) {
    peer_max(0);
    node_free(node);
    memory_free(memory);
    while (own_rank == 0 && wait(NULL) > 0) {
    }
}

float *peer_alloc(size_t bytes) {
    void *buffer = NULL;
    if (own_memory) {
        if (memory_allocate(memory, bytes, &buffer) != 0) {
            peer_die(muster_detail());
        }
    } else if (posix_memalign(&buffer, 4096, bytes) != 0) {
        peer_die("out of memory");
    }
    memset(buffer, 0, bytes);
    return buffer;
}

void peer_free(float *buffer) {
    if (own_memory) {
        memory_release(memory, buffer);
    } else {
        free(buffer);
    }
}

static void run(struct comm_call *call) {
    static uint64_t number;
    comm_call_prepare(call, rank_count);
    call_line_begin(&common->lines[own_rank], ++number, call->fingerprint, 0);
    if (node_run(node, call, number, INT64_MAX) != 0) {
        peer_die(muster_detail());
    }
}

void peer_run(enum peer_operation operation, float *send, float *receive, size_t count) {
    static const enum comm_operation operations[PEER_OPERATION_COUNT] = {
        [PEER_all_reduce] = COMM_ALL_REDUCE, [PEER_broadcast] = COMM_BROADCAST,
        [PEER_reduce] = COMM_REDUCE,         [PEER_all_gather] = COMM_ALL_GATHER,
        [PEER_gather] = COMM_GATHER,         [PEER_scatter] = COMM_SCATTER,
        [PEER_all_to_all] = COMM_ALL_TO_ALL, [PEER_reduce_scatter] = COMM_REDUCE_SCATTER,
        [PEER_barrier] = COMM_BARRIER};
    if (operations[operation] == 0) {
        return;
    }
    struct comm_call call = {.operation = operations[operation],
                             .type = MUSTER_FLOAT32,
                             .reduction = MUSTER_OP_SUM,
                             .count = count,
                             .send = send,
                             .receive = receive};
    run(&call);
}

double peer_max(double value) {
    float largest = (float)value;
    struct comm_call call = {.operation = COMM_ALL_REDUCE,
                             .type = MUSTER_FLOAT32,
                             .reduction = MUSTER_OP_MAX,
                             .count = 1,
                             .send = &largest,
                             .receive = &largest};
    run(&call);
    return (double)largest;
}

const char *peer_version(void) {
    return "muster node";
}
