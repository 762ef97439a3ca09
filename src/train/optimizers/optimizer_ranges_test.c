/* Optimizers over ranges of elements: shards, groups of options, steps into other memory. What they compute is in
 * optimizer_test.c; here, that it does not depend on any of this. */
#include <muster/optimizer.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { COUNT = 2000, RANGES_MAX = 64, STATE_MAX = 2 * RANGES_MAX, STEPS = 6 };

static uint64_t seed = 20240611;

static size_t number_below(size_t limit) {
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (size_t)(seed >> 33) % limit;
}

static void fill(float *values, size_t count, size_t key) {
    for (size_t i = 0; i < count; i++) {
        values[i] = (float)((i * 37 + key * 61) % 1013) / 512 - 1;
    }
}

/* ---- the kinds, with options that use every part of a formula; `variant` gives other numbers ---- */

enum kind { SGD, MOMENTUM, NESTEROV, ADADELTA, ADAM, ADAMW, KIND_COUNT };

struct options {
    struct muster_sgd_options sgd;
    struct muster_adadelta_options adadelta;
    struct muster_adam_options adam;
    struct muster_adamw_options adamw;
};

/* options: is to live until the optimizer is made. */
static struct muster_optimizer_group group_of(enum kind kind, int variant, struct options *options) {
    *options = (struct options){MUSTER_SGD_OPTIONS_INIT, MUSTER_ADADELTA_OPTIONS_INIT, MUSTER_ADAM_OPTIONS_INIT,
                                MUSTER_ADAMW_OPTIONS_INIT};
    options->sgd.weight_decay = 0.1 / (variant + 1);
    options->sgd.learning_rate = 0.05 * (variant + 1);
    options->sgd.momentum = kind == SGD ? 0 : 0.9;
    options->sgd.dampening = kind == MOMENTUM ? 0.2 : 0;
    options->sgd.nesterov = kind == NESTEROV;
    options->adadelta.weight_decay = 0.01 * variant;
    options->adam.weight_decay = 0.1 / (variant + 1);
    options->adam.beta1 = 0.8 + 0.1 * variant;
    options->adamw.learning_rate = 0.01 * (variant + 1);
    options->adamw.beta2 = 0.95 - 0.1 * variant;
    struct muster_optimizer_group group = {NULL, NULL, NULL, NULL};
    group.sgd = kind <= NESTEROV ? &options->sgd : NULL;
    group.adadelta = kind == ADADELTA ? &options->adadelta : NULL;
    group.adam = kind == ADAM ? &options->adam : NULL;
    group.adamw = kind == ADAMW ? &options->adamw : NULL;
    return group;
}

/* ---- one array of parameters in ranges ---- */

struct job {
    float p[COUNT], g[COUNT];
    struct muster_optimizer_range ranges[RANGES_MAX];
    const float *gradients[RANGES_MAX];
    char names[RANGES_MAX][16];
    size_t count;
    struct muster_optimizer *optimizer;
};

static void add_range(struct job *job, size_t begin, size_t count, size_t group) {
    size_t i = job->count++;
    assert_true(i < RANGES_MAX);
    (void)snprintf(job->names[i], sizeof job->names[i], "part.%zu", i);
    job->ranges[i] = (struct muster_optimizer_range){job->names[i], count > 0 ? job->p + begin : NULL, count, group};
    job->gradients[i] = job->g + begin;
}

static void job_create(struct job *job, enum kind kind, int variant) {
    struct options options;
    struct muster_optimizer_group group = group_of(kind, variant, &options);
    assert_int_equal(muster_optimizer_create(job->ranges, job->count, &group, 1, &job->optimizer), 0);
}

static void job_whole(struct job *job, enum kind kind) {
    memset(job, 0, sizeof *job);
    fill(job->p, COUNT, 5);
    add_range(job, 0, COUNT, 0);
    job_create(job, kind, 0);
}

static void train(struct job *job, size_t from, size_t to) {
    for (size_t step = from; step <= to; step++) {
        fill(job->g, COUNT, step);
        assert_int_equal(muster_optimizer_step(job->optimizer, job->gradients), 0);
    }
}

