/* Making an fsdp: what is refused here, what all ranks refuse alike, after which another one can be made, and what
 * fails on one rank alone, of which all hear. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include <muster/collective.h>
#include <muster/ddp.h>
#include <muster/syncbn.h>

#include "base/status.h"
#include "train/units/fsdp_mischief_test_support.h"

static void refused(struct rank *rank, int status, int expected, const char *needle) {
    rank_report(rank, status ? muster_detail() : "no failure");
    rank_check_code(rank, status, expected);
    rank_check(rank, strstr(muster_detail(), needle) != NULL);
}

/* The group is as good as before: another one can be made on it. */
static void make_another(struct rank *rank, struct muster_group *group) {
    struct muster_fsdp *fsdp = NULL;
    rank_check_code(rank, muster_fsdp_create(group, alike_units, ALIKE, NULL, &fsdp), 0);
    rank_check_code(rank, step_alike(fsdp, MUSTER_FSDP_STEP, forwards, backwards), 0);
    muster_fsdp_free(fsdp);
}

/* ---- ranks that differ ---- */

enum { DIFFERENCES = 17 };

/* What is different on the culprit, and the sentence for it. */
static const char *differ(size_t kind, bool is_culprit, struct muster_fsdp_unit *units,
                          struct muster_fsdp_parameter *parameters, size_t *unit_count,
                          struct muster_fsdp_options *options) {
    struct muster_fsdp_unit unit = units[1];
    struct muster_fsdp_parameter parameter = parameters[0];
    struct muster_fsdp_options all = *options;
    size_t count = *unit_count;
    static const char *const sentences[DIFFERENCES] = {
        "rank 1 has \"unit 1: unit z, 2 parameters\" where rank 0 has \"unit 1: unit b, 2 parameters\"",
        "rank 1 has \"unit 1: unit b, 1 parameters\" where rank 0 has \"unit 1: unit b, 2 parameters\"",
        "rank 1 has \"parameter 2: x.w, 80 in blocks of 1\" where rank 0 has \"parameter 2: b.w, 80 in blocks of 1\"",
        "rank 1 has \"parameter 2: b.w, 81 in blocks of 1\" where rank 0 has \"parameter 2: b.w, 80 in blocks of 1\"",
        "rank 1 has \"parameter 2: b.w, 80 in blocks of 8\" where rank 0 has \"parameter 2: b.w, 80 in blocks of 1\"",
        "rank 1 has \"parameter 2: b.w, 80 in blocks of 1, frozen\" where rank 0 has",
        "rank 1 has \"nothing\" where rank 0 has \"unit 3: unit d, 2 parameters\"",
        "different options: sharding is hybrid on rank 1, and full on rank 0",
        "different options: reshard_after_forward is false on rank 1, and true on rank 0",
        "different options: prefetch is 3 on rank 1, and 1 on rank 0",
        "different options: compute_type is bfloat16 on rank 1, and float32 on rank 0",
        "different options: gradient_type is bfloat16 on rank 1, and float32 on rank 0",
        "different options: reduce_type is bfloat16 on rank 1, and float32 on rank 0",
        "different options: find_unused is true on rank 1, and false on rank 0",
        "different options: check_finite is true on rank 1, and false on rank 0",
        "different options: uneven_inputs is true on rank 1, and false on rank 0",
        "different options: divide_by_active is true on rank 1, and false on rank 0",
    };
    unit.name = kind == 0 ? "unit z" : unit.name;
    unit.parameter_count -= kind == 1;
    parameter.name = kind == 2 ? "x.w" : parameter.name;
    parameter.count += kind == 3;
    parameter.block = kind == 4 ? 8 : 0;
    parameter.frozen = kind == 5;
    count -= kind == 6;
    all.sharding = kind == 7 ? MUSTER_FSDP_HYBRID : MUSTER_FSDP_FULL;
    all.reshard_after_forward = kind != 8;
    all.prefetch = kind == 9 ? 3 : 1;
    all.compute_type = kind == 10 ? MUSTER_BFLOAT16 : MUSTER_FLOAT32;
    all.gradient_type = kind == 11 ? MUSTER_BFLOAT16 : MUSTER_FLOAT32;
    all.reduce_type = kind == 12 ? MUSTER_BFLOAT16 : MUSTER_FLOAT32;
    all.find_unused = kind == 13;
    all.check_finite = kind == 14;
    all.uneven_inputs = kind == 15;
    all.divide_by_active = kind == 16;
    if (is_culprit) {
        units[1] = unit;
        parameters[0] = parameter;
        *unit_count = count;
        *options = all;
    }
    return sentences[kind];
}

