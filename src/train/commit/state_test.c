/* muster/state.h: training that ends anywhere in a step and goes on in another life has the same bits as one that was
 * never disturbed. Lives are of the same processes, which hold the memory themselves. */
#include <muster/state.h>

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <muster/collective.h>

#include "comm/group/ranks_test_support.h"
#include "train/memory/holder.h"

enum { RANKS = 3, RANGES = 3, STEPS = 6, FIRST = 40, SECOND = 21, OTHER = 5, STATISTICS = 4 };

/* Two blocks: the first has two ranges and numbers that nothing learns, the second one range. */
struct model {
    float first[FIRST], second[SECOND];
    float *blocks[2];
    float statistics[STATISTICS];
    int64_t step;
    struct muster_tensor tensor;
    struct muster_value value;
    struct muster_snapshot_state extra;
    struct muster_optimizer *optimizer;
};

static const size_t range_counts[RANGES] = {16, FIRST - 16 - OTHER, SECOND};

static float *range_at(const struct model *model, size_t range) {
    return range == 2 ? model->blocks[1] : model->blocks[0] + (range == 1 ? 16 + OTHER : 0);
}

static void model_init(struct rank *rank, struct model *model) {
    const struct muster_adamw_options adamw = MUSTER_ADAMW_OPTIONS_INIT;
    const struct muster_optimizer_group group = {.adamw = &adamw};
    static const char *const names[RANGES] = {"a", "b", "c"};
    struct muster_optimizer_range ranges[RANGES];
    *model = (struct model){.blocks = {NULL}};
    model->blocks[0] = model->first;
    model->blocks[1] = model->second;
    for (size_t i = 0; i < FIRST + SECOND; i++) {
        *(i < FIRST ? &model->first[i] : &model->second[i - FIRST]) = 0.01F * (float)i - 0.2F;
    }
    model->tensor = (struct muster_tensor){
        .name = "statistics", .type = MUSTER_FLOAT32, .dim_count = 1, .shape = {STATISTICS}, .data = model->statistics};
    model->value = muster_value_integer("step", &model->step);
    model->extra = (struct muster_snapshot_state)MUSTER_SNAPSHOT_STATE(&model->tensor, 1, &model->value, 1);
    for (size_t i = 0; i < RANGES; i++) {
        ranges[i] = (struct muster_optimizer_range){names[i], range_at(model, i), range_counts[i], 0};
    }
    rank_check_code(rank, muster_optimizer_create(ranges, RANGES, &group, 1, &model->optimizer), 0);
}

/* Of the values, so that a wrong one is seen ever after. */
static void compute(const struct model *model, float *gradients[RANGES]) {
    for (size_t i = 0; i < RANGES; i++) {
        for (size_t j = 0; j < range_counts[i]; j++) {
            gradients[i][j] = range_at(model, i)[j] * 0.5F + 0.01F * (float)(model->step + (int64_t)j % 3);
        }
    }
}

static int make_step(struct model *model, struct muster_state *state) {
    static float memory[RANGES][FIRST];
    float *gradients[RANGES] = {memory[0], memory[1], memory[2]};
    compute(model, gradients);
    model->step++;
    model->statistics[model->step % STATISTICS] += 1;
    return state ? muster_state_step(state, (const float *const *)gradients, NULL)
                 : muster_optimizer_step(model->optimizer, (const float *const *)gradients);
}

static bool same_bits(const void *one, const void *other, size_t bytes) {
    return memcmp(one, other, bytes) == 0;
}

static void compare(struct rank *rank, const struct model *model, int64_t steps) {
    struct model plain;
    model_init(rank, &plain);
    while (plain.step < steps) {
        rank_check_code(rank, make_step(&plain, NULL), 0);
    }
    rank_check(rank, model->step == steps);
    rank_check(rank, same_bits(model->statistics, plain.statistics, sizeof plain.statistics));
    rank_check(rank, same_bits(model->blocks[0], plain.blocks[0], sizeof plain.first));
    rank_check(rank, same_bits(model->blocks[1], plain.blocks[1], sizeof plain.second));
    muster_optimizer_free(plain.optimizer);
}

/* ---- lives ---- */

static void follow(struct model *model, const struct muster_state *state) {
    for (size_t i = 0; i < 2; i++) {
        model->blocks[i] = muster_state_block_data(state, i);
    }
}

