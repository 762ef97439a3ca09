/* What a ddp asks of its group, and when: order and number of calls, every single one of them failing, every allocation
 * failing, the memory to the byte, and wrong use. The group is a fake; real ranks are in ddp_test.c. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <muster/ddp.h>

#include <cmocka.h>

#include "base/status.h"
#include "train/reduction/ddp_impl.h"
#include "train/reduction/fake_group_test_support.h"

/* ---- counting allocations: the linker sends muster_train's here (--wrap) ---- */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void __real_free(void *memory);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void __wrap_free(void *memory);

enum { LIVE_MAX = 64 };
static struct {
    void *memory;
    size_t bytes;
} live[LIVE_MAX];
static uint32_t allocations, fail_allocation;

static void *remember(void *memory, size_t bytes) {
    for (size_t i = 0; i < LIVE_MAX; i++) {
        if (!live[i].memory) {
            live[i].memory = memory;
            live[i].bytes = bytes;
            return memory;
        }
    }
    abort();
}

void *__wrap_malloc(size_t bytes) {
    return ++allocations == fail_allocation ? NULL : remember(__real_malloc(bytes), bytes);
}

void *__wrap_calloc(size_t count, size_t bytes) {
    return ++allocations == fail_allocation ? NULL : remember(__real_calloc(count, bytes), count * bytes);
}

void __wrap_free(void *memory) {
    for (size_t i = 0; memory && i < LIVE_MAX; i++) {
        if (live[i].memory == memory) {
            live[i].memory = NULL;
        }
    }
    __real_free(memory);
}

static size_t live_bytes(void) {
    size_t bytes = 0;
    for (size_t i = 0; i < LIVE_MAX; i++) {
        bytes += live[i].memory ? live[i].bytes : 0;
    }
    return bytes;
}

/* ---- a model of four parameters: buckets of 64 bytes make one each ---- */

enum { PARAMETERS = 4, COUNT = 16 };
static float data[PARAMETERS][COUNT], statistics[3];
static int64_t tracked;
static const char *const names[PARAMETERS] = {"conv.weight", "conv.bias", "fc.weight", "fc.bias"};

static const struct muster_ddp_buffer buffers[2] = {{"running", MUSTER_FLOAT32, 3, statistics},
                                                    {"tracked", MUSTER_INT64, 1, &tracked}};

static int create(struct muster_group *group, const struct muster_ddp_options *options, struct muster_ddp **out) {
    struct muster_ddp_parameter parameters[PARAMETERS];
    for (size_t i = 0; i < PARAMETERS; i++) {
        parameters[i] = (struct muster_ddp_parameter){names[i], MUSTER_FLOAT32, COUNT, data[i], NULL};
    }
    return muster_ddp_create(group, parameters, PARAMETERS, buffers, 2, options, out);
}

static struct muster_ddp_options small_buckets(void) {
    struct muster_ddp_options options = MUSTER_DDP_OPTIONS_INIT;
    options.first_bucket_bytes = options.bucket_bytes = COUNT * sizeof(float);
    options.broadcast_buffers = false;
    return options;
}

static struct muster_ddp *made(struct muster_group *group, const struct muster_ddp_options *options) {
    struct muster_ddp *ddp = NULL;
    assert_int_equal(create(group, options, &ddp), MUSTER_OK);
    fake_group_forget(group);
    return ddp;
}

static int step(struct muster_ddp *ddp, const size_t order[PARAMETERS]) {
    int status = muster_ddp_begin(ddp);
    for (size_t i = 0; status == MUSTER_OK && i < PARAMETERS; i++) {
        ((float *)muster_ddp_gradient(ddp, order[i]))[0] = (float)order[i];
        status = muster_ddp_ready(ddp, order[i]);
    }
    int finished = muster_ddp_finish(ddp);
    return status != MUSTER_OK ? status : finished;
}

static const size_t backward[PARAMETERS] = {3, 2, 1, 0}, mixed[PARAMETERS] = {2, 0, 3, 1};

/* ---- order of calls ---- */