static int register_differently(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    for (size_t kind = 0; kind < DIFFERENCES; kind++) {
        struct muster_fsdp_options options = MUSTER_FSDP_OPTIONS_INIT;
        struct muster_fsdp_unit units[ALIKE];
        struct muster_fsdp_parameter parameters[2] = {alike_units[1].parameters[0], alike_units[1].parameters[1]};
        struct muster_fsdp *fsdp = NULL;
        size_t count = ALIKE;
        memcpy(units, alike_units, sizeof units);
        units[1].parameters = parameters;
        const char *sentence = differ(kind, rank->rank == CULPRIT, units, parameters, &count, &options);
        refused(rank, muster_fsdp_create(group, units, count, &options, &fsdp), MUSTER_EMISMATCH, sentence);
        rank_check(rank, fsdp == NULL);
    }
    make_another(rank, group);
    muster_group_free(group);
    return 0;
}

static void different_models_are_told_apart(void **state) {
    (void)state;
    for (size_t i = 0; i < SCENES; i++) {
        ranks_run_with(scenes[i].size, register_differently, NULL, &scenes[i].ranks);
    }
}

static int fill_ones(void *context, size_t unit, size_t parameter, float *values) {
    (void)context;
    for (size_t i = 0; i < alike_units[unit].parameters[parameter % 2].count; i++) {
        values[i] = 1;
    }
    return 0;
}

/* It is called on rank 0 alone, but spreading the values is the work of all. */
static int fill_on_one_rank(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_fsdp_options options = MUSTER_FSDP_OPTIONS_INIT;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_fsdp *fsdp = NULL;
    options.fill = rank->rank == 0 ? fill_ones : NULL;
    refused(rank, muster_fsdp_create(group, alike_units, ALIKE, &options, &fsdp), MUSTER_EMISMATCH,
            "different options: fill is NULL on rank 1, and a function on rank 0");
    make_another(rank, group);
    muster_group_free(group);
    return 0;
}

static void a_fill_on_one_rank_alone_is_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < SCENES; i++) {
        ranks_run_with(scenes[i].size, fill_on_one_rank, NULL, &scenes[i].ranks);
    }
}

static int shard_unevenly(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_fsdp_options options = MUSTER_FSDP_OPTIONS_INIT;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_fsdp *fsdp = NULL;
    options.sharding = MUSTER_FSDP_HYBRID;
    refused(rank, muster_fsdp_create(group, alike_units, ALIKE, &options, &fsdp), MUSTER_EINVAL,
            "muster_fsdp_create: hybrid sharding needs the same number of ranks on each of the 2 hosts");
    make_another(rank, group);
    muster_group_free(group);
    return 0;
}

static void hybrid_sharding_of_uneven_hosts_is_refused(void **state) {
    (void)state;
    const struct ranks_options uneven = {.host_of = (const uint32_t[4]){0, 0, 0, 1}};
    ranks_run_with(4, shard_unevenly, NULL, &uneven);
}

/* ---- first values that fail ---- */

static int fill_badly(void *context, size_t unit, size_t parameter, float *values) {
    const int *code = context;
    if (parameter == 3) {
        return *code == -77 ? *code : status_fail(*code, "the file is not there");
    }
    return fill_ones(NULL, unit, parameter, values);
}