static void any_split_has_the_same_bits(void **state) {
    (void)state;
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        static struct job whole, parts;
        job_whole(&whole, (enum kind)kind);
        train(&whole, 1, STEPS);
        for (int round = 0; round < 8; round++) {
            memset(&parts, 0, sizeof parts);
            fill(parts.p, COUNT, 5);
            for (size_t begin = 0, count; begin < COUNT; begin += count) {
                count = number_below(4) == 0 ? 0 : number_below(150);
                count = parts.count == RANGES_MAX - 1 || count > COUNT - begin ? COUNT - begin : count;
                add_range(&parts, begin, count, 0);
            }
            job_create(&parts, (enum kind)kind, 0);
            train(&parts, 1, STEPS);
            assert_memory_equal(parts.p, whole.p, sizeof whole.p);
            muster_optimizer_free(parts.optimizer);
        }
        muster_optimizer_free(whole.optimizer);
    }
}

static void an_empty_shard_has_an_empty_state(void **state) {
    (void)state;
    static struct job job;
    memset(&job, 0, sizeof job);
    add_range(&job, 0, 0, 0);
    job_create(&job, ADAMW, 0);
    train(&job, 1, 3);
    struct muster_tensor tensors[3];
    assert_int_equal(muster_optimizer_tensor_count(job.optimizer), 3);
    assert_int_equal(muster_optimizer_tensors(job.optimizer, tensors), 0);
    assert_int_equal(tensors[0].shape[0], 0);
    assert_int_equal(((const int64_t *)tensors[2].data)[0], 3);
    muster_optimizer_free(job.optimizer);
}

/* ---- groups ---- */

static void groups_have_their_own_options(void **state) {
    (void)state;
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        static struct job both, first, second;
        struct options options[2];
        struct muster_optimizer_group groups[2];
        memset(&both, 0, sizeof both);
        fill(both.p, COUNT, 5);
        first = second = both;
        for (size_t i = 0; i < 8; i++) { /* taking turns */
            add_range(&both, i * 200, 200, i % 2);
            add_range(i % 2 == 0 ? &first : &second, i * 200, 200, 0);
        }
        for (int i = 0; i < 2; i++) {
            groups[i] = group_of((enum kind)kind, i, &options[i]);
        }
        assert_int_equal(muster_optimizer_create(both.ranges, both.count, groups, 2, &both.optimizer), 0);
        job_create(&first, (enum kind)kind, 0);
        job_create(&second, (enum kind)kind, 1);
        for (int half = 0; half < 2; half++) {
            train(&both, 1, STEPS);
            train(&first, 1, STEPS);
            train(&second, 1, STEPS);
            for (size_t i = 0; i < COUNT; i++) {
                const struct job *job = i / 200 % 2 == 0 ? &first : &second;
                assert_true(both.p[i] == job->p[i]);
            }
            assert_int_equal(muster_optimizer_set_group_learning_rate(both.optimizer, 1, 0.25), 0);
            assert_int_equal(muster_optimizer_set_learning_rate(second.optimizer, 0.25), 0);
        }
        assert_true(muster_optimizer_group_learning_rate(both.optimizer, 1) == 0.25);
        assert_true(muster_optimizer_group_learning_rate(both.optimizer, 0) ==
                    muster_optimizer_learning_rate(first.optimizer));
        assert_int_equal(muster_optimizer_set_learning_rate(both.optimizer, 0.5), 0);
        assert_true(muster_optimizer_group_learning_rate(both.optimizer, 0) == 0.5 &&
                    muster_optimizer_group_learning_rate(both.optimizer, 1) == 0.5);
        muster_optimizer_free(both.optimizer);
        muster_optimizer_free(first.optimizer);
        muster_optimizer_free(second.optimizer);
    }
}

static void a_group_without_momentum_remembers_nothing(void **state) {
    (void)state;
    static struct job job;
    struct options options[2];
    const struct muster_optimizer_group groups[] = {group_of(SGD, 0, &options[0]), group_of(MOMENTUM, 0, &options[1])};
    struct muster_tensor tensors[2];
    memset(&job, 0, sizeof job);
    add_range(&job, 0, 10, 0);
    add_range(&job, 10, 20, 1);
    assert_int_equal(muster_optimizer_create(job.ranges, job.count, groups, 2, &job.optimizer), 0);
    assert_int_equal(muster_optimizer_tensor_count(job.optimizer), 2);
    assert_int_equal(muster_optimizer_tensors(job.optimizer, tensors), 0);
    assert_string_equal(tensors[0].name, "optimizer.momentum_buffer.part.1");
    assert_string_equal(tensors[1].name, "optimizer.steps");
    assert_int_equal(tensors[0].shape[0], 20);
    muster_optimizer_free(job.optimizer);
}

/* ---- steps into other memory ---- */

/* A whole state of training that the caller owns. */
struct place {
    float p[COUNT], slots[2][COUNT];
    int64_t steps[RANGES_MAX];
    float *parameters[RANGES_MAX], *state[STATE_MAX];
    struct muster_optimizer_memory memory;
};

