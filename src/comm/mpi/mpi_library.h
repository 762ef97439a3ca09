/* An MPI library that is opened at run time: Muster needs no MPI to be built or started, and takes the one that is
 * there. Open MPI, the family of MPICH and the standard ABI of MPI 5 have other handles and other constants. A shim of
 * each (mpi_shim_template.h) makes one interface of them. What is done with it is left to the engine above.
 *
 * Calls are MPI's, named after it, and mean what the MPI standard says; without a word here they are subject to its
 * rules on buffers, order and threads. Each gets the library first: `mpi->calls->barrier(mpi, comm)`. Each returns 0 or
 * an error code of the library, for mpi_fail(). They write to their out-parameters on success alone. */
#ifndef COMM_MPI_MPI_LIBRARY_H
#define COMM_MPI_MPI_LIBRARY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <muster/types.h>

/* A communicator, request, type, operation or message, in the library's own bits (int or pointer). Never copy bits from
 * one library to another. */
typedef uintptr_t mpi_handle;

enum mpi_abi { MPI_ABI_OPEN_MPI, MPI_ABI_MPICH, MPI_ABI_STANDARD };

/* Returned instead of the library's code, without having called it: the count does not fit an int, and the library has
 * no large counts (MPI 4). Split the call. */
#define MPI_TOO_LONG (-1)

/* How many threads may be in MPI; of MPI_Init_thread(). */
enum mpi_threads { MPI_THREADS_SINGLE, MPI_THREADS_FUNNELED, MPI_THREADS_SERIALIZED, MPI_THREADS_MULTIPLE };

/* What an error code means, as far as anything follows from it. */
enum mpi_error {
    MPI_ERROR_NONE,
    MPI_ERROR_TRUNCATED,   /* a message is longer than the buffer */
    MPI_ERROR_ARGUMENT,    /* buffer, count, type, tag, rank, ...: a mistake of ours */
    MPI_ERROR_MEMORY,      /* the library has no more memory */
    MPI_ERROR_PEER_FAILED, /* a process of the communicator is gone (Open MPI 5 and MPICH tell) */
    MPI_ERROR_TOO_LONG,    /* MPI_TOO_LONG */
    MPI_ERROR_OTHER
};

/* Of a message that has been found or received. */
struct mpi_status {
    int source, tag;
    int error; /* what the call has returned */
    bool is_canceled;
    int64_t count_bytes;
};

/* Counts and offsets of a call with one block a rank ("v"), in both widths. mpi_blocks_make() fills it in; it must live
 * until the call has ended, since MPI reads the arrays of nonblocking calls until then. */
struct mpi_blocks {
    int *counts, *offsets; /* NULL: one does not fit an int */
    int64_t *large_counts;
    intptr_t *large_offsets;
};

/* count[i] elements at offsets[i], of `n` ranks; offsets NULL: one behind the other. Copies. mpi_blocks_done() frees
 * what it holds, and accepts an all-zero struct.
 * MUSTER_ENOMEM; MUSTER_EINVAL: the sum of counts is more than 2^63 - 1. *out is empty then. */
int mpi_blocks_make(struct mpi_blocks *out, const size_t counts[], const size_t offsets[], uint32_t n);
void mpi_blocks_done(struct mpi_blocks *blocks);

/* A reduction of ours: inout[i] = in[i] op inout[i] for *count elements. `type`: a pointer to the library's type, not
 * to be used. In calls with an operation of ours `count` must fit an int, whatever the library has. */
typedef void mpi_function(void *in, void *inout, int *count, void *type);

struct mpi;

struct mpi_calls {
    /* These two may be called at any time, before init and after finalize, from any thread. */
    int (*initialized)(const struct mpi *mpi, bool *out);
    int (*finalized)(const struct mpi *mpi, bool *out);
    int (*init_thread)(const struct mpi *mpi, enum mpi_threads required, enum mpi_threads *out_provided);
    int (*query_thread)(const struct mpi *mpi, enum mpi_threads *out_provided);
    int (*finalize)(const struct mpi *mpi);
    /* Writes MPI's words for an error code, cut at `size`. Works for MPI_TOO_LONG, too. */
    int (*error_string)(const struct mpi *mpi, int error, char *text, size_t size);
    enum mpi_error (*error_class)(const struct mpi *mpi, int error);

    int (*comm_rank)(const struct mpi *mpi, mpi_handle comm, int *out);
    int (*comm_size)(const struct mpi *mpi, mpi_handle comm, int *out);
    int (*comm_dup)(const struct mpi *mpi, mpi_handle comm, mpi_handle *out);
    /* color: mpi->undefined for a rank without a part, which gets comm_null. */
    int (*comm_split)(const struct mpi *mpi, mpi_handle comm, int color, int key, mpi_handle *out);
    /* Of `n` ranks of `comm`, in that order; collective over these alone, which all give the same `tag`. */
    int (*comm_create_group)(const struct mpi *mpi, mpi_handle comm, const int ranks[], int n, int tag,
                             mpi_handle *out);
    int (*comm_free)(const struct mpi *mpi, mpi_handle *comm); /* becomes comm_null */
    /* Errors of calls on `comm` are returned from now on. (MPI's default ends the process.) */
    int (*comm_set_errors_return)(const struct mpi *mpi, mpi_handle comm);
    int (*comm_tag_ub)(const struct mpi *mpi, mpi_handle comm, int *out); /* the highest tag, at least 32767 */

