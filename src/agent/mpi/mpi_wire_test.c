/* What a worker is told: read as it was written, and refused where it was not. */
#include "agent/mpi/mpi_wire.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <muster/status.h>

static void variables_come_as_they_went(void **state) {
    (void)state;
    const char *const variables[] = {"PMI_RANK=3", "EMPTY=", "A=b=c"};
    struct mpi_worker_said said;
    struct buf body;
    buf_init(&body, MPI_WIRE_VARIABLES_BYTES_MAX);
    assert_int_equal(mpi_wire_write_worker(7, variables, 3, &body), 0);
    assert_true(mpi_wire_read_worker(buf_bytes(&body), body.len, &said));
    assert_int_equal(said.local_rank, 7);
    assert_int_equal(said.count, 3);
    for (size_t i = 0; i < 3; i++) {
        assert_string_equal(said.variables[i], variables[i]);
    }
    assert_false(mpi_wire_read_worker(buf_bytes(&body), body.len - 1, &said));
    assert_false(mpi_wire_read_worker(buf_bytes(&body), 3, &said));
    assert_true(mpi_wire_read_worker(buf_bytes(&body), sizeof(uint32_t), &said));
    assert_int_equal(said.count, 0);
    buf_done(&body);
}

static void a_variable_has_a_name(void **state) {
    (void)state;
    const char *const variables[] = {"no variable"};
    struct mpi_worker_said said;
    struct buf body;
    buf_init(&body, MPI_WIRE_VARIABLES_BYTES_MAX);
    assert_int_equal(mpi_wire_write_worker(0, variables, 1, &body), 0);
    assert_false(mpi_wire_read_worker(buf_bytes(&body), body.len, &said));
    buf_done(&body);
}

static void there_is_an_end_of_variables(void **state) {
    (void)state;
    const char *variables[MPI_WIRE_VARIABLES_MAX + 1];
    struct mpi_worker_said said;
    struct buf body;
    for (size_t i = 0; i < sizeof variables / sizeof *variables; i++) {
        variables[i] = "A=b";
    }
    buf_init(&body, MPI_WIRE_VARIABLES_BYTES_MAX);
    assert_int_equal(mpi_wire_write_worker(0, variables, MPI_WIRE_VARIABLES_MAX + 1, &body), MUSTER_ELIMIT);
    buf_clear(&body);
    assert_int_equal(mpi_wire_write_worker(0, variables, MPI_WIRE_VARIABLES_MAX, &body), 0);
    assert_true(mpi_wire_read_worker(buf_bytes(&body), body.len, &said));
    assert_int_equal(said.count, MPI_WIRE_VARIABLES_MAX);
    assert_int_equal(buf_append(&body, "A=b", sizeof "A=b"), 0);
    assert_false(mpi_wire_read_worker(buf_bytes(&body), body.len, &said));
    buf_done(&body);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(variables_come_as_they_went),
        cmocka_unit_test(a_variable_has_a_name),
        cmocka_unit_test(there_is_an_end_of_variables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
