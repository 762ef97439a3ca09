/* The shim of one ABI; included once by each of mpi_open_mpi.c, mpi_mpich.c and mpi_standard.c. They say what differs:
 *
 * - abi_comm, abi_group, abi_errhandler, abi_request, abi_message, abi_type, abi_op: what the ABI's handles are, ints
 * or pointers; each fits an mpi_handle and comes back from it unchanged;
 * - struct abi_status, with members source, tag and error among what else is in it;
 * - ABI_SHIM, ABI_KIND, ABI_NAME, ABI_CONSTANTS, ABI_IN_PLACE, ABI_ANY_SOURCE, ABI_ANY_TAG, ABI_PROC_NULL,
 * ABI_UNDEFINED, ABI_TAG_UB, ABI_THREADS (the four levels, ascending), and the error classes ABI_ERR_*.
 *
 * No include guard: each file has its own copy, all static. Without these definitions there is nothing in it. */
#include <string.h>

#include "base/str.h"
#include "comm/mpi/mpi_shim_impl.h"
#include "comm/mpi/mpi_symbols.h"

#ifdef ABI_SHIM

struct table {
#define MEMBER(name, arguments) int(*name) arguments; /* NOLINT(bugprone-macro-parentheses): a declaration */
    MPI_SYMBOLS(MEMBER)
    MPI_LARGE_SYMBOLS(MEMBER)
#undef MEMBER
};

#define NAMED(name, arguments) {"MPI_" #name, offsetof(struct table, name)},
static const struct mpi_symbol symbols[] = {MPI_SYMBOLS(NAMED){NULL, 0}};
static const struct mpi_symbol large_symbols[] = {MPI_LARGE_SYMBOLS(NAMED){NULL, 0}};
#undef NAMED

static inline const struct table *table_of(const struct mpi *mpi) {
    return mpi->symbols;
}

/* Calls MPI_<name> with those arguments, or MPI_<name>_c where `count` does not fit an int; in the arguments the count
 * is `n`, which has the type that the function wants. */
#define CALL_COUNTED(mpi, error, count, name, ...)                                                                     \
    do {                                                                                                               \
        if ((count) <= (mpi)->short_count_max) {                                                                       \
            const int n = (int)(count);                                                                                \
            (error) = table_of(mpi)->name(__VA_ARGS__);                                                                \
        } else if ((mpi)->has_large_counts) {                                                                          \
            const int64_t n = (count);                                                                                 \
            (error) = table_of(mpi)->name##_c(__VA_ARGS__);                                                            \
        } else {                                                                                                       \
            (error) = MPI_TOO_LONG;                                                                                    \
        }                                                                                                              \
    } while (0)

/* The same for a call that starts something: the body of a shim with `mpi` and `out_request`. */
#define START_COUNTED(count, name, ...)                                                                                \
    abi_request request = (abi_request)(mpi)->request_null;                                                            \
    int error;                                                                                                         \
    CALL_COUNTED(mpi, error, count, name, __VA_ARGS__, &request);                                                      \
    return give(error, (mpi_handle)request, out_request)

static inline int give(int error, mpi_handle handle, mpi_handle *out) {
    if (error == 0) {
        *out = handle;
    }
    return error;
}

/* The library, and what it says of an error. */

static int shim_initialized(const struct mpi *mpi, bool *out) {
    int flag = 0, error = table_of(mpi)->Initialized(&flag);
    *out = error == 0 ? flag != 0 : *out;
    return error;
}

static int shim_finalized(const struct mpi *mpi, bool *out) {
    int flag = 0, error = table_of(mpi)->Finalized(&flag);
    *out = error == 0 ? flag != 0 : *out;
    return error;
}

static const int thread_levels[] = ABI_THREADS;

static enum mpi_threads threads_of(int level) {
    int threads = MPI_THREADS_MULTIPLE;
    while (threads > MPI_THREADS_SINGLE && thread_levels[threads] > level) {
        threads--;
    }
    return (enum mpi_threads)threads;
}

static int shim_init_thread(const struct mpi *mpi, enum mpi_threads required, enum mpi_threads *out_provided) {
    int level = thread_levels[0];
    int error = table_of(mpi)->Init_thread(NULL, NULL, thread_levels[required], &level);
    *out_provided = error == 0 ? threads_of(level) : *out_provided;
    return error;
}

