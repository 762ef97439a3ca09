/* What goes wrong in data parallel training: models that differ, a gradient that never comes, ranks that die, and going
 * on without them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <muster/ddp.h>

#include "comm/group/ranks_test_support.h"
#include "train/reduction/ddp_test_support.h"

/* ---- models that differ ---- */

static int register_differently(struct rank *rank, void *argument) {
    const int *kind = argument;
    struct muster_group *group = rank_group(rank, NULL);
    static float data[4][8];
    struct muster_ddp_parameter parameters[3] = {{"a", MUSTER_FLOAT32, 8, data[0], NULL},
                                                 {"b", MUSTER_FLOAT32, 4, data[1], NULL},
                                                 {"c", MUSTER_FLOAT32, 2, data[2], NULL}};
    struct muster_ddp_buffer buffer = {"statistics", MUSTER_INT64, 2, data[3]};
    struct muster_ddp_options options = MUSTER_DDP_OPTIONS_INIT;
    size_t parameter_count = 3;
    const char *expected = "";
    if (rank->rank == 2) {
        switch (*kind) {
        case 0:
            parameters[1].count = 5;
            break;
        case 1:
            parameters[2].name = "d";
            break;
        case 2:
            parameters[0].type = MUSTER_FLOAT64;
            parameters[0].count = 4;
            break;
        case 3:
            parameter_count = 2;
            break;
        case 4:
            options.find_unused = true;
            break;
        default:
            buffer.count = 1;
        }
    }
    const char *const sentences[] = {
        "rank 2 has \"parameter 1: b, 5 float32\" where rank 0 has \"parameter 1: b, 4 float32\"",
        "rank 2 has \"parameter 2: d, 2 float32\" where rank 0 has \"parameter 2: c, 2 float32\"",
        "rank 2 has \"parameter 0: a, 4 float64\" where rank 0 has \"parameter 0: a, 8 float32\"",
        "rank 2 has \"buffer 0: statistics, 2 int64\" where rank 0 has \"parameter 2: c, 2 float32\"",
        "the ranks have different options: find_unused is true on rank 2, and false on rank 0",
        "rank 2 has \"buffer 0: statistics, 1 int64\" where rank 0 has \"buffer 0: statistics, 2 int64\"",
    };
    expected = sentences[*kind];
    struct muster_ddp *ddp = NULL;
    rank_check_code(rank, muster_ddp_create(group, parameters, parameter_count, &buffer, 1, &options, &ddp),
                    MUSTER_EMISMATCH);
    rank_check(rank, ddp == NULL && strstr(muster_detail(), expected) != NULL);
    rank_check_code(rank, muster_barrier(group, NULL), MUSTER_OK); /* the group is as good as before */
    muster_group_free(group);
    return 0;
}

static void different_models_are_told_apart(void **state) {
    (void)state;
    for (int kind = 0; kind < 6; kind++) {
        ranks_run(3, register_differently, &kind);
    }
}

/* ---- accumulation that differs ---- */

static int accumulate_differently(struct rank *rank, void *argument) {
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_ddp_options options = several_buckets();
    options.hook = *(const bool *)argument ? muster_ddp_hook_bfloat16() : NULL;
    static struct model model;
    model_make(rank, group, &options, false, &model);
    rank_check_code(rank, step_run(&model, rank->rank, 0, 0), MUSTER_OK);
    for (uint32_t i = 0; i < 1 + rank->rank; i++) {
        rank_check_code(rank, muster_ddp_begin_no_sync(model.ddp), MUSTER_OK);
        rank_check_code(rank, backward(&model, rank->rank, 1 + i, 0), MUSTER_OK);
        rank_check_code(rank, muster_ddp_finish(model.ddp), MUSTER_OK);
    }
    int status = muster_ddp_begin(model.ddp);
    status = status == MUSTER_OK ? backward(&model, rank->rank, 3, 0) : status;
    status = status == MUSTER_OK ? muster_ddp_finish(model.ddp) : status;
    rank_check_code(rank, status, MUSTER_EMISMATCH);
    rank_check(rank, strstr(muster_detail(), "after 1 no_sync step") != NULL);
    rank_check(rank, strstr(muster_detail(), "after 2 no_sync steps") != NULL);
    model_free(&model, group);
    return 0;
}