/* For ranges that follow each other. */
static void place_init(struct place *place, const struct job *job, size_t slot_count) {
    memset(place, 0, sizeof *place);
    size_t begin = 0;
    for (size_t i = 0; i < job->count; begin += job->ranges[i].count, i++) {
        place->parameters[i] = place->p + begin;
        for (size_t slot = 0; slot < slot_count; slot++) {
            place->state[i * slot_count + slot] = place->slots[slot] + begin;
        }
    }
    place->memory =
        (struct muster_optimizer_memory){sizeof place->memory, place->parameters, place->state, place->steps};
}

static const size_t slot_counts[KIND_COUNT] = {0, 1, 1, 2, 2, 2};

static void steps_between_two_memories_have_the_same_bits(void **state) {
    (void)state;
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        static struct job whole, parts;
        static struct place places[2], kept;
        static uint16_t bfloat16[COUNT];
        uint16_t *halves[RANGES_MAX] = {NULL};
        job_whole(&whole, (enum kind)kind);
        memset(&parts, 0, sizeof parts);
        for (size_t i = 0; i < 4; i++) {
            add_range(&parts, i * 500, 500, 0);
            halves[i] = bfloat16 + i * 500;
        }
        job_create(&parts, (enum kind)kind, 0);
        place_init(&places[0], &parts, slot_counts[kind]);
        place_init(&places[1], &parts, slot_counts[kind]);
        fill(places[0].p, COUNT, 5);
        assert_int_equal(muster_optimizer_move(parts.optimizer, &places[0].memory), 0);
        for (size_t step = 1; step <= STEPS; step++) {
            const struct place *now = &places[(step + 1) % 2], *next = &places[step % 2];
            struct muster_optimizer_step_options options = MUSTER_OPTIMIZER_STEP_OPTIONS_INIT;
            options.out = &next->memory;
            options.bfloat16 = halves;
            kept = *now;
            fill(parts.g, COUNT, 999); /* a step that is thrown away */
            assert_int_equal(muster_optimizer_step_into(parts.optimizer, parts.gradients, &options), 0);
            fill(parts.g, COUNT, step);
            assert_int_equal(muster_optimizer_step_into(parts.optimizer, parts.gradients, &options), 0);
            assert_memory_equal(now, &kept, sizeof kept);
            assert_int_equal(next->steps[3], step);
            assert_int_equal(muster_optimizer_move(parts.optimizer, &next->memory), 0);
            train(&whole, step, step);
            assert_memory_equal(next->p, whole.p, sizeof whole.p);
            for (size_t i = 0; i < COUNT; i++) {
                uint32_t bits = (uint32_t)bfloat16[i] << 16;
                float value;
                memcpy(&value, &bits, sizeof value);
                assert_true(fabsf(value - whole.p[i]) <= fabsf(whole.p[i]) * 0x1p-8F);
            }
        }
        if (slot_counts[kind] > 0) {
            struct muster_tensor tensors[9];
            assert_int_equal(muster_optimizer_tensors(parts.optimizer, tensors), 0);
            assert_true(tensors[0].data == places[STEPS % 2].slots[0]);
            assert_true(tensors[4 * slot_counts[kind]].data == places[STEPS % 2].steps);
        }
        muster_optimizer_free(whole.optimizer);
        muster_optimizer_free(parts.optimizer);
    }
}

static void what_is_not_named_stays_in_place(void **state) {
    (void)state;
    static struct job whole, job;
    static struct place place;
    struct muster_optimizer_step_options options = MUSTER_OPTIMIZER_STEP_OPTIONS_INIT;
    struct muster_tensor tensors[3];
    job_whole(&whole, ADAM);
    job_whole(&job, ADAM);
    place_init(&place, &job, 2);
    place.memory.parameters = NULL; /* parameters and steps in place, one of two slots elsewhere */
    place.memory.steps = NULL;
    place.state[0] = NULL;
    options.out = &place.memory;
    train(&whole, 1, 1);
    fill(job.g, COUNT, 1);
    assert_int_equal(muster_optimizer_step_into(job.optimizer, job.gradients, &options), 0);
    assert_memory_equal(job.p, whole.p, sizeof whole.p);
    assert_int_equal(muster_optimizer_move(job.optimizer, &place.memory), 0);
    assert_int_equal(muster_optimizer_tensors(job.optimizer, tensors), 0);
    assert_true(tensors[1].data == place.slots[1] && tensors[0].data != place.slots[0]);
    assert_int_equal(((const int64_t *)tensors[2].data)[0], 1);
    train(&whole, 2, STEPS);
    train(&job, 2, STEPS);
    assert_memory_equal(job.p, whole.p, sizeof whole.p);
    muster_optimizer_free(whole.optimizer);
    muster_optimizer_free(job.optimizer);
}

