/* The functions that Muster takes from an MPI library, with their prototypes in the MPI standard. All three ABIs have
 * them; what the names abi_* mean is up to the file that expands the lists: X(name without MPI_, arguments). */
#ifndef COMM_MPI_MPI_SYMBOLS_H
#define COMM_MPI_MPI_SYMBOLS_H

/* Since MPI 3.0. */
#define MPI_SYMBOLS(X)                                                                                                 \
    X(Initialized, (int *flag))                                                                                        \
    X(Finalized, (int *flag))                                                                                          \
    X(Init_thread, (int *argc, char ***argv, int required, int *provided))                                             \
    X(Query_thread, (int *provided))                                                                                   \
    X(Finalize, (void))                                                                                                \
    X(Error_string, (int code, char *text, int *length))                                                               \
    X(Error_class, (int code, int *error_class))                                                                       \
    X(Comm_rank, (abi_comm comm, int *rank))                                                                           \
    X(Comm_size, (abi_comm comm, int *size))                                                                           \
    X(Comm_dup, (abi_comm comm, abi_comm * out))                                                                       \
    X(Comm_split, (abi_comm comm, int color, int key, abi_comm *out))                                                  \
    X(Comm_group, (abi_comm comm, abi_group * out))                                                                    \
    X(Group_incl, (abi_group group, int n, const int ranks[], abi_group *out))                                         \
    X(Group_free, (abi_group * group))                                                                                 \
    X(Comm_create_group, (abi_comm comm, abi_group group, int tag, abi_comm *out))                                     \
    X(Comm_free, (abi_comm * comm))                                                                                    \
    X(Comm_set_errhandler, (abi_comm comm, abi_errhandler handler))                                                    \
    X(Comm_get_attr, (abi_comm comm, int key, void *out_pointer, int *flag))                                           \
    X(Test, (abi_request * request, int *flag, struct abi_status *status))                                             \
    X(Test_cancelled, (const struct abi_status *status, int *flag))                                                    \
    X(Get_elements_x, (const struct abi_status *status, abi_type type, int64_t *count))                                \
    X(Cancel, (abi_request * request))                                                                                 \
    X(Request_free, (abi_request * request))                                                                           \
    X(Isend, (const void *buffer, int count, abi_type type, int to, int tag, abi_comm comm, abi_request *request))     \
    X(Irecv, (void *buffer, int count, abi_type type, int from, int tag, abi_comm comm, abi_request *request))         \
    X(Improbe, (int from, int tag, abi_comm comm, int *flag, abi_message *message, struct abi_status *status))         \
    X(Imrecv, (void *buffer, int count, abi_type type, abi_message *message, abi_request *request))                    \
    X(Type_contiguous, (int count, abi_type type, abi_type *out))                                                      \
    X(Type_commit, (abi_type * type))                                                                                  \
    X(Type_free, (abi_type * type))                                                                                    \
    X(Op_create, (mpi_function * function, int is_commutative, abi_op *out))                                           \
    X(Op_free, (abi_op * op))                                                                                          \
    X(Ibarrier, (abi_comm comm, abi_request * request))                                                                \
    X(Ibcast, (void *buffer, int count, abi_type type, int root, abi_comm comm, abi_request *request))                 \
    X(Iallreduce,                                                                                                      \
      (const void *send, void *receive, int count, abi_type type, abi_op op, abi_comm comm, abi_request *request))     \
    X(Ireduce, (const void *send, void *receive, int count, abi_type type, abi_op op, int root, abi_comm comm,         \
                abi_request *request))                                                                                 \
    X(Iallgather, (const void *send, int send_count, abi_type send_type, void *receive, int receive_count,             \
                   abi_type receive_type, abi_comm comm, abi_request *request))                                        \
    X(Igather, (const void *send, int send_count, abi_type send_type, void *receive, int receive_count,                \
                abi_type receive_type, int root, abi_comm comm, abi_request *request))                                 \
    X(Iscatter, (const void *send, int send_count, abi_type send_type, void *receive, int receive_count,               \
                 abi_type receive_type, int root, abi_comm comm, abi_request *request))                                \
    X(Ialltoall, (const void *send, int send_count, abi_type send_type, void *receive, int receive_count,              \
                  abi_type receive_type, abi_comm comm, abi_request *request))                                         \
    X(Iallgatherv, (const void *send, int send_count, abi_type send_type, void *receive, const int counts[],           \
                    const int offsets[], abi_type receive_type, abi_comm comm, abi_request *request))                  \
    X(Igatherv, (const void *send, int send_count, abi_type send_type, void *receive, const int counts[],              \
                 const int offsets[], abi_type receive_type, int root, abi_comm comm, abi_request *request))           \
    X(Iscatterv, (const void *send, const int counts[], const int offsets[], abi_type send_type, void *receive,        \
                  int receive_count, abi_type receive_type, int root, abi_comm comm, abi_request *request))            \
    X(Ialltoallv, (const void *send, const int send_counts[], const int send_offsets[], abi_type send_type,            \
                   void *receive, const int receive_counts[], const int receive_offsets[], abi_type receive_type,      \
                   abi_comm comm, abi_request *request))                                                               \
    X(Ireduce_scatter_block,                                                                                           \
      (const void *send, void *receive, int count, abi_type type, abi_op op, abi_comm comm, abi_request *request))     \
    X(Ireduce_scatter, (const void *send, void *receive, const int counts[], abi_type type, abi_op op, abi_comm comm,  \
                        abi_request *request))                                                                         \
    X(Iscan,                                                                                                           \
      (const void *send, void *receive, int count, abi_type type, abi_op op, abi_comm comm, abi_request *request))     \
    X(Iexscan,                                                                                                         \
      (const void *send, void *receive, int count, abi_type type, abi_op op, abi_comm comm, abi_request *request))     \
    X(Barrier, (abi_comm comm))                                                                                        \
    X(Bcast, (void *buffer, int count, abi_type type, int root, abi_comm comm))                                        \
    X(Allreduce, (const void *send, void *receive, int count, abi_type type, abi_op op, abi_comm comm))