static int shim_query_thread(const struct mpi *mpi, enum mpi_threads *out_provided) {
    int level = thread_levels[0], error = table_of(mpi)->Query_thread(&level);
    *out_provided = error == 0 ? threads_of(level) : *out_provided;
    return error;
}

static int shim_finalize(const struct mpi *mpi) {
    return table_of(mpi)->Finalize();
}

static int shim_error_string(const struct mpi *mpi, int code, char *text, size_t size) {
    char words[1024] = "the count does not fit an int, and this MPI has no larger counts (MPI 4 has)"; /* 512 at most */
    int length = 0, error = code == MPI_TOO_LONG ? 0 : table_of(mpi)->Error_string(code, words, &length);
    if (error == 0) {
        str_format(text, size, "%s", words);
    }
    return error;
}

static enum mpi_error shim_error_class(const struct mpi *mpi, int code) {
    int error_class = 0;
    if (code == 0 || code == MPI_TOO_LONG) {
        return code == 0 ? MPI_ERROR_NONE : MPI_ERROR_TOO_LONG;
    }
    if (table_of(mpi)->Error_class(code, &error_class) != 0) {
        return MPI_ERROR_OTHER;
    }
    switch (error_class) {
    case ABI_ERR_TRUNCATE:
        return MPI_ERROR_TRUNCATED;
    case ABI_ERR_NO_MEM:
        return MPI_ERROR_MEMORY;
    case ABI_ERR_BUFFER:
    case ABI_ERR_COUNT:
    case ABI_ERR_TYPE:
    case ABI_ERR_TAG:
    case ABI_ERR_COMM:
    case ABI_ERR_RANK:
    case ABI_ERR_REQUEST:
    case ABI_ERR_ROOT:
    case ABI_ERR_GROUP:
    case ABI_ERR_OP:
    case ABI_ERR_ARG:
        return MPI_ERROR_ARGUMENT;
    case ABI_ERR_PROC_ABORTED:
#ifdef ABI_ERR_PROC_FAILED
    case ABI_ERR_PROC_FAILED:
    case ABI_ERR_PROC_FAILED_PENDING:
    case ABI_ERR_REVOKED:
#endif
        return MPI_ERROR_PEER_FAILED;
    default:
        return MPI_ERROR_OTHER;
    }
}

/* Communicators. */

static int shim_comm_rank(const struct mpi *mpi, mpi_handle comm, int *out) {
    return table_of(mpi)->Comm_rank((abi_comm)comm, out);
}

static int shim_comm_size(const struct mpi *mpi, mpi_handle comm, int *out) {
    return table_of(mpi)->Comm_size((abi_comm)comm, out);
}

static int shim_comm_dup(const struct mpi *mpi, mpi_handle comm, mpi_handle *out) {
    abi_comm copy = (abi_comm)mpi->comm_null;
    int error = table_of(mpi)->Comm_dup((abi_comm)comm, &copy);
    return give(error, (mpi_handle)copy, out);
}

static int shim_comm_split(const struct mpi *mpi, mpi_handle comm, int color, int key, mpi_handle *out) {
    abi_comm part = (abi_comm)mpi->comm_null;
    int error = table_of(mpi)->Comm_split((abi_comm)comm, color, key, &part);
    return give(error, (mpi_handle)part, out);
}

static int shim_comm_create_group(const struct mpi *mpi, mpi_handle comm, const int ranks[], int n, int tag,
                                  mpi_handle *out) {
    const struct table *table = table_of(mpi);
    abi_group all, some;
    abi_comm part = (abi_comm)mpi->comm_null;
    int error = table->Comm_group((abi_comm)comm, &all);
    if (error != 0) {
        return error;
    }
    error = table->Group_incl(all, n, ranks, &some);
    if (error == 0) {
        error = table->Comm_create_group((abi_comm)comm, some, tag, &part);
        error = give(error, (mpi_handle)part, out);
        table->Group_free(&some);
    }
    table->Group_free(&all);
    return error;
}

static int shim_comm_free(const struct mpi *mpi, mpi_handle *comm) {
    abi_comm own = (abi_comm)*comm;
    int error = table_of(mpi)->Comm_free(&own);
    *comm = (mpi_handle)own;
    return error;
}

static int shim_comm_set_errors_return(const struct mpi *mpi, mpi_handle comm) {
    return table_of(mpi)->Comm_set_errhandler((abi_comm)comm, (abi_errhandler)mpi->errors_return);
}

