/* Looking at checkpoints from outside of a job, in one process: for `muster ckpt`. Nothing is waited for, and nothing
 * is changed. */
#ifndef TRAIN_CHECKPOINT_VIEW_H
#define TRAIN_CHECKPOINT_VIEW_H

#include <stdint.h>

#include "train/checkpoint/checkpoint_map.h"
#include "train/checkpoint/checkpoint_record.h"

/* A step of which there are files. code: 0, or why there is no record to read, with muster_detail(): MUSTER_ENOENT (the
 * save was cut off), MUSTER_ECORRUPT, MUSTER_EUNSUPPORTED. */
struct checkpoint_listed {
    int64_t step;
    int code;
    struct checkpoint_record record;
};
typedef int checkpoint_listed_fn(void *ctx, const struct checkpoint_listed *listed);
/* Calls `each` for all steps, the newest first, until it returns something else than 0, which is the result then.
 * MUSTER_ENOENT: no such folder. */
int checkpoint_view_each(const char *path, checkpoint_listed_fn *each, void *ctx);

struct checkpoint_view;
/* Reads record and map of `step`; of the newest that has a record, if it is below 0. Copies the path. MUSTER_ENOENT,
 * MUSTER_ECORRUPT, MUSTER_EUNSUPPORTED, MUSTER_ENOMEM, MUSTER_ESYSTEM. */
int checkpoint_view_open(const char *path, int64_t step, struct checkpoint_view **out);
/* NULL is accepted. */
void checkpoint_view_close(struct checkpoint_view *view);

const struct checkpoint_record *checkpoint_view_record(const struct checkpoint_view *view);
const struct checkpoint_map *checkpoint_view_map(const struct checkpoint_view *view);

/* Elements [first, first + count) of a tensor of the map; count > 0. Reads the blocks that have some of them, and their
 * checksums. MUSTER_ECORRUPT names file and tensor. */
int checkpoint_view_read(struct checkpoint_view *view, uint32_t tensor, uint64_t first, uint64_t count, void *out);

/* Reads all of a part, and compares all checksums. MUSTER_ECORRUPT: the first damage. */
int checkpoint_view_verify(struct checkpoint_view *view, uint32_t part);

/* Removes checkpoints beyond the newest `keep` whole ones, and leftovers. MUSTER_ESYSTEM: a job is saving there. */
int checkpoint_view_prune(const char *path, uint32_t keep);

#endif
