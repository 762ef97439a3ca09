/* The shim of the standard ABI, which MPI 5.0 defines (chapter 20 and appendix A): handles are pointers to structs that
 * nobody has, the predefined ones small numbers. The values are also in the header that comes with MPICH 5.0.2,
 * mpi_abi.h. The standard has no classes of errors for failed processes but PROC_ABORTED. */
#include "comm/mpi/mpi_shim_impl.h"

typedef struct standard_comm *abi_comm;
typedef struct standard_group *abi_group;
typedef struct standard_errhandler *abi_errhandler;
typedef struct standard_request *abi_request;
typedef struct standard_message *abi_message;
typedef struct standard_type *abi_type;
typedef struct standard_op *abi_op;

/* MPI_Status */
struct abi_status {
    int source, tag, error;
    int internal[5];
};

#define ABI_SHIM mpi_shim_standard
#define ABI_KIND MPI_ABI_STANDARD
#define ABI_NAME "standard"
#define ABI_IN_PLACE ((void *)1)
#define ABI_ANY_SOURCE (-1)
#define ABI_ANY_TAG (-2)
#define ABI_PROC_NULL (-3)
#define ABI_UNDEFINED (-32766)
#define ABI_TAG_UB 501
#define ABI_THREADS                                                                                                    \
    { 0, 1024, 2048, 4096 }

#define VALUE(member, value) {offsetof(struct mpi, member), value, NULL},
#define ABI_CONSTANTS                                                                                                  \
    VALUE(comm_world, 0x101)                                                                                           \
    VALUE(comm_null, 0x100)                                                                                            \
    VALUE(request_null, 0x180)                                                                                         \
    VALUE(message_null, 0x128)                                                                                         \
    VALUE(errors_return, 0x143)                                                                                        \
    VALUE(byte, 0x247)                                                                                                 \
    VALUE(types[MUSTER_INT8], 0x240)                                                                                   \
    VALUE(types[MUSTER_UINT8], 0x241)                                                                                  \
    VALUE(types[MUSTER_INT16], 0x248)                                                                                  \
    VALUE(types[MUSTER_UINT16], 0x249)                                                                                 \
    VALUE(types[MUSTER_INT32], 0x250)                                                                                  \
    VALUE(types[MUSTER_UINT32], 0x251)                                                                                 \
    VALUE(types[MUSTER_INT64], 0x258)                                                                                  \
    VALUE(types[MUSTER_UINT64], 0x259)                                                                                 \
    VALUE(types[MUSTER_FLOAT32], 0x210)                                                                                \
    VALUE(types[MUSTER_FLOAT64], 0x214)                                                                                \
    VALUE(ops[MUSTER_OP_SUM], 0x21)                                                                                    \
    VALUE(ops[MUSTER_OP_MIN], 0x22)                                                                                    \
    VALUE(ops[MUSTER_OP_MAX], 0x23)                                                                                    \
    VALUE(ops[MUSTER_OP_PRODUCT], 0x24)                                                                                \
    VALUE(ops[MUSTER_OP_BIT_AND], 0x28)                                                                                \
    VALUE(ops[MUSTER_OP_BIT_OR], 0x29)                                                                                 \
    VALUE(ops[MUSTER_OP_BIT_XOR], 0x2a)

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
    ABI_ERR_PROC_ABORTED = 58
};

#include "comm/mpi/mpi_shim_template.h"