static int shim_comm_tag_ub(const struct mpi *mpi, mpi_handle comm, int *out) {
    int *highest = NULL, flag = 0;
    int error = table_of(mpi)->Comm_get_attr((abi_comm)comm, ABI_TAG_UB, &highest, &flag);
    if (error == 0) {
        *out = flag && highest ? *highest : 32767; /* what the standard promises at least */
    }
    return error;
}

/* Requests and messages. */

static int read_status(const struct mpi *mpi, const struct abi_status *status, struct mpi_status *out) {
    int64_t count = 0;
    int flag = 0, error = table_of(mpi)->Get_elements_x(status, (abi_type)mpi->byte, &count);
    if (error == 0) {
        error = table_of(mpi)->Test_cancelled(status, &flag);
    }
    if (error == 0) {
        *out = (struct mpi_status){
            .source = status->source, .tag = status->tag, .is_canceled = flag != 0, .count_bytes = count};
    }
    return error;
}

static int shim_test(const struct mpi *mpi, mpi_handle *request, bool *out_done, struct mpi_status *out_status) {
    abi_request own = (abi_request)*request;
    struct abi_status status;
    int flag = 0;
    memset(&status, 0, sizeof status);
    int error = table_of(mpi)->Test(&own, &flag, &status);
    *request = (mpi_handle)own;
    if (error == 0 && flag && out_status) {
        error = read_status(mpi, &status, out_status);
    }
    if (error == 0) {
        *out_done = flag != 0;
    }
    return error;
}

static int shim_cancel(const struct mpi *mpi, mpi_handle *request) {
    abi_request own = (abi_request)*request;
    int error = table_of(mpi)->Cancel(&own);
    *request = (mpi_handle)own;
    return error;
}

static int shim_request_free(const struct mpi *mpi, mpi_handle *request) {
    abi_request own = (abi_request)*request;
    int error = table_of(mpi)->Request_free(&own);
    *request = (mpi_handle)own;
    return error;
}

static int shim_isend(const struct mpi *mpi, const void *buffer, int64_t count, mpi_handle type, int to, int tag,
                      mpi_handle comm, mpi_handle *out_request) {
    START_COUNTED(count, Isend, buffer, n, (abi_type)type, to, tag, (abi_comm)comm);
}

static int shim_irecv(const struct mpi *mpi, void *buffer, int64_t count, mpi_handle type, int from, int tag,
                      mpi_handle comm, mpi_handle *out_request) {
    START_COUNTED(count, Irecv, buffer, n, (abi_type)type, from, tag, (abi_comm)comm);
}

static int shim_improbe(const struct mpi *mpi, int from, int tag, mpi_handle comm, bool *out_found,
                        mpi_handle *out_message, struct mpi_status *out_status) {
    abi_message message = (abi_message)mpi->message_null;
    struct abi_status status;
    int flag = 0;
    memset(&status, 0, sizeof status);
    int error = table_of(mpi)->Improbe(from, tag, (abi_comm)comm, &flag, &message, &status);
    if (error == 0 && flag) {
        *out_message = (mpi_handle)message;
        error = out_status ? read_status(mpi, &status, out_status) : 0;
    }
    if (error == 0) {
        *out_found = flag != 0;
    }
    return error;
}

static int shim_imrecv(const struct mpi *mpi, void *buffer, int64_t count, mpi_handle type, mpi_handle *message,
                       mpi_handle *out_request) {
    abi_message own = (abi_message)*message;
    abi_request request = (abi_request)mpi->request_null;
    int error;
    CALL_COUNTED(mpi, error, count, Imrecv, buffer, n, (abi_type)type, &own, &request);
    *message = (mpi_handle)own;
    return give(error, (mpi_handle)request, out_request);
}

/* Types and operations. */

static int shim_type_free(const struct mpi *mpi, mpi_handle *type) {
    abi_type own = (abi_type)*type;
    int error = table_of(mpi)->Type_free(&own);
    *type = (mpi_handle)own;
    return error;
}

static int shim_type_contiguous(const struct mpi *mpi, int64_t count, mpi_handle type, mpi_handle *out) {
    abi_type made = (abi_type)mpi->byte;
    int error;
    CALL_COUNTED(mpi, error, count, Type_contiguous, n, (abi_type)type, &made);
    if (error != 0) {
        return error;
    }
    error = table_of(mpi)->Type_commit(&made);
    if (error != 0) {
        table_of(mpi)->Type_free(&made);
    }
    return give(error, (mpi_handle)made, out);
}