static void a_range_without_a_gradient_is_copied(void **state) {
    (void)state;
    static struct job job;
    static struct place place;
    struct muster_optimizer_step_options options = MUSTER_OPTIMIZER_STEP_OPTIONS_INIT;
    struct muster_tensor tensors[5];
    memset(&job, 0, sizeof job);
    fill(job.p, COUNT, 5);
    add_range(&job, 0, 1000, 0);
    add_range(&job, 1000, 1000, 0);
    job_create(&job, ADADELTA, 0);
    train(&job, 1, 3);
    place_init(&place, &job, 2);
    options.out = &place.memory;
    job.gradients[1] = NULL;
    assert_int_equal(muster_optimizer_step_into(job.optimizer, job.gradients, &options), 0);
    assert_int_equal(muster_optimizer_tensors(job.optimizer, tensors), 0);
    assert_memory_equal(place.p + 1000, job.p + 1000, 1000 * sizeof(float));
    assert_memory_equal(place.slots[1] + 1000, tensors[3].data, 1000 * sizeof(float));
    assert_true(place.p[1] != job.p[1]);
    assert_true(place.steps[0] == 4 && place.steps[1] == 3);
    muster_optimizer_free(job.optimizer);
}

/* Enough to be stored past the caches. */
static void a_large_step_has_the_same_bits(void **state) {
    (void)state;
    enum { LARGE = 1100003, ARRAYS = 8 };
    float *memory = calloc((size_t)LARGE * ARRAYS, sizeof *memory), *arrays[ARRAYS];
    assert_non_null(memory);
    for (size_t i = 0; i < ARRAYS; i++) {
        arrays[i] = memory + i * LARGE;
    }
    fill(arrays[0], LARGE, 5);
    fill(arrays[1], LARGE, 5);
    fill(arrays[2], LARGE, 1);
    const float *const gradients[] = {arrays[2]};
    int64_t steps[1];
    const struct muster_optimizer_memory out = {sizeof out, &arrays[3], &arrays[4], steps};
    uint16_t *const halves[] = {(uint16_t *)(void *)arrays[6]}, *const others[] = {(uint16_t *)(void *)arrays[7]};
    struct muster_optimizer *optimizers[2];
    for (size_t i = 0; i < 2; i++) {
        const struct muster_optimizer_parameter parameter = {"p", arrays[i], LARGE};
        struct muster_optimizer_step_options options = MUSTER_OPTIMIZER_STEP_OPTIONS_INIT;
        assert_int_equal(muster_optimizer_create_adamw(&parameter, 1, NULL, &optimizers[i]), 0);
        options.out = i == 0 ? NULL : &out;
        options.bfloat16 = i == 0 ? halves : others;
        assert_int_equal(muster_optimizer_step_into(optimizers[i], gradients, &options), 0);
    }
    struct muster_tensor tensors[3];
    assert_int_equal(muster_optimizer_tensors(optimizers[0], tensors), 0);
    assert_memory_equal(arrays[0], arrays[3], LARGE * sizeof(float));
    assert_memory_equal(tensors[0].data, arrays[4], LARGE * sizeof(float));
    assert_memory_equal(tensors[1].data, arrays[5], LARGE * sizeof(float));
    assert_memory_equal(halves[0], others[0], LARGE * sizeof(uint16_t));
    muster_optimizer_free(optimizers[0]);
    muster_optimizer_free(optimizers[1]);
    free(memory);
}

/* ---- gradients that are scaled ---- */

