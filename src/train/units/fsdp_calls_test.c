/* What an fsdp asks of its group, and when: order and number of calls, every single one of them failing, and every
 * allocation failing. The group is a fake; real ranks are in fsdp_test.c and fsdp_failure_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "train/reduction/fake_group_test_support.h"
#include "train/units/fsdp_impl.h"

#include <muster/virtual_ranks.h>

/* ---- counting allocations: the linker sends muster_train's here (--wrap) ---- */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void __real_free(void *memory);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void __wrap_free(void *memory);

enum { LIVE_MAX = 128 };
static void *live[LIVE_MAX];
static uint32_t live_count, allocations, fail_allocation;

static void *remember(void *memory) {
    for (size_t i = 0; memory && i < LIVE_MAX; i++) {
        if (!live[i]) {
            live[i] = memory;
            live_count++;
            return memory;
        }
    }
    abort();
}

static void forget(const void *memory) {
    for (size_t i = 0; memory && i < LIVE_MAX; i++) {
        if (live[i] == memory) {
            live[i] = NULL;
            live_count--;
        }
    }
}

static bool fails(void) {
    return ++allocations == fail_allocation;
}

void *__wrap_malloc(size_t bytes) {
    return fails() ? NULL : remember(__real_malloc(bytes));
}

void *__wrap_calloc(size_t count, size_t bytes) {
    return fails() ? NULL : remember(__real_calloc(count, bytes));
}

void *__wrap_realloc(void *memory, size_t bytes) {
    if (fails()) {
        return NULL;
    }
    forget(memory);
    return remember(__real_realloc(memory, bytes));
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
    return fails() ? NULL : remember(__real_aligned_alloc(alignment, bytes));
}

void __wrap_free(void *memory) {
    forget(memory);
    __real_free(memory);
}

/* ---- a model of three units ---- */

enum { UNITS = 3 };
static const struct muster_fsdp_parameter first[] = {{.name = "a.w", .count = 60}, {.name = "a.b", .count = 4}};
static const struct muster_fsdp_parameter second[] = {{.name = "b.w", .count = 64, .block = 16},
                                                      {.name = "b.f", .count = 16, .frozen = true}};
static const struct muster_fsdp_parameter third[] = {{.name = "c.w", .count = 64}};
static const struct muster_fsdp_unit units[UNITS] = {{"a", first, 2}, {"b", second, 2}, {"c", third, 1}};

static int fill(void *context, size_t unit, size_t parameter, float *values) {
    (void)context;
    for (size_t i = 0; i < units[unit].parameters[parameter % 2 == 1 && unit < 2 ? 1 : 0].count; i++) {
        values[i] = 1;
    }
    return 0;
}

/* One rank of so many, on hosts; and how it shards. */
struct scene {
    const char *name;
    uint32_t size, ranks_per_host;
    struct muster_fsdp_options options;
    enum muster_fsdp_step_kind before; /* STEP: nothing */
    uint32_t rank, passes;             /* of each step: with virtual ranks, one for each of this rank's */
};
enum { SCENES = 11 };

static const struct muster_fsdp_options defaults = MUSTER_FSDP_OPTIONS_INIT;

