/* See fsdp_snapshot_test_support.h. */
#include "train/units/fsdp_snapshot_test_support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "base/folder_test_support.h"
#include "base/str.h"

static const double tolerance = 4e-6;
static char top[PATH_BYTES / 2];
char folder[PATH_BYTES], other_folder[PATH_BYTES], no_folder[PATH_BYTES];

int folders_set_up(void **state) {
    (void)state;
    const char *base = getenv("TMPDIR");
    assert_true(str_format(top, sizeof top, "%s/muster-fsdp-XXXXXX", base ? base : "/tmp"));
    assert_non_null(mkdtemp(top));
    assert_true(str_format(folder, sizeof folder, "%s/snapshots", top));
    assert_true(str_format(other_folder, sizeof other_folder, "%s/others", top));
    assert_true(str_format(no_folder, sizeof no_folder, "%s/none", top));
    return 0;
}

int folders_tear_down(void **state) {
    (void)state;
    bool removed = folder_remove(folder) >= 0 && folder_remove(other_folder) >= 0 && folder_remove(no_folder) == 0;
    return removed ? rmdir(top) : -1;
}

/* ---- where a job runs ---- */

static const uint32_t crossed[4] = {0, 1, 0, 1}, uneven[4] = {0, 0, 0, 1};
const struct place places[PLACES] = {
    [ONE_HOST] = {.size = 4},
    [ONE_RANK] = {.size = 1},
    [TWO_HOSTS] = {.size = 4, .ranks = {.ranks_per_host = 2}, .is_close = true},
    [THREE_RANKS] = {.size = 3},
    [HYBRID] = {.size = 4, .ranks = {.ranks_per_host = 2}, .sharding = MUSTER_FSDP_HYBRID, .is_close = true},
    [THREE_HOSTS] = {.size = 3, .ranks = {.ranks_per_host = 1}, .is_close = true},
    [NO_SHARED_MEMORY] = {.size = 2, .environment = "MUSTER_SHM=0", .is_close = true},
    [CROSSED] = {.size = 4, .ranks = {.host_of = crossed}, .is_close = true},
    [UNEVEN] = {.size = 4, .ranks = {.host_of = uneven}, .is_close = true},
};

struct job job_at(const struct place *place) {
    struct job job = JOB_INIT;
    job.ranks = place->ranks;
    job.environment = place->environment;
    job.options.sharding = place->sharding;
    job.steps = SAVED;
    job.tolerance = place->is_close || ranks_use_engine("mpi") ? tolerance : 0;
    return job;
}

/* The steps after those of a job at `before`. */
struct job next_job_at(const struct place *place, const struct place *before) {
    struct job job = job_at(place);
    job.first_step = SAVED;
    job.first_size = before->size;
    job.steps = TRAINED;
    job.tolerance = place->is_close || before->is_close || ranks_use_engine("mpi") ? tolerance : 0;
    return job;
}

/* ---- what the program adds ---- */

void added_init(struct added *added, int64_t step) {
    *added = (struct added){.step = step, .alphabet = "abc", .marks = {1, 2, 3, 4, (uint8_t)step}};
    added->tensor = (struct muster_tensor){
        .name = "marks", .type = MUSTER_UINT8, .dim_count = 1, .shape = {MARKS}, .data = added->marks};
    added->values[0] = muster_value_integer("step", &added->step);
    added->values[1] = muster_value_text("alphabet", added->alphabet, sizeof added->alphabet);
    added->state = (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(&added->tensor, 1, added->values, 2);
}

int save_state(struct muster_fsdp *fsdp, struct muster_optimizer *optimizer, bool saves, const char *path,
               int64_t step) {
    struct added added;
    added_init(&added, step);
    return muster_fsdp_save(fsdp, optimizer, saves, path, step, &added.state, NULL);
}

struct muster_snapshot_found load_state(struct rank *rank, struct muster_fsdp *fsdp, struct muster_optimizer *optimizer,
                                        const char *path, int64_t step) {
    struct added added, wanted;
    struct muster_snapshot_found found;
    added_init(&added, 0);
    added_init(&wanted, step);
    added.alphabet[0] = '\0';
    memset(added.marks, 0, sizeof added.marks);
    rank_check_code(rank, muster_fsdp_load_newest(fsdp, optimizer, path, &added.state, &found), 0);
    rank_check(rank, found.step == step && added.step == step && strcmp(added.alphabet, "abc") == 0);
    rank_check(rank, memcmp(added.marks, wanted.marks, sizeof added.marks) == 0);
    return found;
}

int save_job(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp, struct muster_optimizer *optimizer) {
    rank_check_code(rank, save_state(fsdp, optimizer, rank->rank == 0, rank->rank == 0 ? folder : NULL, job->steps), 0);
    return 0;
}

int load_job(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp, struct muster_optimizer *optimizer) {
    struct muster_snapshot_found found = load_state(rank, fsdp, optimizer, folder, job->first_step);
    rank_check(rank, found.passed_over == 0 && found.note[0] == '\0');
    return 0;
}

/* A job that saves after its steps. */
void train_and_save(const struct place *place) {
    struct job job = job_at(place);
    job.conclude = save_job;
    job_check(place->size, &job);
}

const char *host_folder(const struct rank *rank) {
    return rank->rank < 2 ? folder : other_folder;
}

/* ---- one process that has everything ---- */

void plain_init(struct rank *rank, const struct job *job, struct plain *plain) {
    size_t count = PARAMETERS;
    reference_init(rank, job, &plain->r);
    added_init(&plain->added, SAVED);
    for (size_t p = 0; p < PARAMETERS; p++) {
        plain->tensors[p] = job_parameter(p, plain->r.values[p]);
    }
    rank_check_code(rank, muster_optimizer_tensors(plain->r.optimizer, plain->tensors + count), 0);
    count += muster_optimizer_tensor_count(plain->r.optimizer);
    plain->tensors[count++] = plain->added.tensor;
    plain->state = (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(plain->tensors, count, plain->added.values, 2);
}