static void creating_compares_and_copies(void **state) {
    (void)state;
    struct muster_group group = {.size = 2};
    struct muster_ddp *ddp = NULL;
    assert_int_equal(create(&group, NULL, &ddp), MUSTER_OK);
    assert_string_equal(group.log, "all_gather 2 int64; broadcast 16 float32 from 0; broadcast 16 float32 from 0; "
                                   "broadcast 16 float32 from 0; broadcast 16 float32 from 0; "
                                   "broadcast 24 uint8 from 0; ");
    muster_ddp_free(ddp);
    assert_int_equal(group.allocation_count, 0);
}

#define ASYNC "all_reduce 16 float32 average async; "
#define BLOCKING "all_reduce 16 float32 average; "

static void buckets_start_when_complete_and_in_order(void **state) {
    (void)state;
    struct muster_group group = {.size = 2};
    struct muster_ddp_options options = small_buckets();
    options.rebuild = false;
    struct muster_ddp *ddp = made(&group, &options);
    assert_int_equal(muster_ddp_begin(ddp), 0);
    assert_int_equal(muster_ddp_ready(ddp, 2), 0); /* the second bucket waits for the first */
    assert_string_equal(group.log, "");
    assert_int_equal(muster_ddp_ready(ddp, 3), 0);
    assert_string_equal(group.log, ASYNC ASYNC);
    assert_int_equal(muster_ddp_ready(ddp, 0), 0); /* the last bucket, left to finish */
    assert_int_equal(muster_ddp_ready(ddp, 1), 0);
    assert_string_equal(group.log, ASYNC ASYNC ASYNC);
    assert_int_equal(muster_ddp_finish(ddp), 0);
    assert_string_equal(group.log, ASYNC ASYNC ASYNC "wait; wait; wait; " BLOCKING);
    muster_ddp_free(ddp);
}

static void one_bucket_needs_no_handle(void **state) {
    (void)state;
    struct muster_group group = {.size = 2};
    struct muster_ddp *ddp = made(&group, NULL);
    assert_int_equal(step(ddp, backward), 0);
    assert_string_equal(group.log, "broadcast 24 uint8 from 0; all_reduce 64 float32 average; ");
    muster_ddp_free(ddp);
}

static void one_rank_needs_no_reduction(void **state) {
    (void)state;
    struct muster_group group = {.size = 1};
    struct muster_ddp_options options = small_buckets();
    struct muster_ddp *ddp = made(&group, &options);
    assert_int_equal(step(ddp, backward), 0);
    assert_string_equal(group.log, "");
    muster_ddp_free(ddp);
}

#define SUMS "coalesce; all_to_all 16 float32; all_to_all 16 float32; end"

/* Buckets of 64 bytes: each rank has a slice as large, since slices begin on cache lines. */
static void virtual_ranks_send_sums_in_the_last_pass(void **state) {
    (void)state;
    struct muster_group group = {.size = 2};
    struct muster_ddp_options options = small_buckets();
    options.rebuild = false;
    options.virtual_ranks = 6;
    struct muster_ddp *ddp = made(&group, &options);
    assert_int_equal(step(ddp, backward), 0);
    assert_int_equal(step(ddp, backward), 0);
    assert_string_equal(group.log, "");
    assert_int_equal(step(ddp, backward), 0);
    assert_string_equal(group.log, SUMS " async; " SUMS " async; " SUMS
                                        " async; wait; wait; wait; all_gather 16 float32; all_gather "
                                        "16 float32; all_gather 16 float32; " SUMS "; all_gather 16 float32; ");
    muster_ddp_free(ddp);
    options.virtual_ranks = 4; /* one sum a rank, and two can only be added in one way */
    ddp = made(&group, &options);
    assert_int_equal(step(ddp, backward), 0);
    assert_int_equal(step(ddp, backward), 0);
    assert_string_equal(group.log, "all_reduce 16 float32 sum async; all_reduce 16 float32 sum async; all_reduce 16 "
                                   "float32 sum async; wait; wait; wait; all_reduce 16 float32 sum; ");
    muster_ddp_free(ddp);
}

