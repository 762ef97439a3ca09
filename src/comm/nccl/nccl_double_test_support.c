/* NCCL's functions, of its double; see nccl_double_test_support.h. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/device/cuda_double_test_support.h"
#include "comm/nccl/nccl_double_parts_test_support.h"

#define NCCL_PROTOTYPE(member, symbol, parameters) NCCL_DOUBLE_API unsigned symbol parameters;
#define NCCL_TEXT_PROTOTYPE(member, symbol, parameters) NCCL_DOUBLE_API const char *symbol parameters;
NCCL_FUNCTION_TABLE(NCCL_PROTOTYPE)
NCCL_NAMED_TYPE_FUNCTION_TABLE(NCCL_PROTOTYPE)
NCCL_OPTIONAL_FUNCTION_TABLE(NCCL_PROTOTYPE)
NCCL_OPTIONAL_NAMED_TYPE_FUNCTION_TABLE(NCCL_PROTOTYPE)
NCCL_TEXT_FUNCTION_TABLE(NCCL_TEXT_PROTOTYPE)

/* Counts the call; returns from it if it is to fail. */
#define MAY_FAIL()                                                                                                     \
    do {                                                                                                               \
        struct fault fault_ = fault_call(&double_faults, __func__);                                                    \
        if (fault_.kind == FAULT_ERROR) {                                                                              \
            return double_refuse(fault_.value, "it was told to");                                                      \
        }                                                                                                              \
    } while (0)

/* The same; what it starts may fail later. */
#define MAY_FAIL_LATER(fault)                                                                                          \
    do {                                                                                                               \
        (fault) = fault_call(&double_faults, __func__);                                                                \
        if ((fault).kind == FAULT_ERROR) {                                                                             \
            return double_refuse((fault).value, "it was told to");                                                     \
        }                                                                                                              \
    } while (0)

unsigned nccl_double_live(void) {
    return atomic_load(&double_live);
}

unsigned ncclGetVersion(int *out) {
    *out = (int)double_number_of("MUSTER_DOUBLE_NCCL_VERSION", NCCL_DOUBLE_VERSION);
    return NCCL_OK;
}

const char *ncclGetErrorString(unsigned result) {
    static const char *const words[] = {"no error",          "the device failed", "a system call failed",
                                        "internal error",    "invalid argument",  "invalid usage",
                                        "a peer has failed", "in progress"};
    return result < sizeof words / sizeof *words ? words[result] : "unknown";
}

const char *ncclGetLastError(struct ncclComm *comm) {
    (void)comm;
    return double_last_error();
}

unsigned ncclGetUniqueId(struct nccl_id *out) {
    MAY_FAIL();
    struct place place;
    place_make(&place);
    memset(out, 0, sizeof *out);
    (void)snprintf(out->bytes, sizeof out->bytes, "double %d %d %llu", (int)place.pid, (int)place.fd,
                   (unsigned long long)place.cookie);
    return NCCL_OK;
}

unsigned ncclCommInitRank(struct ncclComm **out, int size, struct nccl_id id, int rank) {
    MAY_FAIL();
    return comm_init(out, size, &id, rank, true);
}

static bool config_is_valid(const struct nccl_config *config) {
    return config->magic == NCCL_CONFIG_MAGIC && config->size >= sizeof *config && config->version >= 21800 &&
           config->cluster_size == NCCL_CONFIG_UNSET && config->traffic_class == NCCL_CONFIG_UNSET;
}

unsigned ncclCommInitRankConfig(struct ncclComm **out, int size, struct nccl_id id, int rank,
                                struct nccl_config *config) {
    MAY_FAIL();
    if (config && !config_is_valid(config)) {
        return double_refuse(NCCL_INVALID_ARGUMENT, "this is no configuration");
    }
    return comm_init(out, size, &id, rank, !config || config->blocking != 0);
}

static bool all_finalized(struct ncclComm *comm, void *argument) {
    (void)argument;
    for (uint32_t i = 0; i < comm->size; i++) {
        const struct member *member = &comm->world->members[i];
        if (!atomic_load(&member->finalized) && !atomic_load(&member->left)) {
            return false;
        }
    }
    return true;
}

/* Until no rank has anything to do any more. */
static void finalize_task(struct ncclComm *comm, void *argument) {
    (void)argument;
    comm_await_quiet(comm);
    atomic_store(&comm->world->members[comm->rank].finalized, 1);
    world_announce(comm->world);
    (void)comm_await(comm, all_finalized, NULL);
}

unsigned ncclCommFinalize(struct ncclComm *comm) {
    MAY_FAIL();
    return comm->is_revoked ? double_refuse(NCCL_INVALID_USAGE, "it has been revoked")
                            : comm_do(comm, finalize_task, NULL);
}