static int shim_op_create(const struct mpi *mpi, mpi_function *function, bool is_commutative, mpi_handle *out) {
    abi_op op = (abi_op)mpi->ops[MUSTER_OP_SUM];
    int error = table_of(mpi)->Op_create(function, is_commutative, &op);
    return give(error, (mpi_handle)op, out);
}

static int shim_op_free(const struct mpi *mpi, mpi_handle *op) {
    abi_op own = (abi_op)*op;
    int error = table_of(mpi)->Op_free(&own);
    *op = (mpi_handle)own;
    return error;
}

/* Collectives of equal counts. */

static int shim_ibarrier(const struct mpi *mpi, mpi_handle comm, mpi_handle *out_request) {
    abi_request request = (abi_request)mpi->request_null;
    int error = table_of(mpi)->Ibarrier((abi_comm)comm, &request);
    return give(error, (mpi_handle)request, out_request);
}

static int shim_ibcast(const struct mpi *mpi, void *buffer, int64_t count, mpi_handle type, int root, mpi_handle comm,
                       mpi_handle *out_request) {
    START_COUNTED(count, Ibcast, buffer, n, (abi_type)type, root, (abi_comm)comm);
}

static int shim_iallreduce(const struct mpi *mpi, const void *send, void *receive, int64_t count, mpi_handle type,
                           mpi_handle op, mpi_handle comm, mpi_handle *out_request) {
    START_COUNTED(count, Iallreduce, send, receive, n, (abi_type)type, (abi_op)op, (abi_comm)comm);
}

/* NOLINTNEXTLINE(readability-function-size): as many arguments as MPI's */
static int shim_ireduce(const struct mpi *mpi, const void *send, void *receive, int64_t count, mpi_handle type,
                        mpi_handle op, int root, mpi_handle comm, mpi_handle *out_request) {
    START_COUNTED(count, Ireduce, send, receive, n, (abi_type)type, (abi_op)op, root, (abi_comm)comm);
}

static int shim_iallgather(const struct mpi *mpi, const void *send, void *receive, int64_t count, mpi_handle type,
                           mpi_handle comm, mpi_handle *out_request) {
    START_COUNTED(count, Iallgather, send, n, (abi_type)type, receive, n, (abi_type)type, (abi_comm)comm);
}

static int shim_igather(const struct mpi *mpi, const void *send, void *receive, int64_t count, mpi_handle type,
                        int root, mpi_handle comm, mpi_handle *out_request) {
    START_COUNTED(count, Igather, send, n, (abi_type)type, receive, n, (abi_type)type, root, (abi_comm)comm);
}

static int shim_iscatter(const struct mpi *mpi, const void *send, void *receive, int64_t count, mpi_handle type,
                         int root, mpi_handle comm, mpi_handle *out_request) {
    START_COUNTED(count, Iscatter, send, n, (abi_type)type, receive, n, (abi_type)type, root, (abi_comm)comm);
}

static int shim_ialltoall(const struct mpi *mpi, const void *send, void *receive, int64_t count, mpi_handle type,
                          mpi_handle comm, mpi_handle *out_request) {
    START_COUNTED(count, Ialltoall, send, n, (abi_type)type, receive, n, (abi_type)type, (abi_comm)comm);
}

static int shim_ireduce_scatter_block(const struct mpi *mpi, const void *send, void *receive, int64_t count,
                                      mpi_handle type, mpi_handle op, mpi_handle comm, mpi_handle *out_request) {
    START_COUNTED(count, Ireduce_scatter_block, send, receive, n, (abi_type)type, (abi_op)op, (abi_comm)comm);
}

static int shim_iscan(const struct mpi *mpi, const void *send, void *receive, int64_t count, mpi_handle type,
                      mpi_handle op, mpi_handle comm, mpi_handle *out_request) {
    START_COUNTED(count, Iscan, send, receive, n, (abi_type)type, (abi_op)op, (abi_comm)comm);
}

static int shim_iexscan(const struct mpi *mpi, const void *send, void *receive, int64_t count, mpi_handle type,
                        mpi_handle op, mpi_handle comm, mpi_handle *out_request) {
    START_COUNTED(count, Iexscan, send, receive, n, (abi_type)type, (abi_op)op, (abi_comm)comm);
}