static void no_sync_sends_nothing(void **state) {
    (void)state;
    struct muster_group group = {.size = 2};
    struct muster_ddp *ddp = made(&group, NULL);
    for (int round = 0; round < 2; round++) {
        assert_int_equal(muster_ddp_begin_no_sync(ddp), 0);
        assert_int_equal(muster_ddp_ready(ddp, 0), 0);
        assert_int_equal(muster_ddp_finish(ddp), 0);
    }
    /* Buffers are copied before the first of them alone, as in PyTorch. */
    assert_string_equal(group.log, "broadcast 24 uint8 from 0; ");
    fake_group_forget(&group);
    assert_int_equal(step(ddp, backward), 0);
    assert_string_equal(group.log, "all_reduce 64 float32 average; ");
    struct muster_ddp_statistics numbers;
    muster_ddp_statistics(ddp, &numbers);
    assert_int_equal(numbers.no_sync_count, 2);
    assert_int_equal(numbers.step_count, 1);
    assert_int_equal(numbers.reduced_bytes, PARAMETERS * COUNT * sizeof(float));
    muster_ddp_free(ddp);
}

static void second_step_sorts_buckets_by_readiness(void **state) {
    (void)state;
    struct muster_group group = {.size = 2};
    struct muster_ddp_options options = small_buckets();
    struct muster_ddp *ddp = made(&group, &options);
    assert_int_equal(step(ddp, mixed), 0);
    assert_string_equal(group.log, ASYNC ASYNC ASYNC "wait; wait; wait; " BLOCKING);
    void *before = muster_ddp_gradient(ddp, 2);
    fake_group_forget(&group);
    assert_int_equal(muster_ddp_begin(ddp), 0);
    assert_int_equal(muster_ddp_ready(ddp, mixed[0]), 0); /* now each bucket starts at once */
    assert_string_equal(group.log, "broadcast 4 int32 from 0; " ASYNC);
    assert_int_equal(muster_ddp_ready(ddp, mixed[1]), 0);
    assert_int_equal(muster_ddp_ready(ddp, mixed[2]), 0);
    assert_int_equal(muster_ddp_ready(ddp, mixed[3]), 0);
    assert_int_equal(muster_ddp_finish(ddp), 0);
    assert_string_equal(group.log, "broadcast 4 int32 from 0; " ASYNC ASYNC ASYNC "wait; wait; wait; " BLOCKING);
    assert_ptr_not_equal(muster_ddp_gradient(ddp, 2), before);
    for (size_t i = 0; i < PARAMETERS; i++) {
        assert_true(((float *)muster_ddp_gradient(ddp, i))[0] == (float)i);
    }
    before = muster_ddp_gradient(ddp, 2);
    fake_group_forget(&group);
    assert_int_equal(step(ddp, backward), 0); /* another order changes nothing any more */
    assert_string_equal(group.log, ASYNC ASYNC ASYNC "wait; wait; wait; " BLOCKING);
    assert_ptr_equal(muster_ddp_gradient(ddp, 2), before);
    muster_ddp_free(ddp);
    assert_int_equal(group.allocation_count, 0);
}

static void an_order_that_is_none_is_refused(void **state) {
    (void)state;
    struct muster_group group = {.size = 2};
    struct muster_ddp *ddp = made(&group, NULL);
    const uint32_t orders[][PARAMETERS] = {{0, 0, 0, 0}, {3, 2, 1, 3}, {0, 1, 2, PARAMETERS}};
    size_t before = live_bytes();
    for (size_t i = 0; i < sizeof orders / sizeof orders[0]; i++) {
        struct ddp_layout *layout = NULL;
        assert_int_equal(ddp_layout_create(ddp, &group, orders[i], &layout), MUSTER_EPROTOCOL);
        assert_null(layout);
        assert_int_equal(live_bytes(), before);
    }
    muster_ddp_free(ddp);
}

static void the_expected_order_moves_nothing(void **state) {
    (void)state;
    struct muster_group group = {.size = 2};
    struct muster_ddp_options options = small_buckets();
    struct muster_ddp *ddp = made(&group, &options);
    void *before = muster_ddp_gradient(ddp, 0);
    assert_int_equal(step(ddp, backward), 0);
    assert_int_equal(step(ddp, backward), 0);
    assert_ptr_equal(muster_ddp_gradient(ddp, 0), before);
    muster_ddp_free(ddp);
}

