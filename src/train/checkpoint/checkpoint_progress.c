/* See checkpoint_progress.h. */
#include "train/checkpoint/checkpoint_progress.h"

#include <inttypes.h>

#include "base/log.h"

enum { PROGRAM_INTERVAL_MS = 1000, LOG_INTERVAL_MS = 5000 };

static void write_line(void *context, const struct muster_checkpoint_progress *progress) {
    static const double mib = 1 << 20;
    double speed = progress->seconds > 0 ? (double)progress->bytes / progress->seconds : 0;
    (void)context;
    log_info("the checkpoint of step %" PRId64 ": rank 0 has %s %.0f of %.0f MiB, %.0f MiB/s", progress->step,
             progress->is_load ? "read" : "written", (double)progress->bytes / mib, (double)progress->total_bytes / mib,
             speed / mib);
}

struct checkpoint_listener checkpoint_listener_of(muster_checkpoint_progress_fn *tell, void *context, uint32_t rank) {
    if (tell) {
        return (struct checkpoint_listener){tell, context, PROGRAM_INTERVAL_MS};
    }
    return (struct checkpoint_listener){rank == 0 ? write_line : NULL, NULL, LOG_INTERVAL_MS};
}

void checkpoint_progress_begin(struct checkpoint_progress *progress, const struct snapshot_io *io,
                               const struct checkpoint_listener *listener,
                               const struct muster_checkpoint_progress *first) {
    int64_t now_ms = listener->tell ? io->now_ms(io->ctx) : 0;
    *progress = (struct checkpoint_progress){
        .listener = *listener, .io = io, .now = *first, .begin_ms = now_ms, .told_ms = now_ms};
}

void checkpoint_progress_add(struct checkpoint_progress *progress, uint64_t bytes) {
    progress->now.bytes += bytes;
    if (!progress->listener.tell) {
        return;
    }
    int64_t now_ms = progress->io->now_ms(progress->io->ctx);
    progress->now.seconds = (double)(now_ms - progress->begin_ms) / 1e3;
    if (now_ms - progress->told_ms >= progress->listener.interval_ms) {
        progress->told_ms = now_ms;
        progress->listener.tell(progress->listener.context, &progress->now);
    }
}

void checkpoint_progress_end(const struct checkpoint_progress *progress) {
    if (progress->listener.tell && progress->told_ms > progress->begin_ms) {
        progress->listener.tell(progress->listener.context, &progress->now);
    }
}
