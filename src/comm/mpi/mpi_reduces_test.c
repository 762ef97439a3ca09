/* Which reductions are left to MPI: all but those where MPI, or a library in use, has other results; see mpi_library.h.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "comm/mpi/mpi_library.h"

/* As all shims fill it in: no 16-bit floats, no average. */
static struct mpi library(enum mpi_abi abi) {
    struct mpi mpi = {.abi = abi};
    for (int type = 0; type < MUSTER_TYPE_COUNT; type++) {
        mpi.types[type] = type != MUSTER_FLOAT16 && type != MUSTER_BFLOAT16;
    }
    for (int op = 0; op < MUSTER_REDUCTION_COUNT; op++) {
        mpi.ops[op] = op != MUSTER_OP_AVERAGE;
    }
    return mpi;
}

/* One letter an operation, in the order of enum muster_reduction; '-' where Muster reduces itself. */
static void check(const struct mpi *mpi, enum muster_type type, const char *want) {
    char got[MUSTER_REDUCTION_COUNT + 1] = "spmMa&|^";
    for (int op = 0; op < MUSTER_REDUCTION_COUNT; op++) {
        got[op] = mpi_reduces(mpi, type, (enum muster_reduction)op) ? got[op] : '-';
    }
    assert_string_equal(got, want);
}

static void most_are_left_to_mpi(void **state) {
    (void)state;
    struct mpi mpich = library(MPI_ABI_MPICH), standard = library(MPI_ABI_STANDARD);
    check(&mpich, MUSTER_INT8, "spmM-&|^");
    check(&mpich, MUSTER_INT16, "spmM-&|^");
    check(&mpich, MUSTER_INT32, "spmM-&|^");
    check(&mpich, MUSTER_INT64, "spmM-&|^");
    check(&standard, MUSTER_INT8, "spmM-&|^");
    check(&standard, MUSTER_UINT8, "sp---&|^");
    check(&mpich, MUSTER_UINT16, "sp---&|^");
    check(&mpich, MUSTER_UINT32, "sp---&|^");
    check(&mpich, MUSTER_UINT64, "sp---&|^");
    check(&mpich, MUSTER_FLOAT32, "sp------");
    check(&mpich, MUSTER_FLOAT64, "sp------");
    check(&mpich, MUSTER_FLOAT16, "--------");
    check(&mpich, MUSTER_BFLOAT16, "--------");
}

static void short_sums_are_not_left_to_open_mpi(void **state) {
    (void)state;
    struct mpi mpi = library(MPI_ABI_OPEN_MPI);
    check(&mpi, MUSTER_INT8, "-pmM-&|^");
    check(&mpi, MUSTER_UINT8, "-p---&|^");
    check(&mpi, MUSTER_INT16, "-pmM-&|^");
    check(&mpi, MUSTER_UINT16, "-p---&|^");
    check(&mpi, MUSTER_INT32, "spmM-&|^");
    check(&mpi, MUSTER_UINT64, "sp---&|^");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(most_are_left_to_mpi),
        cmocka_unit_test(short_sums_are_not_left_to_open_mpi),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