static void make_scenes(struct scene out[SCENES]) {
    const struct scene scenes[SCENES] = {
        {"one host", 3, 0, defaults, MUSTER_FSDP_STEP, 0, 1},
        {"two hosts", 4, 2, defaults, MUSTER_FSDP_NO_SYNC, 0, 1},
        {"a host a rank", 3, 1, defaults, MUSTER_FSDP_ACCUMULATE, 0, 1},
        {"hybrid", 4, 2, defaults, MUSTER_FSDP_STEP, 0, 1},
        {"hybrid, a host a rank", 3, 1, defaults, MUSTER_FSDP_STEP, 0, 1},
        {"one host, with all options", 2, 0, defaults, MUSTER_FSDP_NO_SYNC, 0, 1},
        {"virtual ranks", 3, 0, defaults, MUSTER_FSDP_STEP, 0, 2},
        {"fewer than others", 3, 1, defaults, MUSTER_FSDP_STEP, 2, 1},
        {"virtual ranks, hybrid", 4, 2, defaults, MUSTER_FSDP_STEP, 2, 2},
        {"virtual ranks, sums of hosts", 6, 3, defaults, MUSTER_FSDP_STEP, 3, 2},
        {"virtual ranks alone", 1, 0, defaults, MUSTER_FSDP_STEP, 0, 4},
    };
    memcpy(out, scenes, sizeof scenes);
    for (size_t i = 0; i < SCENES; i++) {
        out[i].options.fill = fill;
    }
    out[1].options.reduce_type = MUSTER_BFLOAT16;
    out[3].options.sharding = out[4].options.sharding = MUSTER_FSDP_HYBRID;
    out[5].options.compute_type = MUSTER_BFLOAT16;
    out[5].options.uneven_inputs = out[5].options.check_finite = out[5].options.find_unused = true;
    out[6].options.virtual_ranks = out[7].options.virtual_ranks = out[10].options.virtual_ranks = 4;
    out[7].options.check_finite = true;
    out[8].options.sharding = MUSTER_FSDP_HYBRID;
    out[8].options.virtual_ranks = 7;
    out[9].options.virtual_ranks = 11;
}

static int use(struct muster_fsdp *fsdp, size_t unit, enum muster_fsdp_pass pass) {
    struct muster_fsdp_view view;
    int status = muster_fsdp_acquire(fsdp, unit, pass, &view);
    if (status == 0 && view.gradients) {
        memset(view.gradients, 0, 64 * sizeof(float));
    }
    return status ? status : muster_fsdp_release(fsdp, unit, pass);
}

static int step(struct muster_fsdp *fsdp, enum muster_fsdp_step_kind kind) {
    int status = muster_fsdp_begin(fsdp, kind);
    for (size_t unit = 0; status == 0 && unit < UNITS; unit++) {
        status = use(fsdp, unit, MUSTER_FSDP_FORWARD);
    }
    for (size_t unit = UNITS; status == 0 && unit-- > 0;) {
        status = use(fsdp, unit, MUSTER_FSDP_BACKWARD);
    }
    return status ? status : muster_fsdp_finish(fsdp);
}

struct trained {
    struct muster_fsdp *fsdp;
    struct muster_optimizer *optimizer;
};

static int train(struct muster_group *group, const struct scene *scene, struct trained *out) {
    const struct muster_adamw_options adamw = {sizeof adamw, 0.01, 0.9, 0.99, 1e-8, 0.1};
    const struct muster_optimizer_group groups[1] = {{.adamw = &adamw}};
    double sum;
    *out = (struct trained){NULL, NULL};
    int status = muster_fsdp_create(group, units, UNITS, &scene->options, &out->fsdp);
    status = status ? status : muster_fsdp_optimizer(out->fsdp, NULL, groups, 1, &out->optimizer);
    for (int round = 0; status == 0 && round < 2; round++) {
        status = scene->before == MUSTER_FSDP_STEP ? 0 : step(out->fsdp, scene->before);
        for (uint32_t pass = 0; pass < scene->passes; pass++) {
            status = status ? status : step(out->fsdp, MUSTER_FSDP_STEP);
        }
        status = status ? status : muster_fsdp_squared_norm(out->fsdp, &sum);
        status = status ? status : muster_fsdp_step(out->fsdp, out->optimizer, 1);
    }
    return status;
}

static void trained_free(struct trained *trained) {
    muster_optimizer_free(trained->optimizer);
    muster_fsdp_free(trained->fsdp);
}

/* ---- order of calls ---- */

static struct trained made(struct muster_group *group, const struct muster_fsdp_options *options) {
    struct trained trained = {NULL, NULL};
    assert_int_equal(muster_fsdp_create(group, units, UNITS, options, &trained.fsdp), 0);
    return trained;
}