static void moving_keeps_gradients(void **state) {
    (void)state;
    struct muster_group group = {.size = 2};
    struct muster_ddp_options options = small_buckets();
    struct muster_ddp *ddp = made(&group, &options);
    assert_int_equal(step(ddp, mixed), 0);
    for (size_t i = 0; i < PARAMETERS; i++) {
        for (size_t at = 0; at < COUNT; at++) {
            ((float *)muster_ddp_gradient(ddp, i))[at] = (float)(100 * i + at);
        }
    }
    assert_int_equal(muster_ddp_begin(ddp), 0);
    for (size_t i = 0; i < PARAMETERS; i++) {
        for (size_t at = 0; at < COUNT; at++) {
            assert_true(((float *)muster_ddp_gradient(ddp, i))[at] == (float)(100 * i + at));
        }
    }
    muster_ddp_free(ddp); /* in the middle of a step */
    assert_int_equal(group.allocation_count, 0);
}

/* ---- parameters that are not used ---- */

static void nobody_used_it(void **state) {
    (void)state;
    struct muster_group group = {.size = 2};
    struct muster_ddp_options options = small_buckets();
    options.find_unused = true;
    struct muster_ddp *ddp = made(&group, &options);
    ((float *)muster_ddp_gradient(ddp, 1))[5] = 7;
    assert_int_equal(muster_ddp_begin(ddp), 0);
    for (size_t i = 0; i < PARAMETERS; i++) {
        if (i != 1) {
            assert_int_equal(muster_ddp_ready(ddp, i), 0);
        }
    }
    assert_int_equal(muster_ddp_finish(ddp), 0);
    assert_string_equal(group.log, ASYNC ASYNC "wait; wait; " BLOCKING BLOCKING "all_reduce 4 uint8 max; ");
    assert_true(((float *)muster_ddp_gradient(ddp, 1))[5] == 7);
    assert_false(muster_ddp_was_used(ddp, 1));
    assert_true(muster_ddp_was_used(ddp, 0));
    /* Use in a no_sync step counts, and what it left takes part. */
    assert_int_equal(muster_ddp_begin_no_sync(ddp), 0);
    assert_int_equal(muster_ddp_ready(ddp, 1), 0);
    assert_int_equal(muster_ddp_finish(ddp), 0);
    assert_int_equal(muster_ddp_begin(ddp), 0);
    assert_int_equal(muster_ddp_finish(ddp), 0);
    assert_true(muster_ddp_was_used(ddp, 1));
    assert_false(muster_ddp_was_used(ddp, 0));
    assert_true(((float *)muster_ddp_gradient(ddp, 1))[5] == 7);
    muster_ddp_free(ddp);
    assert_int_equal(group.allocation_count, 0);
}

static void others_synchronise(struct muster_group *group, void *receive, size_t block_bytes) {
    (void)group;
    if (block_bytes == 1) {
        ((uint8_t *)receive)[1] = PRESENCE_WITH_SYNC;
    }
}

/* A rank without data keeps them, too. */
static void nobody_used_it_in_a_shadowed_step(void **state) {
    (void)state;
    struct muster_group group = {.size = 2, .gathered = others_synchronise};
    struct muster_ddp_options options = small_buckets();
    options.find_unused = options.uneven_inputs = true;
    struct muster_ddp *ddp = made(&group, &options);
    bool stepped = false;
    ((float *)muster_ddp_gradient(ddp, 1))[5] = 7;
    assert_int_equal(muster_ddp_shadow(ddp, &stepped), 0);
    assert_true(stepped && !muster_ddp_was_used(ddp, 1)); /* the fake's others do as this rank does */
    assert_true(((float *)muster_ddp_gradient(ddp, 1))[5] == 7);
    muster_ddp_free(ddp);
    assert_int_equal(live_bytes(), 0);
}

