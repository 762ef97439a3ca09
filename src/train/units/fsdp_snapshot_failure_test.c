/* An fsdp's snapshots when something goes wrong: damage, full disks and deaths cost nothing that was saved before, and
 * what does not fit is said on every rank. */
#include <glob.h>
#include <inttypes.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <cmocka.h>

#include "base/folder_test_support.h"
#include "base/status.h"
#include "base/str.h"
#include "train/units/fsdp_snapshot_test_support.h"

#include <muster/collective.h>

/* ---- damage ---- */

static void damage_newest(void) {
    char pattern[2 * PATH_BYTES];
    glob_t found;
    assert_true(str_format(pattern, sizeof pattern, "%s/step-%d-*.safetensors", folder, TRAINED));
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    FILE *file = fopen(found.gl_pathv[0], "r+");
    assert_true(file && fseek(file, 9000, SEEK_SET) == 0 && fwrite("damage", 6, 1, file) == 1 && fclose(file) == 0);
    globfree(&found);
}

static int load_older(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                      struct muster_optimizer *optimizer) {
    (void)job;
    struct muster_snapshot_found found = load_state(rank, fsdp, optimizer, folder, SAVED);
    rank_check(rank, rank->rank != 0 || (found.passed_over == 1 && strstr(found.note, "step 6: ")));
    return 0;
}

static void a_damaged_one_is_passed_over(void **state) {
    (void)state;
    for (size_t i = ONE_HOST; i <= TWO_HOSTS; i += TWO_HOSTS) {
        struct job job = next_job_at(&places[i], &places[i]), again = job;
        train_and_save(&places[i]);
        job.prepare = load_job;
        job.conclude = save_job;
        job_check(places[i].size, &job);
        damage_newest();
        again.prepare = load_older;
        job_check(places[i].size, &again);
        assert_int_equal(folder_remove(folder), 4);
    }
}

/* ---- full disks ---- */

/* The job goes on after a save that fails on `fails`, with a sentence that all have. */
static void save_on_a_full_disk(struct rank *rank, struct muster_fsdp *fsdp, struct muster_optimizer *optimizer,
                                uint32_t fails, bool saves) {
    struct rlimit limit, tight;
    char wanted[64];
    rank_check(rank, getrlimit(RLIMIT_FSIZE, &limit) == 0);
    tight = limit;
    tight.rlim_cur = rank->rank == fails ? 10000 : limit.rlim_cur; /* as good as a full disk */
    void (*old)(int) = signal(SIGXFSZ, SIG_IGN);
    rank_check(rank, setrlimit(RLIMIT_FSIZE, &tight) == 0);
    int code = save_state(fsdp, optimizer, saves, host_folder(rank), SAVED + 1);
    rank_check(rank, setrlimit(RLIMIT_FSIZE, &limit) == 0);
    (void)signal(SIGXFSZ, old);
    rank_check_code(rank, code, MUSTER_ESYSTEM);
    (void)snprintf(wanted, sizeof wanted, "muster_fsdp_save: rank %" PRIu32 ": save step 4: write ", fails);
    rank_check(rank, strstr(muster_detail(), wanted) == muster_detail());
    rank_check(rank, strstr(muster_detail(), "step-4.safetensors.tmp: File too large") != NULL);
}

static int fill_the_disk(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                         struct muster_optimizer *optimizer) {
    const uint32_t *fails = job->context;
    (void)load_state(rank, fsdp, optimizer, folder, SAVED);
    save_on_a_full_disk(rank, fsdp, optimizer, *fails, rank->rank == 0 || rank->rank == *fails);
    return 0;
}

static int find_older_and_save(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                               struct muster_optimizer *optimizer) {
    struct muster_snapshot_found found;
    rank_check_code(rank, muster_snapshot_find(folder, INT64_MAX, &found), 0);
    rank_check(rank, found.step == SAVED && found.passed_over == 0);
    return save_job(rank, job, fsdp, optimizer);
}

