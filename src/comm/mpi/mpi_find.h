/* Where an MPI library is looked for, and in which order. Pure: the environment is asked through a function. */
#ifndef COMM_MPI_MPI_FIND_H
#define COMM_MPI_MPI_FIND_H

#include <stddef.h>

enum mpi_place {
    MPI_PLACE_NAMED,  /* MUSTER_MPI_LIBRARY: this one or none */
    MPI_PLACE_IN_USE, /* what the program is linked with, or has loaded for all to see; no name */
    MPI_PLACE_LOADED, /* a file of that name, if it is loaded */
    MPI_PLACE_NAME    /* a file of that name, which the loader looks for */
};

struct mpi_candidate {
    enum mpi_place place;
    const char *name;
};

#define MPI_CANDIDATES_MAX 16

typedef const char *mpi_variable(void *context, const char *name);

/* Fills in `out` and returns how many there are. With MUSTER_MPI_LIBRARY only that one. Otherwise what is in the
 * process comes before files, and of these the family that fits who has started the process comes first: another one
 * would take it for the only process of its world. */
size_t mpi_find_order(mpi_variable *variable, void *context, struct mpi_candidate out[MPI_CANDIDATES_MAX]);

#endif
