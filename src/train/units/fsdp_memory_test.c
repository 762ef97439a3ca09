/* The memory of an fsdp: what a plan says beforehand is what there is in the end, by its own account and by the
 * kernel's.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/collective.h>
#include <muster/optimizer.h>

#include "base/folder_test_support.h"
#include "base/testing/parts_test_support.h"
#include "train/units/fsdp_test_support.h"

enum { RANKS = 6, STATES = 2 };

static char folder[80];

struct scene {
    struct muster_fsdp_options options;
    const struct muster_fsdp_unit *units;
    size_t unit_count;
    uint32_t hosts, each;
    bool is_in_smaps; /* large enough to compare with what the kernel counts */
};

/* ---- steps, so that everything that is needed is there ---- */

/* Elements of a unit that learn, or all; with what lies between parameters. */
static size_t elements(const struct muster_fsdp_unit *unit, bool all) {
    size_t count = 0;
    for (size_t i = 0; i < unit->parameter_count; i++) {
        const struct muster_fsdp_parameter *parameter = &unit->parameters[i];
        size_t room = (parameter->count + MUSTER_FSDP_ALIGNMENT - 1) / MUSTER_FSDP_ALIGNMENT * MUSTER_FSDP_ALIGNMENT;
        count += parameter->frozen && !all ? 0 : room;
    }
    return count;
}

/* Touches every page of what acquire gives. */
static void use(struct rank *rank, const struct scene *scene, const struct muster_fsdp_view *view, size_t unit) {
    const struct muster_fsdp_unit *used = &scene->units[unit];
    const volatile unsigned char *parameters = view->parameters;
    size_t bytes = elements(used, true) * muster_type_bytes(scene->options.compute_type);
    unsigned char seen = 0;
    for (size_t i = 0; i < bytes; i += 64) {
        seen |= parameters[i];
    }
    rank_check(rank, seen == 0); /* nobody filled them, and gradients of zero leave them */
    if (view->gradients) {
        memset(view->gradients, 0, elements(used, false) * muster_type_bytes(scene->options.gradient_type));
    }
}

static void pass_over(struct rank *rank, const struct scene *scene, struct muster_fsdp *fsdp,
                      enum muster_fsdp_pass pass) {
    for (size_t i = 0; i < scene->unit_count; i++) {
        size_t unit = pass == MUSTER_FSDP_FORWARD ? i : scene->unit_count - 1 - i;
        struct muster_fsdp_view view;
        rank_check_code(rank, muster_fsdp_acquire(fsdp, unit, pass, &view), 0);
        use(rank, scene, &view, unit);
        rank_check_code(rank, muster_fsdp_release(fsdp, unit, pass), 0);
    }
}

static void train(struct rank *rank, const struct scene *scene, struct muster_fsdp *fsdp,
                  struct muster_optimizer *optimizer) {
    size_t virtual_ranks = scene->options.virtual_ranks;
    for (int step = 0; step < 3; step++) {
        for (size_t v = rank->rank; v < virtual_ranks || v == rank->rank; v += rank->size) {
            rank_check_code(rank, muster_fsdp_begin(fsdp, MUSTER_FSDP_STEP), 0);
            pass_over(rank, scene, fsdp, MUSTER_FSDP_FORWARD);
            pass_over(rank, scene, fsdp, MUSTER_FSDP_BACKWARD);
            rank_check_code(rank, muster_fsdp_finish(fsdp), 0);
        }
        if (optimizer) {
            rank_check_code(rank, muster_fsdp_step(fsdp, optimizer, 1), 0);
        }
    }
}

/* ---- what the kernel counts ---- */

/* Each page of a mapping counts for its share among those who map it. */
static size_t proportional_bytes(struct rank *rank) {
    char line[512];
    bool is_state = false;
    size_t bytes = 0, kib = 0, begin, end;
    FILE *maps = fopen("/proc/self/smaps", "re");
    rank_check(rank, maps != NULL);
    while (fgets(line, sizeof line, maps)) {
        if (sscanf(line, "%zx-%zx ", &begin, &end) == 2) { /* a mapping begins */
            is_state = strstr(line, "/memfd:muster-state") != NULL;
        }
        bytes += is_state && sscanf(line, "Pss: %zu kB", &kib) == 1 ? kib * 1024 : 0;
    }
    (void)fclose(maps);
    return bytes;
}

