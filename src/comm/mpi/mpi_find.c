/* The order of looking for MPI libraries; see mpi_find.h. */
#include "comm/mpi/mpi_find.h"

#include <assert.h>
#include <stdbool.h>

/* Names of the ABIs, not of versions: libmpi.so.40 is Open MPI's since 2.0, libmpi.so.12 that of MPICH's family since
 * 2014 (Debian builds it as libmpich.so.12), libmpi_abi.so.1 the standard's, which MPICH 5 has beside its own. The
 * plain name is often there for compilers alone. */
static const char *const open_mpi_first[] = {"libmpi.so.40", "libmpi_abi.so.1", "libmpi.so.12", "libmpich.so.12",
                                             "libmpi.so"};
static const char *const mpich_first[] = {"libmpi.so.12", "libmpich.so.12", "libmpi_abi.so.1", "libmpi.so.40",
                                          "libmpi.so"};
enum { NAMES = sizeof open_mpi_first / sizeof *open_mpi_first };

static bool has(mpi_variable *variable, void *context, const char *name) {
    const char *value = variable(context, name);
    return value && *value;
}

/* Open MPI's mpirun and Slurm with --mpi=pmix start processes that find each other by PMIx, MPICH's Hydra and Slurm
 * with --mpi=pmi2 those that do by PMI. */
static const char *const *names_by_starter(mpi_variable *variable, void *context) {
    if (has(variable, context, "OMPI_COMM_WORLD_RANK") || has(variable, context, "PMIX_RANK")) {
        return open_mpi_first;
    }
    bool is_pmi =
        has(variable, context, "PMI_RANK") || has(variable, context, "PMI_FD") || has(variable, context, "PMI_PORT");
    return is_pmi ? mpich_first : open_mpi_first;
}

size_t mpi_find_order(mpi_variable *variable, void *context, struct mpi_candidate out[MPI_CANDIDATES_MAX]) {
    static_assert(1 + 2 * NAMES <= MPI_CANDIDATES_MAX, "all fit");
    size_t count = 0;
    if (has(variable, context, "MUSTER_MPI_LIBRARY")) {
        out[count++] = (struct mpi_candidate){MPI_PLACE_NAMED, variable(context, "MUSTER_MPI_LIBRARY")};
        return count;
    }
    const char *const *names = names_by_starter(variable, context);
    out[count++] = (struct mpi_candidate){MPI_PLACE_IN_USE, NULL};
    for (size_t i = 0; i < NAMES; i++) {
        out[count++] = (struct mpi_candidate){MPI_PLACE_LOADED, names[i]};
    }
    for (size_t i = 0; i < NAMES; i++) {
        out[count++] = (struct mpi_candidate){MPI_PLACE_NAME, names[i]};
    }
    return count;
}