static void a_full_disk_is_told_to_all_and_training_goes_on(void **state) {
    (void)state;
    static const struct {
        size_t place;
        uint32_t fails;
    } cases[] = {{ONE_HOST, 0}, {TWO_HOSTS, 0}, {TWO_HOSTS, 2}, {HYBRID, 0}, {NO_SHARED_MEMORY, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct job job = next_job_at(&places[cases[i].place], &places[ONE_HOST]);
        train_and_save(&places[ONE_HOST]);
        job.prepare = fill_the_disk;
        job.conclude = find_older_and_save;
        job.context = &cases[i].fails;
        job_check(places[cases[i].place].size, &job);
        assert_int_equal(folder_remove(folder), 4);
        assert_int_equal(folder_remove(other_folder), 0);
    }
}

/* ---- deaths ---- */

/* Where a rank dies: before its n-th rename, or its n-th gathering; or after which gathering it fails. 0: it does not.
 */
static struct { unsigned renames, gathers, fails; } dies;

int __real_renameat(int old_folder, const char *old_name, int new_folder, const char *new_name);
int __wrap_renameat(int old_folder, const char *old_name, int new_folder, const char *new_name);
int __real_muster_gather_v(struct muster_group *group, const void *send, void *receive, const size_t *counts,
                           enum muster_type type, uint32_t root, struct muster_work **work);
int __wrap_muster_gather_v(struct muster_group *group, const void *send, void *receive, const size_t *counts,
                           enum muster_type type, uint32_t root, struct muster_work **work);

static bool count_down(unsigned *left) {
    return *left > 0 && --*left == 0;
}

static void die_at_zero(unsigned *left) {
    if (count_down(left)) {
        (void)raise(SIGKILL);
    }
}

int __wrap_renameat(int old_folder, const char *old_name, int new_folder, const char *new_name) {
    die_at_zero(&dies.renames);
    return __real_renameat(old_folder, old_name, new_folder, new_name);
}

/* NOLINTNEXTLINE(readability-function-size): as muster_gather_v() */
int __wrap_muster_gather_v(struct muster_group *group, const void *send, void *receive, const size_t *counts,
                           enum muster_type type, uint32_t root, struct muster_work **work) {
    die_at_zero(&dies.gathers);
    int code = __real_muster_gather_v(group, send, receive, counts, type, root, work);
    return count_down(&dies.fails) ? status_fail(MUSTER_ETIMEOUT, "the test's time-out") : code;
}

struct death {
    size_t place;
    uint32_t rank;
    unsigned renames, gathers;
};

/* The survivors hear of it; whoever wrote clears away what it had begun. */
static int die_in_a_save(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                         struct muster_optimizer *optimizer) {
    const struct death *death = job->context;
    dies.renames = rank->rank == death->rank ? death->renames : 0;
    dies.gathers = rank->rank == death->rank ? death->gathers : 0;
    int code = save_state(fsdp, optimizer, rank->rank == 0, folder, job->steps);
    rank_check(rank, code != 0 && muster_detail()[0] != '\0');
    return 1;
}

static int load_after_a_death(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                              struct muster_optimizer *optimizer) {
    (void)load_state(rank, fsdp, optimizer, folder, job->first_step); /* what was passed over depends on who died */
    return 0;
}

static void a_death_in_a_save_leaves_the_one_before(void **state) {
    (void)state;
    static const struct death deaths[] = {{ONE_HOST, 0, 1, 0},        {ONE_HOST, 0, 2, 0},  {TWO_HOSTS, 0, 1, 0},
                                          {TWO_HOSTS, 0, 0, 3},       {TWO_HOSTS, 3, 0, 3}, {HYBRID, 0, 2, 0},
                                          {NO_SHARED_MEMORY, 1, 0, 2}};
    for (size_t i = 0; i < sizeof deaths / sizeof *deaths; i++) {
        const struct place *place = &places[deaths[i].place];
        struct job job = next_job_at(place, &places[ONE_HOST]);
        train_and_save(&places[ONE_HOST]);
        job.prepare = load_job;
        job.conclude = die_in_a_save;
        job.context = &deaths[i];
        struct ranks *ranks = ranks_start(place->size, job_body, &job, &place->ranks);
        for (uint32_t rank = 0; rank < place->size; rank++) {
            assert_int_equal(ranks_wait(ranks, rank), rank == deaths[i].rank ? RANKS_KILLED - SIGKILL : 0);
        }
        ranks_free(ranks);
        struct job again = next_job_at(place, &places[ONE_HOST]);
        again.prepare = load_after_a_death;
        job_check(place->size, &again);
        int files = folder_remove(folder);
        assert_int_equal(files, deaths[i].rank != 0 ? 2 : 3 + (deaths[i].renames == 2));
    }
}

/* A gather that fails on one rank alone, after the others had what they wanted of it. */
static int fail_in_a_gather(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                            struct muster_optimizer *optimizer) {
    dies.fails = rank->rank == 3 ? 2 : 0;
    int code = save_state(fsdp, optimizer, rank->rank == 0, folder, job->steps);
    rank_check(rank, code != 0 && strstr(muster_detail(), "the test's time-out"));
    rank_check(rank, muster_fsdp_begin(fsdp, MUSTER_FSDP_STEP) != 0);
    return 1;
}

static void a_gather_that_fails_on_one_rank_is_told_to_all(void **state) {
    (void)state;
    struct muster_snapshot_found found;
    struct job job = job_at(&places[TWO_HOSTS]);
    job.conclude = fail_in_a_gather;
    job_check(places[TWO_HOSTS].size, &job);
    assert_int_equal(muster_snapshot_find(folder, INT64_MAX, &found), MUSTER_ENOENT);
    assert_int_equal(folder_remove(folder), 0);
}

/* ---- what is refused ---- */

/* All have the same code and words; the group goes on. */
static void refused(struct rank *rank, int code, int wanted, const char *words) {
    rank_check_code(rank, code, wanted);
    if (!strstr(muster_detail(), words)) {
        (void)fprintf(stderr, "\"%s\" is not in \"%s\"\n", words, muster_detail());
        rank_check(rank, !"the words");
    }
}

static int refuse_what_does_not_fit(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                                    struct muster_optimizer *optimizer) {
    struct added added;
    (void)job;
    added_init(&added, 0);
    refused(rank, muster_fsdp_load_newest(fsdp, optimizer, folder, &added.state, NULL), MUSTER_EINVAL,
            "tensor w1 is float32 [40, 25] in the file, float32 [25, 40] in the program");
    added.tensor.name = "more";
    refused(rank, muster_fsdp_load_newest(fsdp, NULL, other_folder, &added.state, NULL), MUSTER_EINVAL,
            "tensor more is not in the file");
    added.values[0].name = rank->rank == 1 ? "one" : "two";
    refused(rank, muster_fsdp_load_newest(fsdp, NULL, other_folder, &added.state, NULL), MUSTER_EMISMATCH,
            "the ranks describe different states");
    refused(rank, muster_fsdp_load_newest(fsdp, optimizer, no_folder, NULL, NULL), MUSTER_ENOENT, "rank 0: open");
    refused(rank, save_state(fsdp, rank->rank == 1 ? NULL : optimizer, rank->rank == 0, no_folder, 1), MUSTER_EMISMATCH,
            "the ranks describe different states");
    refused(rank, save_state(fsdp, optimizer, false, no_folder, 1), MUSTER_EINVAL, "no rank saves");
    refused(rank, save_state(fsdp, optimizer, rank->rank == 0, NULL, 1), MUSTER_EINVAL,
            "rank 0: saving a snapshot: folder");
    refused(rank, save_state(fsdp, optimizer, rank->rank == 0, no_folder, -1), MUSTER_EINVAL, "step must be >= 0");
    added.tensor.name = "w1";
    refused(rank, muster_fsdp_save(fsdp, optimizer, rank->rank == 0, no_folder, 1, &added.state, NULL), MUSTER_EINVAL,
            "two tensors are named w1");
    (void)load_state(rank, fsdp, optimizer, other_folder, SAVED);
    return 0;
}

static int refuse_what_is_out_of_order(struct rank *rank, const struct job *job, struct muster_fsdp *fsdp,
                                       struct muster_optimizer *optimizer) {
    struct reference other;
    reference_init(rank, job, &other);
    refused(rank, save_state(fsdp, other.optimizer, rank->rank == 0, folder, 4), MUSTER_EINVAL,
            "rank 0: the optimizer was not made with muster_fsdp_optimizer()");
    reference_free(&other);
    rank_check_code(rank, muster_fsdp_begin(fsdp, MUSTER_FSDP_EVALUATE), 0);
    refused(rank, save_state(fsdp, optimizer, rank->rank == 0, folder, 4), MUSTER_EINVAL, "a step has been begun");
    refused(rank, muster_fsdp_load_newest(fsdp, optimizer, folder, NULL, NULL), MUSTER_EINVAL, "a step has been begun");
    rank_check_code(rank, muster_fsdp_finish(fsdp), 0);
    rank_check_code(rank, muster_fsdp_load_newest(fsdp, NULL, folder, NULL, NULL), 0); /* parameters alone */
    (void)load_state(rank, fsdp, optimizer, folder, SAVED);
    return 0;
}

/* A program that took the matrix for its transpose. */
static int save_another_shape(struct rank *rank, void *argument) {
    struct plain plain;
    plain_init(rank, argument, &plain);
    plain.tensors[3].shape[0] = 40;
    plain.tensors[3].shape[1] = 25;
    rank_check_code(rank, muster_snapshot_save(folder, SAVED, &plain.state, NULL), 0);
    reference_free(&plain.r);
    return 0;
}

static void what_does_not_fit_is_named_on_every_rank(void **state) {
    (void)state;
    for (size_t i = ONE_HOST; i <= TWO_HOSTS; i += TWO_HOSTS) {
        struct job job = next_job_at(&places[i], &places[ONE_HOST]);
        train_and_save(&places[ONE_HOST]);
        assert_int_equal(rename(folder, other_folder), 0);
        ranks_run(1, save_another_shape, &job);
        job.prepare = refuse_what_does_not_fit;
        job_check(places[i].size, &job);
        assert_true(folder_remove(folder) == 2 && folder_remove(other_folder) == 2);
        train_and_save(&places[ONE_HOST]);
        job.prepare = refuse_what_is_out_of_order;
        job_check(places[i].size, &job);
    }
}

#define snapshot_test(name) cmocka_unit_test_setup_teardown(name, folders_set_up, folders_tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        snapshot_test(a_damaged_one_is_passed_over),
        snapshot_test(a_full_disk_is_told_to_all_and_training_goes_on),
        snapshot_test(a_death_in_a_save_leaves_the_one_before),
        snapshot_test(a_gather_that_fails_on_one_rank_is_told_to_all),
        snapshot_test(what_does_not_fit_is_named_on_every_rank),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