static void a_missing_gradient_is_named(void **state) {
    (void)state;
    struct muster_group group = {.size = 2, .rank = 1};
    struct muster_ddp_options options = small_buckets();
    struct muster_ddp *ddp = made(&group, &options);
    assert_int_equal(muster_ddp_begin(ddp), 0);
    assert_int_equal(muster_ddp_ready(ddp, 3), 0);
    assert_int_equal(muster_ddp_ready(ddp, 1), 0);
    assert_int_equal(muster_ddp_finish(ddp), MUSTER_EINVAL);
    assert_string_equal(muster_detail(), "muster_ddp_finish: rank 1 has no gradient in this step for conv.weight, "
                                         "fc.weight: call muster_ddp_ready() for every parameter, or set find_unused");
    assert_non_null(strstr(group.abort_reason, "rank 1 has no gradient in this step for conv.weight, fc.weight"));
    assert_int_equal(group.works_under_way, 0);
    assert_int_equal(muster_ddp_begin(ddp), MUSTER_EINVAL); /* it says so again */
    assert_non_null(strstr(muster_detail(), "conv.weight"));
    muster_ddp_free(ddp);
}

/* ---- failures ---- */

static void a_failed_bucket_is_named(void **state) {
    (void)state;
    for (int in_wait = 0; in_wait < 2; in_wait++) {
        struct muster_group group = {.size = 2, .fail_code = MUSTER_EPEER, .fail_in_wait = in_wait};
        struct muster_ddp_options options = small_buckets();
        options.bucket_bytes = 2 * COUNT * sizeof(float);
        struct muster_ddp *ddp = made(&group, &options);
        group.fail_at = 2;
        assert_int_equal(step(ddp, backward), MUSTER_EPEER);
        const char *expected = "bucket 2 of 3 (2 gradients, from fc.weight to conv.bias): the fake's failure";
        assert_non_null(strstr(muster_detail(), expected));
        assert_string_equal(group.abort_reason, ""); /* the group knew */
        assert_int_equal(group.works_under_way, 0);
        assert_int_equal(muster_ddp_begin(ddp), MUSTER_EPEER);
        assert_non_null(strstr(muster_detail(), expected));
        muster_ddp_free(ddp);
        assert_int_equal(group.allocation_count, 0);
    }
}

static int disagree(void *context, struct muster_group *group, const struct muster_ddp_bucket *bucket,
                    struct muster_work **work) {
    (void)context;
    (void)group;
    (void)bucket;
    (void)work;
    return status_fail(MUSTER_EMISMATCH, "the hook's own mismatch");
}

/* Of it nobody else knows, unlike of those that ddp finds. */
static void a_hooks_mismatch_is_told(void **state) {
    (void)state;
    struct muster_group group = {.size = 2};
    struct muster_ddp_hook hook = MUSTER_DDP_HOOK_INIT;
    hook.name = "disagree";
    hook.start = disagree;
    struct muster_ddp_options options = small_buckets();
    options.hook = &hook;
    struct muster_ddp *ddp = made(&group, &options);
    assert_int_equal(step(ddp, backward), MUSTER_EMISMATCH);
    assert_non_null(strstr(group.abort_reason, "the hook's own mismatch"));
    muster_ddp_free(ddp);
}

enum { VIRTUAL_RANKS = 6 }; /* three for each of two ranks, which send two sums each */

static int train(struct muster_group *group, const struct muster_ddp_options *options, struct muster_ddp **ddp) {
    int status = create(group, options, ddp);
    int passes = options->virtual_ranks > 0 ? VIRTUAL_RANKS / 2 : 1; /* of rank 0 */
    for (int round = 0; status == MUSTER_OK && round < 3 * passes; round++) {
        status = step(*ddp, mixed);
    }
    return status;
}

/* Every call and every allocation in turn: nothing is lost, nobody is left waiting, and a second failure cannot hide
 * the first. */