unsigned ncclCommDestroy(struct ncclComm *comm) {
    MAY_FAIL();
    comm_end(comm);
    return NCCL_OK;
}

unsigned ncclCommAbort(struct ncclComm *comm) {
    MAY_FAIL();
    atomic_store(&comm->is_aborted, true);
    comm_end(comm);
    return NCCL_OK;
}

unsigned ncclCommGetAsyncError(struct ncclComm *comm, unsigned *out) {
    MAY_FAIL();
    *out = comm_state(comm);
    return NCCL_OK;
}

static bool is_blocking(const struct ncclComm *parent, const struct nccl_config *config) {
    return config ? config->blocking != 0 : parent->is_blocking;
}

unsigned ncclCommSplit(struct ncclComm *comm, int color, int key, struct ncclComm **out, struct nccl_config *config) {
    struct derivation wanted = {.color = color, .key = key, .is_blocking = is_blocking(comm, config)};
    MAY_FAIL_LATER(wanted.fault);
    if (color < NCCL_NO_COLOR || (config && !config_is_valid(config))) {
        return double_refuse(NCCL_INVALID_ARGUMENT, "this is no color, or no configuration");
    }
    return comm_derive(comm, &wanted, out);
}

#if NCCL_DOUBLE_VERSION >= 22700
unsigned ncclCommShrink(struct ncclComm *comm, int *excluded, int excluded_count, struct ncclComm **out,
                        struct nccl_config *config, int flags) {
    struct derivation wanted = {.is_blocking = is_blocking(comm, config)};
    MAY_FAIL_LATER(wanted.fault);
    for (int i = 0; excluded && i < excluded_count; i++) {
        wanted.is_excluded[excluded[i]] = true;
    }
    if (!excluded || excluded_count < 1 || wanted.is_excluded[comm->rank] || (config && !config_is_valid(config))) {
        return double_refuse(NCCL_INVALID_ARGUMENT, "nobody is excluded, or the caller, or this is no configuration");
    }
    if (flags & NCCL_SHRINK_ABORTING) {
        comm_stop(comm);
    } else if (atomic_load(&comm->pending) > 0) {
        wanted.fault.kind = FAULT_STICK; /* it is not to be done while something is under way */
    }
    return comm_derive(comm, &wanted, out);
}
#endif

#if NCCL_DOUBLE_VERSION >= 22900
unsigned ncclCommRevoke(struct ncclComm *comm, int flags) {
    MAY_FAIL();
    return flags != 0 ? double_refuse(NCCL_INVALID_ARGUMENT, "it has no flags") : comm_revoke(comm);
}
#endif

unsigned ncclCommCount(struct ncclComm *comm, int *out) {
    *out = (int)comm->size;
    return NCCL_OK;
}

unsigned ncclCommUserRank(struct ncclComm *comm, int *out) {
    *out = (int)comm->rank;
    return NCCL_OK;
}

unsigned ncclCommCuDevice(struct ncclComm *comm, int *out) {
    (void)comm;
    *out = 0;
    return NCCL_OK;
}

