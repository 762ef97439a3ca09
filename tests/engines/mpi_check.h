/* Every call of comm/mpi/mpi_library.h with a real MPI, each with a checked result: a constant that is wrong must show.
 */
#ifndef TESTS_ENGINES_MPI_CHECK_H
#define TESTS_ENGINES_MPI_CHECK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/mpi/mpi_library.h"

/* What the checks share; `mpi` may be a changed copy of the library's. */
struct check {
    const struct mpi *mpi;
    mpi_handle comm; /* of all ranks, errors are returned */
    int rank, size;
};

/* Calls mpi->calls->NAME, and notes that it has been called. */
#define CALL(name, ...) (check_note(offsetof(struct mpi_calls, name)), check->mpi->calls->name(check->mpi, __VA_ARGS__))

void check_note(size_t offset);
/* Ends the process unless all calls have been noted. */
void check_all_noted(void);

/* End the process with a sentence where it does not hold. */
void check_that(const struct check *check, bool holds, const char *format, ...) __attribute__((format(printf, 3, 4)));
void check_works(const struct check *check, int error, const char *what);

/* Waits for a request; it must end well, and be null then. status: NULL, or filled in. */
void check_wait(const struct check *check, mpi_handle *request, const char *what, struct mpi_status *status);
/* Waits for one that must fail; returns its error. */
int check_wait_failure(const struct check *check, mpi_handle *request, const char *what);

/* Numbers. Element i of rank r is known to all: small enough that sums of 8 ranks and products of 4 fit
 * each type and are exact in floats, of both signs where the type has them, so that each operation has its own results.
 */
bool check_has_type(const struct check *check, enum muster_type type);
bool check_has_op(const struct check *check, enum muster_type type, enum muster_reduction op);
/* `count` elements of `rank`, from element `first`. */
void check_fill(enum muster_type type, void *buffer, size_t first, size_t count, int rank);
/* The reduction of ranks [from, to). */
void check_reduce(enum muster_type type, enum muster_reduction op, void *buffer, size_t first, size_t count, int from,
                  int to);

/* The highest number of the type, an integer. */
void check_fill_highest(enum muster_type type, void *buffer, size_t count);
/* inout[i] = inout[i] op in[i] */
void check_combine(enum muster_type type, enum muster_reduction op, const void *in, void *inout, size_t count);

/* Memory with a guard behind it, filled with 0xa5. check_free() ends the process where the guard has been overwritten.
 */
void *check_allocate(const struct check *check, size_t bytes);
void check_free(const struct check *check, void *memory, const char *what);

/* The parts. */
void check_messages(const struct check *check);
void check_collectives(const struct check *check);
void check_own_operations(const struct check *check);
void check_long_counts(const struct check *check); /* that the library has, or that it lacks */

#endif