/* Collectives of unequal counts. A rank that has no blocks gives none, and its own count decides. */

static const struct mpi_blocks no_blocks;

static inline bool is_short(const struct mpi *mpi, const struct mpi_blocks *blocks, int64_t count) {
    return count <= mpi->short_count_max && (blocks->counts || !blocks->large_counts);
}

static int shim_iallgatherv(const struct mpi *mpi, const void *send, int64_t send_count, void *receive,
                            const struct mpi_blocks *blocks, mpi_handle type, mpi_handle comm,
                            mpi_handle *out_request) {
    const struct table *table = table_of(mpi);
    abi_type own = (abi_type)type;
    abi_request request = (abi_request)mpi->request_null;
    int error = MPI_TOO_LONG;
    if (is_short(mpi, blocks, send_count)) {
        error = table->Iallgatherv(send, (int)send_count, own, receive, blocks->counts, blocks->offsets, own,
                                   (abi_comm)comm, &request);
    } else if (mpi->has_large_counts) {
        error = table->Iallgatherv_c(send, send_count, own, receive, blocks->large_counts, blocks->large_offsets, own,
                                     (abi_comm)comm, &request);
    }
    return give(error, (mpi_handle)request, out_request);
}

/* NOLINTNEXTLINE(readability-function-size): as many arguments as MPI's */
static int shim_igatherv(const struct mpi *mpi, const void *send, int64_t send_count, void *receive,
                         const struct mpi_blocks *blocks, mpi_handle type, int root, mpi_handle comm,
                         mpi_handle *out_request) {
    const struct table *table = table_of(mpi);
    const struct mpi_blocks *all = blocks ? blocks : &no_blocks;
    abi_type own = (abi_type)type;
    abi_request request = (abi_request)mpi->request_null;
    int error = MPI_TOO_LONG;
    if (is_short(mpi, all, send_count)) {
        error = table->Igatherv(send, (int)send_count, own, receive, all->counts, all->offsets, own, root,
                                (abi_comm)comm, &request);
    } else if (mpi->has_large_counts) {
        error = table->Igatherv_c(send, send_count, own, receive, all->large_counts, all->large_offsets, own, root,
                                  (abi_comm)comm, &request);
    }
    return give(error, (mpi_handle)request, out_request);
}

/* NOLINTNEXTLINE(readability-function-size): as many arguments as MPI's */
static int shim_iscatterv(const struct mpi *mpi, const void *send, const struct mpi_blocks *blocks, void *receive,
                          int64_t receive_count, mpi_handle type, int root, mpi_handle comm, mpi_handle *out_request) {
    const struct table *table = table_of(mpi);
    const struct mpi_blocks *all = blocks ? blocks : &no_blocks;
    abi_type own = (abi_type)type;
    abi_request request = (abi_request)mpi->request_null;
    int error = MPI_TOO_LONG;
    if (is_short(mpi, all, receive_count)) {
        error = table->Iscatterv(send, all->counts, all->offsets, own, receive, (int)receive_count, own, root,
                                 (abi_comm)comm, &request);
    } else if (mpi->has_large_counts) {
        error = table->Iscatterv_c(send, all->large_counts, all->large_offsets, own, receive, receive_count, own, root,
                                   (abi_comm)comm, &request);
    }
    return give(error, (mpi_handle)request, out_request);
}

static int shim_ialltoallv(const struct mpi *mpi, const void *send, const struct mpi_blocks *send_blocks, void *receive,
                           const struct mpi_blocks *receive_blocks, mpi_handle type, mpi_handle comm,
                           mpi_handle *out_request) {
    const struct table *table = table_of(mpi);
    const struct mpi_blocks *out = send_blocks ? send_blocks : &no_blocks, *in = receive_blocks;
    abi_type own = (abi_type)type;
    abi_request request = (abi_request)mpi->request_null;
    int error = MPI_TOO_LONG;
    if (is_short(mpi, out, 0) && is_short(mpi, in, 0)) {
        error = table->Ialltoallv(send, out->counts, out->offsets, own, receive, in->counts, in->offsets, own,
                                  (abi_comm)comm, &request);
    } else if (mpi->has_large_counts) {
        error = table->Ialltoallv_c(send, out->large_counts, out->large_offsets, own, receive, in->large_counts,
                                    in->large_offsets, own, (abi_comm)comm, &request);
    }
    return give(error, (mpi_handle)request, out_request);
}

