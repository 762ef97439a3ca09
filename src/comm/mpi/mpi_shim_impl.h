/* What a shim is to the one who opens libraries (mpi_library.c): the names to look for, and the constants of its ABI.
 */
#ifndef COMM_MPI_MPI_SHIM_IMPL_H
#define COMM_MPI_MPI_SHIM_IMPL_H

#include "comm/mpi/mpi_library.h"

/* A function of the library: where its address goes in the shim's table. */
struct mpi_symbol {
    const char *name;
    size_t offset;
};

/* A handle: where it goes in struct mpi. Its bits, or the symbol whose address it is. */
struct mpi_constant {
    size_t offset;
    uintptr_t value;
    const char *symbol; /* NULL: `value` */
};

struct mpi_shim {
    enum mpi_abi abi;
    const char *abi_name;
    size_t table_bytes;
    const struct mpi_symbol *symbols, *large_symbols; /* up to one without a name */
    const struct mpi_constant *constants;             /* up to one with offset 0 */
    void *in_place;
    int any_source, any_tag, proc_null, undefined;
    const struct mpi_calls *calls;
};

extern const struct mpi_shim mpi_shim_open_mpi, mpi_shim_mpich, mpi_shim_standard;

#endif
