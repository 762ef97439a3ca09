/* What is asked of copies on peer hosts while training goes on: see fsdp_copies.c, which makes them. */
#include <stdlib.h>

#include "base/clock.h"
#include "base/sized.h"
#include "base/status.h"
#include "train/units/fsdp_copies_impl.h"

const char *fsdp_copies_note(const struct muster_fsdp *fsdp) {
    return fsdp->kept->peers ? fsdp->kept->peers->note : "";
}

void fsdp_copies_end(struct muster_fsdp *fsdp) {
    struct fsdp_copies *copies = fsdp->kept ? fsdp->kept->peers : NULL;
    if (copies) {
        peer_finds_free(copies->finds);
        peer_copies_close(copies->peers, step_failure_status(&fsdp->failure) != MUSTER_OK);
        fsdp_parts_done(&copies->parts);
        free(copies->common);
        free(copies);
        fsdp->kept->peers = NULL;
    }
}

void fsdp_copies_before_write(struct muster_fsdp *fsdp) {
    struct fsdp_copies *copies = fsdp->kept->peers;
    if (copies && copies->peers && copies->read != copies_current(fsdp->kept->copies)) {
        peer_copies_await_read(copies->peers);
    }
}

/* ---- questions ---- */

static bool makes_copies(const struct muster_fsdp *fsdp) {
    return fsdp->kept && fsdp->kept->peers && fsdp->kept->peers->peers;
}

size_t fsdp_copies_bytes(const struct muster_fsdp *fsdp) {
    return makes_copies(fsdp) ? peer_copies_bytes(fsdp->kept->peers->peers) : 0;
}

int muster_fsdp_copy_statistics_sized(const struct muster_fsdp *fsdp, struct muster_fsdp_copy_statistics *out,
                                      size_t out_bytes) {
    struct muster_fsdp_copy_statistics now = {.last_step = COMMIT_NOTHING, .age_ns = -1};
    if (!fsdp || !out) {
        return status_fail_null("muster_fsdp_copy_statistics", fsdp ? "out" : "fsdp");
    }
    if (makes_copies(fsdp)) {
        struct peer_numbers numbers;
        peer_copies_numbers(fsdp->kept->peers->peers, &numbers);
        now.started = numbers.started;
        now.completed = numbers.completed;
        now.failed = numbers.failed;
        now.skipped = numbers.skipped;
        now.last_step = numbers.step;
        now.age_ns = numbers.completed_ns > 0 ? clock_monotonic_ns() - numbers.completed_ns : -1;
    }
    sized_write(out, out_bytes, &now, sizeof now);
    return MUSTER_OK;
}