#define MEET "all_reduce 6 int32 max; "

static void one_host_gathers_nothing(void **state) {
    (void)state;
    struct muster_group group = {.size = 2};
    struct trained trained = made(&group, NULL);
    assert_string_equal(group.log, "all_gather 2 int64; all_gather 32 uint8; barrier; ");
    fake_group_forget(&group);
    assert_int_equal(step(trained.fsdp, MUSTER_FSDP_STEP), 0);
    /* Behind the backward pass; the last unit in the calling thread. What is done is waited for, which gives it back.
     */
    assert_string_equal(group.log, MEET "reduce_scatter_v 32 float32 average async; wait; "
                                        "reduce_scatter_v 32 float32 average async; wait; "
                                        "reduce_scatter_v 48 float32 average; ");
    fake_group_forget(&group);
    assert_int_equal(step(trained.fsdp, MUSTER_FSDP_NO_SYNC), 0);
    assert_string_equal(group.log, MEET);
    trained_free(&trained);
}

static void hosts_gather_one_unit_ahead(void **state) {
    (void)state;
    struct muster_group group = {.size = 2, .ranks_per_host = 1};
    struct trained trained = made(&group, NULL);
    struct muster_fsdp_view view;
    fake_group_forget(&group);
    assert_int_equal(muster_fsdp_begin(trained.fsdp, MUSTER_FSDP_STEP), 0);
    assert_int_equal(muster_fsdp_acquire(trained.fsdp, 0, MUSTER_FSDP_FORWARD, &view), 0);
    assert_string_equal(group.log, MEET "all_gather_v 48 float32 async; wait; all_gather_v 32 float32 async; "
                                        "all_gather_v 16 float32 async; ");
    fake_group_forget(&group);
    assert_int_equal(muster_fsdp_release(trained.fsdp, 0, MUSTER_FSDP_FORWARD), 0);
    assert_string_equal(group.log, "");
    trained_free(&trained); /* in the middle of a step: waits for what is under way */
    assert_int_equal(group.works_under_way, 0);
    assert_int_equal(group.part_count, 0);
}

/* The first of two ranks with three virtual ranks has two of them, the other one is out of work in the second round: it
 * gathers and gives what the first has still to compute with, and to average. */
static void a_rank_without_a_virtual_rank_goes_along(void **state) {
    (void)state;
    struct muster_group group = {.rank = 1, .size = 2, .ranks_per_host = 1};
    struct muster_fsdp_options options = MUSTER_FSDP_OPTIONS_INIT;
    options.virtual_ranks = 3;
    options.prefetch = 0;
    struct trained trained = made(&group, &options);
    struct muster_fsdp_statistics numbers;
    fake_group_forget(&group);
    assert_int_equal(step(trained.fsdp, MUSTER_FSDP_STEP), 0);
    assert_string_equal(
        group.log,
        MEET "all_gather_v 32 float32 async; wait; "
             "all_gather_v 32 float32 async; all_gather_v 0 float32 async; wait; wait; "
             "all_gather_v 32 float32 async; wait; "
             "all_to_all_v 32 float32 async; wait; all_to_all_v 32 float32 async; wait; "
             "all_gather_v 32 float32 async; wait; all_to_all_v 32 float32; " /* units 1 and 0 are left there */
        MEET "all_gather_v 32 float32 async; wait; "
             "all_to_all_v 0 float32 async; wait; all_to_all_v 0 float32 async; wait; "
             "all_gather_v 32 float32 async; wait; all_to_all_v 0 float32; ");
    assert_int_equal(muster_fsdp_statistics(trained.fsdp, &numbers), 0);
    assert_int_equal(numbers.step_count, 1);
    trained_free(&trained);
}