static void ranks_that_accumulate_differently_are_told(void **state) {
    (void)state;
    struct ranks_options apart = {.ranks_per_host = 1};
    for (int hook = 0; hook < 2; hook++) {
        bool has_hook = hook == 1;
        ranks_run(2, accumulate_differently, &has_hook);
        ranks_run_with(2, accumulate_differently, &has_hook, &apart);
    }
}

/* ---- a gradient that never comes ---- */

static int forget_one(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_ddp_options options = several_buckets();
    static struct model model;
    model_make(rank, group, &options, false, &model);
    rank_check_code(rank, muster_ddp_begin(model.ddp), MUSTER_OK);
    rank_mark(rank, 1);
    for (uint32_t other = 0; rank->rank == 1 && other < rank->size; other++) {
        rank_await(rank, other, 1); /* an abort would end their creating, too */
    }
    int status = MUSTER_OK;
    for (size_t i = PARAMETERS; status == MUSTER_OK && i-- > 0;) {
        status = rank->rank == 1 && i == 3 ? MUSTER_OK : muster_ddp_ready(model.ddp, i);
    }
    /* Who forgot it says so at once; the others learn of it while they wait. */
    int expected = rank->rank == 1 ? MUSTER_EINVAL : MUSTER_EABORTED;
    int finished = muster_ddp_finish(model.ddp);
    rank_check_code(rank, finished, expected);
    rank_check(rank, strstr(muster_detail(), "rank 1 has no gradient in this step for fc1.weight: ") != NULL);
    model_free(&model, group);
    return 0;
}

static void a_forgotten_gradient_ends_the_step_everywhere(void **state) {
    (void)state;
    ranks_run(3, forget_one, NULL);
}

/* ---- ranks that die ---- */

/* Rank 1 dies in the middle of the backward pass of step 3; the others go on without it. */
static int lose_a_rank(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL), *survivors = NULL;
    struct muster_ddp_options options = several_buckets();
    static struct model model;
    model_make(rank, group, &options, true, &model);
    uint32_t step = 0;
    for (; step < 3; step++) {
        rank_check_code(rank, step_run(&model, rank->rank, step, 0), MUSTER_OK);
        model_descend(&model);
    }
    rank_check_code(rank, muster_ddp_begin(model.ddp), MUSTER_OK);
    if (rank->rank == 1) {
        rank_check_code(rank, muster_ddp_ready(model.ddp, PARAMETERS - 1), MUSTER_OK);
        rank_check_code(rank, muster_ddp_ready(model.ddp, PARAMETERS - 2), MUSTER_OK);
    }
    rank_mark(rank, 1);
    if (rank->rank == 1) {
        rank_await_signal(rank, 1); /* never: killed here */
    }
    int status = backward(&model, rank->rank, step, 0), finished = muster_ddp_finish(model.ddp);
    rank_check_code(rank, status == MUSTER_OK ? finished : status, MUSTER_EPEER);
    rank_check(rank, strstr(muster_detail(), "bucket ") != NULL && strstr(muster_detail(), " of ") != NULL);
    rank_check(rank, strstr(muster_detail(), "rank 1") != NULL);
    rank_check_code(rank, muster_ddp_begin(model.ddp), MUSTER_EPEER);
    rank_mark(rank, 2);
    rank_await(rank, 2 - rank->rank, 2); /* shrinking ends what the other is still doing */

    rank_check_code(rank, muster_group_shrink(group, RANKS_PATIENCE_MS, &survivors), MUSTER_OK);
    rank_check_code(rank, muster_ddp_rebind(model.ddp, survivors), MUSTER_OK);
    muster_group_free(group); /* the ddp has left it */
    uint32_t size = muster_group_size(survivors);
    rank_check(rank, size == 2);
    for (; step < 8; step++) {
        rank_check_code(rank, step_run(&model, rank->rank, step, step % 2), MUSTER_OK);
        for (size_t i = 0; i < PARAMETERS; i++) {
            for (size_t at = 0; at < model_counts[i]; at++) {
                float expected = (gradient_of(0, step, i, at) + gradient_of(2, step, i, at)) / 2;
                rank_check(rank, ((float *)muster_ddp_gradient(model.ddp, i))[at] == expected);
            }
        }
        model_descend(&model);
    }
    check_agreement(rank, &model, survivors);
    model_free(&model, survivors);
    return 0;
}