static void check_smaps(struct rank *rank, struct muster_group *group, const struct muster_fsdp_memory *now) {
    double sums[2] = {(double)proportional_bytes(rank),
                      muster_group_local_rank(group) == 0 ? (double)now->host_bytes : 0};
    rank_check_code(rank, muster_all_reduce(group, sums, sums, 2, MUSTER_FLOAT64, MUSTER_OP_SUM, NULL), 0);
    char said[128];
    (void)snprintf(said, sizeof said, "the kernel counts %.0f bytes, the fsdp %.0f", sums[0], sums[1]);
    rank_report(rank, said);
    rank_check(rank, sums[0] <= 1.02 * sums[1] && sums[0] >= 0.98 * sums[1]);
}

/* ---- the comparison ---- */

/* Of the host and of the rank that need most. Where reductions end early, a rank needs one buffer in place of two. */
static void check_plan(struct rank *rank, struct muster_group *group, const struct scene *scene,
                       const struct muster_fsdp_memory *now) {
    struct muster_fsdp_memory planned;
    char said[256];
    rank_check_code(
        rank,
        muster_fsdp_plan(scene->units, scene->unit_count, &scene->options, scene->hosts, scene->each, STATES, &planned),
        0);
    rank_check(rank,
               now->host_bytes == now->parameter_bytes + now->copy_bytes + now->state_bytes + now->gathered_bytes);
    rank_check(rank,
               now->rank_bytes == now->shard_bytes + now->gradient_bytes + now->overhead_bytes + now->waiting_bytes);
    int64_t most[5] = {(int64_t)now->host_bytes, (int64_t)now->shard_bytes, (int64_t)now->gradient_peak_bytes,
                       (int64_t)now->gathered_bytes, (int64_t)now->waiting_bytes};
    rank_check_code(rank, muster_all_reduce(group, most, most, 5, MUSTER_INT64, MUSTER_OP_MAX, NULL), 0);
    (void)snprintf(said, sizeof said, "host %zu: %lld, shard %zu: %lld, gradients %zu: %lld, gathered %zu: %lld",
                   planned.host_bytes, (long long)most[0], planned.shard_bytes, (long long)most[1],
                   planned.gradient_peak_bytes, (long long)most[2], planned.gathered_bytes, (long long)most[3]);
    rank_report(rank, said);
    int64_t gradients = (int64_t)planned.gradient_bytes;
    rank_check(rank, (int64_t)planned.host_bytes == most[0] && (int64_t)planned.shard_bytes == most[1]);
    rank_check(rank, planned.rank_bytes == planned.shard_bytes + planned.gradient_bytes + planned.waiting_bytes);
    rank_check(rank, (int64_t)planned.waiting_bytes == most[4]);
    rank_check(rank, planned.gradient_peak_bytes == planned.gradient_bytes && planned.overhead_bytes == 0);
    rank_check(rank, most[2] == gradients || most[2] == gradients / 2);
    rank_check(rank, (int64_t)planned.gathered_bytes == most[3]);
}

static int compare(struct rank *rank, void *argument) {
    const struct scene *scene = argument;
    const struct muster_adamw_options adamw = {sizeof adamw, 0.01, 0.9, 0.99, 1e-8, 0.1};
    const struct muster_optimizer_group groups[1] = {{.adamw = &adamw}};
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_fsdp *fsdp = NULL;
    struct muster_optimizer *optimizer = NULL;
    struct muster_fsdp_memory now;
    rank_check_code(rank, muster_fsdp_create(group, scene->units, scene->unit_count, &scene->options, &fsdp), 0);
    if (muster_fsdp_range_count(fsdp) > 0) {
        rank_check_code(rank, muster_fsdp_optimizer(fsdp, NULL, groups, 1, &optimizer), 0);
    }
    train(rank, scene, fsdp, optimizer);
    rank_check_code(rank, muster_fsdp_memory(fsdp, &now), 0);
    check_plan(rank, group, scene, &now);
    if (scene->is_in_smaps) {
        check_smaps(rank, group, &now);
    }
    rank_check_code(rank, muster_barrier(group, NULL), 0); /* who unmaps it gives its share to the others */
    muster_optimizer_free(optimizer);
    muster_fsdp_free(fsdp);
    muster_group_free(group);
    return 0;
}