/* What does not go together, and what is out of order between the virtual ranks of a step. */
static void wrong_use_of_virtual_ranks_is_told(void **state) {
    (void)state;
    struct muster_group group = {.size = 2};
    struct muster_fsdp_options options = MUSTER_FSDP_OPTIONS_INIT;
    struct muster_fsdp *fsdp = NULL;
    double sum;
    options.virtual_ranks = 1;
    assert_int_equal(muster_fsdp_create(&group, units, UNITS, &options, &fsdp), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "2 ranks, but only 1 virtual ranks"));
    options.virtual_ranks = MUSTER_VIRTUAL_RANKS_MAX + 1;
    assert_int_equal(muster_fsdp_create(&group, units, UNITS, &options, &fsdp), MUSTER_EINVAL);
    options.virtual_ranks = 4;
    options.uneven_inputs = true;
    assert_int_equal(muster_fsdp_create(&group, units, UNITS, &options, &fsdp), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "virtual_ranks with uneven_inputs"));
    options.uneven_inputs = false;
    options.hook = muster_ddp_hook_bfloat16();
    assert_int_equal(muster_fsdp_create(&group, units, UNITS, &options, &fsdp), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "virtual_ranks with a hook"));
    options.hook = NULL;
    assert_int_equal(group.failed, 0);
    struct trained trained = made(&group, &options);
    assert_int_equal(muster_fsdp_begin(trained.fsdp, MUSTER_FSDP_NO_SYNC), MUSTER_EINVAL);
    assert_int_equal(muster_fsdp_begin(trained.fsdp, MUSTER_FSDP_ACCUMULATE), MUSTER_EINVAL);
    assert_int_equal(step(trained.fsdp, MUSTER_FSDP_STEP), 0);
    assert_int_equal(muster_fsdp_squared_norm(trained.fsdp, &sum), MUSTER_EINVAL);
    assert_int_equal(muster_fsdp_begin(trained.fsdp, MUSTER_FSDP_EVALUATE), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "1 of 2 are done"));
    assert_int_equal(step(trained.fsdp, MUSTER_FSDP_STEP), 0);
    assert_int_equal(muster_fsdp_squared_norm(trained.fsdp, &sum), 0);
    assert_int_equal(muster_fsdp_begin(trained.fsdp, MUSTER_FSDP_EVALUATE), 0);
    assert_int_equal(muster_fsdp_finish(trained.fsdp), 0);
    trained_free(&trained);
}

static void evaluating_reduces_nothing(void **state) {
    (void)state;
    struct muster_group group = {.size = 2};
    struct trained trained = made(&group, NULL);
    fake_group_forget(&group);
    assert_int_equal(muster_fsdp_begin(trained.fsdp, MUSTER_FSDP_EVALUATE), 0);
    assert_int_equal(use(trained.fsdp, 1, MUSTER_FSDP_FORWARD), 0);
    assert_int_equal(muster_fsdp_finish(trained.fsdp), 0);
    assert_string_equal(group.log, MEET);
    assert_int_equal(group.allocation_count, 0);
    trained_free(&trained);
}

/* Another's optimizer would write other parameters with these gradients. */
static void a_step_takes_an_optimizer_of_this_fsdp_alone(void **state) {
    (void)state;
    const struct muster_sgd_options options = MUSTER_SGD_OPTIONS_INIT;
    const struct muster_optimizer_group sgd[1] = {{.sgd = &options}};
    static const char expected[] =
        "muster_fsdp_step: the optimizer was not made with muster_fsdp_optimizer() for this fsdp";
    float alone[4] = {0};
    const struct muster_optimizer_parameter parameter = {"w", alone, 4};
    struct muster_group group = {.size = 2};
    struct trained one = made(&group, NULL), other = made(&group, NULL);
    struct muster_optimizer *plain = NULL;
    assert_int_equal(muster_fsdp_optimizer(one.fsdp, NULL, sgd, 1, &one.optimizer), 0);
    assert_int_equal(muster_fsdp_optimizer(other.fsdp, NULL, sgd, 1, &other.optimizer), 0);
    assert_int_equal(muster_optimizer_create_sgd(&parameter, 1, &options, &plain), 0);
    assert_int_equal(step(one.fsdp, MUSTER_FSDP_STEP), 0);
    assert_int_equal(muster_fsdp_step(one.fsdp, other.optimizer, 1), MUSTER_EINVAL);
    assert_string_equal(muster_detail(), expected);
    assert_int_equal(muster_fsdp_step(one.fsdp, plain, 1), MUSTER_EINVAL);
    assert_string_equal(muster_detail(), expected);
    assert_int_equal(muster_fsdp_step(one.fsdp, one.optimizer, 1), 0); /* nothing has failed */
    muster_optimizer_free(plain);
    trained_free(&one);
    trained_free(&other);
}

