/* The shim of MPICH's ABI: MPICH 3.1 and later, Intel MPI, Cray MPICH, MVAPICH, ParaStation MPI, which agreed on it in
 * 2014 (the MPICH ABI Compatibility Initiative). Handles are ints. The values below are those of MPICH's mpi.h, read in
 * 4.0.2 and 5.0.2, which agree. */
#include "comm/mpi/mpi_shim_impl.h"

typedef int abi_comm;
typedef int abi_group;
typedef int abi_errhandler;
typedef int abi_request;
typedef int abi_message;
typedef int abi_type;
typedef int abi_op;

/* mpi.h: struct MPI_Status. */
struct abi_status {
    int count_low, count_high_and_canceled;
    int source, tag, error;
};

#define ABI_SHIM mpi_shim_mpich
#define ABI_KIND MPI_ABI_MPICH
#define ABI_NAME "MPICH"
#define ABI_IN_PLACE ((void *)(intptr_t)-1)
#define ABI_ANY_SOURCE (-2)
#define ABI_ANY_TAG (-1)
#define ABI_PROC_NULL (-1)
#define ABI_UNDEFINED (-32766)
#define ABI_TAG_UB 0x64400001
#define ABI_THREADS                                                                                                    \
    { 0, 1, 2, 3 }

#define VALUE(member, value) {offsetof(struct mpi, member), (uintptr_t)(value), NULL},
#define ABI_CONSTANTS                                                                                                  \
    VALUE(comm_world, 0x44000000)                                                                                      \
    VALUE(comm_null, 0x04000000)                                                                                       \
    VALUE(request_null, 0x2c000000)                                                                                    \
    VALUE(message_null, 0x2c000000)                                                                                    \
    VALUE(errors_return, 0x54000001)                                                                                   \
    VALUE(byte, 0x4c00010d)                                                                                            \
    VALUE(types[MUSTER_INT8], 0x4c000137)                                                                              \
    VALUE(types[MUSTER_INT16], 0x4c000238)                                                                             \
    VALUE(types[MUSTER_INT32], 0x4c000439)                                                                             \
    VALUE(types[MUSTER_INT64], 0x4c00083a)                                                                             \
    VALUE(types[MUSTER_UINT8], 0x4c00013b)                                                                             \
    VALUE(types[MUSTER_UINT16], 0x4c00023c)                                                                            \
    VALUE(types[MUSTER_UINT32], 0x4c00043d)                                                                            \
    VALUE(types[MUSTER_UINT64], 0x4c00083e)                                                                            \
    VALUE(types[MUSTER_FLOAT32], 0x4c00040a)                                                                           \
    VALUE(types[MUSTER_FLOAT64], 0x4c00080b)                                                                           \
    VALUE(ops[MUSTER_OP_MAX], 0x58000001)                                                                              \
    VALUE(ops[MUSTER_OP_MIN], 0x58000002)                                                                              \
    VALUE(ops[MUSTER_OP_SUM], 0x58000003)                                                                              \
    VALUE(ops[MUSTER_OP_PRODUCT], 0x58000004)                                                                          \
    VALUE(ops[MUSTER_OP_BIT_AND], 0x58000006)                                                                          \
    VALUE(ops[MUSTER_OP_BIT_OR], 0x58000008)                                                                           \
    VALUE(ops[MUSTER_OP_BIT_XOR], 0x5800000a)

enum {
    ABI_ERR_BUFFER = 1,
    ABI_ERR_COUNT = 2,
    ABI_ERR_TYPE = 3,
    ABI_ERR_TAG = 4,
    ABI_ERR_COMM = 5,
    ABI_ERR_RANK = 6,
    ABI_ERR_ROOT = 7,
    ABI_ERR_GROUP = 8,
    ABI_ERR_OP = 9,
    ABI_ERR_ARG = 12,
    ABI_ERR_TRUNCATE = 14,
    ABI_ERR_REQUEST = 19,
    ABI_ERR_NO_MEM = 34,
    ABI_ERR_PROC_ABORTED = 76, /* since MPICH 4 */
};
/* MPIX_ERR_PROC_FAILED and so on: MPICH_ERR_FIRST_MPIX is 100. */
#define ABI_ERR_PROC_FAILED 101
#define ABI_ERR_PROC_FAILED_PENDING 102
#define ABI_ERR_REVOKED 103

#include "comm/mpi/mpi_shim_template.h"