static void a_scaled_step_is_a_clipped_one(void **state) {
    (void)state;
    for (int kind = 0; kind < KIND_COUNT; kind++) {
        static struct job clipped, scaled;
        job_whole(&clipped, (enum kind)kind);
        job_whole(&scaled, (enum kind)kind);
        for (size_t step = 1; step <= STEPS; step++) {
            struct muster_optimizer_step_options options = MUSTER_OPTIMIZER_STEP_OPTIONS_INIT;
            float *const gradients[] = {clipped.g};
            const size_t counts[] = {COUNT};
            double norm = 0, sum = 0;
            fill(clipped.g, COUNT, step);
            fill(scaled.g, COUNT, step);
            assert_int_equal(muster_clip_gradients(NULL, gradients, counts, 1, 0.7, &norm), 0);
            assert_int_equal(muster_squared_norm(NULL, scaled.gradients, counts, 1, &sum), 0);
            assert_true(sqrt(sum) == norm && norm > 0.7);
            options.gradient_scale = muster_clip_scale(norm, 0.7);
            assert_int_equal(muster_optimizer_step(clipped.optimizer, clipped.gradients), 0);
            assert_int_equal(muster_optimizer_step_into(scaled.optimizer, scaled.gradients, &options), 0);
            assert_memory_equal(clipped.p, scaled.p, sizeof scaled.p);
        }
        muster_optimizer_free(clipped.optimizer);
        muster_optimizer_free(scaled.optimizer);
    }
    assert_true(muster_clip_scale(0.7, 0.7) == 1 && muster_clip_scale(3, 6) == 1);
    assert_true(muster_clip_scale(4, 2) == 2 / (4 + 1e-6));
    assert_true(muster_clip_scale((double)INFINITY, 2) == 1 && muster_clip_scale((double)NAN, 2) == 1);
    assert_true(muster_clip_scale(4, 0) == 1 && muster_clip_scale(4, (double)NAN) == 1);
}

/* ---- mistakes ---- */

static void expect_refused(const struct job *job, const struct muster_optimizer_group *groups, size_t group_count,
                           int code, const char *sentence) {
    struct muster_optimizer *optimizer = NULL;
    assert_int_equal(muster_optimizer_create(job->ranges, job->count, groups, group_count, &optimizer), code);
    assert_null(optimizer);
    assert_non_null(strstr(muster_detail(), sentence));
}

static void mistakes_are_told(void **state) {
    (void)state;
    static struct job job;
    struct options options[2];
    struct muster_optimizer_group groups[] = {group_of(ADAM, 0, &options[0]), group_of(ADAMW, 0, &options[1])};
    memset(&job, 0, sizeof job);
    add_range(&job, 0, 10, 0);
    expect_refused(&job, groups, 2, MUSTER_EINVAL, "group 1 of parameters is of another kind than group 0");
    expect_refused(&job, groups, 0, MUSTER_ELIMIT, "0 groups");
    expect_refused(&job, groups, MUSTER_OPTIMIZER_GROUPS_MAX + 1, MUSTER_ELIMIT, "257 groups");
    groups[0].adamw = &options[0].adamw;
    expect_refused(&job, groups, 1, MUSTER_EINVAL, "group 0 of parameters: it has options of 2 kinds");
    groups[0].adamw = NULL;
    options[0].adam.beta2 = 1;
    expect_refused(&job, groups, 1, MUSTER_EINVAL, "group 0 of parameters: Adam with");
    options[0].adam.beta2 = 0.9;
    job.ranges[0].group = 1;
    expect_refused(&job, groups, 1, MUSTER_EINVAL, "parameter part.0 is in group 1 of 1");
    job.ranges[0].group = 0;
    job.ranges[0].data = NULL;
    expect_refused(&job, groups, 1, MUSTER_EINVAL, "parameter 0 has no name or no data");
    job.ranges[0].data = job.p;
    job_create(&job, ADAM, 0);
    struct muster_optimizer_step_options step = MUSTER_OPTIMIZER_STEP_OPTIONS_INIT;
    step.gradient_scale = (double)NAN;
    assert_int_equal(muster_optimizer_step_into(job.optimizer, job.gradients, &step), MUSTER_EINVAL);
    assert_int_equal(muster_optimizer_set_group_learning_rate(job.optimizer, 1, 0.1), MUSTER_EINVAL);
    assert_int_equal(muster_optimizer_set_group_learning_rate(job.optimizer, 0, (double)NAN), MUSTER_EINVAL);
    assert_true(muster_optimizer_group_learning_rate(job.optimizer, 1) == 0);
    muster_optimizer_free(job.optimizer);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_split_has_the_same_bits),
        cmocka_unit_test(an_empty_shard_has_an_empty_state),
        cmocka_unit_test(groups_have_their_own_options),
        cmocka_unit_test(a_group_without_momentum_remembers_nothing),
        cmocka_unit_test(steps_between_two_memories_have_the_same_bits),
        cmocka_unit_test(what_is_not_named_stays_in_place),
        cmocka_unit_test(a_range_without_a_gradient_is_copied),
        cmocka_unit_test(a_large_step_has_the_same_bits),
        cmocka_unit_test(a_scaled_step_is_a_clipped_one),
        cmocka_unit_test(mistakes_are_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
