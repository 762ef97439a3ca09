/* In the place of an MPI library, for tests of how one is opened and begun. Compiled several times as a library of its
 * own, each with another defect (CMakeLists.txt); a function is left out by -DMPI_Name=another. It communicates with
 * nobody. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifndef DOUBLE_MAJOR
#define DOUBLE_MAJOR 3
#define DOUBLE_MINOR 1
#endif
#ifndef DOUBLE_NAME
#define DOUBLE_NAME "MPICH Version:\t3.9.1\nMPICH Release date:\tnever"
#endif
#ifndef DOUBLE_INIT_ERROR
#define DOUBLE_INIT_ERROR 0
#endif
#ifndef DOUBLE_THREADS_MAX
#define DOUBLE_THREADS_MAX 3
#endif

#pragma GCC visibility push(default)

/* What tests look at. */
int double_is_initialized, double_is_finalized, double_threads;

#define FUNCTION(name, arguments)                                                                                      \
    int MPI_##name arguments;                                                                                          \
    int MPI_##name arguments

FUNCTION(Get_version, (int *version, int *subversion)) {
    *version = DOUBLE_MAJOR;
    *subversion = DOUBLE_MINOR;
    return 0;
}

FUNCTION(Get_library_version, (char *text, int *length)) {
    memcpy(text, DOUBLE_NAME, sizeof DOUBLE_NAME);
    *length = (int)strlen(text);
    return 0;
}

#ifdef DOUBLE_ABI_MAJOR
FUNCTION(Abi_get_version, (int *version, int *subversion)) {
    *version = *subversion = DOUBLE_ABI_MAJOR;
    return 0;
}
#endif

FUNCTION(Init_thread, (int *argc, char ***argv, int required, int *provided)) {
    (void)argc;
    (void)argv;
    double_is_initialized = DOUBLE_INIT_ERROR == 0;
    *provided = double_threads = required < DOUBLE_THREADS_MAX ? required : DOUBLE_THREADS_MAX;
    return DOUBLE_INIT_ERROR;
}

FUNCTION(Query_thread, (int *provided)) {
    *provided = double_threads;
    return 0;
}

FUNCTION(Initialized, (int *flag)) {
    *flag = double_is_initialized;
    return 0;
}

FUNCTION(Finalized, (int *flag)) {
    *flag = double_is_finalized;
    return 0;
}

FUNCTION(Finalize, (void)) {
    double_is_finalized = 1;
    return 0;
}

/* Codes are classes, and code 77 has no words. */
FUNCTION(Error_class, (int code, int *error_class)) {
    *error_class = code;
    return 0;
}

FUNCTION(Error_string, (int code, char *text, int *length)) {
    const char *words = code == 77 ? "" : "no network,\nnone at all";
    memcpy(text, words, strlen(words) + 1);
    *length = (int)strlen(words);
    return 0;
}

#ifdef DOUBLE_OPEN_MPI
#define VARIABLE(name) char ompi_##name[256];
VARIABLE(mpi_comm_world)
VARIABLE(mpi_comm_null)
VARIABLE(request_null)
VARIABLE(message_null)
VARIABLE(mpi_errors_return)
VARIABLE(mpi_byte)
VARIABLE(mpi_int8_t)
VARIABLE(mpi_int16_t)
VARIABLE(mpi_int32_t)
VARIABLE(mpi_int64_t)
VARIABLE(mpi_uint8_t)
VARIABLE(mpi_uint16_t)
VARIABLE(mpi_uint32_t)
VARIABLE(mpi_uint64_t)
VARIABLE(mpi_float)
VARIABLE(mpi_double)
VARIABLE(mpi_op_sum)
VARIABLE(mpi_op_prod)
VARIABLE(mpi_op_min)
VARIABLE(mpi_op_max)
VARIABLE(mpi_op_band)
VARIABLE(mpi_op_bor)
#if DOUBLE_OPEN_MPI > 1 /* the last one is missing without */
VARIABLE(mpi_op_bxor)
#endif
#endif

#pragma GCC visibility pop