static int fail_to_fill(struct rank *rank, void *argument) {
    const struct scene *scene = argument;
    struct muster_store *store = rank_store(rank);
    static const int codes[] = {MUSTER_EINVAL, MUSTER_EMISMATCH, MUSTER_ENOMEM, MUSTER_ESYSTEM, -77};
    for (uint32_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        struct muster_fsdp_options options = MUSTER_FSDP_OPTIONS_INIT;
        struct muster_group_options named = MUSTER_GROUP_OPTIONS_INIT;
        char name[16];
        (void)snprintf(name, sizeof name, "try-%u", i);
        named.name = name;
        struct muster_group *group = NULL;
        struct muster_fsdp *fsdp = NULL;
        int code = codes[i];
        rank_check_code(rank, muster_group_create_store(store, rank->rank, rank->size, &named, &group), 0);
        options.sharding = scene->sharding;
        options.fill = fill_badly;
        options.fill_context = &code;
        int status = muster_fsdp_create(group, alike_units, ALIKE, &options, &fsdp);
        refused(rank, status, rank->rank == 0 ? code : MUSTER_EABORTED, "first values of b.b");
        rank_check(rank, code == -77 || strstr(muster_detail(), "the file is not there") != NULL);
        rank_check(rank, fsdp == NULL);
        meet_all(rank, i + 1); /* nobody hears of it because another has left */
        muster_group_free(group);
    }
    return 0;
}

static void first_values_that_fail_end_it_for_all(void **state) {
    (void)state;
    for (size_t i = 0; i < SCENES; i++) {
        struct scene scene = scenes[i];
        ranks_run_with(scene.size, fail_to_fill, &scene, &scene.ranks);
    }
}

/* ---- optimizers ---- */

/* One rank wants an optimizer that remembers nothing. Ranks of other hosts hear of it at the next step. */
static void optimize_otherwise(struct player *player) {
    const struct muster_adamw_options adamw = {sizeof adamw, 0.01, 0.9, 0.99, 1e-8, 0.1};
    const struct muster_sgd_options sgd = {.size = sizeof sgd, .learning_rate = 0.1};
    const struct muster_optimizer_group groups[2] = {{.adamw = &adamw}, {.sgd = &sgd}};
    bool is_culprit = player->rank->rank == CULPRIT;
    struct muster_optimizer *optimizer = NULL;
    int status = muster_fsdp_optimizer(player->fsdp, NULL, &groups[is_culprit], 1, &optimizer);
    status = status ? status : step_alike(player->fsdp, MUSTER_FSDP_STEP, forwards, backwards);
    expect_failure(player, status, MUSTER_EMISMATCH, MUSTER_EABORTED, "for what the optimizer remembers");
    struct muster_optimizer *another = NULL;
    rank_check_code(player->rank, muster_fsdp_optimizer(player->fsdp, NULL, groups, 1, &another), status);
    rank_check(player->rank, another == NULL);
    muster_optimizer_free(optimizer);
}

static void other_optimizers_on_a_host_are_told(void **state) {
    (void)state;
    for (size_t i = 0; i < SCENES; i++) {
        if (scenes[i].ranks.ranks_per_host != 1) { /* who is alone on a host shares nothing */
            play(&scenes[i], optimize_otherwise, NULL);
        }
    }
}

/* ---- what is refused without a look at the others ---- */

static int refuse_models(struct rank *rank, void *argument) {
    (void)argument;
    static char long_name[MUSTER_FSDP_NAME_MAX + 1];
    memset(long_name, 'x', sizeof long_name - 1);
    const struct {
        struct muster_fsdp_parameter parameter;
        const char *expected;
    } cases[] = {
        {{.name = NULL, .count = 1}, "unit \"u\": parameter 0 has no name"},
        {{.name = long_name, .count = 1}, "more than 255 bytes"},
        {{.name = "a\nb", .count = 1}, "unit \"u\": the name of parameter 0 has a line break"},
        {{.name = "a", .count = 0}, "unit \"u\": parameter \"a\" has no elements"},
        {{.name = "a", .count = 10, .block = 4}, "no whole number of blocks"},
        {{.name = "a", .count = 10, .block = SIZE_MAX}, "no whole number of blocks"},
    };
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_fsdp *fsdp = NULL;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const struct muster_fsdp_unit unit = {"u", &cases[i].parameter, 1};
        refused(rank, muster_fsdp_create(group, &unit, 1, NULL, &fsdp), MUSTER_EINVAL, cases[i].expected);
    }
    const struct muster_fsdp_parameter good = {.name = "a", .count = 4}, other = {.name = "b", .count = 4};
    const struct muster_fsdp_unit units[][2] = {
        {{NULL, &good, 1}, {"v", &other, 1}}, {{"u", &good, 1}, {"u", &other, 1}},
        {{"u", &good, 1}, {"v", &good, 1}},   {{"u", &good, 1}, {"v", NULL, 1}},
        {{"u", &good, 1}, {"v", &other, 0}},  {{"u", &good, 1}, {"v", &other, MUSTER_FSDP_PARAMETERS_MAX}}};
    const char *const sentences[] = {
        "unit 0 has no name", "two units are called \"u\"",  "two parameters are called \"a\"",
        "unit \"v\": ",       "unit \"v\" has 0 parameters", "unit \"v\" has 65536 parameters"};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++) {
        refused(rank, muster_fsdp_create(group, units[i], 2, NULL, &fsdp), MUSTER_EINVAL, sentences[i]);
    }
    refused(rank, muster_fsdp_create(group, units[0], 0, NULL, &fsdp), MUSTER_EINVAL, "0 units");
    refused(rank, muster_fsdp_create(group, units[0], MUSTER_FSDP_UNITS_MAX + 1, NULL, &fsdp), MUSTER_EINVAL,
            "4097 units: 1 to 4096 are possible");
    rank_check(rank, fsdp == NULL);
    make_another(rank, group); /* nobody else was bothered */
    muster_group_free(group);
    return 0;
}

