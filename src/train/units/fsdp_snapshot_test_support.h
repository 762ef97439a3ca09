/* For the tests of an fsdp's snapshots: jobs in every place, what their programs add to a snapshot, and one process
 * that has everything. */
#ifndef TRAIN_FSDP_SNAPSHOT_TEST_SUPPORT_H
#define TRAIN_FSDP_SNAPSHOT_TEST_SUPPORT_H

#include <muster/optimizer.h>

#include "train/units/fsdp_test_support.h"

enum { PATH_BYTES = 256, SAVED = 3, TRAINED = 6, MARKS = 5 };

/* Folders of a test; no_folder is never made. For cmocka's set-up and tear-down. */
extern char folder[PATH_BYTES], other_folder[PATH_BYTES], no_folder[PATH_BYTES];
int folders_set_up(void **state);
int folders_tear_down(void **state);

/* ---- where a job runs ---- */

struct place {
    uint32_t size;
    struct ranks_options ranks;
    const char *environment;
    enum muster_fsdp_sharding sharding;
    bool is_close; /* its results are those of one process to rounding alone */
};
enum {
    ONE_HOST,
    ONE_RANK,
    TWO_HOSTS, /* of two ranks each */
    THREE_RANKS,
    HYBRID,
    THREE_HOSTS,
    NO_SHARED_MEMORY,
    CROSSED,
    UNEVEN,
    PLACES
};
extern const struct place places[PLACES];

/* A job of steps 0 to SAVED. */
struct job job_at(const struct place *place);
/* The steps after those, up to TRAINED. */
struct job next_job_at(const struct place *place, const struct place *before);

/* ---- saving and loading, with what the program adds ---- */

struct added {
    int64_t step;
    char alphabet[32];
    uint8_t marks[MARKS];
    struct muster_tensor tensor;
    struct muster_value values[2];
    struct muster_snapshot_state state;
};
void added_init(struct added *added, int64_t step);

int save_state(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer, bool saves, const char *path,
               int64_t step);
/* Loads, and checks that it is this step. */
struct muster_snapshot_found load_state(struct rank *rank, struct muster_fsdp *fsdp, struct muster_optimizer *optimizer,
                                        const char *path, int64_t step);
/* Hooks: rank 0 saves in `folder` after the job's steps; all load from there before them. */
job_hook save_job, load_job;

/* Runs a job that saves. */
void train_and_save(const struct place *place);
/* The folder of the first two ranks, and that of the others. */
const char *host_folder(const struct rank *rank);

/* ---- one process that has everything ---- */

struct plain {
    struct reference r;
    struct added added;
    struct muster_tensor tensors[4 * PARAMETERS];
    struct muster_snapshot_state state;
};
void plain_init(struct rank *rank, const struct job *job, struct plain *plain);

#endif