static void check_scene(const struct scene *given, uint32_t hosts, uint32_t each) {
    struct scene scene = *given;
    scene.hosts = hosts;
    scene.each = each;
    const struct ranks_options options = {.ranks_per_host = each};
    assert_in_range(hosts * each, 1, RANKS);
    ranks_run_with(hosts * each, compare, &scene, &options);
}

static void check_everywhere(const struct scene *scene) {
    static const uint32_t layouts[][2] = {{1, 1}, {1, 3}, {2, 1}, {2, 2}, {2, 3}, {3, 1}, {3, 2}};
    unsigned stride = part_stride("whole_matrix", 3);
    for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i += stride) {
        check_scene(scene, layouts[i][0], layouts[i][1]);
    }
}

static struct scene scene_of(const struct job *job) {
    return (struct scene){.options = job->options, .units = job_units(job), .unit_count = UNITS};
}

static void plans_come_true(void **state) {
    (void)state;
    struct job job = JOB_INIT;
    struct scene scene = scene_of(&job);
    check_everywhere(&scene);
    job.options.compute_type = job.options.reduce_type = MUSTER_BFLOAT16;
    scene = scene_of(&job);
    check_everywhere(&scene);
    job.options.sharding = MUSTER_FSDP_HYBRID;
    job.block = 250;
    scene = scene_of(&job);
    check_everywhere(&scene);
}

static void plans_know_virtual_ranks(void **state) {
    (void)state;
    for (size_t virtual_ranks = 7; virtual_ranks <= 31; virtual_ranks += 24) {
        struct job job = JOB_INIT;
        job.options.virtual_ranks = virtual_ranks;
        job.block = 250;
        struct scene scene = scene_of(&job);
        check_everywhere(&scene);
        job.options.sharding = MUSTER_FSDP_HYBRID;
        scene = scene_of(&job);
        check_everywhere(&scene);
        job.options.reduce_type = MUSTER_BFLOAT16;
        scene = scene_of(&job);
        check_everywhere(&scene);
    }
}

static void plans_know_frozen_parameters(void **state) {
    (void)state;
    /* Parts of units, whole ones; all but one unit; everything. */
    const uint32_t masks[] = {1U << 2 | 1U << 4 | 1U << 8, 0x7fcU, 0x7ffU};
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        struct job job = JOB_INIT;
        job.frozen = masks[i];
        struct scene scene = scene_of(&job);
        check_everywhere(&scene);
        job.options.gradient_type = MUSTER_BFLOAT16;
        job.options.sharding = MUSTER_FSDP_HYBRID;
        scene = scene_of(&job);
        check_everywhere(&scene);
    }
}

/* Two of three hosts store as much. One of them has what learns, and so what the optimizer remembers. */
static void the_host_that_needs_most_counts(void **state) {
    (void)state;
    const struct muster_fsdp_parameter learns[] = {{.name = "learns", .count = 128, .block = 128}};
    const struct muster_fsdp_parameter stays[] = {{.name = "stays", .count = 128, .block = 128, .frozen = true},
                                                  {.name = "stays too", .count = 64, .frozen = true}};
    const struct muster_fsdp_unit units[] = {{"a", learns, 1}, {"b", stays, 2}};
    const struct scene scene = {.options = MUSTER_FSDP_OPTIONS_INIT, .units = units, .unit_count = 2};
    for (uint32_t hosts = 2; hosts <= 5; hosts++) {
        check_scene(&scene, hosts, 1);
    }
}

static void prefetching_and_keeping_are_planned(void **state) {
    (void)state;
    struct job job = JOB_INIT;
    for (uint32_t prefetch = 0; prefetch <= 8; prefetch += 2) {
        job.options.prefetch = prefetch;
        struct scene scene = scene_of(&job);
        check_scene(&scene, 2, 2);
    }
    job.options.reshard_after_forward = false;
    struct scene scene = scene_of(&job);
    check_scene(&scene, 3, 1);
    check_scene(&scene, 2, 2);
}

