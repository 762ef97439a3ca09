/* For tests of checkpoints: the ranks of a job, played in one thread on a disk that fails (train/state/disk_model.h).
 * Each stage of a save or a load is done by all ranks in any order, as checkpoint_save.c and checkpoint_load.c have
 * them do it. */
#ifndef TRAIN_CHECKPOINT_JOB_TEST_SUPPORT_H
#define TRAIN_CHECKPOINT_JOB_TEST_SUPPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "train/checkpoint/checkpoint_impl.h"
#include "train/checkpoint/checkpoint_test_support.h"
#include "train/state/disk_model.h"

enum { JOB_RANKS_MAX = 4, JOB_BLOCK_BYTES = 16, JOB_WRITE_BYTES = 64, JOB_PATIENCE_MS = 4000 };

struct job {
    uint32_t size;
    bool is_incremental;  /* parts that have not changed are taken over */
    uint32_t alone_parts; /* > 0: one process saves so many parts, and has everything whole (checkpoint_parts.c) */
    int (*go_on)(void *context); /* that process's source; NULL */
    void *go_on_context;
    struct test_state states[JOB_RANKS_MAX];
};

/* cut: of which `rank` does not matter. */
void job_init(struct job *job, const struct test_cut *cut);
void job_done(struct job *job);
void job_fill(struct job *job, int64_t tag);
/* The number of the state that all ranks have in their parts, or 0. Tensors that all have whole are looked at on every
 * rank. */
int64_t job_tag(const struct job *job);

/* One rank has trouble at its call number `at` (0: none has). */
struct job_trouble {
    uint32_t victim;
    unsigned at;
    enum disk_trouble trouble;
    unsigned calls; /* that the victim has made */
    bool is_dead, was_troubled;
};

/* All ranks save; the disk's own trouble is that of `trouble`. Of one process all calls are the victim's. */
int job_save(struct job *job, struct disk *disk, const struct snapshot_io *io, int64_t step, uint32_t keep,
             struct job_trouble *trouble);
/* All ranks load the checkpoint of this record, in the open folder. */
int job_load(struct job *job, const struct snapshot_folder *folder, const struct checkpoint_record *record);

#endif
