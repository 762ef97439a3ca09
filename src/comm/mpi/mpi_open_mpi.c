/* The shim of Open MPI's ABI. Handles are pointers; the predefined ones are addresses of variables of the library. The
 * values below are those of Open MPI's mpi.h, read in 4.1.4 and 5.0.11, which agree. */
#include "comm/mpi/mpi_shim_impl.h"

typedef struct open_mpi_comm *abi_comm;
typedef struct open_mpi_group *abi_group;
typedef struct open_mpi_errhandler *abi_errhandler;
typedef struct open_mpi_request *abi_request;
typedef struct open_mpi_message *abi_message;
typedef struct open_mpi_type *abi_type;
typedef struct open_mpi_op *abi_op;

/* mpi.h: struct ompi_status_public_t. */
struct abi_status {
    int source, tag, error;
    int is_canceled;
    size_t count_bytes;
};

#define ABI_SHIM mpi_shim_open_mpi
#define ABI_KIND MPI_ABI_OPEN_MPI
#define ABI_NAME "Open MPI"
#define ABI_IN_PLACE ((void *)1)
#define ABI_ANY_SOURCE (-1)
#define ABI_ANY_TAG (-1)
#define ABI_PROC_NULL (-2)
#define ABI_UNDEFINED (-32766)
#define ABI_TAG_UB 0 /* the first of the enumeration of predefined attributes */
#define ABI_THREADS                                                                                                    \
    { 0, 1, 2, 3 }

#define ADDRESS(member, name) {offsetof(struct mpi, member), 0, "ompi_" name},
#define ABI_CONSTANTS                                                                                                  \
    ADDRESS(comm_world, "mpi_comm_world")                                                                              \
    ADDRESS(comm_null, "mpi_comm_null")                                                                                \
    ADDRESS(request_null, "request_null")                                                                              \
    ADDRESS(message_null, "message_null")                                                                              \
    ADDRESS(errors_return, "mpi_errors_return")                                                                        \
    ADDRESS(byte, "mpi_byte")                                                                                          \
    ADDRESS(types[MUSTER_INT8], "mpi_int8_t")                                                                          \
    ADDRESS(types[MUSTER_INT16], "mpi_int16_t")                                                                        \
    ADDRESS(types[MUSTER_INT32], "mpi_int32_t")                                                                        \
    ADDRESS(types[MUSTER_INT64], "mpi_int64_t")                                                                        \
    ADDRESS(types[MUSTER_UINT8], "mpi_uint8_t")                                                                        \
    ADDRESS(types[MUSTER_UINT16], "mpi_uint16_t")                                                                      \
    ADDRESS(types[MUSTER_UINT32], "mpi_uint32_t")                                                                      \
    ADDRESS(types[MUSTER_UINT64], "mpi_uint64_t")                                                                      \
    ADDRESS(types[MUSTER_FLOAT32], "mpi_float")                                                                        \
    ADDRESS(types[MUSTER_FLOAT64], "mpi_double")                                                                       \
    ADDRESS(ops[MUSTER_OP_SUM], "mpi_op_sum")                                                                          \
    ADDRESS(ops[MUSTER_OP_PRODUCT], "mpi_op_prod")                                                                     \
    ADDRESS(ops[MUSTER_OP_MIN], "mpi_op_min")                                                                          \
    ADDRESS(ops[MUSTER_OP_MAX], "mpi_op_max")                                                                          \
    ADDRESS(ops[MUSTER_OP_BIT_AND], "mpi_op_band")                                                                     \
    ADDRESS(ops[MUSTER_OP_BIT_OR], "mpi_op_bor")                                                                       \
    ADDRESS(ops[MUSTER_OP_BIT_XOR], "mpi_op_bxor")

enum {
    ABI_ERR_BUFFER = 1,
    ABI_ERR_COUNT = 2,
    ABI_ERR_TYPE = 3,
    ABI_ERR_TAG = 4,
    ABI_ERR_COMM = 5,
    ABI_ERR_RANK = 6,
    ABI_ERR_REQUEST = 7,
    ABI_ERR_ROOT = 8,
    ABI_ERR_GROUP = 9,
    ABI_ERR_OP = 10,
    ABI_ERR_ARG = 13,
    ABI_ERR_TRUNCATE = 15,
    ABI_ERR_NO_MEM = 39,
    ABI_ERR_PROC_ABORTED = 74, /* from here on since Open MPI 5 */
};
#define ABI_ERR_PROC_FAILED 75
#define ABI_ERR_PROC_FAILED_PENDING 76
#define ABI_ERR_REVOKED 77

#include "comm/mpi/mpi_shim_template.h"
