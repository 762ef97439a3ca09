/* Starting MPI, and the sentences for what it answers; see mpi_library.h. */
#include <assert.h>

#include "base/status.h"
#include "comm/mpi/mpi_library.h"

static const char *const level_names[] = {"MPI_THREAD_SINGLE", "MPI_THREAD_FUNNELED", "MPI_THREAD_SERIALIZED",
                                          "MPI_THREAD_MULTIPLE"};

static int code_of(enum mpi_error error) {
    switch (error) {
    case MPI_ERROR_PEER_FAILED:
        return MUSTER_EPEER;
    case MPI_ERROR_MEMORY:
        return MUSTER_ENOMEM;
    case MPI_ERROR_TOO_LONG:
        return MUSTER_ELIMIT;
    case MPI_ERROR_TRUNCATED:
    case MPI_ERROR_ARGUMENT:
        return MUSTER_EINVAL;
    case MPI_ERROR_NONE:
    case MPI_ERROR_OTHER:
    default:
        return MUSTER_ESYSTEM;
    }
}

/* MPICH's words have several lines. */
static void join_lines(char *text) {
    for (; *text; text++) {
        *text = *text == '\n' ? ' ' : *text;
    }
}

int mpi_fail(const struct mpi *mpi, int error, const char *what) {
    char words[512] = "";
    assert(error != 0);
    if (mpi->calls->error_string(mpi, error, words, sizeof words) != 0 || !words[0]) {
        return status_fail(code_of(mpi->calls->error_class(mpi, error)), "%s: error %d of %s", what, error,
                           mpi->version);
    }
    join_lines(words);
    return status_fail(code_of(mpi->calls->error_class(mpi, error)), "%s: %s", what, words);
}

/* The program has initialised MPI before. */
static int check_begun(const struct mpi *mpi, enum mpi_threads needed) {
    enum mpi_threads provided = MPI_THREADS_SINGLE;
    int error = mpi->calls->query_thread(mpi, &provided);
    if (error != 0) {
        return mpi_fail(mpi, error, "MPI_Query_thread");
    }
    return provided >= needed
               ? 0
               : status_fail(MUSTER_EUNSUPPORTED,
                             "the program has initialised MPI (%s) with %s, and %s is needed: let it call "
                             "MPI_Init_thread with that",
                             mpi->version, level_names[provided], level_names[needed]);
}

int mpi_begin(const struct mpi *mpi, enum mpi_threads needed, bool *out_is_ours) {
    enum mpi_threads provided = MPI_THREADS_SINGLE;
    bool is_begun = false, is_over = false;
    int error = mpi->calls->initialized(mpi, &is_begun);
    error = error != 0 ? error : mpi->calls->finalized(mpi, &is_over);
    if (error != 0) {
        return mpi_fail(mpi, error, "MPI_Initialized");
    }
    if (is_over) {
        return status_fail(
            MUSTER_EUNSUPPORTED,
            "MPI (%s) has been finalized in this process, and begins only once: finalize it after the last "
            "group has been freed",
            mpi->version);
    }
    if (is_begun) {
        *out_is_ours = false;
        return check_begun(mpi, needed);
    }
    /* All that the library grants: with less, a thread that makes a group would keep the others out of MPI. */
    error = mpi->calls->init_thread(mpi, MPI_THREADS_MULTIPLE, &provided);
    if (error != 0) {
        return mpi_fail(mpi, error, "MPI_Init_thread");
    }
    if (provided < needed) {
        mpi->calls->finalize(mpi);
        return status_fail(MUSTER_EUNSUPPORTED,
                           "%s allows %s at most, and %s is needed: install one that was built for it", mpi->version,
                           level_names[provided], level_names[needed]);
    }
    *out_is_ours = true;
    return 0;
}
