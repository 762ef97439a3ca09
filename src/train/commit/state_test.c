/* muster/state.h: training that ends anywhere in a step and goes on in another life has the same bits as one that was
 * never disturbed. Lives are of the same processes, which hold the memory themselves. */
#include <muster/state.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/collective.h>

#include "base/held/read_only.h"
#include "train/commit/state_test_support.h"

enum { RANKS = 3, STEPS = 6 };

static int live_twice(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct model model;
    struct muster_state *state = model_begin(rank, group, &model, -1);
    model_run(rank, group, &model, state, 3);
    rank_check(rank, muster_state_bytes(state) > 2 * 3 * (FIRST + SECOND) * sizeof(float));
    model_end(rank, group, &model, state);
    state = model_begin(rank, group, &model, 3);
    model_run(rank, group, &model, state, STEPS);
    model_compare(rank, &model, STEPS);
    model_end(rank, group, &model, state);
    muster_group_free(group);
    return 0;
}

/* One rank comes further in step 4 than the others, or less far. */
static int die_in_a_step(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    for (uint32_t i = 0; i < 4; i++) {
        struct model model;
        struct muster_state *state = model_begin(rank, group, &model, -1);
        model_run(rank, group, &model, state, 3);
        rank_check_code(rank, muster_barrier(group, NULL), 0);
        bool commits = (rank->rank == 1) == (i % 2 == 0);
        if (commits || i / 2 == 0) {
            rank_check_code(rank, model_step(&model, state), 0);
        }
        if (commits) {
            rank_check_code(rank, muster_state_commit(state, model.step, &model.extra), 0);
        }
        model_end(rank, group, &model, state);
        state = model_begin(rank, group, &model, 3);
        model_run(rank, group, &model, state, STEPS);
        model_compare(rank, &model, STEPS);
        model_end(rank, group, &model, state);
        model_forget(rank);
    }
    muster_group_free(group);
    return 0;
}

static int join_later(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct model model;
    struct muster_state *state = model_begin(rank, group, &model, -1);
    model_run(rank, group, &model, state, 3);
    model_end(rank, group, &model, state);
    if (rank->rank == 0) {
        model_forget(rank);
    }
    state = model_begin(rank, group, &model, 3);
    model_run(rank, group, &model, state, STEPS);
    model_compare(rank, &model, STEPS);
    model_end(rank, group, &model, state);
    muster_group_free(group);
    return 0;
}

/* ---- mistakes ---- */

static int make_mistakes(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct model model;
    struct muster_state *state = NULL;
    struct muster_state_options options = MUSTER_STATE_OPTIONS_INIT;
    int64_t step = 0;
    model_init(rank, &model);
    struct muster_state_block blocks[2] = {{model.first, FIRST}, {model.second, SECOND - 1}};
    rank_check_code(rank, muster_state_create(group, model.optimizer, blocks, 2, &model.extra, NULL, &state, &step),
                    MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "lies in no block") != NULL);
    options.name = "a name that is longer than sixty-four bytes, which is the most there is";
    blocks[1].count = SECOND;
    rank_check_code(rank, muster_state_create(group, model.optimizer, blocks, 2, &model.extra, &options, &state, &step),
                    MUSTER_EINVAL);
    rank_check_code(rank, muster_state_create(group, model.optimizer, blocks, 0, &model.extra, NULL, &state, &step),
                    MUSTER_EINVAL);
    muster_optimizer_free(model.optimizer);
    state = model_begin(rank, group, &model, -1);
    rank_check(rank, muster_state_block_data(state, 2) == NULL);
    rank_check_code(rank, muster_state_commit(state, 0, &model.extra), MUSTER_EINVAL);
    rank_check_code(rank, model_step(&model, state), 0);
    rank_check_code(rank, model_step(&model, state), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "has not been committed") != NULL);
    rank_check_code(rank, muster_state_commit(state, 1, NULL), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "describes another state") != NULL);
    model.step = 1;
    rank_check_code(rank, muster_state_commit(state, 1, &model.extra), 0);
    const float *values = muster_state_block_data(state, 0); /* a write there is named in the crash record */
    rank_check(rank, read_only_words(values) && strstr(read_only_words(values), "in the committed state"));
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    rank_check_code(rank, muster_state_commit(state, 2, &model.extra), 0); /* nothing has changed: copied */
    model_end(rank, group, &model, state);
    rank_check(rank, read_only_words(values) == NULL);
    muster_group_free(group);
    return 0;
}

/* ---- tests ---- */

static const struct ranks_options two_hosts = {.ranks_per_host = 2};

static void training_goes_on(void **state) {
    (void)state;
    ranks_run(RANKS, live_twice, NULL);
    ranks_run(1, live_twice, NULL);
    ranks_run_with(RANKS, live_twice, NULL, &two_hosts);
}

static void a_step_that_not_all_have_is_made_again(void **state) {
    (void)state;
    ranks_run(RANKS, die_in_a_step, NULL);
    ranks_run_with(RANKS, die_in_a_step, NULL, &two_hosts);
}

static void a_newcomer_gets_the_others_state(void **state) {
    (void)state;
    ranks_run_with(RANKS, join_later, NULL, &two_hosts);
}

static void mistakes_get_a_sentence(void **state) {
    (void)state;
    ranks_run(2, make_mistakes, NULL);
}

static void without_an_agent_nothing_outlives_the_process(void **state) {
    (void)state;
    assert_false(muster_state_outlives());
}

int main(void) {
    (void)unsetenv("MUSTER_HELD_SOCKET");
    (void)unsetenv("LOCAL_RANK");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(training_goes_on),
        cmocka_unit_test(a_step_that_not_all_have_is_made_again),
        cmocka_unit_test(a_newcomer_gets_the_others_state),
        cmocka_unit_test(mistakes_get_a_sentence),
        cmocka_unit_test(without_an_agent_nothing_outlives_the_process),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
