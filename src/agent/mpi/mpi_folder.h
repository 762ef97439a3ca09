/* The folder of an MPI server: what PMIx and MPI's programs put into a file system, for one attempt. */
#ifndef AGENT_MPI_FOLDER_H
#define AGENT_MPI_FOLDER_H

#include <stddef.h>

/* Makes a new one among the temporary files, for this user alone; its path to `out`. MUSTER_ESYSTEM, MUSTER_ELIMIT. */
int mpi_folder_create(char *out, size_t size);

/* Removes it with all that is in it, as far as that goes; follows no link out of it. "" is fine, and one that is not
 * there. */
void mpi_folder_remove(const char *path);

#endif