static void each_call_fails_once(void **state) {
    (void)state;
    const int codes[] = {MUSTER_EPEER, MUSTER_ENOMEM};
    for (size_t kind = 0; kind < 8; kind++) {
        uint32_t n = 0;
        for (int status = -1; status != MUSTER_OK;) {
            struct muster_group group = {
                .size = 2, .fail_at = ++n, .fail_code = codes[kind % 2], .fail_in_wait = kind / 2 % 2};
            struct muster_ddp_options options = small_buckets();
            options.broadcast_buffers = true;
            options.uneven_inputs = kind < 4;
            options.hook = kind < 4 ? muster_ddp_hook_bfloat16() : NULL;
            options.virtual_ranks = kind < 4 ? 0 : VIRTUAL_RANKS;
            struct muster_ddp *ddp = NULL;
            status = train(&group, &options, &ddp);
            assert_true(status == MUSTER_OK || status == codes[kind % 2]);
            assert_int_equal(group.works_under_way, 0);
            assert_true(status == MUSTER_OK || group.failed != MUSTER_OK); /* nobody waits for us */
            muster_ddp_free(ddp);
            assert_int_equal(group.allocation_count, 0);
            assert_int_equal(live_bytes(), 0);
        }
        assert_in_range(n, 25, 100); /* it did go through them all */
    }
}

static void fail_each_allocation(const struct muster_ddp_options *options) {
    uint32_t n = 0;
    for (int status = -1; status != MUSTER_OK;) {
        struct muster_group group = {.size = 2};
        struct muster_ddp *ddp = NULL;
        allocations = 0;
        fail_allocation = ++n;
        status = train(&group, options, &ddp);
        fail_allocation = 0;
        assert_true(status == MUSTER_OK || (status == MUSTER_ENOMEM && group.failed));
        assert_int_equal(group.works_under_way, 0);
        muster_ddp_free(ddp);
        assert_int_equal(group.allocation_count, 0);
        assert_int_equal(live_bytes(), 0);
    }
    assert_in_range(n, 10, 100);
}

static void each_allocation_fails_once(void **state) {
    (void)state;
    struct muster_ddp_options options = small_buckets();
    options.hook = muster_ddp_hook_float16();
    fail_each_allocation(&options);
    options = small_buckets();
    options.broadcast_buffers = true;
    options.virtual_ranks = VIRTUAL_RANKS;
    fail_each_allocation(&options);
}

/* A program of an earlier version has smaller structs; copying them into this version's takes memory, too. */
static void a_copy_that_fails_is_told(void **state) {
    (void)state;
    struct {
        const char *name;
        enum muster_type type;
        size_t count;
        void *data;
    } parameter = {"a", MUSTER_FLOAT32, COUNT, data[0]};
    struct muster_group group = {.size = 2};
    struct muster_ddp *ddp = NULL;
    allocations = 0;
    fail_allocation = 1;
    int status = muster_ddp_create_sized(&group, (const struct muster_ddp_parameter *)(const void *)&parameter,
                                         sizeof parameter, 1, NULL, sizeof(struct muster_ddp_buffer), 0, NULL, &ddp);
    fail_allocation = 0;
    assert_int_equal(status, MUSTER_ENOMEM);
    assert_true(group.failed);
    assert_non_null(strstr(group.abort_reason, "muster_ddp_parameter"));
    assert_int_equal(live_bytes(), 0);
}

static void wrong_use_is_refused(void **state) {
    (void)state;
    struct muster_group group = {.size = 2};
    struct muster_ddp *ddp = made(&group, NULL);
    bool stepped;
    assert_int_equal(muster_ddp_ready(ddp, 0), MUSTER_EINVAL);
    assert_int_equal(muster_ddp_finish(ddp), MUSTER_EINVAL);
    assert_int_equal(muster_ddp_shadow(ddp, &stepped), MUSTER_EINVAL);
    assert_int_equal(muster_ddp_begin(ddp), 0);
    assert_int_equal(muster_ddp_begin(ddp), MUSTER_EINVAL);
    assert_int_equal(muster_ddp_begin_no_sync(ddp), MUSTER_EINVAL);
    assert_int_equal(muster_ddp_ready(ddp, PARAMETERS), MUSTER_EINVAL);
    assert_int_equal(muster_ddp_ready(ddp, 1), 0);
    assert_int_equal(muster_ddp_ready(ddp, 1), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "\"conv.bias\" is ready for the second time"));
    /* None of it has broken the step. */
    assert_int_equal(muster_ddp_ready(ddp, 0), 0);
    assert_int_equal(muster_ddp_ready(ddp, 2), 0);
    assert_int_equal(muster_ddp_ready(ddp, 3), 0);
    assert_int_equal(muster_ddp_finish(ddp), 0);
    assert_int_equal(group.failed, 0);
    muster_ddp_free(ddp);
    muster_ddp_free(NULL);
}