/* A few megabytes, so that pages and headers do not matter. Units of one size, so that all of a gathered one is used.
 */
static void the_kernel_counts_the_same(void **state) {
    (void)state;
    static const size_t large = 300000;
    const struct muster_fsdp_parameter first[] = {{.name = "w0", .count = large}, {.name = "b0", .count = 100}};
    const struct muster_fsdp_parameter second[] = {{.name = "w1", .count = large / 2, .block = 1000},
                                                   {.name = "f1", .count = large / 2, .frozen = true}};
    const struct muster_fsdp_parameter third[] = {{.name = "w2", .count = large}};
    const struct muster_fsdp_unit units[] = {{"0", first, 2}, {"1", second, 2}, {"2", third, 1}};
    struct scene scene = {.options = MUSTER_FSDP_OPTIONS_INIT, .units = units, .unit_count = 3, .is_in_smaps = true};
    check_scene(&scene, 1, 3);
    check_scene(&scene, 2, 2);
    scene.options.compute_type = MUSTER_BFLOAT16;
    check_scene(&scene, 3, 1);
    scene.options.sharding = MUSTER_FSDP_HYBRID;
    check_scene(&scene, 2, 2);
}

/* ---- on request ---- */

static bool is_near(size_t planned, int64_t found) {
    return (double)found <= 1.02 * (double)planned && (double)found >= 0.98 * (double)planned;
}

/* Keeps the state with copies on peer hosts, and saves it in the background. */
static int ask_for_all(struct rank *rank, void *argument) {
    const struct scene *scene = argument;
    const struct muster_adamw_options adamw = MUSTER_ADAMW_OPTIONS_INIT;
    const struct muster_optimizer_group groups[1] = {{.adamw = &adamw}};
    struct muster_fsdp_keep_options keep = MUSTER_FSDP_KEEP_OPTIONS_INIT;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_fsdp *fsdp = NULL;
    struct muster_optimizer *optimizer = NULL;
    struct muster_fsdp_memory now, planned;
    int64_t step = 0;
    keep.copies_every = 1;
    rank_check_code(rank, muster_fsdp_create(group, scene->units, scene->unit_count, &scene->options, &fsdp), 0);
    rank_check_code(rank, muster_fsdp_optimizer(fsdp, NULL, groups, 1, &optimizer), 0);
    rank_check_code(rank, muster_fsdp_keep(fsdp, optimizer, NULL, &keep, &step), 0);
    rank_check_code(rank, muster_fsdp_commit(fsdp, 0, NULL), 0);
    rank_check_code(rank, muster_fsdp_start_checkpoint(fsdp, folder, NULL, NULL, NULL), 0);
    rank_check_code(rank, muster_fsdp_wait_checkpoint(fsdp), 0);
    rank_check_code(rank, muster_fsdp_memory(fsdp, &now), 0);
    int64_t most[3] = {(int64_t)now.kept_bytes, (int64_t)now.background_bytes, (int64_t)now.peer_bytes};
    rank_check_code(rank, muster_all_reduce(group, most, most, 3, MUSTER_INT64, MUSTER_OP_MAX, NULL), 0);
    rank_check_code(
        rank,
        muster_fsdp_plan(scene->units, scene->unit_count, &scene->options, scene->hosts, scene->each, STATES, &planned),
        0);
    char said[256];
    (void)snprintf(said, sizeof said, "kept %zu: %lld, background %zu: %lld, peers %zu: %lld", planned.kept_bytes,
                   (long long)most[0], planned.background_bytes, (long long)most[1], planned.peer_bytes,
                   (long long)most[2]);
    rank_report(rank, said);
    rank_check(rank, is_near(planned.kept_bytes, most[0]) && is_near(planned.background_bytes, most[1]));
    rank_check(rank, is_near(planned.peer_bytes, most[2]));
    rank_check(rank, planned.rank_bytes == planned.shard_bytes + planned.gradient_bytes);
    muster_optimizer_free(optimizer);
    muster_fsdp_free(fsdp);
    muster_group_free(group);
    return 0;
}