static int refuse_options(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_fsdp *fsdp = NULL;
    const struct muster_fsdp_options good = MUSTER_FSDP_OPTIONS_INIT;
    struct muster_fsdp_options wrong[6] = {good, good, good, good, good, good};
    const char *const sentences[] = {"types are float32 or bfloat16",
                                     "types are",
                                     "types are",
                                     "sharding 5 is none",
                                     "prefetch is 9: 0 to 8 are possible",
                                     "MUSTER_FSDP_OPTIONS_INIT"};
    wrong[0].compute_type = MUSTER_FLOAT16;
    wrong[1].gradient_type = MUSTER_INT32;
    wrong[2].reduce_type = MUSTER_TYPE_COUNT;
    wrong[3].sharding = (enum muster_fsdp_sharding)5;
    wrong[4].prefetch = 9;
    wrong[5].size = 0;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        refused(rank, muster_fsdp_create(group, alike_units, ALIKE, &wrong[i], &fsdp), MUSTER_EINVAL, sentences[i]);
    }
    make_another(rank, group);
    muster_group_free(group);
    return 0;
}

static void wrong_models_and_options_are_refused(void **state) {
    (void)state;
    ranks_run(2, refuse_models, NULL);
    ranks_run(2, refuse_options, NULL);
}

static void refuse_nulls_of_steps(struct rank *rank, struct muster_fsdp *fsdp) {
    struct muster_fsdp_view view;
    bool stepped;
    const enum muster_fsdp_pass pass = MUSTER_FSDP_FORWARD;
    refused(rank, muster_fsdp_begin(NULL, MUSTER_FSDP_STEP), MUSTER_EINVAL, "muster_fsdp_begin: fsdp");
    refused(rank, muster_fsdp_acquire(NULL, 0, pass, &view), MUSTER_EINVAL, "muster_fsdp_acquire: fsdp");
    refused(rank, muster_fsdp_acquire(fsdp, 0, pass, NULL), MUSTER_EINVAL, "muster_fsdp_acquire: out");
    refused(rank, muster_fsdp_release(NULL, 0, pass), MUSTER_EINVAL, "muster_fsdp_release: fsdp");
    refused(rank, muster_fsdp_finish(NULL), MUSTER_EINVAL, "muster_fsdp_finish: fsdp");
    refused(rank, muster_fsdp_shadow(NULL, &stepped), MUSTER_EINVAL, "muster_fsdp_shadow: fsdp");
    refused(rank, muster_fsdp_shadow(fsdp, NULL), MUSTER_EINVAL, "muster_fsdp_shadow: stepped");
    refused(rank, muster_fsdp_shadow(fsdp, &stepped), MUSTER_EINVAL, "made without uneven_inputs");
}

