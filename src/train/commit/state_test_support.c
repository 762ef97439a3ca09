/* See state_test_support.h. */
#include "train/commit/state_test_support.h"

#include <string.h>

#include <muster/collective.h>

#include "train/memory/holder.h"

static const size_t range_counts[RANGES] = {16, FIRST - 16 - OTHER, SECOND};

static float *range_at(const struct model *model, size_t range) {
    return range == 2 ? model->blocks[1] : model->blocks[0] + (range == 1 ? 16 + OTHER : 0);
}

void model_init(struct rank *rank, struct model *model) {
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

int model_step(struct model *model, struct muster_state *state) {
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

void model_compare(struct rank *rank, const struct model *model, int64_t steps) {
    struct model plain;
    model_init(rank, &plain);
    while (plain.step < steps) {
        rank_check_code(rank, model_step(&plain, NULL), 0);
    }
    rank_check(rank, model->step == steps);
    rank_check(rank, same_bits(model->statistics, plain.statistics, sizeof plain.statistics));
    rank_check(rank, same_bits(model->blocks[0], plain.blocks[0], sizeof plain.first));
    rank_check(rank, same_bits(model->blocks[1], plain.blocks[1], sizeof plain.second));
    muster_optimizer_free(plain.optimizer);
}

/* ---- lives ---- */

void model_follow(struct model *model, const struct muster_state *state) {
    for (size_t i = 0; i < 2; i++) {
        model->blocks[i] = muster_state_block_data(state, i);
    }
}

struct muster_state *model_begin(struct rank *rank, struct muster_group *group, struct model *model, int64_t expected) {
    struct muster_state *state = NULL;
    int64_t step = 99;
    model_init(rank, model);
    const struct muster_state_block blocks[2] = {{model->first, FIRST}, {model->second, SECOND}};
    rank_check_code(rank, muster_state_create(group, model->optimizer, blocks, 2, &model->extra, NULL, &state, &step),
                    0);
    rank_check(rank, step == expected);
    memset(model->first, 0xff, sizeof model->first); /* nobody needs it any more */
    memset(model->second, 0xff, sizeof model->second);
    model_follow(model, state);
    if (step < 0) {
        rank_check_code(rank, muster_state_commit(state, 0, &model->extra), 0);
        model_follow(model, state);
    }
    model_compare(rank, model, step < 0 ? 0 : step);
    return state;
}

void model_run(struct rank *rank, struct muster_group *group, struct model *model, struct muster_state *state,
               int64_t last) {
    while (model->step < last) {
        rank_check_code(rank, muster_barrier(group, NULL), 0);
        rank_check_code(rank, model_step(model, state), 0);
        rank_check_code(rank, muster_state_commit(state, model->step, &model->extra), 0);
        model_follow(model, state);
    }
}

void model_end(struct rank *rank, struct muster_group *group, struct model *model, struct muster_state *state) {
    rank_check_code(rank, muster_barrier(group, NULL), 0);
    muster_state_free(state);
    muster_optimizer_free(model->optimizer);
}

void model_forget(struct rank *rank) {
    struct holder *holder = NULL;
    rank_check_code(rank, holder_open(&holder), 0);
    rank_check_code(rank, holder_drop(holder, "training/rank 0"), 0);
    holder_close(holder);
}