#if NCCL_DOUBLE_VERSION >= 21900
unsigned ncclMemAlloc(void **out, size_t bytes) {
    MAY_FAIL();
    unsigned long long address = 0;
    extern unsigned cuMemAlloc_v2(unsigned long long *place, size_t size);
    unsigned result = cuMemAlloc_v2(&address, bytes);
    *out = (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
    return result == CUDA_OK ? NCCL_OK : NCCL_UNHANDLED_CUDA_ERROR;
}

unsigned ncclMemFree(void *memory) {
    MAY_FAIL();
    extern unsigned cuMemFree_v2(unsigned long long pointer);
    return cuMemFree_v2((unsigned long long)(uintptr_t)memory) == CUDA_OK ? NCCL_OK : NCCL_UNHANDLED_CUDA_ERROR;
}

unsigned ncclCommRegister(struct ncclComm *comm, void *memory, size_t bytes, void **out_handle) {
    MAY_FAIL();
    *out_handle = (void *)(uintptr_t)comm->id; /* NOLINT(performance-no-int-to-ptr) */
    return cuda_double_contents((unsigned long long)(uintptr_t)memory, bytes) ? NCCL_OK : NCCL_INVALID_ARGUMENT;
}

unsigned ncclCommDeregister(struct ncclComm *comm, void *handle) {
    MAY_FAIL();
    if ((uint64_t)(uintptr_t)handle != comm->id) {
        double_die("a handle of another communicator");
    }
    return NCCL_OK;
}
#endif

unsigned ncclRedOpCreatePreMulSum(unsigned *out, void *scalar, unsigned type, unsigned residence,
                                  struct ncclComm *comm) {
    MAY_FAIL();
    for (unsigned i = 0; i < OPS_MAX && residence == NCCL_SCALAR_HOST; i++) {
        if (!comm->scales[i].is_used && (type == NCCL_FLOAT32 || type == NCCL_FLOAT64)) {
            float narrow = 0;
            memcpy(&narrow, scalar, sizeof narrow);
            comm->scales[i].scalar = (double)narrow;
            if (type == NCCL_FLOAT64) {
                memcpy(&comm->scales[i].scalar, scalar, sizeof comm->scales[i].scalar);
            }
            comm->scales[i].is_used = true;
            *out = OPS_FIRST + i;
            return NCCL_OK;
        }
    }
    return double_refuse(NCCL_INVALID_ARGUMENT, "it multiplies float32 and float64 by a number of the host");
}

unsigned ncclRedOpDestroy(unsigned op, struct ncclComm *comm) {
    MAY_FAIL();
    if (op < OPS_FIRST || op >= OPS_FIRST + OPS_MAX || !comm->scales[op - OPS_FIRST].is_used) {
        return NCCL_INVALID_ARGUMENT;
    }
    comm->scales[op - OPS_FIRST].is_used = false;
    return NCCL_OK;
}

static uint64_t address(const void *pointer) {
    return (uint64_t)(uintptr_t)pointer;
}

unsigned ncclAllReduce(const void *send, void *receive, size_t count, unsigned type, unsigned op, struct ncclComm *comm,
                       struct CUstream_st *stream) {
    return double_submit(__func__, comm, stream,
                         (struct operation){ALL_REDUCE, type, op, 0, count, address(send), address(receive)});
}

unsigned ncclReduce(const void *send, void *receive, size_t count, unsigned type, unsigned op, int root,
                    struct ncclComm *comm, struct CUstream_st *stream) {
    return double_submit(__func__, comm, stream,
                         (struct operation){REDUCE, type, op, root, count, address(send), address(receive)});
}

unsigned ncclBroadcast(const void *send, void *receive, size_t count, unsigned type, int root, struct ncclComm *comm,
                       struct CUstream_st *stream) {
    return double_submit(__func__, comm, stream,
                         (struct operation){BROADCAST, type, 0, root, count, address(send), address(receive)});
}

unsigned ncclAllGather(const void *send, void *receive, size_t count, unsigned type, struct ncclComm *comm,
                       struct CUstream_st *stream) {
    return double_submit(__func__, comm, stream,
                         (struct operation){ALL_GATHER, type, 0, 0, count, address(send), address(receive)});
}

unsigned ncclReduceScatter(const void *send, void *receive, size_t count, unsigned type, unsigned op,
                           struct ncclComm *comm, struct CUstream_st *stream) {
    return double_submit(__func__, comm, stream,
                         (struct operation){REDUCE_SCATTER, type, op, 0, count, address(send), address(receive)});
}

unsigned ncclSend(const void *send, size_t count, unsigned type, int peer, struct ncclComm *comm,
                  struct CUstream_st *stream) {
    return double_submit(__func__, comm, stream, (struct operation){SEND, type, 0, peer, count, address(send), 0});
}

unsigned ncclRecv(void *receive, size_t count, unsigned type, int peer, struct ncclComm *comm,
                  struct CUstream_st *stream) {
    return double_submit(__func__, comm, stream,
                         (struct operation){RECEIVE, type, 0, peer, count, 0, address(receive)});
}

unsigned ncclGroupStart(void) {
    MAY_FAIL();
    double_group_start();
    return NCCL_OK;
}

unsigned ncclGroupEnd(void) {
    MAY_FAIL();
    return double_group_end();
}

#if NCCL_DOUBLE_VERSION >= 22800
unsigned ncclGather(const void *send, void *receive, size_t count, unsigned type, int root, struct ncclComm *comm,
                    struct CUstream_st *stream) {
    return double_submit(__func__, comm, stream,
                         (struct operation){GATHER, type, 0, root, count, address(send), address(receive)});
}

unsigned ncclScatter(const void *send, void *receive, size_t count, unsigned type, int root, struct ncclComm *comm,
                     struct CUstream_st *stream) {
    return double_submit(__func__, comm, stream,
                         (struct operation){SCATTER, type, 0, root, count, address(send), address(receive)});
}

unsigned ncclAlltoAll(const void *send, void *receive, size_t count, unsigned type, struct ncclComm *comm,
                      struct CUstream_st *stream) {
    return send == receive
               ? double_refuse(NCCL_INVALID_ARGUMENT, "it is not done in place")
               : double_submit(__func__, comm, stream,
                               (struct operation){ALL_TO_ALL, type, 0, 0, count, address(send), address(receive)});
}
#endif
