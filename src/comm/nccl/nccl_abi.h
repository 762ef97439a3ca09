/* The interface of NVIDIA's NCCL, as far as Muster calls it: results, types, reductions, the configuration of a
 * communicator, and a table of functions. Its header is not needed to build, and its library is opened at run time
 * (nccl_library.h).
 *
 * Source of the facts: nccl.h of 2.18 to 2.32, and "NCCL User Guide", API (docs.nvidia.com/deeplearning/nccl).
 * tests/comm/test_gpu_headers.py compares all of this with a real nccl.h where there is one. */
#ifndef COMM_NCCL_ABI_H
#define COMM_NCCL_ABI_H

#include <limits.h>
#include <stddef.h>

struct CUstream_st;
struct ncclComm; /* with NCCL's tag, so that a compiler that sees both headers can compare the functions */

enum {
    NCCL_LEAST_VERSION = 21800, /* 10000 * major + 100 * minor + patch; communicators that do not block, and split */
    NCCL_ID_BYTES = 128,
};

/* Our name, value, NCCL's name. */
#define NCCL_CONSTANT_TABLE(X)                                                                                         \
    X(NCCL_OK, 0, ncclSuccess)                                                                                         \
    X(NCCL_UNHANDLED_CUDA_ERROR, 1, ncclUnhandledCudaError)                                                            \
    X(NCCL_SYSTEM_ERROR, 2, ncclSystemError)                                                                           \
    X(NCCL_INTERNAL_ERROR, 3, ncclInternalError)                                                                       \
    X(NCCL_INVALID_ARGUMENT, 4, ncclInvalidArgument)                                                                   \
    X(NCCL_INVALID_USAGE, 5, ncclInvalidUsage)                                                                         \
    X(NCCL_REMOTE_ERROR, 6, ncclRemoteError)                                                                           \
    X(NCCL_IN_PROGRESS, 7, ncclInProgress)                                                                             \
    X(NCCL_INT8, 0, ncclInt8)                                                                                          \
    X(NCCL_UINT8, 1, ncclUint8)                                                                                        \
    X(NCCL_INT32, 2, ncclInt32)                                                                                        \
    X(NCCL_UINT32, 3, ncclUint32)                                                                                      \
    X(NCCL_INT64, 4, ncclInt64)                                                                                        \
    X(NCCL_UINT64, 5, ncclUint64)                                                                                      \
    X(NCCL_FLOAT16, 6, ncclFloat16)                                                                                    \
    X(NCCL_FLOAT32, 7, ncclFloat32)                                                                                    \
    X(NCCL_FLOAT64, 8, ncclFloat64)                                                                                    \
    X(NCCL_BFLOAT16, 9, ncclBfloat16)                                                                                  \
    X(NCCL_SUM, 0, ncclSum)                                                                                            \
    X(NCCL_PROD, 1, ncclProd)                                                                                          \
    X(NCCL_MAX, 2, ncclMax)                                                                                            \
    X(NCCL_MIN, 3, ncclMin)                                                                                            \
    X(NCCL_AVG, 4, ncclAvg)                                                                                            \
    X(NCCL_SCALAR_DEVICE, 0, ncclScalarDevice)                                                                         \
    X(NCCL_SCALAR_HOST, 1, ncclScalarHostImmediate)                                                                    \
    X(NCCL_NO_COLOR, -1, NCCL_SPLIT_NOCOLOR)                                                                           \
    X(NCCL_SHRINK_NORMAL, 0, NCCL_SHRINK_DEFAULT)                                                                      \
    X(NCCL_SHRINK_ABORTING, 1, NCCL_SHRINK_ABORT)

enum nccl_constant {
#define NCCL_ENUM(name, value, theirs) name = (value),
    NCCL_CONSTANT_TABLE(NCCL_ENUM)
#undef NCCL_ENUM
};

struct nccl_id {
    char bytes[NCCL_ID_BYTES];
};

/* ncclConfig_t of 2.18. NCCL accepts the configurations of older versions: it copies `size` bytes and gives what it has
 * got since then its defaults, by `version`. */
struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, cluster_size, channels_min, channels_max;
    const char *network;
    int split_share;
    int traffic_class; /* of 2.25; before that, padding */
};
#define NCCL_CONFIG_MAGIC 0xcafebeefu
#define NCCL_CONFIG_UNSET INT_MIN
#define NCCL_CONFIG_INIT                                                                                               \
    {                                                                                                                  \
        sizeof(struct nccl_config), NCCL_CONFIG_MAGIC, NCCL_LEAST_VERSION, NCCL_CONFIG_UNSET, NCCL_CONFIG_UNSET,       \
            NCCL_CONFIG_UNSET, NCCL_CONFIG_UNSET, NULL, NCCL_CONFIG_UNSET, NCCL_CONFIG_UNSET                           \
    }

/* Name in our table, symbol, parameters. All return an ncclResult_t, an enumeration without negative values, so
 * unsigned; as are types and reductions. */
