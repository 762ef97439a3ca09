/* Opens the MPI that mpi_open() finds, and checks every call with it; started by mpirun. Prints "done RANK of SIZE:
 * VERSION, ABI, large counts or not, PATH". Results that are wrong end it with exit code 1 and a sentence. See
 * mpi_check.h. */
#include "mpi_check.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/library.h"
#include "base/status.h"
#include "base/str.h"

enum { CODES = 60 }; /* all three ABIs have classes of errors up to here */

static int number_of(const char *name, const char *other) {
    const char *value = getenv(name);
    value = value ? value : getenv(other);
    int64_t number = -1;
    return value && str_parse_i64(value, &number) ? (int)number : -1;
}

static bool fits(enum mpi_error error, const char *words) {
    switch (error) {
    case MPI_ERROR_TRUNCATED:
        return strcasestr(words, "truncate");
    case MPI_ERROR_MEMORY:
        return strcasestr(words, "mem");
    case MPI_ERROR_ARGUMENT: /* MPICH 4.0's words for the one of requests are those of another */
        return strcasestr(words, "invalid") || strcasestr(words, "request");
    case MPI_ERROR_PEER_FAILED:
        return strcasestr(words, "proc") || strcasestr(words, "failure") || strcasestr(words, "revoked");
    default:
        return true;
    }
}

/* Those of failed peers that the library has words for. */
static void check_peer_errors(const struct check *check) {
    static const int open_mpi[] = {74, 75, 76, 77}, mpich[] = {76, 101, 102, 103};
    const int *codes = check->mpi->abi == MPI_ABI_OPEN_MPI ? open_mpi : mpich;
    bool has = check->mpi->abi == MPI_ABI_OPEN_MPI ? strstr(check->mpi->version, "v5") != NULL : check->mpi->major >= 5;
    if (check->mpi->abi == MPI_ABI_STANDARD) { /* PROC_ABORTED, the only one */
        check_that(check, CALL(error_class, 58) == MPI_ERROR_PEER_FAILED, "error 58 is not of a failed peer");
        return;
    }
    for (int i = 0; has && i < 4; i++) {
        char words[512] = "";
        check_works(check, CALL(error_string, codes[i], words, sizeof words), "error_string");
        check_that(check, CALL(error_class, codes[i]) == MPI_ERROR_PEER_FAILED && fits(MPI_ERROR_PEER_FAILED, words),
                   "error %d is not of a failed peer: %s", codes[i], words);
    }
}

/* Predefined error codes are their own class. Their words tell which they are; but for the library of the standard ABI
 * in MPICH 5.0, which has the words of MPICH's own numbers. */
static void check_errors(const struct check *check) {
    bool are_words_of_others = check->mpi->abi == MPI_ABI_STANDARD && strstr(check->mpi->version, "MPICH 5.0");
    int counts[MPI_ERROR_OTHER + 1] = {0};
    for (int code = 1; code <= CODES; code++) {
        char words[512] = "", short_words[8] = "";
        enum mpi_error error = CALL(error_class, code);
        counts[error]++;
        if (CALL(error_string, code, words, sizeof words) != 0) {
            continue;
        }
        check_that(check, are_words_of_others || fits(error, words), "error %d is of class %d: %s", code, (int)error,
                   words);
        check_works(check, CALL(error_string, code, short_words, sizeof short_words), "error_string");
        check_that(check, strlen(short_words) == 7 && strncmp(words, short_words, 7) == 0, "cut: %s", short_words);
    }
    check_that(check,
               counts[MPI_ERROR_TRUNCATED] == 1 && counts[MPI_ERROR_MEMORY] == 1 && counts[MPI_ERROR_ARGUMENT] == 11,
               "%d codes of truncation, %d of memory, %d of arguments", counts[MPI_ERROR_TRUNCATED],
               counts[MPI_ERROR_MEMORY], counts[MPI_ERROR_ARGUMENT]);
    check_that(check, CALL(error_class, 0) == MPI_ERROR_NONE, "class of 0");
    check_peer_errors(check);
}

/* A rank that does not exist, a type that is none: the classes of their errors. */
static void check_mistakes(const struct check *check) {
    mpi_handle request = 0;
    char byte = 'x';
    const struct mpi *mpi = check->mpi;
    int wrong_rank = CALL(isend, &byte, 1, mpi->byte, check->size + 5, 0, check->comm, &request);
    int wrong_tag = CALL(isend, &byte, 1, mpi->byte, check->rank, -77, check->comm, &request);
    int wrong_root = CALL(ibcast, &byte, 1, mpi->byte, check->size + 5, check->comm, &request);
    check_that(check, CALL(error_class, wrong_rank) == MPI_ERROR_ARGUMENT, "wrong rank: %d", wrong_rank);
    check_that(check, CALL(error_class, wrong_tag) == MPI_ERROR_ARGUMENT, "wrong tag: %d", wrong_tag);
    check_that(check, CALL(error_class, wrong_root) == MPI_ERROR_ARGUMENT, "wrong root: %d", wrong_root);
    int wrong_count = CALL(isend, &byte, -1, mpi->byte, check->rank, 0, check->comm, &request);
    float number = 1, result = 0;
    int wrong_op =
        CALL(allreduce, &number, &result, 1, mpi->types[MUSTER_FLOAT32], mpi->ops[MUSTER_OP_BIT_AND], check->comm);
    check_that(check, CALL(error_class, wrong_count) == MPI_ERROR_ARGUMENT, "wrong count: %d", wrong_count);
    check_that(check, CALL(error_class, wrong_op) == MPI_ERROR_ARGUMENT, "wrong operation: %d", wrong_op);
    check_that(check, mpi_fail(mpi, wrong_rank, "MPI_Isend") == MUSTER_EINVAL, "code of a wrong rank");
}

