/* Two mappings of one memory, as an agent and its MPI server have them; and memory that is too short. */
#include "agent/mpi/mpi_stages.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/status.h>

enum { WORKERS = 3 };

static void what_one_notes_the_other_finds(void **state) {
    (void)state;
    struct mpi_stages agent = {0}, server = {0};
    int fd = -1;
    assert_int_equal(mpi_stages_create(WORKERS, &agent, &fd), 0);
    assert_int_equal(mpi_stages_open(fd, WORKERS, &server), 0);
    (void)close(fd);
    mpi_stages_set(&server, 1, MPI_STAGE_INSIDE);
    mpi_stages_set(&server, 2, MPI_STAGE_FINALIZED);
    mpi_stages_done(&server); /* it may have died */
    assert_int_equal(mpi_stages_get(&agent, 0), MPI_STAGE_NONE);
    assert_int_equal(mpi_stages_get(&agent, 1), MPI_STAGE_INSIDE);
    assert_int_equal(mpi_stages_get(&agent, 2), MPI_STAGE_FINALIZED);
    mpi_stages_done(&agent);
    mpi_stages_done(&agent);
}

static void memory_that_is_too_short_is_refused(void **state) {
    (void)state;
    struct mpi_stages agent = {0}, server = {0};
    int fd = -1;
    assert_int_equal(mpi_stages_create(WORKERS, &agent, &fd), 0);
    assert_int_equal(mpi_stages_open(fd, WORKERS + 1, &server), MUSTER_EPROTOCOL);
    assert_int_equal(mpi_stages_open(-1, WORKERS, &server), MUSTER_ESYSTEM);
    assert_null(server.words);
    (void)close(fd);
    mpi_stages_done(&agent);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_one_notes_the_other_finds),
        cmocka_unit_test(memory_that_is_too_short_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