static void refuse_nulls_of_questions(struct rank *rank, struct muster_fsdp *fsdp) {
    struct muster_fsdp_range range;
    struct muster_fsdp_memory memory;
    struct muster_fsdp_statistics numbers;
    double sum;
    refused(rank, muster_fsdp_range(NULL, 0, &range), MUSTER_EINVAL, "muster_fsdp_range: fsdp");
    refused(rank, muster_fsdp_range(fsdp, 0, NULL), MUSTER_EINVAL, "muster_fsdp_range: out");
    refused(rank, muster_fsdp_range(fsdp, (size_t)2 * ALIKE, &range), MUSTER_EINVAL, "range 8 of 8");
    rank_check(rank, muster_fsdp_range_count(NULL) == 0 && muster_fsdp_range_count(fsdp) == (size_t)2 * ALIKE);
    rank_check(rank, muster_fsdp_offset(NULL, 0) == SIZE_MAX && muster_fsdp_offset(fsdp, 8) == SIZE_MAX);
    rank_check(rank, muster_fsdp_offset(fsdp, 7) == 80);
    refused(rank, muster_fsdp_memory(NULL, &memory), MUSTER_EINVAL, "muster_fsdp_memory: fsdp");
    refused(rank, muster_fsdp_memory(fsdp, NULL), MUSTER_EINVAL, "muster_fsdp_memory: out");
    refused(rank, muster_fsdp_statistics(NULL, &numbers), MUSTER_EINVAL, "muster_fsdp_statistics: fsdp");
    refused(rank, muster_fsdp_statistics(fsdp, NULL), MUSTER_EINVAL, "muster_fsdp_statistics: out");
    refused(rank, muster_fsdp_squared_norm(NULL, &sum), MUSTER_EINVAL, "muster_fsdp_squared_norm: fsdp");
    refused(rank, muster_fsdp_squared_norm(fsdp, NULL), MUSTER_EINVAL, "muster_fsdp_squared_norm: out_sum");
}

static void refuse_nulls_of_optimizers(struct rank *rank, struct muster_fsdp *fsdp) {
    const struct muster_adamw_options adamw = {sizeof adamw, 0.01, 0.9, 0.99, 1e-8, 0.1};
    const struct muster_optimizer_group groups[1] = {{.adamw = &adamw}}, none[1] = {{.adamw = NULL}};
    const size_t group_of[8] = {0, 0, 0, 1};
    struct muster_optimizer *optimizer = NULL;
    refused(rank, muster_fsdp_optimizer(NULL, NULL, groups, 1, &optimizer), MUSTER_EINVAL, "optimizer: fsdp");
    refused(rank, muster_fsdp_optimizer(fsdp, NULL, groups, 1, NULL), MUSTER_EINVAL, "optimizer: out");
    refused(rank, muster_fsdp_optimizer(fsdp, NULL, NULL, 1, &optimizer), MUSTER_EINVAL, "muster_fsdp_optimizer: ");
    refused(rank, muster_fsdp_optimizer(fsdp, NULL, groups, 0, &optimizer), MUSTER_ELIMIT, "muster_fsdp_optimizer: ");
    refused(rank, muster_fsdp_optimizer(fsdp, NULL, none, 1, &optimizer), MUSTER_EINVAL, "muster_fsdp_optimizer: ");
    refused(rank, muster_fsdp_optimizer(fsdp, group_of, groups, 1, &optimizer), MUSTER_EINVAL, "b.b");
    rank_check(rank, optimizer == NULL);
    rank_check_code(rank, muster_fsdp_optimizer(fsdp, NULL, groups, 1, &optimizer), 0);
    refused(rank, muster_fsdp_step(NULL, optimizer, 1), MUSTER_EINVAL, "muster_fsdp_step: fsdp");
    refused(rank, muster_fsdp_step(fsdp, NULL, 1), MUSTER_EINVAL, "muster_fsdp_step: optimizer");
    refused(rank, muster_fsdp_step(fsdp, optimizer, 1), MUSTER_EINVAL, "there are no averages");
    muster_optimizer_free(optimizer);
}

static int refuse_nulls(struct rank *rank, void *argument) {
    (void)argument;
    struct muster_group *group = rank_group(rank, NULL);
    struct muster_fsdp *fsdp = NULL;
    refused(rank, muster_fsdp_create(NULL, alike_units, ALIKE, NULL, &fsdp), MUSTER_EINVAL, "create: group");
    refused(rank, muster_fsdp_create(group, NULL, ALIKE, NULL, &fsdp), MUSTER_EINVAL, "muster_fsdp_unit");
    refused(rank, muster_fsdp_create(group, alike_units, ALIKE, NULL, NULL), MUSTER_EINVAL, "create: out");
    rank_check_code(rank, muster_fsdp_create(group, alike_units, ALIKE, NULL, &fsdp), 0);
    refuse_nulls_of_steps(rank, fsdp);
    refuse_nulls_of_questions(rank, fsdp);
    refuse_nulls_of_optimizers(rank, fsdp);
    muster_fsdp_free(fsdp);
    muster_fsdp_free(NULL);
    muster_group_free(group);
    return 0;
}