static void what_is_asked_for_besides_is_planned(void **state) {
    (void)state;
    static const size_t large = 900000; /* so that headers and pages do not matter */
    const struct muster_fsdp_parameter first[] = {{.name = "w0", .count = large}, {.name = "b0", .count = 100}};
    const struct muster_fsdp_parameter second[] = {{.name = "w1", .count = large / 2},
                                                   {.name = "f1", .count = large / 2, .frozen = true}};
    const struct muster_fsdp_unit units[] = {{"0", first, 2}, {"1", second, 2}};
    struct scene scene = {.options = MUSTER_FSDP_OPTIONS_INIT, .units = units, .unit_count = 2};
    static const uint32_t layouts[][2] = {{1, 3}, {2, 2}, {3, 1}};
    for (size_t i = 0; i < 2 * sizeof layouts / sizeof *layouts; i++) {
        scene.options.sharding = i % 2 == 0 ? MUSTER_FSDP_FULL : MUSTER_FSDP_HYBRID;
        scene.hosts = layouts[i / 2][0];
        scene.each = layouts[i / 2][1];
        const struct ranks_options options = {.ranks_per_host = scene.each};
        ranks_run_with(scene.hosts * scene.each, ask_for_all, &scene, &options);
        assert_true(folder_remove(folder) > 0);
    }
}

static int folder_set_up(void **state) {
    const char *temporary = getenv("TMPDIR");
    (void)state;
    int length = snprintf(folder, sizeof folder, "%.40s/muster-fsdp-memory-XXXXXX", temporary ? temporary : "/tmp");
    return length < (int)sizeof folder && mkdtemp(folder) ? 0 : -1;
}

static void plans_refuse_what_cannot_be(void **state) {
    (void)state;
    const struct job job = JOB_INIT;
    const struct muster_fsdp_unit *units = job_units(&job);
    struct muster_fsdp_memory memory = {.host_bytes = 1};
    assert_int_equal(muster_fsdp_plan(units, UNITS, NULL, 0, 1, 2, &memory), MUSTER_EINVAL);
    assert_int_equal(muster_fsdp_plan(units, UNITS, NULL, 1, 0, 2, &memory), MUSTER_EINVAL);
    assert_int_equal(muster_fsdp_plan(units, UNITS, NULL, 65536, 65536, 2, &memory), MUSTER_EINVAL);
    assert_int_equal(muster_fsdp_plan(units, 0, NULL, 1, 1, 2, &memory), MUSTER_EINVAL);
    assert_int_equal(muster_fsdp_plan(NULL, UNITS, NULL, 1, 1, 2, &memory), MUSTER_EINVAL);
    assert_int_equal(muster_fsdp_plan(units, UNITS, NULL, 1, 1, 2, NULL), MUSTER_EINVAL);
    struct muster_fsdp_options options = MUSTER_FSDP_OPTIONS_INIT;
    options.virtual_ranks = 5;
    assert_int_equal(muster_fsdp_plan(units, UNITS, &options, 2, 3, 2, &memory), MUSTER_EINVAL);
    assert_int_equal(memory.host_bytes, 1);
    const struct muster_fsdp_parameter huge = {.name = "huge", .count = MUSTER_COLLECTIVE_BYTES_MAX + 1};
    const struct muster_fsdp_unit unit = {"unit", &huge, 1};
    assert_int_equal(muster_fsdp_plan(&unit, 1, NULL, 1, 1, 2, &memory), MUSTER_ELIMIT);
}

int main(void) {
    (void)unsetenv("MUSTER_HELD_SOCKET");
    (void)unsetenv("LOCAL_RANK");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_come_true),
        cmocka_unit_test(plans_know_virtual_ranks),
        cmocka_unit_test(plans_know_frozen_parameters),
        cmocka_unit_test(the_host_that_needs_most_counts),
        cmocka_unit_test(prefetching_and_keeping_are_planned),
        cmocka_unit_test(the_kernel_counts_the_same),
        cmocka_unit_test(what_is_asked_for_besides_is_planned),
        cmocka_unit_test(plans_refuse_what_cannot_be),
    };
    return cmocka_run_group_tests(tests, folder_set_up, NULL);
}