    /* Is the request done? Then it becomes request_null. out_status: NULL, or filled in once it is done; it means
     * something for messages alone. */
    int (*test)(const struct mpi *mpi, mpi_handle *request, bool *out_done, struct mpi_status *out_status);
    int (*cancel)(const struct mpi *mpi, mpi_handle *request);
    int (*request_free)(const struct mpi *mpi, mpi_handle *request);
    int (*isend)(const struct mpi *mpi, const void *buffer, int64_t count, mpi_handle type, int to, int tag,
                 mpi_handle comm, mpi_handle *out_request);
    int (*irecv)(const struct mpi *mpi, void *buffer, int64_t count, mpi_handle type, int from, int tag,
                 mpi_handle comm, mpi_handle *out_request);
    /* Is there a message of `from` (or any_source) with `tag` (or any_tag)? If so, it is taken out of the queue and
     * must be received with imrecv(), which makes *message a null handle. */
    int (*improbe)(const struct mpi *mpi, int from, int tag, mpi_handle comm, bool *out_found, mpi_handle *out_message,
                   struct mpi_status *out_status);
    int (*imrecv)(const struct mpi *mpi, void *buffer, int64_t count, mpi_handle type, mpi_handle *message,
                  mpi_handle *out_request);

    int (*type_contiguous)(const struct mpi *mpi, int64_t count, mpi_handle type, mpi_handle *out); /* and commits it */
    int (*type_free)(const struct mpi *mpi, mpi_handle *type);
    int (*op_create)(const struct mpi *mpi, mpi_function *function, bool is_commutative, mpi_handle *out);
    int (*op_free)(const struct mpi *mpi, mpi_handle *op);

    /* send may be mpi->in_place where MPI allows it. Where only the root's argument matters, others may give NULL. */
    int (*ibarrier)(const struct mpi *mpi, mpi_handle comm, mpi_handle *out_request);
    int (*ibcast)(const struct mpi *mpi, void *buffer, int64_t count, mpi_handle type, int root, mpi_handle comm,
                  mpi_handle *out_request);
    int (*iallreduce)(const struct mpi *mpi, const void *send, void *receive, int64_t count, mpi_handle type,
                      mpi_handle op, mpi_handle comm, mpi_handle *out_request);
    int (*ireduce)(const struct mpi *mpi, const void *send, void *receive, int64_t count, mpi_handle type,
                   mpi_handle op, int root, mpi_handle comm, mpi_handle *out_request);
    /* The count is that of one block, sent and received, of elements of `type`. */
    int (*iallgather)(const struct mpi *mpi, const void *send, void *receive, int64_t count, mpi_handle type,
                      mpi_handle comm, mpi_handle *out_request);
    int (*igather)(const struct mpi *mpi, const void *send, void *receive, int64_t count, mpi_handle type, int root,
                   mpi_handle comm, mpi_handle *out_request);
    /* At the root the receive buffer may be in_place, here and in iscatterv(). */
    int (*iscatter)(const struct mpi *mpi, const void *send, void *receive, int64_t count, mpi_handle type, int root,
                    mpi_handle comm, mpi_handle *out_request);
    int (*ialltoall)(const struct mpi *mpi, const void *send, void *receive, int64_t count, mpi_handle type,
                     mpi_handle comm, mpi_handle *out_request);
    /* send_count: of this rank. The blocks are those of all ranks. */
    int (*iallgatherv)(const struct mpi *mpi, const void *send, int64_t send_count, void *receive,
                       const struct mpi_blocks *blocks, mpi_handle type, mpi_handle comm, mpi_handle *out_request);
    int (*igatherv)(const struct mpi *mpi, const void *send, int64_t send_count, void *receive,
                    const struct mpi_blocks *blocks, mpi_handle type, int root, mpi_handle comm,
                    mpi_handle *out_request); /* blocks: of the root; NULL elsewhere */
    int (*iscatterv)(const struct mpi *mpi, const void *send, const struct mpi_blocks *blocks, void *receive,
                     int64_t receive_count, mpi_handle type, int root, mpi_handle comm, mpi_handle *out_request);
    int (*ialltoallv)(const struct mpi *mpi, const void *send, const struct mpi_blocks *send_blocks, void *receive,
                      const struct mpi_blocks *receive_blocks, mpi_handle type, mpi_handle comm,
                      mpi_handle *out_request); /* send in_place: send_blocks may be NULL */
    /* count: of one block. blocks: the counts alone matter. */
    int (*ireduce_scatter_block)(const struct mpi *mpi, const void *send, void *receive, int64_t count, mpi_handle type,
                                 mpi_handle op, mpi_handle comm, mpi_handle *out_request);
    int (*ireduce_scatter)(const struct mpi *mpi, const void *send, void *receive, const struct mpi_blocks *blocks,
                           mpi_handle type, mpi_handle op, mpi_handle comm, mpi_handle *out_request);
    int (*iscan)(const struct mpi *mpi, const void *send, void *receive, int64_t count, mpi_handle type, mpi_handle op,
                 mpi_handle comm, mpi_handle *out_request);
    int (*iexscan)(const struct mpi *mpi, const void *send, void *receive, int64_t count, mpi_handle type,
                   mpi_handle op, mpi_handle comm, mpi_handle *out_request); /* rank 0's receive is left as it is */