/* MPI_Type_get_name(), which Muster has no use for. */
static int name_of_type(const struct mpi *mpi, mpi_handle type, char *name) {
    int (*of_int)(int, char *, int *) = NULL;
    int (*of_pointer)(void *, char *, int *) = NULL;
    void *scope = mpi->library ? mpi->library : RTLD_DEFAULT;
    int length = 0;
    if (!library_find(scope, "MPI_Type_get_name", &of_int, sizeof of_int) ||
        !library_find(scope, "MPI_Type_get_name", &of_pointer, sizeof of_pointer)) {
        return -1;
    }
    return mpi->abi == MPI_ABI_MPICH ? of_int((int)type, name, &length) : of_pointer((void *)type, name, &length);
}

/* By name: an unsigned type differs from the signed one in nothing else that could be relied on. */
static void check_type_names(const struct check *check) {
    static const char *const names[MUSTER_TYPE_COUNT] = {
        [MUSTER_INT8] = "MPI_INT8_T",     [MUSTER_UINT8] = "MPI_UINT8_T",   [MUSTER_INT16] = "MPI_INT16_T",
        [MUSTER_UINT16] = "MPI_UINT16_T", [MUSTER_INT32] = "MPI_INT32_T",   [MUSTER_UINT32] = "MPI_UINT32_T",
        [MUSTER_INT64] = "MPI_INT64_T",   [MUSTER_UINT64] = "MPI_UINT64_T", [MUSTER_FLOAT32] = "MPI_FLOAT",
        [MUSTER_FLOAT64] = "MPI_DOUBLE"};
    const struct mpi *mpi = check->mpi;
    for (int type = 0; type <= MUSTER_TYPE_COUNT; type++) { /* the last one: byte */
        const char *want = type < MUSTER_TYPE_COUNT ? names[type] : "MPI_BYTE";
        mpi_handle handle = type < MUSTER_TYPE_COUNT ? mpi->types[type] : mpi->byte;
        char name[1024] = "";
        if (want) {
            check_works(check, name_of_type(mpi, handle, name), "MPI_Type_get_name");
            check_that(check, strcmp(name, want) == 0, "%s is %s", want, name);
        }
    }
}

static void check_place(const struct check *check, mpi_handle comm, int rank, int size, const char *what) {
    int own_rank = -1, own_size = -1;
    check_works(check, CALL(comm_rank, comm, &own_rank), "comm_rank");
    check_works(check, CALL(comm_size, comm, &own_size), "comm_size");
    check_that(check, own_rank == rank && own_size == size, "%s: rank %d of %d, not %d of %d", what, own_rank, own_size,
               rank, size);
}

static void check_freed(const struct check *check, mpi_handle *comm, const char *what) {
    check_works(check, CALL(comm_free, comm), "comm_free");
    check_that(check, *comm == check->mpi->comm_null, "%s: comm_free left it", what);
}

/* All but rank 0, in reverse order: by splitting, which all take part in, and by a list, which only they do. */
static void check_communicators(const struct check *check) {
    mpi_handle part = 0, listed = 0;
    int ranks[16] = {0}, count = check->size - 1, highest = 0, got = 0;
    bool is_in = check->rank > 0;
    for (int i = 0; i < count; i++) {
        ranks[i] = check->size - 1 - i;
    }
    check_works(check, CALL(comm_split, check->comm, is_in ? 3 : check->mpi->undefined, -check->rank, &part),
                "comm_split");
    check_that(check, is_in == (part != check->mpi->comm_null), "comm_split: who has a part?");
    check_note(offsetof(struct mpi_calls, comm_create_group)); /* rank 0 is not asked */
    if (is_in) {
        check_works(check, CALL(comm_create_group, check->comm, ranks, count, 9, &listed), "comm_create_group");
        check_place(check, part, count - check->rank, count, "comm_split");
        check_place(check, listed, count - check->rank, count, "comm_create_group");
        check_works(check,
                    CALL(bcast, memcpy(&got, &check->rank, sizeof got), 1, check->mpi->types[MUSTER_INT32], 0, listed),
                    "bcast");
        check_that(check, got == check->size - 1, "comm_create_group: its first is %d", got);
        check_freed(check, &part, "comm_split");
        check_freed(check, &listed, "comm_create_group");
    }
    check_works(check, CALL(comm_tag_ub, check->comm, &highest), "comm_tag_ub");
    mpi_handle request = 0;
    struct mpi_status status = {.tag = -1};
    check_that(check, highest > 32767, "the highest tag is %d: no MPI in use has so few", highest);
    check_works(check, CALL(isend, NULL, 0, check->mpi->byte, check->rank, highest, check->comm, &request),
                "highest tag");
    check_works(check, CALL(request_free, &request), "request_free");
    check_works(check, CALL(irecv, NULL, 0, check->mpi->byte, check->rank, highest, check->comm, &request),
                "highest tag");
    check_wait(check, &request, "highest tag", &status);
    check_that(check, status.tag == highest, "highest tag: %d came", status.tag);
    check_that(check,
               highest == INT32_MAX ||
                   CALL(error_class, CALL(isend, NULL, 0, check->mpi->byte, check->rank, highest + 1, check->comm,
                                          &request)) == MPI_ERROR_ARGUMENT,
               "a tag above the highest, %d, is taken", highest);
}