static int shim_ireduce_scatter(const struct mpi *mpi, const void *send, void *receive, const struct mpi_blocks *blocks,
                                mpi_handle type, mpi_handle op, mpi_handle comm, mpi_handle *out_request) {
    const struct table *table = table_of(mpi);
    abi_request request = (abi_request)mpi->request_null;
    int error = MPI_TOO_LONG;
    if (is_short(mpi, blocks, 0)) {
        error =
            table->Ireduce_scatter(send, receive, blocks->counts, (abi_type)type, (abi_op)op, (abi_comm)comm, &request);
    } else if (mpi->has_large_counts) {
        error = table->Ireduce_scatter_c(send, receive, blocks->large_counts, (abi_type)type, (abi_op)op,
                                         (abi_comm)comm, &request);
    }
    return give(error, (mpi_handle)request, out_request);
}

/* What blocks. */

static int shim_barrier(const struct mpi *mpi, mpi_handle comm) {
    return table_of(mpi)->Barrier((abi_comm)comm);
}

static int shim_bcast(const struct mpi *mpi, void *buffer, int64_t count, mpi_handle type, int root, mpi_handle comm) {
    int error;
    CALL_COUNTED(mpi, error, count, Bcast, buffer, n, (abi_type)type, root, (abi_comm)comm);
    return error;
}

static int shim_allreduce(const struct mpi *mpi, const void *send, void *receive, int64_t count, mpi_handle type,
                          mpi_handle op, mpi_handle comm) {
    int error;
    CALL_COUNTED(mpi, error, count, Allreduce, send, receive, n, (abi_type)type, (abi_op)op, (abi_comm)comm);
    return error;
}

static const struct mpi_calls calls = {
    .initialized = shim_initialized,
    .finalized = shim_finalized,
    .init_thread = shim_init_thread,
    .query_thread = shim_query_thread,
    .finalize = shim_finalize,
    .error_string = shim_error_string,
    .error_class = shim_error_class,
    .comm_rank = shim_comm_rank,
    .comm_size = shim_comm_size,
    .comm_dup = shim_comm_dup,
    .comm_split = shim_comm_split,
    .comm_create_group = shim_comm_create_group,
    .comm_free = shim_comm_free,
    .comm_set_errors_return = shim_comm_set_errors_return,
    .comm_tag_ub = shim_comm_tag_ub,
    .test = shim_test,
    .cancel = shim_cancel,
    .request_free = shim_request_free,
    .isend = shim_isend,
    .irecv = shim_irecv,
    .improbe = shim_improbe,
    .imrecv = shim_imrecv,
    .type_contiguous = shim_type_contiguous,
    .type_free = shim_type_free,
    .op_create = shim_op_create,
    .op_free = shim_op_free,
    .ibarrier = shim_ibarrier,
    .ibcast = shim_ibcast,
    .iallreduce = shim_iallreduce,
    .ireduce = shim_ireduce,
    .iallgather = shim_iallgather,
    .igather = shim_igather,
    .iscatter = shim_iscatter,
    .ialltoall = shim_ialltoall,
    .iallgatherv = shim_iallgatherv,
    .igatherv = shim_igatherv,
    .iscatterv = shim_iscatterv,
    .ialltoallv = shim_ialltoallv,
    .ireduce_scatter_block = shim_ireduce_scatter_block,
    .ireduce_scatter = shim_ireduce_scatter,
    .iscan = shim_iscan,
    .iexscan = shim_iexscan,
    .barrier = shim_barrier,
    .bcast = shim_bcast,
    .allreduce = shim_allreduce,
};

static const struct mpi_constant constants[] = {ABI_CONSTANTS{0, 0, NULL}};

const struct mpi_shim ABI_SHIM = {
    .abi = ABI_KIND,
    .abi_name = ABI_NAME,
    .table_bytes = sizeof(struct table),
    .symbols = symbols,
    .large_symbols = large_symbols,
    .constants = constants,
    .in_place = ABI_IN_PLACE,
    .any_source = ABI_ANY_SOURCE,
    .any_tag = ABI_ANY_TAG,
    .proc_null = ABI_PROC_NULL,
    .undefined = ABI_UNDEFINED,
    .calls = &calls,
};

#endif
