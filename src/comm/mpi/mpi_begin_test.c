/* MPI that begins, that does not, that has begun or ended before; and the codes and sentences of its errors. With
 * doubles of an MPI (mpi_double_test_support.c), in the folder MPI_DOUBLES. See mpi_library.h. */
#include <dlfcn.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/status.h"
#include "comm/mpi/mpi_library_impl.h"

#define DOUBLE(name) MPI_DOUBLES "/" name ".so"

static struct mpi *open_double(const char *path) {
    struct mpi_candidate candidate = {MPI_PLACE_NAMED, path};
    struct mpi *mpi = NULL;
    assert_int_equal(mpi_library_open(&candidate, 1, &mpi), 0);
    return mpi;
}

static int *variable(const struct mpi *mpi, const char *name) {
    int *found = dlsym(mpi->library, name);
    assert_non_null(found);
    return found;
}

static void what_has_not_begun_is_ours(void **state) {
    (void)state;
    struct mpi *mpi = open_double(DOUBLE("mpi_double_mpich"));
    bool is_ours = false;
    assert_int_equal(mpi_begin(mpi, MPI_THREADS_SERIALIZED, &is_ours), 0);
    assert_true(is_ours);
    assert_int_equal(*variable(mpi, "double_threads"), 3); /* more than what is needed */
    assert_int_equal(mpi_begin(mpi, MPI_THREADS_FUNNELED, &is_ours), 0);
    assert_false(is_ours);
    mpi_library_close(mpi);
}

static void levels_of_threads_are_translated(void **state) {
    (void)state;
    struct mpi *mpi = open_double(DOUBLE("mpi_double_standard"));
    bool is_ours = false;
    assert_int_equal(mpi_begin(mpi, MPI_THREADS_SERIALIZED, &is_ours), 0);
    assert_int_equal(*variable(mpi, "double_threads"), 4096);
    enum mpi_threads provided = MPI_THREADS_SINGLE;
    assert_int_equal(mpi->calls->query_thread(mpi, &provided), 0);
    assert_int_equal(provided, MPI_THREADS_MULTIPLE);
    mpi_library_close(mpi);
}

static void a_program_that_began_with_too_few_threads_is_told(void **state) {
    (void)state;
    struct mpi *mpi = open_double(DOUBLE("mpi_double_mpich"));
    bool is_ours = false;
    *variable(mpi, "double_is_initialized") = 1;
    *variable(mpi, "double_threads") = 1;
    assert_int_equal(mpi_begin(mpi, MPI_THREADS_SERIALIZED, &is_ours), MUSTER_EUNSUPPORTED);
    assert_string_equal(muster_detail(), "the program has initialised MPI (MPICH 3.9.1) with MPI_THREAD_FUNNELED, and "
                                         "MPI_THREAD_SERIALIZED is needed: let it call MPI_Init_thread with that");
    assert_int_equal(mpi_begin(mpi, MPI_THREADS_FUNNELED, &is_ours), 0);
    mpi_library_close(mpi);
}

static void what_has_ended_does_not_begin_again(void **state) {
    (void)state;
    struct mpi *mpi = open_double(DOUBLE("mpi_double_mpich"));
    bool is_ours = false;
    *variable(mpi, "double_is_initialized") = 1;
    *variable(mpi, "double_is_finalized") = 1;
    assert_int_equal(mpi_begin(mpi, MPI_THREADS_SINGLE, &is_ours), MUSTER_EUNSUPPORTED);
    assert_non_null(strstr(muster_detail(), "MPI (MPICH 3.9.1) has been finalized in this process"));
    mpi_library_close(mpi);
}

static void what_cannot_begin_says_why(void **state) {
    (void)state;
    struct mpi *mpi = open_double(DOUBLE("mpi_double_init_fails"));
    bool is_ours = false;
    assert_int_equal(mpi_begin(mpi, MPI_THREADS_SINGLE, &is_ours), MUSTER_ESYSTEM);
    assert_string_equal(muster_detail(), "MPI_Init_thread: no network, none at all");
    assert_false(is_ours);
    mpi_library_close(mpi);
}

static void too_few_threads_are_refused(void **state) {
    (void)state;
    struct mpi *mpi = open_double(DOUBLE("mpi_double_single"));
    bool is_ours = false;
    assert_int_equal(mpi_begin(mpi, MPI_THREADS_MULTIPLE, &is_ours), MUSTER_EUNSUPPORTED);
    assert_non_null(
        strstr(muster_detail(), "MPICH 3.9.1 allows MPI_THREAD_SINGLE at most, and MPI_THREAD_MULTIPLE is"));
    assert_false(is_ours);
    assert_int_equal(*variable(mpi, "double_is_finalized"), 1); /* since nobody else will do it */
    mpi_library_close(mpi);
}

static void errors_have_codes_and_words(void **state) {
    (void)state;
    struct mpi *mpi = open_double(DOUBLE("mpi_double_mpich"));
    static const struct {
        int error, code;
    } cases[] = {{14, MUSTER_EINVAL}, {6, MUSTER_EINVAL},  {34, MUSTER_ENOMEM},  {76, MUSTER_EPEER},
                 {101, MUSTER_EPEER}, {103, MUSTER_EPEER}, {15, MUSTER_ESYSTEM}, {16, MUSTER_ESYSTEM}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(mpi_fail(mpi, cases[i].error, "MPI_Iallreduce"), cases[i].code);
        assert_string_equal(muster_detail(), "MPI_Iallreduce: no network, none at all");
    }
    assert_int_equal(mpi_fail(mpi, 77, "MPI_Test"), MUSTER_ESYSTEM);
    assert_string_equal(muster_detail(), "MPI_Test: error 77 of MPICH 3.9.1");
    assert_int_equal(mpi_fail(mpi, MPI_TOO_LONG, "MPI_Isend"), MUSTER_ELIMIT);
    assert_non_null(strstr(muster_detail(), "MPI_Isend: the count does not fit an int"));
    assert_int_equal(mpi->calls->error_class(mpi, 0), MPI_ERROR_NONE);
    mpi_library_close(mpi);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_has_not_begun_is_ours),
        cmocka_unit_test(levels_of_threads_are_translated),
        cmocka_unit_test(a_program_that_began_with_too_few_threads_is_told),
        cmocka_unit_test(what_has_ended_does_not_begin_again),
        cmocka_unit_test(what_cannot_begin_says_why),
        cmocka_unit_test(too_few_threads_are_refused),
        cmocka_unit_test(errors_have_codes_and_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
