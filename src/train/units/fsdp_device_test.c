/* An fsdp whose program adds a tensor that is on a GPU: to snapshots, to checkpoints, to what is kept from step to step
 * and to what is saved in the background; on the doubles of the driver and of NCCL. The fsdp itself is on the host. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <muster/collective.h>

#include "comm/device/cuda_double_test_support.h"
#include "comm/device/device.h"
#include "comm/nccl/device_ranks_test_support.h"
#include "train/memory/holder.h"
#include "train/units/fsdp_snapshot_test_support.h"

/* What the program adds, with its marks on the GPU. */
static struct added added;

static void *marks_of(void) {
    return added.tensor.data;
}

static void begin_device(struct rank *rank) {
    struct device device = {0};
    struct CUctx_st *previous = NULL;
    unsigned long long address = 0;
    rank_check_code(rank, device_open(rank->rank, &device), 0);
    rank_check_code(rank, device_enter(&device, &previous), 0);
    rank_check(rank, device.cuda->memory_allocate(&address, MARKS) == CUDA_OK);
    added_init(&added, 0);
    added.tensor.data = (void *)(uintptr_t)address; /* NOLINT(performance-no-int-to-ptr) */
}

static void end_device(struct rank *rank) {
    rank_check(rank, cuda_library_if_open()->memory_free(device_address(marks_of())) == CUDA_OK);
}

/* The marks of `step`, which the default stream writes some time later. */
static void mark_late(struct rank *rank, int64_t step) {
    const struct cuda_library *cuda = cuda_library_if_open();
    unsigned long long to = device_address(marks_of());
    added.step = step;
    for (unsigned i = 0; i < MARKS; i++) {
        unsigned char mark = (unsigned char)(i + 1 < MARKS ? i + 1 : step);
        rank_check(rank, cuda->set_bytes(to + i, mark, 1, NULL) == CUDA_OK);
    }
}

/* Others, at once. */
static void spoil(void) {
    added.step = -1;
    memset(cuda_double_contents(device_address(marks_of()), MARKS), 0xee, MARKS);
}

static void check_marks(struct rank *rank, int64_t step) {
    const unsigned char *marks = cuda_double_contents(device_address(marks_of()), MARKS);
    rank_check(rank, added.step == step);
    for (unsigned i = 0; i < MARKS; i++) {
        rank_check(rank, marks[i] == (unsigned char)(i + 1 < MARKS ? i + 1 : step));
    }
}

/* ---- on disk ---- */

/* The fsdp loads what it has saved a moment ago: the job's results are to be those of one process afterwards. */
static int save_and_load(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                         struct muster_optimizer *optimizer) {
    int64_t step = job->steps;
    mark_late(rank, step);
    rank_check_code(rank, muster_fsdp_save(fsdp, optimizer, rank->rank == 0, folder, step, &added.state, NULL), 0);
    spoil();
    rank_check_code(rank, muster_fsdp_load_newest(fsdp, optimizer, folder, &added.state, NULL), 0);
    check_marks(rank, step);
    /* Who has no such folder gets it from rank 0. */
    spoil();
    rank_check_code(
        rank, muster_fsdp_load_newest(fsdp, optimizer, rank->rank == 0 ? folder : no_folder, &added.state, NULL), 0);
    check_marks(rank, step);
    mark_late(rank, step);
    rank_check_code(rank, muster_fsdp_save_checkpoint(fsdp, optimizer, other_folder, step, &added.state, NULL), 0);
    spoil();
    rank_check_code(rank, muster_fsdp_load_newest_checkpoint(fsdp, optimizer, other_folder, &added.state, NULL, NULL),
                    0);
    check_marks(rank, step);
    return 0;
}

static int save_body(struct rank *rank, void *argument) {
    (void)setenv("MUSTER_DOUBLE_JITTER_US", "500", 1);
    begin_device(rank);
    int code = job_body(rank, argument);
    end_device(rank);
    return code;
}

static void what_is_added_may_be_on_a_device(void **state) {
    (void)state;
    static const size_t where[] = {ONE_RANK, ONE_HOST, TWO_HOSTS, HYBRID};
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
        struct job job = job_at(&places[where[i]]);
        job.environment = "MUSTER_ENGINE=nccl";
        job.conclude = save_and_load;
        ranks_run_with(places[where[i]].size, save_body, &job, &job.ranks);
    }
}

/* ---- kept from step to step ---- */

static int keep(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                struct muster_optimizer *optimizer) {
    int64_t step = 99;
    spoil();
    rank_check_code(rank, muster_fsdp_keep(fsdp, optimizer, &added.state, NULL, &step), 0);
    if (job->first_step > 0) {
        rank_check(rank, step == job->first_step);
        check_marks(rank, step);
    } else {
        rank_check(rank, step == -1);
        mark_late(rank, 0);
        rank_check_code(rank, muster_fsdp_commit(fsdp, 0, &added.state), 0);
    }
    return 0;
}

static int commit(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                  struct muster_optimizer *optimizer) {
    (void)job;
    (void)optimizer;
    mark_late(rank, added.step + 1);
    rank_check_code(rank, muster_fsdp_commit(fsdp, added.step, &added.state), 0);
    return 0;
}

/* The marks change as soon as the call has returned. */
static int save_behind(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                       struct muster_optimizer *optimizer) {
    bool is_started = false;
    (void)optimizer;
    mark_late(rank, job->steps);
    rank_check_code(rank, muster_fsdp_start_checkpoint(fsdp, other_folder, &added.state, NULL, &is_started), 0);
    rank_check(rank, is_started);
    spoil();
    rank_check_code(rank, muster_fsdp_wait_checkpoint(fsdp), 0);
    return 1; /* the job ends here */
}

static int load_behind(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                       struct muster_optimizer *optimizer) {
    spoil();
    rank_check_code(rank, muster_fsdp_load_newest_checkpoint(fsdp, optimizer, other_folder, &added.state, NULL, NULL),
                    0);
    check_marks(rank, job->first_step);
    return 0;
}

static int keep_body(struct rank *rank, void *argument) {
    struct job first = *(const struct job *)argument, second = first, third;
    (void)setenv("MUSTER_DOUBLE_JITTER_US", "500", 1);
    (void)setenv("MUSTER_ENGINE", "nccl", 1);
    begin_device(rank);
    struct muster_group *group = rank_group(rank, NULL);
    first.prepare = second.prepare = keep;
    first.after_step = second.after_step = commit;
    first.conclude = save_behind;
    second.first_step = SAVED;
    second.first_size = rank->size;
    second.steps = TRAINED;
    third = second;
    third.prepare = load_behind;
    third.after_step = NULL;
    job_run(rank, &first, group);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    job_run(rank, &second, group);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    job_run(rank, &third, group);
    end_device(rank);
    muster_group_free(group);
    rank_check(rank, cuda_double_live() == 0);
    return 0;
}

static void what_is_kept_may_be_on_a_device(void **state) {
    (void)state;
    static const size_t where[] = {ONE_RANK, ONE_HOST, TWO_HOSTS};
    for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
        struct job job = job_at(&places[where[i]]);
        ranks_run_with(places[where[i]].size, keep_body, &job, &job.ranks);
    }
}

int main(void) {
    (void)unsetenv("MUSTER_HELD_SOCKET");
    (void)unsetenv("LOCAL_RANK");
    device_ranks_use_doubles(CUDA_DOUBLE, NCCL_DOUBLE);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_added_may_be_on_a_device, folders_set_up, folders_tear_down),
        cmocka_unit_test_setup_teardown(what_is_kept_may_be_on_a_device, folders_set_up, folders_tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