static void wrong_models_are_refused(void **state) {
    (void)state;
    struct muster_group group = {.size = 2};
    static char long_name[MUSTER_DDP_NAME_MAX + 1];
    memset(long_name, 'x', sizeof long_name - 1);
    const struct {
        struct muster_ddp_parameter parameter;
        const char *expected;
    } cases[] = {
        {{NULL, MUSTER_FLOAT32, 1, data[0], NULL}, "parameter 0 has no name"},
        {{long_name, MUSTER_FLOAT32, 1, data[0], NULL}, "more than 255 bytes"},
        {{"a\nb", MUSTER_FLOAT32, 1, data[0], NULL}, "the name of parameter 0 has a line break"},
        {{"a", MUSTER_INT32, 1, data[0], NULL}, "\"a\" is of type int32"},
        {{"a", MUSTER_FLOAT32, 0, data[0], NULL}, "count out of range"},
        {{"a", MUSTER_FLOAT32, SIZE_MAX, data[0], NULL}, "count out of range"},
        {{"a", MUSTER_FLOAT32, 1, NULL, NULL}, "no data"},
        {{"a", MUSTER_TYPE_COUNT, 1, data[0], NULL}, "unknown type"},
    };
    struct muster_ddp *ddp = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(muster_ddp_create(&group, &cases[i].parameter, 1, NULL, 0, NULL, &ddp), MUSTER_EINVAL);
        assert_non_null(strstr(muster_detail(), cases[i].expected));
    }
    struct muster_ddp_parameter good = {"a", MUSTER_FLOAT32, 1, data[0], NULL};
    assert_int_equal(muster_ddp_create(&group, &good, 0, NULL, 0, NULL, &ddp), MUSTER_EINVAL);
    const struct muster_ddp_parameter twins[] = {
        {"a", MUSTER_FLOAT32, 1, data[0], NULL}, {"b", MUSTER_FLOAT32, 1, data[1], NULL}, good};
    assert_int_equal(muster_ddp_create(&group, twins, 3, NULL, 0, NULL, &ddp), MUSTER_EINVAL);
    assert_non_null(strstr(muster_detail(), "two parameters are called \"a\""));
    struct muster_ddp_options options = MUSTER_DDP_OPTIONS_INIT;
    options.bucket_bytes = 0;
    assert_int_equal(muster_ddp_create(&group, &good, 1, NULL, 0, &options, &ddp), MUSTER_EINVAL);
    struct muster_ddp_hook nameless = *muster_ddp_hook_float16();
    nameless.name = NULL;
    options = (struct muster_ddp_options)MUSTER_DDP_OPTIONS_INIT;
    options.hook = &nameless;
    assert_int_equal(muster_ddp_create(&group, &good, 1, NULL, 0, &options, &ddp), MUSTER_EINVAL);
    options.size = 0;
    assert_int_equal(muster_ddp_create(&group, &good, 1, NULL, 0, &options, &ddp), MUSTER_EINVAL);
    assert_null(ddp);
    assert_string_equal(group.log, ""); /* nobody else was bothered */
}

/* ---- memory ---- */

static size_t rounded(size_t bytes, size_t to) {
    return (bytes + to - 1) / to * to;
}

/* The formula of docs/ddp.md, for 64-bit machines. When this fails, a struct has grown: change both. */
static size_t bookkeeping_bytes(size_t n, size_t b, size_t k, size_t name_bytes, bool find_unused) {
    return rounded(1632, 16) + 160 + rounded(48 * n, 16) + rounded(4 * n, 16) + 32 * n + rounded(32 * b, 16) + 136 * k +
           rounded(name_bytes, 16) + rounded(find_unused ? n : 0, 16);
}

