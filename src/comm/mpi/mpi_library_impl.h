/* Opening an MPI library in a given environment: mpi_open() for the tests. */
#ifndef COMM_MPI_MPI_LIBRARY_IMPL_H
#define COMM_MPI_MPI_LIBRARY_IMPL_H

#include "comm/mpi/mpi_find.h"
#include "comm/mpi/mpi_library.h"

/* As mpi_open() documents, each time anew: the first candidate that can be loaded decides. *out is the caller's. */
int mpi_library_open(const struct mpi_candidate candidates[], size_t count, struct mpi **out);

/* Closes and frees it. Not once MPI has been initialised: it has threads and exit handlers then. NULL is accepted. */
void mpi_library_close(struct mpi *mpi);

#endif