static struct muster_state *begin(struct rank *rank, struct muster_group *group, struct model *model,
                                  int64_t expected) {
    struct muster_state *state = NULL;
    int64_t step = 99;
    model_init(rank, model);
    const struct muster_state_block blocks[2] = {{model->first, FIRST}, {model->second, SECOND}};
    rank_check_code(rank, muster_state_create(group, model->optimizer, blocks, 2, &model->extra, NULL, &state, &step),
                    0);
    rank_check(rank, step == expected);
    memset(model->first, 0xff, sizeof model->first); /* nobody needs it any more */
    memset(model->second, 0xff, sizeof model->second);
    follow(model, state);
    if (step < 0) {
        rank_check_code(rank, muster_state_commit(state, 0, &model->extra), 0);
        follow(model, state);
    }
    compare(rank, model, step < 0 ? 0 : step);
    return state;
}

static void run(struct rank *rank, struct muster_group *group, struct model *model, struct muster_state *state,
                int64_t last) {
    while (model->step < last) {
        rank_check_code(rank, muster_barrier(group, NULL), 0);
        rank_check_code(rank, make_step(model, state), 0);
        rank_check_code(rank, muster_state_commit(state, model->step, &model->extra), 0);
        follow(model, state);
    }
}

static void end(struct rank *rank, struct muster_group *group, struct model *model, struct muster_state *state) {
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    muster_state_free(state);
    muster_optimizer_free(model->optimizer);
}

static void forget(struct rank *rank) {
    struct holder *holder = NULL;
    rank_check_code(rank, holder_open(&holder), 0);
    rank_check_code(rank, holder_drop(holder, "training/rank 0"), 0);
    holder_close(holder);
}

static int live_twice(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct model model;
    struct muster_state *state = begin(rank, group, &model, -1);
    run(rank, group, &model, state, 3);
    rank_check(rank, muster_state_bytes(state) > 2 * 3 * (FIRST + SECOND) * sizeof(float));
    end(rank, group, &model, state);
    state = begin(rank, group, &model, 3);
    run(rank, group, &model, state, STEPS);
    compare(rank, &model, STEPS);
    end(rank, group, &model, state);
    muster_group_free(group);
    return 0;
}

/* One rank comes further in step 4 than the others, or less far. */
static int die_in_a_step(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    for (uint32_t i = 0; i < 4; i++) {
        struct model model;
        struct muster_state *state = begin(rank, group, &model, -1);
        run(rank, group, &model, state, 3);
        rank_check_code(rank, muster_barrier(group, NULL), 0);
        bool commits = (rank->rank == 1) == (i % 2 == 0);
        if (commits || i / 2 == 0) {
            rank_check_code(rank, make_step(&model, state), 0);
        }
        if (commits) {
            rank_check_code(rank, muster_state_commit(state, model.step, &model.extra), 0);
        }
        end(rank, group, &model, state);
        state = begin(rank, group, &model, 3);
        run(rank, group, &model, state, STEPS);
        compare(rank, &model, STEPS);
        end(rank, group, &model, state);
        forget(rank);
    }
    muster_group_free(group);
    return 0;
}

static int join_later(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct model model;
    struct muster_state *state = begin(rank, group, &model, -1);
    run(rank, group, &model, state, 3);
    end(rank, group, &model, state);
    if (rank->rank == 0) {
        forget(rank);
    }
    state = begin(rank, group, &model, 3);
    run(rank, group, &model, state, STEPS);
    compare(rank, &model, STEPS);
    end(rank, group, &model, state);
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
    state = begin(rank, group, &model, -1);
    rank_check(rank, muster_state_block_data(state, 2) == NULL);
    rank_check_code(rank, muster_state_commit(state, 0, &model.extra), MUSTER_EINVAL);
    rank_check_code(rank, make_step(&model, state), 0);
    rank_check_code(rank, make_step(&model, state), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "has not been committed") != NULL);
    rank_check_code(rank, muster_state_commit(state, 1, NULL), MUSTER_EINVAL);
    rank_check(rank, strstr(muster_detail(), "describes another state") != NULL);
    model.step = 1;
    rank_check_code(rank, muster_state_commit(state, 1, &model.extra), 0);
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    rank_check_code(rank, muster_state_commit(state, 2, &model.extra), 0); /* nothing has changed: copied */
    end(rank, group, &model, state);
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