#define NCCL_FUNCTION_TABLE(X)                                                                                         \
    X(get_version, ncclGetVersion, (int *out))                                                                         \
    X(comm_finalize, ncclCommFinalize, (struct ncclComm * comm))                                                       \
    X(comm_destroy, ncclCommDestroy, (struct ncclComm * comm))                                                         \
    X(comm_abort, ncclCommAbort, (struct ncclComm * comm))                                                             \
    X(comm_async_error, ncclCommGetAsyncError, (struct ncclComm * comm, unsigned *out))                                \
    X(comm_count, ncclCommCount, (struct ncclComm * comm, int *out))                                                   \
    X(comm_device, ncclCommCuDevice, (struct ncclComm * comm, int *out))                                               \
    X(comm_rank, ncclCommUserRank, (struct ncclComm * comm, int *out))                                                 \
    X(op_create_premul_sum, ncclRedOpCreatePreMulSum,                                                                  \
      (unsigned *out, void *scalar, unsigned type, unsigned residence, struct ncclComm *comm))                         \
    X(op_destroy, ncclRedOpDestroy, (unsigned op, struct ncclComm *comm))                                              \
    X(reduce, ncclReduce,                                                                                              \
      (const void *send, void *receive, size_t count, unsigned type, unsigned op, int root, struct ncclComm *comm,     \
       struct CUstream_st *stream))                                                                                    \
    X(broadcast, ncclBroadcast,                                                                                        \
      (const void *send, void *receive, size_t count, unsigned type, int root, struct ncclComm *comm,                  \
       struct CUstream_st *stream))                                                                                    \
    X(all_reduce, ncclAllReduce,                                                                                       \
      (const void *send, void *receive, size_t count, unsigned type, unsigned op, struct ncclComm *comm,               \
       struct CUstream_st *stream))                                                                                    \
    X(reduce_scatter, ncclReduceScatter,                                                                               \
      (const void *send, void *receive, size_t count, unsigned type, unsigned op, struct ncclComm *comm,               \
       struct CUstream_st *stream))                                                                                    \
    X(all_gather, ncclAllGather,                                                                                       \
      (const void *send, void *receive, size_t count, unsigned type, struct ncclComm *comm,                            \
       struct CUstream_st *stream))                                                                                    \
    X(send, ncclSend,                                                                                                  \
      (const void *send, size_t count, unsigned type, int peer, struct ncclComm *comm, struct CUstream_st *stream))    \
    X(receive, ncclRecv,                                                                                               \
      (void *receive, size_t count, unsigned type, int peer, struct ncclComm *comm, struct CUstream_st *stream))       \
    X(group_start, ncclGroupStart, (void))                                                                             \
    X(group_end, ncclGroupEnd, (void))

/* The same, but their types have names of NCCL's own. */
#define NCCL_NAMED_TYPE_FUNCTION_TABLE(X)                                                                              \
    X(get_id, ncclGetUniqueId, (struct nccl_id * out))                                                                 \
    X(comm_init, ncclCommInitRank, (struct ncclComm * *out, int size, struct nccl_id id, int rank))                    \
    X(comm_init_config, ncclCommInitRankConfig,                                                                        \
      (struct ncclComm * *out, int size, struct nccl_id id, int rank, struct nccl_config *config))                     \
    X(comm_split, ncclCommSplit,                                                                                       \
      (struct ncclComm * comm, int color, int key, struct ncclComm **out, struct nccl_config *config))

/* What newer versions have: 2.19, 2.28, 2.29. NULL where it is not there. */
#define NCCL_OPTIONAL_FUNCTION_TABLE(X)                                                                                \
    X(memory_allocate, ncclMemAlloc, (void **out, size_t bytes))                                                       \
    X(memory_free, ncclMemFree, (void *memory))                                                                        \
    X(comm_register, ncclCommRegister, (struct ncclComm * comm, void *memory, size_t bytes, void **out_handle))        \
    X(comm_deregister, ncclCommDeregister, (struct ncclComm * comm, void *handle))                                     \
    X(comm_revoke, ncclCommRevoke, (struct ncclComm * comm, int flags))                                                \
    X(all_to_all, ncclAlltoAll,                                                                                        \
      (const void *send, void *receive, size_t count, unsigned type, struct ncclComm *comm,                            \
       struct CUstream_st *stream))                                                                                    \
    X(gather, ncclGather,                                                                                              \
      (const void *send, void *receive, size_t count, unsigned type, int root, struct ncclComm *comm,                  \
       struct CUstream_st *stream))                                                                                    \
    X(scatter, ncclScatter,                                                                                            \
      (const void *send, void *receive, size_t count, unsigned type, int root, struct ncclComm *comm,                  \
       struct CUstream_st *stream))

/* Likewise: 2.27. */
#define NCCL_OPTIONAL_NAMED_TYPE_FUNCTION_TABLE(X)                                                                     \
    X(comm_shrink, ncclCommShrink,                                                                                     \
      (struct ncclComm * comm, int *excluded, int excluded_count, struct ncclComm **out, struct nccl_config *config,   \
       int flags))

/* These return text. */
#define NCCL_TEXT_FUNCTION_TABLE(X)                                                                                    \
    X(error_string, ncclGetErrorString, (unsigned result))                                                             \
    X(last_error, ncclGetLastError, (struct ncclComm * comm))

#endif