/* From the first call to the end of MPI. */
static void begin(struct check *check, enum mpi_threads threads) {
    bool is_ours = false, is_again_ours = true, flag = true;
    enum mpi_threads provided = MPI_THREADS_SINGLE;
    check_works(check, CALL(initialized, &flag), "initialized");
    check_that(check, !flag, "initialized before the beginning");
    check_works(check, CALL(finalized, &flag), "finalized");
    check_that(check, !flag, "finalized before the beginning");
    check_note(offsetof(struct mpi_calls, init_thread)); /* by mpi_begin() */
    check_that(check, mpi_begin(check->mpi, threads, &is_ours) == 0, "begin: %s", muster_detail());
    check_that(check, mpi_begin(check->mpi, threads, &is_again_ours) == 0, "begin again: %s", muster_detail());
    check_that(check, is_ours && !is_again_ours, "who has begun?");
    check_works(check, CALL(initialized, &flag), "initialized");
    check_that(check, flag, "not initialized");
    check_works(check, CALL(query_thread, &provided), "query_thread");
    check_that(check, provided >= threads, "threads: %d, not %d", (int)provided, (int)threads);
    if (provided < MPI_THREADS_MULTIPLE) {
        check_that(check, mpi_begin(check->mpi, MPI_THREADS_MULTIPLE, &is_ours) == MUSTER_EUNSUPPORTED, "more threads");
    }
}

static void finish(const struct check *check) {
    bool flag = false, is_ours = false;
    check_note(offsetof(struct mpi_calls, finalize));
    check_works(check, check->mpi->calls->finalize(check->mpi), "finalize");
    check_works(check, CALL(finalized, &flag), "finalized");
    check_that(check, flag, "not finalized");
    check_that(check,
               mpi_begin(check->mpi, MPI_THREADS_SINGLE, &is_ours) == MUSTER_EUNSUPPORTED &&
                   strstr(muster_detail(), "has been finalized"),
               "begin after the end: %s", muster_detail());
}

static void check_all(struct check *check) {
    const struct mpi *mpi = check->mpi;
    struct mpi large = *mpi;
    check->rank = number_of("OMPI_COMM_WORLD_RANK", "PMI_RANK");
    check->size = number_of("OMPI_COMM_WORLD_SIZE", "PMI_SIZE");
    check_place(check, mpi->comm_world, check->rank, check->size, "world");
    check_works(check, CALL(comm_set_errors_return, mpi->comm_world), "comm_set_errors_return");
    check_works(check, CALL(comm_dup, mpi->comm_world, &check->comm), "comm_dup");
    check_that(check, check->comm != mpi->comm_world, "comm_dup is the same");
    check_works(check, CALL(comm_set_errors_return, check->comm), "comm_set_errors_return");
    check_type_names(check);
    check_errors(check);
    check_mistakes(check);
    check_communicators(check);
    check_messages(check);
    check_collectives(check);
    check_own_operations(check);
    check_long_counts(check);
    if (mpi->has_large_counts) {
        large.short_count_max = -1; /* the same by MPI 4's calls */
        check->mpi = &large;
        check_messages(check);
        check_collectives(check);
        check->mpi = mpi;
    }
    check_freed(check, &check->comm, "comm_dup");
}

int main(int argc, char **argv) {
    struct check check = {.rank = -1};
    int64_t threads = MPI_THREADS_SERIALIZED;
    const struct mpi *again = NULL;
    if (argc > 1 && (!str_parse_i64(argv[1], &threads) || threads < 0 || threads > MPI_THREADS_MULTIPLE)) {
        printf("usage: mpi_check [0 ... 3, the level of threads]\n");
        return 2;
    }
    if (mpi_open(&check.mpi) != 0) {
        printf("failed: %s\n", muster_detail());
        return 1;
    }
    const struct mpi *mpi = check.mpi;
    check_that(&check, mpi_open(&again) == 0 && again == mpi, "opened twice");
    begin(&check, (enum mpi_threads)threads);
    check_all(&check);
    finish(&check);
    check_all_noted();
    printf("done %d of %d: %s, %s, MPI %d.%d, %s, %s\n", check.rank, check.size, mpi->version, mpi->abi_name,
           mpi->major, mpi->minor, mpi->has_large_counts ? "large counts" : "no large counts", mpi->path);
    return 0;
}