/* Since MPI 4.0: the same with counts of 64 bits. MPI_Count is int64_t, MPI_Aint intptr_t, in all three. */
#define MPI_LARGE_SYMBOLS(X)                                                                                           \
    X(Isend_c,                                                                                                         \
      (const void *buffer, int64_t count, abi_type type, int to, int tag, abi_comm comm, abi_request *request))        \
    X(Irecv_c, (void *buffer, int64_t count, abi_type type, int from, int tag, abi_comm comm, abi_request *request))   \
    X(Imrecv_c, (void *buffer, int64_t count, abi_type type, abi_message *message, abi_request *request))              \
    X(Type_contiguous_c, (int64_t count, abi_type type, abi_type * out))                                               \
    X(Ibcast_c, (void *buffer, int64_t count, abi_type type, int root, abi_comm comm, abi_request *request))           \
    X(Iallreduce_c,                                                                                                    \
      (const void *send, void *receive, int64_t count, abi_type type, abi_op op, abi_comm comm, abi_request *request)) \
    X(Ireduce_c, (const void *send, void *receive, int64_t count, abi_type type, abi_op op, int root, abi_comm comm,   \
                  abi_request *request))                                                                               \
    X(Iallgather_c, (const void *send, int64_t send_count, abi_type send_type, void *receive, int64_t receive_count,   \
                     abi_type receive_type, abi_comm comm, abi_request *request))                                      \
    X(Igather_c, (const void *send, int64_t send_count, abi_type send_type, void *receive, int64_t receive_count,      \
                  abi_type receive_type, int root, abi_comm comm, abi_request *request))                               \
    X(Iscatter_c, (const void *send, int64_t send_count, abi_type send_type, void *receive, int64_t receive_count,     \
                   abi_type receive_type, int root, abi_comm comm, abi_request *request))                              \
    X(Ialltoall_c, (const void *send, int64_t send_count, abi_type send_type, void *receive, int64_t receive_count,    \
                    abi_type receive_type, abi_comm comm, abi_request *request))                                       \
    X(Iallgatherv_c, (const void *send, int64_t send_count, abi_type send_type, void *receive, const int64_t counts[], \
                      const intptr_t offsets[], abi_type receive_type, abi_comm comm, abi_request *request))           \
    X(Igatherv_c, (const void *send, int64_t send_count, abi_type send_type, void *receive, const int64_t counts[],    \
                   const intptr_t offsets[], abi_type receive_type, int root, abi_comm comm, abi_request *request))    \
    X(Iscatterv_c,                                                                                                     \
      (const void *send, const int64_t counts[], const intptr_t offsets[], abi_type send_type, void *receive,          \
       int64_t receive_count, abi_type receive_type, int root, abi_comm comm, abi_request *request))                   \
    X(Ialltoallv_c, (const void *send, const int64_t send_counts[], const intptr_t send_offsets[], abi_type send_type, \
                     void *receive, const int64_t receive_counts[], const intptr_t receive_offsets[],                  \
                     abi_type receive_type, abi_comm comm, abi_request *request))                                      \
    X(Ireduce_scatter_block_c,                                                                                         \
      (const void *send, void *receive, int64_t count, abi_type type, abi_op op, abi_comm comm, abi_request *request)) \
    X(Ireduce_scatter_c, (const void *send, void *receive, const int64_t counts[], abi_type type, abi_op op,           \
                          abi_comm comm, abi_request *request))                                                        \
    X(Iscan_c,                                                                                                         \
      (const void *send, void *receive, int64_t count, abi_type type, abi_op op, abi_comm comm, abi_request *request)) \
    X(Iexscan_c,                                                                                                       \
      (const void *send, void *receive, int64_t count, abi_type type, abi_op op, abi_comm comm, abi_request *request)) \
    X(Bcast_c, (void *buffer, int64_t count, abi_type type, int root, abi_comm comm))                                  \
    X(Allreduce_c, (const void *send, void *receive, int64_t count, abi_type type, abi_op op, abi_comm comm))

#endif