static void survivors_train_on(void **state) {
    (void)state;
    struct ranks_options options = {.use_tcp = true};
    struct ranks *ranks = ranks_start(3, lose_a_rank, NULL, &options);
    ranks_await_all(ranks, 1);
    ranks_kill(ranks, 1);
    assert_int_equal(ranks_wait(ranks, 0), 0);
    assert_int_equal(ranks_wait(ranks, 2), 0);
    ranks_free(ranks);
}

/* Rank 1 dies in the backward pass, and rank 2 when the others have already left the group for the next one. */
static int lose_two_ranks(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL), *three = NULL, *two = NULL;
    struct muster_ddp_options options = several_buckets();
    options.hook = muster_ddp_hook_bfloat16();
    static struct model model;
    model_make(rank, group, &options, false, &model);
    rank_check_code(rank, step_run(&model, rank->rank, 0, 0), MUSTER_OK);
    if (rank->rank == 1) {
        rank_mark(rank, 1);
        rank_await_signal(rank, 1); /* never: killed here */
    }
    /* What each sees of it depends on how far it comes before another shrinks the group; rebinding needs no finish. */
    int status = muster_ddp_begin(model.ddp);
    status = status == MUSTER_OK ? backward(&model, rank->rank, 1, 0) : status;
    rank_check(rank, status == MUSTER_OK || status == MUSTER_EPEER || status == MUSTER_EABORTED);
    rank_check_code(rank, muster_group_shrink(group, RANKS_PATIENCE_MS, &three), MUSTER_OK);
    if (rank->rank == 2) {
        rank_mark(rank, 1);
        rank_await_signal(rank, 1); /* never */
    }
    rank_check_code(rank, muster_ddp_rebind(model.ddp, three), MUSTER_EPEER);
    rank_check(rank, strstr(muster_detail(), "muster_ddp_rebind: ") != NULL);
    rank_mark(rank, 1);
    rank_await(rank, 3 - rank->rank, 1);
    rank_check_code(rank, muster_group_shrink(three, RANKS_PATIENCE_MS, &two), MUSTER_OK);
    rank_check_code(rank, muster_ddp_rebind(model.ddp, two), MUSTER_OK);
    muster_group_free(three);
    muster_group_free(group);
    for (uint32_t step = 1; step < 4; step++) {
        rank_check_code(rank, step_run(&model, rank->rank, step, 1), MUSTER_OK);
        model_descend(&model);
    }
    check_agreement(rank, &model, two);
    model_free(&model, two);
    return 0;
}

static void a_second_death_while_binding(void **state) {
    (void)state;
    struct ranks_options options = {.use_tcp = true};
    struct ranks *ranks = ranks_start(4, lose_two_ranks, NULL, &options);
    for (uint32_t rank = 1; rank <= 2; rank++) {
        ranks_await(ranks, rank, 1);
        ranks_kill(ranks, rank);
    }
    assert_int_equal(ranks_wait(ranks, 0), 0);
    assert_int_equal(ranks_wait(ranks, 3), 0);
    ranks_free(ranks);
}