/* ---- failures ---- */

static uint32_t descriptors(void) {
    DIR *folder = opendir("/proc/self/fd");
    uint32_t count = 0;
    while (folder && readdir(folder)) {
        count++;
    }
    if (folder) {
        (void)closedir(folder);
    }
    return count;
}

/* Whatever failed, nobody waits for this rank in any of its groups. */
static void check_told(const struct muster_group *group) {
    assert_int_not_equal(group->failed, 0);
    for (uint32_t i = 0; i < group->part_count; i++) {
        assert_int_not_equal(group->parts[i]->failed, 0);
    }
}

/* In the passes each sentence names a unit, but where the ranks meet for another one. */
static void check_sentence(const char *detail) {
    bool is_in_pass = strstr(detail, "muster_fsdp_acquire: ") || strstr(detail, "muster_fsdp_release: ") ||
                      strstr(detail, "muster_fsdp_finish: ");
    bool is_clear = strstr(detail, "unit ") || strstr(detail, "last virtual ranks");
    if (strstr(detail, "muster_fsdp_") != detail || (is_in_pass && !is_clear)) {
        fail_msg("no call, or no unit: %s", detail);
    }
}

static void check_freed(struct muster_group *group, struct trained *trained) {
    trained_free(trained);
    assert_int_equal(group->works_under_way, 0);
    assert_int_equal(group->allocation_count, 0);
    assert_int_equal(group->part_count, 0);
    assert_int_equal(live_count, 0);
}

static void check_failure(struct muster_group *group, struct trained *trained, int status, int expected) {
    assert_true(status == MUSTER_OK || status == expected);
    if (status != MUSTER_OK) {
        check_sentence(muster_detail());
        check_told(group);
        assert_true(!trained->fsdp || muster_fsdp_begin(trained->fsdp, MUSTER_FSDP_STEP) == status); /* it stays so */
    }
    check_freed(group, trained);
}

/* Every call in turn: nothing is lost, and nobody is left waiting. */
static void each_call_fails_once(void **state) {
    (void)state;
    const int codes[] = {MUSTER_EPEER, MUSTER_ENOMEM};
    struct scene scenes[SCENES];
    make_scenes(scenes);
    for (size_t i = 0; i < (size_t)SCENES * 4; i++) {
        const struct scene *scene = &scenes[i / 4];
        uint32_t n = 0, before = descriptors();
        for (int status = -1; status != MUSTER_OK;) {
            struct muster_group group = {.rank = scene->rank,
                                         .size = scene->size,
                                         .ranks_per_host = scene->ranks_per_host,
                                         .fail_at = ++n,
                                         .fail_code = codes[i % 2],
                                         .fail_in_wait = i % 4 > 1};
            struct trained trained;
            status = train(&group, scene, &trained);
            check_failure(&group, &trained, status, codes[i % 2]);
        }
        assert_in_range(n, 15, 150); /* it did go through them all */
        assert_int_equal(descriptors(), before);
    }
}

