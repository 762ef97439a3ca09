/* All other functions of the double of an MPI library (mpi_double_test_support.c): whatever the arguments, they do
 * nothing, successfully. Weak: that file's come first. */
#include "comm/mpi/mpi_symbols.h"

#define FUNCTION(name, arguments)                                                                                      \
    __attribute__((weak, visibility("default"))) int MPI_##name(void);                                                 \
    int MPI_##name(void) {                                                                                             \
        return 0;                                                                                                      \
    }
MPI_SYMBOLS(FUNCTION)
#ifndef DOUBLE_WITHOUT_LARGE_COUNTS
MPI_LARGE_SYMBOLS(FUNCTION)
#endif