static void null_is_refused(void **state) {
    (void)state;
    ranks_run(2, refuse_nulls, NULL);
}

/* ---- a group that is freed first ---- */

static void steps_are_refused(struct rank *rank, struct muster_ddp *ddp, struct muster_fsdp *fsdp,
                              struct muster_syncbn *layer) {
    static const char words[] = "group 'short-lived' has been freed: free what was made with it first";
    float x[4] = {1, 2, 3, 4}, y[4];
    refused(rank, muster_fsdp_begin(fsdp, MUSTER_FSDP_STEP), MUSTER_EINVAL, words);
    refused(rank, muster_ddp_begin(ddp), MUSTER_EINVAL, words);
    refused(rank, muster_ddp_ready(ddp, 0), MUSTER_EINVAL, words);
    refused(rank, muster_ddp_finish(ddp), MUSTER_EINVAL, words);
    refused(rank, muster_ddp_zero_gradients(ddp), MUSTER_EINVAL, words);
    refused(rank, muster_syncbn_forward(layer, x, 2, 1, y), MUSTER_EINVAL, words);
}

static int free_the_group_first(struct rank *rank, void *argument) {
    static float data[4];
    static const struct muster_ddp_parameter parameters[] = {{"w", MUSTER_FLOAT32, 4, data, NULL}};
    struct muster_syncbn_options norm = MUSTER_SYNCBN_OPTIONS_INIT;
    struct muster_group_options options = MUSTER_GROUP_OPTIONS_INIT;
    bool is_root = *(bool *)argument;
    struct muster_ddp *ddp = NULL;
    struct muster_fsdp *fsdp = NULL;
    struct muster_syncbn *layer = NULL;
    norm.channels = 2;
    options.name = "short-lived";
    struct muster_group *world = rank_group(rank, is_root ? &options : NULL), *group = world;
    if (!is_root) {
        rank_check_code(rank, muster_group_split(world, 0, 0, &options, &group), 0);
    }
    rank_check_code(rank, muster_fsdp_create(group, alike_units, ALIKE, NULL, &fsdp), 0);
    rank_check_code(rank, muster_ddp_create(group, parameters, 1, NULL, 0, NULL, &ddp), 0);
    rank_check_code(rank, muster_syncbn_create(group, &norm, &layer), 0);
    rank_check_code(rank, step_alike(fsdp, MUSTER_FSDP_STEP, forwards, backwards), 0);
    rank_check_code(rank, muster_barrier(group, NULL), 0); /* nobody is in a step, whose failure would be told */
    muster_group_free(group);
    steps_are_refused(rank, ddp, fsdp, layer);
    muster_syncbn_free(layer);
    muster_ddp_free(ddp);
    muster_fsdp_free(fsdp);
    muster_group_free(is_root ? NULL : world);
    return 0;
}

static void a_group_that_is_freed_first_is_told(void **state) {
    (void)state;
    static const struct ranks_options layouts[] = {{.ranks_per_host = 0}, {.ranks_per_host = 1}, {.ranks_per_host = 2}};
    for (size_t i = 0; i < 6; i++) {
        bool is_root = i % 2 == 0;
        ranks_run_with(4, free_the_group_first, &is_root, &layouts[i / 2]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(different_models_are_told_apart),
        cmocka_unit_test(a_fill_on_one_rank_alone_is_refused),
        cmocka_unit_test(hybrid_sharding_of_uneven_hosts_is_refused),
        cmocka_unit_test(first_values_that_fail_end_it_for_all),
        cmocka_unit_test(other_optimizers_on_a_host_are_told),
        cmocka_unit_test(wrong_models_and_options_are_refused),
        cmocka_unit_test(null_is_refused),
        cmocka_unit_test(a_group_that_is_freed_first_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