/* Rank 1 is stopped in the middle of its backward pass: the others' steps end at the group's deadline. */
static int wait_in_vain(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group_options group_options = MUSTER_GROUP_OPTIONS_INIT;
    group_options.timeout_ms = 3000;
    struct muster_group *group = rank_group(rank, &group_options);
    struct muster_ddp_options options = several_buckets();
    static struct model model;
    model_make(rank, group, &options, false, &model);
    rank_check_code(rank, muster_ddp_begin(model.ddp), MUSTER_OK);
    if (rank->rank == 1) {
        rank_check_code(rank, muster_ddp_ready(model.ddp, PARAMETERS - 1), MUSTER_OK);
        rank_mark(rank, 1);
    }
    rank_await_signal(rank, 1); /* when rank 1 has been stopped */
    rank_check_code(rank, backward(&model, rank->rank, 0, 0), MUSTER_OK);
    rank_check_code(rank, muster_ddp_finish(model.ddp), MUSTER_ETIMEOUT);
    rank_check(rank, strstr(muster_detail(), "muster_ddp_finish: bucket 1 of 3 (") != NULL);
    rank_check(rank, strstr(muster_detail(), "did not come: 1") != NULL);
    model_free(&model, group);
    return 0;
}

static void a_stopped_rank_ends_the_step_at_the_deadline(void **state) {
    (void)state;
    struct ranks *ranks = ranks_start(3, wait_in_vain, NULL, NULL);
    ranks_await(ranks, 1, 1);
    ranks_stop(ranks, 1);
    ranks_signal(ranks, 1);
    assert_int_equal(ranks_wait(ranks, 0), 0);
    assert_int_equal(ranks_wait(ranks, 2), 0);
    ranks_free(ranks);
}

/* Rank 1 trains until it is killed, at whatever instruction it is then; the others until they notice, and five steps
 * on. They may have come to different steps: rank 0's number counts, as its parameters do. */
static int train_until_killed(struct rank *rank, void *argument) {
    const uint32_t *steps_before = argument;
    struct muster_group *group = rank_group(rank, NULL), *survivors = NULL;
    struct muster_ddp_options options = several_buckets();
    options.find_unused = *steps_before % 2 == 1; /* one more collective to die in */
    static struct model model;
    model_make(rank, group, &options, *steps_before % 3 == 0, &model);
    rank_mark(rank, 1); /* a death while making it would be another test */
    int status = MUSTER_OK;
    uint32_t step = 0;
    for (; status == MUSTER_OK; step++) {
        if (rank->rank == 1 && step == *steps_before) {
            rank_mark(rank, 2);
        }
        status = step_run(&model, rank->rank, step, step % 3);
        if (status == MUSTER_OK) {
            model_descend(&model);
        }
    }
    rank_check(rank, status == MUSTER_EPEER || status == MUSTER_EABORTED); /* or the other shrinks already */
    rank_check_code(rank, muster_group_shrink(group, RANKS_PATIENCE_MS, &survivors), MUSTER_OK);
    rank_check_code(rank, muster_ddp_rebind(model.ddp, survivors), MUSTER_OK);
    muster_group_free(group);
    rank_check_code(rank, muster_broadcast(survivors, &step, 1, MUSTER_INT32, 0, NULL), MUSTER_OK);
    for (uint32_t end = step + 5; step < end; step++) {
        rank_check_code(rank, step_run(&model, rank->rank, step, step % 2), MUSTER_OK);
        model_descend(&model);
    }
    check_agreement(rank, &model, survivors);
    model_free(&model, survivors);
    return 0;
}

static void a_rank_may_die_at_any_moment(void **state) {
    (void)state;
    struct ranks_options options = {.use_tcp = true};
    for (uint32_t steps_before = 0; steps_before < 12; steps_before++) {
        struct ranks *ranks = ranks_start(3, train_until_killed, &steps_before, &options);
        for (uint32_t rank = 0; rank < 3; rank++) {
            ranks_await(ranks, rank, rank == 1 ? 2 : 1);
        }
        ranks_kill(ranks, 1);
        assert_int_equal(ranks_wait(ranks, 0), 0);
        assert_int_equal(ranks_wait(ranks, 2), 0);
        ranks_free(ranks);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(different_models_are_told_apart),
        cmocka_unit_test(ranks_that_accumulate_differently_are_told),
        cmocka_unit_test(a_forgotten_gradient_ends_the_step_everywhere),
        cmocka_unit_test(survivors_train_on),
        cmocka_unit_test(a_second_death_while_binding),
        cmocka_unit_test(a_rank_may_die_at_any_moment),
        cmocka_unit_test(a_stopped_rank_ends_the_step_at_the_deadline),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