    /* These block. */
    int (*barrier)(const struct mpi *mpi, mpi_handle comm);
    int (*bcast)(const struct mpi *mpi, void *buffer, int64_t count, mpi_handle type, int root, mpi_handle comm);
    int (*allreduce)(const struct mpi *mpi, const void *send, void *receive, int64_t count, mpi_handle type,
                     mpi_handle op, mpi_handle comm);
};

#define MPI_VERSION_TEXT_MAX 128
#define MPI_PATH_MAX 512

struct mpi {
    const struct mpi_calls *calls;
    enum mpi_abi abi;
    const char *abi_name;               /* "Open MPI", "MPICH", "standard" */
    char path[MPI_PATH_MAX];            /* of the file that has it, a library or the program */
    char version[MPI_VERSION_TEXT_MAX]; /* as the library says: "Open MPI v4.1.4", "MPICH 4.0.2" */
    int major, minor;                   /* of the MPI standard that it follows, at least 3.0 */
    bool has_large_counts;              /* MPI 4's calls, with counts of 64 bits */

    int64_t short_count_max; /* up to here the calls with counts of int are taken: INT_MAX, less in tests */

    mpi_handle comm_world, comm_null, request_null, message_null;
    mpi_handle errors_return;               /* of comm_set_errors_return() */
    mpi_handle byte;                        /* the type of an untyped byte */
    mpi_handle types[MUSTER_TYPE_COUNT];    /* by enum muster_type; 0: MPI has none (float16, bfloat16) */
    mpi_handle ops[MUSTER_REDUCTION_COUNT]; /* by enum muster_reduction; 0: MPI has none (average) */
    void *in_place;                         /* instead of a buffer */
    int any_source, any_tag, proc_null, undefined;

    /* Of the shim and of who opens libraries. */
    const void *symbols; /* the functions of the library */
    void *library;       /* dlopen's; NULL: a part of the program */
};

/* Finds the MPI library, opens it and resolves all that the calls need; done once a process, later callers get the
 * same, or the same failure. MPI is not initialised by it. *out is the process's, for ever. Any thread.
 *
 * The first that is there decides: MUSTER_MPI_LIBRARY (a path, or a name for the loader), one that the program has
 * loaded already, one that fits who has started this process, the known names (mpi_find.h has the order).
 * MUSTER_ENOENT: there is none; MUSTER_EUNSUPPORTED: it cannot be used: too old, no MPI, not known, built for another
 * machine. The sentence says what to install or to set. Nothing of it is left loaded then. */
int mpi_open(struct mpi const **out);

/* Initialises MPI for as many threads as it grants, `needed` at least, unless the program has; *out_is_ours: it was
 * done here, and who calls this has to finalize. Not in two threads at a time. MUSTER_EUNSUPPORTED: it has been
 * finalized, or allows fewer threads than needed; what mpi_fail() returns. */
int mpi_begin(const struct mpi *mpi, enum mpi_threads needed, bool *out_is_ours);

/* Has MPI that type and that operation, and gives it Muster's results (muster/types.h)? Where it does not, use
 * op_create(). Pure. false for what MPI lacks, and where libraries in use have other results:
 * - the minimum and maximum of floats: MPI says nothing of NaNs;
 * - those of unsigned integers: MPICH 4.0 and Open MPI 4.1 compare them as signed ones in places;
 * - sums of integers of 8 and 16 bits in Open MPI with AVX (since 4.1): they stay at the highest number. */
bool mpi_reduces(const struct mpi *mpi, enum muster_type type, enum muster_reduction op);

/* Leaves the sentence "<what>: <MPI's words>" and returns a code: MUSTER_EPEER, MUSTER_ENOMEM, MUSTER_ELIMIT for a
 * count that is too long, MUSTER_EINVAL for an argument or a message that is longer than its buffer, MUSTER_ESYSTEM
 * else. `error` is not 0. */
int mpi_fail(const struct mpi *mpi, int error, const char *what);

#endif