static void each_allocation_fails_once(void **state) {
    (void)state;
    struct scene scenes[SCENES];
    make_scenes(scenes);
    for (size_t i = 0; i < SCENES; i++) {
        const struct scene *scene = &scenes[i];
        uint32_t n = 0, before = descriptors();
        for (int status = -1; status != MUSTER_OK;) {
            struct muster_group group = {
                .rank = scene->rank, .size = scene->size, .ranks_per_host = scene->ranks_per_host};
            struct trained trained;
            allocations = 0;
            fail_allocation = ++n;
            status = train(&group, scene, &trained);
            fail_allocation = 0;
            check_failure(&group, &trained, status, MUSTER_ENOMEM);
        }
        assert_in_range(n, 20, 250);
        assert_int_equal(descriptors(), before);
    }
}

/* A plan has no group to tell, and nothing is left of it. */
static void each_allocation_of_a_plan_fails_once(void **state) {
    (void)state;
    uint32_t n = 0;
    for (int status = -1; status != MUSTER_OK;) {
        struct muster_fsdp_memory memory;
        allocations = 0;
        fail_allocation = ++n;
        status = muster_fsdp_plan(units, UNITS, NULL, 2, 2, 2, &memory);
        fail_allocation = 0;
        assert_true(status == MUSTER_OK || status == MUSTER_ENOMEM);
        assert_int_equal(live_count, 0);
    }
    assert_in_range(n, 4, 30);
}

/* ---- a rank that dies while the others open its memory ---- */

static void maker_dies(struct muster_group *group, void *receive, size_t block_bytes) {
    (void)receive; /* the fake's others offer nothing that could be opened */
    group->failed = block_bytes == 32 ? MUSTER_EPEER : group->failed;
}

/* What the kernel says of it, that a file is not there, is not the reason. */
static void a_maker_that_died_is_the_reason(void **state) {
    (void)state;
    struct muster_group group = {.rank = 1, .size = 2, .gathered = maker_dies};
    struct trained trained = {NULL, NULL};
    assert_int_equal(muster_fsdp_create(&group, units, UNITS, NULL, &trained.fsdp), MUSTER_EPEER);
    assert_non_null(strstr(muster_detail(), "for parameters: the fake has failed before"));
    check_freed(&group, &trained);
}

/* ---- ranks without data ---- */

static void others_step(struct muster_group *group, void *receive, size_t block_bytes) {
    (void)group;
    if (block_bytes == 1) {
        ((uint8_t *)receive)[1] = PRESENCE_WITH_SYNC;
    }
}

static void each_call_of_a_shadowed_step_fails_once(void **state) {
    (void)state;
    for (uint32_t each = 0; each < 2; each++) {
        uint32_t n = 0;
        for (int status = -1; status != MUSTER_OK;) {
            struct muster_group group = {.size = 2, .ranks_per_host = each, .gathered = others_step};
            struct muster_fsdp_options options = MUSTER_FSDP_OPTIONS_INIT;
            bool stepped = false;
            options.uneven_inputs = true;
            struct trained trained = made(&group, &options);
            group.fail_at = group.call_count + ++n;
            group.fail_code = MUSTER_EPEER;
            status = muster_fsdp_shadow(trained.fsdp, &stepped);
            assert_true(stepped == (status == MUSTER_OK));
            check_failure(&group, &trained, status, MUSTER_EPEER);
        }
        assert_in_range(n, 5, 40);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_host_gathers_nothing),
        cmocka_unit_test(hosts_gather_one_unit_ahead),
        cmocka_unit_test(a_rank_without_a_virtual_rank_goes_along),
        cmocka_unit_test(wrong_use_of_virtual_ranks_is_told),
        cmocka_unit_test(evaluating_reduces_nothing),
        cmocka_unit_test(a_step_takes_an_optimizer_of_this_fsdp_alone),
        cmocka_unit_test(each_call_fails_once),
        cmocka_unit_test(each_allocation_fails_once),
        cmocka_unit_test(each_allocation_of_a_plan_fails_once),
        cmocka_unit_test(a_maker_that_died_is_the_reason),
        cmocka_unit_test(each_call_of_a_shadowed_step_fails_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