/* Against the allocator's own count. */
static void memory_is_as_documented(void **state) {
    (void)state;
    for (int with_hook = 0; with_hook < 2; with_hook++) {
        struct muster_group group = {.size = 2};
        struct muster_ddp_options options = small_buckets();
        options.find_unused = options.uneven_inputs = with_hook;
        options.hook = with_hook ? muster_ddp_hook_bfloat16() : NULL;
        struct muster_ddp *ddp = made(&group, &options);
        struct muster_ddp_statistics numbers;
        muster_ddp_statistics(ddp, &numbers);
        assert_int_equal(numbers.bucket_count, PARAMETERS);
        assert_int_equal(numbers.bucket_bytes, PARAMETERS * 64);
        assert_int_equal(numbers.bucket_bytes + numbers.overhead_bytes, live_bytes() + group.allocated_bytes);
        size_t staged = 16 + 8, scratch = with_hook ? (size_t)PARAMETERS * 64 : 0, presence = with_hook ? 2 : 0;
        assert_int_equal(group.allocated_bytes, numbers.bucket_bytes + staged + scratch + presence);
        size_t name_bytes = sizeof "conv.weight" + sizeof "conv.bias" + sizeof "fc.weight" + sizeof "fc.bias" +
                            sizeof "running" + sizeof "tracked";
        if (sizeof(void *) == 8) {
            assert_int_equal(live_bytes(), bookkeeping_bytes(PARAMETERS, 2, PARAMETERS, name_bytes, with_hook));
        }
        muster_ddp_free(ddp);
    }
}

/* The formula of docs/deterministic-world.md: sums that wait, and those that come. */
static void memory_of_virtual_ranks_is_as_documented(void **state) {
    (void)state;
    const struct {
        uint32_t ranks;
        size_t virtual_ranks, waiting, coming;
    } cases[] = {{1, 8, 3, 0}, {2, 8, 2, 0}, {2, 6, 1, 2}, {4, 4, 0, 1}, {4, 16, 2, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct muster_group group = {.size = cases[i].ranks};
        struct muster_ddp_options options = small_buckets();
        options.virtual_ranks = cases[i].virtual_ranks;
        struct muster_ddp *ddp = made(&group, &options);
        struct muster_ddp_statistics numbers;
        muster_ddp_statistics(ddp, &numbers);
        assert_int_equal(numbers.bucket_count, PARAMETERS);
        assert_int_equal(numbers.bucket_bytes, PARAMETERS * 64 * cases[i].ranks); /* a line for each slice */
        assert_int_equal(numbers.bucket_bytes + numbers.overhead_bytes, live_bytes() + group.allocated_bytes);
        size_t sums = 1 + cases[i].waiting + cases[i].coming, staged = 16 + 8;
        assert_int_equal(group.allocated_bytes, sums * numbers.bucket_bytes + staged);
        muster_ddp_free(ddp);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(creating_compares_and_copies),
        cmocka_unit_test(buckets_start_when_complete_and_in_order),
        cmocka_unit_test(one_bucket_needs_no_handle),
        cmocka_unit_test(one_rank_needs_no_reduction),
        cmocka_unit_test(virtual_ranks_send_sums_in_the_last_pass),
        cmocka_unit_test(no_sync_sends_nothing),
        cmocka_unit_test(second_step_sorts_buckets_by_readiness),
        cmocka_unit_test(an_order_that_is_none_is_refused),
        cmocka_unit_test(the_expected_order_moves_nothing),
        cmocka_unit_test(moving_keeps_gradients),
        cmocka_unit_test(nobody_used_it),
        cmocka_unit_test(nobody_used_it_in_a_shadowed_step),
        cmocka_unit_test(a_missing_gradient_is_named),
        cmocka_unit_test(a_failed_bucket_is_named),
        cmocka_unit_test(a_hooks_mismatch_is_told),
        cmocka_unit_test(each_call_fails_once),
        cmocka_unit_test(each_allocation_fails_once),
        cmocka_unit_test(a_copy_that_fails_is_told),
        cmocka_unit_test(wrong_use_is_refused),
        cmocka_unit_test(wrong_models_are_refused),
        cmocka_unit_test(memory_is_as_documented),
        cmocka_unit_test(memory_of_virtual_ranks_is_as_documented),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
