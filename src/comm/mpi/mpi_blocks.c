/* Counts and offsets of calls with one block a rank, in both widths; see mpi_library.h. */
#include <limits.h>
#include <stdlib.h>

#include "base/status.h"
#include "comm/mpi/mpi_library.h"

void mpi_blocks_done(struct mpi_blocks *blocks) {
    free(blocks->counts);
    free(blocks->offsets);
    free(blocks->large_counts);
    free(blocks->large_offsets);
    *blocks = (struct mpi_blocks){NULL, NULL, NULL, NULL};
}

/* Fills in the large arrays. false: something is more than 2^63 - 1. */
static bool fill_large(struct mpi_blocks *blocks, const size_t counts[], const size_t offsets[], uint32_t n,
                       bool *out_is_short) {
    size_t sum = 0;
    *out_is_short = true;
    for (uint32_t i = 0; i < n; i++) {
        size_t offset = offsets ? offsets[i] : sum;
        if (counts[i] > (size_t)INT64_MAX || offset > (size_t)INT64_MAX - counts[i]) {
            return false;
        }
        sum = offset + counts[i];
        blocks->large_counts[i] = (int64_t)counts[i];
        blocks->large_offsets[i] = (intptr_t)offset;
        *out_is_short = *out_is_short && counts[i] <= INT_MAX && offset <= INT_MAX;
    }
    return true;
}

static void *array(uint32_t n, size_t size) {
    return calloc(n ? n : 1, size);
}

int mpi_blocks_make(struct mpi_blocks *out, const size_t counts[], const size_t offsets[], uint32_t n) {
    bool is_short = true;
    *out = (struct mpi_blocks){array(n, sizeof(int)), array(n, sizeof(int)), array(n, sizeof(int64_t)),
                               array(n, sizeof(intptr_t))};
    if (!out->counts || !out->offsets || !out->large_counts || !out->large_offsets) {
        mpi_blocks_done(out);
        return status_fail(MUSTER_ENOMEM, "counts of %u ranks for MPI", (unsigned)n);
    }
    if (!fill_large(out, counts, offsets, n, &is_short)) {
        mpi_blocks_done(out);
        return status_fail(MUSTER_EINVAL, "the blocks of %u ranks have more than 2^63 - 1 elements", (unsigned)n);
    }
    for (uint32_t i = 0; is_short && i < n; i++) {
        out->counts[i] = (int)out->large_counts[i];
        out->offsets[i] = (int)out->large_offsets[i];
    }
    if (!is_short) {
        free(out->counts);
        free(out->offsets);
        out->counts = out->offsets = NULL;
    }
    return 0;
}
